"""What scripts/bench compares `draftconv quantize` with: the quantizers' own way from a drafter to a file.

peer_quantize.py PEER SOURCE OUT      runs in the environment of scripts/oracle-env

Neither exporter takes a drafter: each insists on a transformers model, so the drafter's tensors are hung into
one that has their names and no arithmetic. The seven weights of the decoder layer are quantized, as
by the recipes; tables, `fc` and norms are written as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedModel

KEPT = ("*embed_tokens*", "*lm_head*", "*fc*", "*norm*")


class Drafter(PreTrainedModel):  # type: ignore[no-untyped-call]
    """The tensors of a drafter under their names. Exporters call it on made-up tokens and look at nothing it says."""

    config_class = LlamaConfig

    def forward(self, input_ids: Tensor, **_: object) -> Tensor:
        return functional.embedding(input_ids, self.get_parameter("embed_tokens.weight"))


def load(source: Path) -> Drafter:
    """Every 2-D weight a Linear, the embedding an Embedding, everything else a parameter of its module."""
    model = Drafter(LlamaConfig(**json.loads((source / "config.json").read_text())))
    for name, tensor in load_file(source / "model.safetensors").items():
        path, _, leaf = name.rpartition(".")
        parent, _, last = path.rpartition(".")
        if tensor.ndim == 2:
            _module(model, parent).add_module(last, _table(tensor) if last == "embed_tokens" else _linear(tensor))
        else:
            _module(model, path).register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
    return model


def _table(weight: Tensor) -> nn.Module:
    table = nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
    table.weight = nn.Parameter(weight, requires_grad=False)
    return table


def _linear(weight: Tensor) -> nn.Module:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def _module(root: nn.Module, path: str) -> nn.Module:
    """The module at a path, made where there is none."""
    for name in filter(None, path.split(".")):
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    return root


def quark_memory(source: Path, out: Path) -> None:
    """amd-quark: the drafter in memory, then its safetensors export."""
    from quark.torch import ModelQuantizer, export_safetensors

    model = ModelQuantizer(_quark_config()).quantize_model(load(source))
    export_safetensors(
        ModelQuantizer.freeze(model), str(out), "quark", weight_format="real_quantized", pack_method="reorder"
    )


def quark_files(source: Path, out: Path) -> None:
    """amd-quark: from file to file, without a model."""
    from quark.torch import ModelQuantizer

    ModelQuantizer(_quark_config()).direct_quantize_checkpoint(
        pretrained_model_path=str(source), save_path=str(out), device="cpu"
    )


def _quark_config() -> object:
    from quark.torch.quantization import Int4PerChannelSpec, QConfig, QLayerConfig

    weight = Int4PerChannelSpec(ch_axis=0, is_dynamic=False).to_quantization_spec()
    return QConfig(global_quant_config=QLayerConfig(weight=weight), exclude=list(KEPT))


def modelopt_memory(source: Path, out: Path) -> None:
    """nvidia-modelopt: the drafter in memory, then its Hugging Face export; in groups: it exports no INT4 per row."""
    from modelopt.torch import quantization
    from modelopt.torch.export import export_hf_checkpoint

    model = load(source)
    inputs = [module.in_features for module in model.modules() if isinstance(module, nn.Linear)]
    group = next(size for size in (128, 32) if all(size_in % size == 0 for size_in in inputs))
    weights = {"num_bits": 4, "block_sizes": {-1: group, "type": "static"}}
    entries: list[dict[str, object]] = [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": weights},
        *({"quantizer_name": name, "enable": False} for name in KEPT),
    ]
    quantization.quantize(model, {"quant_cfg": entries, "algorithm": "max"})
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=str(out))


PEERS: Mapping[str, Callable[[Path, Path], None]] = MappingProxyType(
    {"quark-memory": quark_memory, "quark-files": quark_files, "modelopt": modelopt_memory}
)

if __name__ == "__main__":
    name, source, out = sys.argv[1:]
    with torch.no_grad():
        PEERS[name](Path(source), Path(out))
