"""The processes that scripts/bench_parity.py times: each measures one thing and prints it as JSON.

bench_replay.py alone TRACE RUNS DRAFTER             one arm, the trace in memory
bench_replay.py against-live TRACE RUNS TARGET DRAFTER COPY
bench_replay.py full-size SPEC RUNS DEVICE POSITIONS
bench_replay.py counts DRAFTER PROMPTS TOKENS DEVICE a fixture replayed on the CPU and on another device
bench_replay.py device                               the GPU that torch sees
"""

from __future__ import annotations

import json
import operator
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_synthetic
import torch
from speculate import speculate
from target_model import continue_greedily, load_target
from torch import Tensor, nn
from torch.nn import functional
from train_tiny import DATA, RECIPES, read_prompts

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target, find_target
from draftconv.errors import DraftconvError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.reference.accept_length import Counts
from draftconv.reference.drafter import DrafterModel
from draftconv.replay.batches import roots
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.replay import ROWS_AT_ONCE, Arm, replay
from draftconv.replay.run import run
from draftconv.traces.request import TraceRequest
from draftconv.traces.trace import Trace, open_trace
from draftconv.traces.transformers_target import aux_layers, find_layers, load_model, transformers

DEPTH = 3
TEXT = 512
"""Positions of one text of a full-size drafter; several fill `ROWS_AT_ONCE`."""

Figures = dict[str, object]
Counted = dict[tuple[str, str], Counts]
"""Counts by arm and request."""


class Differ(Exception):
    """Replay and live decoding did not count the same."""


def alone(trace: Trace, drafter: Path, runs: int) -> Figures:
    """Replay one drafter, the requests already in memory."""
    arm = load(trace, [drafter])[0]
    requests = [trace.read(entry, arm.boundaries) for entry in trace.entries]
    times, _ = timed(runs + 1, lambda: list(replay([arm], requests, arm.boundaries, depth=DEPTH)))
    return {"positions": sum(map(roots, requests)), "seconds": times[1:]}


# ── against live decoding ──────────────────────────────────────────────────────────


class Live:
    """One request on a transformers model, as `speculate` wants it: cache, states by hooks, rewinding."""

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module], boundaries: Sequence[int]) -> None:
        self.model, self.layers, self.boundaries = model, layers, boundaries
        self.cache = transformers().DynamicCache(config=model.config)

    @torch.no_grad()
    def feed(self, token_T: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens; logits [T, V] and states [T, A, W]."""
        stream: dict[int, Tensor] = {}
        with aux_layers(self.layers, self.boundaries, stream):
            output = self.model(input_ids=token_T[None], past_key_values=self.cache, use_cache=True)
        return output.logits[0], torch.stack([stream[b] for b in self.boundaries], dim=2)[0]

    def rewind(self, rows: int) -> None:
        """Forget all tokens from position `rows` on."""
        if surplus := self.cache.get_seq_length() - rows:
            self.cache.crop(-surplus)


def against_live(trace: Trace, target: Path, drafters: Sequence[Path], runs: int) -> Figures:
    """Two arms replayed from the trace on disk, and decoded with the live target one after the other.

    Raises:
        Differ: they did not count the same in every request.
    """
    arms = load(trace, drafters)
    model = load_model(target, dtype="float32", device="cpu", trust_remote_code=False)
    layers = find_layers(model, trace.about.layers)
    prompts = [trace.read(entry, arms[0].boundaries) for entry in trace.entries]

    def replayed() -> Counted:
        opened = open_trace(trace.directory)
        result = run(opened, opened.entries, arms[0], arms[1:], depth=DEPTH)
        return {(record.arm, record.id): record.counts for record in result.records}

    def decoded(requests: Sequence[TraceRequest] = prompts) -> Counted:
        counted = {}
        for arm in arms:
            for request in requests:
                live, prompt_T = Live(model, layers, arm.boundaries), request.tokens_N[: request.prompt]
                done = speculate(arm.model, live, prompt_T, depth=DEPTH, length=request.counted)
                counted[arm.name, request.id] = done.counts
        return counted

    replayed()
    decoded(prompts[:1])  # neither is timed the first time
    seconds: dict[str, list[float]] = {"replay": [], "live": []}
    for number in range(runs):
        counted = {}
        for kind in ("replay", "live") if number % 2 else ("live", "replay"):
            times, counted[kind] = timed(1, replayed if kind == "replay" else decoded)
            seconds[kind] += times
        compare(counted["replay"], counted["live"])
    return {**seconds, "requests": len(prompts), "arms": len(arms)}


def compare(replayed: Counted, decoded: Counted) -> None:
    """Speed of two things that are not the same says nothing.

    Raises:
        Differ: a request has other counts.
    """
    differ = [key for key in replayed.keys() | decoded.keys() if replayed.get(key) != decoded.get(key)]
    if differ:
        arm, request = min(differ)
        raise Differ(
            f"live decoding and replay differ in {len(differ)} of {len(replayed)} cases, first {arm} on request "
            f"{request}: {decoded.get((arm, request))} live, {replayed.get((arm, request))} replayed"
        )


# ── full-size drafters ─────────────────────────────────────────────────────────────


def full_size(spec: Path, device: str, positions: int, runs: int) -> Figures:
    """Replay a random drafter where every draft is accepted, and its head alone on as many rows.

    The floor is what nobody can leave out who wants the drafts: one product with the head per draft. Like
    replay it takes at most `ROWS_AT_ONCE` rows at a time.
    """
    model = random_drafter(read_facts(spec), device)
    arm = Arm(spec.stem, model, tuple(range(model.facts.aux)))
    requests = accepted_texts(model.facts, positions)

    def replayed() -> None:
        for _, (outcome,) in replay([arm], requests, arm.boundaries, depth=DEPTH):
            if int(outcome.accepted_R.min()) < DEPTH:
                raise Differ("a draft was rejected: its steps were not all computed")

    head_VH = model.lm_head.weight
    state_RH = random_values((min(positions, ROWS_AT_ONCE), model.facts.hidden), device)

    def floor() -> None:
        for first in range(0, positions, ROWS_AT_ONCE):
            for _ in range(DEPTH):
                functional.linear(state_RH[: positions - first], head_VH)
        if device == "cuda":
            torch.cuda.synchronize()

    replay_times, floor_times = [], []
    for _ in range(runs + 1):
        replay_times += timed(1, replayed)[0]
        floor_times += timed(1, floor)[0]
    figures: Figures = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "positions": positions,
        "blocks": -(-positions // ROWS_AT_ONCE),
        "replay": replay_times[1:],
        "floor": floor_times[1:],
        "floor_flop": 2 * DEPTH * head_VH.numel(),
        "flop": 2 * (DEPTH * multiplied(model) - (DEPTH - 1) * model.fc.weight.numel()),
        "head_bytes": head_VH.nbytes,
        "weight_bytes": sum(parameter.nbytes for parameter in model.parameters()),
    }
    return figures | ({"device_bytes": torch.cuda.max_memory_allocated()} if device == "cuda" else {})


def read_facts(spec: Path) -> Facts:
    """What the drafter of a spec computes; its weights are never written."""
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / spec.stem
        make_synthetic.write_checkpoint(make_synthetic.read_spec(spec), out, sparse=True)
        return read_drafter(open_checkpoint(out)).facts


def random_drafter(facts: Facts, device: str) -> DrafterModel:
    """A drafter in bfloat16 whose every row of the head stands for token 0.

    So a text of nothing but token 0 accepts every draft, whatever the weights are, and no step is skipped.
    """
    facts = replace(facts, vocab_order="unordered")
    with torch.device("meta"):
        places = DrafterModel(facts).state_dict()
    tensors = {name: random_values(place.shape, device) for name, place in places.items() if name != "d2t"}
    tensors["d2t"] = -torch.arange(facts.draft_vocab, device=device)
    return DrafterModel.from_tensors(facts, tensors, dtype=torch.bfloat16)


def random_values(shape: Sequence[int], device: str) -> Tensor:
    """Normal values with standard deviation 0.02 in bfloat16; a million of them, repeated."""
    values = (0.02 * torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))).to(device, torch.bfloat16)
    count = torch.Size(shape).numel()
    out = torch.empty(count, dtype=torch.bfloat16, device=device)
    whole = count // len(values) * len(values)
    out[:whole].view(-1, len(values)).copy_(values.expand(whole // len(values), -1))
    out[whole:] = values[: count - whole]
    return out.view(*shape)


def accepted_texts(facts: Facts, positions: int) -> list[TraceRequest]:
    """Texts of token 0 with so many roots together, and random states."""
    states_TAW = random_values((TEXT + DEPTH, facts.aux, facts.target_hidden), "cpu")
    texts = []
    for first in range(0, positions, TEXT):
        counted = min(TEXT, positions - first) + 1
        tokens_N = torch.zeros(1 + counted + DEPTH, dtype=torch.int64)
        texts.append(TraceRequest(f"{first}", f"{first}", "", 1, counted, tokens_N, states_TAW[: counted + DEPTH]))
    return texts


def multiplied(model: DrafterModel) -> int:
    """Weights that every row of a step is multiplied with."""
    return sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))


# ── other devices ──────────────────────────────────────────────────────────────────


def counts(name: str, prompts: int, tokens: int, device: str) -> Figures:
    """Replay a fixture in float32 on two devices; how many requests have equal counts."""
    directory = DATA / "targets" / RECIPES[name].target
    target, known = load_target(directory), find_target(str(directory), None)
    drafter = read_drafter(open_checkpoint(DATA / "drafters" / name), ReadOptions(target=known))
    tables = open_checkpoint(directory).tensors
    lent = {"embed_tokens": tables["model.embed_tokens.weight"], "lm_head": tables.get("lm_head.weight")}
    arms = {where: load_arm(name, drafter, LoadSettings(lent.get, device=where)) for where in ("cpu", device)}
    texts = torch.stack(read_prompts()[:prompts])
    texts = torch.cat((texts, continue_greedily(target, texts, tokens + DEPTH)), dim=1)
    length, boundaries = texts.shape[1] - tokens - DEPTH, arms["cpu"].boundaries
    with torch.no_grad():
        states = target(texts[:, :-1], None, boundaries).states
    requests = [
        TraceRequest(str(i), str(i), "", length, tokens, text, state)
        for i, (text, state) in enumerate(zip(texts, states, strict=True))
    ]
    found = {
        where: [one.counts for _, (one,) in replay([arm], requests, boundaries, depth=DEPTH)]
        for where, arm in arms.items()
    }
    return {"requests": prompts, "equal": sum(map(operator.eq, found["cpu"], found[device]))}


# ── program ────────────────────────────────────────────────────────────────────────


def load(trace: Trace, drafters: Sequence[Path]) -> list[Arm]:
    """The drafters as `draftconv parity` loads them; what is equal is shared."""
    about = trace.about
    hints = ReadOptions(target=Target(about.target, about.layers, hidden=about.hidden, vocab=about.vocab))
    arms: list[Arm] = []
    for number, path in enumerate(drafters):
        drafter = read_drafter(open_checkpoint(path), hints)
        arms.append(
            load_arm(f"{number}: {path.name}", drafter, LoadSettings(trace.table), like=arms[0].model if arms else None)
        )
    return arms


def timed(runs: int, work: Callable[[], Any]) -> tuple[list[float], Any]:
    """Seconds of each of several runs, and what the last one returned."""
    times = []
    result = None
    for _ in range(runs):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return times, result


def main(*arguments: str) -> Figures:
    """Measure one thing."""
    match arguments:
        case "alone", of, runs, drafter:
            return alone(open_trace(of), Path(drafter), int(runs))
        case "against-live", of, runs, target, *drafters:
            return against_live(open_trace(of), Path(target), list(map(Path, drafters)), int(runs))
        case "full-size", of, runs, device, positions:
            return full_size(Path(of), device, int(positions), int(runs))
        case "counts", name, prompts, tokens, device:
            return counts(name, int(prompts), int(tokens), device)
        case ("device",):
            return {"cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
    sys.exit(__doc__)


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])))
    except (Differ, DraftconvError) as error:
        sys.exit(f"Error: {error}")
