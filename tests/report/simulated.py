"""Reports of a simulated run: drafters whose true loss is known.

Each request has an ease, each position a difficulty that its depths share, and the accept
rates at the three depths centre on those of a drafter of an 8B target (.73, .71, .68). The
candidate loses a correct guess with probability `loss` and gains a wrong one with `gain`.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence

from draftconv.reference.accept_length import Counts
from draftconv.replay.tally import LossSum
from draftconv.report import (
    ArmInfo,
    Attribution,
    Comparison,
    Control,
    Diagnostics,
    Divergence,
    EveryPosition,
    Losses,
    Place,
    Report,
    RunInfo,
)
from draftconv.report.contexts import by_context
from draftconv.report.records import Record
from draftconv.report.statistics import Discordant, discordance
from draftconv.report.verdict import Gate, How

RATES = (0.73, 0.71, 0.68)
WORDS = ("the", "a", "of", "to", "in", "is", "that", "for", "with", "if", "else", "return", "self", "def")
MARGIN = Gate(0.02)


def decode(tokens: Sequence[int]) -> str:
    return "".join(" " + WORDS[number % len(WORDS)] if number % 17 else "\n" for number in tokens)


def _correct(ease: float, rng: random.Random) -> list[bool]:
    difficulty = rng.gauss(0, 1)
    return [rng.random() < 1 / (1 + math.exp(-(math.log(r / (1 - r)) * 1.15 + ease + difficulty))) for r in RATES]


def _request(tokens: int, loss: float, gain: float, rng: random.Random) -> list[tuple[list[bool], list[bool]]]:
    """What both arms get right at each depth, from every position."""
    ease = rng.gauss(0, 0.45)
    rows = []
    for _ in range(tokens):
        reference = _correct(ease, rng)
        rows.append((reference, [rng.random() >= loss if right else rng.random() < gain for right in reference]))
    return rows


def _accepted(right: Sequence[bool]) -> int:
    return next((j for j, hit in enumerate(right) if not hit), len(right))


def _walk(accepted: Sequence[int], known: int) -> Iterator[tuple[int, int, float]]:
    """Tokens known when a step starts, and what it accepts."""
    position = 0
    while position < len(accepted):
        yield known + position, accepted[position], 1
        position += accepted[position] + 1


def summed(places: Iterable[Place], keep: int = 12) -> Losses:
    sums = LossSum("positions", keep)
    for place in places:
        sums.add(place)
    return sums.losses()


def make(
    *,
    categories: Sequence[str] = ("writing", "reasoning", "coding", "maths"),
    prompts: int = 80,
    tokens: int = 256,
    loss: float = 0.0,
    gain: float = 0.0,
    gate: Gate = MARGIN,
    how: How = "replay",
    losses: bool = True,
    details: bool = True,
    names: Sequence[str] = ("bf16", "int4-g128"),
    seed: int = 7,
    first: int = 0,
) -> Report:
    """A report of one reference and a candidate for each further name; each further one loses twice as much.

    Args:
        first: number of the first prompt.
    """
    rng = random.Random(seed)
    records: list[Record] = []
    places: dict[str, list[Place]] = {name: [] for name in names[1:]}
    discordants: dict[str, list[Discordant]] = {name: [] for name in names[1:]}
    for n in range(first, first + prompts):
        id, category = f"{n:03d}", categories[n % len(categories)]
        state = rng.getstate()
        for k, name in enumerate(names[1:]):
            rng.setstate(state)
            rows = _request(tokens, loss * 2**k, gain, rng)
            accepted = [[_accepted(row[arm]) for row in rows] for arm in (0, 1)]
            text = hashlib.sha256(id.encode()).hexdigest()
            for arm, values in zip((names[0], name), accepted, strict=True):
                if k and arm == names[0]:
                    continue
                steps = list(_walk(values, 40 + n))
                counts = Counts.of((taken for _, taken, _ in steps), 3)
                contexts = by_context(steps, 3)
                records.append(Record(arm, f"{id}/0", id, category, 40 + n, tokens, counts, text, contexts))
            firsts = [(row[0][0], row[1][0]) for row in rows]
            discordants[name].append(
                Discordant(id, category, tokens, firsts.count((True, False)), firsts.count((False, True)))
            )
            for position, (a, b) in enumerate(zip(*accepted, strict=True)):
                wrote = tuple((position * 7 + n + j) % 400 for j in range(3))
                one, other = ((*wrote[:m], *((wrote[m] + 1,) if m < 3 else ())) for m in (a, b))
                context = tuple((position * 7 + n - j) % 400 for j in range(48, 0, -1))
                places[name].append(Place(f"{id}/0", 40 + n + position, context, wrote, one, other, a, b))

    def diagnosed(name: str) -> Diagnostics:
        if not details:
            return Diagnostics()
        found = discordance(discordants[name])
        return Diagnostics(
            1 - found.lost.value - found.gained.value,
            found,
            tuple(EveryPosition(j, 0.7 ** (j - 1) * 0.72, 0.7 ** (j - 1) * 0.71) for j in (1, 2, 3)),
            Divergence(found.positions, 0.0123, 0.0011, 0.0304, 0.1511, 1.402),
            (Attribution("midlayer.mlp.down_proj", 2.581, -0.0072), Attribution("fc", 2.592, -0.003)),
        )

    comparisons = tuple(
        Comparison.of(
            records,
            names[0],
            name,
            gate,
            how=how,
            losses=summed(places[name]) if losses else None,
            diagnostics=diagnosed(name),
        )
        for name in names[1:]
    )
    facts = {"dtype": "bfloat16", "semantics": "vllm: the target's embedding wins"}
    return Report(
        RunInfo(
            how,
            "meta-llama/Llama-3.1-8B-Instruct@0e9e39f",
            "mt-bench (80 prompts, 256 tokens)",
            "4f9c" * 16,
            3,
            "0.1.0",
            ("draftconv", "parity", *names, "--trace", "trace", "--margin", "0.02", "--report", "out"),
            {"device": "cpu", "dtype": "float32", "tokens": str(tokens), "sampling": "greedy"},
            "sha256:" + "8d1e" * 16,
        ),
        tuple(
            ArmInfo(
                name,
                f"drafters/{name}@main",
                "vllm",
                "INT4 weights per group of 128, simulated" if k else "none",
                "sha256:" + f"{k}b7c" * 16,
                facts,
            )
            for k, name in enumerate(names)
        ),
        tuple(records),
        comparisons,
        (
            Control("boundaries shifted", "the states of layer n + 1 in place of layer n", 2.541, True, "fail"),
            Control("d2t zeroed", "draft ids read as target ids", None, None, None, "the vocabulary is not reduced"),
        )
        if details
        else (),
    )
