"""What is written for an engine and what it makes of it, as a table of kernels has decided; and how that is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from draftconv.engines.rules import Evidence
from draftconv.quantization.recipes import MAIN, FormatName
from draftconv.quantization.scheme import InputScheme, Scheme


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is written for an engine, and what it will do with it.

    Attributes:
        format, style: as `draftconv.quantization.formats` spells them.
        scheme: what the file declares: the recipe's, without activations where `--allow-a16` dropped them.
        executed: the arithmetic in words.
        notes: conditions, and what was changed.
        weight_only: activations that the file declares are ignored there.
        roles: the same of each role of the recipe that has a scheme of its own, in the same file.
        kept: roles of the recipe's `may_stay` that stay as they are there, with the reason.
    """

    format: FormatName
    style: str | None
    scheme: Scheme
    executed: str
    source: str
    evidence: Evidence
    notes: tuple[str, ...] = ()
    weight_only: bool = False
    roles: Mapping[str, Deployment] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)

    def of(self, role: str) -> Deployment:
        """What is written of a role, and done with it; of all other weights for `MAIN`."""
        return self.roles.get(role, self)

    @property
    def parts(self) -> Mapping[str, Deployment]:
        """Every role that has a scheme, `MAIN` first."""
        return {MAIN: self, **self.roles}

    @property
    def written(self) -> tuple[object, ...]:
        """What the file depends on: role, format, style and scheme of each part, and what is kept."""
        return (*((role, part.format, part.style, part.scheme) for role, part in self.parts.items()), *self.kept)

    @property
    def numbers(self) -> str:
        """Every scheme in words."""
        return by_role({role: str(part.scheme) for role, part in self.parts.items()})

    @property
    def told(self) -> str:
        """What is multiplied, in words, with what stays in 16 bits."""
        texts = {role: part.executed for role, part in self.parts.items()}
        return "; ".join((by_role(texts), *(f"{role}: 16 bit" for role in self.kept)))

    @property
    def formats(self) -> str:
        """What each role is stored as."""
        return by_role({r: f"{p.format}{f' ({p.style})' if p.style else ''}" for r, p in self.parts.items()})

    @property
    def multiplied(self) -> InputScheme | None:
        """What activations are rounded to before they meet the weights; None is 16 bit."""
        return None if self.weight_only else self.scheme.inputs


def by_role(texts: Mapping[str, str]) -> str:
    """What is said of each role, in one line; once where it is the same of all."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{role}: {text}" if role else text for role, text in texts.items())


def one_or_each(texts: Mapping[str, str]) -> str:
    """One text when it is the same for all, such as all hardware, else each with whom it is for."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    return next(iter(names)) if len(names) == 1 else "; ".join(f"{', '.join(n)}: {text}" for text, n in names.items())


def weakest(evidence: Iterable[Evidence]) -> Evidence:
    """What a claim is worth that rests on all of these."""
    order: tuple[Evidence, ...] = ("inferred", "read", "run")
    return min(evidence, key=order.index, default="inferred")
