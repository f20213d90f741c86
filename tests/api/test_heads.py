"""Quantized heads: written where the engine looks for their scales, kept or refused elsewhere, and read by anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.api.inspect import inspect
from draftconv.api.quantize import prepare, quantize
from draftconv.api.verify import verify
from draftconv.conversion import plan, quantization_plan
from draftconv.drafter.shipped_files import recipes as shipped
from draftconv.engines import ENGINES
from draftconv.errors import DraftconvError, Refused
from draftconv.quantization.recipes import find_recipe
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
        patched.setattr(quantization_plan, "refuse_nearest_head", lambda *_: None)
        patched.setattr(plan, "judge", lambda *_: ())
        quantize(
            quantized.source(name),
            place / "headed",
            **keywords(quantized.options(name, without(recipe, "lm_head", place))),
        )
    return place / "headed"


ALL = ("fp8-all", "int8-all", "w4a16-g128-all")


@pytest.mark.parametrize("name", [LLAMA31, MLA31])
@pytest.mark.parametrize("recipe", ALL)
def test_every_engine_gets_what_it_multiplies(name: str, recipe: str, tmp_path: Path) -> None:
    """What is prepared passes the engine's own check; what stays in 16 bits is told with the reason."""
    kept = {}
    for spec in SPECS[1:]:
        try:
            asked = quantized.options(name, quantized.nearest(recipe, tmp_path), spec)
            decided = prepare(quantized.source(name), asked).decided
        except DraftconvError as error:
            assert "no form" in error.what or "differently" in error.what or "no kernel" in error.what, error.what
            continue
        kept[spec] = set(decided.deployment.kept)
        assert {f"{role}.weight" for role in kept[spec]} == {HEAD, "fc.weight"} - set(decided.selection.quantized)
        notes = " ".join(decided.deployments[next(iter(decided.deployments))].notes)
        assert all(f"{role} stays in 16 bits: " in notes for role in kept[spec])
    mla = name == MLA31
    wanted = {
        "vllm": {"lm_head"} if mla else set(),
        "sglang": set() if mla else {"fc"},
        "trtllm": {"lm_head", "fc"},
    }
    assert kept == {spec: wanted[spec.partition(":")[0]] for spec in kept}
    assert {spec.partition(":")[0] for spec in kept} >= {"vllm", "sglang"}


@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        (MLA31, "vllm", "its MLA class builds the head without asking"),
        (LLAMA31, "trtllm:h200", "is not known"),
    ],
)
def test_a_head_that_would_be_read_without_its_scales_is_refused(
    name: str, spec: str, says: str, tmp_path: Path
) -> None:
    mine = without("fp8" if spec == "vllm" else "w4a16-awq", "lm_head", tmp_path)
    with pytest.raises(Refused, match="quantizes lm_head, which") as caught:
        quantize(quantized.source(name), tmp_path / "out", **keywords(quantized.options(name, mine, spec, force=True)))
    assert says in caught.value.why and "may_stay" in caught.value.cure
    assert not (tmp_path / "out").exists()


def test_a_head_of_4_bits_takes_force(tmp_path: Path) -> None:
    mine = without("w4a16", "lm_head", tmp_path)
    with pytest.raises(Refused, match=r"rounds lm_head\.weight to the nearest of 4 bits"):
        prepare(quantized.source(LLAMA31), quantized.options(LLAMA31, mine, "vllm:cpu"))
    options = quantized.options(LLAMA31, mine, "vllm:cpu", force=True)
    done = quantize(quantized.source(LLAMA31), tmp_path / "out", **keywords(options))
    assert HEAD in done.decided.selection.quantized
    target = str(quantized.DATA / "targets" / "llama")
    assert verify(tmp_path / "out", quantized.source(LLAMA31), target=target).result == "pass"
    # Where no GPU may be meant, nobody is told that it starts: Model Runner V2 looks for a weight.
    verdicts = inspect(tmp_path / "out", engines=["vllm:cpu", "vllm:h200"], target=target).verdicts
    assert [verdict.status for verdict in verdicts] == ["loads", "refused"]


@pytest.mark.parametrize(("form", "spec"), [("gptq", "sglang:h200"), ("autoawq", "vllm:cpu")])
def test_methods_that_leave_the_head_out_are_told_of_it(form: str, spec: str, tmp_path: Path) -> None:
    path = Path(without("w4a16-g128", "lm_head", tmp_path))
    # GPTQ's file has to name something: here, what is kept.
    text = path.read_text().replace("exclude: [", "exclude: ['*.o_proj', ")
    path.write_text(f"{text}\nformat: {form}\n")
    options = quantized.options(LLAMA31, str(path), spec, force=True)
    quantize(quantized.source(LLAMA31), tmp_path / "out", **keywords(options))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["lm_head"] is True
    target = str(quantized.DATA / "targets" / "llama")
    assert verify(tmp_path / "out", quantized.source(LLAMA31), target=target).result == "pass"
    config["quantization_config"]["lm_head"] = False
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    (verdict,) = inspect(tmp_path / "out", engines=[spec], target=target).verdicts
    assert verdict.status in ("refused", "mis-read")


def test_gptq_has_no_place_for_the_order_of_a_head_on_vllm(tmp_path: Path) -> None:
    path = Path(without("w4a16-g128", "lm_head", tmp_path))
    path.write_text(f"{path.read_text()}\nformat: gptq\n")
    with pytest.raises(Refused, match="quantizes lm_head, which vLLM would not read so") as caught:
        prepare(quantized.source(LLAMA31), quantized.options(LLAMA31, str(path), "vllm:cpu", force=True))
    assert "g_idx" in caught.value.why


def test_a_drafter_without_a_head_has_none_to_keep(tmp_path: Path) -> None:
    source = convert(quantized.source(LLAMA31), tmp_path / "in", target=str(quantized.DATA / "targets" / "llama"))
    assert HEAD in source.names
    plain = tmp_path / "in" / "model.safetensors"
    save_file({k: v for k, v in load_file(plain).items() if k != HEAD}, plain, metadata={"format": "pt"})
    (tmp_path / "in" / "draftconv.json").unlink()
    options = quantized.options(LLAMA31, without("fp8", "lm_head", tmp_path), "vllm")
    assert HEAD not in prepare(tmp_path / "in", options).decided.selection.quantized


@pytest.mark.parametrize("name", [REDUCED, MLA31])
def test_a_quantized_head_is_packed_again_and_brought_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = headed(name, "w4a16", tmp_path, monkeypatch)
    target = str(quantized.DATA / "targets" / quantized.family(name))
    with pytest.raises(Refused, match="would not serve this drafter as it was trained"):
        convert(source, tmp_path / "again", to="vllm", pack="gptq", target=target)  # packed: not on every hardware
    packed = convert(source, tmp_path / "packed", to="vllm", pack="gptq", unpack=("lm_head",), target=target)
    assert HEAD in packed.names
    assert [verdict.status for verdict in inspect(tmp_path / "packed", engines=["vllm"], target=target).verdicts] == [
        "loads"
    ]
    floats = convert(source, tmp_path / "floats", to="vllm", dequantize=True, target=target)
    assert HEAD in floats.names
    options = quantized.options(name, "fp8", "vllm", requantize=True)
    assert prepare(source, options).decided.unpacked == (HEAD,)


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
