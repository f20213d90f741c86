"""SGLang imported once; every question is answered by a whole engine in a fork of this process. TEST ONLY.

    python -m truth.sglang.serving.zygote         questions on stdin, answers on stdout, pickled

SGLang starts its processes anew, which reads its modules again in each: 15 s for an engine that then starts in 1.5 s.
Forked from here they are the same processes with the same code.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truth.asking import EngineDied, Refusal, ask
from truth.serving import Ran
from truth.sglang.serving import ARGUMENTS, complete_target

if TYPE_CHECKING:
    from typing import BinaryIO

FAULT = re.compile(r"^\w+(?:Error|Exception)\b.*", re.MULTILINE)
FAILED = "Received sigquit from a child process"
DRAFTS = "DRAFTCONV_STAND_IN_DRAFTS"


@dataclass(frozen=True, slots=True)
class Question:
    """What `serving.Run` takes."""

    draft: Path
    target: Path
    prompts: Sequence[Sequence[int]]
    length: int
    dtype: str
    depth: int


def main() -> None:
    """Answer questions until there are none."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what SGLang prints is no answer
    version = warm()
    _say(answers, version)
    while True:
        try:
            question: Question = pickle.load(sys.stdin.buffer)  # written by our own parent
        except EOFError:
            return
        _say(answers, answer(question))


def _say(pipe: BinaryIO, message: object) -> None:
    pickle.dump(message, pipe)
    pipe.flush()


def warm() -> str:
    """Import what an engine's processes import, and return SGLang's version."""
    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry  # noqa: F401  reads every model class
    from sglang.version import __version__

    return str(__version__)


def answer(question: Question) -> Ran | Refusal | EngineDied:
    """What a whole engine made of it."""
    try:
        with tempfile.TemporaryDirectory() as directory:
            return ask(lambda: _run(question, Path(directory)))
    except EngineDied as death:
        # A scheduler that cannot start says why, and takes its engine with it (srt/entrypoints/engine.py).
        faults = FAULT.findall(str(death)) if FAILED in str(death) else []
        return Refusal(faults[-1][:500]) if faults else death


def _run(question: Question, directory: Path) -> Ran:
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.utils import kill_process_tree

    sys.modules["sitecustomize"].die_with_parent()  # of the stand-in; a fork has to say it anew
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # SGLang asks for "spawn"
    drafts = directory / "drafts"
    os.environ[DRAFTS] = str(drafts)
    try:
        engine = Engine(**_arguments(question, directory / "target"))
        sampling = {"temperature": 0, "max_new_tokens": question.length, "ignore_eos": True}
        told = engine.generate(input_ids=[list(prompt) for prompt in question.prompts], sampling_params=sampling)
        return _ran(told, question.depth, drafts)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _arguments(question: Question, directory: Path) -> dict[str, Any]:
    longest = sum(len(prompt) + question.length + 2 * question.depth for prompt in question.prompts)
    return {
        **ARGUMENTS,
        "model_path": str(complete_target(question.target, directory)),
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(question.draft),
        "speculative_num_steps": question.depth,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": question.depth + 1,
        "dtype": question.dtype,
        "max_total_tokens": longest,
        "max_running_requests": len(question.prompts),
        "disable_radix_cache": True,
        "skip_tokenizer_init": True,
        "grammar_backend": "none",
        "log_level": "warning",
    }


def _ran(told: Sequence[dict[str, Any]], depth: int, drafts: Path) -> Ran:
    """What the engine counted, and the drafts in an order of their own: requests are drafted side by side."""
    histograms = [tuple(one["meta_info"]["spec_correct_drafts_histogram"]) for one in told]
    lines = drafts.read_text(encoding="utf-8").splitlines()
    chains = sorted(tuple(map(int, line.split())) for line in lines)
    return Ran(
        tokens=tuple(tuple(one["output_ids"]) for one in told),
        histograms=tuple((*counts, *(0,) * (depth + 1 - len(counts))) for counts in histograms),
        steps=(),
        drafts=tuple(token for chain in chains for token in chain),
        layers=(),
    )


if __name__ == "__main__":
    main()
