#!/usr/bin/env python
"""Train the tiny targets and EAGLE-3 drafters that the tests run on.

Everything comes from the Python standard library's own sources and one seed:

    corpus     tokenise the sources, write tests/data/targets/*/tokenizer.json
    target     train one target (resumable)
    greedy     let a target continue many prompts greedily; keep tokens and states
    drafter    train one drafter on that text with training-time test (resumable)
    prompts    write the held-out prompts
    measure    decode speculatively on held-out prompts, write tests/data/measured.json

Run the stages in this order; `all` runs every stage in turn. Each uses one thread, so
targets, and after them drafters, may run side by side: about 25 minutes per target, 4 per
`greedy`, 10 per drafter. Intermediate files go to `--work` and are not committed; delete
a stage's checkpoint there to train it afresh. The corpus, and so every figure, belongs to
the Python version that runs this (3.11.7 for the committed files).
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculate import Decoded, speculate
from target_model import (
    TargetModel,
    TargetSession,
    TargetShape,
    continue_greedily,
    load_target,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Mla, Rope
from draftconv.drafter.targets import find_target
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.reference.accept_length import Counts
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import load_drafter

SEED = 3
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
VOCAB = 2048
SEPARATOR = "<|endoftext|>"

# The targets partly memorise CORPUS; POOL is text they never saw, for the drafters' prompts.
CORPUS = ("argparse", "inspect", "statistics", "subprocess", "textwrap", "typing")
POOL = (
    "dataclasses", "difflib", "doctest", "enum", "functools", "ipaddress", "mailbox",
    "optparse", "pathlib", "shutil", "tarfile", "threading", "zipfile",
)  # fmt: skip
BLOCK = 256  # tokens; every HOLD_OUT-th block of the corpus is seen by nobody in training
HOLD_OUT = 16

WINDOW = 256  # tokens a target sees at once in training
PROMPT, CONTINUATION = 64, 96  # tokens per window of the drafters' training text
GREEDY_WINDOWS = {"train": 1024, "pool": 2048}  # how many continue which stream
DEPTH = 3  # drafted tokens per round, in training and in measuring
PROMPTS, LENGTH = 32, 64  # held-out prompts and generated tokens of the measurement


# ---------------------------------------------------------------------------------------
# Models


@dataclass(frozen=True, slots=True)
class Training:
    """One optimisation: steps of `batch` windows, learning rates for matrices and for the rest."""

    steps: int
    batch: int
    matrix_rate: float = 0.02
    table_rate: float = 3e-3


TARGETS: Mapping[str, TargetShape] = {
    "llama": TargetShape(
        attention=Gqa(heads=4, kv_heads=2, head_dim=64),
        layers=8,
        hidden=256,
        intermediate=512,
        vocab=VOCAB,
        rope=Rope(theta=10000.0, pairs="halves"),
        eps=1e-5,
    ),
    "mla": TargetShape(
        attention=Mla(heads=2, q_lora=128, kv_lora=512, nope=64, rope=64, v=64),
        layers=8,
        hidden=256,
        intermediate=256,
        vocab=VOCAB,
        rope=Rope(theta=10000.0, pairs="interleaved"),
        eps=1e-5,
    ),
}
TARGET_TRAINING = Training(steps=1600, batch=8)


# ---------------------------------------------------------------------------------------
# Corpus


def source_text(modules: tuple[str, ...]) -> list[str]:
    """The sources of standard-library modules, in order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return [(root / f"{name}.py").read_text(encoding="utf-8") for name in modules]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of `VOCAB` entries; id 0 separates files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": SEPARATOR,
    "eos_token": SEPARATOR,
    "pad_token": SEPARATOR,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 2048,
}


def make_corpus(work: Path) -> None:
    """Write the tokenizer and the three disjoint token streams: train, pool, held."""
    corpus, pool = source_text(CORPUS), source_text(POOL)
    tokenizer = train_tokenizer(corpus)
    for name in TARGETS:
        directory = DATA / "targets" / name
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(directory / "tokenizer.json"))
        write_json(directory / "tokenizer_config.json", TOKENIZER_CONFIG)
    blocks = torch.split(encode(tokenizer, corpus), BLOCK)
    held_out = [block for i, block in enumerate(blocks) if i % HOLD_OUT == HOLD_OUT - 1]
    train = [block for i, block in enumerate(blocks) if i % HOLD_OUT != HOLD_OUT - 1]
    streams = {"train": torch.cat(train), "pool": encode(tokenizer, pool), "held": torch.cat(held_out)}
    work.mkdir(parents=True, exist_ok=True)
    torch.save(streams, work / "corpus.pt")
    say(f"corpus: {sum(map(len, corpus))} characters, " + ", ".join(f"{k} {len(v)} tokens" for k, v in streams.items()))


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All texts as one stream of token ids, each preceded by the separator."""
    return torch.tensor([token for text in texts for token in [0, *tokenizer.encode(text).ids]])


# ---------------------------------------------------------------------------------------
# Optimisation, shared by targets and drafters


class Optimiser:
    """Muon for hidden matrices, AdamW for tables, head and norms; both decay linearly to 0."""

    def __init__(self, model: nn.Module, plan: Training, *, tables: tuple[str, ...]) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        is_matrix = {name: p.ndim == 2 and not name.startswith(tables) for name, p in named}
        self.plan = plan
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [
            (
                torch.optim.Muon([p for n, p in named if is_matrix[n]], momentum=0.95, weight_decay=0.0),
                plan.matrix_rate,
            ),
            (
                torch.optim.AdamW([p for n, p in named if not is_matrix[n]], betas=(0.9, 0.95), weight_decay=0.0),
                plan.table_rate,
            ),
        ]

    def step(self, number: int) -> None:
        """Apply the gradients of step `number`, then clear them."""
        warm = min(1.0, (number + 1) / 50)
        remaining = 1 - number / self.plan.steps
        for part, rate in self.parts:
            for group in part.param_groups:
                group["lr"] = rate * warm * remaining
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """What `load` needs to go on."""
        return [part.state_dict() for part, _ in self.parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Continue from `state`."""
        for (part, _), saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)


def optimise(
    model: nn.Module,
    plan: Training,
    loss_of: Callable[[torch.Generator], Tensor],
    checkpoint: Path,
    *,
    tables: tuple[str, ...],
    report: Callable[[], str],
) -> None:
    """Run or resume `plan`; `loss_of` draws its own batch from a generator seeded by the step."""
    optimiser = Optimiser(model, plan, tables=tables)
    first = restore(checkpoint, model, optimiser)
    started, losses = time.monotonic(), []
    for number in range(first, plan.steps):
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + number)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(generator)
        torch.autograd.backward(loss)
        optimiser.step(number)
        losses.append(loss.item())
        if (number + 1) % SAVE_EVERY == 0:
            pace = (time.monotonic() - started) / len(losses)
            recent = sum(losses[-SAVE_EVERY:]) / SAVE_EVERY
            say(f"step {number + 1}/{plan.steps} loss {recent:.3f} {pace:.2f} s/step {report()}")
            save(checkpoint, model, optimiser, number + 1)


SAVE_EVERY = 100  # steps; a killed run goes on from the last save


def save(checkpoint: Path, model: nn.Module, optimiser: Optimiser, step: int) -> None:
    """Replace the checkpoint in one move, so that a kill leaves the old or the new one."""
    saved = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state()}
    torch.save(saved, checkpoint.with_suffix(".tmp"))
    checkpoint.with_suffix(".tmp").replace(checkpoint)


def restore(checkpoint: Path, model: nn.Module, optimiser: Optimiser) -> int:
    """Load the checkpoint, if there is one; the number of steps done."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimiser.load(saved["optimiser"])
    return int(saved["step"])


def windows(stream: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """`count` random windows of `length` tokens: [count, length]."""
    start = torch.randint(0, len(stream) - length, (count,), generator=generator)
    return stream[start[:, None] + torch.arange(length)]


def initialise(model: nn.Module) -> None:
    """Small normal weights from the seed; norms stay at one."""
    generator = torch.Generator().manual_seed(SEED)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02, generator=generator)


# ---------------------------------------------------------------------------------------
# Targets


def train_target(name: str, work: Path) -> None:
    """Next-token training on the corpus; writes a transformers-style directory in BF16."""
    streams = torch.load(work / "corpus.pt")
    model = TargetModel(TARGETS[name])
    initialise(model)

    def loss_of(generator: torch.Generator) -> Tensor:
        return next_token_loss(model, windows(streams["train"], TARGET_TRAINING.batch, WINDOW + 1, generator))

    def held_out() -> str:
        rows = streams["held"][: 8 * BLOCK].view(8, BLOCK)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return f"held-out {next_token_loss(model, rows).item():.3f}"

    optimise(
        model, TARGET_TRAINING, loss_of, work / f"target-{name}.pt",
        tables=("model.embed_tokens", "lm_head"), report=held_out,
    )  # fmt: skip
    directory = DATA / "targets" / name
    write_json(directory / "config.json", target_config(TARGETS[name]))
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def next_token_loss(model: TargetModel, rows: Tensor) -> Tensor:
    """Mean cross entropy of each row's tokens after the first."""
    logits = model(rows[:, :-1]).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def target_config(shape: TargetShape) -> dict[str, Any]:
    """config.json as transformers and the engines read it, without null keys."""
    common = {
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 2048,
        "num_attention_heads": shape.attention.heads,
        "num_hidden_layers": shape.layers,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope.theta,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
    }
    if isinstance(shape.attention, Gqa):
        return common | {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "head_dim": shape.attention.head_dim,
            "mlp_bias": False,
            "model_type": "llama",
            "num_key_value_heads": shape.attention.kv_heads,
        }
    return common | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "first_k_dense_replace": shape.layers,
        "kv_lora_rank": shape.attention.kv_lora,
        "model_type": "deepseek_v3",
        "num_key_value_heads": shape.attention.heads,
        "q_lora_rank": shape.attention.q_lora,
        "qk_nope_head_dim": shape.attention.nope,
        "qk_rope_head_dim": shape.attention.rope,
        "v_head_dim": shape.attention.v,
    }


# ---------------------------------------------------------------------------------------
# Drafters


@dataclass(frozen=True, slots=True)
class Recipe:
    """One drafter: what it computes, and how its producer spells it on disk.

    Attributes:
        prefix: what the producer calls `layers.0.`.
        metadata: the safetensors metadata it writes.
        config: the config.json keys besides the sizes.
    """

    target: str
    facts: Facts
    prefix: str
    metadata: Mapping[str, str]
    config: Mapping[str, Any]


BOUNDARIES = (2, 4, 5)  # every engine's default for a target of 8 layers
TORCHSPEC = {"torchspec_version": "0.1.0"}
LLAMA_ROPE = Rope(theta=10000.0, pairs="halves")


def yarn(beta_fast: float) -> Mapping[str, float]:
    """Kimi's scaling; TorchSpec trains with beta_fast 1, the target itself has 32."""
    return {
        "beta_fast": beta_fast,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    }


def llama_facts(**changes: Any) -> Facts:
    """A one-layer GQA drafter for the Llama target."""
    base: dict[str, Any] = {
        "attention": Gqa(heads=4, kv_heads=2, head_dim=64),
        "layers": 1,
        "hidden": 256,
        "target_hidden": 256,
        "intermediate": 384,
        "vocab": VOCAB,
        "draft_vocab": VOCAB,
        "aux": 3,
        "boundaries": BOUNDARIES,
        "rope": LLAMA_ROPE,
        "eps": 1e-6,
        "max_positions": 2048,
    }
    return Facts(**base | changes)


def mla_facts(beta_fast: float, **changes: Any) -> Facts:
    """A one-layer Kimi-style drafter for the MLA target."""
    shape = Mla(heads=2, q_lora=128, kv_lora=512, nope=64, rope=64, v=64)
    rope = Rope(theta=50000.0, pairs="interleaved", kind="yarn", scaling=yarn(beta_fast))
    sizes = {"attention": shape, "intermediate": 256, "rope": rope, "eps": 1e-5, "max_positions": None}
    return llama_facts(**sizes | changes)


def kimi_config(beta_fast: float, layer_ids: Sequence[int]) -> dict[str, Any]:
    """The keys of TorchSpec's Kimi MLA configuration."""
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(layer_ids),
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        },
        "model_type": "kimi_k2",
        "rope_scaling": {**yarn(beta_fast), "type": "yarn"},
    }


LLAMA_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_cache": True,
}
EAGLE_31: Mapping[str, Any] = {"fc_norm": True, "norm_output": True, "num_aux_hidden_states": 3}
SAYS_TORCHSPEC: Mapping[str, Any] = {"_torchspec_version": "0.1.0"}

RECIPES: Mapping[str, Recipe] = {
    # TorchSpec, native names; no layer ids, so the default triple is implied.
    "llama-eagle3": Recipe("llama", llama_facts(), "midlayer.", TORCHSPEC, {**LLAMA_CONFIG, **SAYS_TORCHSPEC}),
    # SpecForge's SGLang export: no embedding, both vocabulary maps.
    "llama-eagle3-reduced": Recipe(
        "llama",
        llama_facts(draft_vocab=1024, vocab_order="ascending", own_embedding=False),
        "midlayer.",
        {"format": "pt"},
        LLAMA_CONFIG,
    ),
    "llama-eagle3.1": Recipe(
        "llama",
        llama_facts(fusion="fc_norm", feedback="post-norm"),
        "midlayer.",
        TORCHSPEC,
        {**LLAMA_CONFIG, **EAGLE_31, **SAYS_TORCHSPEC},
    ),
    # TorchSpec for Kimi: ids name the layer whose *output* is captured (boundary - 1).
    "mla-eagle3": Recipe(
        "mla", mla_facts(1.0), "midlayer.", TORCHSPEC, {**kimi_config(1.0, (1, 3, 4)), **SAYS_TORCHSPEC}
    ),
    # TorchSpec's vLLM export for Kimi: ids are boundaries.
    "mla-eagle3.1": Recipe(
        "mla",
        mla_facts(32.0, fusion="fc_norm", feedback="post-norm", own_embedding=False),
        "layers.0.",
        TORCHSPEC,
        {**kimi_config(32.0, BOUNDARIES), **EAGLE_31, **SAYS_TORCHSPEC},
    ),
}
DRAFTER_TRAINING = Training(steps=1000, batch=16)


def make_greedy(name: str, work: Path) -> None:
    """Let a target continue prompts greedily; keep tokens, states and the normed last state."""
    streams = torch.load(work / "corpus.pt")
    model = load_target(DATA / "targets" / name)
    generator = torch.Generator().manual_seed(SEED)
    prompts = torch.cat([windows(streams[part], count, PROMPT, generator) for part, count in GREEDY_WINDOWS.items()])
    parts: dict[str, list[Tensor]] = {"tokens": [], "states": [], "final": []}
    for prompt in torch.split(prompts, 256):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            tokens = torch.cat((prompt, continue_greedily(model, prompt, CONTINUATION)), dim=1)
            output = model(tokens, boundaries=BOUNDARIES)
        parts["tokens"].append(tokens)
        parts["states"].append(output.states.to(torch.bfloat16))
        parts["final"].append(output.final.to(torch.bfloat16))
    joined = {key: torch.cat(rows) for key, rows in parts.items()}
    torch.save(joined, work / f"greedy-{name}.pt")
    share = distinct_fourgrams(joined["tokens"][:, PROMPT:].tolist())
    say(f"greedy {name}: {len(prompts)} windows, distinct 4-grams {share:.3f}")


def distinct_fourgrams(texts: Sequence[Sequence[int]]) -> float:
    """Share of distinct 4-grams among all 4-grams of all texts: near 0 for loops."""
    grams = [tuple(text[i : i + 4]) for text in texts for i in range(len(text) - 3)]
    return len(set(grams)) / len(grams)


def train_drafter(name: str, work: Path) -> None:
    """Training-time test on the target's greedy text; writes the producer's directory in BF16."""
    recipe = RECIPES[name]
    target = load_target(DATA / "targets" / recipe.target)
    data = torch.load(work / f"greedy-{recipe.target}.pt", mmap=True)
    model = new_drafter(recipe.facts, target, data["tokens"])
    head = target.lm_head.weight[kept_tokens(model)]
    agreements: list[float] = []

    def loss_of(generator: torch.Generator) -> Tensor:
        chosen = torch.randint(0, len(data["tokens"]), (DRAFTER_TRAINING.batch,), generator=generator)
        loss, agreement = unrolled_loss(model, head, *(data[key][chosen] for key in ("tokens", "states", "final")))
        agreements.append(agreement)
        return loss

    def report() -> str:
        recent = agreements[-100:]
        return f"first-token agreement {sum(recent) / len(recent):.3f}"

    optimise(
        model, DRAFTER_TRAINING, loss_of, work / f"drafter-{name}.pt",
        tables=("embed_tokens", "lm_head"), report=report,
    )  # fmt: skip
    write_drafter(DATA / "drafters" / name, recipe, model)


def new_drafter(facts: Facts, target: TargetModel, text: Tensor) -> DrafterModel:
    """A drafter that starts from the target's tables; its embedding stays frozen."""
    model = DrafterModel(facts)
    initialise(model)
    if facts.reduced_vocab:
        frequent = text.flatten().bincount(minlength=facts.vocab).argsort(descending=True, stable=True)
        draft_tokens = frequent[: facts.draft_vocab].sort().values
        model.d2t.copy_(draft_tokens - torch.arange(facts.draft_vocab))
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        model.lm_head.weight.copy_(target.lm_head.weight[kept_tokens(model)])
        model.norm.weight.copy_(target.model.norm.weight)
    model.embed_tokens.requires_grad_(False)
    return model


def kept_tokens(model: DrafterModel) -> Tensor:
    """The target ids of the drafter's head rows: [Vd]."""
    return model.to_target_ids(torch.arange(model.facts.draft_vocab))


def unrolled_loss(
    model: DrafterModel, head_VH: Tensor, token_BT: Tensor, states_BTAW: Tensor, final_BTH: Tensor
) -> tuple[Tensor, float]:
    """Soft-target cross entropy over DEPTH unrolled steps, and step 0's argmax agreement.

    Row i at step k reads token i+1+k and is judged against the target's distribution after
    it. All rows are context; only those that predict the target's own text are judged.
    """
    rows = token_BT.shape[1] - DEPTH
    judged = slice(PROMPT - 1, None)
    cache = model.cache()
    state = model.fuse(states_BTAW[:, :rows].float())
    z = model.step(state, token_BT[:, 1 : 1 + rows], cache)[:, judged]
    loss, agreement = judge(model, z, final_BTH[:, 1 : 1 + rows][:, judged], head_VH)
    for k in range(1, DEPTH):
        ahead = token_BT[:, 1 + k : 1 + k + rows][:, judged]
        z = model.step(model.feedback(z), ahead, cache, k)
        loss = loss + judge(model, z, final_BTH[:, 1 + k : 1 + k + rows][:, judged], head_VH)[0]
    return loss / DEPTH, agreement


def judge(model: DrafterModel, z_BTH: Tensor, final_BTH: Tensor, head_VH: Tensor) -> tuple[Tensor, float]:
    """Cross entropy against the target's distribution over the head's tokens, and argmax agreement."""
    logits = model.logits(z_BTH).flatten(0, 1).float()
    target_logits = functional.linear(final_BTH.float(), head_VH).flatten(0, 1).float()
    agreement = (logits.argmax(-1) == target_logits.argmax(-1)).float().mean().item()
    return functional.cross_entropy(logits, target_logits.softmax(-1)), agreement


def write_drafter(directory: Path, recipe: Recipe, model: DrafterModel) -> None:
    """Spell the drafter as its producer does."""
    facts = recipe.facts
    tensors = {
        name.replace("layers.0.", recipe.prefix): t.to(torch.bfloat16) if t.is_floating_point() else t
        for name, t in model.state_dict().items()
        if facts.own_embedding or name != "embed_tokens.weight"
    }
    if facts.reduced_vocab:
        tensors["t2d"] = torch.zeros(facts.vocab, dtype=torch.bool)
        tensors["t2d"][kept_tokens(model)] = True
    directory.mkdir(parents=True, exist_ok=True)
    contiguous = {name: t.contiguous() for name, t in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata=dict(recipe.metadata))
    write_json(directory / "config.json", {**drafter_sizes(facts), **recipe.config})


def drafter_sizes(facts: Facts) -> dict[str, Any]:
    """The config.json keys that follow from the facts."""
    shape = facts.attention
    common = {
        "bos_token_id": 0,
        "draft_vocab_size": facts.draft_vocab,
        "eos_token_id": 0,
        "hidden_act": facts.activation,
        "hidden_size": facts.hidden,
        "intermediate_size": facts.intermediate,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": facts.layers,
        "rms_norm_eps": facts.eps,
        "rope_theta": facts.rope.theta,
        "torch_dtype": "bfloat16",
        "vocab_size": facts.vocab,
    }
    if isinstance(shape, Gqa):
        return common | {"head_dim": shape.head_dim, "num_key_value_heads": shape.kv_heads}
    return common | {
        "kv_lora_rank": shape.kv_lora,
        "num_key_value_heads": shape.heads,
        "pad_token_id": 0,
        "q_lora_rank": shape.q_lora,
        "qk_nope_head_dim": shape.nope,
        "qk_rope_head_dim": shape.rope,
        "v_head_dim": shape.v,
    }


# ---------------------------------------------------------------------------------------
# Measurement


def make_prompts(work: Path) -> None:
    """Write PROMPTS held-out prompts, each from the middle of a block that nobody trained on."""
    blocks = torch.load(work / "corpus.pt")["held"].view(-1, BLOCK)
    rows = blocks[:PROMPTS, BLOCK // 4 : BLOCK // 4 + PROMPT].tolist()
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    (DATA / "prompts.json").write_text(f"[\n{lines}\n]\n")


def read_prompts() -> list[Tensor]:
    """The committed prompts as int64 token ids."""
    return [torch.tensor(row) for row in json.loads((DATA / "prompts.json").read_text())]


def decode(name: str, prompts: Sequence[Tensor], **misread: Any) -> list[Decoded]:
    """Speculative decoding of a committed drafter with its committed target, in float32.

    Args:
        misread: facts to take for other than they are (negative controls).
    """
    directory = DATA / "targets" / RECIPES[name].target
    described, target = find_target(str(directory), None), load_target(directory)
    opened = read_drafter(open_checkpoint(DATA / "drafters" / name), ReadOptions(target=described))
    facts = replace(opened.facts, **misread)
    if isinstance(facts.boundaries, AuxLayers):
        raise SystemExit(f"{name}: the captured layers cannot be told from its files")
    drafter = load_drafter(replace(opened, facts=facts), described)
    return [
        speculate(drafter, TargetSession(target, facts.boundaries), prompt, depth=DEPTH, length=LENGTH)
        for prompt in prompts
    ]


def measure() -> None:
    """Accept length and text quality of every fixture on the held-out prompts."""
    prompts = read_prompts()
    drafters: dict[str, Any] = {}
    for name, recipe in RECIPES.items():
        requests = decode(name, prompts)
        pooled = Counts.pooled(request.counts for request in requests)
        drafters[name] = {
            "accept_length": round(pooled.accept_length, 4),
            "accepted": [request.counts.accepted for request in requests],
            "distinct_fourgrams": round(distinct_fourgrams([request.tokens for request in requests]), 4),
            "histogram": list(pooled.histogram),
            "steps": [request.counts.steps for request in requests],
            "target": recipe.target,
        }
        say(f"{name}: {drafters[name]['accept_length']} {drafters[name]['distinct_fourgrams']}")
    settings = {"depth": DEPTH, "dtype": "float32", "length": LENGTH, "prompts": len(prompts)}
    write_json(DATA / "measured.json", {"drafters": drafters, "settings": settings})


# ---------------------------------------------------------------------------------------
# Command line


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def write_json(path: Path, value: object) -> None:
    """Sorted, indented, with a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    """Parse the command line and run one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("name", nargs="?", help=f"target, greedy: {', '.join(TARGETS)}; drafter: {', '.join(RECIPES)}")
    parser.add_argument(
        "--work", type=Path, default=Path(".bench/tiny"), help="intermediate files (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.stage, options.name, options.work, parser)


STAGES = ("corpus", "target", "greedy", "drafter", "prompts", "measure", "all")


def run(stage: str, name: str | None, work: Path, parser: argparse.ArgumentParser) -> None:
    """Run one stage, or all of them in order."""
    named: Mapping[str, tuple[Callable[[str, Path], None], Mapping[str, Any]]] = {
        "target": (train_target, TARGETS),
        "greedy": (make_greedy, TARGETS),
        "drafter": (train_drafter, RECIPES),
    }
    if stage == "all":
        for part in STAGES[:-1]:
            for member in named[part][1] if part in named else (None,):
                run(part, member, work, parser)
    elif stage in named:
        function, known = named[stage]
        if name is None or name not in known:
            parser.error(f"stage {stage} needs one of: {', '.join(known)}")
        function(name, work)
    elif stage == "measure":
        measure()
    else:
        (make_corpus if stage == "corpus" else make_prompts)(work)


if __name__ == "__main__":
    main()
