"""`inspect`'s verdict on quantized checkpoints against what SGLang's own classes fill, on a pretended GPU.

SGLang's methods build their parameters and its loaders fill them as on the GPU that is pretended; a sound one holds
afterwards what is stored, joined in order, in the dtype that it is stored in. What comes behind that is not run:
neither `process_weights_after_loading`, which lays tensors out for a kernel, nor any kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftconv.checkpoint import open_checkpoint
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.rules import LoadVerdict
from truth.asking import EngineDied, Refusal
from truth.drafts import Directory, Makers, read, target_of, target_path
from truth.judging import judged, predicted
from truth.sglang import engine, joined, loader
from truth.sglang.observing import sample_of
from truth.sglang.quantized_cases import CASES, Case
from truth.sglang.quantized_filled import differences
from truth.sglang.quantized_forms import made
from truth.store import Ask
from truth.table import Row
from truth.trained import Truth

SPECS: Mapping[engine.Platform, str] = MappingProxyType({"cuda": "sglang@0.5.23:b200", "hip": "sglang@0.5.23:mi325x"})
OBSERVING = (Path(__file__), Path(__file__).with_name("quantized_filled.py"), *loader.OBSERVING)

ASPECTS: Mapping[str, str] = MappingProxyType(
    {
        **loader.ASPECTS,
        "sglang-not-excluded": "weights",
        "sglang-excluded": "weights",
        "sglang-scales-missing": "weights",
        "sglang-scales-cut": "weights",
        "sglang-torn-silent": "weights",
        "sglang-fc-coded": "weights",
        "sglang-order-dropped": "weights",
        "sglang-packed-undeclared": "weights",
        "sglang-words-cut": "weights",
    }
)

UNFIT = "AssertionError|IndexError|size of tensor"
"""What loaders say of a tensor of another shape: most of their assertions have no words."""

SAYS: Mapping[str, str] = MappingProxyType(
    {
        "sglang-quant-method": "Unknown quantization method",
        "sglang-quark-int4": "No quark compatible scheme",
        "sglang-quark-scheme": "No quark compatible scheme",
        "sglang-quark-export": "export key|NoneType",
        "sglang-compressed-scheme": "QuantizationArgs|not supported now",
        "sglang-int4-activations": "No compressed-tensors compatible scheme",
        "sglang-modelopt": "only supports|Cannot find 'quant_algo'",
        "sglang-gptq": "Unknown quantization method: gptq",
        "sglang-awq": "not supported for quantization method awq|Cannot find any of|4-bit weight quantization",
        "sglang-auto-round": "Unsupported|Cannot find any of|non-Marlin GPTQ|4-bit weight quantization",
        "sglang-mla-nvfp4": UNFIT,
        "sglang-head-block": "Block-quantized lm_head is not supported",
        "sglang-other-scheme": f"No compressed-tensors compatible scheme|{UNFIT}",
        "sglang-kv-b": "post_load_weights|no attribute 'weight'",
        "sglang-a-projections": f"concatenated|Sizes of tensors must match|{UNFIT}",
        "sglang-fc-quantized": "Attempted to load weight",
        "sglang-rocm": "not supported in ROCm|gptq_marlin_repack",
        "sglang-scales": f"Downcasting not allowed|Unsupported copy|exceeds dimension size|{UNFIT}",
        "sglang-words-undeclared": UNFIT,
        "sglang-not-excluded-shape": UNFIT,
        "sglang-excluded-shape": UNFIT,
        "sglang-torn": UNFIT,
        "sglang-unmatched": "Unable to find matching target|Found different quantization|not all shards|error: missing"
        "|No quark compatible scheme",
    }
)
"""Rule → what SGLang says where it refuses for that reason, as a regular expression."""


def rows(makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per case, and per layer that was joined of weights under scales of their own."""
    for case in CASES:
        base = made(makers, case.drafter, case.form)
        with makers.made(case.change(Directory.open(base))) as path:
            yield _row(case, path, base, ask)
    yield from joined.rows(SPECS["cuda"], makers, ask)


def _row(case: Case, path: Path, base: Path, ask: Ask) -> Row:
    facts, target = read(base, case.drafter).facts, target_of(case.drafter)
    spec = parse_engine(SPECS[case.platform])
    verdict = ENGINES["sglang"].check(open_checkpoint(path), facts, target, spec, case.known)
    truth = Truth(facts, {}, target)

    def observe() -> dict[str, Any]:
        return observed(path, case, truth)

    answer = ask("quantized-loader", case.name, (path, facts, case.platform, *OBSERVING), observe)
    row = judged(case.name, verdict, loader.visible(predicted(verdict, ASPECTS)), answer, says(verdict))
    return replace(row, part="quantized-loader")


def says(verdict: LoadVerdict) -> str:
    """What SGLang says for the reasons that are given, as a regular expression."""
    return "|".join(SAYS[line.rule.code] for line in verdict.lines if line.rule.effect == "refused")


def observed(path: Path, case: Case, truth: Truth) -> dict[str, Any]:
    """What SGLang did with a directory: `observed` as `predicted` words it, and details."""
    sample = sample_of(truth, truth.target.max_positions)
    try:
        draft = engine.look(path, target_path(case.drafter), sample, case.platform, "auto")
    except EngineDied as death:
        return {"observed": "died", "detail": str(death)[-300:]}
    if isinstance(draft, Refusal):
        return {"observed": "refused", "detail": draft.error}
    apart = differences(draft, Directory.open(path))
    if not apart:
        return {"observed": "loads", "detail": ""}
    return {"observed": "mis-read: weights", "detail": "; ".join(apart)[:400]}
