"""The same integers and scales in another format, and back; what a format cannot hold is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.convert import prepare as planned_conversion
from draftconv.api.inspect import inspect
from draftconv.api.verify import verify
from draftconv.checkpoint import open_checkpoint
from draftconv.errors import BadCheckpoint, DraftconvError, Refused, UsageError
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.weight_detection import find_quantized
from tests import quantized
from tests.keywords import keywords
from tests.quantized import Written, floats_of, names_what_is_kept
from tests.traces.recorded import Recorded

LLAMA, REDUCED, LLAMA31, MLA, MLA31 = (
    "llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3", "mla-eagle3.1",
)  # fmt: skip
DOWN = "layers.0.mlp.down_proj"


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def repacked(source: Path, out: Path, name: str, form: str, **others: object) -> Path:
    target = str(quantized.DATA / "targets" / quantized.family(name))
    convert(source, out, target=target, pack=form, **others)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("name", [REDUCED, MLA31])
def test_quark_to_compressed_tensors_and_back_is_every_byte(name: str, written: Written, tmp_path: Path) -> None:
    source = written(name, "quark-w4a8")
    there = repacked(source, tmp_path / "there", name, "compressed-pack")
    assert weights(there) != weights(source)
    back = repacked(there, tmp_path / "back", name, "quark-int4:reorder")
    mine, theirs = open_checkpoint(back), open_checkpoint(source)
    assert {n: r.read() for n, r in mine.tensors.items()} == {n: r.read() for n, r in theirs.tensors.items()}
    assert mine.config["quantization_config"] == theirs.config["quantization_config"]


@pytest.mark.parametrize("form", ["compressed-pack", "compressed-int", "gptq", "autoawq", "quark-int4:order",
                                  "modelopt-awq"])  # fmt: skip
def test_the_published_scheme_in_every_format_of_int4(form: str, written: Written, tmp_path: Path) -> None:
    """Formats of groups repeat a row's scale for each of its groups: the weights stay the same, to the bit."""
    source = written(REDUCED, "quark-w4a8")
    out = repacked(source, tmp_path / "out", REDUCED, form)
    before, after = floats_of(source, REDUCED), floats_of(out, REDUCED)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[module], after[module]) for module in before)
    group = find_quantized(quantized.read(out, REDUCED)).only.declared.group
    assert group == (128 if form in ("autoawq", "modelopt-awq") else None)


@pytest.mark.parametrize("name", [REDUCED, MLA31])
@pytest.mark.parametrize("to", ["trtllm", None])
def test_a_drafter_repacked_for_tensorrt_llm_names_what_is_kept(
    name: str, to: str | None, written: Written, tmp_path: Path
) -> None:
    source = written(name, "quark-w4a8")
    out = repacked(source, tmp_path / "out", name, "modelopt-awq", to=to)
    names_what_is_kept(out)
    plain = repacked(source, tmp_path / "plain", name, "modelopt-awq:plain", to=to)
    assert json.loads((plain / "hf_quant_config.json").read_text())["quantization"]["quant_algo"] == "W4A16_AWQ"


def test_a_repacked_drafter_is_served(written: Written, tmp_path: Path) -> None:
    target = str(quantized.DATA / "targets" / "llama")
    source = written(REDUCED, "quark-w4a8")
    before = inspect(source, engines=["vllm:b200"], target=target)
    assert [verdict.status for verdict in before.verdicts] != ["loads"]
    for engine in ("vllm", "sglang"):
        out = repacked(source, tmp_path / engine, REDUCED, "compressed-pack", to=engine)
        seen = inspect(out, engines=[f"{engine}:b200"], target=target)
        assert [verdict.status for verdict in seen.verdicts] == ["loads"]


def test_activations_are_not_left_out_without_a_word(written: Written, tmp_path: Path) -> None:
    source = written(REDUCED, "w4a8")
    with pytest.raises(Refused, match="GPTQ cannot declare activations as INT8 per token") as caught:
        repacked(source, tmp_path / "out", REDUCED, "gptq")
    assert "--allow-lossy" in caught.value.cure
    out = repacked(source, tmp_path / "out", REDUCED, "gptq", allow_lossy=True)
    assert find_quantized(quantized.read(out, REDUCED)).only.declared.inputs is None
    before, after = floats_of(source, REDUCED), floats_of(out, REDUCED)
    assert all(torch.equal(before[module], after[module]) for module in before)


@pytest.mark.parametrize("form", ["compressed-pack", "gptq", "quark-int4"])
def test_wide_scales_are_not_rounded_without_a_word(form: str, written: Written, tmp_path: Path) -> None:
    source, out = written(REDUCED, "w4a16-awq"), tmp_path / "out"
    with pytest.raises(Refused, match="has no room for F32 scales of BF16 weights") as caught:
        repacked(source, out, REDUCED, form)
    assert "by up to 0.39%" in caught.value.why
    assert "--allow-lossy" in caught.value.cure
    repacked(source, out, REDUCED, form, allow_lossy=True)
    before, after = floats_of(source, REDUCED), floats_of(out, REDUCED)
    for module, wanted in before.items():
        assert not torch.equal(after[module], wanted)
        assert ((after[module] - wanted).abs() <= 2**-8 * wanted.abs()).all()
    judged = verify(out, source)
    assert judged.passed
    told = {found.what: found.how for found in judged.tensors if found.outcome == "declared"}
    assert told.keys() == {f"{module}{WEIGHT}" for module in before}
    assert all("scales rounded once to BF16" in how for how in told.values())
    tensors = load_file(out / "model.safetensors")
    (scale,) = (name for name in tensors if name.endswith(("down_proj.weight_scale", "down_proj.scales")))
    tensors[scale][0, 0] *= 1 + 2**-7
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    assert not verify(out, source).passed


def held_scales(source: Path) -> Path:
    """A quantized drafter whose F32 scales are all numbers of BF16."""
    tensors = load_file(source / "model.safetensors")
    for name in tensors:
        if name.endswith(".weight_scale"):
            tensors[name] = tensors[name].bfloat16().float()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    return source


@pytest.mark.parametrize("form", ["compressed-pack", "gptq", "quark-int4"])
def test_wide_scales_that_fit_are_narrowed_and_nothing_changes(form: str, written: Written, tmp_path: Path) -> None:
    """F32 scales are no loss by themselves: what decides is whether the narrow dtype holds every one of them."""
    source = held_scales(Path(shutil.copytree(written(REDUCED, "w4a16-awq"), tmp_path / "source")))
    out = repacked(source, tmp_path / "out", REDUCED, form)
    before, after = floats_of(source, REDUCED), floats_of(out, REDUCED)
    assert all(torch.equal(before[module], after[module]) for module in before)
    changes = json.loads((out / "draftconv.json").read_text())["changes"]
    told = [change["why"] for change in changes if change["what"] == f"{DOWN}{WEIGHT}"]
    assert told[0].endswith("scales stored as BF16, which holds every one of them: values unchanged")
    judged = verify(out, source)
    assert judged.passed
    assert not any("rounded" in found.how for found in judged.tensors)


def test_one_scale_that_does_not_fit_is_enough(written: Written, tmp_path: Path) -> None:
    source = held_scales(Path(shutil.copytree(written(REDUCED, "w4a16-awq"), tmp_path / "source")))
    tensors = load_file(source / "model.safetensors")
    (scale,) = (name for name in tensors if name.endswith("mlp.down_proj.weight_scale"))
    tensors[scale][-1, -1] *= 1 + 2**-20
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(Refused, match="has no room for F32 scales of BF16 weights"):
        repacked(source, tmp_path / "out", REDUCED, "compressed-pack")


@pytest.mark.parametrize(
    ("to", "wanted"),
    [
        ("vllm", "add --pack compressed-pack to write the same integers in a format that vLLM runs, or --dequantize"),
        ("sglang", "add --pack compressed-pack to write the same integers in a format that SGLang runs, or --deq"),
        ("trtllm", "add --pack modelopt-awq to write the same integers in a format that TensorRT-LLM runs, or --deq"),
        (None, "add --pack compressed-pack to write the same integers otherwise, or --dequantize"),
        ("torchspec", "add --pack FORMAT to write the same integers otherwise, or --dequantize"),
    ],
)
def test_the_cure_is_for_the_engine_that_was_asked_for(to: str | None, wanted: str, written: Written) -> None:
    target = str(quantized.DATA / "targets/llama")
    with pytest.raises(Refused, match="this drafter is quantized") as caught:
        planned_conversion(written(REDUCED, "quark-w4a8"), ConvertOptions(to=to, target=target))
    assert caught.value.cure.startswith(wanted)
    form = wanted.split()[2]
    if to not in (None, "torchspec"):
        planned_conversion(written(REDUCED, "quark-w4a8"), ConvertOptions(to=to, target=target, pack=form))


def test_where_no_format_holds_the_integers_only_floats_are_named(written: Written) -> None:
    with pytest.raises(Refused, match="this drafter is quantized") as caught:
        planned_conversion(written(REDUCED, "w4a8"), ConvertOptions(to="sglang"))
    assert caught.value.cure == "add --dequantize to write floats"


def test_calibrated_scales_are_left_out_with_their_activations(recorded: Recorded, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    quantized.write(source, REDUCED, "w4a8-awq", "trtllm:b200", trace=recorded("llama", count=2, length=8))
    with pytest.raises(Refused, match="cannot declare activations as FP8 E4M3 per tensor, static") as caught:
        repacked(source, out, REDUCED, "compressed-pack", to="vllm")
    assert "--allow-lossy" in caught.value.cure
    repacked(source, out, REDUCED, "compressed-pack", to="vllm", allow_lossy=True)
    assert not any("input_scale" in name for name in load_file(out / "model.safetensors"))
    judged = verify(out, source)
    assert judged.passed
    assert any(found.what == "activations" and found.outcome == "declared" for found in judged.tensors)
    target = str(quantized.DATA / "targets" / "llama")
    assert [verdict.status for verdict in inspect(out, engines=["vllm:b200"], target=target).verdicts] == ["loads"]


@pytest.mark.parametrize(
    ("recipe", "form", "says"),
    [
        ("w4a16-awq", "compressed-float", "cannot hold INT4 per group of 128"),
        ("fp8", "gptq", "cannot hold FP8 E4M3 per channel"),
    ],
)
def test_what_cannot_be_held_is_called_by_its_name(
    recipe: str, form: str, says: str, written: Written, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=says):
        repacked(written(REDUCED, recipe), tmp_path / "out", REDUCED, form, allow_lossy=True)


def test_a_plan_reads_no_codes_and_damaged_ones_leave_nothing_behind(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(written(REDUCED, "w4a8", "vllm:cpu"), tmp_path / "source"))
    tensors = load_file(source / "model.safetensors")
    (codes,) = (name for name in tensors if name.endswith("mlp.down_proj.weight"))
    tensors[codes][0, 0] = 100
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    target = str(quantized.DATA / "targets" / "llama")
    with monkeypatch.context() as patched:
        patched.setattr(QuantizedWeights, "load", lambda *_: pytest.fail("a weight was read"))
        planned = planned_conversion(source, ConvertOptions(to="vllm", target=target, pack="compressed-pack"))
    with pytest.raises(BadCheckpoint, match="quantized values from -8 to 100 are no INT4"):
        planned.write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_scales_without_room_are_refused_before_a_weight_is_read(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(written(REDUCED, "w4a16-awq"), tmp_path / "source"))
    tensors = load_file(source / "model.safetensors")
    (scale,) = (name for name in tensors if name.endswith("mlp.down_proj.weight_scale"))
    tensors[scale][0, 0] = 1e-45
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(QuantizedWeights, "load", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(Refused, match="down_proj has scales that BF16 does not hold"):
        planned_conversion(source, ConvertOptions(to="vllm", pack="compressed-pack", allow_lossy=True))


def test_a_format_without_room_is_refused(written: Written, tmp_path: Path) -> None:
    source = written(REDUCED, "fp8")
    with pytest.raises(Refused, match="cannot hold FP8 E4M3 per channel"):
        repacked(source, tmp_path / "out", REDUCED, "compressed-pack")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (ConvertOptions(pack="compressed-pak"), UsageError, "no format is called compressed-pak"),
        (ConvertOptions(pack="quark-int4:other"), UsageError, "is not written in style other"),
        (ConvertOptions(pack="compressed-pack", dequantize=True), UsageError, "contradict each other"),
        (ConvertOptions(), Refused, "this drafter is quantized"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant(
    options: ConvertOptions, error: type[DraftconvError], says: str, written: Written, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says) as caught:
        convert(written(REDUCED, "quark-w4a8"), tmp_path / "out", **keywords(options))
    assert says != "no format is called compressed-pak" or "compressed-pack" in caught.value.cure
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [ConvertOptions(pack="gptq"), ConvertOptions(dequantize=True)], ids=str)
def test_a_plain_drafter_has_nothing_to_repack(options: ConvertOptions, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this one is not quantized"):
        convert(quantized.source(LLAMA), tmp_path / "out", **keywords(options))
