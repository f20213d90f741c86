"""Biases wherever a producer writes them, and every kind of drafter, through every command: a result or a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.api.diff import diff
from draftconv.api.inspect import inspect
from draftconv.api.parity import parity
from draftconv.api.quantize import QuantizeOptions, prepare, quantize
from draftconv.api.serve import serve
from draftconv.api.verify import verify
from draftconv.engines import ENGINES
from draftconv.errors import DraftconvError
from draftconv.quantization.recipes import recipe_names
from tests import quantized, tiny
from tests.keywords import keywords
from tests.layouts.spelled import WRITABLE
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

ALL = ("q", "k", "v", "o", "gate", "up", "down", "fc")
BIASES = {"q/k/v": ALL[:3], "attention": ALL[:4], "o": ALL[3:4], "mlp": ALL[4:7], "fc": ALL[7:], "all": ALL}
"""Name of a drafter → projections that have a bias."""

SPECS = (
    "",
    *ENGINES,
    "vllm:cpu",
    "vllm:h200",
    "vllm:b200",
    "vllm:mi325x",
    "sglang:h200",
    "sglang:mi350",
    "trtllm:b200",
)
LAYOUTS = ("torchspec-vllm", "speculators", "automodel", "modelopt-layers", "quark-native")
"""Of those that can hold a drafter, the first spells it."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    torch.set_num_threads(1)


Biased = Callable[[str], Path]


@pytest.fixture(scope="session")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Biased:
    """`biased("mlp")`: the trained fixture with small biases, as `parity` and engines can run it."""
    root = tmp_path_factory.mktemp("biased")
    made: dict[str, Path] = {}

    def write(which: str) -> Path:
        if which in made:
            return made[which]
        path = root / which.replace("/", "")
        convert(quantized.source("llama-eagle3"), path, target=target())
        (path / "draftconv.json").unlink()
        tensors = load_file(path / "model.safetensors")
        generator = torch.Generator().manual_seed(1)
        for part in BIASES[which]:
            (name,) = [name for name in tensors if name == "fc.weight" == f"{part}.weight" or f".{part}_proj." in name]
            weight = tensors[name]
            bias = torch.randn(weight.shape[0], generator=generator) * 0.02
            tensors[name.replace(".weight", ".bias")] = bias.to(weight.dtype)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        flags = {"attention_bias": ALL[:3], "mlp_bias": ALL[4:7], "bias": ALL[7:]}
        config |= {flag: set(parts) <= set(BIASES[which]) for flag, parts in flags.items()}
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return made.setdefault(which, path)

    return write


def target() -> str:
    return str(quantized.DATA / "targets" / "llama")


def options(recipe: str, engine: str, **others: object) -> QuantizeOptions:
    given = (engine,) if engine else ()
    return QuantizeOptions(recipe=recipe, engines=given, target=target(), **others)  # type: ignore[arg-type]


def works(command: Callable[..., object], *given: object, **named: object) -> bool:
    """Whether a command ends in a result; where it does not, it says why."""
    try:
        command(*given, **named)
    except DraftconvError as error:
        assert error.why or error.cure, error
        return False
    return True


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_every_recipe_for_every_engine_ends_in_a_plan_or_a_reason(variant: str, tmp_path: Path) -> None:
    layout = next((name for name in LAYOUTS if tiny.fits(tiny.VARIANTS[variant], name)), None)
    if layout is None:
        pytest.skip("no producer writes it")
    source = tiny.spell(variant, layout).write(tmp_path / "source")
    plans = []
    for recipe in recipe_names():
        for spec in SPECS:
            asked = QuantizeOptions(recipe=recipe, engines=(spec,) if spec else (), target_layers=tiny.LAYERS)
            plans.append(works(prepare, source, asked))
    assert any(plans) or variant == "mla-plain-q"  # no engine has a plain query beside latent attention


@pytest.mark.parametrize("which", BIASES)
def test_a_biased_drafter_is_converted_or_refused(which: str, biased: Biased, tmp_path: Path) -> None:
    source = biased(which)
    found = inspect(source, target=target()).drafter.tensors
    assert sum(name.endswith(".bias") for name in found) == len(BIASES[which])
    written = []
    for to in WRITABLE:
        out = tmp_path / to
        if not works(convert, source, out, to=to, target=target()):
            continue
        written.append(to)
        assert verify(out, source, target=target()).passed, to
        assert {row.what for row in diff(source, out, target=target()).tensors} <= {"embed_tokens.weight"}, to
        assert to not in ENGINES or serve(out, engine=to, target=target()).argv
    assert written, which


@pytest.mark.parametrize("which", BIASES)
@pytest.mark.parametrize("recipe", quantized.DISTINCT)
def test_a_biased_drafter_is_quantized_to_the_bit_or_refused(
    recipe: str, which: str, biased: Biased, recorded: Recorded, tmp_path: Path
) -> None:
    """And taken up again: read, verified, brought back to floats, packed and quantized once more."""
    source = biased(which)
    trace = quantized.calibration(recorded, "llama", recipe)
    done: list[Path] = []
    for spec in ("", *ENGINES, "vllm:cpu", "trtllm:h200"):
        out = tmp_path / f"out-{spec.replace(':', '-')}"
        asked = options(recipe, spec, calibrate=trace)
        if not works(quantize, source, out, **keywords(asked)):
            continue
        done.append(out)
        assert verify(out, source, target=target(), calibrate=trace).passed, spec
        if spec:
            assert [v.status for v in inspect(out, engines=[spec], target=target()).verdicts] == ["loads"], spec
        kept = load_file(source / "model.safetensors")
        now = load_file(out / "model.safetensors")
        for name in (name for name in kept if name.endswith(".bias")):
            assert torch.equal(now[name], kept[name]), (spec, name)
    for number, (out, engine) in enumerate((out, engine) for out in done[:1] for engine in ENGINES):
        to: dict[str, Any] = {"to": engine, "target": target()}
        works(convert, out, tmp_path / f"floats-{number}", **to, dequantize=True)
        works(convert, out, tmp_path / f"packed-{number}", **to, pack="compressed-pack", allow_lossy=True)
        again = keywords(options("w4a16", engine, requantize=True))
        works(quantize, out, tmp_path / f"again-{number}", **again)


@pytest.mark.parametrize("which", BIASES)
def test_a_biased_drafter_is_replayed(which: str, biased: Biased, recorded: Recorded, tmp_path: Path) -> None:
    source = biased(which)
    out = tmp_path / "out"
    recipe, engine = {"o": ("fp8", "sglang"), "fc": ("w4a16-awq", "trtllm"), "all": ("w4a16-awq", "trtllm")}.get(
        which, ("w4a16", "vllm")
    )
    quantize(source, out, **keywords(options(recipe, engine)))
    report = parity(source, [out], trace=recorded("llama", count=2), fake_quant=("w4a8", "fp8"))
    rounded = [arm.quantization for arm in report.arms if arm.quantization != "none"]
    assert any("per token" in told for told in rounded) and len(rounded) >= 3, rounded
