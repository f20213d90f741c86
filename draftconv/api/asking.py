"""The target and what it is asked: the same for a trace and for a live run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from draftconv.checkpoint import Checkpoint, open_checkpoint, show
from draftconv.drafter.targets import Target, find_target
from draftconv.errors import UsageError
from draftconv.parity.dialogue import Dialogue
from draftconv.parity.prompts import Prompt

MAX_TOKENS = 256
"""Counted tokens per request where neither a suite nor an option says otherwise."""

GENERATION = "generation_config.json"


def goal_of(spec: str, revision: str | None = None) -> Target:
    """The target that `--target` names, of known width and vocabulary.

    Raises:
        UsageError: it names no model with files, or a revision of what has none.
    """
    goal = find_target(spec, None)
    if goal is None or not (goal.path or goal.repo):
        raise UsageError(f"--target {show(spec)} names no model that could be run", cure="give a directory or a Hub id")
    if revision is not None:
        if goal.path or "@" in goal.repo:
            raise UsageError(f"--revision {show(revision)}: {show(spec)} is no bare Hub id", cure="drop --revision")
        return goal_of(f"hf://{goal.repo}@{revision}", None)
    if goal.hidden is None or goal.vocab is None:
        raise UsageError(
            f"the config.json of {show(goal.name)} has no {'hidden_size' if goal.hidden is None else 'vocab_size'}",
            why="nobody could check the states against it",
            cure="add it as the model was trained",
        )
    return goal


def target_files(goal: Target, *, weights: bool = True) -> tuple[Path, Checkpoint]:
    """The target's files on this machine, downloaded if they are on the Hub.

    Args:
        weights: False downloads what a tokenizer needs; the checkpoint's tensors then stay on the Hub.
    """
    if goal.path is not None:
        return goal.path, open_checkpoint(goal.path)
    from draftconv.checkpoint.checkpoint import hub_name
    from draftconv.checkpoint.hub import fetch_model

    repository, revision = hub_name(goal.repo)
    path, commit = fetch_model(repository, revision, weights=weights)
    opened = open_checkpoint(path if weights else f"hf://{repository}@{commit}")
    return path, replace(opened, name=repository, revision=commit)


def first_turns(dialogue: Dialogue, prompts: Sequence[Prompt], goal: Target) -> list[list[int]]:
    """What the target is asked first, as its token ids.

    Raises:
        UsageError: a prompt has no tokens, or one that the target does not have.
    """
    first = [dialogue.render(prompt, ()) for prompt in prompts]
    for prompt, ids in zip(prompts, first, strict=True):
        if max(ids) >= (goal.vocab or 0):
            raise UsageError(
                f"prompt {show(prompt.id)} holds token {max(ids)}; {goal.name} has {goal.vocab} tokens",
                why="the prompts were tokenized for another target",
                cure="give prompts as text, or the token ids of this target",
            )
    return first


def lengths_of(prompt: Prompt, first: Sequence[int], dialogue: Dialogue, generated: int) -> list[int]:
    """Tokens of each turn and its text, at most; what a chat template adds to later turns is left out."""
    found = [len(first) + generated]
    for turn in prompt.turns[1:]:
        asked = dialogue.tokenizer.encode(turn, add_special_tokens=False) if dialogue.tokenizer else []
        found.append(found[-1] + len(asked) + generated)
    return found


def refuse_too_long(prompts: Sequence[Prompt], lengths: Sequence[list[int]], goal: Target) -> None:
    """Past its positions a target goes on writing, and what it writes measures nothing.

    Raises:
        UsageError: a prompt and its text are longer.
    """
    prompt, needed = max(zip(prompts, map(max, lengths), strict=True), key=lambda row: row[1])
    if goal.max_positions is not None and needed > goal.max_positions:
        raise UsageError(
            f"prompt {show(prompt.id)} and its text take up to {needed} tokens, {goal.name} has {goal.max_positions} "
            "positions",
            why="what it writes beyond them is not what it would write in use",
            cure="lower --max-tokens, or leave the prompt out",
        )
