"""Every writable layout from every producer and variant: key sets, dtypes, bits and config keys, or one reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from draftconv.api.convert import Conversion, ConvertOptions, convert
from draftconv.api.verify import verify
from draftconv.drafter.facts import Gqa, Mla
from draftconv.drafter.targets import Target, known_targets
from draftconv.errors import Refused, UsageError
from draftconv.reference.rope import inverse_frequencies, table_multiplier
from tests import opening, tiny
from tests.api.conftest import Source
from tests.keywords import evidence, keywords
from tests.layouts.spelled import IDS, KEY, WRITABLE, check_config, document, nulls, on_disk, refusal, stored


def variants_of(producer: str) -> list[str]:
    return [variant for layout, variant in tiny.PAIRS if layout == producer]


# ── the whole matrix ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("producer", sorted(tiny.FIRST))
@pytest.mark.parametrize("to", WRITABLE)
def test_every_variant_is_written_to_the_bit_or_refused(to: str, producer: str, source: Source, tmp_path: Path) -> None:
    for variant in variants_of(producer):
        path, out = source(producer, variant), tmp_path / variant
        spelled = tiny.spell(variant, producer)
        options = ConvertOptions(to=to, layout=producer if tiny.doubtful(producer, variant) else None)
        if (words := refusal(to, variant, spelled.facts)) is not None:
            with pytest.raises(Refused, match=words):
                convert(path, out, **keywords(options))
            assert not out.exists(), variant
            continue
        convert(path, out, **keywords(options))
        assert on_disk(out) == stored(spelled, to), variant
        config = document(out, "config.json")
        assert config["_draftconv_layout"] == IDS.get(to, to)
        check_config(config, spelled.facts, to)
        assert verify(out, path, **evidence(options)).passed, variant
        assert sorted(file.name for file in out.iterdir()) == [
            "README.md", "config.json", "draftconv.json", "model.safetensors"
        ]  # fmt: skip
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


# ── what a trainer's own class would compute ───────────────────────────────────────


@pytest.mark.parametrize("producer", sorted(tiny.WITHOUT_EMBEDDING))
def test_speculators_gets_the_targets_table(producer: str, source: Source, tmp_path: Path) -> None:
    """Its class has no other: a missing one is left as memory had it."""
    for variant in variants_of(producer):
        spelled = tiny.spell(variant, producer)
        if refusal("speculators", variant, replace(spelled.facts, own_embedding=True)) is not None:
            continue
        target = tiny.write_target(tmp_path / f"{variant}-target", tiny.VARIANTS[variant])
        out = tmp_path / variant
        said = producer if tiny.doubtful(producer, variant) else None
        options = ConvertOptions(to="speculators", layout=said, target=str(target))
        found = convert(source(producer, variant), out, **keywords(options))
        table = tiny.build(tiny.VARIANTS[variant])["embed_tokens.weight"]
        assert on_disk(out) == stored(spelled, "speculators") | {"embed_tokens.weight": table}, variant
        change = next(change for change in found.changes if change.what == "embed_tokens.weight")
        assert (change.kind, change.why) == ("added", f"the table of {target.name}")
        assert verify(out, source(producer, variant), **evidence(options)).passed, variant


@pytest.mark.parametrize(
    ("producer", "embed", "target", "words", "cure"),
    [
        ("specforge-sglang", "keep", None, "has none of its own", "--target DIRECTORY"),
        ("specforge-sglang", "keep", "bare", "has none of its own", "--target DIRECTORY"),
        ("specforge-sglang", "keep", "short", "no embed_tokens of 160 x 64", "trained for"),
        ("specforge-sglang", "drop", "same", "must store embed_tokens", "leave out --embed drop"),
        ("specforge-hf", "drop", "same", "must store embed_tokens", "leave out --embed drop"),
    ],
)
def test_speculators_is_never_written_without_a_table(
    producer: str, embed: Any, target: str | None, words: str, cure: str, source: Source, tmp_path: Path
) -> None:
    path = None
    if target is not None:
        short = {"model.embed_tokens.weight": tiny.floats("short", (96, 64), "BF16")}
        path = tiny.write_target(tmp_path / "target", tables=short if target == "short" else None)
        if target == "bare":
            (path / "model.safetensors").unlink()
    options = ConvertOptions(to="speculators", embed=embed, force=True, target=str(path) if path else None)
    with pytest.raises(Refused, match=words) as caught:
        convert(source(producer, "llama"), tmp_path / "out", **keywords(options))
    assert cure in caught.value.cure
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("producer", ["modelopt-midlayer", "modelopt-megatron", "torchspec-native"])
def test_modelopt_gets_only_what_it_trained_with_two_norms(producer: str, source: Source, tmp_path: Path) -> None:
    """0.37-0.40 and Megatron normalise once: their drafters have no way back through what 0.47 computes."""
    with pytest.raises(Refused, match="trained with one normalisation") as caught:
        convert(source(producer, "llama"), tmp_path / "out", to="modelopt")
    assert "hidden_norm(input_layernorm(s))" in caught.value.why


def test_modelopt_gets_its_own_midlayer_drafters_of_041(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "modelopt-midlayer")
    spelled.config["eagle_config"] |= {"next_layer_regular": True, "parallel_draft_step": 1}
    convert(spelled.write(tmp_path / "source"), tmp_path / "out", to="modelopt")
    assert document(tmp_path / "out", "config.json")["eagle_config"]["parallel_draft_step"] == 1
    assert verify(tmp_path / "out", tmp_path / "source").passed


def test_modelopt_builds_a_bias_on_o_proj_too(tmp_path: Path) -> None:
    """One flag means all four, so the one that is not there is written as zeros."""
    base = tiny.VARIANTS["llama"]
    biased = replace(base, facts=replace(base.facts, attention=tiny.gqa(qkv_bias=True)))
    path = tiny.spell(biased, "modelopt-layers").write(tmp_path / "source")
    convert(path, tmp_path / "out", to="modelopt")
    assert not any(on_disk(tmp_path / "out")["layers.0.self_attn.o_proj.bias"].data)
    assert verify(tmp_path / "out", path).passed


def test_a_folded_norm_does_not_go_back_to_modelopt(source: Source, tmp_path: Path) -> None:
    """Also not by its recorded config, which says that there are two."""
    path = source("modelopt-layers", "llama")
    convert(path, tmp_path / "folded", to="vllm", repairs=("double-norm",))
    for start, repairs in ((tmp_path / "folded", ()), (path, ("double-norm",))):
        with pytest.raises(Refused, match="trained with one normalisation"):
            convert(start, tmp_path / "out", to="modelopt", repairs=repairs)


@pytest.mark.parametrize("to", ["torchspec", "specforge", "speculators"])
def test_a_trainer_gets_a_head(to: str, tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native").remove("lm_head.weight")
    with pytest.raises(Refused, match="always has a head of the drafter's own"):
        convert(spelled.write(tmp_path / "source"), tmp_path / "out", to=to)


def with_yarn(path: Path, **scaling: float | bool) -> Path:
    base = tiny.VARIANTS["yarn"]
    changed = replace(base, facts=replace(base.facts, rope=replace(base.facts.rope, scaling=scaling)))
    return tiny.spell(changed, "angelslim").write(path)


LEAST = {"factor": 16.0, "original_max_position_embeddings": 2048}
FULL = {**LEAST, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}


@pytest.mark.parametrize("to", ["torchspec", "specforge"])
@pytest.mark.parametrize(
    ("said", "written"),
    [
        ({}, FULL),
        ({"beta_fast": 24.0}, {**FULL, "beta_fast": 24.0}),
        ({"mscale": 0.7}, FULL),  # a lone one is what no reader of a Llama-style drafter acts on
        ({"mscale": 0.7, "mscale_all_dim": 0.7}, {**FULL, "mscale": 0.7, "mscale_all_dim": 0.7}),
    ],
)
def test_a_trainer_without_defaults_gets_every_key_of_yarn(
    to: str, said: dict[str, float], written: dict[str, float], tmp_path: Path
) -> None:
    """As numbers that stand for the same rotation: those that the drafter was read with."""
    path = with_yarn(tmp_path / "source", **LEAST, **said)
    convert(path, tmp_path / "out", to=to)
    rope = opening.read(tmp_path / "out").facts.rope
    assert rope.scaling == written
    assert table_multiplier(rope, latent=False) == table_multiplier(opening.read(path).facts.rope, latent=False)
    assert torch.equal(inverse_frequencies(rope, 16), inverse_frequencies(opening.read(path).facts.rope, 16))
    assert verify(tmp_path / "out", path).passed


@pytest.mark.parametrize("to", ["torchspec", "specforge"])
@pytest.mark.parametrize("said", [{"factor": 16.0}, {**FULL, "attention_factor": 1.2}, {**FULL, "truncate": False}])
def test_a_trainer_gets_no_yarn_that_it_cannot_make(to: str, said: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(Refused, match="makes YaRN of six numbers"):
        convert(with_yarn(tmp_path / "source", **said), tmp_path / "out", to=to)


def test_torchspec_gets_an_embedding(source: Source, tmp_path: Path) -> None:
    """Training from a published draft takes every tensor or none there."""
    path, table = source("modelopt-layers", "reduced"), tiny.build(tiny.VARIANTS["reduced"])[tiny.EMBEDDING]
    with pytest.raises(Refused, match="this layout must store embed_tokens"):
        convert(path, tmp_path / "out", to="torchspec")
    convert(path, tmp_path / "out", to="torchspec", target=tiny.write_target(tmp_path / "target"))
    assert on_disk(tmp_path / "out")[tiny.EMBEDDING].data == table.data


# ── what speculators calls the target ──────────────────────────────────────────────


def verifier_of(path: Path) -> object:
    return document(path, "config.json")["speculators_config"]["verifier"]


def test_a_known_target_is_the_verifier(source: Source, tmp_path: Path) -> None:
    """By its Hub id, which speculators and vLLM can open, and the name of its class."""
    with patch.object(Target, "hub_id", "meta-llama/Llama-3.1-8B-Instruct"):
        target = tiny.write_target(tmp_path / "target")
        conversion = convert(source("torchspec-native", "llama"), tmp_path / "out", to="speculators", target=target)
    assert verifier_of(tmp_path / "out") == {
        "name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
        "architectures": ["LlamaForCausalLM"],
    }
    assert "verifier-unnamed" not in {problem.code for problem in conversion.warnings}


def test_every_known_target_can_be_named() -> None:
    for target in known_targets().values():
        assert target.hub_id == target.repo and "/" in target.repo
        assert all(name[0].isupper() and "For" in name for name in target.architectures) and target.architectures


def test_a_verifier_without_a_name_is_told(source: Source, tmp_path: Path) -> None:
    """A name that nobody can open stops speculators 0.9.0, and so does an empty one; null does not."""
    target = tiny.write_target(tmp_path / "target")
    conversion = convert(source("torchspec-native", "llama"), tmp_path / "out", to="speculators", target=target)
    assert verifier_of(tmp_path / "out") == {"name_or_path": None, "architectures": ["LlamaForCausalLM"]}
    assert "verifier-unnamed" in {problem.code for problem in conversion.warnings}


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        ("four-aux", "4 captured states"),
        ("mla-four-aux", "4 captured states"),
        ("3.1", "fc_norm, norm_output"),
        ("post-norm", "norm_output"),
        ("llama", None),
    ],
)
def test_what_an_older_torchspec_does_not_take_is_told(
    variant: str, told: str | None, source: Source, tmp_path: Path
) -> None:
    """It had three captured states, and no EAGLE-3.1; the same drafter written for vLLM has no such note."""
    target = tiny.write_target(tmp_path / "target", tiny.VARIANTS[variant])
    for to, expected in (("torchspec", told), ("vllm", None)):
        conversion = convert(source("torchspec-vllm", variant), tmp_path / to, to=to, target=target)
        assert {p.code: p.detail for p in conversion.warnings}.get("torchspec-older") == expected
        assert [b for b in conversion.blocks() if "torchspec-older" in str(b)] == (
            [f"Note torchspec-older: {expected}"] if expected else []
        )


def test_a_person_names_the_verifier(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    convert(path, tmp_path / "out", to="speculators", verifier="me/mine")
    assert verifier_of(tmp_path / "out")["name_or_path"] == "me/mine"  # type: ignore[index]
    again = convert(tmp_path / "out", tmp_path / "vllm", to="vllm")
    convert(tmp_path / "vllm", tmp_path / "back", to="speculators")
    assert verifier_of(tmp_path / "back")["name_or_path"] == "me/mine"  # type: ignore[index]
    assert verify(tmp_path / "out", path, verifier="me/mine").passed and again
    assert verify(tmp_path / "out", path).result == "claimed"
    assert verify(tmp_path / "out", path, verifier="me/other").result == "fail"
    with pytest.raises(UsageError, match="names no target in its config"):
        convert(path, tmp_path / "other", to="vllm", verifier="me/mine")


def test_keys_that_moved_are_not_left_out(source: Source, tmp_path: Path) -> None:
    """Into the nested object of speculators, out of it, and from one of transformers' two names to the other."""
    path = source("torchspec-native", "llama")
    there = convert(path, tmp_path / "out", to="speculators")
    gone = {"_torchspec_version", "sliding_window", "use_sliding_window", "eagle_config.use_aux_hidden_state"}
    assert left_out(there) == gone
    back = convert(source("speculators", "llama"), tmp_path / "vllm", to="vllm")
    gone = left_out(back)
    assert not gone & {"transformer_layer_config", "hidden_size", "dtype"}
    assert {"speculators_config", "auto_map"} <= gone


def left_out(conversion: Conversion) -> set[str]:
    return {c.what.removeprefix("config.json: ") for c in conversion.changes if c.what.startswith("config.json: ")}


@pytest.mark.parametrize("to", ["vllm", "speculators"])
def test_transformers_keeps_the_window(to: str, source: Source, tmp_path: Path) -> None:
    """Its Qwen3Config, which both readers go through, forgets one that is not said to be in use."""
    from transformers import Qwen3Config

    convert(source("speculators", "window"), tmp_path / "out", to=to)
    config = document(tmp_path / "out", "config.json")
    assert Qwen3Config(**config.get("transformer_layer_config", config)).sliding_window == 32


# ── captured layers, per engine and target family ──────────────────────────────────

FAMILIES = {"llama": "llama", "deepseek": "kimi_k2", "gpt-oss": "gpt_oss"}
PLACES: list[tuple[str, str, tuple[int, ...], Any]] = [
    # to, target family, boundaries → (top level, eagle_config), or words of the refusal
    ("vllm", "llama", (2, 4, 5), ([2, 4, 5], [1, 3, 4])),
    ("vllm", "llama", (0, 4, 5), ([0, 4, 5], [-1, 3, 4])),
    ("vllm", "llama", (2, 4, 8), ([2, 4, 8], None)),
    ("vllm", "deepseek", (2, 4, 5), ([2, 4, 5], [2, 4, 5])),
    ("vllm", "deepseek", (1, 4, 5), ([1, 4, 5], None)),
    ("vllm", "deepseek", (0, 4, 5), "vLLM crashes on boundary 0"),
    ("vllm", "gpt-oss", (2, 4, 8), ([2, 4, 8], [2, 4, 8])),
    ("sglang", "llama", (2, 4, 5), ([2, 4, 5], [1, 3, 4])),
    ("sglang", "llama", (3, 5, 7), ([3, 5, 7], [2, 4, 6])),
    ("sglang", "llama", (1, 4, 5), ([1, 4, 5], [0, 3, 4])),
    ("sglang", "llama", (2, 4, 8), "SGLang cannot capture boundary 8"),
    ("sglang", "deepseek", (2, 4, 5), ([2, 4, 5], [2, 4, 5])),
    ("sglang", "deepseek", (3, 5, 7), ([3, 5, 7], [3, 5, 7])),
    ("sglang", "deepseek", (1, 4, 5), "SGLang cannot capture boundary 1 first"),
    ("sglang", "deepseek", (0, 4, 5), ([0, 4, 5], [0, 4, 5])),
    ("sglang", "deepseek", (2, 4, 8), "SGLang cannot capture boundary 8"),
    ("sglang", "gpt-oss", (2, 4, 5), ([2, 4, 5], [1, 3, 4])),
    ("sglang", "gpt-oss", (2, 4, 8), ([2, 4, 8], [2, 4, 8])),
    ("trtllm", "llama", (2, 4, 5), ([2, 4, 5], [1, 3, 4])),
    ("trtllm", "llama", (2, 4, 8), ([2, 4, 8], None)),
    ("trtllm", "llama", (0, 4, 5), "TensorRT-LLM cannot capture boundary 0"),
    ("trtllm", "deepseek", (1, 4, 5), ([1, 4, 5], None)),
    ("portable", "llama", (3, 5, 7), ([3, 5, 7], [2, 4, 6])),
    ("portable", "llama", (0, 4, 5), "boundary 0"),
    ("portable", "llama", (2, 4, 8), "SGLang cannot capture boundary 8"),
    ("portable", "deepseek", (3, 5, 7), ([3, 5, 7], [3, 5, 7])),
    ("portable", "deepseek", (1, 4, 5), "SGLang cannot capture boundary 1 first"),
    ("torchspec", "llama", (3, 5, 7), (None, [2, 4, 6])),
    ("torchspec", "llama", (0, 4, 5), "boundary 0 has no number"),
    ("torchspec", "deepseek", (2, 4, 5), (None, [1, 3, 4])),
    ("torchspec", "deepseek", (3, 5, 7), "may mis-read"),
    ("specforge", "llama", (2, 4, 8), (None, [1, 3, 7])),
    ("modelopt", "llama", (1, 4, 5), (None, [0, 3, 4])),
    ("speculators", "deepseek", (1, 4, 8), ([1, 4, 8], None)),
    ("speculators", "llama", (0, 4, 5), ([0, 4, 5], None)),
]


@pytest.mark.parametrize(
    ("to", "family", "boundaries", "wanted"), PLACES, ids=[f"{t}-{f}-{'.'.join(map(str, b))}" for t, f, b, _ in PLACES]
)
def test_ids_stand_where_this_reader_finds_them(
    to: str, family: str, boundaries: tuple[int, ...], wanted: Any, tmp_path: Path
) -> None:
    base = tiny.VARIANTS["llama"]
    producer = "modelopt-layers" if to == "modelopt" else "speculators"
    spelled = tiny.spell(replace(base, facts=replace(base.facts, boundaries=boundaries)), producer)
    path = spelled.write(tmp_path / "source")
    target = tiny.write_target(tmp_path / "target", model_type=FAMILIES[family])
    options = ConvertOptions(to=to, layout=producer, target=str(target))
    if isinstance(wanted, str):
        with pytest.raises(Refused, match=wanted):
            convert(path, tmp_path / "out", **keywords(options))
        assert not (tmp_path / "out").exists()
        return
    convert(path, tmp_path / "out", **keywords(options))
    config = document(tmp_path / "out", "config.json")
    assert (config.get(KEY), config.get("eagle_config", {}).get(KEY)) == wanted
    assert verify(tmp_path / "out", path, **evidence(options)).passed


@pytest.mark.parametrize("to", ["sglang", "portable"])
def test_ids_that_depend_on_the_family_need_the_target(to: str, tmp_path: Path) -> None:
    base = tiny.VARIANTS["llama"]
    odd = replace(base, facts=replace(base.facts, boundaries=(3, 5, 7)))
    path = tiny.spell(odd, "speculators").write(tmp_path / "source")
    with pytest.raises(UsageError, match="differently per target family") as caught:
        convert(path, tmp_path / "out", to=to)
    assert "--target" in caught.value.cure


def test_the_default_triple_becomes_numbers_when_the_target_is_known(source: Source, tmp_path: Path) -> None:
    path = source("angelslim", "llama")
    target = tiny.write_target(tmp_path / "target")
    convert(path, tmp_path / "out", to="portable", target=str(target))
    config = document(tmp_path / "out", "config.json")
    assert (config[KEY], config["eagle_config"][KEY]) == ([2, 4, 5], [1, 3, 4])
    assert verify(tmp_path / "out", path, target=str(target)).passed


# ── what readers cannot express, beyond the variants of the matrix ─────────────────

EXTRA_REFUSALS: list[tuple[str, str, dict[str, Any], str]] = [
    ("sglang", "mla", {"layers": 2}, "MLA drafter has one layer only"),
    ("portable", "mla", {"layers": 2}, "several layers"),
    ("vllm", "mla", {"fusion": "norm_before_fc"}, "norm_before_fc"),
    ("sglang", "mla", {"fusion": "norm_before_fc"}, "norm_before_fc"),
    ("trtllm", "mla", {"fusion": "norm_before_fc"}, "norm_before_fc"),
    ("vllm", "llama", {"fusion": "both"}, "fc_norm and norm_before_fc"),
    ("vllm", "llama", {"fc_bias": True}, "fc.bias"),
    ("speculators", "llama", {"fc_bias": True}, "fc.bias"),
    ("vllm", "llama", {"attention": tiny.gqa(o_bias=True)}, "without biases on q, k and v"),
    ("trtllm", "llama", {"attention": tiny.gqa(o_bias=True)}, "without biases on q, k and v"),
    ("sglang", "llama", {"attention": tiny.gqa(qkv_bias=True)}, "q/k/v biases"),
]


def portable_spelling(variant: tiny.Variant) -> tiny.Spelled:
    """A variant that no producer writes, spelled as draftconv's own vLLM layout (bare config, boundaries on top)."""
    facts = variant.facts
    plain = tiny.spell("mla" if isinstance(facts.attention, Mla) else "llama", "torchspec-native")
    tensors = tiny.build(variant)
    flags = {
        "fc_norm": facts.fusion in ("fc_norm", "both"),
        "norm_before_fc": facts.fusion in ("norm_before_fc", "both"),
        "norm_output": facts.feedback == "post-norm",
        "norm_before_residual": facts.norm_before_residual,
    }
    config = {key: value for key, value in plain.config.items() if key not in ("_torchspec_version", "eagle_config")}
    assert isinstance(facts.boundaries, tuple)
    config |= flags | {"_draftconv_layout": "vllm", KEY: list(facts.boundaries), "bias": facts.fc_bias,
                       "num_hidden_layers": facts.layers, "max_position_embeddings": facts.max_positions}  # fmt: skip
    if isinstance(facts.attention, Gqa):
        config["attention_bias"] = facts.attention.qkv_bias or facts.attention.o_bias
    names = {name: tiny.file_name(name, "torchspec-native", facts) for name in tensors}
    return tiny.Spelled("vllm", facts, {names[name]: tensor for name, tensor in tensors.items()}, config, names)


@pytest.mark.parametrize(("to", "base", "changes", "reason"), EXTRA_REFUSALS)
def test_what_a_reader_cannot_express_is_refused(
    to: str, base: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    variant = tiny.VARIANTS[base]
    spelled = portable_spelling(replace(variant, facts=replace(variant.facts, **changes)))
    with pytest.raises(Refused, match=reason) as caught:
        convert(spelled.write(tmp_path / "source"), tmp_path / "out", to=to)
    assert caught.value.why
    assert caught.value.cure
    assert not (tmp_path / "out").exists()


def test_a_zero_bias_is_added_where_one_flag_builds_all_four(tmp_path: Path) -> None:
    base = tiny.VARIANTS["llama"]
    variant = replace(base, facts=replace(base.facts, attention=tiny.gqa(qkv_bias=True)))
    spelled = portable_spelling(variant)
    path = spelled.write(tmp_path / "source")
    for to in ("vllm", "trtllm", "speculators"):
        conversion = convert(path, tmp_path / to, to=to)
        assert on_disk(tmp_path / to) == stored(spelled, to)
        assert [change.what for change in conversion.changes if change.kind == "added"] == [
            "layers.0.self_attn.o_proj.bias"
        ]
        assert verify(tmp_path / to, path).passed


def test_a_drafter_without_its_own_head_converts_for_each_engine(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native").remove("lm_head.weight")
    path = spelled.write(tmp_path / "source")
    for to in ("vllm", "sglang", "trtllm"):
        try:
            convert(path, tmp_path / to, to=to)
        except Refused as error:
            assert to == "trtllm", error
            continue
        assert "lm_head.weight" not in on_disk(tmp_path / to)
        assert nulls(document(tmp_path / to, "config.json")) == (["/draft_vocab_size"] if to == "sglang" else [])
    with pytest.raises(Refused):
        convert(path, tmp_path / "portable", to="portable")
