"""A server is examined: what it says of itself first, then what it counts on the texts of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from draftconv.checkpoint import show
from draftconv.checkpoint.files import exists
from draftconv.drafter.targets import Target, find_target
from draftconv.engines import EngineSpec, parse_engine
from draftconv.engines.client import Client, RequestSettings, ServerInfo
from draftconv.errors import NoDrafts, NotReached, OtherDrafting, UsageError
from draftconv.live.capabilities import live_of
from draftconv.live.doctor.asking import AskedTexts, TracedText, ask_texts
from draftconv.live.doctor.diagnosis import Diagnosis, Heard, ToldFault
from draftconv.live.doctor.directory import RIGHT_START, broken_rules, next_command, told_version
from draftconv.live.doctor.judging import judge_readings
from draftconv.live.doctor.looking import look_at
from draftconv.live.doctor.options import DoctorOptions
from draftconv.live.doctor.readings import ReadDrafters, ReplayedReadings, replay_readings
from draftconv.live.options import in_full
from draftconv.live.requests import with_retries
from draftconv.options import Place
from draftconv.reference.accept_length import Counts
from draftconv.replay.arithmetic import WrittenFor
from draftconv.replay.drafters import target_of
from draftconv.replay.settings import refuse_depth
from draftconv.replay.two_targets import vocabulary_of
from draftconv.traces.trace import TOKENIZER, Trace, TraceEntry, open_trace

DEPTH = 3
"""K that a server is first taken to have; one that has another says so."""


def examine(drafter: Place, options: DoctorOptions, written_for: WrittenFor) -> Diagnosis:
    """Look at a server without a trace, or ask it the texts of one.

    Args:
        written_for: the engines in the record of a drafter.

    Raises:
        UsageError, BadCheckpoint, Refused, Undecided, EngineError, Void: as `draftconv.doctor`.
    """
    spec, live = parse_engine(options.engine), live_of(parse_engine(options.engine).name)
    target = None if options.target is None else find_target(in_full(options.target), None)
    if options.trace is None:
        if live.look is None:
            raise UsageError(f"{spec.name} tells nothing of itself", cure="give --trace")
        told = live.look(options.url, "--url")
        return look_at(drafter, told, target, options)
    trace = open_trace(options.trace)
    _refuse_trace(trace, target)
    read = ReadDrafters.of(drafter, trace, spec, options, written_for)
    return Examination(drafter, spec, options, trace, target, read).diagnosis()


@dataclass(frozen=True, slots=True)
class Examination:
    """A server that is asked the texts of a trace."""

    drafter: Place
    spec: EngineSpec
    options: DoctorOptions
    trace: Trace
    target: Target | None
    read: ReadDrafters

    @property
    def entries(self) -> Sequence[TraceEntry]:
        """The requests that are asked."""
        return self.trace.entries[: self.options.limit]

    def diagnosis(self) -> Diagnosis:
        """Ask, replay, compare."""
        texts = [self._text(entry) for entry in self.entries]
        depth, told = self.options.num_speculative_tokens or DEPTH, list[ToldFault]()
        try:
            client, info, depth = self._connected(min((one.prompt for one in texts), key=len), depth)
        except OtherDrafting as error:
            return self._of_itself(self.spec, ToldFault("method", error.what, RIGHT_START))
        except NoDrafts as error:
            return self._of_itself(self.spec, ToldFault("drafts", error.what, RIGHT_START))
        wanted = self.options.num_speculative_tokens or depth
        refuse_depth(max(depth, wanted), self.trace)
        if depth != wanted:
            told.append(ToldFault("depth", f"it drafts {depth} tokens per step, not {wanted}", RIGHT_START))
        longest = max(len(one.prompt) + len(one.text) for one in texts)
        if info.room is not None and info.room < longest:
            says = f"a prompt and its text have {info.room} tokens, those of the trace take up to {longest}"
            told.append(ToldFault("context", says, "raise the longest text that the server allows"))
        asked = ask_texts(
            client, texts, depth=depth, room=info.room, patience=self.options.patience, done=self._asking(len(texts))
        )
        spec = told_version(self.spec, self.options.engine, info.version)
        found = replace(self._of_itself(spec, *told), server=_told(info, depth))
        if not asked.counted:
            why = f"None of {len(texts)} texts is the trace's: {_departures(asked)}. Nothing can be concluded but that."
            return replace(found, why=why)
        readings = self._replayed(asked, spec, max(depth, wanted))
        judged = judge_readings(asked.counted, readings.replayed, depth, clipped=info.clipped)
        should = _length(readings, asked, wanted, clipped=info.clipped)
        return replace(found, heard=Heard(asked, len(texts), judged, should, readings.left_out))

    def _text(self, entry: TraceEntry) -> TracedText:
        tokens = self.trace.tokens(entry)
        end = entry.prompt + entry.counted
        return TracedText(entry.id, entry.cluster, entry.category, tokens[: entry.prompt], tokens[entry.prompt : end])

    def _connected(self, prompt: Sequence[int], depth: int) -> tuple[Client, ServerInfo, int]:
        """A client that has shown what the server is, with the K that it has."""
        live, length = live_of(self.spec.name), max(entry.counted for entry in self.entries)

        def connected(asked: int) -> tuple[Client, ServerInfo, int]:
            settings = RequestSettings(asked, length, timeout=self.options.timeout)
            client = live.connect(self.options.url, "--url", settings)
            return client, with_retries(partial(client.served, prompt), self.options.patience, NotReached), asked

        try:
            return connected(depth)
        except OtherDrafting as error:
            if not error.drafted:
                raise
            return connected(error.drafted)

    def _replayed(self, asked: AskedTexts, spec: EngineSpec, depth: int) -> ReplayedReadings:
        ids = {one.id for one in asked.counted}
        entries = [entry for entry in self.entries if entry.id in ids]
        return replay_readings(self.read, self.trace, entries, spec, self.target, depth, self.options)

    def _of_itself(self, spec: EngineSpec, *told: ToldFault) -> Diagnosis:
        """What is known before anything is counted."""
        drafter, goal = self.read.first, self.target or target_of(self.trace)
        broken = broken_rules(drafter, goal, spec)
        return Diagnosis(
            spec=spec,
            drafter=drafter.checkpoint.name,
            server={},
            next=next_command(self.drafter, spec, self.options, broken),
            told=told,
            broken=broken,
        )

    def _asking(self, total: int) -> Callable[[int], None]:
        progress = self.options.progress
        return (lambda _: None) if progress is None else (lambda done: progress("asking", done, total))


def _told(info: ServerInfo, depth: int) -> Mapping[str, str]:
    """What a server says of itself, by name."""
    return {
        "version": info.version,
        "target": info.target,
        "drafter": info.drafter or "not told",
        "drafted tokens": str(depth),
        "room": "not told" if info.room is None else f"{info.room} tokens",
        "counts": info.counting,
        **info.settings,
    }


def _departures(asked: AskedTexts) -> str:
    """Why no text could be counted."""
    if not asked.departed:
        return "none fits the server" if asked.cut else "all requests failed"
    return f"{len(asked.departed)} depart within {max(asked.departed.values())} tokens"


def _length(readings: ReplayedReadings, asked: AskedTexts, depth: int, *, clipped: bool) -> float:
    """The accept length of the right reading with so many drafted tokens, on the texts that were counted."""
    right = readings.replayed[0]
    pooled = Counts.pooled(right.counted(text, depth, clipped=clipped).counts for text in asked.counted)
    return pooled.accept_length if pooled.steps else 1.0


def _refuse_trace(trace: Trace, target: Target | None) -> None:
    """Refuse a trace that no server can be held against, or that is of another target.

    Raises:
        UsageError: it is.
    """
    about = trace.about
    if about.sampling is not None:
        raise UsageError(
            "the text of the trace is sampled",
            why="a server that is asked the same would write another text",
            cure="make a trace without --temperature",
        )
    if target is None:
        return
    for what, traced, its in (
        ("layers", about.layers, target.layers),
        ("a width of", about.hidden, target.hidden),
        ("tokens in its vocabulary:", about.vocab, target.vocab),
    ):
        if its is not None and its != traced:
            raise UsageError(
                f"the trace is of {show(about.target)} with {what} {traced}, {show(target.name)} has {its}",
                why="its texts and states are those of another model",
                cure="give the trace of the target that is served",
            )
    own = None if target.path is None else target.path / TOKENIZER
    if trace.tokenizer and own and exists(own) and vocabulary_of(trace.tokenizer) != vocabulary_of(own):
        raise UsageError(
            f"the tokenizers of the trace and of {show(target.name)} differ",
            why="a token of one means another text to the other",
            cure="give the trace of the target that is served",
        )
