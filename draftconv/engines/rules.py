"""How an engine's reading of a directory is judged.

An engine builds its modules from config.json, fills them from tensors by its own name
rules, and computes something. `SimulatedLoad` holds what it would build (`built`, as `Facts`);
the truth is the drafter's own facts. A `Rule` compares the two at one point and cites
the engine file that makes it true. Nothing here opens an engine: rules are read from
source or were observed, and each says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.config import Config
from draftconv.drafter.facts import AuxLayers, Facts, Mla
from draftconv.drafter.names import canonical_name
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import OPTIONAL, ExpectedTensor, expected
from draftconv.engines.hardware import AMD, named
from draftconv.engines.load_results import Causes, LoadResults, cause, fused_parts, is_fused, plain_name
from draftconv.engines.replays import Replay

Status = Literal["loads", "mis-read", "refused", "undecided"]
Effect = Literal["refused", "mis-read", "undecided", "note"]
Evidence = Literal["run", "read", "inferred"]

_LATER_NORM = re.compile(r"^(layers\.[1-9]\d*)\.hidden_norm\.")
"""What SGLang and TensorRT-LLM call the one norm before attention of later layers."""


class TensorHeader(Protocol):
    """A tensor's header: enough to know how an engine would load it."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class ListedFile(Protocol):
    """One file of a directory; `unused` when better weights lie beside it."""

    @property
    def name(self) -> str: ...
    @property
    def unused(self) -> bool: ...


class DirectoryView(Protocol):
    """A directory as an engine sees it, whether on disk or only planned."""

    @property
    def config(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Mapping[str, TensorHeader]: ...
    @property
    def sidecars(self) -> Mapping[str, Mapping[str, object]]: ...
    @property
    def files(self) -> Sequence[ListedFile]: ...


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """`ENGINE[@VERSION][:HARDWARE]`, parsed.

    Attributes:
        hardware: its own name, whatever was typed. `machine`: the name of another machine with that chip, where that
            was typed; only a look at the machine itself asks for it.
    """

    name: str
    version: str
    hardware: str | None = None
    machine: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" + (f":{self.hardware}" if self.hardware else "")

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers: 0.22.1 is (0, 22, 1)."""
        return tuple(int(part) for part in self.version.split(".") if part)

    def before(self, *version: int) -> bool:
        """True when this version is older; as precise as the two have numbers in common."""
        return self.numbers[: len(version)] < version


@dataclass(frozen=True)
class SimulatedLoad:
    """One engine's look at one directory.

    Attributes:
        config: as the engine ends up with it (nested formats flattened its own way).
        fates: where each tensor of the file goes.
        built: the facts the engine builds from config.json alone.
        truth: what the drafter really is.
        lent: canonical tensors that the target's stand in for when the file has none. `replaced`: those among them
            that the target's replace even where the file has them.
        misnamed: why a name is not looked for although its module is built, where a rule of its own says so.
        known: codes of problems (`drafter.problems`) that were found in the drafter.
    """

    view: DirectoryView
    config: Config
    spec: EngineSpec
    results: LoadResults
    built: Facts
    truth: Facts
    target: Target | None
    lent: frozenset[str] = frozenset()
    replaced: frozenset[str] = field(default=frozenset(), kw_only=True)
    misnamed: Causes = ()
    known: frozenset[str] = frozenset()

    @property
    def mla(self) -> bool:
        """True when the drafter itself has latent attention, whatever the engine would build."""
        return isinstance(self.truth.attention, Mla)

    @property
    def on_cpu(self) -> bool:
        """True when the engine was asked about on a CPU."""
        return self.spec.hardware == "cpu"

    @property
    def on_amd(self) -> bool:
        """True when the engine was asked about on a GPU of AMD."""
        return self.spec.hardware in named(*AMD)

    @property
    def eagle(self) -> Config:
        """eagle_config; empty when absent."""
        return self.config.section("eagle_config")

    @property
    def architecture(self) -> str:
        """architectures[0], or "" when absent."""
        return next(iter(self.config.texts("architectures")), "")

    @property
    def model_type(self) -> str:
        """model_type, or "" when absent."""
        return self.config.text("model_type") or ""

    @property
    def trained(self) -> tuple[int, ...] | AuxLayers:
        """The boundaries it was trained on; the default triple in numbers where the target is known."""
        boundaries = self.truth.boundaries
        return default_triple(self.target.layers) if boundaries is AuxLayers.DEFAULT and self.target else boundaries

    def tensor(self, canonical: str) -> TensorHeader | None:
        """The stored tensor that fills a canonical one; None when none does."""
        name = self.results.loaded.get(canonical)
        return self.view.tensors[name] if name is not None else None

    def stored_plain(self, canonical: str) -> bool:
        """True when the tensor is stored as floats, not packed or in a quantized dtype."""
        tensor = self.tensor(canonical)
        return tensor is not None and tensor.dtype in FLOATS

    @cached_property
    def expected_tensors(self) -> Mapping[str, ExpectedTensor]:
        """Canonical tensors that the engine builds modules for."""
        return expected(self.built)

    def misfit(self, name: str) -> str:
        """One of `misshapen` in words."""
        stored, planned = self.misshapen[name], self.expected_tensors[name]
        return f"{self.results.loaded[name]} is {list(stored.shape)}, built as {list(planned.shape)}"

    @cached_property
    def misshapen(self) -> Mapping[str, TensorHeader]:
        """Canonical name → stored tensor of another shape than the engine builds from config.json."""
        return {
            name: stored
            for name, planned in self.expected_tensors.items()
            if (stored := self.tensor(name)) is not None
            and name not in OPTIONAL
            and not is_fused(self.results.loaded[name])
            and not (self.truth.quantization and stored.dtype not in FLOATS)
            and stored.shape != planned.shape
        }

    @cached_property
    def unplaced(self) -> Mapping[str, str]:
        """Canonical name → file name of tensors that are stored and reach no module."""
        return {
            part: name
            for name in (*self.results.dropped, *self.results.fatal)
            for part in fused_parts(_LATER_NORM.sub(r"\1.input_layernorm.", canonical_name(plain_name(name))))
            if part not in self.results.loaded and part not in self.results.packed
        }

    @cached_property
    def lost(self) -> Mapping[str, str]:
        """Those of `unplaced` that are needed, by the drafter's forward pass or a module, and skipped silently.

        Nothing is lost of what gives way to the target's.
        """
        needed = {*expected(self.truth), *self.expected_tensors} - self.lent
        return {
            part: name
            for part, name in self.unplaced.items()
            if part in needed and part not in OPTIONAL and name in self.results.dropped
        }

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Canonical tensors that the engine builds and that it gets from nowhere.

        What is stored under a name that no rule places is missing like what is not stored at all, unless
        a rule of its own tells of the name: `misnamed`, and whatever stops the load.
        """
        reported = {
            part for part, name in self.unplaced.items() if name in self.results.fatal or cause(name, self.misnamed)
        }
        present = {*self.results.loaded, *self.results.packed, *self.lent, *OPTIONAL, *reported}
        return tuple(name for name in self.expected_tensors if name not in present)

    def gap(self, name: str) -> str:
        """One of `missing` in words."""
        stored = self.unplaced.get(name)
        return f"{name} (stored as {stored}, which is not looked for)" if stored else name


Check = Callable[[SimulatedLoad], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing an engine does, with the place that makes it true.

    `check` returns what in this directory breaks the rule, or None. `since` and `until`
    (exclusive) bound the versions it holds for. `replay` is what a mis-reading computes.
    """

    code: str
    effect: Effect
    says: str
    source: str
    evidence: Evidence
    check: Check
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = ()
    replay: Replay = ()

    def applies(self, spec: EngineSpec) -> bool:
        """True when the rule holds for this version of its engine."""
        return not spec.before(*self.since) and (not self.until or spec.before(*self.until))


class Rules:
    """Rules of an engine in the order they are written in: of several that are broken, the first is the reason."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def row(
        self,
        code: str,
        effect: Effect,
        says: str,
        source: str,
        evidence: Evidence,
        check: Check,
        *,
        since: tuple[int, ...] = (),
        until: tuple[int, ...] = (),
        replay: Replay = (),
    ) -> None:
        """A rule with a check that engines share."""
        self._rules.append(Rule(code, effect, says, source, evidence, check, since, until, replay))

    def add(
        self,
        code: str,
        effect: Effect,
        says: str,
        source: str,
        evidence: Evidence,
        *,
        since: tuple[int, ...] = (),
        until: tuple[int, ...] = (),
        replay: Replay = (),
    ) -> Callable[[Check], Check]:
        """A rule whose check is the function below."""

        def added(check: Check) -> Check:
            self.row(code, effect, says, source, evidence, check, since=since, until=until, replay=replay)
            return check

        return added


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One broken rule in one directory."""

    rule: Rule
    detail: str


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """Whether an engine loads a directory and computes what was trained."""

    spec: EngineSpec
    lines: tuple[BrokenRule, ...]
    rules: tuple[Rule, ...] = field(repr=False, default=())
    """Every rule that was applied."""

    @property
    def status(self) -> Status:
        """The worst effect of all broken rules; notes break nothing."""
        effects = {line.rule.effect for line in self.lines}
        for status in ("refused", "mis-read", "undecided"):
            if status in effects:
                return status
        return "loads"

    @property
    def reason(self) -> BrokenRule | None:
        """The first line that makes the status what it is; None when it loads."""
        return next((line for line in self.lines if line.rule.effect == self.status), None)
