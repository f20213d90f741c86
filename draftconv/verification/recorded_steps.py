"""What the record of an output asks to be made again, and what it cannot ask.

A step of a record is a request: which layout, which repairs, which recipe. Values that a drafter depends on are not
taken from it: they come from the source, or from whoever verifies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from draftconv.checkpoint import show
from draftconv.conversion.calibration import calibration_trace
from draftconv.conversion.options import DTYPES, CalibratedOn, ConvertOptions, Embed, QuantizeOptions
from draftconv.conversion.provenance import FILE, Lineage, Origin
from draftconv.conversion.quantization_plan import QuantizationRequest
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target
from draftconv.engines import parse_engine
from draftconv.errors import CheckFailed, DraftconvError, UsageError
from draftconv.options import several
from draftconv.quantization.backends import BackendName
from draftconv.quantization.scheme import WeightScheme
from draftconv.verification.options import VerifyOptions


@dataclass(frozen=True, slots=True)
class Evidence:
    """What whoever verifies gives, because a record can only claim it.

    Attributes:
        repairs: code → the checkpoint that it takes rows from.
        from_format: how the quantized weights of the source are stored.
        verifier: what the conversion was told to call the target.
        tokens: that the output can draft, ascending: a pruned head is made again with these; None where its map is
            not usable, or all can be drafted.
    """

    target: Target | None = None
    max_positions: int | None = None
    repairs: Mapping[str, str] = field(default_factory=dict)
    trace: Path | None = None
    force: bool = False
    from_format: str | None = None
    verifier: str | None = None
    tokens: tuple[int, ...] | None = None

    @classmethod
    def of(cls, options: VerifyOptions, target: Target | None) -> Evidence:
        """What the options give.

        Raises:
            UsageError: a repair without a path.
        """
        given = [repair.partition("=") for repair in several(options.repairs)]
        for code, _, path in given:
            if not path:
                raise UsageError(
                    f"--repair {code}: repairs are known from the record, a path is not",
                    cure=f"write --repair {code}=PATH, or leave it out",
                )
        trace = None if options.calibrate is None else Path(options.calibrate)
        paths = {code: path for code, _, path in given}
        return cls(target, options.max_positions, paths, trace, options.force, options.from_format, options.verifier)


def asked_options(step: Origin, evidence: Evidence, from_format: str | None) -> ConvertOptions:
    """The options of a recorded step, with values from the evidence only.

    Args:
        from_format: how quantized weights of its source are stored, as a person said.

    Raises:
        CheckFailed: an early version's record does not tell. UsageError, BadCheckpoint: it was edited into nonsense.
    """
    asked = step.options
    if asked is None:
        raise CheckFailed(
            "draftconv.json does not tell what was asked of an earlier conversion",
            why="an early version wrote it",
            cure="verify it --against its direct source, and that against its own",
        )
    repairs = asked.texts("repairs") or ()
    if unknown := evidence.repairs.keys() - {repair.partition("=")[0] for repair in repairs}:
        raise CheckFailed(f"--repair {min(unknown)}: draftconv.json names no such repair", cure="leave the option out")
    return ConvertOptions(
        to=asked.text("to") or "",
        embed=_embed(asked),
        dtype=_dtype(asked),
        max_positions=evidence.max_positions,
        verifier=evidence.verifier,
        dequantize=bool(asked.flag("dequantize")),
        pack=asked.text("pack"),
        unpack=asked.texts("unpack") or (),
        allow_lossy=bool(asked.flag("allow_lossy")),
        from_format=from_format,
        repairs=tuple(_with_path(repair.partition("=")[0], evidence) for repair in repairs),
        force=evidence.force,
        deep=bool(asked.flag("deep")),
    )


def asked_quantization(
    quantization: Config, evidence: Evidence, from_format: str | None, *, again: bool
) -> QuantizationRequest:
    """The quantization of a recorded step.

    Args:
        again: whether its source is quantized.

    Raises:
        UsageError, BadCheckpoint: it is a later version's, or was edited into nonsense; or it was calibrated on another
            trace than is given.
    """
    from draftconv.quantization.recipe_schema import parse

    recipe = dict(quantization.section("recipe").data)
    name = str(recipe.pop("name", FILE))
    backend = quantization.section("backend").text("name")
    known: BackendName | None = next((name for name in get_args(BackendName) if name == backend), None)
    if known is None:
        raise UsageError(f"{FILE}: no such backend: {backend}")
    options = QuantizeOptions(
        recipe=name,
        allow_a16=bool(quantization.flag("allow_a16")),
        tensor_parallel_size=quantization.size("tp") or 1,
        backend=known,
        calibrate=evidence.trace,
        calibrate_on=_calibrated_on(quantization),
        requantize=again,
        from_format=from_format,
        force=True,  # what was written is judged, not whether it should have been
    )
    _refuse_other_calibration(quantization, options)
    engines = tuple(map(parse_engine, quantization.texts("engines") or ()))
    return QuantizationRequest(options, parse(json.dumps(recipe), name, FILE), engines)


def _calibrated_on(quantization: Config) -> CalibratedOn:
    """Which requests of its trace a recorded quantization was calibrated on.

    Raises:
        UsageError: it is a later version's, or was edited into nonsense.
    """
    named = quantization.section("calibration").text("on") if quantization.data.get("calibration") else None
    known: CalibratedOn | None = next((part for part in get_args(CalibratedOn) if part == (named or "all")), None)
    if known is None:
        raise UsageError(f"{FILE}: no such part of a trace: {named}")
    return known


def _refuse_other_calibration(quantization: Config, options: QuantizeOptions) -> None:
    """Refuse a trace that the step was not calibrated on: every byte would differ, and nothing would say why.

    Raises:
        UsageError: its hash is not the one on record. BadCheckpoint: it is no trace.
    """
    recorded = quantization.section("calibration").text("trace") if quantization.data.get("calibration") else None
    trace = None if recorded is None else calibration_trace(options)
    if recorded is None or trace is None or recorded == f"sha256:{trace.digest}":
        return
    part = "" if options.calibrate_on == "all" else f", of the {options.calibrate_on} that calibrates"
    raise UsageError(
        f"this is not the trace that the output was calibrated on: draftconv.json has {show(recorded)}, "
        f"{show(trace.directory.name)} has sha256:{trace.digest}{part}",
        why="other text gives other scales and other values",
        cure="give --calibrate the trace that the output was made with",
    )


def rounded_by_gptq(lineage: Lineage | None, facts: Facts) -> Mapping[str, WeightScheme]:
    """Weights of a drafter that the newest quantization on record rounded by GPTQ, by canonical name.

    Their scheme is the record's; that the weights have its scales is proven by the source.
    """
    from draftconv.quantization.exclusions import select
    from draftconv.quantization.recipe_schema import parse

    step = next((step for step in lineage.steps if step.quantization is not None), None) if lineage else None
    if step is None or step.quantization is None:
        return {}
    told = dict(step.quantization.section("recipe").data)
    name = str(told.pop("name", FILE))
    try:
        recipe = parse(json.dumps(told), name, FILE)
        schemes = {weight: recipe.of(role) for weight, role in select(recipe, facts).roles.items()}
    except DraftconvError:
        return {}  # an edited record: the weights are then held to the nearest values
    return {weight: scheme.weights for weight, scheme in schemes.items() if scheme.rounding == "gptq"}


def _embed(asked: Config) -> Embed:
    said = asked.text("embed") or "keep"
    found: Embed | None = next((choice for choice in get_args(Embed) if choice == said), None)
    if found is None:
        raise UsageError(f"{FILE}: no such policy of embed_tokens: {said}")
    return found


def _dtype(asked: Config) -> str | None:
    """As `--dtype` is spelled; records call it as safetensors does, in lower case."""
    said = asked.text("dtype")
    return None if said is None else next((name for name, short in DTYPES.items() if short.lower() == said), said)


def _with_path(code: str, evidence: Evidence) -> str:
    return f"{code}={evidence.repairs[code]}" if code in evidence.repairs else code
