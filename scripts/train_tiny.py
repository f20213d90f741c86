#!/usr/bin/env python
"""Train the tiny targets and EAGLE-3 drafters that the tests run on.

Everything comes from the Python standard library's own sources and one seed:

    corpus     tokenise the sources, write tests/data/targets/*/tokenizer.json
    target     train one target (resumable)
    greedy     let a target continue many prompts greedily; keep tokens and states
    drafter    train one drafter on that text with training-time test (resumable)
    prompts    write the held-out prompts
    measure    decode speculatively on held-out prompts, write tests/data/measured.json

Run the stages in this order, each with one thread; `all` runs them one after another.
Intermediate files go to `--work` and are not committed.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from draftconv.drafter.facts import Gqa, Mla, Rope
from draftconv.reference.targets import TargetModel, TargetShape, load_target

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

PROMPT, GENERATE = 64, 64
WINDOW = 256


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
    blocks = encode(tokenizer, corpus).split(BLOCK)
    held = [block for i, block in enumerate(blocks) if i % HOLD_OUT == HOLD_OUT - 1]
    train = [block for i, block in enumerate(blocks) if i % HOLD_OUT != HOLD_OUT - 1]
    streams = {"train": torch.cat(train), "pool": encode(tokenizer, pool), "held": torch.cat(held)}
    work.mkdir(parents=True, exist_ok=True)
    torch.save(streams, work / "corpus.pt")
    say(
        f"corpus: {sum(map(len, corpus))} characters, "
        + ", ".join(f"{k} {len(v)} tokens" for k, v in streams.items())
    )


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
                torch.optim.AdamW(
                    [p for n, p in named if not is_matrix[n]], betas=(0.9, 0.95), weight_decay=0.0
                ),
                plan.table_rate,
            ),
        ]

    def step(self, number: int) -> None:
        """Apply the gradients of step `number`, then clear them."""
        warm = min(1.0, (number + 1) / 50)
        left = 1 - number / self.plan.steps
        for part, rate in self.parts:
            for group in part.param_groups:
                group["lr"] = rate * warm * left
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
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimiser.load(saved["optimiser"])
        first = saved["step"]
    started, mean = time.monotonic(), 0.0
    for number in range(first, plan.steps):
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + number)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(generator)
        torch.autograd.backward(loss)
        optimiser.step(number)
        mean += (loss.item() - mean) / (number % 100 + 1)
        if (number + 1) % 100 == 0:
            pace = (time.monotonic() - started) / (number + 1 - first)
            say(f"step {number + 1}/{plan.steps} loss {mean:.3f} {pace:.2f} s/step {report()}")
            saved = {"step": number + 1, "model": model.state_dict(), "optimiser": optimiser.state()}
            torch.save(saved, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
            mean = 0.0


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
# Command line


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def write_json(path: Path, value: object) -> None:
    """Sorted, indented, with a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    """Parse the command line and run one stage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=("corpus", "target"))
    parser.add_argument("name", nargs="?", help="which target or drafter")
    parser.add_argument(
        "--work", type=Path, default=Path(".bench/tiny"), help="intermediate files (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stage == "corpus":
        make_corpus(options.work)
    else:
        train_target(options.name, options.work)


if __name__ == "__main__":
    main()
