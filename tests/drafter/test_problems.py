"""Every problem draftconv knows, found in a broken drafter and not in its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftconv.drafter.checks import check_drafter, deep_bytes
from draftconv.drafter.problems import KINDS, LEVELS, Level, Severity
from draftconv.drafter.targets import Target, find_target
from tests import tiny
from tests.opening import codes, findings, read
from tests.tiny import ASCENDING, BASE, EMBEDDING, FREQUENCY, IDS, Spelled, Variant, floats, integers, spell

Break = Callable[[Spelled], object]


@dataclass(frozen=True)
class Case:
    """A healthy drafter and what to do to it; `target` as find_target takes it, or a writer of one."""

    break_it: Break
    layout: str = "torchspec-native"
    variant: str | Variant = "llama"
    target: Target | Callable[[Path], Path] | None = None
    ids: bool = True


def keys(**changes: Any) -> Break:
    return lambda spelled: spelled.config.update(changes)


def without(*names: str) -> Break:
    def remove(spelled: Spelled) -> None:
        for name in names:
            del spelled.config[name]

    return remove


def put(name: str, tensor: tiny.Tensor) -> Break:
    return lambda spelled: spelled.put(name, tensor)


def remove(*names: str) -> Break:
    return lambda spelled: spelled.remove(*names)


def cast(name: str, dtype: str) -> Break:
    """A blanket cast that went over the integers too."""

    def change(spelled: Spelled) -> None:
        values = spelled.tensors[spelled.file(name)].numpy().astype("<f4")
        data = (values.view("<u4") >> np.uint32(16)).astype("<u2") if dtype == "BF16" else values.astype("<f2")
        spelled.put(name, tiny.Tensor(dtype, values.shape, data.tobytes()))

    return change


def poke(name: str, value: float) -> Break:
    """One bad value, in the middle."""

    def change(spelled: Spelled) -> None:
        tensor = spelled.tensors[spelled.file(name)]
        bits = np.frombuffer(tensor.data, "<u2").copy()
        bits[bits.size // 2] = np.array([value], "<f4").view("<u4")[0] >> np.uint32(16)
        spelled.put(name, tensor._replace(data=bits.tobytes()))

    return change


def zeros(name: str) -> Break:
    def change(spelled: Spelled) -> None:
        tensor = spelled.tensors[spelled.file(name)]
        spelled.put(name, tensor._replace(data=bytes(len(tensor.data))))

    return change


Q, K, VALUE = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"


def beside(suffix: str, **values: Any) -> Break:
    """Something that lies beside weights of the first layer, in F32."""

    def change(spelled: Spelled) -> None:
        for module, value in values.items():
            data = np.array(value, "<f4")
            spelled.put(f"layers.0.{module}.{suffix}", tiny.Tensor("F32", data.shape, data.tobytes()))

    return change


def nested(**changes: Any) -> Break:
    return lambda spelled: spelled.config.setdefault("eagle_config", {}).update(changes)


# ── a vocabulary with offsets large enough to be rounded ───────────────────────────

WIDE = 20_000
_rng = np.random.default_rng(3)
WIDE_ASCENDING = tuple(sorted(_rng.choice(WIDE, 600, replace=False).tolist()))
WIDE_FREQUENCY = tuple(_rng.permutation(np.array(WIDE_ASCENDING)).tolist())


def wide(ids: tuple[int, ...], order: str) -> Variant:
    facts = replace(BASE, vocab=WIDE, draft_vocab=len(ids), vocab_order=order, hidden=16, target_hidden=16)  # type: ignore[arg-type]
    return Variant("wide", facts, ids)


WIDE_A, WIDE_F = wide(WIDE_ASCENDING, "ascending"), wide(WIDE_FREQUENCY, "unordered")


def offsets(spelled: Spelled) -> np.ndarray[Any, Any]:
    return spelled.tensors[spelled.file("d2t")].numpy().copy()


def rounded(spelled: Spelled) -> None:
    """Through BF16 and back to int64: the dtype tells nothing any more."""
    import torch

    values = torch.from_numpy(offsets(spelled)).to(torch.bfloat16).to(torch.int64).numpy()
    spelled.put("d2t", integers(values))


def absolute(spelled: Spelled) -> None:
    spelled.put("d2t", integers(offsets(spelled) + np.arange(len(offsets(spelled)))))


def shifted(index: int, by: int) -> Break:
    def change(spelled: Spelled) -> None:
        values = offsets(spelled)
        values[index] += by
        spelled.put("d2t", integers(values))

    return change


def pruned_by_offset(spelled: Spelled) -> None:
    """TorchSpec's --prune-vocab: rows of the full head gathered at the offsets."""
    full = floats("lm_head.weight", (tiny.VOCAB, 64), "BF16", awkward=True)
    rows = [full.data[128 * o : 128 * (o + 1)] for o in offsets(spelled).tolist()]
    spelled.put("lm_head.weight", tiny.Tensor("BF16", (len(rows), 64), b"".join(rows)))


def flip_t2d(spelled: Spelled) -> None:
    mask = bytearray(spelled.tensors["t2d"].data)
    mask[ASCENDING[-1]], mask[3] = 0, 1
    spelled.put("t2d", tiny.Tensor("BOOL", (tiny.VOCAB,), bytes(mask)))


# ── targets ────────────────────────────────────────────────────────────────────────


def same_target(path: Path) -> Path:
    return tiny.write_target(path)


FITTING = Target("t", 8, "llama", hidden=64, vocab=tiny.VOCAB, max_positions=32768)

YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}

# code → severity, level, and the ways to break a drafter so that it must be found
MLA_NO_SCALE = replace(
    tiny.VARIANTS["mla"],
    facts=replace(
        tiny.LATENT, rope=replace(tiny.LATENT.rope, scaling={**tiny.YARN, "mscale": 0.0, "mscale_all_dim": 0.0})
    ),
)
CASES: dict[str, tuple[Severity, Level, tuple[Case, ...]]] = {
    "d2t-absolute": ("error", "maps", (
        Case(absolute, variant="reduced"),
        Case(absolute, "modelopt-layers", "frequency"),
        # valid as offsets: t2d tells, or there are too few coincidences
        Case(absolute, variant=wide(tuple(sorted(_rng.choice(9000, 600, replace=False).tolist())), "ascending")),
        Case(absolute, "modelopt-layers",
             wide(tuple(sorted(_rng.choice(15000, 1000, replace=False).tolist())), "ascending")),
    )),
    "d2t-range": ("error", "maps", (
        Case(shifted(-1, 1), variant="reduced"),
        Case(shifted(0, -1), "modelopt-layers", "reduced"),
        Case(shifted(5, tiny.VOCAB), "modelopt-layers", "frequency"),
    )),
    "d2t-duplicate": ("error", "maps", (
        Case(shifted(3, -3), variant="reduced"),  # draft 3 → 2, which draft 2 already means
        Case(lambda s: s.put("d2t", integers(np.where(np.arange(len(FREQUENCY)) == 0, offsets(s)[1] + 1, offsets(s)))),
             "modelopt-layers", "frequency"),
    )),
    "d2t-t2d-mismatch": ("error", "maps", (
        Case(flip_t2d, variant="reduced"),
        Case(put("t2d", tiny.Tensor("BOOL", (tiny.VOCAB,), bytes(tiny.VOCAB))), variant="reduced"),
        Case(put("t2d", tiny.Tensor("BOOL", (8,), bytes(8))), variant="reduced"),
    )),
    "d2t-zeros": ("warning", "maps", (
        Case(zeros("d2t"), "quark-native", "reduced"),
        Case(zeros("d2t"), "modelopt-layers", "frequency"),
        Case(lambda s: (zeros("d2t")(s), zeros("t2d")(s)), variant="reduced"),
    )),
    "d2t-missing": ("error", "config", (
        Case(remove("d2t"), variant="reduced"),
        Case(remove("d2t"), "modelopt-megatron", "frequency"),
    )),
    "d2t-on-full-vocab": ("warning", "maps", (
        Case(lambda s: s.tensors.update(tiny.maps(tuple(range(tiny.VOCAB)), tiny.VOCAB))),
        Case(put("d2t", integers([0] * tiny.VOCAB))),
    )),
    "d2t-dtype": ("error", "maps", (
        Case(cast("d2t", "F16"), variant="reduced"),
        Case(cast("d2t", "BF16"), variant="reduced"),
        Case(put("d2t", tiny.Tensor("F16", (len(ASCENDING),), np.full(len(ASCENDING), 0.5, "<f2").tobytes())),
             variant="reduced"),
        Case(put("d2t", tiny.Tensor("BOOL", (len(ASCENDING),), bytes(len(ASCENDING)))), variant="reduced"),
        Case(put("d2t", tiny.Tensor("F16", (len(ASCENDING),), np.full(len(ASCENDING), np.inf, "<f2").tobytes())),
             variant="reduced"),
    )),
    "d2t-rounded": ("error", "maps", (
        Case(rounded, variant=WIDE_A),
        Case(rounded, "modelopt-layers", WIDE_A),
        Case(rounded, "modelopt-layers", WIDE_F),
        Case(cast("d2t", "BF16"), "modelopt-layers", WIDE_F),
        Case(cast("d2t", "F16"), "modelopt-layers", WIDE_F),
    )),
    "head-pruned-by-offset": ("error", "sample", (Case(pruned_by_offset, variant="reduced"),)),
    "head-rows": ("error", "config", (
        Case(keys(draft_vocab_size=40), variant="reduced"),
        Case(put("d2t", integers([0] * 40)), variant="reduced"),
        Case(put("lm_head.weight", floats("x", (200, 64), "BF16"))),
    )),
    "joined-weight-scales": ("warning", "sample", (
        Case(beside("weight_scale_2", **{Q: 0.5, K: 0.5, VALUE: 0.25})),
        Case(beside("weight_scale_2", **{"mlp.gate_proj": 0.5, "mlp.up_proj": 0.25})),
        Case(beside("weight_scale_2", **{"self_attn.q_a_proj": 0.5, "self_attn.kv_a_proj_with_mqa": 0.25}),
             variant="mla"),
    )),
    "joined-fp8-scales": ("warning", "sample", (Case(beside("weight_scale", **{Q: 0.5, K: 0.25, VALUE: 0.5})),)),
    "joined-input-scales": ("warning", "sample", (
        Case(beside("input_scale", **{"mlp.gate_proj": 0.5, "mlp.up_proj": 0.25})),
    )),
    "joined-smoothing": ("warning", "sample", (
        Case(beside("pre_quant_scale", **{Q: [1, 2], K: [1, 2], VALUE: [1, 2]})),
        Case(beside("pre_quant_scale", **{"mlp.gate_proj": [1, 1], "mlp.up_proj": [1, 2]})),
        Case(beside("pre_quant_scale", **{"mlp.gate_proj": [1, 2]})),
    )),
    "norm-without-flag": ("error", "config", (
        Case(keys(fc_norm=False), variant="3.1"),
        Case(without("fc_norm"), variant="3.1"),
        Case(keys(norm_before_fc=False), "speculators", "norm-before-fc"),
    )),
    "flag-without-norm": ("error", "config", (
        Case(keys(fc_norm=True)),
        Case(nested(norm_before_fc=True)),
        Case(keys(norm_before_fc=True), "speculators"),
    )),
    "both-fusion-norms": ("error", "config", (
        Case(lambda s: (s.put("input_norm.weight", floats("n", (192,), "BF16")), s.config.update(norm_before_fc=True)),
             variant="3.1"),
        Case(keys(norm_before_fc=True), variant="3.1"),
    )),
    "norm-output-specforge": ("warning", "config", (Case(keys(norm_output=True), "specforge-hf"),)),
    "feedback-contradiction": ("error", "config", (
        Case(lambda s: (nested(return_hidden_post_norm=True)(s), keys(norm_output=False)(s)), variant="3.1"),
        Case(lambda s: (nested(return_hidden_post_norm=False)(s), keys(norm_output=True)(s)), "modelopt-layers"),
    )),
    "final-norm-off": ("error", "config", (Case(keys(norm_output=False), "specforge-sglang"),)),
    "double-norm": ("warning", "config", (
        Case(nested(next_layer_regular=True), "modelopt-midlayer"),
        Case(nested(parallel_draft_step=1), "modelopt-midlayer"),
    )),
    "fc-width": ("error", "config", (
        Case(put("fc.weight", floats("fc.weight", (64, 200), "BF16"))),
        Case(keys(num_aux_hidden_states=4)),
        Case(nested(**{IDS: [1, 3, 4, 6]})),
        Case(without("target_hidden_size"), variant="wide-target"),
        Case(keys(target_hidden_size=32)),
    )),
    "tensor-missing": ("error", "config", (
        *(Case(remove(name), variant="3.1") for name in
          ("norm.weight", "layers.0.hidden_norm.weight", "fc_norm.1.weight", "layers.0.mlp.up_proj.weight")),
        Case(remove("layers.0.self_attn.q_a_layernorm.weight"), variant="mla"),
        Case(remove("lm_head.weight"), variant="reduced"),
        Case(remove(EMBEDDING), variant="wide-target"),
        Case(keys(attention_bias=True)),
        Case(remove("layers.0.self_attn.v_proj.bias"), "modelopt-midlayer", "bias"),
        Case(remove("layers.1.input_layernorm.weight"), "speculators", "two-layers"),
    )),
    "tensor-unexpected": ("error", "config", (
        Case(put("projector.weight", floats("x", (4, 4), "BF16"))),
        Case(put("layers.3.mlp.up_proj.weight", floats("x", (96, 64), "BF16"))),  # no layers 1 and 2 before it
        Case(put("layers.99999999999999999999.x", floats("x", (4, 4), "BF16"))),
        Case(put("fc_norm.7.weight", floats("x", (64,), "BF16")), variant="3.1"),
    )),
    "tensor-stale": ("warning", "config", (
        Case(put("verifier_lm_head.weight", floats("x", (4, 4), "BF16")), "speculators"),
        Case(put("verifier_norm.weight", floats("x", (4,), "BF16")), "speculators"),
        Case(put("midlayer.self_attn.rotary_emb.inv_freq", floats("x", (4,), "F32"))),
        Case(put("rotary_emb.cos_cached", floats("x", (4,), "F32"))),
    )),
    "tensor-shape": ("error", "config", (
        Case(put("layers.0.self_attn.v_proj.weight", floats("x", (32, 64), "BF16"))),
        Case(put("fc.weight", floats("x", (32, 192), "BF16"))),
        Case(put("fc.weight", floats("x", (64 * 192,), "BF16"))),
        Case(put("norm.weight", floats("x", (), "BF16"))),
        Case(put("norm.weight", tiny.Tensor("BF16", (0,), b""))),
        Case(keys(hidden_size=128)),
        Case(keys(qk_rope_head_dim=16), variant="mla"),
        Case(keys(num_attention_heads=8)),
    )),
    "weights-misdeclared": ("warning", "config", ()),  # found by `inspect` alone: tests/api/test_inspect_quantized.py
    "tensor-dtype": ("error", "config", (
        Case(put("norm.weight", integers([1] * 64))),
        Case(put("layers.0.mlp.up_proj.weight", integers(np.zeros((96, 8)), "I32"))),
        Case(put("midlayer.mlp.up_proj.weight_scale", floats("s", (96,), "BF16"))),
        Case(lambda s: (s.put("norm.weight", integers([1] * 64)),
                        s.config.update(quantization_config={"quant_method": "quark"}))),
    )),
    "name-prefix": ("warning", "config", (
        Case(lambda s: s.wrap("model."), "torchspec-native"),
        Case(lambda s: s.wrap("eagle_module."), "modelopt-midlayer"),
        Case(lambda s: s.wrap("draft_model.")),
    )),
    "weights-stray": ("warning", "config", (Case(lambda s: s.extra.update({"other.safetensors": "unread"})),)),
    "dtype-mixed": ("note", "config", (Case(put("norm.weight", floats("norm.weight", (64,), "F32"))),)),
    "not-finite": ("error", "deep", (
        Case(poke("fc.weight", float("nan"))),
        Case(poke("lm_head.weight", float("inf"))),
        Case(poke("layers.0.input_layernorm.weight", float("-inf"))),
    )),
    "all-zero": ("error", "deep", (Case(zeros("layers.0.mlp.down_proj.weight")), Case(zeros("norm.weight")))),
    "embedding-differs": ("warning", "deep", (
        Case(poke(EMBEDDING, 1.0), target=same_target),
        Case(lambda s: s.put(EMBEDDING, floats("other", (tiny.VOCAB, 64), "F16")), target=same_target),
    )),
    "embedding-random": ("warning", "deep", ()),  # needs a table of real size: test_random_table.py
    "rope-contradiction": ("error", "config", (
        Case(keys(rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})),
        Case(keys(rope_parameters={"rope_theta": 50000.0, "rope_type": "default"}), variant="yarn"),
        Case(keys(rope_scaling={**tiny.YARN, "type": "yarn", "rope_type": "linear"}), variant="yarn"),
        Case(keys(rope_parameters={"rope_type": "yarn", "factor": 64.0}), variant="yarn"),
    )),
    "rope-injected": ("warning", "config", (
        Case(keys(rope_scaling=YARN), "modelopt-layers"),
        Case(keys(rope_scaling=YARN), "modelopt-midlayer"),
    )),
    "rope-base-untrained": ("warning", "config", (Case(keys(rope_theta=50000.0), "angelslim", "plain-rope"),)),
    "softmax-scale-untrained": ("warning", "config", (
        Case(keys(rope_scaling={"type": "yarn", **tiny.YARN}), "automodel", MLA_NO_SCALE),
    )),
    "rope-mscale-missing": ("warning", "config", (
        Case(keys(rope_scaling=YARN)),
        Case(keys(rope_scaling=YARN | {"mscale": 1.0})),
        Case(keys(rope_scaling=YARN), "modelopt-layers", "mla"),
    )),
    "rope-attention-factor": ("warning", "config", (
        Case(keys(rope_scaling={**tiny.YARN, "type": "yarn", "attention_factor": 1.0}), variant="yarn"),
    )),
    "positions-short": ("warning", "config", (
        Case(keys(max_position_embeddings=2048)),
        Case(without("max_position_embeddings")),
        Case(keys(max_position_embeddings=16384), target=FITTING),
    )),
    "model-type-mtp": ("warning", "config", (
        Case(keys(model_type="deepseek_v3"), variant="mla"),
        Case(keys(model_type="deepseek_v32")),
    )),
    "config-null": ("warning", "config", (
        Case(keys(target_hidden_size=None)),
        Case(keys(eagle_config=None), ids=False),
        Case(nested(**{IDS: None}), ids=False),
    )),
    "routed-experts-null": ("warning", "config", (Case(keys(n_routed_experts=None), variant="mla"),)),
    "draft-vocab-missing": ("warning", "config", (
        Case(without("draft_vocab_size")),
        Case(keys(draft_vocab_size=None)),
        Case(without("draft_vocab_size"), variant="reduced"),
    )),
    "head-dim-missing": ("warning", "config", (Case(without("head_dim"), variant="head-dim"),)),
    "layers-config": ("note", "config", (Case(keys(num_hidden_layers=24)),)),
    "tied-flag": ("warning", "config", (Case(keys(tie_word_embeddings=True), "angelslim"),)),
    "auto-map": ("warning", "config", (Case(keys(auto_map={"AutoModel": "modeling.Model"})),)),
    "verifier-unnamed": ("warning", "config", (
        Case(lambda s: s.config["speculators_config"]["verifier"].update(name_or_path=""), "speculators"),
        Case(lambda s: s.config["speculators_config"]["verifier"].update(name_or_path=None), "speculators"),
    )),
    "torchspec-older": ("note", "config", (
        Case(lambda s: (s.put("fc.weight", floats("fc", (64, 256), "BF16")),
                        s.config["eagle_config"].update({IDS: [1, 3, 4, 6]})), "torchspec-native"),
        Case(lambda s: (s.put("fc.weight", floats("fc", (64, 128), "BF16")),
                        s.config["eagle_config"].update({IDS: [1, 3]})), "torchspec-native", "mla"),
        Case(keys(norm_output=True), "torchspec-native"),
        Case(lambda s: (s.config.update(fc_norm=True),
                        [s.put(f"fc_norm.{a}.weight", floats("norm", (64,), "BF16")) for a in range(3)]),
             "torchspec-native", "mla"),
    )),
    "vocab-target": ("error", "config", (
        Case(lambda s: (s.put(EMBEDDING, floats("e", (168, 64), "BF16")), s.config.update(vocab_size=168)),
             target=FITTING),
    )),
    "hidden-target": ("error", "config", (
        Case(lambda s: (s.put("fc.weight", floats("fc", (64, 288), "BF16")), s.config.update(target_hidden_size=96)),
             target=FITTING),
    )),
    "aux-contradiction": ("error", "config", (Case(keys(**{IDS: [1, 2, 3]})),)),
    "aux-order": ("error", "config", (
        Case(nested(**{IDS: [4, 3, 1]}), "modelopt-midlayer"),
        Case(nested(**{IDS: [1, 3, 3]}), "modelopt-midlayer"),
        Case(nested(**{IDS: [1, 3, 8]}), "modelopt-midlayer", target=FITTING),
    )),
    "aux-unknown": ("error", "config", (
        Case(nested(**{IDS: [2, 3, 5]})),
        Case(nested(**{IDS: [1, 3, -1]}), "modelopt-midlayer"),
    )),
    "aux-other-triple": ("warning", "config", (
        Case(nested(**{IDS: [2, 4, 5]}), "modelopt-midlayer"),
        Case(keys(**{IDS: [1, 3, 4]}), "speculators"),
    )),
    "reading-doubtful": ("warning", "config", (
        Case(nested(**{IDS: [2, 4, 5]}), "modelopt-midlayer"),
        Case(keys(norm_output=True), "specforge-hf", "reduced"),
    )),
    "aux-default-off": ("warning", "config", (Case(lambda s: s.config.pop("eagle_config"), variant="four-aux"),)),
}  # fmt: skip

FLAT = [(code, number) for code, (_, _, cases) in CASES.items() for number in range(len(cases))]


def test_every_code_has_a_case() -> None:
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize("code", KINDS)
def test_every_code_explains_itself(code: str) -> None:
    kind = KINDS[code]
    assert all(len(text) > 10 for text in (kind.title, kind.why, kind.cure))
    assert (kind.severity, kind.level) == CASES[code][:2]


@pytest.mark.parametrize(("code", "number"), FLAT)
def test_found_when_broken_and_only_then(code: str, number: int, tmp_path: Path) -> None:
    _, level, cases = CASES[code]
    case = cases[number]
    target = case.target
    if callable(target):
        target = find_target(str(target(tmp_path / "target")), None)
    healthy = spell(case.variant, case.layout, ids=case.ids).write(tmp_path / "healthy")
    assert code not in codes(healthy, "deep", target=target)
    spelled = spell(case.variant, case.layout, ids=case.ids)
    case.break_it(spelled)
    broken = spelled.write(tmp_path / "broken")
    found = [problem for problem in findings(broken, level, target=target).problems if problem.code == code]
    assert found
    assert all(problem.detail and problem.severity == CASES[code][0] for problem in found)
    if level in ("sample", "deep"):
        below = LEVELS[LEVELS.index(level) - 1]
        assert code not in codes(broken, below, target=target)


def test_the_bf16_cast_is_told_by_both_its_marks(tmp_path: Path) -> None:
    spelled = spell(WIDE_F, "modelopt-layers")
    cast("d2t", "BF16")(spelled)
    assert {"d2t-dtype", "d2t-rounded"} <= codes(spelled.write(tmp_path / "x"))


@pytest.mark.parametrize(
    ("level", "target", "not_made"),
    [
        ("config", None, {"sizes against the target (needs --target)",
                          "d2t of zeros (needs --deep)",
                          "lm_head rows against d2t (needs --deep)",
                          "scales of joined weights (needs --deep)",
                          "NaN, infinity and all-zero tensors (needs --deep)",
                          "embed_tokens that were never trained (needs --deep)",
                          "embed_tokens against the target's (needs --deep)"}),
        ("sample", FITTING, {"NaN, infinity and all-zero tensors (needs --deep)",
                             "embed_tokens that were never trained (needs --deep)",
                             "embed_tokens against the target's (needs --deep)"}),
        ("deep", FITTING, {"embed_tokens against the target's (needs --target with a directory that holds the target's "
                           "weights)"}),
    ],
)  # fmt: skip
def test_checks_that_were_not_made_are_listed(
    level: Level, target: Target | None, not_made: set[str], tmp_path: Path
) -> None:
    path = spell("llama", "torchspec-native").write(tmp_path / "x")
    assert set(findings(path, level, target=target).not_made) == not_made


def test_deep_checks_tell_how_far_they_have_come(tmp_path: Path) -> None:
    drafter = read(spell("reduced", "torchspec-native").write(tmp_path / "x"))
    target = find_target(str(same_target(tmp_path / "t")), None)
    told: list[int] = []
    found = check_drafter(drafter, target, level="deep", progress=told.append)
    assert not found.problems
    maps = drafter.tensors["d2t"].nbytes + drafter.tensors["t2d"].nbytes
    values = sum(ref.nbytes for ref in drafter.tensors.values()) - maps
    tables = 2 * drafter.tensors[EMBEDDING].nbytes
    assert (deep_bytes(drafter, None), deep_bytes(drafter, target)) == (values, values + tables)
    assert told == sorted(set(told))
    assert told[-1] == values + tables
    told.clear()
    check_drafter(drafter, target, level="sample", progress=told.append)
    assert told == []


def test_a_target_without_tables_is_no_difference(tmp_path: Path) -> None:
    path = spell("llama", "torchspec-native").write(tmp_path / "x")
    bare = tiny.write_target(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    other = tiny.write_target(tmp_path / "other", tables={"model.norm.weight": floats("n", (64,), "BF16")})
    for directory, told in ((bare, "needs --target"), (other, "stores no embed_tokens")):
        found = findings(path, target=find_target(str(directory), None))
        assert "embedding-differs" not in {problem.code for problem in found.problems}
        assert [note for note in found.not_made if note.startswith("embed_tokens") and told in note]


def test_an_embedding_of_another_width_is_the_drafters_own(tmp_path: Path) -> None:
    path = spell("wide-target", "torchspec-native").write(tmp_path / "x")
    target = find_target(str(tiny.write_target(tmp_path / "t", tiny.VARIANTS["wide-target"])), None)
    assert "embedding-differs" not in codes(path, target=target)


def test_the_same_table_in_another_dtype_is_the_same(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-native")
    stored = spelled.tensors[EMBEDDING]
    spelled.put(EMBEDDING, tiny.Tensor("F32", stored.shape, stored.numpy().tobytes()))
    target = find_target(str(same_target(tmp_path / "t")), None)
    assert "embedding-differs" not in codes(spelled.write(tmp_path / "x"), target=target)


def test_healthy_things_that_look_odd(tmp_path: Path) -> None:
    """Zero biases, nulls of transformers, a constant head: no problem, or another one."""
    spelled = spell("bias", "modelopt-midlayer")
    zeros("layers.0.self_attn.q_proj.bias")(spelled)
    zeros("layers.0.self_attn.o_proj.bias")(spelled)
    spelled.config |= {"rope_scaling": None, "sliding_window": None, "pad_token_id": None}
    drafter = read(spelled.write(tmp_path / "bias"))
    assert drafter.dropped == {"midlayer.self_attn.o_proj.bias": "zeros: the same as no bias"}
    assert {p.code for p in check_drafter(drafter, None, level="deep").problems} == set()
    spelled = spell("reduced", "torchspec-native")
    zeros("lm_head.weight")(spelled)
    found = codes(spelled.write(tmp_path / "head"))
    assert ("all-zero" in found, "head-pruned-by-offset" in found) == (True, False)


def test_each_problem_is_listed_once(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-native")
    spelled.config |= {"hidden_size": 128, "num_hidden_layers": 3}
    problems = findings(spelled.write(tmp_path / "x")).problems
    assert len(problems) == len(set(problems))
