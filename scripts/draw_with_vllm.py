"""Run by the Python of vLLM's environment: draws texts and tells what each step accepted.

One JSON object on stdin: `engine`, arguments of `vllm.LLM`; `mended`, whether the kernel that the CPU build has wrong
is replaced (`draftconv.engines.vllm.tracing.cpu_sampling`); `rounds`, each with `prompts`, lists of token ids, and
`sampling`, arguments of `vllm.SamplingParams` for each of them. Answered by one on stdout: `version`, and for every
round a list of `tokens`, `logprobs` of these tokens and `accepted` by step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def main() -> None:
    """Load the engine, draw everything, answer."""
    sys.path[0] = str(Path(__file__).parents[1])  # this directory's modules would hide others of their names
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints goes to the log

    import vllm

    from draftconv.engines.vllm.tracing.cpu_sampling import mend

    question = json.load(sys.stdin)
    engine = vllm.LLM(**question["engine"])
    if question["mended"]:
        mend()

    def draw(round: Mapping[str, Any]) -> list[dict[str, object]]:
        prompts = [{"prompt_token_ids": prompt} for prompt in round["prompts"]]
        sampling = [vllm.SamplingParams(**one, detokenize=False) for one in round["sampling"]]
        return [told(output.outputs[0]) for output in engine.generate(prompts, sampling, use_tqdm=False)]

    json.dump({"version": vllm.__version__, "rounds": [draw(one) for one in question["rounds"]]}, answers)
    answers.close()
    engine.llm_engine.engine_core.shutdown()


def told(completion: Any) -> dict[str, object]:
    """One text: vLLM counts a step's accepted drafts before the text is cut."""
    tokens = list(completion.token_ids)
    rows = completion.logprobs
    return {
        "tokens": tokens,
        "logprobs": None if rows is None else [row[token].logprob for row, token in zip(rows, tokens, strict=True)],
        "accepted": completion.spec_decode_metrics.to_dict()["per_step_accepted"],
    }


if __name__ == "__main__":
    main()
