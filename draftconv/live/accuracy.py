"""Accuracy of a server with and without its drafter, by lm_eval: greedy answers should not depend on the drafter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from draftconv.engines.live import Tool
from draftconv.errors import EngineError
from draftconv.live.external_tools import figure, read_result
from draftconv.report.model import Accuracy

TOOL = Tool("lm_eval", "lm_eval", "lm_eval[api]", "EleutherAI/lm-evaluation-harness 0.4, its results_*.json")

TASKS: Mapping[str, int] = {"gsm8k": 10}
"""Tasks → examples before each question, as on the card of ginsongsong/eagle3-kimik2.5-w4a8."""

RESULTS = "accuracy"
"""The directory that it writes into."""

FILTERS = ("strict-match", "flexible-extract")


def evaluation(
    task: str, url: str, model: str, directory: Path, concurrency: int, *, remote_code: bool
) -> tuple[str, ...]:
    """The command that asks a server a task and writes results into `RESULTS`."""
    arguments = {
        "model": model,
        "tokenizer": model,
        "base_url": f"{url}/v1/completions",
        "num_concurrent": concurrency,
        "max_retries": 3,
        "tokenized_requests": False,
        **({"trust_remote_code": True} if remote_code else {}),
    }
    return (
        "python", "-m", "lm_eval", "--model", "local-completions", "--model_args", json.dumps(arguments),
        "--tasks", task, "--num_fewshot", str(TASKS[task]), "--output_path", str(directory / RESULTS),
    )  # fmt: skip


def result_file(directory: Path) -> Path | None:
    """The file that lm_eval wrote, whatever it called the model's directory; None before it has."""
    return max((directory / RESULTS).rglob("results_*.json"), default=None)


def read_accuracy(directory: Path, task: str, drafter: str | None) -> tuple[Accuracy, ...]:
    """The share of right answers by every filter.

    Raises:
        EngineError: there is no result, or not of this task.
    """
    path = result_file(directory)
    if path is None:
        raise EngineError("lm_eval wrote no results_*.json", why=f"{TOOL.source} says it does")
    result = read_result(TOOL, path)
    scores, samples = (_section(result, name, task) for name in ("results", "n-samples"))
    return tuple(
        Accuracy(
            drafter=drafter,
            task=task,
            shots=TASKS[task],
            filter=name,
            value=figure(TOOL, scores, f"exact_match,{name}"),
            error=figure(TOOL, scores, f"exact_match_stderr,{name}"),
            questions=int(figure(TOOL, samples, "effective")),
        )
        for name in FILTERS
    )


def _section(result: Mapping[str, object], name: str, task: str) -> Mapping[str, object]:
    rows = result.get(name)
    row = rows.get(task) if isinstance(rows, dict) else None
    if not isinstance(row, dict):
        raise EngineError(f"lm_eval wrote no {name} of {task}", why=f"{TOOL.source} says it does")
    return row
