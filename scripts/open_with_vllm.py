"""Run by the Python of vLLM's environment: loads a draft model of any size as vLLM's proposer does, without a target.

    python scripts/open_with_vllm.py DRAFTER TARGET

TARGET needs nothing but its config.json. Answered by a JSON object on stdout: `version`, and either `refused` or the
`class` that was built and the quantization `methods` of its linear layers, each with the number of layers that have
it. A layer that answers in zeros, NaN or infinities is a refusal too.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path


def main(draft: Path, target: Path) -> None:
    """Load it, answer."""
    here = Path(__file__).parent
    sys.path[0] = str(here.parent)  # this directory's modules would hide others of their names, so it comes last
    sys.path.append(str(here))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints goes to the log

    from truth.asking import Refusal
    from truth.vllm import engine

    answer: dict[str, object] = {"version": engine.start()}
    match engine.open_draft(draft, target):
        case Refusal(error=error):
            answer["refused"] = error
        case opened if opened.odd:
            answer["refused"] = f"no sound numbers from {', '.join(opened.odd)}"
        case opened:
            answer |= {"class": opened.name, "methods": Counter(opened.methods.values())}
    json.dump(answer, answers)
    answers.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
