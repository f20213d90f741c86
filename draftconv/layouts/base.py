"""What a layout is: one producer's or engine's way to spell a drafter, as data.

A layout module defines `LAYOUTS`, a tuple of `Layout`. Adding a producer's layout is adding one such
module to this package; nothing else names it. An engine's is a field of its `Engine`. Most layouts
are tables; a callable stands in a row only where a table cannot say it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftconv.drafter.boundaries import Convention, Numbering
from draftconv.drafter.facts import Facts
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.problems import Problem
from draftconv.drafter.targets import Target

Confidence = Literal["certain", "likely", "weak"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a person says about a checkpoint; always wins over what the file suggests."""

    layout: str | None = None
    aux_convention: Convention | None = None
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class ReadNotes:
    """What a reader has to say besides the facts."""

    problems: list[Problem] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Fact → where its value came from."""

    def problem(self, code: str, detail: str) -> None:
        """Report a problem by its code in `problems.KINDS`."""
        self.problems.append(Problem(code, detail))


@dataclass(frozen=True, slots=True)
class Clue:
    """One observation that speaks for a layout."""

    text: str
    holds: Callable[[Fingerprint], bool]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something a reader of this layout cannot express.

    Attributes:
        cure: what always helps; where nothing does, it is asked who else can hold the drafter (`elsewhere`).
    """

    holds: Callable[[Facts], bool]
    what: str
    why: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tensors are named and which optional ones are stored.

    Attributes:
        first, later: prefixes of layer 0 and of layers ≥ 1, `{i}` standing for the index.
        alone: prefix of layer 0 when it is the only layer, if that differs from `first`.
        later_norm: name of the one pre-attention norm of later layers.
        maps: `reduced` stores d2t (and t2d) only for a reduced vocabulary, `always` also the identity.
        t2d: whether the mask is stored beside d2t.
        order: `ascending` when the reader indexes logits with the t2d mask.
        embedding: `never` when the producer leaves the target's table out, `always` when its reader has no other.
        o_bias: the reader builds an o_proj bias whenever attention_bias is set.
        yarn_in_full: the reader has no defaults for what YaRN is made of.
    """

    first: str = "midlayer."
    later: str = "layers.{i}."
    alone: str | None = None
    later_norm: Literal["input_layernorm", "hidden_norm"] = "input_layernorm"
    maps: Literal["reduced", "always"] = "reduced"
    t2d: bool = False
    order: Literal["any", "ascending"] = "any"
    embedding: Literal["keep", "never", "always"] = "keep"
    o_bias: bool = False
    yarn_in_full: bool = False


@dataclass(frozen=True, slots=True)
class Writing:
    """What a config writer may need besides the facts."""

    facts: Facts
    boundaries: tuple[int, ...] | None
    """None: the default triple, left to the reader."""
    target: Target | None
    kept: Mapping[str, object]
    """Neutral keys of the source config: token ids, dtype, initializer_range …"""
    dtype: str
    verifier: str = ""
    """What a person calls the target, or the source did, where a config names it."""


@dataclass(frozen=True, slots=True)
class Writer:
    """How a layout is written."""

    spelling: Spelling
    config: Callable[[Writing], dict[str, object]]
    refuses: tuple[Refusal, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    serves: tuple[str, ...] = ()
    """Engines whose check the result must pass before a byte is written."""
    names_verifier: bool = False
    """Its config says for which target the drafter was made."""


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """What one producer means by a layer id, and by writing none at all.

    Attributes:
        convention: None where its ids alone do not tell.
        implied: no ids in the file mean the default triple (2, L//2, L-3).
        source: who and which version, then a colon and how it counts.
    """

    producer: str
    convention: Numbering | None
    implied: bool
    source: str


@dataclass(frozen=True, slots=True)
class IdChoice:
    """Several meanings that ids of one layout have, of which a file shows which."""

    rows: tuple[ProducerIds, ...]
    choose: Callable[[Fingerprint], ProducerIds]


@dataclass(frozen=True, slots=True)
class Layout:
    """One spelling of a drafter on disk.

    Attributes:
        order: detection asks layouts in this order; the first whose clues all hold wins.
        clues: None when only draftconv's own mark or `--from` selects the layout.
        alias: the short name that `--to` accepts.
        twin: the layout that writes this one's names, for a drafter that returns to it.
        norm_output: `final-norm` where the key means "apply the final norm" (SpecForge).
        ids: what its layer ids mean.
        ids_at: where its ids stand, when config.json has others elsewhere and a person named the layout.
        captures: who collected the states: the trainer itself, an engine that counts layers by the target's family,
            whose ids the trainer inherits, or either of them.
        double_norm: whether the trainer normalises the state twice, from the fingerprint.
        flatten: turns a nested config into the flat one that all others use.
        unmarked: what a file still shows that is this layout's and has lost its marks, or never had any: then
            its reading is weighed beside the detected one (`ambiguity`); None where that cannot happen.
    """

    id: str
    title: str
    order: int
    confidence: Confidence
    clues: tuple[Clue, ...] | None
    ids: ProducerIds | IdChoice
    source: str
    norm_output: Literal["feedback", "final-norm"] = "feedback"
    double_norm: Callable[[Fingerprint], bool] = lambda _: False
    flatten: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda config: config
    writer: Writer | None = None
    alias: str = ""
    twin: str = ""
    ids_at: Literal["top", "nested"] = "nested"
    captures: Literal["itself", "by family", "either"] = "itself"
    unmarked: tuple[Clue, ...] | None = None

    @property
    def id_rules(self) -> tuple[ProducerIds, ...]:
        """Everything that its ids may mean."""
        return self.ids.rows if isinstance(self.ids, IdChoice) else (self.ids,)

    def id_rule(self, fingerprint: Fingerprint) -> ProducerIds:
        """What the ids of this file mean."""
        return self.ids.choose(fingerprint) if isinstance(self.ids, IdChoice) else self.ids
