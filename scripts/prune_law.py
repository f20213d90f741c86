"""Hold the loss that `draftconv prune` predicts against the replayed losses of the trained fixtures.

    scripts/prune-law            print the tables
    scripts/prune-law --write    put them into docs/prune.md, and the figure into docs/images/prune-law.svg

Each target writes 64 tokens behind excerpts of the running Python's standard library (modules that neither fixtures nor
targets were trained on). Kept sets of every size are chosen from little and much text of the same kind (other modules)
and of another one (the prose of pydoc's topics), and every fixture is replayed with each of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from measure_recipes import EXCERPT, MODULES, table
from train_tiny import CORPUS, DATA, POOL

from draftconv.api.trace import trace
from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.pruning.choice import WeightedCounts, choose, scores
from draftconv.conversion.pruning.coverage import missing_share
from draftconv.conversion.pruning.law import LEAST, MOST, predicted_loss
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.replay.drafters import target_of
from draftconv.replay.lm_head import Head
from draftconv.replay.pruned import accepted_tokens, compared, pruned_arm, whole_arm
from draftconv.replay.replay import Arm
from draftconv.traces.chat_template import load_tokenizer
from draftconv.traces.trace import Trace, open_trace

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURE = ROOT / "docs/prune.md", ROOT / "docs/images/prune-law.svg"

PER_MODULE, LENGTH, DEPTH = 6, 64, 3
"""Excerpts of each module, counted tokens behind each, K."""
AMOUNTS = (4_000, 400_000)
"""Tokens of text that choose, at most."""
SHARES = (0.125, 0.25, 0.5, 0.75)
"""Of the rows that a drafter has."""


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens that choose, and those of the same kind that do not."""

    kind: str
    chosen: Sequence[int]
    unseen: Sequence[int]


@dataclass(frozen=True, slots=True)
class Point:
    """One kept set of one drafter: what it lacks of the accepted tokens, and what it loses."""

    drafter: str
    kind: str
    tokens: int
    rows: int
    accept_length: float
    missing: float
    loss: float
    covered: float

    @property
    def brought(self) -> float:
        """(1 - 1/AL) m: what the law multiplies."""
        return predicted_loss(self.missing, self.accept_length).least

    @property
    def factor(self) -> float:
        """The factor that would have been right."""
        return self.loss / self.brought


def sources(modules: Sequence[str]) -> str:
    library = Path(sysconfig.get_paths()["stdlib"])
    return "\n".join((library / f"{module}.py").read_text(encoding="utf-8") for module in modules)


def excerpts() -> list[str]:
    """Prompts: evenly spread over each module."""
    found = []
    for module in MODULES:
        text = sources([module])
        stride = len(text) // PER_MODULE
        found += [text[at : at + EXCERPT] for at in range(0, stride * PER_MODULE, stride)]
    return found


def texts(target: Path) -> Iterator[Text]:
    """Text to choose by, in the tokens of a target."""
    tokenizer = load_tokenizer(target, trust_remote_code=False)
    tokenizer.model_max_length = 1 << 62  # type: ignore[attr-defined]
    written = {"code": sources((*CORPUS, *POOL)), "prose": sources(["pydoc_data/topics"])}
    unseen = tokenizer.encode(sources(MODULES), add_special_tokens=False)
    for kind, text in written.items():
        tokens = tokenizer.encode(text, add_special_tokens=False)
        for amount in AMOUNTS:
            stride = max(1, len(tokens) // amount)
            # stretches of a thousand tokens from all over the text
            blocks = [tokens[at : at + 1000] for at in range(0, len(tokens), 1000 * stride)]
            yield Text(kind, [token for block in blocks for token in block][:amount], unseen)


def counted(tokens: Sequence[int], vocab: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.bincount(tokens, minlength=vocab)


def measured(drafter: Path, made: Trace, kinds: Sequence[Text]) -> Iterator[Point]:
    """One fixture with every kept set."""
    read = read_drafter(open_checkpoint(drafter), ReadOptions(target=target_of(made)))
    arm = whole_arm(made, read, dtype="float32", device="cpu")
    rows, vocab = rows_of(arm), made.about.vocab
    whole = accepted_tokens(made, made.entries, arm, depth=DEPTH)
    for text in kinds:
        score_V = scores([WeightedCounts(counted(text.chosen, vocab))])
        for share in SHARES:
            kept = choose(score_V, rows, made.about.eos, int(len(rows) * share))
            pruned = accepted_tokens(made, made.entries, pruned_arm(arm, kept), depth=DEPTH)
            yield Point(
                drafter.name,
                text.kind,
                len(text.chosen),
                len(kept),
                whole.accept_length,
                missing_share(whole.tokens_V, kept),
                1 - compared(whole, pruned).ratio,
                1 - missing_share(counted(text.unseen, vocab), kept),
            )


def rows_of(arm: Arm) -> list[int]:
    """The tokens that a drafter has rows for, ascending."""
    ids: list[int] = arm.model.to_target_ids(torch.arange(len(Head.of(arm.model).weight_VH))).tolist()
    return sorted(ids)


def law_table(points: Sequence[Point]) -> str:
    """How well the law holds, drafter by drafter."""

    def row(name: str, of: Sequence[Point]) -> Sequence[str]:
        factors = sorted(point.factor for point in of)
        least = sum(p.loss * p.brought for p in of) / sum(p.brought**2 for p in of)
        inside = sum(LEAST <= factor <= MOST for factor in factors)
        off = statistics.mean(abs(p.loss - (LEAST + MOST) / 2 * p.brought) for p in of)
        length = f"{of[0].accept_length:.3f}" if name != "all" else ""
        return (
            f"`{name}`" if name != "all" else name,
            length,
            str(len(of)),
            f"{100 * min(p.missing for p in of):.1f} to {100 * max(p.missing for p in of):.1f} %",
            f"{least:.3f}",
            f"{factors[0]:.2f} to {factors[-1]:.2f}",
            f"{inside}",
            f"{100 * off:.2f}",
        )

    names = dict.fromkeys(point.drafter for point in points)
    head = ("drafter", "accept length", "kept sets", "accepted tokens missing", "factor, fitted", "factors",
            f"in {LEAST} … {MOST}", "off the middle, points")  # fmt: skip
    rows = [row(name, [point for point in points if point.drafter == name]) for name in names]
    return table(head, [*rows, row("all", points)])


def coverage_table(points: Sequence[Point]) -> str:
    """What sets of other sizes and texts cover, for the first drafter, whose head is whole."""
    first = [point for point in points if point.drafter == points[0].drafter]
    rows = (
        (p.kind, str(p.tokens), str(p.rows), f"{p.tokens / p.rows:.0f}", f"{100 * p.covered:.1f} %",
         f"{100 * (1 - p.missing):.1f} %", f"{100 * p.loss:.1f} %", str(predicted_loss(p.missing, p.accept_length)))
        for p in first
    )  # fmt: skip
    head = ("chosen from", "tokens", "rows", "tokens per row", "unseen code covered", "accepted tokens covered",
            "replayed loss", "predicted loss")  # fmt: skip
    return table(head, rows)


def figure(points: Sequence[Point], path: Path) -> None:
    """Replayed losses over what the law multiplies, with the law's band."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "draftconv", "svg.fonttype": "path", "font.family": "DejaVu Sans"}):
        drawing = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = drawing.subplots()
        far = 105 * max(point.brought for point in points)
        axes.fill_between([0, far], [0, LEAST * far], [0, MOST * far], color="#9db7d5", alpha=0.5, linewidth=0,
                          label=f"{LEAST} … {MOST} · (1 - 1/AL) · missing")  # fmt: skip
        marks = dict(zip(dict.fromkeys(point.drafter for point in points), "os^Dv", strict=False))
        for name, mark in marks.items():
            for kind, face in (("code", "#1f4e79"), ("prose", "none")):
                of = [p for p in points if p.drafter == name and p.kind == kind]
                label = f"{name}" if kind == "code" else None
                losses = [100 * p.brought for p in of], [100 * p.loss for p in of]
                axes.plot(*losses, mark, markersize=5, color="#1f4e79", markerfacecolor=face, label=label)
        axes.set(xlim=(0, far), ylim=(0, None), xlabel="(1 - 1/AL) · share of accepted tokens that is missing, %",
                 ylabel="replayed loss of accept length, %")  # fmt: skip
        axes.set_title("filled: chosen from code; open: from prose", fontsize=9)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.legend(frameon=False, fontsize=8)
        drawing.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")


def all_points() -> Iterator[Point]:
    """Every fixture, target after target."""
    targets: Mapping[str, list[Path]] = {"llama": [], "mla": []}
    for drafter in sorted((DATA / "drafters").iterdir()):
        targets[drafter.name.partition("-")[0]].append(drafter)
    with tempfile.TemporaryDirectory() as directory:
        prompts = Path(directory) / "prompts.json"
        prompts.write_text(json.dumps(excerpts()), encoding="utf-8")
        for name, drafters in targets.items():
            place = Path(directory) / name
            trace(DATA / "targets" / name, prompts, place, drafters=drafters, dtype="float32", batch=32,
                  max_tokens=LENGTH, ignore_eos=True, device="cpu")  # fmt: skip
            made, kinds = open_trace(place), list(texts(DATA / "targets" / name))
            for drafter in drafters:
                print(f"prune-law: {drafter.name}", file=sys.stderr, flush=True)
                yield from measured(drafter, made, kinds)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/prune-law", description="Hold predicted losses of pruned heads against replayed ones; minutes."
    )
    parser.add_argument("--write", action="store_true", help="put tables and figure into docs/")
    options = parser.parse_args(argv)
    points = list(all_points())
    parts = {"law": law_table(points), "coverage": coverage_table(points)}
    print("\n".join(parts.values()), end="")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        for name, text in parts.items():
            before, _, rest = page.partition(f"<!-- measured: {name} -->")
            _, end, after = rest.partition(f"<!-- end: {name} -->")
            if not end:
                raise SystemExit(f"{PAGE.relative_to(ROOT)} has no place for the measured {name}")
            page = f"{before}<!-- measured: {name} -->\n\n{text}\n{end}{after}"
        PAGE.write_text(page, encoding="utf-8")
        figure(points, FIGURE)


if __name__ == "__main__":
    main(sys.argv[1:])
