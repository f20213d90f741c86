"""Run by the Python of vLLM's environment, where draftconv need not be: answers requests on stdin, one a line.

Arguments are those of `vllm serve` with `--model`; what is said on the pipes is in `draftconv.engines.live.Offline`.
vLLM 0.32.0: counts are `outputs[0].spec_decode_metrics`, named as over HTTP; there are none without a drafter.
"""

from __future__ import annotations

import json
import os
import sys

COUNTS = {
    "histogram": "acceptance_histogram",
    "steps": "num_spec_steps",
    "accepted": "num_accepted_draft_tokens",
    "depth": "num_spec_tokens",
}
"""What we call a count → what vLLM calls it."""


def main() -> None:
    """Load the engine, then answer until stdin ends."""
    del sys.path[0]  # this directory, whose modules would hide others of their names
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints goes to the log

    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = EngineArgs.from_cli_args(parser.parse_args())
    engine = vllm.LLM(**vars(arguments))

    def say(document: object) -> None:
        print(json.dumps(document), file=answers, flush=True)

    say({"version": vllm.__version__, "room": engine.llm_engine.model_config.max_model_len})
    for line in sys.stdin:
        request = json.loads(line)
        sampling = vllm.SamplingParams(
            **(request.get("sampling") or {"temperature": 0}),
            max_tokens=request["length"],
            ignore_eos=request["ignore_eos"],
            detokenize=False,
        )
        prompt = {"prompt_token_ids": request["prompt"]}
        try:
            completion = engine.generate([prompt], sampling, use_tqdm=False)[0].outputs[0]
        except Exception as error:  # vLLM raises whatever its workers and kernels raise
            say({"fault": f"{type(error).__name__}: {error}"})
            continue
        metrics = completion.spec_decode_metrics
        counts = metrics.to_dict() if metrics else {}
        say({"tokens": list(completion.token_ids), **{ours: counts.get(theirs) for ours, theirs in COUNTS.items()}})


if __name__ == "__main__":
    main()
