"""How often each of the target's tokens is written, by domain: what a head's rows are chosen by, and judged by.

A tenth of the conversations of every domain is held out: it chooses nothing, and tells what a choice covers of text
that nobody has seen. The others lie in eight parts, so that a choice from an eighth, a quarter and a half of the text
tells whether there was enough of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftconv.checkpoint import show
from draftconv.errors import UsageError
from draftconv.traces.text_places import TextPlace, read_place, size_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from draftconv.traces.chat_template import Tokenizer

    Counts = NDArray[np.int64]

PARTS = 8
"""Of the text that chooses."""
HELD_OUT, HELD_AT = 10, 1
"""Of so many conversations one is held out, the second, so that two are enough for one of each kind."""

AT_ONCE = 1 << 20
"""Tokens that are collected before they are counted."""

OpenTokenizer = Callable[[], "Tokenizer"]
"""Opens the target's tokenizer, where something is text."""


@dataclass(frozen=True, slots=True)
class DomainCounts:
    """The tokens of one domain.

    Attributes:
        weight: its share of what will be asked, beside the weights of the others.
        places: what was counted, by name.
        parts_PV: int64 [8, V], of the text that chooses. `held_V`: int64 [V], of the text that is held out.
        conversations: how many there are, held out or not.
        silent: entries in which the target says nothing, which are not counted.
        cut: data sets that were not read to their end.
    """

    name: str
    weight: float
    places: tuple[str, ...]
    parts_PV: Counts
    held_V: Counts
    conversations: int
    silent: int = 0
    cut: tuple[str, ...] = ()

    @property
    def choosing_V(self) -> Counts:
        """All the text that chooses: int64 [V]."""
        whole_V: Counts = self.parts_PV.sum(0)
        return whole_V

    @property
    def tokens(self) -> int:
        """Of the text that chooses."""
        return int(self.parts_PV.sum())

    @property
    def held_tokens(self) -> int:
        """Of the text that is held out."""
        return int(self.held_V.sum())


def count_tokens(
    places: Sequence[TextPlace],
    vocab: int,
    open_tokenizer: OpenTokenizer,
    *,
    most: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[DomainCounts, ...]:
    """Count every domain, in the order in which they are first named.

    Args:
        vocab: V, tokens of the target.
        most: tokens at which the reading of a data set ends.
        progress: told the bytes of files read so far, and of all.

    Raises:
        BadPrompts: a place cannot be read. BadCheckpoint: nor the tokenizer.
        UsageError: an id is none of the target's, or a domain has fewer than two conversations.
    """
    tokenizers: list[Tokenizer] = []

    def tokenize(text: str) -> list[int]:
        if not tokenizers:
            tokenizers.append(open_tokenizer())
        return tokenizers[0].encode(text, add_special_tokens=False)

    total, before = sum(map(size_of, places)), 0
    domains = {place.domain: _Domain(place.domain, place.weight, vocab) for place in places}
    for place in places:
        read = _reader(progress, before, total)
        domains[place.domain].add(place, tokenize, most, read)
        before += size_of(place)
    return tuple(domain.counts() for domain in domains.values())


def _reader(progress: Callable[[int, int], None] | None, before: int, total: int) -> Callable[[int], None]:
    return (lambda _: None) if progress is None else (lambda done: progress(before + done, total))


@dataclass(slots=True)
class _Domain:
    """The counts of a domain in the making."""

    name: str
    weight: float
    vocab: int
    places: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    """Conversation → the how manieth it is."""
    silent: int = 0
    waiting: list[list[Any]] = field(default_factory=lambda: [[] for _ in range(PARTS + 1)])
    """Tokens to count: of each part, and last of what is held out."""
    size: int = 0
    counts_PV: Any = None

    def add(
        self, place: TextPlace, tokenize: Callable[[str], list[int]], most: int, read: Callable[[int], None]
    ) -> None:
        """Count a place."""
        self.places.append(place.name)
        found = 0
        for where, written in read_place(place, read):
            if written is None:
                self.silent += 1
                continue
            tokens = [*written.tokens, *(token for text in written.texts for token in tokenize(text))]
            self._refuse_foreign(tokens, where)
            number = self.numbers.setdefault(written.key, len(self.numbers))
            self.waiting[_part(number)].append(tokens)
            self.size, found = self.size + len(tokens), found + len(tokens)
            if self.size >= AT_ONCE:
                self._count()
            if place.is_data_set and found >= most:
                self.cut.append(place.name)
                break

    def counts(self) -> DomainCounts:
        """What came together.

        Raises:
            UsageError: it holds nothing that can be counted, or a single conversation.
        """
        self._count()
        parts_PV, held_V = self.counts_PV[:PARTS], self.counts_PV[PARTS]
        listed = ", ".join(map(show, self.places))
        if not self.counts_PV.any():
            raise UsageError(
                f"--counts: {listed} holds nothing that the target wrote",
                why=f"{self.silent} entries are conversations without an answer, and only answers are drafted"
                if self.silent
                else "it is empty",
                cure='give answers too; to count other text, put it under {"text": …}',
            )
        if not held_V.any() or not parts_PV.any():
            raise UsageError(
                f"--counts: {listed} holds a single conversation",
                why="what rows cover is told by conversations that did not choose them; entries that open alike count "
                "as turns of one",
                cure="give more text of this kind, one conversation a line",
            )
        return DomainCounts(
            self.name,
            self.weight,
            tuple(self.places),
            parts_PV,
            held_V,
            len(self.numbers),
            self.silent,
            tuple(self.cut),
        )

    def _count(self) -> None:
        import numpy as np

        if self.counts_PV is None:
            self.counts_PV = np.zeros((PARTS + 1, self.vocab), np.int64)
        for part, waiting in enumerate(self.waiting):
            if waiting:
                self.counts_PV[part] += np.bincount(np.concatenate(waiting).astype(np.int64), minlength=self.vocab)
                waiting.clear()
        self.size = 0

    def _refuse_foreign(self, tokens: Sequence[int], where: str) -> None:
        if tokens and max(tokens) >= self.vocab:
            raise UsageError(
                f"{where} holds token {max(tokens)}; the target has {self.vocab} tokens",
                why="ids of another tokenizer would keep the wrong rows, and nothing would crash",
                cure="give ids of this target's tokenizer, or text and --target",
            )


def _part(number: int) -> int:
    """Which part a conversation is in; the last one is held out."""
    round_, at = divmod(number, HELD_OUT)
    if at == HELD_AT:
        return PARTS
    return (round_ * (HELD_OUT - 1) + at - (at > HELD_AT)) % PARTS
