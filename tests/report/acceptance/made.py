"""Reports of single drafters, of invented records."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.report.model import ArmInfo, RunInfo

ABOUT = RunInfo(
    "replay",
    "meta-llama/Llama-3.1-8B-Instruct@0e9e39f",
    "mt-bench (80 prompts, 256 tokens)",
    "4f9c" * 16,
    3,
    "0.1.0",
    ("draftconv", "accept", "drafter", "--trace", "trace", "--report", "out"),
    {"requests": "40", "replay": "float32 on cpu", "tables": "as vllm takes them", "torch": "2.13.0"},
    "8d1e" * 8,
)
ONE = AcceptanceRecord("drafter", "a/0", "a", "prose", "en", 3, 8, (2, 0, 3, 1, 0, 4, 0), ((3, 7), (8, 9)), "ab" * 32)
"""Seven roots of a drafter that was replayed with K = 4."""


def arm(name: str = "drafter", **changes: object) -> ArmInfo:
    made = ArmInfo(name, f"{name}@main", "vllm", "none", "0b7c" * 16, {"dtype": "bfloat16"})
    return replace(made, **changes)  # type: ignore[arg-type]


def record(id: str, accepted: Sequence[int], **changes: object) -> AcceptanceRecord:
    """One of a prompt of its own, with the text that its roots need."""
    text = hashlib.sha256(id.encode()).hexdigest()
    made = AcceptanceRecord("drafter", id, id, "prose", "", 10, len(accepted) + 1, tuple(accepted), (), text)
    return replace(made, **changes)  # type: ignore[arg-type]


def records(
    name: str = "drafter",
    *,
    prompts: int = 40,
    roots: int = 48,
    longest: int = 4,
    right: float = 0.7,
    categories: Sequence[str] = ("writing", "coding"),
    languages: Sequence[str] = ("en", "de"),
    reduced: bool = False,
    seed: int = 3,
) -> Iterator[AcceptanceRecord]:
    """Each drafted token is right with the same chance; a reduced drafter lacks about every eighth token."""
    draw = random.Random(f"{seed} {name}")
    for n in range(prompts):
        missing = dict.fromkeys(i for i in range(roots + longest - 1) if reduced and (i * 7 + n) % 8 == 0)
        accepted = []
        for root in range(roots):
            chances = (root + j not in missing and draw.random() < right for j in range(longest))
            accepted.append(next((j for j, hit in enumerate(chances) if not hit), longest))
        yield record(
            f"{n:03d}",
            accepted,
            arm=name,
            category=categories[n % len(categories)],
            language=languages[n // 2 % len(languages)],
            prompt=10 + 9 * n,
            unmapped=tuple((i, (i * n) % 90) for i in missing),
        )


def report(
    *names: str, min_al: float | None = None, mapped: Mapping[str, int] | None = None, **how: object
) -> AcceptanceReport:
    """Of drafters with these names; those in `mapped` have a reduced vocabulary."""
    names, reduced = names or ("drafter",), mapped or {}
    made = [one for name in names for one in records(name, reduced=name in reduced, **how)]  # type: ignore[arg-type]
    return AcceptanceReport.of(ABOUT, 4, min_al, [arm(name) for name in names], reduced, made)


def renamed(name: str) -> AcceptanceReport:
    """Two drafters, with that text wherever a stranger may have put one."""
    names = (name, f"{name} (2)")
    made = report(*names, min_al=2.0, mapped=dict.fromkeys(names, 30), categories=(name, "b"), languages=(name, "de"))
    about = replace(ABOUT, target=name, prompts=name, command=("draftconv", name), settings={name: name})
    arms = [replace(one, source=name, layout=name, quantization=name, facts={name: name}) for one in made.arms]
    rows = [replace(one, id=name + one.id, cluster=name + one.cluster) for one in made.records]
    return AcceptanceReport.of(about, 4, 2.0, arms, made.mapped, rows)
