"""Drafters whose weights have several schemes: written, read, verified, simulated and told of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftconv.api.convert import convert
from draftconv.api.inspect import inspect
from draftconv.api.parity import parity
from draftconv.api.quantize import Quantization, prepare, quantize
from draftconv.api.verify import verify
from draftconv.errors import BadCheckpoint, Refused, Undecided
from draftconv.quantization.quantized_forward import load_quantized
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.simulate import simulate, stored_dtypes
from draftconv.quantization.weight_detection import find_quantized
from draftconv.reference.load import load_drafter, to_torch
from tests import mixed, quantized
from tests.keywords import keywords
from tests.traces.recorded import Recorded

NAME = "llama-eagle3-reduced"
TARGET = str(quantized.target(NAME).path)
FC = "fc.weight"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    torch.set_num_threads(1)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., tuple[Path, Quantization]]:
    """`written(*engines, **roles)`: the fixture with an INT4 layer, and its fc otherwise."""

    def write(*engines: str, main: str = mixed.INT4, **roles: str) -> tuple[Path, Quantization]:
        name = mixed.recipe(tmp_path, main, exclude=", lm_head", **roles)
        options = quantized.options(NAME, name, *engines)
        return tmp_path / "out", quantize(quantized.source(NAME), tmp_path / "out", **keywords(options))

    return write


Written = Callable[..., tuple[Path, Quantization]]


def _layer(done: Quantization) -> list[str]:
    return [name.removesuffix(".weight") for name in done.decided.selection.quantized if name != FC]


def section(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "config.json").read_text())["quantization_config"]
    return found


def rewrite(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] |= changes
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("engines", [(), ("vllm",), ("vllm:cpu",)])
def test_each_weight_has_the_scheme_of_its_role(written: Written, engines: tuple[str, ...]) -> None:
    out, done = written(*engines, fc=mixed.FP8)
    assert {name: done.decided.part(name).scheme.weights.dtype for name in done.decided.selection.quantized} == {
        name: "fp8" if name == FC else "int4" for name in done.decided.selection.quantized
    }
    stored = find_quantized(quantized.read(out, NAME))
    assert {match.format.id: len(modules) for match, modules in stored.parts.items()} == {
        "compressed-pack": 7,
        "compressed-float": 1,
    }
    assert not stored.findings
    assert stored.title.count(";") == 1
    groups = section(out)["config_groups"]
    assert section(out)["format"] == "mixed-precision"
    assert [(group["format"], group["targets"]) for group in groups.values()] == [
        ("pack-quantized", ["Linear"]),
        ("float-quantized", [r"re:.*\bfc$"]),
    ]
    assert verify(out, quantized.source(NAME), target=TARGET).result == "pass"


def test_what_is_told_of_it(written: Written) -> None:
    out, done = written("vllm:cpu", fc=mixed.INT8)
    record = json.loads((out / "draftconv.json").read_text())["quantization"]
    assert record["recipe"]["roles"]["fc"]["weights"]["grid"] == "int8"
    assert record["roles"]["fc"]["format"] == "compressed-int"
    card = (out / "README.md").read_text()
    assert "fc: weights INT8 per channel" in card
    assert "- int8" in card and "- int4" in card
    told = "\n".join(map(str, done.blocks()))
    assert "fc runs as INT8 arithmetic" in told
    assert {name: d.relative < 0.02 for name, d in done.decided.deviations.items()} == {
        name: name == FC for name in done.decided.deviations
    }
    assert done.decided.why(FC).endswith("activations INT8 per token, dynamic")


def test_one_scheme_is_told_of_as_ever(written: Written) -> None:
    """Records from before there were roles have no such key, and those of one scheme still have none."""
    out, _ = written("vllm")
    record = json.loads((out / "draftconv.json").read_text())["quantization"]
    assert "roles" not in record and "roles" not in record["recipe"]
    assert list(section(out)["config_groups"]) == ["group_0"]


def test_roles_of_the_main_scheme_share_its_group(written: Written) -> None:
    out, _ = written("vllm", fc="    " + mixed.INT4)
    assert list(section(out)["config_groups"]) == ["group_0"]


def test_it_is_simulated_as_it_is_stored(written: Written) -> None:
    out, done = written("vllm:cpu", fc=mixed.FP8)
    source = quantized.read(quantized.source(NAME), NAME)
    model = load_drafter(source, quantized.target(NAME), dtype=torch.float32)
    simulated = simulate(model, done.decided.recipe, stored=stored_dtypes(source))
    tables = {"embed_tokens.weight": quantized.target(NAME).open().tensors["model.embed_tokens.weight"]}
    loaded = load_quantized(quantized.read(out, NAME), tables, torch.float32)
    mine, theirs = simulated.state_dict(), loaded.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert {name for name, module in loaded.named_modules() if hasattr(module, "inputs")} == {"fc"}
    alone = load_quantized(quantized.read(out, NAME), tables, torch.float32, rounds=())
    assert not [name for name, module in alone.named_modules() if hasattr(module, "inputs")]


def test_a_head_is_the_drafter_s_own_unless_another_one_is_lent(tmp_path: Path) -> None:
    options = quantized.options("llama-eagle3.1", "fp8-all", "vllm:cpu")
    quantize(quantized.source("llama-eagle3.1"), tmp_path / "out", **keywords(options))
    drafter, lent = quantized.read(tmp_path / "out", "llama-eagle3.1"), quantized.target(NAME).open().tensors
    tables = {"embed_tokens.weight": lent["model.embed_tokens.weight"]}
    own = load_quantized(drafter, tables, torch.float32).lm_head.weight
    other = load_quantized(drafter, {**tables, "lm_head.weight": lent["lm_head.weight"]}, torch.float32).lm_head.weight
    assert torch.equal(other, to_torch(lent["lm_head.weight"]).float())
    assert (
        0
        < (own - to_torch(quantized.read(quantized.source("llama-eagle3.1"), NAME).tensors["lm_head.weight"]))
        .abs()
        .max()
        < 0.1
    )


def test_floats_come_back(written: Written, tmp_path: Path) -> None:
    out, _ = written("vllm", fc=mixed.FP8)
    floats = convert(out, tmp_path / "floats", to="vllm", dequantize=True, target=TARGET)
    assert FC in floats.names
    assert inspect(tmp_path / "floats", engines=["vllm"], target=TARGET).verdicts[0].status == "loads"
    with pytest.raises(Refused, match="these weights have 2 schemes"):
        convert(out, tmp_path / "packed", to="vllm", pack="gptq", target=TARGET)


def test_it_is_replayed_part_by_part(written: Written, recorded: Recorded) -> None:
    """vLLM ignores the activations of the layer's INT4 on this chip, and rounds those of fc."""
    rounded = f"{mixed.INT4}activations: {{dtype: int8, granularity: token, scale: dynamic}}\n"
    out, done = written("vllm:h200", main=rounded, fc=mixed.FP8)
    report = parity(
        quantized.source(NAME),
        [out],
        trace=recorded("llama", count=4),
        fake_quant=(done.decided.requested.options.recipe,),
    )
    told = [arm.arithmetic for arm in report.arms if arm.arithmetic is not None]
    assert told[0].activations.startswith("FP8 E4M3 per token, dynamic: fc; 16 bit: layers.0.mlp.down_proj, ")
    assert "fc: FP8 arithmetic" in told[0].executed and "ignore the activation scheme" in told[0].executed
    assert told[1].activations.endswith("; INT8 per token, dynamic: " + ", ".join(sorted(_layer(done))))


# ── what is wrong is seen ──────────────────────────────────────────────────────────


def test_a_config_that_tells_of_another_scheme_is_refused(written: Written) -> None:
    out, _ = written("vllm", fc=mixed.FP8)
    groups = section(out)["config_groups"]
    groups["group_1"]["weights"] |= {"strategy": "tensor"}
    rewrite(out, config_groups=groups)
    with pytest.raises(BadCheckpoint, match="fc is stored as none of the schemes of"):
        find_quantized(quantized.read(out, NAME))


def test_a_module_that_is_named_in_the_wrong_group_is_seen(written: Written) -> None:
    out, _ = written("vllm", fc=mixed.FP8)
    groups = section(out)["config_groups"]
    groups["group_1"]["targets"].append(r"re:.*\bmlp\.down_proj$")
    rewrite(out, config_groups=groups)
    (lie,) = find_quantized(quantized.read(out, NAME)).lies
    assert lie.startswith("config.json names layers.0.mlp.down_proj among compressed-tensors float-quantized")


def test_schemes_of_the_same_tensors_are_told_apart_by_name(written: Written) -> None:
    rounded = mixed.INT4.strip() + "\n    activations: {dtype: int8, granularity: token, scale: dynamic}\n"
    out, _ = written("vllm:cpu", fc="    " + rounded)
    stored = find_quantized(quantized.read(out, NAME))
    assert str(stored.matches["fc"].declared.inputs) == "INT8 per token, dynamic"
    assert stored.matches["layers.0.mlp.down_proj"].declared.inputs is None
    groups = section(out)["config_groups"]
    next(group for group in groups.values() if group["input_activations"])["targets"] = ["Linear"]
    rewrite(out, config_groups=groups)
    with pytest.raises(Undecided, match="may have"):
        find_quantized(quantized.read(out, NAME))


def test_a_changed_scale_of_a_role_is_seen(written: Written, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    out, _ = written("vllm", fc=mixed.FP8)
    bad = tmp_path / "bad"
    shutil.copytree(out, bad)
    tensors = load_file(bad / "model.safetensors")
    name = next(name for name in tensors if name.endswith("fc.weight_scale"))
    save_file(tensors | {name: tensors[name] * 2}, bad / "model.safetensors", metadata={"format": "pt"})
    found = verify(bad, quantized.source(NAME), target=TARGET)
    assert [row.what for row in found.tensors if row.outcome == "different"] == [FC]


@pytest.mark.parametrize("engine", ["sglang:h200", "trtllm:h200"])
def test_an_engine_that_does_not_read_it_so_is_refused(engine: str, tmp_path: Path) -> None:
    """SGLang's Llama class has a plain fc; TensorRT-LLM quantizes no module of a drafter under several groups."""
    name = mixed.recipe(tmp_path, mixed.FP8.replace("    ", ""), exclude=", lm_head", fc=mixed.FP8)
    with pytest.raises(Refused):
        prepare(quantized.source(NAME), quantized.options(NAME, name, engine))


@pytest.mark.parametrize("recipe", ["quark", "gptq", "autoawq"])
def test_formats_of_one_scheme_say_so(recipe: str, tmp_path: Path) -> None:
    form = {"quark": "quark-int4"}.get(recipe, recipe)
    path = Path(mixed.recipe(tmp_path, f"{mixed.INT4}format: {form}\n", exclude=", lm_head", fc=mixed.FP8))
    with pytest.raises(Refused, match=r"holds no FP8|has no weights FP8"):
        prepare(quantized.source(NAME), quantized.options(NAME, str(path)))


def test_the_recipe_in_the_record_is_the_recipe(written: Written) -> None:
    from draftconv.quantization.recipe_schema import parse

    out, done = written("vllm", fc=mixed.FP8)
    recorded = dict(json.loads((out / "draftconv.json").read_text())["quantization"]["recipe"])
    name = recorded.pop("name")
    assert parse(json.dumps(recorded), name, "draftconv.json") == done.decided.recipe
    assert find_recipe(done.decided.requested.options.recipe).roles == done.decided.recipe.roles


def test_modelopt_tells_of_every_module(recorded: Recorded, tmp_path: Path) -> None:
    """NVFP4 in the layer and FP8 in fc, for vLLM on a GPU that has FP4: not run on hardware."""
    static = "scale: static}\n"
    nvfp4 = (
        "weights: {dtype: nvfp4, granularity: group, group: 16, scale_rule: max/6, scale_dtype: F8_E4M3}\n"
        f"activations: {{dtype: nvfp4, granularity: tensor, {static}"
    )
    fp8 = (
        "    weights: {dtype: fp8, granularity: tensor, scale_rule: max/448, scale_dtype: F32}\n"
        f"    activations: {{dtype: fp8, granularity: tensor, {static}"
    )
    name = mixed.recipe(tmp_path, nvfp4, exclude=", lm_head", fc=fp8)
    options = quantized.options(NAME, name, "vllm:b200", trace=recorded("llama", count=2, length=8))
    done = quantize(quantized.source(NAME), tmp_path / "out", **keywords(options))
    listed = section(tmp_path / "out")["quantized_layers"]
    layers = quantized.target(NAME).layers
    assert listed["model.fc"]["quant_algo"] == "FP8"
    assert listed[f"model.layers.{layers}.self_attn.qkv_proj"]["quant_algo"] == "NVFP4"
    stored = find_quantized(quantized.read(tmp_path / "out", NAME))
    assert {match.format.id: len(modules) for match, modules in stored.parts.items()} == {
        "modelopt-nvfp4": 7,
        "modelopt-fp8": 1,
    }
    assert not stored.lies
    trace = recorded("llama", count=2, length=8)
    assert verify(tmp_path / "out", quantized.source(NAME), target=TARGET, calibrate=trace).result == "pass"
    assert set(done.decided.calibration.scales) == set(stored.modules)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["quantization_config"]["quantized_layers"]["model.fc"]["quant_algo"] = "NVFP4"
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match="contradict each other"):
        find_quantized(quantized.read(tmp_path / "out", NAME))
