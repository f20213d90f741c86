"""The directory of `slim --report`: slim.json, slim.md, pareto.svg, and the recipe of what was certified."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftconv.checkpoint import show
from draftconv.checkpoint.staging import FileDigest, OwnershipMark, refuse_occupied, staging
from draftconv.checkpoint.text import code, plain
from draftconv.display import Table
from draftconv.errors import BadReport, UsageError
from draftconv.options import without_places
from draftconv.quantization.recipe_text import recipe_text
from draftconv.report.files import read_file, write_file
from draftconv.report.intervals import Measured
from draftconv.report.markdown import section
from draftconv.report.plots import Spot, bytes_and_ratio, standalone
from draftconv.search.again import RECIPE
from draftconv.search.result import SlimResult
from draftconv.search.searching import Candidate

FORMAT = "draftconv-slim"
FILE = "slim.json"
OTHERS = ("slim.md", "pareto.svg", RECIPE)


def refuse_slim_place(out: Path, drafter: Path, *, overwrite: bool = False) -> None:
    """Refuse a directory that `write_slim` would refuse, or that overlaps the drafter, before anything is measured.

    Args:
        drafter: where the certified drafter will be written.

    Raises:
        UsageError: one would lie inside the other. UsageError, WriteError: as `staging`.
    """
    report, written = out.resolve(), drafter.resolve()
    if report == written or written in report.parents or report in written.parents:
        how = "is" if report == written else "lies inside" if written in report.parents else "contains"
        raise UsageError(
            f"--report {show(out.name)} {how} {show(drafter.name)}",
            why="a drafter's directory holds what its record lists and nothing else",
            cure=f"write it beside it: --report {show(drafter.name)}-report",
        )
    refuse_occupied(out, overwrite=overwrite, mark=OURS)


def write_slim(result: SlimResult, out: Path, *, overwrite: bool = False) -> None:
    """Write the report; recipe.yaml only where a drafter was certified.

    Raises:
        UsageError, WriteError: as `staging`.
    """
    with staging(out, overwrite=overwrite, mark=OURS) as directory:
        write_file(directory / FILE, (json.dumps(slim_json(result), indent=1) + "\n").encode())
        write_file(directory / "slim.md", ("\n\n".join(_markdown(result)) + "\n").encode())
        write_file(directory / "pareto.svg", _plot(result).encode())
        if result.chosen is not None and result.chosen.planned.recipe is not None:
            write_file(directory / RECIPE, recipe_text(result.chosen.planned.recipe).encode())


def slim_json(result: SlimResult) -> dict[str, object]:
    """Everything that was found, for a program."""
    return {
        "format": FORMAT,
        "version": 1,
        "exit_code": result.exit_code,
        "drafter": result.drafter,
        "engine": result.engine,
        "num_speculative_tokens": result.depth,
        "max_loss": result.max_loss,
        "alpha": result.alpha,
        "prompts": {"searched": result.searched, "unseen": result.unseen},
        "smallest_loss": result.smallest_loss,
        "chosen": result.chosen.planned.name if result.chosen else None,
        "command": list(result.command),
        "again": [list(without_places(argv)) for argv in result.again.commands] if result.again else [],
        "notes": list(result.notes),
        "path": [_candidate(candidate, result) for candidate in result.path],
        "left_out": [{"choice": left.name, "why": left.why} for left in result.left_out],
    }


def _candidate(candidate: Candidate, result: SlimResult) -> dict[str, object]:
    planned, searched, certificate = candidate.planned, candidate.searched, candidate.certificate
    judged: dict[str, Any] | None = None
    if certificate is not None:
        judged = {
            "passed": certificate.passed,
            "ratio": certificate.ratio,
            "low": certificate.low,
            "level": certificate.level,
            "prompts": certificate.clusters,
        }
    return {
        "name": planned.name,
        "bytes_per_step": planned.reads.per_step(result.depth),
        "file_bytes": planned.file_bytes,
        "accept_length": searched.candidate.value,
        "ratio": searched.ratio,
        "interval": [searched.interval.low, searched.interval.high],
        "unseen": judged,
        "speed": _speeds(candidate, result),
    }


def _speeds(candidate: Candidate, result: SlimResult) -> list[dict[str, object]] | None:
    """Under every load; None where nobody tells how long steps take."""
    if result.speed is None:
        return None
    return [
        {
            "concurrency": cost.concurrency,
            "evidence": cost.evidence,
            "step_ms": speed.step,
            "tokens_per_second": speed.rate.value,
            "gain": speed.gain.value,
            "interval": [speed.gain.interval.low, speed.gain.interval.high],
        }
        for cost, speed in zip(result.speed.known, result.speeds(candidate), strict=True)
    ]


def _markdown(result: SlimResult) -> Iterator[str]:
    yield f"# The smallest drafter for {plain(result.engine)}"
    for block in (*result.blocks(), *result.details()):
        match block:
            case Table():
                yield from section(block)
            case str():
                yield plain(block)
    yield "![Bytes per draft step and accept length](pareto.svg)"
    if result.command:
        yield "## Reproduce"
        yield _shell(result.command)
    if result.again is not None:
        yield f"Without a search, by the commands that make each part; `{RECIPE}` lies here:"
        yield _shell(*map(without_places, result.again.commands))


def _shell(*commands: Sequence[str]) -> str:
    lines = "\n".join(code(shlex.join(argv)) for argv in commands)
    return f"```sh\n{lines}\n```"


def _plot(result: SlimResult) -> str:
    spots = [
        Spot(
            c.planned.reads.per_step(result.depth),
            Measured(c.searched.ratio, c.searched.interval),
            chosen=result.chosen is not None and c.planned.name == result.chosen.planned.name,
            gain=next((speed.gain.value for speed in result.speeds(c)), None),
        )
        for c in result.path
    ]
    return standalone(bytes_and_ratio("pareto", spots, result.max_loss))


def _files(directory: Path) -> Mapping[str, FileDigest] | None:
    """The files of such a report; None where slim.json is another's."""
    try:
        document = json.loads(read_file(directory / FILE))
    except (BadReport, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return None
    return dict.fromkeys((FILE, *OTHERS), FileDigest())


OURS = OwnershipMark(FILE, _files)
"""The mark of a directory that `write_slim` wrote."""
