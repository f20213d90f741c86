#!/usr/bin/env python3
"""Write a trace of invented tokens and states for a drafter, of whatever size.

    python scripts/random_trace.py DRAFTER OUT --target TARGET [--requests N] [--positions P]

What a calibration costs depends on the sizes of the drafter and on the number of rows, and not on what they hold. But
states of equal importance, without correlation, would leave GPTQ nothing to do: these have a few directions in common,
and some of them are much larger than others, as those of a model are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.targets import Target, find_target
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.replay.load_arm import fed_by
from draftconv.traces.trace import TraceInfo
from draftconv.traces.writer import CapturedText, Slot, TraceWriter

DEPTH = 3
COUNTED = 8
"""Generated tokens of a request; all other positions are its prompt."""
SHARED = 32
"""Directions that all states have in common."""


def states(rows: int, boundaries: int, hidden: int, seed: int) -> Tensor:
    """Invented states of some rows, [T, A, W] bfloat16: the same directions for every seed."""
    common = torch.Generator().manual_seed(0)
    size_W = torch.exp(torch.randn(hidden, generator=common))
    shared_SW = torch.randn(SHARED, hidden, generator=common) / SHARED**0.5
    own = torch.Generator().manual_seed(seed)
    state_TAW = torch.randn(rows, boundaries, hidden, generator=own)
    state_TAW += torch.randn(rows, boundaries, SHARED, generator=own) @ shared_SW * 2
    return (state_TAW * size_W).bfloat16()


def write(drafter: Path, target: Target, out: Path, requests: int, positions: int) -> None:
    """The trace; no tables are in it, since the drafter has its own or nobody asks for them."""
    read = read_drafter(open_checkpoint(drafter), ReadOptions(target=target))
    about = TraceInfo(
        target=target.name,
        revision=None,
        layers=target.layers,
        hidden=read.facts.target_hidden,
        vocab=read.facts.vocab,
        boundaries=fed_by(drafter.name, read),
        depth=DEPTH,
        max_tokens=COUNTED,
        dtype="bfloat16",
        made_by="scripts/random_trace.py",
        prompts="invented",
        prompts_sha256="0" * 64,
        chat=False,
        family=target.family,
    )
    slots = [Slot(f"{number:03}", f"{number:03}", "invented") for number in range(requests)]
    with TraceWriter(out, about, slots, tables={}) as writer:
        for index in range(requests):
            generator = torch.Generator().manual_seed(index)
            tokens_N = torch.randint(0, about.vocab, (positions,), generator=generator)
            state_TAW = states(positions - 1, len(about.boundaries), about.hidden, index + 1)
            writer.write(index, CapturedText(positions - COUNTED - DEPTH, COUNTED, tokens_N, state_TAW))
        writer.finish()


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/random_trace.py", description="Write a trace of invented states.")
    parser.add_argument("drafter", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", required=True, help="as draftconv's --target")
    parser.add_argument("--requests", type=int, default=40, help="conversations (default: 40)")
    parser.add_argument("--positions", type=int, default=512, help="tokens of each (default: 512)")
    options = parser.parse_args(argv)
    target = find_target(options.target, None)
    if target is None:
        raise SystemExit(f"{options.target}: nobody knows this target")
    write(options.drafter, target, options.out, options.requests, options.positions)


if __name__ == "__main__":
    main(sys.argv[1:])
