"""Hostile configs and headers through the whole inspect path: an error of ours or an answer, never a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from draftconv.checkpoint import encode_header, nbytes, open_checkpoint
from draftconv.checkpoint.headers import HeaderEntry
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.problems import KINDS
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.errors import DraftconvError
from draftconv.layouts import layouts
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from tests import tiny
from tests.tiny import spell

Shape = tuple[str, list[int]]
TARGETS = (None, Target("kimi", 61, "deepseek", hidden=64, vocab=tiny.VOCAB), Target("t", 3, hidden=1))

BASES = {
    f"{layout}/{variant}": spell(variant, layout)
    for layout, variant in (
        ("torchspec-native", "3.1"),
        ("torchspec-vllm", "mla"),
        ("specforge-hf", "reduced"),
        ("modelopt-layers", "frequency"),
        ("modelopt-megatron", "two-layers"),
        ("speculators", "window"),
        ("automodel", "mla-3.1"),
        ("quark-native", "bias"),
    )
}

SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from([0, 1, -1, 2, 3, 61, 64, 1 << 31, 1 << 62, 10**400]),
    st.sampled_from([0.5, -1.0, 1e-6, 1e308, float("nan"), float("inf")]),
    st.sampled_from(["", "llama", "kimi_k2", "deepseek_v3", "yarn", "default", "eagle3", "\x1b[2J", "x" * 500]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["type", "factor", "weight", "a"]), inner, max_size=3),
    ),
    max_leaves=5,
)
EXTRA_KEYS = (
    "quantization_config", "compression_config", "rope_scaling", "rope_parameters", "rope_theta", "layer_types",
    "sliding_window", "target_hidden_size", "num_aux_hidden_states", "eagle_aux_hidden_state_layer_ids",
    "target_num_hidden_layers", "_draftconv_layout", "speculators_model_type", "norm_before_fc", "fc_norm",
    "use_aux_norm", "norm_output", "architectures", "attention_bias", "transformer_layer_config", "eagle_config",
    "q_lora_rank", "model_type", "head_dim", "draft_vocab_size",
)  # fmt: skip
EXTRA_TENSORS = (
    "fc.weight", "fc_norm.0.weight", "fc_norm.9999999.weight", "input_norm.weight", "d2t", "t2d", "norm.weight",
    "lm_head.weight", "layers.0.self_attn.qkv_proj.weight", "layers.0.mlp.gate_up_proj.weight",
    "layers.1.hidden_norm.weight", "layers.²3.x.weight", "layers.99999999999.mlp.up_proj.weight", "fc.qweight",
    "fc.weight_scale", "midlayer.7.x", "layers..weight", "", "mask_hidden", "layers.0.self_attn.o_proj.bias",
    "layers.0.self_attn.kv_a_proj_with_mqa.weight",
)  # fmt: skip
DTYPES = st.sampled_from(["BF16", "F32", "I64", "I32", "BOOL", "U8", "F8_E4M3", "F4", "F64", "U64", "C64"])
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 16, 48, 64, 96, 160, 192, 1 << 40]), max_size=3).filter(
    lambda shape: 0 in shape or _small(shape)
)


def _small(shape: list[int]) -> bool:
    size = 1
    for dimension in shape:
        size *= dimension
    return size <= 1 << 16


def write(path: Path, config: object, tensors: dict[str, Shape], metadata: dict[str, str]) -> None:
    """Headers as given over a sparse file: every tensor is zeros."""
    entries, start = [], 0
    for name, (dtype, shape) in tensors.items():
        try:
            size = nbytes(dtype, shape)
        except DraftconvError:
            continue
        entries.append(HeaderEntry(name, dtype, tuple(shape), start, start + size))
        start += size
    header = encode_header(entries, metadata)
    path.mkdir(exist_ok=True)
    with (path / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + start)
    (path / "config.json").write_text(json.dumps(config))


def inspect(path: Path, hints: ReadOptions) -> None:
    """Everything `inspect --deep` does with a directory."""
    try:
        drafter = read_drafter(open_checkpoint(path), hints)
        found = check_drafter(drafter, hints.target, level="deep")
    except DraftconvError as error:
        assert error.what
        assert len(str(error)) < 5000
        return
    assert isinstance(drafter.facts, Facts)
    assert set(drafter.tensors) == set(drafter.names)
    assert len(expected(drafter.facts)) < 10_000
    for problem in found.problems:
        assert problem.code in KINDS
        assert len(problem.detail) < 2000


HINTS = st.builds(
    ReadOptions,
    st.one_of(st.none(), st.sampled_from(sorted(layouts()))),
    st.sampled_from([None, "before", "after"]),
    st.sampled_from(TARGETS),
)


@st.composite
def directories(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Shape], dict[str, str]]:
    spelled = BASES[draw(st.sampled_from(sorted(BASES)))]
    config = json.loads(json.dumps(spelled.config))
    tensors: dict[str, Shape] = {name: (t.dtype, list(t.shape)) for name, t in spelled.tensors.items()}
    for key in draw(st.lists(st.sampled_from([*sorted(config), *EXTRA_KEYS]), max_size=3)):
        if draw(st.booleans()):
            config.pop(key, None)
        else:
            config[key] = draw(VALUES)
    for section in ("eagle_config", "rope_scaling", "transformer_layer_config"):
        if isinstance(config.get(section), dict) and draw(st.booleans()):
            config[section][draw(st.sampled_from([*sorted(config[section]), "x"]))] = draw(VALUES)
    for name in draw(st.lists(st.sampled_from([*sorted(tensors), *EXTRA_TENSORS]), max_size=3)):
        if draw(st.booleans()):
            tensors.pop(name, None)
        else:
            tensors[name] = (draw(DTYPES), draw(SHAPES))
    return config, tensors, spelled.metadata or {}


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(directory=directories(), hints=HINTS)
def test_mutated_directories(
    directory: tuple[dict[str, Any], dict[str, Shape], dict[str, str]],
    hints: ReadOptions,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    write(path, *directory)
    inspect(path, hints)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    config=st.dictionaries(st.sampled_from(EXTRA_KEYS), VALUES, max_size=6),
    names=st.lists(st.text(max_size=12), max_size=4),
)
@example(config={}, names=["layers.0.self_attn.q_proj.weight", "fc.weight"])
def test_anything_at_all(config: dict[str, Any], names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "anything"
    tensors: dict[str, Shape] = {name: ("BF16", [2, 2]) for name in names if name != "__metadata__" and _plain(name)}
    write(path, config, tensors, {})
    inspect(path, ReadOptions())
    inspect(path, ReadOptions("torchspec-native"))


def _plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Shape]]] = {
    "a norm without elements": ({}, {"norm.weight": ("BF16", [0])}),
    "an fc of absurd width": ({"target_hidden_size": 1}, {"fc.weight": ("BF16", [0, 1 << 40])}),
    "an embedding without columns": ({}, {"embed_tokens.weight": ("BF16", [1 << 58, 0])}),
    "a scalar head": ({}, {"lm_head.weight": ("BF16", [])}),
    "a scalar head beside a map": ({}, {"lm_head.weight": ("BF16", []), "d2t": ("I64", [3])}),
    "scalars for everything": ({}, dict.fromkeys(BASES["torchspec-native/3.1"].tensors, ("BF16", []))),
    "a layer number of twenty digits": ({}, {"layers.99999999999999999999.x.weight": ("BF16", [2])}),
    "a layer number that is a digit to Unicode only": ({}, {"layers.².x.weight": ("BF16", [2])}),
    "a huge theta": ({"rope_theta": 10**400}, {}),
    "ids beyond every model": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [10**4000, 1, 2]}}, {}),
    "no head dimension to divide by": ({"num_attention_heads": 1 << 30}, {}),
    "an empty map": ({}, {"d2t": ("I64", [0])}),
    "a map of complex numbers": ({}, {"d2t": ("C64", [160])}),
    "a map of half bytes": ({}, {"d2t": ("F4", [160]), "t2d": ("F4", [160])}),
    "a vocabulary of two thousand million": ({"vocab_size": (1 << 31) - 1}, {"d2t": ("I64", [160])}),
    "fused rows of nothing": ({}, {"layers.0.mlp.gate_up_proj.weight": ("BF16", [])}),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("layout", [None, "vllm"])
def test_hostile_by_name(name: str, layout: str | None, tmp_path: Path) -> None:
    spelled = BASES["torchspec-native/3.1"]
    keys, changed = HOSTILE[name]
    tensors: dict[str, Shape] = {file: (t.dtype, list(t.shape)) for file, t in spelled.tensors.items()}
    write(tmp_path / "x", spelled.config | keys, tensors | changed, {})
    for target in TARGETS:
        inspect(tmp_path / "x", ReadOptions(layout, None, target))
