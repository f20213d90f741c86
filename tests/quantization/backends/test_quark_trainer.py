"""amd-quark's own drafter: its trainer's class run beside the reference, and what its quantizer makes of an export."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftconv.api.convert import convert
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.checks import check_drafter
from draftconv.errors import Refused
from draftconv.layouts.reader import read_drafter
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import forward_of, to_torch
from tests.quantization.backends.real import needs, same

pytestmark = needs("quark")

SCRIPTS = Path(__file__).parents[3] / "scripts"
ROWS, TOLERANCE = 16, 1e-4
IDS = tuple(range(3, 99, 2))
PLAIN: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rope_theta": 50000.0, "rms_norm_eps": 1e-6, "norm_output": False, "aux_hidden_state_layer_ids": [1, 3, 4],
}  # fmt: skip
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": PLAIN,
    "3.1": PLAIN | {"fc_norm": True, "norm_output": True},
    "reduced": PLAIN | {"draft_vocab_size": len(IDS)},
    "four states": PLAIN | {"aux_hidden_state_layer_ids": [1, 3, 4, 6]},
    "wide target": PLAIN | {"target_hidden_size": 96},
}


def trained(settings: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """A drafter of Quark's class with random weights, and the vocabulary of `IDS` where it has fewer."""
    from quark.experimental.speculative_decoding.eagle.config import Eagle3Config
    from quark.experimental.speculative_decoding.eagle.modeling_eagle3 import Eagle3DraftModel

    drafter: Any = Eagle3DraftModel(Eagle3Config(**settings))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + ("norm" in name))
    if "draft_vocab_size" in settings:
        ids, mask = torch.tensor(IDS), torch.zeros(160, dtype=torch.bool)
        mask[ids] = True
        drafter.set_draft_vocab_mapping(ids - torch.arange(len(ids)), mask)
    return drafter.to(dtype).eval()


def exported(drafter: Any, path: Path) -> Path:
    from quark.experimental.speculative_decoding.export.export_hf import export_hf

    export_hf(SimpleNamespace(draft=drafter, eagle_config=drafter.config), str(path))
    return path


def reference(path: Path) -> DrafterModel:
    """What draftconv takes a directory for, in float32."""
    drafter = read_drafter(open_checkpoint(path))
    assert drafter.detection.layout == "quark-native"
    tensors = {name: to_torch(ref) for name, ref in drafter.tensors.items() if name not in ("d2t", "t2d")}
    if drafter.facts.reduced_vocab and drafter.maps and drafter.maps.map:
        tensors["d2t"] = torch.tensor(drafter.maps.map.ids) - torch.arange(len(drafter.maps.map.ids))
    return forward_of(drafter.facts).from_tensors(drafter.facts, tensors)


def furthest(drafter: Any, model: DrafterModel) -> float:
    """The largest difference of the logits and of the state that is fed back, of one step over 16 tokens."""
    generator = torch.Generator().manual_seed(7)
    aux, width = model.facts.aux, model.facts.target_hidden
    states = torch.randn(1, ROWS, aux, width, generator=generator)
    tokens = torch.randint(160, (1, ROWS), generator=generator)
    with torch.no_grad():
        logits, fed = drafter(tokens, states.flatten(-2))
        z = model.step(model.fuse(states), tokens, model.cache(), 0)
        differences = (logits - model.logits(z), fed - model.feedback(z))
    return max(float(difference.abs().max()) for difference in differences) / float(logits.abs().max())


@pytest.mark.parametrize("name", VARIANTS)
def test_what_quark_trains_is_read_as_it_computes(name: str, tmp_path: Path) -> None:
    """One step: its trainer's later ones attend within themselves alone, where every engine keeps the earlier keys."""
    drafter = trained(VARIANTS[name])
    model = reference(exported(drafter, tmp_path / "x"))
    assert furthest(drafter, model) < TOLERANCE
    if name == "reduced":
        assert torch.equal(model.d2t + torch.arange(len(IDS)), torch.tensor(IDS))
    if name == "3.1":
        assert (model.facts.fusion, model.facts.feedback) == ("fc_norm", "post-norm")
    assert model.facts.boundaries == tuple(n + 1 for n in VARIANTS[name]["aux_hidden_state_layer_ids"])


def test_its_export_loses_biases_and_is_told_to_have(tmp_path: Path) -> None:
    """`export_state_dict` names no bias, and config.json says attention_bias all the same (0.13, run)."""
    drafter = trained(PLAIN | {"attention_bias": True})
    assert drafter.layers[0].self_attn.q_proj.bias is not None
    path = exported(drafter, tmp_path / "x")
    assert furthest(drafter, reference(path)) > TOLERANCE
    problems = {problem.code: problem for problem in check_drafter(read_drafter(open_checkpoint(path)), None).problems}
    assert problems["tensor-missing"].severity == "error"
    with pytest.raises(Refused, match="attention_bias is true"):
        convert(path, tmp_path / "out", to="vllm", target_layers=8)


def test_another_function_would_be_noticed(tmp_path: Path) -> None:
    drafter = trained(VARIANTS["3.1"])
    model = reference(exported(drafter, tmp_path / "x"))
    for change in ({"feedback": "pre-norm"}, {"norm_before_residual": True}, {"eps": 1e-2}):
        assert furthest(drafter, model.changed(replace(model.facts, **change))) > TOLERANCE


# ── quantized ──────────────────────────────────────────────────────────────────────

LAYER = "layers.0."
NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Of a word that Quark wrote by `reorder`: where the values 0 to 7 lie (quantizers.md, 2.3)."""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Quark's own drafter in BF16, and what its quantizer makes of it: the seven linears of the layer, INT4 per row."""
    root = tmp_path_factory.mktemp("quark")
    source = exported(trained(VARIANTS["3.1"], torch.bfloat16), root / "source")
    words: list[str | Path] = [sys.executable, SCRIPTS / "peer_quantize.py", "quark-memory", source, root / "out"]
    subprocess.run(words, check=True, env=os.environ | {"PYTHONPATH": str(SCRIPTS.parent)})
    return source, root / "out"


def stands_for(stored: Mapping[str, Tensor], module: str) -> Tensor:
    """Quantized values times the scale of their row, float64 [out, in], by the formula and not by draftconv."""
    words = stored[f"{module}.weight"].long()
    values = torch.stack([(words >> (4 * at)) & 15 for at in NIBBLES], dim=-1).flatten(1)
    return (values - 16 * (values > 7)).double() * stored[f"{module}.weight_scale"].double()[:, None]


def converted(path: Path, out: Path) -> Mapping[str, Tensor]:
    convert(path, out, to="vllm", dequantize=True, target_layers=8, accept_detected=True)
    found = load_file(out / "model.safetensors")
    return {name.replace("midlayer.", LAYER): tensor for name, tensor in found.items()}


def modules(stored: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(".weight_scale") for name in stored if name.endswith(".weight_scale")]


def test_floats_of_its_export_are_what_it_rounded(quantized: tuple[Path, Path], tmp_path: Path) -> None:
    """A BF16 scale times four bits is exact in float32, so that there is one BF16 for it; all else keeps its bits."""
    source, export = quantized
    stored, floats, original = (
        load_file(export / "model.safetensors"),
        converted(export, tmp_path / "out"),
        load_file(source / "model.safetensors"),
    )
    assert len(modules(stored)) == 7
    for module in modules(stored):
        exact = stands_for(stored, module)
        assert torch.equal(exact, exact.float().double())
        assert same(floats[f"{module}.weight"], exact.float().bfloat16()), module
        error = (exact - original[f"{module}.weight"].double()).norm() / exact.norm()
        assert 0.05 < error < 0.15, module
    kept = {name for name in original if name.removesuffix(".weight") not in modules(stored)}
    assert kept == set(floats) - {f"{module}.weight" for module in modules(stored)}
    assert [name for name in kept if not same(floats[name], original[name])] == []


@pytest.mark.parametrize("part", ["weight", "weight_scale"])
def test_a_damaged_export_stands_for_something_else(part: str, quantized: tuple[Path, Path], tmp_path: Path) -> None:
    _, export = quantized
    stored = load_file(export / "model.safetensors")
    sound = converted(export, tmp_path / "sound")
    name = f"{LAYER}mlp.up_proj.{part}"
    damaged = {**stored, name: stored[name] ^ 1 if part == "weight" else stored[name] * 2}
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/config.json").write_bytes((export / "config.json").read_bytes())
    save_file(damaged, tmp_path / "damaged/model.safetensors", {"format": "pt"})
    floats = converted(tmp_path / "damaged", tmp_path / "out")
    module = name.removesuffix(f".{part}")
    assert same(floats[f"{module}.weight"], stands_for(damaged, module).float().bfloat16())
    assert [name for name in floats if not same(floats[name], sound[name])] == [f"{module}.weight"]
