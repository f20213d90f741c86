"""Peak memory of `draftconv trace` and `draftconv accept` by the length of a text, for scripts/bench.

Target and drafter hold random values: what is kept in memory does not depend on them. Their states are wide and their
caches narrow, so that a text that is held as a whole would show.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from measuring import SCRIPTS, Row, Section, machine, progress, remove, run

TITLE = "Memory by context"

LAYERS, HIDDEN, VOCAB, MLP = 8, 1024, 512, 512
HEADS, KV_HEADS, HEAD = 4, 1, 64
BOUNDARIES, FLOAT = 3, 4
TEXT, DEPTH = 64, 8
"""Counted tokens, and those that are kept beyond them."""

CACHE_ROW = 2 * KV_HEADS * HEAD * FLOAT
"""Bytes of a position in one layer's key/value cache."""
STATES_ROW = BOUNDARIES * HIDDEN * FLOAT
SLACK = 96
"""MB by which a longer text may take more beside its cache: masks and scores that the one of `FULL` does not fill."""
FULL = 1
"""Which of the lengths fills a block of rows, and is what longer ones are compared with."""

IMPORTS: Mapping[str, str] = {
    "trace": "import draftconv.api.trace, draftconv.traces.transformers_target as t; t.transformers().LlamaForCausalLM",
    "accept": "import draftconv.api.accept, draftconv.replay.accept",
}
"""What a command imports before it looks at its input."""


WHOLE = (1024, 4096, 16384, 32768)
QUICK = (128, 256)
"""Positions of the texts, the shortest first: prompt, text and what is kept beyond it."""


def measure(options: argparse.Namespace, program: Path) -> Section:
    """Make a target and a drafter, trace and replay one text of each length, clean up.

    Raises:
        BenchError: a program failed.
    """
    lengths = QUICK if options.quick else WHOLE
    work: Path = options.dir / "memory"
    remove(work)
    work.mkdir(parents=True)
    try:
        rows = tuple(_rows(program, work, lengths))
    finally:
        remove(work)
    return Section(TITLE, _about(lengths), rows)


def _rows(program: Path, work: Path, lengths: Sequence[int]) -> Iterator[Row]:
    target, drafter = (_made(work, name, spec) for name, spec in (("target", _target()), ("drafter", _drafter())))
    peaks: dict[str, list[float]] = {"trace": [], "accept": []}
    imports = {
        name: run([sys.executable, "-c", code], _environment()).peak_bytes / 1e6 for name, code in IMPORTS.items()
    }
    for positions in lengths:
        progress(f"memory at {positions} positions")
        prompts, trace = work / "prompts.jsonl", work / f"trace-{positions}"
        tokens = [(7 * i * i + 3 * i) % VOCAB for i in range(positions - TEXT - DEPTH)]
        prompts.write_text(json.dumps({"token_ids": tokens}) + "\n")
        traced = run(
            [program, "trace", "--target", target, "--prompts", prompts, "--out", trace, "--drafter", drafter,
             "--max-tokens", str(TEXT), "-k", str(DEPTH), "--ignore-eos", "--dtype", "float32", "--device", "cpu"],
            _environment(),
        )  # fmt: skip
        accepted = run([program, "accept", drafter, "--trace", trace], _environment())
        remove(trace)
        for name, done in (("trace", traced), ("accept", accepted)):
            peaks[name].append(done.peak_bytes / 1e6 - imports[name])
    for name, layers in (("trace", LAYERS), ("accept", 1)):
        for positions, peak in zip(lengths, peaks[name], strict=True):
            yield _row(name, layers, positions, peak, lengths[FULL], peaks[name][FULL])


def _row(name: str, layers: int, positions: int, peak: float, shorter: int, least: float) -> Row:
    """A command on a text, beside the same on a shorter one."""
    what, grown = f"`draftconv {name}`, {positions:,} positions", positions - shorter
    if grown <= 0:
        return Row(what, f"{peak:.0f} MB over its imports")
    cache, states, more = grown * layers * CACHE_ROW / 1e6, grown * STATES_ROW / 1e6, peak - least
    return Row(
        what,
        f"{peak:.0f} MB over its imports; {more:.0f} MB more than at {shorter:,}: the cache takes {cache:.0f} MB "
        f"more, the states on disk {states:.0f} MB",
        f"at most the cache and {SLACK} MB",
        more <= cache + SLACK,
    )


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


# ── what is run ────────────────────────────────────────────────────────────────────


def _made(work: Path, name: str, spec: Mapping[str, object]) -> Path:
    """A checkpoint of random values, made by another process: it would count as memory of every later one."""
    file, out = work / f"{name}.json", work / name
    file.write_text(json.dumps(spec))
    run([sys.executable, SCRIPTS / "make_synthetic.py", file, out])
    return out


def _target() -> dict[str, object]:
    shapes = {"model.embed_tokens": [VOCAB, HIDDEN], "model.norm": [HIDDEN], "lm_head": [VOCAB, HIDDEN]}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer(HIDDEN).items()}
    return _spec({**_config(LAYERS), "architectures": ["LlamaForCausalLM"]}, shapes)


def _drafter() -> dict[str, object]:
    shapes = {"embed_tokens": [VOCAB, HIDDEN], "norm": [HIDDEN], "lm_head": [VOCAB, HIDDEN]}
    shapes |= {"fc": [HIDDEN, BOUNDARIES * HIDDEN], "midlayer.hidden_norm": [HIDDEN]}
    shapes |= {f"midlayer.{name}": shape for name, shape in _layer(2 * HIDDEN).items()}
    config = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCAB, "_torchspec_version": "0.1.0"}
    return _spec({**_config(1), **config}, shapes)


def _layer(width: int) -> dict[str, list[int]]:
    """The weights of a decoder layer whose attention reads rows of `width`."""
    return {
        "input_layernorm": [HIDDEN],
        "post_attention_layernorm": [HIDDEN],
        "self_attn.q_proj": [HEADS * HEAD, width],
        "self_attn.k_proj": [KV_HEADS * HEAD, width],
        "self_attn.v_proj": [KV_HEADS * HEAD, width],
        "self_attn.o_proj": [HIDDEN, HEADS * HEAD],
        "mlp.gate_proj": [MLP, HIDDEN],
        "mlp.up_proj": [MLP, HIDDEN],
        "mlp.down_proj": [HIDDEN, MLP],
    }


def _config(layers: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1 << 17,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "vocab_size": VOCAB,
    }


def _spec(config: Mapping[str, object], shapes: Mapping[str, Sequence[int]]) -> dict[str, object]:
    tensors = {f"{name}.weight": {"dtype": "BF16", "shape": shape} for name, shape in shapes.items()}
    return {"about": "random values, for scripts/bench", "config": config, "tensors": tensors}


# ── report ─────────────────────────────────────────────────────────────────────────


def _about(lengths: Sequence[int]) -> str:
    return (
        f"One text of each length, {TEXT} tokens of it generated and {DEPTH} more kept, float32, one CPU thread, whole "
        f"processes. The target has {LAYERS} layers of width {HIDDEN}, {BOUNDARIES} of its boundaries are kept; its "
        f"weights and the drafter's are random. A position takes {STATES_ROW / 1e3:.1f} kB of states, "
        f"{LAYERS * CACHE_ROW / 1e3:.1f} kB of the target's key/value cache and {CACHE_ROW / 1e3:.1f} kB of the "
        "drafter's. What a command imports is measured in a process of its own and taken off; weights are not. States "
        f"of {lengths[-1]:,} positions are on disk and pass through memory in blocks; caches have to be "
        f"there as a whole. A text of {lengths[FULL]:,} fills the blocks, so longer ones are compared with it.\n\n"
        f"Machine: {machine()}."
    )
