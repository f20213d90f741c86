"""The target and what it is asked: the same for a trace and for a live run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftconv.checkpoint import Checkpoint, open_checkpoint, show
from draftconv.drafter.targets import Target, find_target
from draftconv.errors import UsageError
from draftconv.traces.chat_template import ChatTemplate, end_tokens, open_chat_template, prompts_hash
from draftconv.traces.prompts import Prompt, PromptSet

MAX_TOKENS = 256
"""Counted tokens per request where neither a suite nor an option says otherwise."""

GENERATION = "generation_config.json"


@dataclass(frozen=True, slots=True)
class TargetPrompts:
    """What a target is asked.

    Attributes:
        source: where the prompts came from.
        first: token ids of each prompt's first turn.
        length: counted tokens of a text at most.
        lengths: by prompt, the tokens of each turn and its text, and K more that are drafted beyond its end.
    """

    source: str
    prompts: tuple[Prompt, ...]
    dialogue: ChatTemplate
    first: tuple[tuple[int, ...], ...]
    length: int
    lengths: tuple[tuple[int, ...], ...]

    @property
    def sha256(self) -> str:
        """Of the prompts as they are asked."""
        return prompts_hash(self.prompts, self.first)

    @property
    def longest(self) -> int:
        """Tokens of the longest conversation, at most."""
        return max(map(max, self.lengths))

    @property
    def tokens(self) -> int:
        """Tokens of all turns and texts, at most."""
        return sum(map(sum, self.lengths))


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


def tokenize_prompts(
    goal: Target,
    directory: Path,
    prompt_set: PromptSet,
    eos: tuple[int, ...],
    *,
    depth: int,
    max_tokens: int | None,
    chat: bool | None,
    trust_remote_code: bool,
) -> TargetPrompts:
    """Prompts as this target's token ids, with room for what it writes.

    Args:
        directory: of its tokenizer. `eos`: ids that end a text. `depth`: K.
        max_tokens: of a text; None means the suite's, else 256. `chat`: None where the tokenizer has a template.

    Raises:
        UsageError: a prompt has no tokens, or one that the target does not have, or no tokenizer can read it.
    """
    dialogue = open_chat_template(directory, prompt_set.prompts, eos, chat=chat, trust_remote_code=trust_remote_code)
    first = [tuple(dialogue.render(prompt, ())) for prompt in prompt_set.prompts]
    for prompt, ids in zip(prompt_set.prompts, first, strict=True):
        if max(ids) >= (goal.vocab or 0):
            raise UsageError(
                f"prompt {show(prompt.id)} holds token {max(ids)}; {goal.name} has {goal.vocab} tokens",
                why="the prompts were tokenized for another target",
                cure="give prompts as text, or the token ids of this target",
            )
    length = max_tokens or prompt_set.max_tokens or MAX_TOKENS
    lengths = [
        _lengths(prompt, ids, dialogue, length + depth) for prompt, ids in zip(prompt_set.prompts, first, strict=True)
    ]
    return TargetPrompts(prompt_set.source, tuple(prompt_set.prompts), dialogue, tuple(first), length, tuple(lengths))


def ends_of(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Ids that end a target's text, by its configurations.

    Raises:
        BadCheckpoint: one of them says something else than ids.
    """
    return end_tokens(checkpoint.config, checkpoint.sidecars.get(GENERATION, {}))


def _lengths(prompt: Prompt, first: Sequence[int], dialogue: ChatTemplate, generated: int) -> tuple[int, ...]:
    """Tokens of each turn and its text, at most; what a chat template adds to later turns is left out."""
    lengths = [len(first) + generated]
    for turn in prompt.turns[1:]:
        ids = dialogue.tokenizer.encode(turn, add_special_tokens=False) if dialogue.tokenizer else []
        lengths.append(lengths[-1] + len(ids) + generated)
    return tuple(lengths)


def refuse_too_long(target_prompts: TargetPrompts, goal: Target) -> None:
    """Past its positions a target goes on writing, and what it writes measures nothing.

    Raises:
        UsageError: a prompt and its text are longer.
    """
    prompt, needed = max(
        zip(target_prompts.prompts, map(max, target_prompts.lengths), strict=True), key=lambda row: row[1]
    )
    if goal.max_positions is not None and needed > goal.max_positions:
        raise UsageError(
            f"prompt {show(prompt.id)} and its text take up to {needed} tokens, {goal.name} has {goal.max_positions} "
            "positions",
            why="what it writes beyond them is not what it would write in use",
            cure="lower --max-tokens, or leave the prompt out",
        )
