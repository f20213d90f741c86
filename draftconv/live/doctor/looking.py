"""A server that is not asked for a text: what it says of itself, which is clearly less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from draftconv.checkpoint import open_checkpoint, show
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.engines import parse_engine
from draftconv.engines.live import ServerTold
from draftconv.layouts.drafter_reader import drafter_readers
from draftconv.live.doctor.diagnosis import Diagnosis, ToldFault
from draftconv.live.doctor.directory import RIGHT_START, broken_rules, next_command, told_version
from draftconv.live.doctor.judging import NEAR_ONE
from draftconv.live.doctor.options import DoctorOptions
from draftconv.options import Place
from draftconv.reference.accept_length import Counts


def look_at(place: Place, told: ServerTold, target: Target | None, options: DoctorOptions) -> Diagnosis:
    """What a server tells of itself, and the directory of the drafter as it lies there."""
    spec = told_version(parse_engine(options.engine), options.engine, told.version)
    (reader,) = drafter_readers(
        [place], options.layout, options.aux_convention, accept_detected=options.accept_detected
    )
    drafter = reader.read(open_checkpoint(place), target)
    broken = broken_rules(drafter, target, spec)
    return Diagnosis(
        spec=spec,
        drafter=drafter.checkpoint.name,
        server=_said(told),
        next=next_command(place, spec, options, broken),
        told=tuple(_told_faults(told, drafter, options)),
        totals=told.counts,
        broken=broken,
        why=f"Without --trace nothing tells what it should accept. {_curve(told.counts)}",
    )


def _told_faults(told: ServerTold, drafter: Drafter, options: DoctorOptions) -> Iterator[ToldFault]:
    wanted, served = options.num_speculative_tokens, Path(told.drafter).name
    if told.wrong:
        yield ToldFault("method", told.wrong, RIGHT_START)
    if told.drafted is not None and wanted is not None and told.drafted != wanted:
        yield ToldFault("depth", f"it drafts {told.drafted} tokens per step, not {wanted}", RIGHT_START)
    if served and served != Path(drafter.checkpoint.name).name:
        yield ToldFault("drafter", f"its drafter is {show(served)}, not {show(drafter.checkpoint.name)}", RIGHT_START)


def _curve(counts: Counts | None) -> str:
    """What a curve of positions usually means, in words."""
    if counts is None or not counts.steps:
        return "It tells no counts either."
    if counts.accept_length <= NEAR_ONE:
        return "Next to nothing was accepted since it was started: a wrong method, table, map or drafter."
    return "docs/low-accept-length.md says what such a curve usually means."


def _said(told: ServerTold) -> Mapping[str, str]:
    """The same of one that was not asked for a text."""
    return {
        "version": told.version,
        "target": told.target,
        "drafter": told.drafter or "not told",
        "drafted tokens": "not told" if told.drafted is None else str(told.drafted),
        "room": "not told" if told.room is None else f"{told.room} tokens",
        **told.settings,
    }
