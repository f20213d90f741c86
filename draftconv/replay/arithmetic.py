"""As which engine the quantized weights of each arm are multiplied in a replay, and who said so.

A file says what activations are to be rounded to; an engine's kernel may do something else. Who is asked, in this
order: `--as`, then the record of the file (`draftconv.json`) where it names one engine. Where nobody tells, or the
engine does not, the file's own word is replayed and the report says that this is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from draftconv.checkpoint import Checkpoint, show, show_some
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts, Mla
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.arithmetic import Arithmetic, arithmetic, declared_scheme
from draftconv.engines.deployed import one_or_each, weakest
from draftconv.engines.deployment import nearest
from draftconv.errors import BadCheckpoint, Refused, Undecided, UsageError
from draftconv.layouts.drafter_reader import by_drafter
from draftconv.options import Place, Several, several
from draftconv.quantization.exclusions import WEIGHT, select
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.recipes import MAIN, FormatName, Recipe
from draftconv.quantization.scheme import InputScheme, Scheme, told_inputs
from draftconv.quantization.weight_detection import find_quantized
from draftconv.report.model import SimulatedArithmetic

AS_FILE = "file"
"""In place of an engine: as the file, or the recipe, says."""

FLAG = "--as"
BY_RECORD = "draftconv.json"
BY_CANDIDATES = "the candidates"

WrittenFor = Callable[[Checkpoint], Sequence[str] | None]
"""The engines that the record of a checkpoint names; None where it has no record that is its own."""


@dataclass(frozen=True, slots=True)
class AskedEngine:
    """Which engine multiplies a drafter, as far as anybody says.

    Attributes:
        spec: the engine; None is as the file says. `by`: who names it.
        why: nobody does, in words; empty where an engine was named, or the file was asked for.
    """

    spec: EngineSpec | None = None
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ArmArithmetic:
    """How an arm is multiplied.

    Attributes:
        told: what the report says. `rounds`: canonical weights whose inputs are rounded as is declared of them; those
            of the others stay as they are. None is all.
        spec: the engine whose kernel decided; None where the file's own word is replayed.
    """

    told: SimulatedArithmetic
    rounds: frozenset[str] | None = None
    spec: EngineSpec | None = None


@dataclass(frozen=True, slots=True)
class SchemePart:
    """Weights of one scheme.

    Attributes:
        names: canonical. `format`, `style`: how they are stored; None is whichever form an engine takes.
    """

    scheme: Scheme
    names: tuple[str, ...]
    format: FormatName | None = None
    style: str | None = None

    def on(self, spec: EngineSpec, facts: Facts) -> Arithmetic:
        """What an engine multiplies them by; raises as `arithmetic`."""
        return arithmetic(spec, self.scheme, self.format, self.style, facts, self.names)


@dataclass(frozen=True, slots=True)
class AskedEngines:
    """Which engines the drafters of a run are multiplied as.

    Attributes:
        typed: drafters and then recipes as they were typed, the reference first.
        named: place in `typed` → what `--as` says of it by name. `every`: what it says of every candidate.
        target: of the trace. `written_for`: the engines in a record.
    """

    typed: tuple[str, ...]
    named: Mapping[int, str]
    every: str | None
    target: Target
    written_for: WrittenFor

    @classmethod
    def of(cls, typed: Sequence[Place], values: Several, target: Target, written_for: WrittenFor) -> AskedEngines:
        """Read what was typed.

        Args:
            values: ENGINE for every candidate, DRAFTER=ENGINE for any drafter, DRAFTER as in `typed`.

        Raises:
            UsageError: about a drafter that is not there, two engines for one, or no engine.
        """
        names = tuple(map(str, typed))
        plain = [value for value in several(values) if "=" not in value]
        if len(plain) > 1:
            raise UsageError(
                f"{FLAG} says two things of every candidate: {show(plain[0])} and {show(plain[1])}",
                cure=f"write {FLAG} DRAFTER={show(plain[1])} for the one that is meant",
            )
        named = by_drafter(names, FLAG, [value for value in several(values) if "=" in value])
        for value in (*plain, *named.values()):
            _typed_engine(value)
        return cls(names, named, plain[0] if plain else None, target, written_for)

    def arithmetics(
        self, drafters: Mapping[str, Drafter], recipes: Sequence[Recipe]
    ) -> tuple[ArmArithmetic | None, ...]:
        """How each of `typed` is multiplied; None where its weights are floats, which are the same everywhere.

        Args:
            drafters: by name in the report, the reference first. `recipes`: that simulate one each.

        Raises:
            Refused: an engine does not take a drafter or a recipe, or reads a file otherwise than it was trained.
            BadCheckpoint: quantized weights cannot be read.
        """
        (name, reference), *candidates = drafters.items()
        found = [self._of_candidate(place, *row) for place, row in enumerate(candidates, 1)]
        found += [self._of_recipe(place, recipe, reference) for place, recipe in enumerate(recipes, len(drafters))]
        return (self._of_reference(name, reference, [one for one in found if one is not None]), *found)

    def of_each(self, drafters: Mapping[str, Drafter]) -> tuple[ArmArithmetic | None, ...]:
        """How each drafter is multiplied where none is a reference; None where its weights are floats.

        Raises:
            Refused, BadCheckpoint: as `arithmetics`.
        """
        return tuple(self._of_candidate(place, *row) for place, row in enumerate(drafters.items()))

    def _of_candidate(self, place: int, name: str, drafter: Drafter) -> ArmArithmetic | None:
        if drafter.facts.quantization is None:
            return None
        return self._of_file(place, name, drafter, self._asked(place) or self._recorded(drafter))

    def _of_recipe(self, place: int, recipe: Recipe, reference: Drafter) -> ArmArithmetic:
        """The reference as a recipe would leave it."""
        asked, facts = self._asked(place) or AskedEngine(why="no engine is named"), reference.facts
        parts = recipe_parts(recipe, facts)
        if (spec := asked.spec) is None:
            return _as_declared(parts, asked)
        try:
            found = [part.on(spec, facts) for part in parts]
        except Undecided as error:
            return _as_declared(parts, asked, _text(error))
        except Refused as error:
            hardware = spec.hardware or ENGINES[spec.name].hardware[0]
            other = nearest(recipe, spec.name, hardware, mla=isinstance(facts.attention, Mla))
            raise Refused(
                f"recipe {recipe.name} has no form on {spec}: {error.what}",
                why=error.why,
                cure=(f"--fake-quant {other} has one there; " if other else "")
                + f"{FLAG} {show(self.typed[place])}={AS_FILE} simulates this one as it is written",
            ) from error
        return _as_engine(parts, found, asked, spec)

    def _of_reference(self, name: str, drafter: Drafter, others: Sequence[ArmArithmetic]) -> ArmArithmetic | None:
        """By what is said of it, else like its candidates: its numbers, in whichever form their engine takes."""
        if drafter.facts.quantization is None:
            return None
        if 0 in self.named:
            return self._of_file(0, name, drafter, _typed(self.named[0]))
        recorded = self._recorded(drafter)
        if self.every is None and recorded.spec is not None:
            return self._of_file(0, name, drafter, recorded)
        parts = _stored_parts(_stored(name, drafter))
        if self.every == AS_FILE:
            return _as_declared(parts, _typed(AS_FILE))
        specs = {other.spec for other in others}
        spec = next(iter(specs)) if len(specs) == 1 else None
        if spec is None:
            several_engines = "its candidates are not all multiplied as one engine"
            return _as_declared(parts, AskedEngine(why=several_engines if specs - {None} else recorded.why))
        asked = AskedEngine(spec, BY_CANDIDATES)
        try:
            found = [replace(part, format=None, style=None).on(spec, drafter.facts) for part in parts]
        except (Refused, Undecided) as error:
            return _as_declared(parts, asked, _text(error))
        return _as_engine(parts, found, asked, spec)

    def _asked(self, place: int) -> AskedEngine | None:
        value = self.named.get(place, self.every)
        return None if value is None else _typed(value)

    def _recorded(self, drafter: Drafter) -> AskedEngine:
        """What the record says, where it names one engine."""
        match self.written_for(drafter.checkpoint):
            case None:
                return AskedEngine(why=f"no engine is named, and it has no {BY_RECORD} of its own")
            case [only]:
                try:
                    return AskedEngine(parse_engine(only), BY_RECORD)
                except UsageError as error:
                    return AskedEngine(why=f"its {BY_RECORD} names {show(only)}: {error.what}")
            case engines:
                return AskedEngine(why=f"its {BY_RECORD} names {', '.join(map(show, engines)) or 'no engine'}")

    def _of_file(self, place: int, name: str, drafter: Drafter, asked: AskedEngine) -> ArmArithmetic:
        """A file as the engine multiplies it that was asked for."""
        parts = _stored_parts(_stored(name, drafter))
        if (spec := asked.spec) is None:
            return _as_declared(parts, asked)
        try:
            _refuse_misread(drafter, self.target, spec)
            found = [part.on(spec, drafter.facts) for part in parts]
        except Undecided as error:
            return _as_declared(parts, asked, _text(error))
        except Refused as error:
            named = f" (named by its {asked.by})" if asked.by == BY_RECORD else ""
            raise Refused(
                f"{name} cannot be replayed as {spec}{named}: {error.what}",
                why=error.why,
                cure=f"give the engine that serves it: {FLAG} ENGINE:HARDWARE; "
                f"{FLAG} {show(self.typed[place])}={AS_FILE} replays it as it says itself",
            ) from error
        return _as_engine(parts, found, asked, spec)


def recipe_parts(recipe: Recipe, facts: Facts) -> tuple[SchemePart, ...]:
    """What a recipe makes of the weights of a drafter, scheme by scheme."""
    names: dict[str, list[str]] = {}
    for name, role in select(recipe, facts).roles.items():
        names.setdefault(role, []).append(name)
    # What a role is stored as follows from the format of the others, which no arithmetic depends on.
    return tuple(
        SchemePart(recipe.of(role), tuple(of), recipe.format if role == MAIN else None) for role, of in names.items()
    )


def _stored_parts(stored: QuantizedWeights) -> tuple[SchemePart, ...]:
    return tuple(
        SchemePart(
            declared_scheme(match.declared),
            tuple(f"{module}{WEIGHT}" for module in modules),
            match.format.id,
            match.declared.style,
        )
        for match, modules in stored.parts.items()
    )


def _refuse_misread(drafter: Drafter, target: Target, spec: EngineSpec) -> None:
    """Refuse a file that the engine does not load, or computes otherwise than it was trained.

    Raises:
        Refused: it is one. Undecided: nobody knows.
    """
    verdict, title = ENGINES[spec.name].check(drafter.checkpoint, drafter.facts, target, spec), ENGINES[spec.name].title
    if (line := verdict.reason) is None:
        return
    reason = f"{line.rule.says}: {line.detail} [{line.rule.code}; {line.rule.source}]"
    if verdict.status == "undecided":
        raise Undecided(f"whether {title} loads it is undecided", why=reason)
    raise Refused(f"{title} would not compute it as it was trained ({verdict.status})", why=reason)


def _stored(name: str, drafter: Drafter) -> QuantizedWeights:
    try:
        return find_quantized(drafter)
    except (Refused, BadCheckpoint) as error:
        raise type(error)(f"{name}: {error.what}", why=error.why, cure=error.cure) from error


def _typed(value: str) -> AskedEngine:
    return AskedEngine(_typed_engine(value), FLAG)


def _typed_engine(value: str) -> EngineSpec | None:
    return None if value == AS_FILE else parse_engine(value)


def _as_declared(parts: Sequence[SchemePart], asked: AskedEngine, why: str = "") -> ArmArithmetic:
    engine = "" if asked.spec is None else str(asked.spec)
    told = _activations((part, part.scheme.inputs) for part in parts)
    return ArmArithmetic(SimulatedArithmetic(engine, asked.by, told, undecided=why or asked.why))


def _as_engine(
    parts: Sequence[SchemePart], found: Sequence[Arithmetic], asked: AskedEngine, spec: EngineSpec
) -> ArmArithmetic:
    """How an engine multiplies each of these parts."""
    pairs = list(zip(parts, found, strict=True))
    told = SimulatedArithmetic(
        engine=str(spec),
        chosen_by=asked.by,
        activations=_activations((part, one.inputs) for part, one in pairs),
        executed=one_or_each({_named(part): one.executed for part, one in pairs}),
        source="; ".join(dict.fromkeys(one.source for one in found)),
        evidence=weakest(one.evidence for one in found),
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
    )
    ignored = [part for part, one in pairs if part.scheme.inputs is not None and one.inputs is None]
    rounds = frozenset(name for part in parts if part not in ignored for name in part.names)
    return ArmArithmetic(told, rounds if ignored else None, spec)


def _activations(inputs: Iterable[tuple[SchemePart, InputScheme | None]]) -> str:
    return told_inputs({name.removesuffix(WEIGHT): scheme for part, scheme in inputs for name in part.names})


def _named(part: SchemePart) -> str:
    return show_some([name.removesuffix(WEIGHT) for name in part.names])


def _text(error: Refused | Undecided) -> str:
    return ": ".join(filter(None, (error.what, error.why)))
