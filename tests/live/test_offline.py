"""An engine without a server: what its process says on its pipes, right and wrong. The worker here only plays vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.engines.client import RequestSettings
from draftconv.errors import EngineError, Void
from draftconv.live.capabilities import offline_of
from draftconv.live.offline import OfflineEngine, offline, started
from draftconv.reference.accept_length import Counts
from draftconv.reference.sampling import Sampling

WARM = Sampling(0.7, top_p=0.9, seed=5)
RIGHT = {
    "tokens": [9] * 8,
    "histogram": [1, 0, 0, 2],
    "steps": 3,
    "accepted": 6,
    "depth": 3,
}
WORKER = """
import sys, time
print('{"version": "9.9", "room": 100}', flush=True)
answers = iter(%r)
for line in sys.stdin:
    print(line, end="", file=sys.stderr, flush=True)
    answer = next(answers)
    if answer == "hang":
        time.sleep(60)
    if answer == "die":
        sys.exit("out of memory")
    print(answer, flush=True)
"""


@contextmanager
def playing(tmp_path: Path, *answers: object) -> Iterator[OfflineEngine]:
    told = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    how = replace(offline_of("vllm"), worker=tmp_path / "worker.py")
    (tmp_path / "worker.py").write_text(WORKER % (told,))
    asking = RequestSettings(3, 8, timeout=2)
    argv = started(how, ("vllm", "serve", "llama"), sys.executable, ignore_eos=True)
    with offline("vLLM", how, argv, asking, tmp_path, target="llama", drafter="d", patience=20) as engine:
        yield engine


def test_an_answer(tmp_path: Path) -> None:
    with playing(tmp_path, RIGHT, RIGHT) as engine:
        told = engine.served([1, 2])
        assert (told.version, told.room, told.alone) == ("9.9", 100, True)
        assert engine.ask([1, 2]).counts == Counts((1, 0, 0, 2))


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        ({"tokens": RIGHT["tokens"]}, Void, "reports no draft"),
        ({**RIGHT, "depth": 5}, EngineError, "drafts 5 tokens per step"),
        ({**RIGHT, "steps": 4}, Void, "4 steps and 6 accepted tokens, its histogram 3"),
        ({**RIGHT, "histogram": [3], "accepted": 0}, Void, "make 4 tokens, the text has 8"),
        ({**RIGHT, "tokens": [9]}, EngineError, "generated 1 tokens, 8 were asked for"),
        ({"steps": 3}, EngineError, "does not answer as 0.32.0 does"),
        ({"fault": "RuntimeError: boom"}, EngineError, "vLLM failed: RuntimeError: boom"),
        ("no json", EngineError, "the engine's line"),
        ("hang", EngineError, "did not answer within 2 seconds"),
        ("die", EngineError, "ended before it answered"),
    ],
)
def test_an_answer_that_is_none(answer: object, kind: type[Exception], told: str, tmp_path: Path) -> None:
    with playing(tmp_path, answer) as engine, pytest.raises(kind, match=told) as caught:
        engine.served([1, 2])
    if answer == "die":
        assert "out of memory" in str(caught.value)


def test_drawn_text_is_asked_for_by_the_prompt_s_own_seed(tmp_path: Path) -> None:
    with playing(tmp_path, RIGHT, RIGHT) as engine:
        engine.served([1, 2])
        replace(engine, asking=replace(engine.asking, sampling=WARM)).ask([3, 4])
        asked = [json.loads(line)["sampling"] for line in engine.log.read_text().splitlines()]
    assert asked == [None, {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "seed": WARM.seed_of([3, 4])}]


def test_an_engine_that_has_ended(tmp_path: Path) -> None:
    with playing(tmp_path, RIGHT, "die") as engine:
        engine.served([1])
        for _ in range(2):
            with pytest.raises(EngineError, match="ended"):
                engine.ask([1])
