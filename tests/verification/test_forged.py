"""A record proves nothing: whatever it declares, with hashes that fit, is made again or does not pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from draftconv.api.convert import convert
from draftconv.api.quantize import quantize
from draftconv.api.verify import Verification, verify
from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.provenance import output_digest
from draftconv.conversion.working_drafter import ChangeKind
from draftconv.drafter.facts import Facts
from draftconv.traces.trace import open_trace
from draftconv.verification.declarations import CHANGEABLE_FACTS, DECLARATIONS
from tests import quantized, tiny
from tests.api.conftest import Source
from tests.layouts.spelled import on_disk
from tests.tiny import Tensor
from tests.traces.recorded import Recorded
from tests.verification.forging import declared, edited, rewritten, sealed, zeroed

Forged = Callable[[Path], None]


def outcomes(found: Verification) -> dict[str, str]:
    return {row.what: row.outcome for row in found.rows}


# ── the two attacks ────────────────────────────────────────────────────────────────


def test_zeroed_weights_that_are_declared_repaired_fail(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    rewritten(out, zeroed(on_disk(out), "fc.weight"))
    sealed(out, declared("repaired", "fc.weight"))
    found = verify(out, path)
    assert (found.record, found.result) == ("believed", "fail")
    assert outcomes(found)["fc.weight"] == "different"


def test_a_declared_epsilon_without_engines_fails(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")

    def forged(record: dict[str, Any]) -> None:
        record["engines"] = []
        declared("fact", "eps")(record)

    edited(out, lambda config: config.update(rms_norm_eps=0.5))
    sealed(out, forged)
    found = verify(out, path)
    assert (found.record, found.result) == ("believed", "fail")
    assert outcomes(found)["eps"] == "different"
    assert outcomes(found)["vllm@0.33.0"] == "equal"


# ── engines ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engines", [[], ["sglang@0.5.23"], None])
def test_engines_are_judged_whatever_the_record_names(
    engines: list[str] | None, source: Source, tmp_path: Path
) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    edited(out, lambda config: config.update(architectures=["Foo"]))
    sealed(out, lambda record: record.pop("engines") if engines is None else record.update(engines=engines))
    assert outcomes(verify(out, path))["vllm@0.33.0"] == "different"


def test_the_engine_of_whoever_verifies_is_the_one_that_is_asked(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    assert [row.what for row in verify(out, path, engines="vllm@0.22").directory] == ["vllm@0.22"]
    assert [row.what for row in verify(out, path).directory] == ["vllm@0.33.0"]


def test_a_quantized_output_for_nobody_is_judged_beside_what_its_steps_write(tmp_path: Path) -> None:
    """quark-w4a8 is for no engine: that is no fault. A config that is worse than what the same steps write is one."""
    path, out = quantized.source("llama-eagle3"), tmp_path / "out"
    target = str(quantized.target("llama-eagle3").path)
    quantize(path, out, recipe="quark-w4a8", target=target)
    found = verify(out, path, target=target)
    assert found.passed, outcomes(found)
    assert {row.outcome for row in found.directory} == {"declared"}
    assert all("refused" in row.how for row in found.directory)
    assert verify(out, path, target=target, engines="vllm").result == "fail"
    edited(out, lambda config: config.update(architectures=["Foo"]))
    sealed(out)
    assert "different" in {row.outcome for row in verify(out, path, target=target).directory}


# ── config.json, where it says no fact ─────────────────────────────────────────────

EVIL = {"AutoConfig": "someone/else--configuration.Config"}


@pytest.mark.parametrize(
    "said",
    [
        {"logit_scale": 0.5},
        {"text_config": {"rms_norm_eps": 0.5}},
        {"torch_dtype": "float16"},
        {"use_cache": 1},
        {"bos_token_id": None},
    ],
)
def test_a_key_that_the_steps_do_not_write_fails(said: dict[str, Any], source: Source, tmp_path: Path) -> None:
    """No fact holds it; an engine may look at it."""
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    edited(out, lambda config: config.update(said))
    sealed(out, declared("fact", f"config.json: {min(said)}"))
    found = verify(out, path)
    assert (found.record, found.result) == ("believed", "fail")
    (row,) = (row for row in found.rows if row.outcome == "different")
    assert (row.what, row.how) == ("config.json", f"{min(said)}: not what the recorded steps write")


def test_a_key_that_was_taken_out_fails(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="portable")
    edited(out, lambda config: config["eagle_config"].pop("use_last_layernorm"))
    sealed(out)
    assert "eagle_config.use_last_layernorm" in next(r.how for r in verify(out, path).rows if r.what == "config.json")


@pytest.mark.parametrize("recorded", [True, False])
def test_code_that_the_source_does_not_ask_for_fails(recorded: bool, source: Source, tmp_path: Path) -> None:
    path, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(source("torchspec-native", "llama"), path)
    convert(path, out, to="vllm")
    edited(out, lambda config: config.update(nested=[{"auto_map": EVIL}]))
    if recorded:
        sealed(out)
    else:
        (out / "draftconv.json").unlink()
    assert outcomes(verify(out, path))["config.json: auto_map"] == "different"
    edited(path, lambda config: config.update(auto_map=EVIL))
    assert "config.json: auto_map" not in outcomes(verify(out, path))


def test_a_key_that_a_target_decides_is_claimed_without_it(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", target_layers=8)
    edited(out, lambda config: config.update(logit_scale=0.5))
    sealed(out)
    assert verify(out, path).result == "claimed"
    assert verify(out, path, target_layers=8).result == "fail"


@pytest.mark.parametrize("left_out", [5, "vllm", ["vllm"], {"vllm": ""}, [None], [{"engine": []}]])
def test_engines_that_are_left_out_in_no_known_way_leave_nobody_out(
    left_out: object, source: Source, tmp_path: Path
) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    record = json.loads((out / "draftconv.json").read_text()) | {"left_out": left_out}
    opened = open_checkpoint(out)
    record["output"] = output_digest(opened.tensors, opened.config, record)
    (out / "draftconv.json").write_text(json.dumps(record))
    found = verify(out, path)
    assert (found.record, found.result) == ("not believed", "fail")
    assert outcomes(found)["vllm@0.33.0"] == "equal"


# ── every kind of declaration ──────────────────────────────────────────────────────


def test_every_kind_of_change_has_its_rows() -> None:
    assert {row.kind for row in DECLARATIONS} == set(get_args(ChangeKind))
    assert CHANGEABLE_FACTS - {"activations"} < {field.name for field in fields(Facts)}


TENSOR_KINDS = sorted(set(get_args(ChangeKind)) - {"fact"})


@pytest.mark.parametrize("kind", TENSOR_KINDS)
@pytest.mark.parametrize("name", ["fc.weight", "midlayer.self_attn.q_proj.weight", "norm.weight", "embed_tokens.weight",
                                  "lm_head.weight"])  # fmt: skip
def test_a_forged_row_of_any_kind_explains_no_tensor(kind: str, name: str, source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    tensors = on_disk(out)
    canonical = name.replace("midlayer.", "layers.0.")
    if kind == "dropped":
        if name == "fc.weight":
            pytest.skip("without it, it is no drafter at all")
        rewritten(out, {other: tensor for other, tensor in tensors.items() if other != name})
    else:
        rewritten(out, zeroed(tensors, name))
    sealed(out, declared(kind, canonical))
    found = verify(out, path)
    assert (found.record, found.result) == ("believed", "fail")
    assert outcomes(found)[canonical] == "different"


@pytest.mark.parametrize("kind", ["added", "repaired", "replaced"])
def test_a_forged_tensor_is_not_in_the_source(kind: str, source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    rewritten(out, on_disk(out) | {"fc.bias": tiny.floats("fc.bias", (64,), "BF16")})
    sealed(out, declared(kind, "fc.bias"))
    assert outcomes(verify(out, path))["fc.bias"] == "different"


def test_a_cast_that_nobody_asked_for_fails(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    tensors = on_disk(out)
    norm = tensors["norm.weight"]
    wide = tiny.to_torch(norm).float().numpy().tobytes()
    rewritten(out, tensors | {"norm.weight": Tensor("F32", norm.shape, wide)})
    sealed(out, declared("cast", "norm.weight"))
    assert outcomes(verify(out, path))["norm.weight"] == "different"


def edit_both_ropes(config: dict[str, Any]) -> None:
    config["rope_theta"] = config["rope_parameters"]["rope_theta"] = 5.0


FACTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "boundaries": lambda config: [config.update(eagle_aux_hidden_state_layer_ids=[1, 3, 4]),
                                  config.pop("eagle_config")],
    "rope": edit_both_ropes,
    "eps": lambda config: config.update(rms_norm_eps=0.5),
    "fusion": lambda config: config.update(norm_before_fc=True),
    "feedback": lambda config: config.update(norm_output=True),
    "norm_before_residual": lambda config: config.update(norm_before_residual=True),
    "activation": lambda config: config.update(hidden_act="gelu"),
    "window": lambda config: config.update(sliding_window=16, use_sliding_window=True,
                                           layer_types=["sliding_attention"]),
    "max_positions": lambda config: config.update(max_position_embeddings=8),
}  # fmt: skip


@pytest.mark.parametrize("whole", [False, True], ids=["one row", "and no engines"])
@pytest.mark.parametrize("fact", FACTS)
def test_an_edited_fact_fails_although_it_is_declared(fact: str, whole: bool, source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    edited(out, FACTS[fact])

    def forged(record: dict[str, Any]) -> None:
        for field in fields(Facts):
            declared("fact", field.name)(record)
        if whole:
            record["engines"] = []

    sealed(out, forged)
    found = verify(out, path)
    assert not found.passed
    told = outcomes(found)
    assert told.get(fact) in ("different", "claimed") or "different" in told.values(), told
    assert (told[fact] == "claimed") == (fact == "max_positions")


# ── forged requests ────────────────────────────────────────────────────────────────


def test_a_forged_option_is_made_again_and_compared(source: Source, tmp_path: Path) -> None:
    """The record asks for a repair that this source does not need: nothing can be made again, nothing passes by it."""
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    rewritten(out, zeroed(on_disk(out), "midlayer.hidden_norm.weight"))

    def forged(record: dict[str, Any]) -> None:
        record["options"]["repairs"] = ["double-norm"]
        declared("repaired", "layers.0.hidden_norm.weight")(record)

    sealed(out, forged)
    found = verify(out, path)
    assert found.result == "claimed"
    assert outcomes(found)["layers.0.hidden_norm.weight"] == "claimed"
    assert found.cures == ("--repair double-norm: this drafter does not have that problem; leave the option out",)


def test_a_half_made_repair_fails(tmp_path: Path) -> None:
    """The folded norm beside the flag that it was folded in: each alone is a wrong drafter."""
    path, out = tiny.spell("llama", "modelopt-layers").write(tmp_path / "source"), tmp_path / "out"
    convert(path, out, to="vllm", repairs=("double-norm",))
    assert verify(out, path).passed
    unrepaired = tiny.spell("llama", "modelopt-layers").tensors["layers.0.hidden_norm.weight"]
    rewritten(out, on_disk(out) | {"midlayer.hidden_norm.weight": unrepaired})
    sealed(out)
    assert outcomes(verify(out, path))["layers.0.hidden_norm.weight"] == "different"


@pytest.mark.parametrize(
    "broken",
    [{"to": 5}, {"to": "nowhere"}, {"embed": "perhaps"}, {"dtype": "int3"}, {"repairs": "all"}, {"pack": "zip"},
     {"unpack": [1]}, {"dequantize": "yes"}],
    ids=lambda broken: next(iter(broken)),
)  # fmt: skip
def test_a_request_that_is_nonsense_is_no_traceback(broken: dict[str, Any], source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", embed="drop", force=True)
    sealed(out, lambda record: record["options"].update(broken))
    found = verify(out, path, force=True)
    assert found.result in ("claimed", "fail")
    assert outcomes(found)["embed_tokens.weight"] in ("claimed", "different")


# ── quantized ──────────────────────────────────────────────────────────────────────

NAME = "llama-eagle3-reduced"
DOWN = "layers.0.mlp.down_proj.weight"


def test_scales_that_no_rule_gives_fail_although_every_value_is_the_nearest(tmp_path: Path) -> None:
    """Weights by one scale rule under the record of another."""
    path, target = quantized.source(NAME), str(quantized.target(NAME).path)
    for rule in ("mse", "max/7"):
        (tmp_path / f"{rule[:3]}.yaml").write_text(
            "about: one rule\n"
            f"weights: {{dtype: int4, granularity: channel, scale_rule: {rule}, scale_dtype: weight}}\n"
            "exclude: [embed, lm_head, fc, norms]\n"
        )
        quantize(path, tmp_path / rule[:3], recipe=str(tmp_path / f"{rule[:3]}.yaml"), target=target)
        assert verify(tmp_path / rule[:3], path, target=target).passed
    record = json.loads((tmp_path / "mse/draftconv.json").read_text())["quantization"]
    out = tmp_path / "max"
    sealed(out, lambda forged: forged.update(quantization=record))
    found = verify(out, path, target=target)
    rows = {row.what: (row.outcome, row.how) for row in found.rows}
    assert rows[DOWN][0] == "different"
    assert rows[DOWN][1].endswith("other bytes than when it is made again from the source")


@pytest.mark.parametrize("recipe", ["w4a8", "nvfp4"])
def test_what_config_json_says_of_quantized_weights_is_compared(
    recipe: str, recorded: Recorded, tmp_path: Path
) -> None:
    trace = quantized.calibration(recorded, "llama", recipe)
    said: dict[str, Any] = {"target": str(quantized.target(NAME).path), "calibrate": trace}
    out = tmp_path / "out"
    quantized.write(out, NAME, recipe, trace=trace)
    assert verify(out, quantized.source(NAME), **said).passed

    def without_inputs(config: dict[str, Any]) -> None:
        for group in config["quantization_config"]["config_groups"].values():
            group["input_activations"] = None

    edited(out, without_inputs)
    sealed(out, declared("fact", "activations"))
    found = verify(out, quantized.source(NAME), **said)
    assert outcomes(found)["config.json: quantization_config"] == "different"


# ── what is only claimed ───────────────────────────────────────────────────────────


def claimed(found: Verification) -> set[str]:
    assert found.result == "claimed", outcomes(found)
    return {row.what for row in found.rows if row.outcome == "claimed"}


def test_a_table_of_a_target_that_is_not_given_is_claimed(source: Source, tmp_path: Path) -> None:
    path, out = source("modelopt-layers", "llama"), tmp_path / "out"
    target = str(tiny.write_target(tmp_path / "target"))
    convert(path, out, to="vllm", embed="from-target", target=target)
    found = verify(out, path)
    assert claimed(found) == {"embed_tokens.weight", "own_embedding"}
    assert found.cures[0] == "add --target, which draftconv.json calls target"
    assert verify(out, path, target=target).passed
    other = tiny.floats("model.embed_tokens.weight", (tiny.VOCAB, 64), "BF16", seed=5)
    strange = tiny.write_target(tmp_path / "strange", tables={"model.embed_tokens.weight": other})
    assert verify(out, path, target=str(strange)).result == "fail"


def test_what_is_claimed_must_still_have_its_hash(source: Source, tmp_path: Path) -> None:
    """Nothing is proven by that, but what contradicts even the record is a difference."""
    path, out = source("modelopt-layers", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", embed="from-target", target=str(tiny.write_target(tmp_path / "target")))
    rewritten(out, zeroed(on_disk(out), "embed_tokens.weight"))
    found = verify(out, path)
    assert (found.record, found.result) == ("believed", "fail")
    assert outcomes(found)["embed_tokens.weight"] == "different"


def test_a_table_that_was_dropped_unproven_is_claimed(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", embed="drop", force=True)
    found = verify(out, path)
    assert claimed(found) == {"embed_tokens.weight", "own_embedding"}
    assert "--force" in found.cures[0]
    assert verify(out, path, force=True).passed
    assert verify(out, path, target=str(tiny.write_target(tmp_path / "target"))).passed  # which proves it
    other = tiny.floats("model.embed_tokens.weight", (tiny.VOCAB, 64), "BF16", seed=5)
    strange = tiny.write_target(tmp_path / "strange", tables={"model.embed_tokens.weight": other})
    assert verify(out, path, target=str(strange)).result == "claimed"


def test_a_number_of_positions_is_claimed(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", max_positions=65536)
    found = verify(out, path)
    assert claimed(found) == {"max_positions"}
    assert found.cures == ("add --max-positions with the number that was asked for",)
    assert verify(out, path, max_positions=65536).passed
    assert verify(out, path, max_positions=65537).result == "fail"


def test_rows_of_a_drafter_that_is_not_given_are_claimed(tmp_path: Path) -> None:
    spelled = tiny.spell(replace(tiny.VARIANTS["reduced"]), "torchspec-native")
    full = tiny.build(replace(tiny.VARIANTS["llama"], seed=9))["lm_head.weight"]
    mapped = tiny.ASCENDING
    offsets = [token - row for row, token in enumerate(mapped)]
    size = len(full.data) // full.shape[0]
    wrong = b"".join(full.data[at * size : (at + 1) * size] for at in offsets)
    spelled.put("lm_head.weight", Tensor(full.dtype, (len(mapped), *full.shape[1:]), wrong))
    path = spelled.write(tmp_path / "source")
    unpruned = tiny.spell("llama", "torchspec-native")
    unpruned.put("lm_head.weight", full)
    whole = unpruned.write(tmp_path / "unpruned")
    code = f"head-pruned-by-offset={whole}"
    convert(path, tmp_path / "out", to="vllm", repairs=(code,))
    assert claimed(verify(tmp_path / "out", path)) == {"lm_head.weight"}
    assert verify(tmp_path / "out", path, repairs=(code,)).passed
    rewritten(tmp_path / "out", zeroed(on_disk(tmp_path / "out"), "lm_head.weight"))
    sealed(tmp_path / "out")
    assert verify(tmp_path / "out", path, repairs=(code,)).result == "fail"


def test_scales_measured_on_a_trace_that_is_not_given_are_claimed(recorded: Recorded, tmp_path: Path) -> None:
    trace, other = recorded("llama", count=2, length=8), recorded("llama", count=3, length=16)
    out, target = tmp_path / "out", str(quantized.target(NAME).path)
    quantized.write(out, NAME, "fp8-tensor", trace=trace)
    found = verify(out, quantized.source(NAME), target=target)
    assert DOWN in claimed(found)
    assert "--calibrate TRACE" in found.cures[0]
    assert verify(out, quantized.source(NAME), target=target, calibrate=trace).passed
    assert DOWN in claimed(verify(out, quantized.source(NAME), target=target, calibrate=other))
    hashed = f"sha256:{open_trace(other).digest}"
    sealed(out, lambda forged: forged["quantization"]["calibration"].update(trace=hashed))
    assert verify(out, quantized.source(NAME), target=target, calibrate=other).result == "fail"
    assert verify(out, quantized.source(NAME), target=target, calibrate=trace).result == "claimed"
