"""SGLang itself, target and drafter: see `serving` for what of it is stood in for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from truth.asking import EngineDied, Refusal
from truth.serving import DEPTH, Ran
from truth.sglang.serving import environment
from truth.sglang.serving.zygote import Question

SCRIPTS = Path(__file__).resolve().parents[2]


def run(
    draft: Path,
    target: Path,
    prompts: Sequence[Sequence[int]],
    length: int,
    dtype: str = "float32",
    depth: int = DEPTH,
) -> Ran | Refusal:
    """See `serving.Run`.

    Raises:
        EngineDied: it ended without an answer.
    """
    return _zygote(os.getpid()).ask(Question(draft, target, prompts, length, dtype, depth))


def version() -> str:
    """SGLang's, as its package says."""
    return metadata.version("sglang")


@cache
def _zygote(_process: int) -> Zygote:
    """One for each process that asks; it ends with it."""
    return Zygote(sys.executable)


class Zygote:
    """A process that has SGLang imported.

    Attributes:
        version: SGLang's.
    """

    def __init__(self, python: str) -> None:
        base = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SCRIPTS.parent, SCRIPTS)))}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self._process = subprocess.Popen(
            [python, "-m", "truth.sglang.serving.zygote"],
            env=environment(base),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.version = str(self._heard())

    def ask(self, question: Question) -> Ran | Refusal:
        """The answer to one question.

        Raises:
            EngineDied: there is none.
        """
        pipe = self._process.stdin
        if pipe is None:
            raise TypeError("it was started with a pipe")
        pickle.dump(question, pipe)
        pipe.flush()
        answer = self._heard()
        if isinstance(answer, EngineDied):
            raise answer
        if not isinstance(answer, Ran | Refusal):
            raise TypeError(f"an answer of another kind: {answer!r}")
        return answer

    def close(self) -> None:
        """End it."""
        self._process.communicate()
        self._log.close()

    def _heard(self) -> Any:
        if self._process.stdout is None:
            raise TypeError("it was started with a pipe")
        try:
            return pickle.load(self._process.stdout)  # written by our own child
        except EOFError:
            self._log.seek(0)
            raise EngineDied(self._log.read().decode(errors="replace")[-2000:]) from None
