"""What engines say of how they are measured: every one of the registry, and vLLM without a server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from draftconv.engines import ENGINES
from draftconv.engines.live import Live
from draftconv.engines.vllm.live import LIVE, without_server
from draftconv.errors import UsageError
from draftconv.reference.sampling import Sampling

COUNTING = {name: engine.live for name, engine in ENGINES.items() if engine.live}


@pytest.mark.parametrize("live", [pytest.param(live, id=name) for name, live in COUNTING.items()])
def test_an_engine_says_enough_of_itself(live: Live) -> None:
    assert live.packages
    assert all(re.compile(line.pattern).groups in (1, 2) and line.source for line in live.lines)
    if live.offline:
        assert live.offline.worker.is_file()


@pytest.mark.parametrize(
    ("name", "hardware", "arguments", "said"),
    [
        ("vllm", "cpu", (), "draws beside a drafter at no set temperature"),
        ("sglang", "mi325x", (), "greedy text beside a drafter"),
        ("sglang", "mi325x", ("--speculative-use-rejection-sampling",), ""),
        ("vllm", "mi325x", (), ""),
        ("sglang", "b200", (), ""),
        ("trtllm", "b200", (), ""),
    ],
)
def test_where_text_is_not_drawn_as_asked(name: str, hardware: str, arguments: tuple[str, ...], said: str) -> None:
    live = COUNTING[name]
    if not said:
        live.refuse_sampling(Sampling(0.7), hardware, arguments)
        return
    with pytest.raises(UsageError, match=said):
        live.refuse_sampling(Sampling(0.7), hardware, arguments)


def test_clients_are_imported_when_one_is_asked_for() -> None:
    """`inspect` and `convert` import every engine, and speak to none."""
    code = (
        "import sys, draftconv.engines as e; from draftconv.engines.client import RequestSettings\n"
        "print('httpx2' in sys.modules)\n"
        "for engine in e.ENGINES.values(): engine.live.connect('http://127.0.0.1:9', '--url', RequestSettings(3, 8))\n"
        "print('httpx2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"


@pytest.mark.parametrize(
    "start", [("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server", "--model")]
)
def test_arguments_without_a_server(start: tuple[str, ...]) -> None:
    argv = (*start, "llama", "--host", "127.0.0.1", "--enforce-eager")
    assert without_server(argv, False) == ("--model", "llama", "--enforce-eager")
    assert without_server(argv, True) == ("--model", "llama", "--enforce-eager", "--skip-tokenizer-init")


VLLM = {
    "__init__.py": """
        import types
        __version__ = "9.9"
        class SamplingParams:
            def __init__(self, **asked):
                self.asked = asked
                print("asked", asked)
        class Metrics:
            def to_dict(self):
                return {"acceptance_histogram": [1, 2], "num_spec_steps": 3, "num_accepted_draft_tokens": 2,
                        "num_spec_tokens": 1, "acceptance_rate": 0.5}
        class LLM:
            def __init__(self, **arguments):
                print("loading", arguments)
                config = types.SimpleNamespace(max_model_len=64)
                self.llm_engine = types.SimpleNamespace(model_config=config)
            def generate(self, prompts, sampling, use_tqdm):
                ids = prompts[0]["prompt_token_ids"]
                if not ids: raise RuntimeError("no prompt")
                done = types.SimpleNamespace(token_ids=[7] * sampling.asked["max_tokens"],
                                             spec_decode_metrics=Metrics() if ids[0] else None)
                return [types.SimpleNamespace(outputs=[done])]
    """,
    "engine/arg_utils.py": """
        import types
        class EngineArgs(types.SimpleNamespace):
            @staticmethod
            def add_cli_args(parser):
                parser.add_argument("--model")
                return parser
            @classmethod
            def from_cli_args(cls, found): return cls(model=found.model)
    """,
    "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
}
"""As much of vLLM as the worker touches."""


def test_the_program_that_answers_without_a_server(tmp_path: Path) -> None:
    """Counts under the names of `Offline`, none without a drafter; what vLLM prints is no answer."""
    for name, text in VLLM.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        path.write_text("\n".join(line.removeprefix("        ") for line in lines))
    assert LIVE.offline
    argv = [sys.executable, str(LIVE.offline.worker), "--model", "llama"]
    warm = {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "seed": 3}
    asked = [
        {"prompt": prompt, "length": 5, "ignore_eos": True, "sampling": sampling}
        for prompt, sampling in (([1], None), ([0], None), ([], None), ([2], warm))
    ]
    done = subprocess.run(
        argv,
        input="\n".join(map(json.dumps, asked)),
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    counts = {"histogram": [1, 2], "steps": 3, "accepted": 2, "depth": 1}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"version": "9.9", "room": 64},
        {"tokens": [7] * 5, **counts},
        {"tokens": [7] * 5, **dict.fromkeys(counts)},
        {"fault": "RuntimeError: no prompt"},
        {"tokens": [7] * 5, **counts},
    ]
    shared = {"max_tokens": 5, "ignore_eos": True, "detokenize": False}
    assert f"asked { ({'temperature': 0, **shared}) }" in done.stderr
    assert f"asked { ({**warm, **shared}) }" in done.stderr
    assert "loading {'model': 'llama'}" in done.stderr
