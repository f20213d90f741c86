"""A short name for how a drafter is quantized."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.checkpoint import FLOATS, QUANT_FILE, TensorRef
from draftconv.drafter.config import Config
from draftconv.drafter.facts import UNDECLARED
from draftconv.drafter.fingerprint import Fingerprint


def quantization_name(
    fingerprint: Fingerprint, qparams: Mapping[str, TensorRef], tensors: Mapping[str, TensorRef]
) -> str | None:
    """What config.json declares and what the tensors show; None for a drafter that is not quantized."""
    packed = sorted({ref.dtype for name, ref in tensors.items() if name.endswith("weight")} - FLOATS)
    section = fingerprint.config.section("quantization_config")
    if not section.data:
        section = fingerprint.config.section("compression_config")
    sidecar = Config(fingerprint.checkpoint.sidecars.get(QUANT_FILE, {}), QUANT_FILE)
    if not qparams and not section.data and not sidecar.data and not packed:
        return None
    legacy = sidecar.section("quantization")
    method = section.text("quant_method") or ("modelopt" if legacy.data else UNDECLARED)
    weight = section.section("global_quant_config").raw("weight")
    # Quark's progressive schemes hold a list, the stored step last
    last = weight[-1] if isinstance(weight, list) and weight else weight
    spec = Config(last if isinstance(last, dict) else {}, "config.json: global_quant_config: weight")
    parts = (
        method,
        legacy.text("quant_algo") or section.text("quant_algo"),
        section.text("format"),
        spec.text("dtype"),
        spec.text("qscheme"),
        section.section("export").text("pack_method"),
        f"({'/'.join(packed)} weights)" if packed else None,
    )
    return " ".join(part for part in parts if part)
