"""Suites: what each shipped one asks, and every way in which the Hub can let it down.

No network: `datasets.load_dataset` and the question for a commit are stood in for. The rows have the shapes that
the data sets' cards document; the questions in them are ours.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled
from pydantic import ValidationError

from draftconv.errors import BadPrompts, UsageError
from draftconv.traces import suites as suites_module
from draftconv.traces.prompts import DEFAULT_SUITE, Prompt, load_prompts
from draftconv.traces.suites import Suite, suites
from tests.served import served

DATASET_INFO = huggingface_hub.HfApi.dataset_info
COMMIT = "0123456789abcdef0123456789abcdef01234567"

Rows = Mapping[str | None, list[dict[str, object]]]


@dataclass
class Hub:
    """What the stand-ins answer, and what they were asked."""

    rows: Rows = field(default_factory=dict)
    fails: Exception | None = None
    info_fails: Exception | None = None
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def load_dataset(
        self, path: str, name: str | None = None, *, split: str, revision: str, streaming: bool
    ) -> Iterator[dict[str, object]]:
        self.asked.append((path, name, split, revision, streaming))
        if self.fails:
            raise self.fails
        return iter(self.rows[name])

    def dataset_info(self, repo: str, *, revision: str | None) -> SimpleNamespace:
        self.asked.append((repo, revision))
        if self.info_fails:
            raise self.info_fails
        return SimpleNamespace(sha=COMMIT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    found = Hub()
    module = ModuleType("datasets")
    module.load_dataset = found.load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", found.dataset_info)
    monkeypatch.chdir(tmp_path)
    return found


def refused(spec: str, limit: int | None = None) -> BadPrompts:
    with pytest.raises(BadPrompts) as caught:
        load_prompts(spec, limit)
    return caught.value


THROUGHPUT = tuple(f"speed-bench-throughput-{length}k" for length in (1, 2, 8, 16, 32))


# ── the shipped suites ─────────────────────────────────────────────────────────────


def test_the_counts_are_those_of_the_cards() -> None:
    """Counts on the model cards of lightseekorg's Kimi drafters; SPEED-Bench from its own card."""
    assert {name: suite.count for name, suite in suites().items()} == {
        "aime": 30,
        "c-eval": 212,
        "gsm8k": 500,
        "humaneval": 164,
        "livecodebench": 200,
        "math-500": 500,
        "mmstar": 200,
        "mt-bench": 80,
        "speed-bench": 880,
        "speed-bench-coding": 80,
        **dict.fromkeys(THROUGHPUT, 1536),
    }


def test_the_default_is_mt_bench_at_256_tokens() -> None:
    suite = suites()[DEFAULT_SUITE]
    assert (DEFAULT_SUITE, suite.count, suite.max_tokens) == ("mt-bench", 80, 256)


def test_no_suite_claims_to_have_been_run() -> None:
    assert {suite.evidence for suite in suites().values()} == {"read", "inferred"}


ASK_IN_CHINESE = "先分析各选项\uff0c再给出正确答案的字母。"

QUESTION = {"question": "Q?", "A": "a", "B": "b", "C": "c", "D": "d"}

ROWS: Mapping[str, tuple[dict[str, object], Prompt]] = {
    "aime": (
        {"ID": "2024-I-1", "Problem": "Find $x$.", "Solution": "…", "Answer": 33},
        Prompt(
            "2024-I-1",
            "math",
            ("Find $x$.\nPlease reason step by step, and put your final answer within \\boxed{}.",),
        ),
    ),
    "c-eval": (
        {"id": 0, **QUESTION, "answer": "A", "explanation": ""},
        Prompt("0", "accountant", (f"Q?\n\nA. a\nB. b\nC. c\nD. d\n\n{ASK_IN_CHINESE}",)),
    ),
    "gsm8k": ({"question": "How many?", "answer": "#### 2"}, Prompt("0", "math", ("How many?",))),
    "humaneval": (
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "", "test": "", "entry_point": "f"},
        Prompt("HumanEval/0", "code", ("def f():\n",)),
    ),
    "livecodebench": (
        {"question_title": "t", "question_content": "Sort {them}.", "private_test_cases": "…"},
        Prompt("0", "code", ("Sort {them}.",)),
    ),
    "math-500": (
        {"problem": "$\\frac{1}{2}$", "solution": "", "answer": "", "subject": "Algebra", "level": 1, "unique_id": "u"},
        Prompt("0", "Algebra", ("$\\frac{1}{2}$",)),
    ),
    "mt-bench": (
        {"prompt": ["first", "then"], "prompt_id": 31, "category": "writing", "reference": []},
        Prompt("31", "writing", ("first", "then")),
    ),
    "speed-bench": (
        {"question_id": "q1", "category": "rag", "sub_category": "s", "turns": ["one"], "source": "", "src_id": ""},
        Prompt("q1", "rag", ("one",)),
    ),
    **{
        name: (
            {"question_id": "q3", "category": "low_entropy", "sub_category": "sort", "turns": ["long"], "src_id": ""},
            Prompt("q3", "low_entropy", ("long",)),
        )
        for name in THROUGHPUT
    },
    "speed-bench-coding": (
        {"question_id": "q2", "category": "coding", "sub_category": "python", "turns": ["two"]},
        Prompt("q2", "python", ("two",)),
    ),
}


@pytest.mark.parametrize("name", [name for name, suite in suites().items() if suite.modality == "text"])
def test_a_row_becomes_a_prompt(hub: Hub, name: str) -> None:
    row, prompt = ROWS[name]
    suite = suites()[name]
    hub.rows = {config: [row] for config in suite.configs or (None,)}
    found = load_prompts(name, 1)
    assert found.prompts == (prompt,)
    assert found.max_tokens == suite.max_tokens
    assert found.source == f"{name} ({suite.dataset}@{COMMIT}, {suite.split})"
    # What is loaded is the commit that is recorded, and no keyword lets a data set run code.
    config = suite.configs[0] if suite.configs else None
    assert hub.asked == [
        (suite.dataset, None),
        (suite.dataset, config, suite.split, COMMIT, name == "livecodebench"),
    ]


def test_images_are_refused_without_asking_the_hub(hub: Hub) -> None:
    error = refused("mmstar")
    assert "asks about images" in error.what
    assert error.why == "a trace holds text only"
    assert not hub.asked


def test_configs_follow_each_other_until_the_count_is_reached(hub: Hub) -> None:
    configs = suites()["c-eval"].configs
    sizes = (49, 19, 33, 19, 33, 23, 47, 22)
    hub.rows = {
        config: [{**QUESTION, "id": index, "question": f"{config} {index}"} for index in range(size)]
        for config, size in zip(configs, sizes, strict=True)
    }
    found = load_prompts("c-eval").prompts
    assert len(found) == 212
    assert [prompt.id for prompt in found] == [str(index) for index in range(212)]
    assert list(dict.fromkeys(prompt.category for prompt in found)) == list(configs[:7])
    assert found[49].turns[0].startswith("advanced_mathematics 0\n")
    assert len(hub.asked) == 1 + 7  # the eighth is never loaded


def test_only_the_rows_asked_for(hub: Hub) -> None:
    def row(index: int) -> dict[str, object]:
        category = "coding" if index % 2 else "math"
        return {"question_id": f"q{index}", "category": category, "sub_category": "s", "turns": [f"t{index}"]}

    hub.rows = {"qualitative": [row(index) for index in range(160)]}
    assert [p.id for p in load_prompts("speed-bench-coding").prompts] == [f"q{index}" for index in range(1, 160, 2)]


def test_the_lengths_of_the_throughput_suites() -> None:
    """specdec_bench's speed.py cuts or pads to so many thousand tokens."""
    assert [suites()[name].input_tokens for name in THROUGHPUT] == [1000, 2000, 8000, 16000, 32000]
    assert [suites()[name].configs for name in THROUGHPUT] == [
        (f"throughput_{length}k",) for length in (1, 2, 8, 16, 32)
    ]
    assert {suite.input_tokens for name, suite in suites().items() if name not in THROUGHPUT} == {None}


@pytest.mark.parametrize("name", THROUGHPUT)
def test_a_throughput_suite_from_a_local_file(tmp_path: Path, name: str) -> None:
    """Of the shape that docs/suites.md makes of what NVIDIA's script writes: its columns, one of them renamed."""
    tiers = ("low_entropy", "mixed", "high_entropy")
    text = "word " * (suites()[name].input_tokens or 0)
    rows = [
        {
            "id": f"q{i}",
            "category": tiers[i % 3],
            "sub_category": "sort",
            "turns": [text + str(i)],
            "source": "AdaLEval/textsort",
            "src_id": f"t_{i}",
            "difficulty": "",
            "multiturn": False,
        }
        for i in range(6)
    ]
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_prompts(str(file))
    assert [(p.id, p.category, p.turns) for p in found.prompts] == [
        (row["id"], row["category"], tuple(cast("list[str]", row["turns"]))) for row in rows
    ]
    assert found.source == file.name


def test_the_same_rows_are_the_same_prompts(hub: Hub) -> None:
    hub.rows = {None: [{"prompt": [f"{index}", "b"], "prompt_id": index, "category": "c"} for index in range(80)]}
    first = load_prompts("mt-bench").prompts
    assert load_prompts("mt-bench").prompts == first
    hub.rows[None][79]["prompt"] = ["79", "b "]
    assert load_prompts("mt-bench").prompts != first


# ── faults ─────────────────────────────────────────────────────────────────────────


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        load_prompts("mtbench")
    assert caught.value.why.startswith("suites: aime, c-eval, gsm8k")
    assert caught.value.cure == "did you mean mt-bench?"


def test_without_datasets_the_extra_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    error = refused("gsm8k")
    assert "pip install 'draftconv[suites]'" in error.cure
    assert not hub.asked


def test_a_directory_of_that_name_would_be_read_instead(hub: Hub) -> None:
    Path("openai/gsm8k").mkdir(parents=True)
    assert "a directory openai/gsm8k" in refused("gsm8k").what
    assert not hub.asked


@pytest.mark.parametrize(
    ("row", "fault", "why"),
    [
        ({"question": "Q?"}, "has no column A", "it has question; that it has A was read, not run"),
        ({}, "has no column question", ""),
        ({**QUESTION, "question": None}, "question is None, which is neither text nor a number", ""),
        ({**QUESTION, "A": ["a"]}, "A is .*, which is neither text nor a number", ""),
        ({**QUESTION, "A": True}, "A is True", ""),
        ({**QUESTION, "question": "\ud800"}, "row 0 holds half of a surrogate pair", ""),
    ],
)
def test_a_column_that_is_not_as_documented(hub: Hub, row: dict[str, object], fault: str, why: str) -> None:
    hub.rows = {"accountant": [row]}
    error = refused("c-eval", 1)
    assert why in error.why
    with pytest.raises(BadPrompts, match=fault):
        raise error


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"prompt": "text"}, "prompt is a str, not a list of turns"),
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": ["a", ""]}, r"prompt\[1\] is empty"),
        ({"prompt": [{"role": "user"}]}, r"prompt\[0\] is a JSON dict, not text"),
        ({"turns": ["a"]}, "has no column prompt"),
        ({"prompt": ["a"], "prompt_id": 1}, "has no column category"),
    ],
)
def test_turns_that_are_none(hub: Hub, row: dict[str, object], fault: str) -> None:
    hub.rows = {None: [{"category": "c", **row} if "prompt_id" not in row else row]}
    with pytest.raises(BadPrompts, match=fault):
        load_prompts("mt-bench", 1)


def test_fewer_rows_than_counted(hub: Hub) -> None:
    hub.rows = {None: [{"prompt": ["a"], "prompt_id": index, "category": "c"} for index in range(79)]}
    error = refused("mt-bench")
    assert "holds 79 prompts, the suite mt-bench counts 80" in error.what
    assert "--limit 79" in error.cure
    assert len(load_prompts("mt-bench", 79).prompts) == 79
    hub.rows = {None: []}
    assert "holds no prompt" in refused("mt-bench").what


def test_an_id_that_comes_twice(hub: Hub) -> None:
    hub.rows = {None: [{"prompt": ["a"], "prompt_id": 5, "category": "c"}] * 2}
    assert "row 1: the id 5 was taken at" in refused("mt-bench").what


def test_a_placeholder_is_no_prompt(hub: Hub) -> None:
    text = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH\n\nWrite {question}"
    rows: list[dict[str, object]] = [{"question_id": i, "category": "c", "turns": ["a", "b"]} for i in range(2)]
    rows[1]["turns"] = ["a", text]
    hub.rows = {"qualitative": rows}
    assert len(load_prompts("speed-bench", 1).prompts) == 1
    error = refused("speed-bench", 2)
    assert "row 1 holds a placeholder" in error.what
    assert "docs/suites.md" in error.cure


HTTP = huggingface_hub.errors.HfHubHTTPError
CLIENT = importlib.import_module(HTTP.__bases__[0].__module__.partition(".")[0])
"""httpx or what huggingface_hub uses in its place."""


def answered(status: int, kind: type[huggingface_hub.errors.HfHubHTTPError]) -> Exception:
    url = "https://example.invalid/api?secret=token"
    response = CLIENT.Response(status, request=CLIENT.Request("GET", url))
    return kind(f"client error for {url}", response=response)


def named(module: str, name: str, base: type[Exception]) -> Exception:
    """An exception as `datasets` defines it, which is not installed here."""
    made: type[Exception] = type(name, (base,), {"__module__": module})
    return made("https://example.invalid?secret=token")


@pytest.mark.parametrize(
    ("fails", "fault", "cure"),
    [
        (OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set", "unset it"),
        (answered(401, HTTP), "answered HTTP 401", "hf auth login"),
        (answered(403, GatedRepoError), "answered HTTP 403", "hf auth login"),
        (answered(404, HTTP), "answered HTTP 404", "hf auth login"),
        (answered(500, HTTP), "answered HTTP 500", "try again later"),
        (CLIENT.ConnectError("no route"), r"could not be read from the Hub \(ConnectError\)", "check the network"),
        (ConnectionError("secret"), r"\(ConnectionError\)", "check the network"),
        (named("datasets.exceptions", "DatasetNotFoundError", FileNotFoundError), "refuses", "hf auth login"),
        (named("datasets.exceptions", "DataFilesNotFoundError", FileNotFoundError), "DataFilesNotFound", ".jsonl"),
        (named("datasets.exceptions", "DatasetGenerationError", Exception), "DatasetGenerationError", ".jsonl"),
        (ValueError('Unknown split "test".'), 'expects: Unknown split "test"', ".jsonl"),
        (ValueError("BuilderConfig 'main' not found."), "BuilderConfig 'main'", ".jsonl"),
        (RuntimeError("Dataset scripts are no longer supported"), "scripts are no longer", ".jsonl"),
    ],
)
@pytest.mark.parametrize("when", ["asked for the commit", "loaded", "read"])
def test_the_hub_lets_us_down(hub: Hub, when: str, fails: Exception, fault: str, cure: str) -> None:
    match when:
        case "asked for the commit":
            hub.info_fails = fails
        case "loaded":
            hub.fails = fails
        case _:
            hub.load_dataset = None  # type: ignore[method-assign, assignment]
            sys.modules["datasets"].load_dataset = failing_rows(fails)  # type: ignore[attr-defined]
    error = refused("gsm8k")
    assert "openai/gsm8k" in error.what
    assert cure in error.cure
    assert "secret" not in str(error)
    with pytest.raises(BadPrompts, match=fault):
        raise error


def failing_rows(fails: Exception) -> Callable[..., Iterator[dict[str, object]]]:
    def load_dataset(*_: object, **__: object) -> Iterator[dict[str, object]]:
        yield {"question": "the first row comes"}
        raise fails

    return load_dataset


def test_a_fault_of_ours_is_not_the_hubs(hub: Hub) -> None:
    hub.fails = TypeError("load_dataset() got an unexpected keyword argument")
    with pytest.raises(TypeError):
        load_prompts("gsm8k")


# ── what a suite may say ───────────────────────────────────────────────────────────

GOOD: Mapping[str, object] = {
    "title": "t",
    "about": "a",
    "dataset": "owner/name",
    "split": "test",
    "count": 1,
    "choice": "all",
    "turns": ["{a} {{b}} {_config}"],
    "category": "c",
    "max_tokens": 1,
    "license": "mit",
    "redistribution": "allowed",
    "evidence": "read",
    "source": "s",
}


def test_a_suite_that_is_complete() -> None:
    assert Suite.model_validate(GOOD).turns == ("{a} {{b}} {_config}",)


@pytest.mark.parametrize(
    "change",
    [
        {"turns": ["{a.__class__}"]},
        {"turns": ["{a[0]}"]},
        {"turns": ["{a!r}"]},
        {"turns": ["{a:>10}"]},
        {"turns": ["{}"]},
        {"turns": ["{0}"]},
        {"turns": ["{"]},
        {"id": "{a.b}"},
        {"category": "{a()}"},
        {"language": "{a()}"},
        {"turns": []},
        {"turns_from": "column"},
        {"dataset": "../../etc"},
        {"dataset": "name"},
        {"dataset": "https://host/a"},
        {"count": 0},
        {"max_tokens": 0},
        {"modality": "sound"},
        {"evidence": "guessed"},
        {"trust_remote_code": True},
    ],
)
def test_a_suite_that_says_too_much_or_too_little(change: Mapping[str, object]) -> None:
    with pytest.raises(ValidationError):
        Suite.model_validate({**GOOD, **change})


def test_a_column_can_tell_the_language() -> None:
    suite = Suite.model_validate({**GOOD, "turns": ["{a}"], "language": "{lang}"})
    ((_, prompt),) = suites_module._prompts(suite, [("row 0", {"a": "eins", "lang": "de"})])
    assert (prompt.turns, prompt.language) == (("eins",), "de")
    assert Suite.model_validate(GOOD).language == ""


def test_a_value_is_never_a_template(hub: Hub) -> None:
    hub.rows = {"main": [{"question": "{_config} {question.__class__} {{}}"}]}
    assert load_prompts("gsm8k", 1).prompts[0].turns == ("{_config} {question.__class__} {{}}",)


# ── what answers in place of a Hub ─────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body", [b"", b"<html>log in</html>", b"[]", b"null", b"\xff", b"{}", b'{"id": 5}', b'{"id": "a/b", "sha": 7}']
)
def test_what_answers_and_is_no_hub(body: bytes, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Portal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", DATASET_INFO)
    monkeypatch.setenv("NO_PROXY", "*")
    huggingface_hub.close_session()
    with served(Portal) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        error = refused("mt-bench")
    huggingface_hub.close_session()
    assert "the data set" in error.what
    assert error.cure
    assert not hub.asked
