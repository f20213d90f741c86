"""Quantized heads: never written, whoever asks; read, simulated and brought back to floats as ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.api.inspect import inspect
from draftconv.api.quantize import prepare, quantize
from draftconv.conversion import plan, quantization_plan
from draftconv.drafter.shipped_files import recipes as shipped
from draftconv.engines import ENGINES
from draftconv.errors import DraftconvError, Refused
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.quantization.simulate import simulate
from draftconv.reference.load import load_drafter
from tests import quantized
from tests.keywords import keywords

REDUCED, LLAMA31, MLA31 = "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3.1"
SPECS = ("", *ENGINES, *(f"{engine}:{hardware}" for engine in ENGINES for hardware in ENGINES[engine].hardware))
HEAD = "lm_head.weight"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    torch.set_num_threads(1)


def without(recipe: str, role: str, place: Path) -> str:
    """A shipped recipe that does not exclude one role."""
    text = shipped().joinpath(f"{recipe}.yaml").read_text(encoding="utf-8")
    less = text.replace(f"{role}, ", "", 1)
    assert less != text
    path = place / f"{recipe}-{role}.yaml"
    path.write_text(less, encoding="utf-8")
    return str(path)


def headed(name: str, recipe: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A drafter whose head is quantized, as another program might have written it."""
    with monkeypatch.context() as patched:
        patched.setattr(quantization_plan, "refuse_heads", lambda *_: None)
        patched.setattr(plan, "judge", lambda *_: ())
        quantize(
            quantized.source(name),
            place / "headed",
            **keywords(quantized.options(name, without(recipe, "lm_head", place))),
        )
    return place / "headed"


@pytest.mark.parametrize("name", [LLAMA31, MLA31])
@pytest.mark.parametrize("recipe", recipe_names())
def test_no_engine_is_written_a_quantized_head(name: str, recipe: str, tmp_path: Path) -> None:
    mine = without(recipe, "lm_head", tmp_path)
    reasons = set()
    for spec in SPECS:
        with pytest.raises(DraftconvError) as caught:
            prepare(quantized.source(name), quantized.options(name, mine, *filter(None, [spec])))
        reasons.add("quantize lm_head" in caught.value.what)
    assert True in reasons  # the others have no form of the recipe


def test_what_to_do_is_said(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"recipe fp8-lm_head would quantize lm_head\.weight") as caught:
        options = quantized.options(MLA31, without("fp8", "lm_head", tmp_path), "vllm")
        quantize(quantized.source(MLA31), tmp_path / "out", **keywords(options))
    assert "read its values without them" in caught.value.why
    assert "add lm_head to exclude" in caught.value.cure
    assert not (tmp_path / "out").exists()


def test_a_drafter_without_a_head_has_none_to_keep(tmp_path: Path) -> None:
    source = convert(quantized.source(LLAMA31), tmp_path / "in", target=str(quantized.DATA / "targets" / "llama"))
    assert HEAD in source.names
    plain = tmp_path / "in" / "model.safetensors"
    save_file({k: v for k, v in load_file(plain).items() if k != HEAD}, plain, metadata={"format": "pt"})
    (tmp_path / "in" / "draftconv.json").unlink()
    options = quantized.options(LLAMA31, without("fp8", "lm_head", tmp_path), "vllm")
    assert HEAD not in prepare(tmp_path / "in", options).decided.selection.quantized


@pytest.mark.parametrize("name", [REDUCED, MLA31])
def test_a_quantized_head_is_not_packed_again_but_brought_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = headed(name, "w4a16", tmp_path, monkeypatch)
    target = str(quantized.DATA / "targets" / quantized.family(name))
    with pytest.raises(Refused, match="the head of this drafter is quantized") as caught:
        convert(source, tmp_path / "again", to="vllm", pack="gptq", target=target)
    assert "--unpack lm_head" in caught.value.cure
    packed = convert(source, tmp_path / "packed", to="vllm", pack="gptq", unpack=("lm_head",), target=target)
    assert HEAD in packed.names
    assert [verdict.status for verdict in inspect(tmp_path / "packed", engines=["vllm"], target=target).verdicts] == [
        "loads"
    ]
    floats = convert(source, tmp_path / "floats", to="vllm", dequantize=True, target=target)
    assert HEAD in floats.names
    options = quantized.options(name, "fp8", "vllm", requantize=True)
    assert prepare(source, options).decided.unpacked == (HEAD,)
    options = quantized.options(name, without("fp8", "lm_head", tmp_path), requantize=True)
    with pytest.raises(Refused, match="would quantize lm_head"):
        prepare(source, options)


def test_no_engine_is_said_to_load_one_that_it_reads_without_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's MLA class never asks how its head is quantized."""
    source = headed(MLA31, "fp8", tmp_path, monkeypatch)
    (verdict,) = inspect(source, engines=["vllm:cpu"], target=str(quantized.DATA / "targets" / "mla")).verdicts
    assert verdict.status == "refused"
    assert verdict.reason is not None and verdict.reason.detail == "lm_head (it never asks for a quantization)"


def test_a_head_is_simulated(tmp_path: Path) -> None:
    """What it would cost may be asked: a simulation is read by no engine."""
    model = load_drafter(quantized.read(quantized.source(LLAMA31), LLAMA31))
    simulated = simulate(model, find_recipe(without("w4a16", "lm_head", tmp_path)))
    assert not torch.equal(simulated.lm_head.weight, model.lm_head.weight)
    kept = simulate(model, find_recipe("w4a16"))
    assert torch.equal(kept.lm_head.weight, model.lm_head.weight)
