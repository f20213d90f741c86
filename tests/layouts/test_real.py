"""Collected real configs with headers of the real sizes, in sparse files: nothing is written but headers and maps.

The configs and header specs are shared reference data; where a checkout has none beside it, these tests skip.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftconv.checkpoint import encode_header, nbytes
from draftconv.checkpoint.headers import HeaderEntry
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Mla, Rope
from draftconv.drafter.targets import find_target
from draftconv.errors import NotADrafter
from tests import tiny
from tests.layouts.test_reader import same_facts
from tests.opening import SHARED, read, shared

Shape = tuple[str, list[int]]


def write_sparse(path: Path, config: Any, tensors: dict[str, Shape], metadata: dict[str, str]) -> Path:
    """Zeros of the right sizes; d2t and t2d describe the first tokens, in order."""
    entries, start = [], 0
    for name, (dtype, shape) in tensors.items():
        size = nbytes(dtype, shape)
        entries.append(HeaderEntry(name, dtype, tuple(shape), start, start + size))
        start += size
    header = encode_header(entries, metadata)
    path.mkdir()
    with (path / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + start)
        for entry in entries:
            if entry.name == "t2d":
                file.seek(len(header) + entry.start)
                file.write(b"\1" * tensors["lm_head.weight"][1][0])
    (path / "config.json").write_text(json.dumps(config))
    return path


YARN_KIMI = {"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0, "beta_slow": 1.0,
             "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
KIMI_MHA = Facts(
    attention=Gqa(64, 64, 128),
    layers=1,
    hidden=7168,
    target_hidden=7168,
    intermediate=12288,
    vocab=163840,
    draft_vocab=163840,
    aux=3,
    boundaries=AuxLayers.DEFAULT,
    rope=Rope(50000.0, "halves", "yarn", YARN_KIMI | {"beta_fast": 32.0}),
    eps=1e-6,
    max_positions=262144,
)
KIMI_MLA = replace(
    KIMI_MHA,
    attention=Mla(64, 1536, 512, 128, 64, 128),
    intermediate=18432,
    boundaries=(2, 30, 58),
    rope=Rope(50000.0, "interleaved", "yarn", YARN_KIMI),
    eps=1e-5,
    max_positions=None,
)
NVIDIA = replace(KIMI_MLA, own_embedding=False, double_norm=True, max_positions=262144)
QWEN = Facts(
    attention=Gqa(32, 8, 128),
    layers=1,
    hidden=4096,
    target_hidden=4096,
    intermediate=12288,
    vocab=151936,
    draft_vocab=32000,
    aux=3,
    boundaries=AuxLayers.DEFAULT,
    rope=Rope(1000000.0, "halves"),
    eps=1e-6,
    vocab_order="ascending",
    max_positions=40960,
)
LLAMA = replace(
    QWEN,
    intermediate=14336,
    vocab=128256,
    rope=Rope(10000.0, "halves"),
    eps=1e-5,
    own_embedding=False,
    max_positions=2048,
)
EAGLE31 = {"fc_norm": True, "norm_output": True}
SHIFTED = {"eagle_config": {tiny.IDS: [2, 30, 58]}}
MLA, MHA, ALIKE = "torchspec/kimi_k25_eagle3_mla", "torchspec/kimi_k25_eagle3", "other/kimi-k2.5-eagle3.lookalike"
NATIVE, EXPORTED = "torchspec-native", "torchspec-vllm"
QUARK = {"quantization_config": {"quant_method": "quark", "export": {"pack_method": "reorder"}}}
PACKED = replace(KIMI_MHA, quantization="quark reorder (I32 weights)")
PRUNED = replace(KIMI_MLA, draft_vocab=32000, vocab_order="ascending")
QWEN_CONFIG = "torchspec/qwen3_8b_eagle3"
NESTED_QWEN = {"speculators_model_type": "eagle3", "draft_vocab_size": 32000, tiny.IDS: None}

# header spec, config, changed keys → layout and facts
TABLE: tuple[tuple[str, str, dict[str, Any], str, Facts], ...] = (
    ("kimi-k2.5-eagle3-mla.torchspec-native", MLA, {}, NATIVE, KIMI_MLA),
    ("kimi-k2.5-eagle3-mla.torchspec-vllm", MLA, SHIFTED, EXPORTED, KIMI_MLA),
    ("kimi-k2.6-eagle3-mla.torchspec-native", MLA, {}, NATIVE, KIMI_MLA),
    ("kimi-k2.6-eagle3-mla.torchspec-vllm", MLA, SHIFTED, EXPORTED, KIMI_MLA),
    ("kimi-k2.6-eagle3.1-mla.torchspec-native", MLA, EAGLE31, NATIVE,
     replace(KIMI_MLA, fusion="fc_norm", feedback="post-norm")),
    ("kimi-k2.6-eagle3.1-mla.torchspec-vllm", MLA, EAGLE31 | SHIFTED, EXPORTED,
     replace(KIMI_MLA, fusion="fc_norm", feedback="post-norm")),
    ("kimi-k2.7-code-eagle3-mla-32k.pruned", MLA, {"draft_vocab_size": 32000}, NATIVE, PRUNED),
    ("kimi-k2.5-eagle3.torchspec-native", MHA, {}, NATIVE, KIMI_MHA),
    ("kimi-k2.5-eagle3.torchspec-native", ALIKE, {}, NATIVE, KIMI_MHA),
    ("kimi-k2.5-eagle3.torchspec-native.mixed-f16", ALIKE, {}, NATIVE, KIMI_MHA),
    ("kimi-k2.5-eagle3.torchspec-vllm", MHA, {}, EXPORTED, KIMI_MHA),
    ("w4-k2.5-eagle3.hypothesis-fc-kept", ALIKE, QUARK, NATIVE, PACKED),
    ("w4-k2.5-eagle3.hypothesis-fc-packed", ALIKE, QUARK, NATIVE, PACKED),
    ("nvidia-kimi-k2.6-eagle3.modelopt-layers", "modelopt/rendered-kimik2-template", {}, "modelopt-layers", NVIDIA),
    ("nvidia-kimi-k2.6-eagle3.modelopt-midlayer", "modelopt/rendered-kimik2-template", {}, "modelopt-midlayer", NVIDIA),
    ("llama3.1-8b-eagle3.safeailab", "eagle/traineagle3-llama3.1-8b", {}, "safeailab", LLAMA),
    ("qwen3-8b-eagle3.automodel", QWEN_CONFIG, {"architectures": ["LlamaEagle3DraftModel"]}, "automodel", QWEN),
    ("qwen3-8b-eagle3.modelopt-layers", QWEN_CONFIG, {"eagle_config": {"use_last_layernorm": True}}, "modelopt-layers",
     replace(QWEN, own_embedding=False, double_norm=True)),
    ("qwen3-8b-eagle3.specforge-hf", "specforge/qwen3-8b-eagle3", {}, "specforge-hf", QWEN),
    ("qwen3-8b-eagle3.specforge-sglang", "specforge/qwen3-8b-eagle3", {}, "specforge-sglang",
     replace(QWEN, own_embedding=False)),
    ("qwen3-8b-eagle3.specforge-hf", "angelslim/qwen3-8b-eagle3", {}, "angelslim", QWEN),
    ("qwen3-8b-eagle3.specforge-hf", QWEN_CONFIG, {}, NATIVE, QWEN),
    ("qwen3-8b-eagle3.speculators", QWEN_CONFIG, {}, EXPORTED, QWEN),
    ("qwen3-8b-eagle3.speculators", QWEN_CONFIG, {"speculators_model_type": "eagle3"}, "speculators", QWEN),
)  # fmt: skip


def test_every_spec_is_in_the_table() -> None:
    assert {path.stem for path in shared("specs").iterdir()} == {row[0] for row in TABLE}


@pytest.mark.parametrize(("spec", "config", "changes", "layout", "facts"), TABLE)
def test_specs_with_their_configs(
    spec: str, config: str, changes: dict[str, Any], layout: str, facts: Facts, tmp_path: Path
) -> None:
    rows = json.loads(shared("specs", f"{spec}.json").read_text())
    tensors = {name: (row["dtype"], row["shape"]) for name, row in rows.items()}
    document = json.loads(shared("configs", f"{config}.json").read_text()) | changes
    metadata = {"torchspec_version": "0.1.0"} if layout.startswith("torchspec") else {}
    drafter = read(write_sparse(tmp_path / "x", document, tensors, metadata))
    assert drafter.detection.layout == layout
    same_facts(drafter.facts, facts)
    problems = [
        *check_drafter(drafter, find_target("kimi-k2.6", None) if "kimi" in spec else None, level="config").problems
    ]
    assert [problem for problem in problems if problem.severity == "error"] == []


# ── every collected config ─────────────────────────────────────────────────────────

FOLDERS = {"torchspec": "torchspec-native", "other": "torchspec-native", "specforge": "specforge-hf",
           "angelslim": "angelslim", "eagle": "safeailab", "modelopt": "modelopt-layers", "quark": "torchspec-vllm",
           "speculators": "speculators"}  # fmt: skip
NO_DRAFTERS = {"modelopt/CR2_eagle_config", "targets/kimi-k2.5", "specforge/qwen3-8b-peagle"}


def collected() -> list[str]:
    folder = SHARED / "configs"
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.glob("*/*.json"))


def facts_of(config: dict[str, Any], layout: str) -> Facts:
    """The sizes as the config gives them; the tensors follow from these, as the trainer builds them."""
    outer, flat = config, config.get("transformer_layer_config", config)
    heads, hidden = flat["num_attention_heads"], flat["hidden_size"]
    draft_vocab = outer.get("draft_vocab_size", flat["vocab_size"])
    ids = outer.get(tiny.IDS) or (outer.get("eagle_config") or {}).get(tiny.IDS)
    before = layout == "speculators"
    if "kv_lora_rank" in flat:
        attention: Gqa | Mla = Mla(heads, *(flat[key] for key in (
            "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")))  # fmt: skip
    else:
        head_dim, kv = flat.get("head_dim") or hidden // heads, flat["num_key_value_heads"]
        attention = Gqa(heads, kv, head_dim, qk_norm=flat["model_type"] == "qwen3")
    section = flat.get("rope_parameters") or flat.get("rope_scaling") or {}
    kind = section.get("rope_type") or section.get("type") or "default"
    scaling = {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()
               if key not in ("type", "rope_type", "rope_theta")}  # fmt: skip
    theta = section.get("rope_theta") or flat.get("rope_theta", 10000.0)
    return Facts(
        attention=attention,
        layers=flat["num_hidden_layers"] if layout == "speculators" else 1,
        hidden=hidden,
        target_hidden=hidden,
        intermediate=flat["intermediate_size"],
        vocab=flat["vocab_size"],
        draft_vocab=draft_vocab,
        aux=len(ids) if ids else 3,
        boundaries=tuple(i if before else i + 1 for i in ids) if ids else AuxLayers.DEFAULT,
        rope=Rope(float(theta), "interleaved" if isinstance(attention, Mla) else "halves", kind, scaling),
        eps=flat["rms_norm_eps"],
        fusion="fc_norm" if outer.get("fc_norm") else "norm_before_fc" if outer.get("norm_before_fc") else "plain",
        feedback="post-norm" if outer.get("norm_output") and not layout.startswith("specforge") else "pre-norm",
        norm_before_residual=bool(outer.get("norm_before_residual")),
        double_norm=layout == "modelopt-layers",
        vocab_order="ascending" if draft_vocab < flat["vocab_size"] else "full",
        own_embedding=layout not in tiny.WITHOUT_EMBEDDING,
        max_positions=flat.get("max_position_embeddings"),
        window=flat["sliding_window"] if set(flat.get("layer_types", ())) == {"sliding_attention"} else None,
    )


def figures(name: str) -> tuple[int, int]:
    """Parameters with and without the embedding, as the collection's own table computes them."""
    text = shared("configs", "README.md").read_text()
    row = re.search(rf"^\| {re.escape(name)}\.json \|(.*)\|$", text, re.MULTILINE)
    assert row
    whole, rest = (int(cell.strip().replace(",", "")) for cell in row[1].split("|")[-2:])
    return whole, rest


@pytest.mark.parametrize("name", collected())
def test_every_collected_config(name: str, tmp_path: Path) -> None:
    if name in NO_DRAFTERS - {"specforge/qwen3-8b-peagle"}:
        pytest.skip("not a drafter's config")
    config = json.loads(shared("configs", f"{name}.json").read_text())
    layout = FOLDERS[name.split("/")[0]]
    facts = facts_of(config, layout)
    shapes = tiny.shapes(facts)
    uncounted = ("input_norm.weight", "q_norm.weight", "k_norm.weight")  # by that table
    size = sum(math.prod(shape) for tensor, shape in shapes.items() if not tensor.endswith(uncounted))
    if name not in NO_DRAFTERS:
        assert size == figures(name)[0 if facts.own_embedding else 1]
    tensors: dict[str, Shape] = {
        tiny.file_name(tensor, layout, facts): ("BF16", list(shape)) for tensor, shape in shapes.items()
    }
    if facts.vocab_order != "full" or layout in tiny.MAPS_ALWAYS:
        tensors["d2t"] = ("I64", [facts.draft_vocab])
        if layout not in tiny.WITHOUT_T2D:
            tensors["t2d"] = ("BOOL", [facts.vocab])
    path = write_sparse(tmp_path / "x", config, tensors, tiny.METADATA.get(layout) or {})
    if name == "specforge/qwen3-8b-peagle":
        with pytest.raises(NotADrafter, match="P-EAGLE"):
            read(path)
        return
    drafter = read(path)
    assert drafter.detection.layout == layout
    same_facts(drafter.facts, facts)
    problems = check_drafter(drafter, None, level="config").problems
    assert [problem for problem in problems if problem.severity == "error"] == []
