"""Prompt suites: benchmarks on the Hub, named in recipes/suites and never copied.

A suite says which rows of which data set are asked and how. Its templates know `{column}` and
nothing else, besides `{_config}` and `{_index}`: the row's config, and its number in the suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import Formatter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftconv.checkpoint import show, show_some
from draftconv.drafter.shipped_files import recipes
from draftconv.errors import BadPrompts
from draftconv.traces.data_sets import LOCAL, Row, commit_of, datasets, hub_errors, refuse_namesake, rows_of
from draftconv.traces.prompts import Prompt, PromptSet, all_turns, collected, one_turn


class Suite(BaseModel):
    """One file of recipes/suites.

    Attributes:
        dataset: its id on the Hub. `revision`: a commit or tag; None is whatever `main` is on the
            day, and the commit is recorded with the prompts.
        configs: read in this order until `count` is reached; empty when the data set has one.
        where: columns and the values that a row must have to be asked.
        count: rows asked, always the first; `choice` says in words which those are.
        stream: fetch only what the first rows need, for data sets of gigabytes; nothing is cached.
        turns: a template per turn. `turns_from`: a column that holds the turns as a list.
        id, category: templates; language alike, where a column tells it.
        placeholder: how a text starts that the data set's owner may not publish.
        input_tokens: of each prompt, by the tokenizer that the data set was made with, where all have one length.
        max_tokens: generated tokens that count, per turn.
        evidence: how the columns are known: run, read in `source`, or inferred from it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    about: str
    dataset: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str | None = None
    configs: tuple[str, ...] = ()
    split: str
    where: dict[str, str] = {}
    count: int = Field(gt=0)
    choice: str
    stream: bool = False
    turns: tuple[str, ...] = ()
    turns_from: str = ""
    id: str = "{_index}"
    category: str
    language: str = ""
    placeholder: str = ""
    input_tokens: int | None = Field(default=None, gt=0)
    max_tokens: int = Field(gt=0)
    modality: Literal["text", "image"] = "text"
    license: str
    redistribution: Literal["allowed", "noncommercial", "forbidden", "unknown"]
    evidence: Literal["run", "read", "inferred"]
    source: str

    @model_validator(mode="after")
    def _is_complete(self) -> Suite:
        if self.modality == "text" and bool(self.turns) == bool(self.turns_from):
            raise ValueError("a suite of texts has either turns or turns_from")
        for template in (*self.turns, self.id, self.category, self.language):
            list(_parts(template))
        return self


def suites() -> dict[str, Suite]:
    """The shipped suites, by name."""
    import yaml

    by_name = {
        file.name.removesuffix(".yaml"): Suite.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in (recipes() / "suites").iterdir()
        if file.name.endswith(".yaml")
    }
    return dict(sorted(by_name.items()))


def fetch(name: str, suite: Suite, limit: int | None = None) -> PromptSet:
    """The prompts of a suite, from the Hub.

    Raises:
        BadPrompts: the suite is not for text; `datasets` is not installed; the data set is
            missing, gated or unreachable; a column is missing; a row is no prompt; the data
            set holds fewer rows than the suite counts.
    """
    if suite.modality != "text":
        raise BadPrompts(
            f"the suite {name} asks about {suite.modality}s",
            why="a trace holds text only",
            cure="choose a suite of texts",
        )
    refuse_namesake(suite.dataset)
    count = suite.count if limit is None else min(limit, suite.count)
    datasets()  # before the Hub is asked
    with hub_errors(suite.dataset):
        commit = commit_of(suite.dataset, suite.revision)
        rows = _rows(suite, commit)
        prompts = collected(_prompts(suite, rows), f"{suite.dataset}@{commit}", count)
    if len(prompts) < count:
        raise BadPrompts(
            f"{suite.dataset}@{commit} holds {len(prompts)} prompts, the suite {name} counts {count}",
            why="figures over other prompts cannot be compared",
            cure=f"to use what is there, add --limit {len(prompts)}",
        )
    return PromptSet(f"{name} ({suite.dataset}@{commit}, {suite.split})", prompts, suite.max_tokens)


# ── the Hub ────────────────────────────────────────────────────────────────────────


def _rows(suite: Suite, commit: str) -> Iterator[tuple[str, Row]]:
    """(config, row) in the suite's order, without those that `where` leaves out."""
    for config in suite.configs or (None,):
        for row in rows_of(suite.dataset, config, suite.split, commit, stream=suite.stream):
            if all(_column(suite, row, name) == value for name, value in suite.where.items()):
                yield config or "", row


# ── rows ───────────────────────────────────────────────────────────────────────────


def _prompts(suite: Suite, rows: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, Prompt]]:
    """(place, prompt); the place is the data set and the row's number in the suite."""
    for index, (config, row) in enumerate(rows):
        where = f"{suite.dataset} row {index}"
        known = {**row, "_config": config, "_index": str(index)}
        if suite.turns_from:
            value = _column(suite, known, suite.turns_from)
            if not isinstance(value, list):
                raise BadPrompts(f"{where}: {suite.turns_from} is a {type(value).__name__}, not a list of turns")
            turns = all_turns(value, f"{where}: {suite.turns_from}")
        else:
            turns = tuple(one_turn(_fill(suite, known, template), where) for template in suite.turns)
        if suite.placeholder and any(turn.startswith(suite.placeholder) for turn in turns):
            raise BadPrompts(
                f"{where} holds a placeholder instead of a prompt",
                why="its text belongs to another data set and is not in this one",
                cure="fill it in with the data set's own script (docs/suites.md) and give the result as .jsonl",
            )
        id, category, language = (
            _fill(suite, known, template) for template in (suite.id, suite.category, suite.language)
        )
        yield where, Prompt(id, category, turns, language=language)


def _parts(template: str) -> Iterator[tuple[str, str | None]]:
    """(text, column or None) pieces of a template; `{{` and `}}` are braces.

    Raises:
        ValueError: anything in braces that is not a plain name.
    """
    for text, column, format_spec, conversion in Formatter().parse(template):
        if column is not None and (format_spec or conversion or not column.isidentifier()):
            raise ValueError(f"{{{column}}} in a template is not the name of a column")
        yield text, column


def _fill(suite: Suite, row: Row, template: str) -> str:
    filled = []
    for text, column in _parts(template):
        filled.append(text)
        if column is not None:
            value = _column(suite, row, column)
            if type(value) not in (str, int):
                raise BadPrompts(f"{suite.dataset}: {column} is {show(value)}, which is neither text nor a number")
            filled.append(str(value))
    return "".join(filled)


def _column(suite: Suite, row: Row, name: str) -> object:
    if name not in row:
        columns = [column for column in row if not column.startswith("_")]
        raise BadPrompts(
            f"{suite.dataset} has no column {name}",
            why=f"it has {show_some(columns, 12)}; that it has {name} was {suite.evidence}, not run",
            cure=LOCAL,
        )
    return row[name]
