"""GPTQ of a drafter: which inputs are collected when, what is rounded on them, and how a stopped run goes on.

A *stage* is one pass over the trace and the weights that are rounded on what it collected. Without `sequential` the
drafter runs as it is, and one pass collects as many second moments as fit beside each other. With it every weight sees
the inputs that it will have: those of a drafter whose earlier weights are quantized already, so that it makes up for
their errors too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor, nn

from draftconv.checkpoint import TensorRef
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.checkpoint.text import size
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.errors import UsageError
from draftconv.quantization.computations import BLOCK, Floats, rows
from draftconv.quantization.exclusions import WEIGHT, fused_with
from draftconv.quantization.gptq import choose
from draftconv.quantization.gptq_cost import (
    SharedInputs,
    Workload,
    collecting_memory,
    measured_rate,
    pass_work,
    rounding_memory,
    rounding_work,
)
from draftconv.quantization.machine_memory import machine_memory
from draftconv.quantization.rounding import dequantize, quantize
from draftconv.quantization.scheme import Scheme, recorded
from draftconv.quantization.threads import workers
from draftconv.replay.first_steps import HELD_ROWS, ROWS_AT_ONCE, SeenInputs, collect, load_without_tables
from draftconv.replay.gptq_files import GptqFiles, WeightRecord
from draftconv.replay.load_arm import LoadSettings
from draftconv.replay.replay import Arm
from draftconv.traces.trace import Trace, TraceEntry

logger = logging.getLogger(__name__)

HELD_OUT = 10
"""Every so many prompts one is held out, with all its turns: what a way to round is judged on was in no moment."""

ENOUGH = 8
"""Rows per input from which on more add little. 0.85 rows per input were worse than rounding to nearest."""

MOMENTS_AT_ONCE = 1_500_000_000
"""Bytes of second moments that one pass collects, beside the drafter; a larger one is collected alone."""

KEPT_EVERY = 300.0
"""Seconds after which a pass keeps what it has collected."""

Told = Callable[[int, int], None]
"""Told how much is done and how much there is, in billions of operations of products that would take as long."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass and what is rounded on it.

    Attributes:
        groups: weights that read the same inputs, by canonical name, in the order in which a step runs them.
        quantized: those that are quantized while it runs.
    """

    groups: tuple[tuple[str, ...], ...]
    quantized: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GptqEstimate:
    """What it will take.

    Attributes:
        seconds: at the rate of this machine, measured when it was asked for. `memory`: bytes at the peak.
    """

    seconds: float
    memory: int

    def __str__(self) -> str:
        minutes = self.seconds / 60
        time_text = f"{minutes:.0f} minutes" if minutes >= 2 else f"{max(1.0, self.seconds):.0f} seconds"
        return f"{time_text} and {size(self.memory)} of memory, by the rate of this machine measured just now"


@dataclass(eq=False)
class GptqCalibration:
    """The weights of a drafter that GPTQ rounds, and the trace that it rounds them on.

    Attributes:
        sources: every quantized weight, by canonical name. `schemes`: what each becomes, and how it is rounded.
        records: how each was rounded; filled by `run`.
    """

    drafter: Drafter
    sources: Mapping[str, Floats]
    schemes: Mapping[str, Scheme]
    trace: Trace
    device: str = "cpu"
    records: dict[str, WeightRecord] = field(default_factory=dict)
    _files: GptqFiles | None = field(default=None, repr=False)

    # ── what it is about ───────────────────────────────────────────────────────────

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The weights that GPTQ rounds."""
        return tuple(name for name, scheme in self.schemes.items() if scheme.rounding == "gptq")

    @cached_property
    def held_out(self) -> frozenset[str]:
        """The prompts that no second moment sees.

        Raises:
            UsageError: there is only one.
        """
        prompts = list(dict.fromkeys(entry.cluster for entry in self.trace.entries))
        if len(prompts) < 2:
            raise UsageError(
                "the trace holds a single prompt",
                why="GPTQ keeps every tenth back, one at least, to see whether it helps on text that it has not seen",
                cure="make a trace of more prompts with `draftconv trace`",
            )
        return frozenset(prompts[HELD_OUT - 1 :: HELD_OUT] or prompts[-1:])

    def rows(self, *, held: bool) -> int:
        """Rows of the requests that are held out, or of all others."""
        return sum(_rows(entry) for entry in self.trace.entries if (entry.cluster in self.held_out) == held)

    def narrowed(self, names: Iterable[str] | None = None) -> GptqCalibration:
        """The same of some weights, of all that GPTQ rounds by default: the same bits, unless rounded in sequence."""
        schemes = {name: self.schemes[name] for name in (self.wanted if names is None else names)}
        return GptqCalibration(
            self.drafter, {name: self.sources[name] for name in schemes}, schemes, self.trace, self.device
        )

    @property
    def by_scheme(self) -> Mapping[Scheme, GptqCalibration]:
        """The same in parts, one for each scheme."""
        names: dict[Scheme, list[str]] = {}
        for name in self.wanted:
            names.setdefault(self.schemes[name], []).append(name)
        return {scheme: self.narrowed(some) for scheme, some in names.items()}

    @property
    def sequential(self) -> bool:
        """Whether what a weight becomes depends on what others become."""
        return any(self.schemes[name].sequential for name in self.wanted)

    @property
    def key(self) -> str:
        """What decides every bit of the result: the source, the trace, the schemes."""
        drafter = self.drafter
        refs = {**drafter.tensors, **drafter.qparams}
        told = {
            "tensors": {name: tensor_hash(ref) for name, ref in sorted(refs.items()) if name not in (EMBEDDING, HEAD)},
            "trace": self.trace.digest,
            "schemes": {
                name: [recorded(scheme.weights), scheme.rounding, scheme.sequential]
                for name, scheme in self.schemes.items()
            },
            "device": self.device,
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def refuse_unfit(self) -> None:
        """Refuse a trace that is too short.

        Raises:
            UsageError: it holds fewer rows than the widest weight has inputs, or a single prompt.
        """
        widest = max(self.wanted, key=lambda name: self.sources[name].shape[1])
        inputs, found = self.sources[widest].shape[1], self.rows(held=False)
        if found < inputs:
            raise UsageError(
                f"the trace is too short for GPTQ: {found} rows beside those that are held out, and "
                f"{widest.removesuffix(WEIGHT)} has {inputs} inputs",
                why="with less than a row per input rounding to nearest was better",
                cure=f"make a longer trace: {ENOUGH * inputs} rows, prompts and texts together, are enough",
            )

    def warnings(self) -> Iterator[str]:
        """What is worth knowing of a trace that is short."""
        found = self.rows(held=False)
        short = {self.sources[name].shape[1] for name in self.wanted if found < ENOUGH * self.sources[name].shape[1]}
        if short:
            yield (
                f"the trace gives {found / max(short):.1f} rows for each of {max(short)} inputs; GPTQ gains most "
                f"from {ENOUGH} on: {ENOUGH * max(short)} rows"
            )

    # ── how it is done ─────────────────────────────────────────────────────────────

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All passes in their order."""
        every = list(dict.fromkeys(fused_with(name, self.sources) for name in _in_order(self.sources)))
        groups = [group for group in every if group[0] in self.wanted]
        stages, bundle, held = list[Stage](), list[tuple[str, ...]](), 0
        for group in groups:
            if self.schemes[group[0]].sequential:
                continue
            moment = 4 * self.sources[group[0]].shape[1] ** 2
            if bundle and held + moment > MOMENTS_AT_ONCE:
                stages.append(Stage(tuple(bundle)))
                bundle, held = [], 0
            bundle.append(group)
            held += moment
        if bundle:
            stages.append(Stage(tuple(bundle)))
        for group in groups:
            if self.schemes[group[0]].sequential:
                before = every[: every.index(group)]
                stages.append(Stage((group,), tuple(name for names in before for name in names)))
        return tuple(stages)

    def estimate(self) -> GptqEstimate:
        """What it will take here."""
        return GptqEstimate(measured_rate(self.device).seconds(self._all_work()), self.memory)

    @cached_property
    def memory(self) -> int:
        """Bytes at the peak."""
        # What a pass holds at its peak was measured: about the inputs of all weights, those that are shared each time.
        passing = ROWS_AT_ONCE * sum(ref.shape[1] for ref in self._weights if len(ref.shape) == 2)
        collecting = [
            collecting_memory(self._parameters, [*map(self._shared, stage.groups)], HELD_ROWS, passing)
            for stage in self.stages
        ]
        groups = [group for stage in self.stages for group in stage.groups]
        threads = torch.get_num_threads() if self.device == "cpu" else 1
        rounding = [rounding_memory(self._shared(group), threads, HELD_ROWS) for group in groups]
        return max(*collecting, *rounding)

    def _refuse_memory(self) -> None:
        """Refuse what would not fit, before hours of work.

        Raises:
            UsageError: this machine has less memory.
        """
        there = machine_memory(self.device)
        if there is not None and self.memory > there:
            raise UsageError(
                f"GPTQ of this drafter takes {size(self.memory)} of memory, and there are {size(there)}",
                why="it holds the drafter without its tables, and one second moment, in 32 bits",
                cure="run it on a machine with more, raise the limit of the container or `ulimit -v`, or exclude the "
                "widest weights in a recipe of your own",
            )

    def run(self, files: GptqFiles, told: Told | None = None) -> None:
        """Round every weight, or what an earlier run left to do.

        Raises:
            Refused, BadCheckpoint: the drafter or the trace cannot be read, or something in them is not finite.
            UsageError: this machine has less memory than it takes.
        OSError: the file system refuses.
        """
        self._files = files
        self._refuse_memory()
        rate = measured_rate(self.device)
        whole, done = rate.equivalent(self._all_work()), 0.0

        def add(work: Workload) -> None:
            nonlocal done
            done += rate.equivalent(work)
            if told is not None:
                told(int(min(done, whole) / 1e9), int(whole / 1e9))

        for stage in self.stages:
            todo = [group for group in stage.groups if any(files.record(name) is None for name in group)]
            if todo:
                self._collect(replace(stage, groups=tuple(todo)), files, add)
            for group in stage.groups:
                if group in todo:
                    self._round(group, files, add)
                else:
                    add(rounding_work(self._shared(group), HELD_ROWS))
        self.records.update({name: found for name in self.wanted if (found := files.record(name)) is not None})

    def qvalues(self, name: str) -> Tensor:
        """What a weight was rounded to: int8 [O, I]. Where nobody has called `run`, it is done now, in a directory of
        its own that is removed with this calibration."""
        if self._files is None:
            made = mkdtemp(prefix="draftconv-gptq-")
            weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
            self.run(GptqFiles(Path(made)))
        return self._kept.qvalues(name)

    @property
    def _kept(self) -> GptqFiles:
        if self._files is None:
            raise ValueError("nothing was rounded yet")
        return self._files

    @property
    def _parameters(self) -> int:
        """Of the drafter without its tables."""
        return sum(math.prod(ref.shape) for ref in self._weights)

    @property
    def _weights(self) -> list[TensorRef]:
        """All of the drafter's but its tables."""
        return [ref for name, ref in self.drafter.tensors.items() if name not in (EMBEDDING, HEAD)]

    def _shared(self, group: Sequence[str]) -> SharedInputs:
        shapes = [self.sources[name].shape for name in group]
        outputs = [shape[0] for shape in shapes]
        return SharedInputs(shapes[0][1], sum(outputs), max(outputs), sum(self.sources[name].nbytes for name in group))

    def _all_work(self) -> Workload:
        found = self.rows(held=False) + self.rows(held=True)
        work = Workload(0, 0)
        for stage in self.stages:
            shared = [self._shared(group) for group in stage.groups]
            work += pass_work(self._parameters, shared, found)
            for one in shared:
                work += rounding_work(one, HELD_ROWS)
        return work

    # ── a pass over the trace ──────────────────────────────────────────────────────

    def _collect(self, stage: Stage, files: GptqFiles, add: Callable[[Workload], None]) -> None:
        """Have the inputs of a stage in files."""
        modules = {group[0].removesuffix(WEIGHT): self._shared(group) for group in stage.groups}
        device = torch.device(self.device)
        kept = {module: files.load_inputs(module, device) for module in modules}
        counts = {count for _, count in (found for found in kept.values() if found is not None)}
        whole = all(kept.values()) and len(counts) == 1
        seen = {
            module: found[0] if found is not None and whole else SeenInputs.of(modules[module].inputs, device)
            for module, found in kept.items()
        }
        first = counts.pop() if whole else 0
        entries = self.trace.entries
        add(pass_work(self._parameters, [*modules.values()], sum(_rows(entry) for entry in entries[:first])))
        if first < len(entries):
            arm, since = self._arm(stage, files), time.monotonic()
            for number, entry in enumerate(entries[first:], first + 1):
                collect(arm, self.trace.read(entry, arm.boundaries), seen, held=entry.cluster in self.held_out)
                add(pass_work(self._parameters, [*modules.values()], _rows(entry)))
                if number < len(entries) and time.monotonic() - since > KEPT_EVERY:
                    _keep(seen, files, number)
                    since = time.monotonic()
            del arm
            for inputs in seen.values():
                inputs.moment.mirror()
            _keep(seen, files, len(entries))

    def _arm(self, stage: Stage, files: GptqFiles) -> Arm:
        """The drafter, with the weights quantized that are in this stage."""
        how = LoadSettings(self.trace.table, device=self.device)
        arm = load_without_tables(self.drafter.checkpoint.name, self.drafter, how)
        for name in stage.quantized:
            weight_OI = self._quantized(name, files)
            linear = arm.model.get_submodule(name.removesuffix(WEIGHT))
            linear.weight = nn.Parameter(weight_OI.to(arm.model.fc.weight), requires_grad=False)
        return arm

    def _quantized(self, name: str, files: GptqFiles) -> Tensor:
        rounded = quantize(self._weight(name), self.schemes[name].weights, name=name)
        if name in self.wanted:
            rounded = replace(rounded, qvalues=files.qvalues(name))
        return dequantize(rounded)

    def _weight(self, name: str) -> Tensor:
        return torch.cat(list(rows(self.sources[name], BLOCK)))

    # ── what is rounded on it ──────────────────────────────────────────────────────

    def _round(self, group: Sequence[str], files: GptqFiles, add: Callable[[Workload], None]) -> None:
        """Round the weights of a group and keep them."""
        module, shared = group[0].removesuffix(WEIGHT), self._shared(group)
        device = torch.device(self.device)
        second_I, held_NI, found = files.load_summary(module)
        weights = {name: self._weight(name).to(device) for name in group}
        work = rounding_work(shared, len(held_NI))
        elements = sum(weight.numel() for weight in weights.values()) * 5

        def done(count: int) -> None:
            add(Workload(work.products * count / elements, work.columns * count / elements))

        with workers(device) as each:
            chosen = choose(
                weights,
                self.schemes[group[0]].weights,
                second_I.to(device),
                lambda order_I: files.ordered_moment(module, order_I, device),
                held_NI.to(device),
                each,
                done=done,
            )
        for name, found_one in chosen.items():
            rounding = found_one.rounding
            record = WeightRecord(
                rounding.damping,
                found,
                shared.inputs,
                _part(rounding.error, found_one.signal),
                _part(found_one.nearest_error, found_one.signal),
            )
            files.save_weight(name, rounding.qvalues_OI.cpu(), record)
        files.forget_inputs(module)


def _in_order(names: Iterable[str]) -> list[str]:
    """Weights in the order in which a step runs them: fc, layer after layer, the head."""

    def place(name: str) -> float:
        if name.startswith("layers."):
            return int(name.split(".")[1])
        return math.inf if name == HEAD else -1

    return sorted(names, key=place)


def _rows(entry: TraceEntry) -> int:
    """Rows of a request that its drafts read; see `batches.context_rows`."""
    return entry.prompt - 1 + max(0, entry.counted - 1)


def _part(error: float, signal: float) -> float:
    """An error in parts of what it is an error of."""
    return math.sqrt(error / signal) if signal > 0 else 0.0


def _keep(seen: Mapping[str, SeenInputs], files: GptqFiles, requests: int) -> None:
    for module, inputs in seen.items():
        files.save_inputs(module, inputs, requests)
