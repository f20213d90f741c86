"""Quantize a drafter into the format that an engine really runs.

recipe → form on each engine named → read → which tensors → plan, checked as the engine would → (write)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.attestation.provenance import attest_conversion
from draftconv.attestation.statement import refuse_statement
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.text import size
from draftconv.conversion.calibration import calibration_trace
from draftconv.conversion.options import QuantizeOptions
from draftconv.conversion.plan import Conversion, plan_drafter, refuse_place
from draftconv.conversion.quantization_plan import (
    QuantizationPlan,
    QuantizationRequest,
    plan_quantization,
    refuse_unneeded_trace,
)
from draftconv.display import Block, Displayed, Table, card, named, table
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Mla
from draftconv.drafter.targets import find_target
from draftconv.engines.deployed import by_role
from draftconv.engines.offers import instead
from draftconv.options import Place, takes

if TYPE_CHECKING:
    from draftconv.conversion.backend_choice import BackendChoice
    from draftconv.replay.gptq_files import WeightRecord

__all__ = ["Quantization", "QuantizeOptions", "prepare", "quantize"]

OUTLIER = 2.0
"""A row whose error is this many times that of the median row is worth a warning."""


@dataclass(frozen=True, slots=True, repr=False)
class Quantization(Displayed):
    """A quantization that is decided and checked; once it is written, `decided.deviations` tells every error.

    Attributes:
        doubts: what speaks against the trace that it is calibrated on.
    """

    decided: QuantizationPlan
    conversion: Conversion
    doubts: tuple[str, ...] = ()

    def write(
        self,
        out: str | Path,
        *,
        overwrite: bool = False,
        progress: Callable[[int], None] | None = None,
        calibrating: Callable[[int, int], None] | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """Write the directory `out`, which appears whole or not at all; see `Conversion.write`.

        Args:
            calibrating: told how much GPTQ has done, and how much there is.
            announce: told where this run goes on with what a stopped one did.
        """
        gptq = self.decided.calibration.gptq
        if gptq is None:
            self.conversion.write(out, overwrite=overwrite, progress=progress)
            return
        from draftconv.checkpoint.kept_work import kept_work
        from draftconv.replay.gptq_files import GptqFiles

        with kept_work(Path(out), gptq.key, "calibration", announce) as work:
            gptq.run(GptqFiles(work), calibrating)
            self.conversion.write(out, overwrite=overwrite, progress=progress)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is still worth knowing of the output; how the source was read is told apart."""
        problems = (f"{p.code}: {p.detail}" for p in self.conversion.warnings if not p.kind.reading)
        left_out = map(str, self.conversion.left_out)
        gptq = self.decided.calibration.gptq
        short = gptq.warnings() if gptq else ()
        return (*self.doubts, *self.decided.faults, *short, *problems, *left_out, *self._outliers())

    @property
    def bytes_of(self) -> Mapping[str, tuple[int, int]]:
        """Bytes of each quantized weight before and after."""
        after: dict[str, int] = {}
        for name, tensor in self.conversion.work.tensors.items():
            module = name.rpartition(".")[0]
            after[module] = after.get(module, 0) + tensor.nbytes
        decided, source = self.decided, self.conversion.drafter.tensors
        stored = decided.stored.modules if decided.stored else {}
        sources = {
            name: stored[_module(name)].values() if _module(name) in stored else (source[name],)
            for name in decided.selection.quantized
        }
        return {name: (sum(ref.nbytes for ref in refs), after[_module(name)]) for name, refs in sources.items()}

    @property
    def quantized_bytes(self) -> tuple[int, int]:
        """Bytes of all quantized weights before and after."""
        sizes = self.bytes_of.values()
        return sum(before for before, _ in sizes), sum(after for _, after in sizes)

    @property
    def all_bytes(self) -> tuple[int, int]:
        """Bytes of all tensors before and after."""
        drafter = self.conversion.drafter
        every = {**drafter.tensors, **drafter.qparams}
        return sum(ref.nbytes for ref in every.values()), self.conversion.plan.total_bytes

    @property
    def instead(self) -> str:
        """The recipe that quantizes what every engine named multiplies and no more; empty where it is this one."""
        decided, mla = self.decided, isinstance(self.conversion.drafter.facts.attention, Mla)
        pairs = zip(decided.specs, decided.deployments.values(), strict=True)
        names = {instead(decided.recipe, deployment, spec, mla=mla) for spec, deployment in pairs}
        return names.pop() if len(names) == 1 else ""

    def brief(self) -> Iterator[str]:
        """What was quantized, the recipe and its format, how large it is, and what runs where."""
        decided, (before, after) = self.decided, self.all_bytes
        yield named(self.conversion.drafter.checkpoint.name)
        yield f"{decided.recipe.name} as {decided.deployment.format}"
        yield f"{size(after)} ({100 * after / before:.0f} %)"
        yield from (f"{name}: {deployment.executed}" for name, deployment in decided.deployments.items())

    def blocks(self) -> Iterator[Block]:
        """How large it is; then warnings, what was decided, and the error of every weight once it is written."""
        yield self._amount()
        yield from (f"Warning: {line}" for line in self.warnings)
        if self.instead:
            yield f"Only the weights are quantized in what is multiplied there: recipe {self.instead} says no more."
        yield card(f"Recipe {self.decided.recipe.name}", _decisions(self.decided))
        gptq = self.decided.calibration.gptq
        if gptq and not gptq.records:
            yield f"GPTQ will take about {gptq.estimate()}"
        if self.decided.deviations:
            yield self._weights()
        if gptq and gptq.records:
            yield _gptq_table(gptq.records)

    def _amount(self) -> str:
        before, after = self.all_bytes
        return f"{size(after)}, {100 * after / before:.0f} % of {size(before)}"

    def _outliers(self) -> Iterator[str]:
        for name, d in self.decided.deviations.items():
            if d.typical and d.worst > OUTLIER * d.typical:
                yield f"{_module(name)}: row {d.row} has {d.worst / d.typical:.1f} times the error of the median row"

    def _weights(self) -> Table:
        from draftconv.quantization.deviation import total

        decided, bytes_of = self.decided, self.bytes_of
        rows = [
            (
                _module(name),
                decided.part(name).scheme.weights.title,
                deviation.relative,
                f"{deviation.row}: {_percent(deviation.worst)}",
                deviation.largest,
                *bytes_of[name],
            )
            for name, deviation in ((name, decided.deviations[name]) for name in decided.selection.quantized)
        ]
        whole = total(decided.deviations)
        rows.append(("total", "", whole.relative, _percent(whole.worst), whole.largest, *self.quantized_bytes))
        return table(
            "Quantized weights",
            "",
            ("weight", "scheme", "relative error", "worst row", "largest error", "before", "after"),
            (
                (name, scheme, _percent(error), worst, f"{largest:.3g}", size(before), size(after))
                for name, scheme, error, worst, largest, before, after in rows
            ),
        )


@takes(QuantizeOptions)
def quantize(source: Place, out: Place, options: QuantizeOptions) -> Quantization:
    """Quantize a drafter and write it.

    Args:
        source: directory, weights file or Hub id. `out`: directory to make.

    Raises:
        DraftconvError: see `prepare`; WriteError when the output cannot be written.
    """
    refuse_place(source, out, overwrite=options.overwrite)
    refuse_statement(options.attest, out)
    quantization = prepare(source, options)
    quantization.write(out, overwrite=options.overwrite, progress=options.progress, calibrating=options.calibrating)
    attest_conversion(quantization.conversion, options, Path(out))
    return quantization


def prepare(source: Place, options: QuantizeOptions, *, download: bool = True, calibrated: bool = True) -> Quantization:
    """Decide and check a quantization without writing anything.

    Args:
        calibrated: without, a recipe that wants a trace is planned without one: for its sizes, not to be written.

    Raises:
        Refused: an engine has no form of the recipe or no kernel for the drafter's sizes, the recipe rounds the
            head to the nearest of 4 bits, the drafter is quantized already, the backend does not have the
            scheme, or what would be written would not be read rightly.
        Undecided: the source can be read in several ways.
        UsageError: unknown recipe or engine, several engines that need different files, no calibration or
            one that is not needed, a backend whose package is missing or does not start.
    """
    request = QuantizationRequest.of(options)
    target = find_target(options.convert.target, options.convert.target_layers)
    drafter = options.convert.reading.read(
        open_checkpoint(source, download=download, hashed=options.hash and download), target
    )
    decided = plan_quantization(drafter, target, request, calibrated=calibrated)
    refuse_unneeded_trace(decided)
    findings = check_drafter(drafter, target, level="deep" if options.convert.deep else "sample")
    return Quantization(decided, plan_drafter(drafter, findings, target, decided.request), _doubts(drafter, decided))


def _doubts(drafter: Drafter, decided: QuantizationPlan) -> tuple[str, ...]:
    """What speaks against the trace that a quantization is calibrated on; nothing where it is calibrated on none."""
    trace = calibration_trace(decided.requested.options) if decided.rounding.calibrated else None
    if trace is None:
        return ()
    from draftconv.replay.drafters import embedding_doubts

    return embedding_doubts(drafter.checkpoint.name, drafter, trace)


# ── in words ───────────────────────────────────────────────────────────────────────


def _decisions(decided: QuantizationPlan) -> list[tuple[str, str]]:
    """The card: numbers, format, what is quantized and what is kept, and what runs where."""
    quantized, kept = decided.selection.quantized, decided.selection.kept
    rows: list[tuple[str, str]] = [
        ("scheme", decided.deployment.numbers),
        ("format", _describe_format(decided)),
        *_rounding_rows(decided.rounding),
        *_requantization_rows(decided),
        ("quantized", f"{len(quantized)} weights: {', '.join(map(_module, quantized))}"),
        ("kept", ", ".join(f"{_module(name)} ({why})" for name, why in kept.items())),
    ]
    for name, deployment in decided.deployments.items():
        for role, part in deployment.parts.items():
            runs = f"{role} runs" if role else "runs"
            rows.append(("" if role else name, f"{runs} as {part.executed} [{part.evidence}: {part.source}]"))
            rows += [("", note) for note in part.notes]
    if not decided.deployments:
        rows += [("", note) for part in decided.deployment.parts.values() for note in part.notes]
    return rows


def _rounding_rows(rounding: BackendChoice) -> list[tuple[str, str]]:
    rows = [("rounded by", rounding.package)] if rounding.package else []
    return [*rows, *(("", note) for note in rounding.notes)]


def _requantization_rows(decided: QuantizationPlan) -> list[tuple[str, str]]:
    """What a person has to know of a source that was quantized already."""
    if decided.stored is None:
        return []
    rows: list[tuple[str, str]] = [
        ("source", f"quantized already, as {decided.stored.title}"),
        ("", "errors of both roundings add up: those below are of the second, against what the source held"),
    ]
    if decided.unpacked:
        rows.append(("floats again", f"{', '.join(map(_module, decided.unpacked))} (in {decided.stored.dtype})"))
    return rows + [("", finding) for finding in decided.stored.findings]


def _gptq_table(records: Mapping[str, WeightRecord]) -> Table:
    return table(
        "GPTQ",
        "",
        ("weight", "rows per input", "damping", "error on held-out rows", "of nearest"),
        (
            (
                _module(name),
                f"{record.rows_per_input:.1f}",
                "nearest" if record.damping is None else f"{record.damping:g}",
                _percent(record.error),
                _percent(record.nearest),
            )
            for name, record in records.items()
        ),
    )


def _describe_format(decided: QuantizationPlan) -> str:
    parts = decided.deployment.parts
    return by_role({role: f"{p.format}{f', style {p.style}' if p.style else ''}" for role, p in parts.items()})


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"
