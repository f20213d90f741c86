"""Hold the replay of sampled text against a real vLLM that draws.

    scripts/engine-sampling            print the table
    scripts/engine-sampling --write    put it into docs/sampling.md

vLLM serves the target of a trained fixture beside its drafter, draws texts after held-out prompts and tells what each
step accepted; drafts are greedy or drawn, as `draft_sample_method` says. The replay is given the texts with vLLM's own
log-probabilities, and says how many steps it expects: as in `simulate-sampling`, whose dice vLLM throws here. The
log-probabilities are held against those of the fixture's target in torch.

`scripts/engine-env` makes the engine's environment, .engine-venv; DRAFTCONV_ENGINE_PYTHON names the Python of another.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from measuring import engine_python
from sampled_speculation import Method, SampledRun
from simulate_sampling import DEPTH, LENGTH, PAGE, SamplingCell, Subject, compare, row, unseen_faults
from train_tiny import DATA, RECIPES, read_prompts

from draftconv.reference.accept_length import Counts
from draftconv.reference.processors import log_probs
from draftconv.reference.sampling import Sampling

ROOT = Path(__file__).parents[1]
ENGINE = engine_python()
PART = re.compile(r"(<!-- engine: drawn -->\n).*?(<!-- end: drawn by an engine -->)", re.DOTALL)

SETTINGS = (Sampling(0.7), Sampling(0.7, top_p=0.9))
TOLERANCE = 1e-3
"""How far a log-probability may be from that of the target in torch: both compute in float32, in another order."""


@dataclass(frozen=True, slots=True)
class EngineCell:
    """Runs of one fixture at one setting.

    Attributes:
        version: of the engine. `cell`: counted by it, expected by the replay.
        logprob: the largest difference of a log-probability from that of the target in torch.
    """

    version: str
    cell: SamplingCell
    logprob: float

    @property
    def holds(self) -> bool:
        """Whether engine and replay agree: greedy drafts in all runs, drawn ones on average."""
        return self.cell.holds and self.logprob <= TOLERANCE


def draw(
    subject: Subject, method: Method, settings: Sequence[Sampling], runs: int, *, mended: bool = True
) -> tuple[str, list[list[Drawn]]]:
    """Texts drawn by vLLM beside the drafter, for every setting.

    Args:
        mended: its CPU build with the kernel replaced that it has wrong.

    Raises:
        RuntimeError: vLLM failed; its last words.
    """
    prompts = [prompt.tolist() for prompt in read_prompts()]
    asked = [prompts[i % len(prompts)] for i in range(runs)]
    rounds = [{"prompts": asked, "sampling": [_request(sampling, i) for i in range(runs)]} for sampling in settings]
    question = {"engine": _arguments(subject.name, method), "mended": mended, "rounds": rounds}
    done = subprocess.run(
        [ENGINE, Path(__file__).with_name("draw_with_vllm.py")],
        input=json.dumps(question),
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"vLLM failed with {method} drafts:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout)
    return told["version"], [
        [Drawn.of(prompt, **one) for prompt, one in zip(asked, answers, strict=True)] for answers in told["rounds"]
    ]


ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def _arguments(name: str, method: Method) -> dict[str, Any]:
    return {
        "model": str(DATA / "targets" / RECIPES[name].target),
        "dtype": "float32",
        "max_model_len": 512,
        "enforce_eager": True,
        "compilation_config": {"custom_ops": ["-rotary_embedding"]},
        "enable_prefix_caching": False,
        "logprobs_mode": "processed_logprobs",
        "per_request_spec_decode_metrics": "detailed",
        "speculative_config": {
            "method": "eagle3",
            "model": str(DATA / "drafters" / name),
            "num_speculative_tokens": DEPTH,
            "draft_sample_method": method,
        },
    }


def _request(sampling: Sampling, number: int) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": number,
        "max_tokens": LENGTH + DEPTH,
        "ignore_eos": True,
        "logprobs": 0,
    }


@dataclass(frozen=True, slots=True)
class Drawn:
    """A text that vLLM drew, and the prompt's length."""

    prompt: int
    run: SampledRun

    @classmethod
    def of(
        cls, prompt: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float], accepted: Sequence[int]
    ) -> Drawn:
        """Only steps that start before the counted end count, as in a trace."""
        starts, steps = 1, []
        for step in accepted:
            if starts < LENGTH:
                steps.append(step)
            starts += step + 1
        logprobs_N = torch.tensor(logprobs, dtype=torch.float32).clamp(max=0)
        return cls(len(prompt), SampledRun(torch.tensor([*prompt, *tokens]), logprobs_N, Counts.of(steps, DEPTH)))


def measure(subject: Subject, method: Method, settings: Sequence[Sampling], runs: int) -> list[EngineCell]:
    """Draw, replay the texts, compare: a cell for every setting."""
    version, rounds = draw(subject, method, settings, runs)
    return [
        EngineCell(
            version,
            compare(subject, sampling, method, [one.prompt for one in drawn], [one.run for one in drawn]),
            max(_distance(subject, sampling, one) for one in drawn),
        )
        for sampling, drawn in zip(settings, rounds, strict=True)
    ]


@torch.no_grad()
def _distance(subject: Subject, sampling: Sampling, drawn: Drawn) -> float:
    """The largest difference of vLLM's log-probabilities from those of the target in torch."""
    tokens_N = drawn.run.tokens_N
    logits_TV = subject.target(tokens_N[None, :-1]).logits[0, drawn.prompt - 1 :]
    wanted_N = log_probs(logits_TV, sampling).gather(1, tokens_N[drawn.prompt :, None])[:, 0]
    return float((wanted_N - drawn.run.logprobs_N).abs().max())


def table(cells: Sequence[EngineCell]) -> str:
    """The figures in Markdown."""
    head = [
        f"vLLM {cells[0].version}, K = {DEPTH}, {LENGTH} tokens:",
        "",
        "| drafter | drafts | text | runs | steps counted | steps expected | difference, standard errors | the same "
        "with the planted fault | largest difference of a log p |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join([*head, *(f"{row(one.cell)} {one.logprob:.1e} |" for one in cells)])


def main(argv: Sequence[str]) -> int:
    """Print or write the table; 1 where replay and engine disagree."""
    parser = argparse.ArgumentParser(
        prog="scripts/engine-sampling", description="Hold the replay of sampled text against a real vLLM that draws."
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/sampling.md")
    parser.add_argument("--runs", type=int, default=128, help="runs per fixture and setting (default: 128)")
    parser.add_argument("--fixtures", default="llama-eagle3-reduced,mla-eagle3.1", metavar="NAME,…", help="which")
    options = parser.parse_args(argv)
    if not ENGINE.exists():
        parser.error("no engine environment: scripts/engine-env makes one")
    torch.set_num_threads(1)
    cells: list[EngineCell] = []
    for name in options.fixtures.split(","):
        subject = Subject.of(name)
        for method in get_args(Method):
            cells += measure(subject, method, SETTINGS, options.runs)
            print(table(cells[-len(SETTINGS) :]), flush=True)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(PART.sub(lambda found: f"{found[1]}\n{table(cells)}\n\n{found[2]}", text), encoding="utf-8")
    return 0 if all(cell.holds for cell in cells) and not unseen_faults([cell.cell for cell in cells]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
