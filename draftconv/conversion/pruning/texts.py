"""What a pruning is told of the target's language: tokens that have to stay, and counts of what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.checkpoint import show
from draftconv.conversion.pruning.coverage import TOKENS_PER_ROW
from draftconv.conversion.pruning.options import PruneOptions
from draftconv.drafter.targets import Target
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.options import several
from draftconv.traces.special_tokens import SpecialTokens, added_by, added_tokens, template_tokens
from draftconv.traces.text_places import text_places

if TYPE_CHECKING:
    from draftconv.traces.chat_template import Tokenizer
    from draftconv.traces.token_counts import DomainCounts
    from draftconv.traces.trace import Trace

ROWS_OF_TEXT = 10 * TOKENS_PER_ROW
"""Tokens of a data set that are read for every row: ten times what it asks for."""


@dataclass(frozen=True, slots=True)
class Staying:
    """Tokens that stay whatever the text says, and what is to be known of how they were found."""

    ids: frozenset[int]
    notes: tuple[str, ...] = ()


def tokens_to_stay(vocab: int, target: Target | None, trace: Trace | None, options: PruneOptions) -> Staying:
    """Special tokens, those of the chat template, and those that a person names.

    Raises:
        UsageError: nobody tells which tokens are special, or the target's files are of another vocabulary.
        BadCheckpoint: its files cannot be read.
    """
    if target is not None and target.vocab not in (None, vocab):
        raise UsageError(
            f"--target {show(target.name)} has {target.vocab} tokens, the drafter is made for {vocab}",
            why="its tokenizer would name other tokens than the rows of the head",
            cure="give the target that the drafter was trained for",
        )
    directory = _tokenizer_directory(target)
    if directory is not None and trace is not None:
        _refuse_other_tokenizer(directory, trace)
    found, notes = _special_tokens(directory, trace, options)
    ends = trace.about.eos if trace is not None else ()
    ids = frozenset(token for token in {*found.ids, *ends} if 0 <= token < vocab)
    if not ids and not options.force:
        raise UsageError(
            "which tokens are special is not known",
            why="the tokens that begin and end every answer could lose their rows",
            cure="give the target with its tokenizer: --target DIRECTORY, or name them with --keep and add --force",
        )
    return Staying(ids | {*options.kept_ids}, notes)


def _special_tokens(
    directory: Path | None, trace: Trace | None, options: PruneOptions
) -> tuple[SpecialTokens, tuple[str, ...]]:
    if directory is None:
        added = added_by(trace.tokenizer) if trace is not None and trace.tokenizer is not None else frozenset[int]()
        unknown = (
            "the tokens of the target's chat template are not known without --target: they stay if the text has them"
        )
        return SpecialTokens(added), (unknown,)
    added = added_tokens(directory)
    try:
        return SpecialTokens(added, template_tokens(_open_tokenizer(directory, options))), ()
    except (BadCheckpoint, UsageError) as error:
        why = error.what
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed"
    return SpecialTokens(added), (f"{why}: tokens of the chat template stay if the text has them",)


def counted_domains(vocab: int, target: Target | None, options: PruneOptions) -> tuple[DomainCounts, ...]:
    """The counts of every domain that `--counts` names.

    Raises:
        UsageError, BadPrompts, BadCheckpoint: as `count_tokens`; or there is text, and no tokenizer for it.
    """
    from draftconv.traces.token_counts import count_tokens

    def open_tokenizer() -> Tokenizer:
        directory = _tokenizer_directory(target)
        if directory is None:
            raise UsageError(
                "--counts holds text, and there is no tokenizer for it",
                why="rows are counted in the target's tokens",
                cure="give the target with its tokenizer: --target DIRECTORY, or give token ids",
            )
        return _open_tokenizer(directory, options)

    tell = options.progress
    return count_tokens(
        text_places(several(options.counts)),
        vocab,
        open_tokenizer,
        most=ROWS_OF_TEXT * options.vocab,
        progress=None if tell is None else lambda done, total: tell("counting", done, total),
    )


def _tokenizer_directory(target: Target | None) -> Path | None:
    """Where the target's tokenizer lies, downloaded where the target is on the Hub."""
    if target is None or not (target.path or target.repo):
        return None
    if target.path is not None:
        return target.path
    from draftconv.traces.target_prompts import target_files

    return target_files(target, weights=False)[0]


def _open_tokenizer(directory: Path, options: PruneOptions) -> Tokenizer:
    from draftconv.traces.chat_template import load_tokenizer

    tokenizer = load_tokenizer(directory, trust_remote_code=options.trust_remote_code)
    setattr(tokenizer, "model_max_length", 1 << 62)  # noqa: B010  texts of any length are counted, and none is answered
    return tokenizer


def _refuse_other_tokenizer(directory: Path, trace: Trace) -> None:
    """Refuse a trace whose tokens mean something else than the target's.

    Raises:
        UsageError: their tokenizers differ.
    """
    from draftconv.replay.two_targets import vocabulary_of
    from draftconv.traces.special_tokens import TOKENIZER

    own = directory / TOKENIZER
    if trace.tokenizer is None or not own.is_file() or vocabulary_of(own) == vocabulary_of(trace.tokenizer):
        return
    raise UsageError(
        f"the trace {show(trace.directory.name)} was made with another tokenizer than that of {show(directory.name)}",
        why="its tokens and those of the text would not be the same",
        cure="give the target that the trace was made with",
    )
