"""Hold the speed that `draftconv accept --speed` predicts against that of a real vLLM on this CPU.

    scripts/speed-model            print the table
    scripts/speed-model --write    put it into docs/accept.md

A trained fixture is served without a drafter and with K = 1 … 6, all at once, and asked the same prompts in turns, so
that whatever disturbs the machine disturbs every K. The steps of K = 0, 1 and 4 are what the model is told, the accept
lengths come from a replay: K = 2, 3, 5 and 6 are predictions. The best K of the model must be measured within 3 % of
the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from measuring import engine_python
from train_tiny import DATA, RECIPES

from draftconv.api.accept import accept
from draftconv.api.serve import serve
from draftconv.api.trace import trace
from draftconv.live.capabilities import live_of, offline_of
from draftconv.live.offline import started
from draftconv.live.process import engine_process

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/accept.md"
PART = re.compile(r"(<!-- measured: speed -->\n).*?(<!-- end: speed -->)", re.DOTALL)

DRAFTER = "llama-eagle3"
MOST, TOLD = 6, (1, 4)
"""K = 1 … 6, of which the model is told the steps of these two."""
PROMPTS, LENGTH, TURNS = 16, 64, 4
BOUND = 0.03
"""What the model's best K may be slower than the fastest."""


@dataclass(slots=True)
class Measured:
    """What was measured of one K: seconds of decoding, tokens and steps in them."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0

    def add(self, seconds: float, tokens: int, steps: int) -> None:
        """One more request."""
        self.seconds, self.tokens, self.steps = self.seconds + seconds, self.tokens + tokens, self.steps + steps

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def step(self) -> float:
        """Milliseconds."""
        return 1000 * self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine that answers over pipes, as `draftconv.engines.live.Offline` says."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    def ask(self, prompt: Sequence[int], length: int) -> tuple[float, Mapping[str, object]]:
        """Seconds, and the answer."""
        began = time.perf_counter()
        self.stdin.write(json.dumps({"prompt": list(prompt), "length": length, "ignore_eos": True}).encode() + b"\n")
        self.stdin.flush()
        answer = json.loads(self.stdout.readline())
        return time.perf_counter() - began, answer

    def decode(self, prompt: Sequence[int], measured: Measured) -> None:
        """Measure a request without its prompt: what a text takes beyond its first token."""
        first, _ = self.ask(prompt, 1)
        whole, answer = self.ask(prompt, LENGTH)
        tokens, steps = answer["tokens"], answer["steps"]
        if not isinstance(tokens, list):
            raise SystemExit(f"the engine answered {answer}")
        measured.add(whole - first, len(tokens) - 1, steps if isinstance(steps, int) else len(tokens) - 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Prediction and measurement, by K; K = 0 is the target alone.

    Attributes:
        predicted: tokens per second. `measured`: of every K.
    """

    predicted: Mapping[int, float]
    measured: Mapping[int, Measured]
    best: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "best", max(self.predicted, key=self.predicted.__getitem__))

    @property
    def slower(self) -> float:
        """By which share the model's best K was measured to be slower than the fastest."""
        return 1 - self.measured[self.best].rate / max(self.measured[k].rate for k in self.predicted)

    def lines(self) -> Iterator[str]:
        """The table in Markdown."""
        yield "| K | step, ms | predicted tokens/s | measured tokens/s | predicted / measured |"
        yield "|---|---|---|---|---|"
        alone = self.measured[0]
        yield f"| none | {alone.step:.2f} | | {alone.rate:.1f} | |"
        for k, rate in self.predicted.items():
            found = self.measured[k]
            told = ", told" if k in TOLD else ""
            yield f"| {k}{told} | {found.step:.2f} | {rate:.1f} | {found.rate:.1f} | {rate / found.rate:.3f} |"
        yield ""
        fastest = max(self.predicted, key=lambda k: self.measured[k].rate)
        yield (
            f"The model names K = {self.best}; the fastest measured is K = {fastest}. The model's is "
            f"{100 * self.slower:.1f} % slower than it."
        )


@contextmanager
def workers(python: Path) -> Iterator[dict[int, Worker]]:
    """The target alone (0) and with every K."""
    target, live = str(DATA / "targets" / RECIPES[DRAFTER].target), live_of("vllm")
    commands: dict[int, tuple[str, ...]] = {0: ("vllm", "serve", target)}
    for k in range(1, MOST + 1):
        served = serve(DATA / "drafters" / DRAFTER, engine="vllm:cpu", target=target, num_speculative_tokens=k)
        commands[k] = (*served.argv, *live.counting)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:
        found, logs = {}, {k: Path(scratch) / str(k) / "log" for k in commands}
        for k, command in commands.items():
            logs[k].parent.mkdir()
            argv = started(
                offline_of("vllm"), (*command, "--dtype", "float32", *live.measuring), str(python), ignore_eos=True
            )
            process = stack.enter_context(
                engine_process(argv, log=logs[k], directory=logs[k].parent, environment=os.environ, piped=True)
            )
            if process.stdin is None or process.stdout is None:
                raise SystemExit("the engine's process has no pipes")
            found[k] = Worker(process.stdin, process.stdout)
        for k, worker in found.items():
            if not worker.stdout.readline():
                raise SystemExit(f"vLLM with K = {k} did not start:\n{logs[k].read_text()[-2000:]}")
        yield found


def measure(python: Path) -> dict[int, Measured]:
    """Every K, asked in turns."""
    prompts = json.loads((DATA / "prompts.json").read_text())[:PROMPTS]
    measured = {k: Measured() for k in range(MOST + 1)}
    with workers(python) as engines:
        for engine in engines.values():
            engine.decode(prompts[0], Measured())  # warm
        for turn in range(TURNS):
            for prompt in prompts:
                for k, engine in engines.items():
                    engine.decode(prompt, measured[k])
            print(f"turn {turn + 1} of {TURNS}", file=sys.stderr)
    return measured


def predict(measured: Mapping[int, Measured]) -> dict[int, float]:
    """Tokens per second of K = 1 … 6, by `draftconv accept --speed`."""
    steps = {k: measured[k].step for k in (0, *TOLD)}
    with tempfile.TemporaryDirectory() as scratch:
        file, out = Path(scratch) / "steps.yaml", Path(scratch) / "trace"
        told = ", ".join(f"{k}: {ms!r}" for k, ms in steps.items())
        file.write_text(f"loads: [{{concurrency: 1, step_ms: {{{told}}}}}]\n")
        target = DATA / "targets" / RECIPES[DRAFTER].target
        trace(
            target, DATA / "prompts.json", out, drafters=DATA / "drafters" / DRAFTER, limit=PROMPTS,
            max_tokens=LENGTH, ignore_eos=True,
        )  # fmt: skip
        (found,) = accept(DATA / "drafters" / DRAFTER, trace=out, speed=file).drafters
    return {row.depth: row.rate.value for row in found.speeds[0].depths[:MOST]}


def main() -> None:
    """Measure, predict, and print or write the table; exit 1 if the model's best K is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/accept.md")
    write = parser.parse_args().write
    measured = measure(engine_python())
    comparison = Comparison(predict(measured), measured)
    text = "\n".join(comparison.lines())
    print(text)
    if write:
        PAGE.write_text(PART.sub(lambda part: f"{part[1]}\n{text}\n\n{part[2]}", PAGE.read_text()))
    if comparison.slower > BOUND:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
