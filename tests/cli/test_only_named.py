"""An engine that is only named: judged by `inspect --for`, refused by all else, and in nothing that names no engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from draftconv.conversion.readers import portable_engines
from draftconv.drafter.boundaries import IDS
from draftconv.engines import ENGINES
from draftconv.layouts import layouts, writable
from draftconv.replay.target_tables import semantics
from draftconv.traces.options import runners
from tests.cli.conftest import Run
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

ONLY_NAMED = [name for name, engine in ENGINES.by_name.items() if engine.only_named]
LLAMA, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
NESTED = DATA / "drafters/llama-eagle3.1"
TRIO = ["vllm", "sglang", "trtllm"]


def test_there_is_one() -> None:
    assert ONLY_NAMED == ["llamacpp"]
    assert list(ENGINES) == TRIO


def judged(run: Run, *words: object) -> dict[str, str]:
    """Engine → status of an inspection."""
    told = json.loads(run("inspect", *words, "--format", "json").stdout)
    return {row["engine"].partition("@")[0]: row["status"] for row in told["engines"]}


def test_inspect_judges_it_where_it_is_named(run: Run) -> None:
    assert list(judged(run, LLAMA, "--target", TARGET)) == TRIO
    assert judged(run, LLAMA, "--target", TARGET, "--for", "llamacpp") == {"llamacpp": "loads"}
    both = judged(run, NESTED, "--target", TARGET, "--for", "vllm", "--for", "llama.cpp")
    assert both == {"vllm": "loads", "llamacpp": "refused"}


def test_without_a_name_nothing_speaks_of_it(run: Run) -> None:
    for words in (("inspect", LLAMA, "-v"), ("inspect", NESTED, "--deep"), ("recipes",), ("recipes", "w4a16")):
        told = run(*words).output.replace(str(DATA), "").lower()
        assert "vllm" in told
        assert not [word for name in ONLY_NAMED for word in (name, ENGINES[name].title) if word in told]


def test_the_verdict_says_which_program_stops(run: Run) -> None:
    told = run("inspect", NESTED, "--for", "llamacpp", "--target", TARGET)
    assert told.exit_code == 1
    assert "refused by llamacpp@10547" in told.stdout
    assert "the converter has no name for the norms of EAGLE-3.1 before fc: fc_norm.0.weight" in told.stdout


def test_no_next_step_leads_to_it(run: Run) -> None:
    """Nothing is converted for it, and nothing of ours starts it; another engine that is named as well is."""
    for drafter in (LLAMA, NESTED):
        told = run("inspect", drafter, "--for", "llamacpp", "--target", TARGET)
        assert not {"convert", "serve"} & set((told.stdout + told.stderr).split())
    told = run("inspect", LLAMA, "--for", "llamacpp", "--for", "vllm", "--target", TARGET)
    assert "draftconv serve" in told.output
    assert "--for vllm@" in told.output


REFUSALS = {
    "convert": ("convert", LLAMA, "out", "--to", "llamacpp"),
    "quantize": ("quantize", LLAMA, "out", "--recipe", "w4a16", "--for", "llamacpp"),
    "recipes": ("recipes", "--for", "llamacpp:b200"),
    "serve": ("serve", LLAMA, "--for", "llama.cpp", "--target", TARGET),
    "live": ("parity", LLAMA, LLAMA, "--for", "llamacpp", "--target", TARGET, "--run", "run", "--launch"),
    "verify": ("verify", LLAMA, "--against", LLAMA, "--for", "llamacpp"),
}


@pytest.mark.parametrize("words", REFUSALS.values(), ids=REFUSALS)
def test_other_commands_refuse_it_in_one_line(words: tuple[object, ...], run: Run, tmp_path: Path) -> None:
    told = run(*words)
    assert told.exit_code == 2
    assert told.stdout == ""
    assert "Error: llama.cpp is an engine for `inspect --for` alone\n" in told.stderr
    assert not list(tmp_path.iterdir())


def test_no_replay_is_multiplied_as_it_would(run: Run, recorded: Recorded) -> None:
    told = run("parity", LLAMA, LLAMA, "--trace", recorded(), "--as", "llamacpp")
    assert told.exit_code == 2
    assert "llama.cpp is an engine for `inspect --for` alone" in told.stderr


def test_an_option_with_choices_does_not_have_it(run: Run) -> None:
    told = run("parity", LLAMA, LLAMA, "--trace", "trace", "--semantics", "llamacpp")
    assert told.exit_code == 2
    assert "'llamacpp' is not one of 'vllm', 'sglang', 'trtllm'" in told.stderr


def test_what_is_written_for_others_can_be_what_it_reads(run: Run, tmp_path: Path) -> None:
    """Ids in eagle_config are passed over; those that another layout writes are taken, as boundaries."""
    nested, top = tmp_path / "nested", tmp_path / "top"
    source = shutil.copytree(LLAMA, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, IDS: [2, 3, 5]}))
    for out, to in ((nested, "sglang"), (top, "vllm")):
        assert run("convert", source, out, "--to", to, "--target", TARGET, "--accept-detected").exit_code == 0
    layers = json.loads((nested / "config.json").read_text())
    (nested / "config.json").write_text(json.dumps({key: value for key, value in layers.items() if key != IDS}))
    assert judged(run, nested, "--target", TARGET, "--for", "llamacpp") == {"llamacpp": "mis-read"}
    assert judged(run, top, "--target", TARGET, "--for", "llamacpp") == {"llamacpp": "loads"}


def test_nothing_that_is_for_all_engines_is_for_it(run: Run, tmp_path: Path) -> None:
    assert [engine.name for engine in portable_engines()] == TRIO
    assert not {*layouts(), *writable(), *semantics(), *runners()} & {*ONLY_NAMED, "gguf"}
    assert run("convert", LLAMA, "out", "--target", TARGET).exit_code == 0
    record = json.loads((tmp_path / "out" / "draftconv.json").read_text())
    assert "llamacpp" not in json.dumps(record)
