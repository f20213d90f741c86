"""One server: what it loads and mis-reads, and how it is started. Every engine's package makes one `Engine`."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import get_args

from draftconv.drafter.facts import Facts
from draftconv.drafter.kinds import DrafterKind, kind_of
from draftconv.drafter.targets import Target
from draftconv.engines.draft_methods import DraftMethod
from draftconv.engines.dtypes import Float32Stop
from draftconv.engines.hardware import HARDWARE
from draftconv.engines.ignore_lists import IgnoreLists
from draftconv.engines.kept_roles import KeptRole
from draftconv.engines.kernels import Gap, Kernel
from draftconv.engines.live import Live
from draftconv.engines.module_names import NO_NAMES, ModuleNames
from draftconv.engines.other_kinds import OtherKind
from draftconv.engines.quantized_modules import Method, declaration, method_name
from draftconv.engines.replays import Misreading
from draftconv.engines.rules import (
    BrokenRule,
    DirectoryView,
    Effect,
    EngineSpec,
    Evidence,
    LoadVerdict,
    Rule,
    SimulatedLoad,
)
from draftconv.engines.serving import ServeCommand, ServeRequest
from draftconv.engines.shapes import Shapes
from draftconv.engines.target_stops import TargetStop
from draftconv.engines.tracing import Tracing
from draftconv.errors import Refused
from draftconv.layouts.base import Layout
from draftconv.quantization.recipes import FormatName

logger = logging.getLogger(__name__)

UNQUANTIZED = "16 bit"
"""How a drafter is stored that no quantization method has touched."""


def not_started(_: ServeRequest, spec: EngineSpec) -> ServeCommand:
    """What `Engine.command` is where an engine has none.

    Raises:
        Refused: always.
    """
    raise Refused(
        f"how {spec.name} is started is not known",
        why="its package says no command",
        cure="start it by its own documentation",
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """One server: its rules, how it reads a directory, and how it is started.

    Attributes:
        order: engines are listed in this order.
        version: the one that is meant when none is given. `oldest`: of the rules known; before it nothing
            is known. `hardware`: what it may be asked about.
        command: what starts it with a target and a drafter; raises Refused or Undecided when the
            captured layers must be named and have no name there.
        names: what its classes call a drafter's linear layers.
        only_named: it is judged where a person names it to `inspect`, and is in no list or default: nothing is
            written, quantized, started or measured for it.
        kinds: the kinds of drafters that the rules speak of; others are undecided.
        covers: how weights may be stored for the rules to speak of them: `UNQUANTIZED`, methods by quant_method.
            What is stored otherwise is undecided.
        methods: how it matches the lists of each quantization method, by quant_method. `sidecar_wins`: whether it
            goes by hf_quant_config.json where there is one, whatever config.json says.
        lists: how lists of modules are spelled for it, by format, where that is not the usual spelling.
        kernels: the stored forms that it can multiply, preferred ones first. `gaps`: why there is none for others.
        kept_roles: where it multiplies the head or `fc` in 16 bits only, whatever kernels it has.
        shapes: sizes that its kernels ask for. `float32`: quantized weights beside which it cannot compute so.
        replaces: tables of the drafter that the target's replace, if both are equally wide (what the drafter lacks
            is always the target's); None where nobody knows, and then no replay follows its rule.
        layouts: how drafters are written for it, the usual one first. `portable`: whether `--to portable` has to
            suit it too.
        live: how what it accepts is counted; None: it is not asked. `tracing`: how it hands out what a target does;
            None: it runs none for a trace.
        targets: weights of targets that it does not start with.
        draft_methods: how it chooses drafts where text is drawn, by version.
        problems: what it makes of a drafter that has one, by code (`drafter.problems`).
        other_kinds: how it serves drafters that are not EAGLE-3, by `UnsupportedKind.name`.
    """

    name: str
    title: str
    order: int
    version: str
    oldest: str
    hardware: tuple[str, ...]
    rules: tuple[Rule, ...]
    read: Callable[[DirectoryView, Facts, Target | None, EngineSpec], SimulatedLoad]
    command: Callable[[ServeRequest, EngineSpec], ServeCommand] = field(default=not_started)
    names: ModuleNames = NO_NAMES
    kinds: tuple[DrafterKind, ...] = ()
    covers: tuple[str, ...] = ()
    methods: Mapping[str, Method] = field(default_factory=dict)
    lists: Mapping[FormatName, IgnoreLists] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    kept_roles: tuple[KeptRole, ...] = ()
    gaps: tuple[Gap, ...] = ()
    shapes: Shapes = field(default_factory=Shapes)
    float32: tuple[Float32Stop, ...] = ()
    replaces: frozenset[str] | None = None
    sidecar_wins: bool = False
    layouts: tuple[Layout, ...] = ()
    portable: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)
    other_kinds: Mapping[str, OtherKind] = field(default_factory=dict)
    live: Live | None = None
    tracing: Tracing | None = None
    targets: tuple[TargetStop, ...] = ()
    draft_methods: tuple[DraftMethod, ...] = ()
    only_named: bool = False

    def __post_init__(self) -> None:
        """Refuse what would be a wrong verdict or a fault later on, by whoever wrote it.

        Raises:
            ValueError: what is said contradicts itself, or is of another type than it should be.
        """
        if fault := next(_faults(self), None):
            raise ValueError(f"engine {self.name}: {fault}")

    @property
    def layout(self) -> str:
        """The layout to write for it."""
        return self.layouts[0].id if self.layouts else "portable"

    def check(
        self,
        view: DirectoryView,
        truth: Facts,
        target: Target | None,
        spec: EngineSpec,
        known: frozenset[str] = frozenset(),
    ) -> LoadVerdict:
        """Judge a directory that is known to hold a drafter with the facts `truth`.

        `known` are codes of problems already found in it, for what headers cannot show: an
        embedding that differs from the target's.
        """
        load = replace(self.read(view, truth, target, spec), known=known)
        rules = tuple(rule for rule in self.rules if rule.applies(spec))
        lines = tuple(BrokenRule(rule, detail) for rule in rules if (detail := rule.check(load)))
        logger.info("%s: %d rules asked, broken: %s", spec, len(rules), ", ".join(x.rule.code for x in lines) or "none")
        return LoadVerdict(spec, (*lines, *self._uncovered(load, lines), *self._unread_version(spec)), rules)

    def _uncovered(self, load: SimulatedLoad, lines: tuple[BrokenRule, ...]) -> tuple[BrokenRule, ...]:
        """What no rule speaks of cannot be said to load; what is refused is not asked any further."""
        if any(line.rule.effect == "refused" for line in lines):
            return ()
        stored, kind = self._stored_method(load), kind_of(load.truth)
        nothing = "nothing is known of what it loads"
        if kind not in self.kinds:
            known = ", ".join(known.title for known in self.kinds)
            says = f"drafters are known of the kinds {known}" if known else nothing
            return (self._undecided("kind", says, self.version, f"of the kind {kind.title}"),)
        if stored in self.covers:
            return ()
        says = f"weights are known as {', '.join(self.covers)}" if self.covers else nothing
        return (self._undecided("uncovered", says, self.version, f"stored as {stored}"),)

    def _stored_method(self, load: SimulatedLoad) -> str:
        """How the weights are stored: by the method that the directory declares, as this engine reads it."""
        section = load.config.section("quantization_config").data
        declared = declaration(load.spec, section, load.view.sidecars)
        return method_name(declared, sidecar_wins=self.sidecar_wins) or load.truth.quantization or UNQUANTIZED

    def _unread_version(self, spec: EngineSpec) -> tuple[BrokenRule, ...]:
        """A version older than any whose rules are known cannot be said to load anything."""
        floor = EngineSpec(self.name, self.oldest).numbers
        if spec.numbers >= floor[: len(spec.numbers)]:
            return ()
        says = f"nothing is known of versions before {self.oldest}"
        return (self._undecided("version", says, self.oldest, f"{spec} was asked for"),)

    def _undecided(self, code: str, says: str, version: str, detail: str) -> BrokenRule:
        """Something that cannot be decided, whatever the rules say."""
        source = f"{self.title} {version}"
        return BrokenRule(Rule(f"{self.name}-{code}", "undecided", says, source, "inferred", lambda _: None), detail)


_TUPLES: Mapping[str, type] = {
    "hardware": str,
    "rules": Rule,
    "kinds": DrafterKind,
    "covers": str,
    "kernels": Kernel,
    "gaps": Gap,
    "float32": Float32Stop,
    "layouts": Layout,
    "targets": TargetStop,
    "draft_methods": DraftMethod,
}
_ONE: Mapping[str, type | tuple[type, ...]] = {
    "names": ModuleNames,
    "shapes": Shapes,
    "live": (Live, NoneType),
    "tracing": (Tracing, NoneType),
    "replaces": (frozenset, NoneType),
}


def _faults(engine: Engine) -> Iterator[str]:
    """What an engine says of itself that cannot be."""
    if not isinstance(engine.name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", engine.name):
        yield "a name is small letters, digits, - and _"
    for field_name in ("version", "oldest"):
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", str(getattr(engine, field_name))):
            yield f"{field_name} is numbers and dots, not {getattr(engine, field_name)!r}"
    for field_name, kind in _TUPLES.items():
        value = getattr(engine, field_name)
        if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
            yield f"{field_name} is a tuple of {kind.__name__}"
    for field_name, one in _ONE.items():
        if not isinstance(getattr(engine, field_name), one):
            yield f"{field_name} is a {type(getattr(engine, field_name)).__name__}"
    if not all(isinstance(method, Method) for method in engine.methods.values()):
        yield "methods are of the class Method, by quant_method"
    yield from (f"hardware has no {name}: {', '.join(HARDWARE)}" for name in engine.hardware if name not in HARDWARE)
    chips = {HARDWARE[name].chip for name in engine.hardware}
    for kernel in engine.kernels:
        yield from (f"a kernel for {chip}, which no hardware of it has" for chip in kernel.chips if chip not in chips)
    if not {"llama"} <= engine.names.layer.keys() & engine.names.once.keys():
        yield "names have a row for llama, in layers and outside"
    if engine.only_named and (engine.layouts or engine.kernels or engine.live or engine.tracing):
        yield "it is only_named, and has layouts, kernels, live or tracing that nobody would be offered"
    yield from _faults_of_rules(engine)


def _faults_of_rules(engine: Engine) -> Iterator[str]:
    if engine.covers and not engine.rules:
        yield "it covers drafters and has no rule, so that anything would be said to load"
    for method in engine.covers:
        if method != UNQUANTIZED and method not in engine.methods:
            yield f"it covers {method}, and methods does not say how its lists match"
    codes = Counter(rule.code for rule in engine.rules)
    for rule in engine.rules:
        if rule.effect not in get_args(Effect) or rule.evidence not in get_args(Evidence):
            yield f"rule {rule.code} has effect {rule.effect!r} and evidence {rule.evidence!r}"
        if isinstance(rule.replay, tuple) and (unknown := [n for n in rule.replay if n not in get_args(Misreading)]):
            yield f"rule {rule.code} is replayed as {unknown[0]!r}, which is no mis-reading that is known"
        if not rule.code.startswith(f"{engine.name}-") or codes[rule.code] > 1:
            yield f"rule {rule.code}: a code starts with the engine's name, and stands for one rule"
