"""Quantized drafters whose config.json is silent or wrong are read by their tensors, and that is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.api.inspect import inspect
from draftconv.api.quantize import QuantizeOptions, quantize
from draftconv.api.verify import verify
from draftconv.checkpoint import open_checkpoint
from draftconv.errors import BadCheckpoint, Refused, Undecided, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.weight_detection import find_quantized
from tests import tiny
from tests.keywords import keywords

Tensors = dict[str, torch.Tensor]
RECIPE = """\
about: {about}
weights: {{dtype: int4, granularity: {granularity}, scale_rule: max/7.5, scale_dtype: weight{group}}}
exclude: [embed, lm_head, norms{fc}]
format: quark-int4
"""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def source(path: Path, variant: str = "mixed") -> Path:
    """A drafter as trained; `mixed` is a BF16 embedding among F16 tensors, as the published one has."""
    return tiny.spell(replace(tiny.VARIANTS[variant], awkward=False), "torchspec-native").write(path / "source")


def seed(path: Path, variant: str = "mixed", *, fc: bool = False, group: int | None = None) -> Path:
    """A drafter as Quark quantizes it in memory."""
    recipe = path / "recipe.yaml"
    told = {"granularity": "group" if group else "channel", "group": f", group: {group}" if group else ""}
    recipe.write_text(RECIPE.format(about="Quark INT4", fc="" if fc else ", fc", **told))
    quantize(source(path, variant), path / "seed", recipe=str(recipe))
    (path / "seed" / "draftconv.json").unlink()
    return path / "seed"


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def rewrite(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    save_file(change(load_file(path / "model.safetensors")), path / "model.safetensors", metadata={"format": "pt"})


def undeclared(path: Path) -> None:
    edit(path, lambda config: config.pop("quantization_config"))


def excluding(*names: str) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["quantization_config"].update(exclude=list(names))


def no_zero_points(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("weight_zero_point")}


def stored(path: Path, given: str | None = None) -> QuantizedWeights:
    return find_quantized(read_drafter(open_checkpoint(path), ReadOptions()), given)


def same_weights(one: QuantizedWeights, other: QuantizedWeights) -> bool:
    from draftconv.quantization.computations import floats

    return one.modules.keys() == other.modules.keys() and all(
        torch.equal(floats(one.load(name)), floats(other.load(name))) for name in one.modules
    )


# ── the published W4A8 drafter ─────────────────────────────────────────────────────


@pytest.mark.parametrize("zeros", ["with zero points", "without"])
@pytest.mark.parametrize("fc", [False, True], ids=["fc kept", "fc packed"])
def test_the_seed_becomes_servable(fc: bool, zeros: str, tmp_path: Path) -> None:
    path = seed(tmp_path, fc=fc)
    edit(path, excluding("embed_tokens", "fc", "lm_head"))
    if zeros == "without":
        rewrite(path, no_zero_points)
    found = inspect(path)
    assert found.weights is not None
    told = "; ".join(found.weights.findings)
    assert found.weights.format == "quark-int4"
    assert ("fc quantized, although config.json excludes it" in told) == fc
    assert ("weight_zero_point is missing" in told) == (zeros == "without")

    unpack = ("fc",) if fc else ()
    convert(path, tmp_path / "packed", pack="compressed-pack", unpack=unpack)
    assert {v.status for v in inspect(tmp_path / "packed", engines=["vllm:b200", "sglang:b200"]).verdicts} == {"loads"}
    assert verify(tmp_path / "packed", path).passed

    convert(path, tmp_path / "floats", to="sglang", dequantize=True)
    assert inspect(tmp_path / "floats", engines=["sglang:mi325x"]).verdicts[0].status == "loads"
    assert verify(tmp_path / "floats", path).passed


def test_packed_fc_is_for_vllm_alone(tmp_path: Path) -> None:
    path = seed(tmp_path, fc=True)
    convert(path, tmp_path / "vllm", to="vllm", pack="compressed-pack")
    assert "fc.weight_packed" in load_file(tmp_path / "vllm" / "model.safetensors")
    assert inspect(tmp_path / "vllm", engines=["vllm:b200"]).verdicts[0].status == "loads"
    assert (
        inspect(tmp_path / "vllm", engines=["sglang:b200"]).verdicts[0].status == "mis-read"
    )  # dropped without a word
    with pytest.raises(Refused, match="--unpack fc"):
        convert(path, tmp_path / "sglang", to="sglang", pack="compressed-pack")
    convert(path, tmp_path / "sglang", to="sglang", pack="compressed-pack", unpack=("fc",))
    tensors = load_file(tmp_path / "sglang" / "model.safetensors")
    assert tensors["fc.weight"].dtype == torch.float16
    assert verify(tmp_path / "sglang", path).passed


@pytest.mark.parametrize(
    ("unpack", "says"),
    [(("fx",), "no such weight is quantized"), (("layers.0.mlp.up_proj",), "without layers.0.mlp.gate_proj.weight")],
)
def test_unpacking_is_checked(unpack: tuple[str, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        convert(seed(tmp_path), tmp_path / "out", pack="compressed-pack", unpack=unpack)


def test_all_unpacked_is_dequantized(tmp_path: Path) -> None:
    path = seed(tmp_path)
    with pytest.raises(UsageError, match="use --dequantize"):
        convert(path, tmp_path / "out", pack="gptq", unpack=tuple(stored(path).modules))
    with pytest.raises(UsageError, match="belongs to --pack"):
        convert(path, tmp_path / "out", dequantize=True, unpack=("fc",))


# ── silent configs ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pack", ["compressed-pack", "compressed-int", "gptq"])
def test_tensors_tell_the_format(pack: str, tmp_path: Path) -> None:
    path = seed(tmp_path)
    convert(path, tmp_path / "out", to="vllm", pack=pack)
    undeclared(tmp_path / "out")
    (tmp_path / "out" / "draftconv.json").unlink()
    found = stored(tmp_path / "out")
    assert (found.only.format.id, found.only.declared.dtype, found.only.declared.granularity) == (
        pack,
        "int4",
        "channel",
    )
    assert found.findings[0].startswith("config.json does not say how the weights are stored")
    assert same_weights(found, stored(path))
    result = convert(tmp_path / "out", tmp_path / "again", to="vllm", pack="compressed-pack")
    assert result.findings == found.findings
    assert verify(tmp_path / "again", tmp_path / "out").passed


def test_the_order_of_nibbles_must_be_given(tmp_path: Path) -> None:
    path = seed(tmp_path)
    before = stored(path)
    undeclared(path)
    with pytest.raises(Undecided, match="quark-int4:reorder or quark-int4:order") as raised:
        stored(path)
    assert "--from-format quark-int4:reorder" in raised.value.cure
    assert same_weights(stored(path, "quark-int4:reorder"), before)
    assert not same_weights(stored(path, "quark-int4:order"), before)
    weights = inspect(path).weights
    assert weights is not None
    assert weights.format is None
    assert "may be quark-int4:reorder or quark-int4:order" in weights.findings[0]
    with pytest.raises(Undecided):
        convert(path, tmp_path / "out", pack="compressed-pack")
    convert(path, tmp_path / "out", pack="compressed-pack", from_format="quark-int4:reorder")
    assert not verify(tmp_path / "out", path).passed
    assert verify(tmp_path / "out", path, from_format="quark-int4:reorder").passed
    assert not verify(tmp_path / "out", path, from_format="quark-int4:order").passed
    assert same_weights(stored(tmp_path / "out"), before)


def test_a_format_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = seed(tmp_path)
    with pytest.raises(Refused, match="the tensors are not GPTQ"):
        stored(path, "gptq")
    with pytest.raises(UsageError, match="no format is called qark"):
        stored(path, "qark")
    plain = source(tmp_path / "plain")
    with pytest.raises(UsageError, match="this one is not quantized"):
        convert(plain, tmp_path / "out", from_format="gptq")


def test_codes_of_eight_bits_are_seen(tmp_path: Path) -> None:
    """int-quantized INT4 and INT8 have the same tensors; only the codes differ."""
    recipe = tmp_path / "int8.yaml"
    recipe.write_text(
        "about: INT8\nweights: {dtype: int8, granularity: channel, scale_rule: max/127, scale_dtype: weight}\n"
        "exclude: [embed, lm_head, fc, norms]\nformat: compressed-int\n"
    )
    quantize(source(tmp_path), tmp_path / "out", recipe=str(recipe))
    undeclared(tmp_path / "out")
    assert stored(tmp_path / "out").only.declared.dtype == "int8"


# ── lying configs ──────────────────────────────────────────────────────────────────


def test_a_wrong_granularity_is_overruled(tmp_path: Path) -> None:
    path = seed(tmp_path, group=8)
    before = stored(path)
    assert before.findings == ()

    def lie(config: dict[str, Any]) -> None:
        weight = config["quantization_config"]["global_quant_config"]["weight"]
        weight.update(qscheme="per_channel", ch_axis=0, group_size=None)

    edit(path, lie)
    found = stored(path)
    assert found.findings == (
        "config.json says Quark INT4 per channel, but the tensors are Quark INT4 per group of 8 and are read so",
    )
    assert same_weights(found, before)


def test_the_wrong_format_is_overruled(tmp_path: Path) -> None:
    path = seed(tmp_path)
    convert(path, tmp_path / "out", to="vllm", pack="compressed-pack")
    claimed = json.loads((path / "config.json").read_text())["quantization_config"]
    edit(tmp_path / "out", lambda config: config.update(quantization_config=claimed))
    found = stored(tmp_path / "out")
    assert found.only.format.id == "compressed-pack"
    assert "but the tensors are compressed-tensors pack-quantized, INT4 per channel" in found.findings[0]
    assert same_weights(found, stored(path))


def test_the_label_of_file_to_file_is_told(tmp_path: Path) -> None:
    """F32 scales, no zero points, natural order, and a config that says reorder."""
    path = seed(tmp_path, "llama")
    before = stored(path)
    convert(path, tmp_path / "order", pack="quark-int4:order")
    undone = tmp_path / "order"
    (undone / "draftconv.json").unlink()

    def widen(tensors: Tensors) -> Tensors:
        return {n: t.float() if n.endswith("scale") else t for n, t in no_zero_points(tensors).items()}

    rewrite(undone, widen)
    edit(undone, lambda config: config["quantization_config"]["export"].update(pack_method="reorder"))
    found = stored(undone)
    assert any("file-to-file" in text for text in found.findings)
    assert same_weights(found, before)
    undeclared(undone)  # such tensors tell the order themselves
    assert same_weights(stored(undone), before)


def test_a_module_that_is_plain_against_the_config_is_told(tmp_path: Path) -> None:
    path = seed(tmp_path)
    edit(path, excluding("embed_tokens", "lm_head"))
    assert (stored(path).findings, stored(path).unlisted) == ((), ("fc",))


@pytest.mark.parametrize("variant", ["llama", "mla-3.1", "mixed", "reduced"])
@pytest.mark.parametrize(
    ("engine", "recipe"),
    [
        *((engine, recipe) for engine in (None, "vllm:b200") for recipe in ("w4a16", "w4a8", "quark-w4a8", "fp8")),
        ("sglang:b200", "fp8"),  # its INT4 kernel takes no weight as small as these
    ],
)
def test_what_draftconv_writes_gives_nothing_to_tell(
    engine: str | None, recipe: str, variant: str, tmp_path: Path
) -> None:
    engines = (engine,) if engine and recipe != "quark-w4a8" else ()
    options = QuantizeOptions(recipe=recipe, engines=engines, allow_a16=True)
    quantize(source(tmp_path, variant), tmp_path / "out", **keywords(options))
    # SGLang's Llama class never quantizes fc, so a directory for it alone has no need to say so.
    unsaid = engines == ("sglang:b200",) and variant != "mla-3.1"
    assert stored(tmp_path / "out").findings == ()
    assert stored(tmp_path / "out").unlisted == ("fc",) * unsaid


# ── nothing to read ────────────────────────────────────────────────────────────────


def test_tensors_of_no_format_are_refused(tmp_path: Path) -> None:
    path = seed(tmp_path)
    undeclared(path)
    rewrite(
        path,
        lambda tensors: {
            n: t[:, :-1].contiguous() if n.endswith("down_proj.weight") else t for n, t in tensors.items()
        },
    )
    with pytest.raises(Refused, match="draftconv cannot read weights"):
        stored(path)


def test_scales_of_something_that_is_no_weight(tmp_path: Path) -> None:
    path = seed(tmp_path)
    rewrite(path, lambda tensors: tensors | {"midlayer.self_attn.k_scale": torch.ones(1)})
    with pytest.raises(BadCheckpoint, match="is no weight of a drafter"):
        stored(path)
