"""From what a person asks to the token ids that a target reads, turn by turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from draftconv.checkpoint import show
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.traces.prompts import Prompt


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: str | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool, return_dict: bool
    ) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks next."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """How prompts become token ids.

    Attributes:
        tokenizer: None when every prompt is given as token ids.
        chat: apply the tokenizer's chat template; else text is tokenized as it is.
        eos: ids that end a text; they are no part of an answer that is quoted in the next turn.
    """

    tokenizer: Tokenizer | None
    chat: bool
    eos: tuple[int, ...]

    def render(self, prompt: Prompt, answered: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
        """The token ids of the next turn.

        Args:
            answered: for each earlier turn its token ids and those of the counted answer.

        Raises:
            UsageError: the turn has no tokens.
        """
        if prompt.tokens:
            return list(prompt.tokens)
        if self.tokenizer is None:
            raise UsageError(f"prompt {show(prompt.id)} is text, and there is no tokenizer")
        text = prompt.turns[len(answered)]
        if self.chat:
            messages = []
            for turn, (_, answer) in zip(prompt.turns, answered, strict=False):
                answer_text = self.tokenizer.decode(self._without_end(answer), skip_special_tokens=True)
                messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer_text}]
            messages.append({"role": "user", "content": text})
            ids = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        elif answered:
            before, answer = answered[-1]
            ids = [*before, *self._without_end(answer), *self.tokenizer.encode(f"\n\n{text}", add_special_tokens=False)]
        else:
            ids = self.tokenizer.encode(text, add_special_tokens=True)
        if not ids:
            raise UsageError(
                f"prompt {show(prompt.id)} has no tokens",
                why="a target continues something",
                cure="remove it, or give it as token ids",
            )
        return list(ids)

    def _without_end(self, answer: Sequence[int]) -> Sequence[int]:
        return answer[:-1] if answer and answer[-1] in self.eos else answer


def open_chat_template(
    directory: Path, prompts: Sequence[Prompt], eos: tuple[int, ...], *, chat: bool | None, trust_remote_code: bool
) -> ChatTemplate:
    """The dialogue of a target whose tokenizer lies in `directory`.

    Args:
        chat: None applies a chat template where the tokenizer has one.

    Raises:
        BadCheckpoint: the tokenizer cannot be read. UsageError: `chat` without a template.
    """
    if all(prompt.tokens for prompt in prompts):
        return ChatTemplate(None, False, eos)
    tokenizer = load_tokenizer(directory, trust_remote_code=trust_remote_code)
    if chat and not tokenizer.chat_template:
        raise UsageError(
            f"--chat: the tokenizer of {show(directory.name)} has no chat template",
            cure="pass --raw, or put the template into its tokenizer_config.json",
        )
    return ChatTemplate(tokenizer, bool(tokenizer.chat_template) if chat is None else chat, eos)


def load_tokenizer(directory: Path, *, trust_remote_code: bool) -> Tokenizer:
    """A target's own tokenizer; nothing is downloaded.

    Raises:
        BadCheckpoint: there is none, or it cannot be read.
    """
    from draftconv.traces.transformers_target import transformers

    try:
        tokenizer: Tokenizer = transformers().AutoTokenizer.from_pretrained(
            directory, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise BadCheckpoint(
            f"the tokenizer of {show(directory.name)} cannot be read: {show(error)}",
            why="prompts of text are tokenized with it",
            cure="put the target's tokenizer files beside its config.json, or give prompts as token ids",
        ) from error
    return tokenizer


def end_tokens(config: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    """Every id that ends a text by config.json (its text_config too) or generation_config.json, ascending.

    Raises:
        BadCheckpoint: an eos_token_id is neither a number nor a list of them.
    """
    ends: set[int] = set()
    inner = config.get("text_config")
    for place in (config, inner if isinstance(inner, dict) else {}, generation):
        value = place.get("eos_token_id")
        ids: list[object] = value if isinstance(value, list) else [] if value is None else [value]
        for item in ids:
            if not isinstance(item, int) or isinstance(item, bool):
                raise BadCheckpoint(f"the target's eos_token_id is {show(value)}, not token ids")
            ends.add(item)
    return tuple(sorted(ends))


def prompts_hash(prompts: Sequence[Prompt], first: Sequence[Sequence[int]]) -> str:
    """SHA-256 over one line of ASCII JSON per prompt: [id, category, turns, token ids of the first turn],
    and its language where it has one."""
    digest = hashlib.sha256()
    for prompt, ids in zip(prompts, first, strict=True):
        row = [prompt.id, prompt.category, prompt.turns, list(ids), *filter(None, [prompt.language])]
        line = json.dumps(row, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
