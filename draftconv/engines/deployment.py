"""Which format serves a scheme on an engine and its hardware, and what is multiplied there.

The engines' own tables (`Engine.kernels`, `Engine.gaps`) decide; `NEAREST` says which shipped recipes come closest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from draftconv.drafter.facts import Facts, Mla
from draftconv.engines.deployed import Deployment, one_or_each, weakest
from draftconv.engines.hardware import CHIPS, Chip, named
from draftconv.engines.kernels import FP8_TENSOR, FP8_TOKEN, INT8_TOKEN, NVFP4_BLOCK, Kernel
from draftconv.engines.registry import ENGINES
from draftconv.engines.role_forms import absent, beside, kept_role, quantized_tables, role_recipes
from draftconv.engines.rules import EngineSpec
from draftconv.errors import Refused, Undecided
from draftconv.quantization.recipes import (
    FORMATS,
    FormatName,
    Recipe,
    find_recipe,
    in_one_file,
)
from draftconv.quantization.scheme import Granularity, InputScheme, Scheme, WeightDtype

NEAREST: Mapping[tuple[WeightDtype, Granularity, InputScheme | None], tuple[str, ...]] = {
    ("int4", "channel", None): ("w4a16", "w4a16-awq"),
    ("int4", "group", None): ("w4a16-g128", "w4a16-awq"),
    ("int4", "channel", INT8_TOKEN): ("w4a8", "w4a8-awq", "w4a16"),
    ("int4", "group", INT8_TOKEN): ("w4a8", "w4a8-awq", "w4a16-g128"),
    ("int4", "channel", FP8_TOKEN): ("w4a8-fp8", "w4a8-awq", "w4a16"),
    ("int4", "group", FP8_TOKEN): ("w4a8-fp8", "w4a8-awq", "w4a16-g128"),
    ("int4", "group", FP8_TENSOR): ("w4a8-awq", "w4a8-fp8", "w4a16-g128"),
    ("nvfp4", "group", NVFP4_BLOCK): ("mxfp4", "w4a8-awq", "w4a16-g128"),
    ("mxfp4", "group", FP8_TENSOR): ("w4a8-fp8", "nvfp4", "w4a8-awq", "w4a16-g128"),
}
"""Shipped recipes to fall back to, by what the scheme is; the first that has a form there is named."""

WHOLE = ("fp8-all", "int8-all")
"""Nearer than these for a recipe that quantizes the head too: half the bytes of everything."""

LAST_RESORT = ("fp8", "fp8-tensor")
"""Nearest of all, for every engine has one of them on every GPU."""

DEFAULTS: Mapping[WeightDtype, FormatName] = {
    "int4": "compressed-pack",
    "int8": "compressed-int",
    "fp8": "compressed-float",
    "nvfp4": "modelopt-nvfp4",
    "mxfp4": "quark-mxfp4",
}
"""What holds a scheme that no engine has a kernel for."""


def resolve(recipe: Recipe, spec: EngineSpec, *, allow_a16: bool = False, facts: Facts | None = None) -> Deployment:
    """The form in which an engine runs a recipe, decided before any work.

    Without hardware in `spec`: the form that serves it on all of the engine's hardware.

    Args:
        allow_a16: write the scheme without its activations where only that has a form.
        facts: of the drafter; latent attention is not served everywhere. None is Llama-style.

    Raises:
        Refused: there is none; names the nearest shipped recipe that has one.
        Undecided: it depends on the hardware, which `spec` does not name.
    """
    present = recipe if facts is None else recipe.keeping(absent(facts))
    return resolve_kind(present, spec, allow_a16=allow_a16, mla=facts is not None and isinstance(facts.attention, Mla))


def resolve_kind(recipe: Recipe, spec: EngineSpec, *, allow_a16: bool = False, mla: bool) -> Deployment:
    """As `resolve`, for all drafters with latent attention, or all Llama-style ones."""

    def resolved(part: Recipe) -> Deployment:
        if spec.hardware is not None:
            return _resolve_on(part, spec.name, spec.hardware, allow_a16=allow_a16, mla=mla)
        return _resolve_everywhere(part, spec.name, allow_a16=allow_a16, mla=mla)

    chosen = resolved(recipe)
    roles: dict[str, Deployment] = {}
    kept: dict[str, str] = {}
    for role, part in role_recipes(recipe).items():
        try:
            roles[role] = beside(chosen.format, part, resolved)
        except Refused as refusal:
            if role not in recipe.may_stay:
                raise
            kept[role] = refusal.why
    for table, role in quantized_tables(recipe.keeping(kept)).items():
        if (row := kept_role(spec, table, roles.get(role, chosen).format, mla=mla)) is None:
            continue
        if table not in recipe.may_stay:
            raise Refused(
                f"recipe {recipe.name} quantizes {table}, which {ENGINES[spec.name].title} would not read so",
                why=f"{row.says} [{row.evidence}: {row.source}]",
                cure=f"add {table} to exclude, or to may_stay, which keeps it in 16 bits for such engines only",
            )
        kept[table] = f"{row.says} [{row.evidence}: {row.source}]"
        roles.pop(table, None)
    notes = (f"{role} stays in 16 bits: {why}" for role, why in kept.items())
    return replace(chosen, roles=roles, kept=kept, notes=(*chosen.notes, *notes, *release_note(spec)))


def release_note(spec: EngineSpec) -> Iterator[str]:
    """That the kernels are those of another release than the one asked about."""
    known = ENGINES[spec.name].version
    if not all(a == b for a, b in zip(spec.numbers, EngineSpec(spec.name, known).numbers, strict=False)):
        yield f"kernels are those of {ENGINES[spec.name].title} {known}; {spec.version} was not looked at"


def usual_style(engine: str, format_name: FormatName) -> str | None:
    """The style in which an engine's kernels take a format; None for that in which it is usually written."""
    return next((kernel.style for kernel in ENGINES[engine].kernels if kernel.format == format_name), None)


def stored_kernel(
    spec: EngineSpec, format_name: FormatName | None, style: str | None, scheme: Scheme, *, mla: bool
) -> Kernel:
    """What runs weights that are stored so, on the hardware that `spec` names; without a format, in whichever it takes.

    Raises:
        Refused: nothing does.
    """
    hardware = str(spec.hardware)
    for kernel in _kernels(scheme, format_name, spec.name, hardware, mla=mla):
        if format_name != "autoawq" or style == kernel.style:  # two methods read the same tensors
            return kernel
    why, source = _gap(Recipe("", "", scheme, (), format_name), spec.name, CHIPS[hardware], mla=mla)
    raise Refused(
        f"{ENGINES[spec.name].title} on {hardware} has no kernel for these weights",
        why=f"they are {', '.join(filter(None, (format_name, scheme.weights.title)))}, "
        f"activations {scheme.inputs or '16 bit'}: "
        f"{why} ({source})",
    )


def has_kernel(spec: EngineSpec, format_name: FormatName, scheme: Scheme, *, mla: bool) -> bool:
    """Whether an engine runs weights that are stored so, on the hardware that `spec` names or on any."""
    return any(True for name in _hardware(spec) for _ in _kernels(scheme, format_name, spec.name, name, mla=mla))


def refuse_unread(spec: EngineSpec, format_name: FormatName, scheme: Scheme, *, mla: bool) -> None:
    """Refuse stored weights that an engine has no kernel for, on the hardware that `spec` names or on any.

    Raises:
        Refused: there is none; says why, per hardware where that differs.
    """
    if has_kernel(spec, format_name, scheme, mla=mla):
        return
    recipe = Recipe("", "", scheme, (), format_name)
    gaps = {name: _gap(recipe, spec.name, CHIPS[name], mla=mla) for name in _hardware(spec)}
    why = one_or_each({name: f"{why} ({source})" for name, (why, source) in gaps.items()})
    raise Refused(f"{ENGINES[spec.name].title} has no kernel for these weights", why=why)


def _hardware(spec: EngineSpec) -> tuple[str, ...]:
    return (spec.hardware,) if spec.hardware else ENGINES[spec.name].hardware


def widest(recipe: Recipe, facts: Facts | None = None) -> Deployment:
    """The form that most engines and hardware serve; what is written when no engine is named.

    Args:
        facts: of the drafter; latent attention is not served everywhere. None is Llama-style.
    """
    mla = facts is not None and isinstance(facts.attention, Mla)
    main = _widest(recipe.scheme, (recipe.format,) if recipe.format else (), mla=mla)
    roles = {role: _widest(scheme, in_one_file(main.format), mla=mla) for role, scheme in recipe.roles.items()}
    return replace(main, roles=roles)


def _widest(scheme: Scheme, formats: Collection[FormatName], *, mla: bool) -> Deployment:
    """The same of one scheme.

    Args:
        formats: that it may be stored in, the one to take where no engine has a kernel first; empty is any.
    """
    served = [
        (engine, kernel)
        for engine in ENGINES.values()
        for kernel in engine.kernels
        if kernel.serves(scheme, kernel.format if kernel.format in formats else None, mla=mla)
        and (not formats or kernel.format in formats)
    ]
    count = dict.fromkeys(((kernel.format, kernel.style) for _, kernel in served), 0)
    for _, kernel in served:
        count[kernel.format, kernel.style] += sum(chip in kernel.chips for chip in CHIPS.values())
    usual = DEFAULTS[scheme.weights.dtype]
    unserved = usual if not formats or usual in formats else next(iter(formats))
    format_name, style = max(
        count, key=lambda key: count[key], default=(unserved, next(iter(FORMATS.get(unserved, ())), None))
    )
    chosen = [(engine, kernel) for engine, kernel in served if (kernel.format, kernel.style) == (format_name, style)]
    return Deployment(
        format_name,
        style,
        scheme,
        "not decided: no engine was named",
        "; ".join(dict.fromkeys(kernel.source for _, kernel in chosen)) or "no engine has a kernel for it",
        weakest(kernel.evidence for _, kernel in chosen),
        tuple(f"{engine.title} on {_chip_names(kernel)}: {kernel.executed}" for engine, kernel in chosen),
    )


def _resolve_on(recipe: Recipe, engine: str, hardware: str, *, allow_a16: bool, mla: bool) -> Deployment:
    kernels = _kernels(recipe.scheme, recipe.format, engine, hardware, mla=mla)
    if kernel := next(kernels, None):
        return deployment(kernel, recipe.scheme)
    weight_only = replace(recipe.scheme, inputs=None)
    stripped = next(_kernels(weight_only, recipe.format, engine, hardware, mla=mla), None)
    if recipe.scheme.inputs is not None and stripped is not None and allow_a16:
        note = f"activations stay in 16 bits: {recipe.scheme.inputs} was left out of the file"
        return replace(deployment(stripped, weight_only), notes=(*stripped.notes, note))
    why, source = _gap(recipe, engine, CHIPS[hardware], mla=mla)
    raise Refused(
        f"recipe {recipe.name} has no form on {ENGINES[engine].title} on {hardware}",
        why=f"{why} ({source})",
        cure=_cure(recipe, engine, hardware, stripped if recipe.scheme.inputs else None, mla=mla),
    )


def _resolve_everywhere(recipe: Recipe, engine: str, *, allow_a16: bool, mla: bool) -> Deployment:
    """One form for all hardware, or the hardware to choose from."""
    names = ENGINES[engine].hardware
    forms = dict.fromkeys(
        (kernel.format, kernel.style)
        for name in names
        for kernel in _kernels(recipe.scheme, recipe.format, engine, name, mla=mla)
    )
    for form in forms:
        rows = {
            name: kernel
            for name in names
            for kernel in _kernels(recipe.scheme, recipe.format, engine, name, mla=mla)
            if (kernel.format, kernel.style) == form
        }
        if len(rows) == len(names):
            return _merged(rows, recipe.scheme)
    outcomes: dict[str, Deployment | Refused] = {}
    for name in names:
        try:
            outcomes[name] = _resolve_on(recipe, engine, name, allow_a16=allow_a16, mla=mla)
        except Refused as refusal:
            outcomes[name] = refusal
    deployments = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Deployment)}
    if len(deployments) == len(names) and len({(o.format, o.style, o.scheme) for o in deployments.values()}) == 1:
        first = next(iter(deployments.values()))
        return replace(
            first,
            executed=one_or_each({name: outcome.executed for name, outcome in deployments.items()}),
            weight_only=all(outcome.weight_only for outcome in deployments.values()),
        )
    if deployments:
        raise Undecided(
            f"{ENGINES[engine].title} runs recipe {recipe.name} differently, or not at all, "
            "from one hardware to another",
            why="; ".join(
                f"{name}: {outcome.format}, {outcome.executed}" if isinstance(outcome, Deployment) else f"{name}: none"
                for name, outcome in outcomes.items()
            ),
            cure=f"name the hardware: {', '.join(f'{engine}:{name}' for name in deployments)}",
        )
    refused = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Refused)}
    raise Refused(
        f"recipe {recipe.name} has no form on {ENGINES[engine].title}",
        why=one_or_each({name: refusal.why for name, refusal in refused.items()}),
        cure=one_or_each({name: refusal.cure for name, refusal in refused.items()}),
    )


def _kernels(
    scheme: Scheme, format_name: FormatName | None, engine: str, hardware: str, *, mla: bool
) -> Iterator[Kernel]:
    chip = CHIPS[hardware]
    for kernel in ENGINES[engine].kernels:
        if chip in kernel.chips and kernel.serves(scheme, format_name, mla=mla):
            yield kernel


def deployment(kernel: Kernel, scheme: Scheme) -> Deployment:
    """What a kernel makes of weights and activations that a file declares so."""
    return Deployment(
        kernel.format,
        kernel.style,
        scheme,
        kernel.executed,
        kernel.source,
        kernel.evidence,
        kernel.notes,
        kernel.weight_only,
    )


def _merged(rows: Mapping[str, Kernel], scheme: Scheme) -> Deployment:
    first = next(iter(rows.values()))
    return Deployment(
        first.format,
        first.style,
        scheme,
        one_or_each({name: kernel.executed for name, kernel in rows.items()}),
        "; ".join(dict.fromkeys(kernel.source for kernel in rows.values())),
        weakest(kernel.evidence for kernel in rows.values()),
        tuple(dict.fromkeys(f"{_chip_names(kernel)}: {note}" for kernel in rows.values() for note in kernel.notes)),
        all(kernel.weight_only for kernel in rows.values()),
    )


def _chip_names(kernel: Kernel) -> str:
    return ", ".join(named(*kernel.chips))


def _gap(recipe: Recipe, engine: str, chip: Chip, *, mla: bool) -> tuple[str, str]:
    for gap in ENGINES[engine].gaps:
        if gap.holds(recipe.scheme, recipe.format, chip, mla=mla):
            return gap.why, gap.source
    suffix = f" as {recipe.format}" if recipe.format else ""
    return f"no kernel takes {recipe.scheme}{suffix}", "the table of its kernels"


def has_form(recipe: Recipe, spec: EngineSpec, *, mla: bool) -> bool:
    """Whether an engine runs a recipe; without hardware in `spec`, on all of its hardware."""
    machines = (spec.hardware,) if spec.hardware else ENGINES[spec.name].hardware
    return all(
        any(True for _ in _kernels(scheme, recipe.format, spec.name, name, mla=mla))
        for name in machines
        for scheme in (recipe.scheme, *recipe.roles.values())
    )


def nearest(recipe: Recipe, engine: str, hardware: str, *, mla: bool = False) -> str | None:
    """The shipped recipe that comes closest and has a form there; None when none has."""
    scheme = recipe.scheme
    kind = (scheme.weights.dtype, scheme.weights.granularity, scheme.inputs)
    whole: tuple[str, ...] = () if "lm_head" in recipe.exclude else WHOLE
    for name in (*whole, *NEAREST.get(kind, ()), *LAST_RESORT):
        other = find_recipe(name)
        if name != recipe.name and next(_kernels(other.scheme, other.format, engine, hardware, mla=mla), None):
            return name
    return None


def _cure(recipe: Recipe, engine: str, hardware: str, stripped: Kernel | None, *, mla: bool) -> str:
    cures = []
    if name := nearest(recipe, engine, hardware, mla=mla):
        cures.append(f"--recipe {name} is the nearest that has one")
    if stripped is not None:
        cures.append("--allow-a16 writes this recipe with activations left in 16 bits")
    if recipe.format:
        format_name = _repack_format(recipe, engine, hardware, mla=mla)
        step, how = (
            ("repack without loss", f"--pack {format_name}") if format_name else ("write 16 bits again", "--dequantize")
        )
        to = ENGINES[engine].layout
        cures.append(f"or quantize without --for and {step}: draftconv convert OUT OUT2 --to {to} {how}")
    return "; ".join(cures)


def _repack_format(recipe: Recipe, engine: str, hardware: str, *, mla: bool) -> FormatName | None:
    """Another format that holds the same integers there: with the same scales, or those of rows repeated per group."""
    weights = recipe.scheme.weights
    schemes = [recipe.scheme]
    if weights.granularity == "channel" and weights.dtype == "int4":
        schemes.append(replace(recipe.scheme, weights=replace(weights, granularity="group", group=128)))
    return next(
        (kernel.format for scheme in schemes for kernel in _kernels(scheme, None, engine, hardware, mla=mla)), None
    )
