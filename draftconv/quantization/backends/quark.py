"""amd-quark rounds the weights: INT4 and MXFP4, as its in-memory export writes them.

What runs is what `export_safetensors` runs, less the transformers model that it insists on
and the files. Source: amd-quark 0.13 `torch/export/api.py`, run.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from draftconv.errors import UsageError
from draftconv.quantization import pack_bytes, pack_int32
from draftconv.quantization.backends import Backend
from draftconv.quantization.backends.package import Kind, Package, linear, prepared, running
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import WeightScheme

QUARK = Package("amd-quark", "quark", "quark")

SPECS: Mapping[Kind, tuple[str, int]] = {
    ("int4", "channel", "max/7.5", "weight"): ("Int4PerChannelSpec", 0),
    ("int4", "group", "max/7.5", "weight"): ("Int4PerGroupSpec", -1),
    ("mxfp4", "group", "max/3.5", "E8M0"): ("OCP_MXFP4Spec", -1),
}
"""Class of `quark.torch.quantization`, and its `ch_axis`."""


def backend(scheme: WeightScheme) -> Backend:
    """Quark for weights of a scheme.

    Raises:
        Refused: it has no such scheme.
        UsageError: it is not installed, or does not start.
    """
    QUARK.known(scheme, SPECS)
    start()
    return quantize


def quantize(
    weight_OI: Tensor, scheme: WeightScheme, *, whole: Tensor | None = None, name: str = "the weight"
) -> RoundedWeight:
    """As `draftconv.quantization.rounding.quantize`, and with its bits for INT4.

    MXFP4 has the values of `native`, not all its bits: Quark has no negative zero, and the
    scale of a block of zeros is 2**-126 where `native` has 1.

    Args:
        whole: not looked at: no scheme here has a scale for the whole tensor.
    """
    del whole
    class_name, axis = QUARK.known(scheme, SPECS)
    start()
    rounded_OI = prepared(weight_OI, scheme, name)
    with running():
        from quark.torch import quantization

        spec = getattr(quantization, class_name)
        group = {"group_size": scheme.group} if scheme.dtype == "int4" and scheme.group else {}
        weight_spec = spec(ch_axis=axis, is_dynamic=False, **group).to_quantization_spec()
        words, scale = _exported_tensors(rounded_OI, quantization.QLayerConfig(weight=weight_spec))
    unit = torch.ones((), device=weight_OI.device)
    rows, inputs = weight_OI.shape
    if scheme.dtype == "mxfp4":
        return RoundedWeight("mxfp4", pack_bytes.unpack(words, 1, signed=False), scale, unit)
    qvalues = pack_int32.unpack(words, "order")
    if scheme.granularity == "channel":
        return RoundedWeight("int4", qvalues[:, :inputs].contiguous(), scale[:, None], unit)
    return RoundedWeight("int4", qvalues[:, :rows].T.contiguous(), scale.T.contiguous(), unit)


def _exported_tensors(weight_OI: Tensor, layer_config: object) -> tuple[Tensor, Tensor]:
    """`weight` and `weight_scale` of one layer, nibbles in natural order."""
    from quark.torch import ModelQuantizer
    from quark.torch.export.config.config import JsonExporterConfig
    from quark.torch.export.main_export.model_post_process import ModelPostProcessor
    from quark.torch.quantization import QConfig

    config = QConfig(global_quant_config=layer_config)
    model = ModelQuantizer(config).quantize_model(nn.Sequential(linear(weight_OI)))
    export = JsonExporterConfig(weight_format="real_quantized", pack_method="order")
    process = ModelPostProcessor(
        ModelQuantizer.freeze(model), export, custom_mode="quark", output_quant=False, quantization_config=config
    )
    tensors: dict[str, Tensor] = process.get_processed_model().state_dict()
    return tensors["0.weight"], tensors["0.weight_quantizer.scale"]


@cache
def start() -> None:
    """Import Quark, which builds a C++ extension the first time: 15 to 60 s.

    Raises:
        UsageError: it is not installed, or its extension cannot be built.
    """
    QUARK.look_for()
    with running(), _tools_on_path():
        try:
            from quark.common.utils.log import ScreenLogger

            ScreenLogger.set_shared_level(logging.CRITICAL)
            import quark.torch  # noqa: F401
        except (ImportError, RuntimeError) as error:
            raise _does_not_start(error) from error
    # Quark collects garbage after every weight. What the import made is none, and takes seconds to look through.
    gc.freeze()


@contextmanager
def _tools_on_path() -> Iterator[None]:
    """torch runs `ninja` from PATH, where the wheel's is missing unless the environment is activated."""
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path


def _does_not_start(error: Exception) -> UsageError:
    compiler = os.environ.get("CXX", "c++")
    if isinstance(error, RuntimeError) and shutil.which(compiler) is None:
        return UsageError(
            f"amd-quark does not start: there is no C++ compiler ({compiler})",
            why="it compiles an extension when it is first imported",
            cure="install g++, or --backend native, which gives the same bits",
        )
    return UsageError(
        f"amd-quark does not start: {error}".rstrip("."),
        why="it is imported with the packages that are installed beside it",
        cure="pip install 'draftconv[quark]', or --backend native, which gives the same bits",
    )
