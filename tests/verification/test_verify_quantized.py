"""`verify` on outputs of every shipped recipe: the good one passes, and no change to it does."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftconv.api.convert import convert
from draftconv.api.quantize import quantize
from draftconv.api.verify import Verification, verify
from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.provenance import output_digest, read_provenance
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.traces.trace import open_trace
from tests import quantized
from tests.keywords import keywords
from tests.traces.recorded import Recorded

NAME = "llama-eagle3-reduced"
SOURCE = quantized.source(NAME)
DOWN, GATE, UP = (f"layers.0.mlp.{part}_proj.weight" for part in ("down", "gate", "up"))

Written = Callable[[str], Path]
Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Mapping[str, Tensor]]


Checked = Callable[..., Verification]
TARGET = str(quantized.target(NAME).path)


@pytest.fixture(scope="module")
def checked(recorded: Recorded) -> Checked:
    """`checked(recipe, out)`: verified with what this recipe was given."""

    def check(recipe: str, out: Path, against: Path = SOURCE) -> Verification:
        trace = quantized.calibration(recorded, "llama", recipe)
        return verify(out, against, target=TARGET, calibrate=trace)

    return check


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, recorded: Recorded) -> Written:
    """`written(recipe)`: the fixture by a shipped recipe, written once and never changed."""
    root = tmp_path_factory.mktemp("recipes")

    def write(recipe: str) -> Path:
        if not (root / recipe).exists():
            trace = quantized.calibration(recorded, "llama", recipe)
            quantized.write(root / recipe, NAME, recipe, trace=trace)
        return root / recipe

    return write


def rows(found: Verification) -> dict[str, tuple[str, str]]:
    return {row.what: (row.outcome, row.how) for row in (*found.tensors, *found.facts, *found.directory)}


def different(found: Verification) -> dict[str, str]:
    return {what: how for what, (outcome, how) in rows(found).items() if outcome == "different"}


@pytest.mark.parametrize("recipe", ["fp8-tensor", "w4a16-gptq"])
def test_another_trace_than_it_was_calibrated_on_is_told_with_both_hashes(
    recipe: str, written: Written, recorded: Recorded
) -> None:
    made_with, other = quantized.calibration(recorded, "llama", recipe), recorded("llama", first=8, count=8, length=64)
    assert made_with is not None
    found = verify(written(recipe), SOURCE, target=TARGET, calibrate=other)
    assert found.result == "claimed"
    (cure,) = found.cures
    assert "is not the trace that the output was calibrated on" in cure
    assert f"draftconv.json has sha256:{open_trace(made_with).digest}" in cure
    assert f"has sha256:{open_trace(other).digest}" in cure
    assert cure.endswith("give --calibrate the trace that the output was made with")


# ── what is changed ────────────────────────────────────────────────────────────────

CODES = ("weight_packed", "qweight", "weight")
SCALES = ("weight_scale", "scales")


def part(tensors: Tensors, *suffixes: str, module: str = "mlp.down_proj") -> str:
    """The file's name of a tensor of a module.

    Raises:
        KeyError: the format has no such tensor.
    """
    for suffix in suffixes:
        for name in tensors:
            if name.endswith(f"{module}.{suffix}"):
                return name
    raise KeyError(suffixes[0])


def raw(change: Callable[[Tensor], None], *suffixes: str) -> Change:
    """The bytes of one tensor of down_proj, changed in place."""

    def changed(tensors: Tensors) -> Mapping[str, Tensor]:
        name = part(tensors, *suffixes)
        copy = tensors[name].clone().contiguous()
        change(copy.reshape(-1).view(torch.uint8))
        return {name: copy}

    return changed


def number(change: Callable[[Tensor], Tensor], *suffixes: str) -> Change:
    """The first number of one tensor of down_proj; an exponent of MXFP4 is taken for the power that it means."""

    def changed(tensors: Tensors) -> Mapping[str, Tensor]:
        name = part(tensors, *suffixes)
        copy = tensors[name].clone().contiguous()
        flat = copy.reshape(-1)
        if copy.dtype == torch.uint8:
            made = change(torch.exp2(flat[0].float() - 127))
            flat[0] = 255 if made.isnan() else int(made.log2()) + 127
        else:
            values = flat.float()
            values[0] = change(values[0])
            copy = values.to(copy.dtype).reshape(copy.shape)
        return {name: copy}

    return changed


def first_code(data: Tensor) -> None:
    data[0] ^= 0x18


def swap_nibbles(data: Tensor) -> None:
    data.copy_((data << 4) | (data >> 4))


def last_bit(data: Tensor) -> None:
    data[0] ^= 1


def two_rows(tensors: Tensors) -> Mapping[str, Tensor]:
    """The scales of two rows in each other's place."""
    name = part(tensors, *SCALES)
    scale = tensors[name].clone()
    rows = scale.view(torch.uint8) if scale.element_size() == 1 else scale
    rows[[0, 1]] = rows[[1, 0]]
    return {name: scale}


def another_weight(tensors: Tensors) -> Mapping[str, Tensor]:
    """Everything of up_proj under the names of gate_proj."""
    return {name: tensors[name.replace("gate_proj", "up_proj")].clone() for name in tensors if "mlp.gate_proj." in name}


def kept_bit(tensors: Tensors) -> Mapping[str, Tensor]:
    copy = tensors["fc.weight"].clone()
    copy.reshape(-1).view(torch.uint8)[0] ^= 1
    return {"fc.weight": copy}


NEAREST = ("not the nearest", "a quantized value is NaN")
NO_NUMBER = ("neither finite nor positive", "not a scale", "which is no number")
BYTES = ("other bytes than when it is made again",)

TAMPERED: dict[str, tuple[Change, str, tuple[str, ...]]] = {
    # what was done → to which tensor, and what verify says of it, one of these
    "one code":                (raw(first_code, *CODES), DOWN, NEAREST),
    "nibbles swapped":         (raw(swap_nibbles, *CODES), DOWN, NEAREST),
    "scale doubled":           (number(lambda s: 2 * s, *SCALES), DOWN, NEAREST),
    "scale halved":            (number(lambda s: s / 2, *SCALES), DOWN, NEAREST),
    "scale zero":              (number(lambda s: 0 * s, *SCALES), DOWN, NO_NUMBER),
    "scale NaN":               (number(lambda s: s * torch.nan, *SCALES), DOWN, NO_NUMBER),
    "scale negative":          (number(lambda s: -s, *SCALES), DOWN, NO_NUMBER),
    "scale, its last bit":     (raw(last_bit, *SCALES), DOWN, (*NEAREST, *BYTES)),
    "scales of two rows":      (two_rows, DOWN, NEAREST),
    "unit":                    (number(lambda s: 1.01 * s, "weight_scale_2"), DOWN, (*NEAREST, *BYTES)),
    "unit zero":               (number(lambda s: 0 * s, "weight_scale_2"), DOWN, NO_NUMBER),
    "input_scale":             (number(lambda s: 1.01 * s, "input_scale"), DOWN, BYTES),
    "input_scale zero":        (number(lambda s: 0 * s, "input_scale"), DOWN, NO_NUMBER),
    "input_scale NaN":         (number(lambda s: s * torch.nan, "input_scale"), DOWN, NO_NUMBER),
    "pre_quant_scale":         (number(lambda s: 1.01 * s, "pre_quant_scale"), DOWN, (*NEAREST, *BYTES)),
    "excluded tensor":         (kept_bit, "fc.weight", ("first in row 0", *NEAREST, *BYTES)),
    "another module's weight": (another_weight, GATE, NEAREST),
}  # fmt: skip


AWQ = {"w4a16-awq", "w4a8-awq"}
ONLY: dict[str, set[str]] = {
    "unit": {"nvfp4", "w4a8-awq"},
    "input_scale": set(quantized.STATIC),
    "pre_quant_scale": AWQ,
    "scale zero": set(recipe_names()) - {"mxfp4"},  # its scales are powers of two
    "scale negative": set(recipe_names()) - {"mxfp4"},
    "scales of two rows": set(recipe_names()) - {"fp8-tensor"},
}
"""Which recipes have what a case changes; `unit` is for `unit zero` too."""


def cases() -> list[tuple[str, str]]:
    """Every recipe with every change that its tensors allow."""
    allowed = {case: next((ONLY[key] for key in ONLY if case.startswith(key)), None) for case in TAMPERED}
    alike = {"w4a16-g128-gptq", "w4a16-g128-all"}  # as w4a16-gptq and fp8-all, and calibrated each time
    recipes = [name for name in recipe_names() if name not in alike]
    return [(recipe, case) for recipe in recipes for case, only in allowed.items() if not only or recipe in only]


def tampered(source: Path, out: Path, change: Change) -> set[str]:
    """A copy of an output with some tensors changed, which are returned."""
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    changed = change(tensors)
    save_file(tensors | dict(changed), out / "model.safetensors", {"format": "pt"})
    return {name for name, tensor in changed.items() if not torch.equal(bits(tensor), bits(tensors[name]))}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("recipe", recipe_names())
def test_the_output_of_every_recipe_passes(recipe: str, written: Written, checked: Checked) -> None:
    found = checked(recipe, written(recipe))
    assert found.passed, different(found)
    assert found.record == "believed"
    outcome, how = rows(found)[DOWN]
    by_gptq = recipe in quantized.BY_GPTQ
    says = (
        "under the scales that the recipe gives of the source" if by_gptq else "every value the nearest under its scale"
    )
    assert (outcome, says in how) == ("declared", True)


@pytest.mark.parametrize(("recipe", "case"), cases())
def test_a_changed_tensor_fails_under_its_name(
    recipe: str, case: str, written: Written, checked: Checked, tmp_path: Path
) -> None:
    change, what, hows = TAMPERED[case]
    if recipe in quantized.BY_GPTQ:  # its values need not be the nearest, so its scales are made again instead
        hows = (*hows, "is not the one that", "when it is made again from the source")
    names = tampered(written(recipe), tmp_path / "out", change)
    assert names
    found = different(checked(recipe, tmp_path / "out"))
    assert set(found) == {what}
    assert any(how in found[what] for how in hows), found
    if what != "fc.weight":
        assert all(name.rpartition(".")[2] in found[what] for name in names), found


@pytest.mark.parametrize(
    "case", ["one code", "scale doubled", "scale NaN", "input_scale zero", "another module's weight"]
)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "fp8-tensor", "w4a8-awq"])
def test_the_rules_need_no_record(recipe: str, case: str, written: Written, tmp_path: Path) -> None:
    change, what, hows = TAMPERED[case]
    tampered(written(recipe), tmp_path / "out", change)
    (tmp_path / "out/draftconv.json").unlink()
    found = different(verify(tmp_path / "out", SOURCE))
    assert any(how in found[what] for how in hows), found
    assert found[UP].endswith("undeclared")
    assert "undeclared" not in found[what]


# ── what config.json says ──────────────────────────────────────────────────────────


def edit(path: Path, old: str, new: str) -> None:
    """In every JSON file that holds it, but not in the record."""
    for file in path.glob("*config.json"):
        file.write_text(file.read_text().replace(old, new))


PACKED = "compressed-tensors pack-quantized, INT4"
GROUP = '"strategy": "group",\n          "group_size": 128'
CHANNEL = '"strategy": "channel",\n          "group_size": null'

LIES: dict[str, tuple[str, str, str, str]] = {
    # recipe, text in its JSON files, text in its place, what verify says of it
    "group":       ("w4a16-g128", '"group_size": 128', '"group_size": 64', f"{PACKED} per group of 64, but the"),
    "granularity": ("w4a16-g128", GROUP, CHANNEL, f"{PACKED} per channel, but the tensors are {PACKED} per group"),
    "bits":        ("w4a16", '"num_bits": 4', '"num_bits": 8', f"INT8 per channel, but the tensors are {PACKED} per"),
    "excluded":    ("w4a16", "bfc$", "bdown_proj$", "layers.0.mlp.down_proj quantized, although config.json excludes"),
    "format":      ("fp8", "float-quantized", "pack-quantized", "pack-quantized holds no FP8 E4M3 weights"),
    "method":      ("fp8-tensor", '"FP8"', '"NVFP4"', "says ModelOpt NVFP4 per group of 16, but the tensors are"),
    "awq":         ("w4a8-awq", '"group_size": 128', '"group_size": 64', "per group of 64, but the tensors are"),
}  # fmt: skip


@pytest.mark.parametrize("case", LIES)
def test_a_config_that_lies_of_the_weights_fails(case: str, written: Written, tmp_path: Path) -> None:
    recipe, old, new, says = LIES[case]
    out = Path(shutil.copytree(written(recipe), tmp_path / "out"))
    edit(out, old, new)
    found = verify(out, SOURCE)
    told = [row.how for row in found.tensors if (row.what, row.outcome) == ("quantized weights", "different")]
    assert any(says in how for how in told), told
    assert "one of them was changed" in different(found)["draftconv.json"]


def test_an_exclusion_that_is_gone_fails(written: Written, tmp_path: Path) -> None:
    """Whether an engine takes fc for quantized then, its own rules say; that the config was changed is enough here."""
    out = Path(shutil.copytree(written("w4a16"), tmp_path / "out"))
    edit(out, "bfc$", "bfx$")
    assert "one of them was changed" in different(verify(out, SOURCE))["draftconv.json"]


def test_activations_that_are_declared_otherwise_fail(written: Written, tmp_path: Path) -> None:
    """The same tensors under another word of what they are multiplied with: only the record knows."""
    out = Path(shutil.copytree(written("w4a8"), tmp_path / "out"))
    shutil.copy(written("w4a16") / "config.json", out)
    assert "one of them was changed" in different(verify(out, SOURCE))["draftconv.json"]


# ── from the drafter before ────────────────────────────────────────────────────────


def converted(source: Path, out: Path, **options: Any) -> Path:
    convert(source, out, target=str(quantized.target(NAME).path), **options)
    return out


REPACKED = ("compressed-pack", "compressed-int", "gptq", "autoawq", "modelopt-awq", "quark-int4:order")


@pytest.mark.parametrize("form", REPACKED)
def test_packed_anew_it_is_still_the_16_bit_drafter_rounded(form: str, written: Written, tmp_path: Path) -> None:
    out = converted(written("quark-w4a8"), tmp_path / "out", pack=form)
    found = verify(out, SOURCE, target=TARGET)
    assert found.passed, different(found)
    assert "INT4, every value the nearest under its scale" in rows(found)[DOWN][1]
    names = tampered(out, tmp_path / "changed", raw(first_code, *CODES))
    told = different(verify(tmp_path / "changed", SOURCE, target=TARGET))
    assert set(told) == {DOWN}
    assert all(name.rpartition(".")[2] in told[DOWN] for name in names)


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("recipe", recipe_names())
def test_dequantized_it_is_the_16_bit_drafter_rounded(
    recipe: str, dtype: str | None, written: Written, checked: Checked, tmp_path: Path
) -> None:
    """The record tells by which recipe, so the 16-bit drafter is rounded once more: to the same bits."""
    out = converted(written(recipe), tmp_path / "out", dequantize=True, dtype=dtype)
    assert checked(recipe, out, written(recipe)).passed
    found = checked(recipe, out)
    assert found.passed, different(found)
    outcome, how = rows(found)[DOWN]
    assert outcome == "declared"
    assert how.startswith("replaced: dequantized from ")
    tampered(out, tmp_path / "changed", raw(last_bit, "weight"))
    assert different(checked(recipe, tmp_path / "changed"))[DOWN].startswith("first in row 0")


def test_dequantized_after_it_was_packed_anew(written: Written, tmp_path: Path) -> None:
    packed = converted(written("quark-w4a8"), tmp_path / "packed", pack="compressed-pack")
    assert verify(converted(packed, tmp_path / "out", dequantize=True), SOURCE, target=TARGET).passed


def forget(path: Path) -> None:
    """Make a record one of before it told of recipes and of computed tensors; it stays genuine."""
    found = json.loads((path / "draftconv.json").read_text())
    del found["quantization"]
    found["made"] = {}
    checkpoint = open_checkpoint(path)
    found["output"] = output_digest(checkpoint.tensors, checkpoint.config, found)
    (path / "draftconv.json").write_text(json.dumps(found))


def test_an_older_record_claims_what_it_does_not_tell(written: Written, checked: Checked, tmp_path: Path) -> None:
    out = Path(shutil.copytree(written("w4a8-awq"), tmp_path / "out"))
    forget(out)
    found = checked("w4a8-awq", out)
    assert (found.result, found.record) == ("claimed", "believed")
    assert found.cures == ("draftconv.json does not tell how weights were rounded; quantize the source again",)
    assert "how its scales were found" in rows(found)[DOWN][1]


def test_a_rounding_that_nobody_recorded_is_not_guessed(written: Written, tmp_path: Path) -> None:
    between = Path(shutil.copytree(written("w4a16"), tmp_path / "between"))
    forget(between)
    out = converted(between, tmp_path / "out", dequantize=True)
    found = verify(out, SOURCE, target=TARGET)
    assert found.result == "claimed"
    assert found.cures == ("draftconv.json does not tell how weights were rounded; quantize the source again",)
    assert verify(out, between, target=TARGET).passed


# ── what the record tells ──────────────────────────────────────────────────────────


def record(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "draftconv.json").read_text())
    return found


@pytest.mark.parametrize("name", recipe_names())
def test_the_recipe_can_be_had_back_from_the_record(name: str, written: Written, tmp_path: Path) -> None:
    told = record(written(name))["quantization"]
    recipe = told["recipe"]
    assert recipe.pop("name") == name
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(recipe))
    assert find_recipe(str(tmp_path / "again.yaml")) == replace(find_recipe(name), name="again")
    assert set(told["quantized"]) | set(told["kept"]) == set(read_tensors(SOURCE))
    assert told["kept"].get("fc.weight") == (None if name.endswith("-all") else "fc")


def read_tensors(path: Path) -> list[str]:
    return [name for name in quantized.read(path, NAME).tensors if name.endswith(".weight")]


def test_the_trace_is_told_by_what_it_holds(written: Written, recorded: Recorded) -> None:
    trace = open_trace(recorded("llama", count=2, length=8))
    told = record(written("fp8-tensor"))["quantization"]["calibration"]
    assert told == {
        "trace": f"sha256:{trace.digest}", "requests": 2, "target": "llama", "revision": None, "prompts": "held-out",
    }  # fmt: skip
    text = (written("fp8-tensor") / "draftconv.json").read_text()
    assert str(trace.directory) not in text
    assert record(written("fp8"))["quantization"]["calibration"] is None


def test_what_was_asked_for_is_told(tmp_path: Path) -> None:
    options = quantized.options(NAME, "w4a8", "sglang:b200", allow_a16=True)
    quantize(SOURCE, tmp_path / "out", **keywords(options))
    told = record(tmp_path / "out")["quantization"]
    assert (told["engines"], told["allow_a16"], told["tp"]) == (["sglang@0.5.23:b200"], True, 1)
    assert told["recipe"]["activations"] == {"grid": "int8", "per": "token", "scale": "dynamic"}
    assert told["scheme"]["activations"] is None
    assert (told["format"], told["style"]) == ("compressed-pack", None)


def test_every_computed_tensor_has_its_hash(written: Written) -> None:
    out = written("nvfp4")
    made = record(out)["made"]
    tensors = load_file(out / "model.safetensors")
    down = {part: bits(tensors[f"midlayer.mlp.down_proj.{part}"]).numpy().tobytes() for part in
            ("weight", "weight_scale", "weight_scale_2", "input_scale")}  # fmt: skip
    for part, data in down.items():
        assert made[f"layers.0.mlp.down_proj.{part}"] == hashlib.sha256(data).hexdigest()


def test_the_history_is_handed_on(written: Written, tmp_path: Path) -> None:
    out = converted(written("w4a16"), tmp_path / "out", dequantize=True)
    found = read_provenance(open_checkpoint(out))
    assert found is not None
    assert [bool(origin.quantization) for origin in found.history] == [False, True]


def test_the_same_input_gives_the_same_bytes(written: Written, recorded: Recorded, tmp_path: Path) -> None:
    quantized.write(tmp_path / "again", NAME, "fp8-tensor", trace=recorded("llama", count=2, length=8))
    for file in written("fp8-tensor").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_the_card_tells_what_was_done_and_how_far_it_went(written: Written) -> None:
    card = " ".join((written("fp8-tensor") / "README.md").read_text().split())
    for words in (
        "quantized by draftconv",
        "by recipe `fp8-tensor`: weights FP8 E4M3 per tensor, max/448; activations FP8 E4M3 per tensor, static",
        "stored as `modelopt-fp8`",
        "`layers.0.mlp.down_proj`",
        "`lm_head` (lm\\_head)",
        "static activation scales, by the inputs of 2 requests of held-out, trace `sha256:",
        "error of all quantized weights: 2.",
    ):
        assert words in card
