"""`inspect` of quantized drafters whose config.json lies or is silent: what is told, and what to type next."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.inspect import MISDECLARED, inspect, remedy
from draftconv.api.quantize import quantize
from draftconv.api.serve import serve
from draftconv.api.verify import verify
from draftconv.errors import CheckFailed, Refused, UsageError
from draftconv.quantization.weight_detection import find_quantized
from tests import quantized
from tests.keywords import keywords
from tests.traces.recorded import Recorded

NAME = "llama-eagle3-reduced"
TARGET = str(quantized.DATA / "targets/llama")
OWN = """\
about: mine
weights: {{dtype: {dtype}, granularity: channel, scale_rule: mse, scale_dtype: weight}}
exclude: [{kept}]
"""
RECIPES = {
    "int8": OWN.format(dtype="int8", kept="embed, lm_head, fc, norms"),
    "packed-fc": OWN.format(dtype="int4", kept="embed, lm_head, norms") + "format: quark-int4\n",
}
"""Recipes of one's own, for files that no shipped one makes."""

Written = Callable[[str], Path]
Config = dict[str, Any]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """`written(recipe)`: the fixture by a shipped recipe or one of `RECIPES`, written once and never changed."""
    root = tmp_path_factory.mktemp("recipes")

    def write(recipe: str) -> Path:
        if not (root / recipe).exists():
            own = root / f"{recipe}.yaml"
            own.write_text(RECIPES.get(recipe, ""))
            spec = str(own) if recipe in RECIPES else recipe
            quantize(quantized.source(NAME), root / recipe, **keywords(quantized.options(NAME, spec)))
        return root / recipe

    return write


def lying(source: Path, out: Path, change: Callable[[Config], object]) -> Path:
    shutil.copytree(source, out)
    config = json.loads((out / "config.json").read_text())
    change(config)
    (out / "config.json").write_text(json.dumps(config))
    return out


def weights(config: Config) -> Config:
    found: Config = config["quantization_config"]["config_groups"]["group_0"]["weights"]
    return found


PACKED, UNKNOWN = "compressed-tensors pack-quantized, INT4", "the quantized weights may be quark-int4:reorder or"
TOLD = "config.json does not say how the weights are stored; their tensors are"

LIES: dict[str, tuple[str, Callable[[Config], object], str, str | None]] = {
    # recipe, what is done to its config.json, what is told, the format that cures it
    "no config": ("w4a16", lambda c: c.pop("quantization_config"), f"{TOLD} {PACKED} per channel", "compressed-pack"),
    "another method": (
        "w4a16", lambda c: c["quantization_config"].update(quant_method="gptq"), f"{TOLD} {PACKED}", "compressed-pack",
    ),
    "group size": ("w4a16-g128", lambda c: weights(c).update(group_size=64),
                   f"says {PACKED} per group of 64, but the tensors are {PACKED} per group of 128", "compressed-pack"),
    "8 bits called 4": ("int8", lambda c: weights(c).update(num_bits=4),
                        "INT4 per channel, but the tensors are", "compressed-pack"),
    "packed fc excluded": ("packed-fc", lambda c: c["quantization_config"].update(exclude=["lm_head", "*fc"]),
                           "fc quantized, although config.json excludes it", "compressed-pack"),
    "Quark without a config": ("quark-w4a8", lambda c: c.pop("quantization_config"), UNKNOWN, None),
    "Quark, another method": (
        "quark-w4a8", lambda c: c["quantization_config"].update(quant_method="bitsandbytes"), UNKNOWN, None,
    ),
    "an unknown pack_method": (
        "quark-w4a8", lambda c: c["quantization_config"]["export"].update(pack_method="other"), UNKNOWN, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LIES)
def test_what_config_json_says_wrongly_is_told_and_cured(case: str, written: Written, tmp_path: Path) -> None:
    recipe, change, says, cure = LIES[case]
    found = inspect(lying(written(recipe), tmp_path / "out", change), engines=["vllm:b200"], target=TARGET)
    assert found.misdeclared
    assert [says in p.detail for p in found.problems if p.code == MISDECLARED] == [True]
    assert found.weights is not None
    assert any(says in line for line in found.weights.findings)
    options = remedy(found)
    assert (options.pack if options else None) == cure
    if cure is None:
        assert any("--from-format quark-int4:reorder" in line for line in found.weights.findings)


@pytest.mark.parametrize("recipe", ["w4a16", "w4a16-g128", "int8", "quark-w4a8", "packed-fc", "fp8"])
def test_what_draftconv_writes_is_as_it_says(recipe: str, written: Written) -> None:
    found = inspect(written(recipe), engines=["vllm:b200"], target=TARGET)
    assert not found.misdeclared
    assert found.weights is not None
    assert found.weights.findings == ()


def test_two_formats_in_one_drafter_are_refused(written: Written, tmp_path: Path) -> None:
    out = Path(shutil.copytree(written("w4a16"), tmp_path / "out"))
    mine, other = load_file(out / "model.safetensors"), load_file(written("quark-w4a8") / "model.safetensors")
    mine = {name: tensor for name, tensor in mine.items() if "down_proj" not in name}
    mine |= {name: tensor for name, tensor in other.items() if "down_proj" in name}
    save_file(mine, out / "model.safetensors", {"format": "pt"})
    found = inspect(out, engines=["vllm:b200"], target=TARGET)
    assert found.misdeclared
    assert remedy(found) is None
    says = f"layers.0.mlp.down_proj not stored as {PACKED} per channel like the others, but as Quark INT4 per channel"
    with pytest.raises(Refused, match=says):
        find_quantized(found.drafter)


def test_an_order_of_nibbles_that_is_told_wrongly_shows_in_no_header(written: Written, tmp_path: Path) -> None:
    """Nothing but the 16-bit drafter can tell: documented, and `verify` fails."""
    out = lying(
        written("quark-w4a8"), tmp_path / "out",
        lambda c: c["quantization_config"]["export"].update(pack_method="order"),
    )  # fmt: skip
    assert not inspect(out, target=TARGET).misdeclared


def test_the_format_can_be_said(written: Written, tmp_path: Path) -> None:
    out = lying(written("quark-w4a8"), tmp_path / "out", lambda c: c.pop("quantization_config"))
    found = inspect(out, engines=["vllm:b200"], target=TARGET, from_format="quark-int4:reorder")
    assert found.weights is not None
    assert found.weights.format == "quark-int4"
    options = remedy(found)
    assert options is not None
    assert (options.pack, options.from_format) == ("compressed-pack", "quark-int4:reorder")
    with pytest.raises(UsageError, match="no format is called quark"):
        inspect(out, target=TARGET, from_format="quark")
    with pytest.raises(UsageError, match="this one is not quantized"):
        inspect(quantized.source(NAME), target=TARGET, from_format="gptq")


@pytest.mark.parametrize(
    ("recipe", "engine", "wanted"),
    [
        ("quark-w4a8", "vllm:b200", ConvertOptions(to="vllm", pack="compressed-pack")),
        ("quark-w4a8", "trtllm:b200", ConvertOptions(to="trtllm", pack="modelopt-awq")),
        ("quark-w4a8", "sglang:mi325x", ConvertOptions(to="sglang", dequantize=True)),
        ("packed-fc", "sglang:b200", ConvertOptions(to="sglang", pack="compressed-pack", unpack=("fc",))),
    ],
)
def test_integers_that_an_engine_does_not_read_are_offered_otherwise(
    recipe: str, engine: str, wanted: ConvertOptions, written: Written
) -> None:
    options = remedy(inspect(written(recipe), engines=[engine], target=TARGET))
    assert options is not None
    assert (options.to, options.pack, options.unpack, options.dequantize) == (
        wanted.to, wanted.pack, wanted.unpack, wanted.dequantize,
    )  # fmt: skip


# ── values beside joined weights ───────────────────────────────────────────────────


def scaled(source: Path, out: Path, name: str, factor: float) -> Path:
    """A copy in which one tensor of the first layer is multiplied."""
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    (found,) = (each for each in tensors if each.endswith(name))
    tensors[found] = tensors[found] * factor
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def statuses(path: Path) -> dict[str, str]:
    found = inspect(path, engines=["vllm:b200", "sglang:b200", "trtllm:b200"], target=TARGET)
    return {verdict.spec.name: verdict.status for verdict in found.verdicts}


def calibrated(recipe: str, engine: str, out: Path, recorded: Recorded) -> Path:
    quantized.write(out, NAME, recipe, engine, trace=recorded("llama", count=2, length=8))
    return out


def test_nvfp4_weights_that_are_joined_must_share_their_scale(recorded: Recorded, tmp_path: Path) -> None:
    sound = calibrated("nvfp4", "trtllm:b200", tmp_path / "sound", recorded)
    assert statuses(sound)["trtllm"] == "loads"
    broken = scaled(sound, tmp_path / "broken", "k_proj.weight_scale_2", 0.25)
    found = inspect(broken, engines=["trtllm:b200"], target=TARGET)
    assert [problem.code for problem in found.problems if problem.code.startswith("joined")] == ["joined-weight-scales"]
    (verdict,) = found.verdicts
    assert verdict.reason is not None
    assert (verdict.status, verdict.reason.rule.code) == ("refused", "trtllm-joined-scales")
    options = remedy(found)
    assert options is not None
    assert options.dequantize
    with pytest.raises(CheckFailed, match="would not serve this drafter"):
        serve(broken, engine="trtllm:b200", target=TARGET)


def test_what_is_joined_under_the_largest_scale_is_mis_read(recorded: Recorded, tmp_path: Path) -> None:
    sound = calibrated("nvfp4", "vllm:b200", tmp_path / "sound", recorded)
    assert {statuses(sound)[name] for name in ("vllm", "sglang")} == {"loads"}
    broken = scaled(sound, tmp_path / "broken", "up_proj.weight_scale_2", 0.25)
    assert {statuses(broken)[name] for name in ("vllm", "sglang")} == {"mis-read"}
    options = ConvertOptions(to="vllm", target=TARGET, pack="modelopt-nvfp4:plain")
    with pytest.raises(Refused, match="under the largest weight_scale_2"):
        convert(broken, tmp_path / "out", **keywords(options))
    convert(sound, tmp_path / "out", **keywords(options))
    assert verify(tmp_path / "out", sound).passed


def test_fp8_weights_that_are_joined_are_rounded_again(recorded: Recorded, tmp_path: Path) -> None:
    sound = calibrated("fp8-tensor", "vllm:b200", tmp_path / "sound", recorded)
    broken = scaled(sound, tmp_path / "scales", "k_proj.weight_scale", 0.5)
    broken = scaled(broken, tmp_path / "inputs", "k_proj.input_scale", 0.5)
    found = inspect(broken, engines=["vllm:b200", "sglang:b200"], target=TARGET)
    for verdict in found.verdicts:
        name = verdict.spec.name
        assert verdict.status == "loads"
        assert [line.rule.code for line in verdict.lines if "joined" in line.rule.code] == [
            f"{name}-joined-fp8", f"{name}-joined-inputs",
        ]  # fmt: skip


def test_smoothing_of_joined_weights_is_lost_beside_16_bit_activations(written: Written, tmp_path: Path) -> None:
    assert statuses(written("w4a16-awq"))["trtllm"] == "loads"
    smoothed = scaled(written("w4a16-awq"), tmp_path / "one", "gate_proj.pre_quant_scale", 2.0)
    smoothed = scaled(smoothed, tmp_path / "both", "up_proj.pre_quant_scale", 2.0)
    found = inspect(smoothed, engines=["trtllm:b200"], target=TARGET)
    (verdict,) = found.verdicts
    assert verdict.reason is not None
    assert (verdict.status, verdict.reason.rule.code) == ("mis-read", "trtllm-joined-smoothing")
    options = remedy(found)
    assert options is not None
    assert options.dequantize
    converted = convert(smoothed, tmp_path / "out", to="trtllm", target=TARGET, dequantize=True)
    assert not [problem for problem in converted.warnings if problem.code.startswith("joined")]
    down = scaled(written("w4a16-awq"), tmp_path / "down", "down_proj.pre_quant_scale", 2.0)
    assert statuses(down)["trtllm"] == "loads"
