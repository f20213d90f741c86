"""What strangers and typing errors send: one line that says what is wrong and what to do, soon, and nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.reference.test_fixtures import DATA

DRAFTER, TARGET, PROMPTS = DATA / "drafters/llama-eagle3.1", str(DATA / "targets/llama"), str(DATA / "prompts.json")
LONG = "x" * 256
"""No file system takes it."""
TIGHT = "x" * 250
"""Every file system takes it; not the directory beside it in which draftconv works."""


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return shutil.copytree(DRAFTER, tmp_path / "drafter")


def with_key(drafter: Path, key: str, value: str) -> Path:
    """A key whose value is written as it stands."""
    config = json.loads((drafter / "config.json").read_text())
    text = json.dumps(config | {key: "HERE"}).replace('"HERE"', value)
    (drafter / "config.json").write_text(text)
    return drafter


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999"])
@pytest.mark.parametrize("place", ["{}", "[0, {}]", '{{"a": [{{"b": {}}}]}}'])
def test_numbers_that_are_none_are_refused_wherever_they_stand(
    run: Run, drafter: Path, tmp_path: Path, place: str, number: str
) -> None:
    with_key(drafter, "initializer_range", place.format(number))
    for command in (["inspect"], ["convert", "OUT", "--target", TARGET], ["diff", str(DRAFTER)]):
        name, *more = (str(tmp_path / "out") if part == "OUT" else part for part in command)
        found = run(name, str(drafter), *more)
        assert found.exit_code == 2
        assert "which is no number" in found.stderr
        assert "initializer_range" in found.stderr
        assert "Correct the key" in found.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("theta", ["0", "-10000.0", "1e16", "1" * 400])
@pytest.mark.parametrize("key", ["rope_theta", "factor"])
def test_absurd_rotary_numbers_are_refused(run: Run, drafter: Path, key: str, theta: str) -> None:
    if key == "factor" and theta in ("0", "-10000.0"):
        pytest.skip("what a factor means is the engine's")
    value = theta if key == "rope_theta" else f'{{"rope_type": "linear", "factor": {theta}}}'
    config = json.loads((drafter / "config.json").read_text())
    rest = {name: value for name, value in config.items() if not name.startswith("rope_")}
    (drafter / "config.json").write_text(json.dumps(rest))
    with_key(drafter, "rope_theta" if key == "rope_theta" else "rope_scaling", value)
    found = run("inspect", str(drafter))
    assert found.exit_code == 2
    assert key in found.stderr
    assert len(found.stderr.splitlines()) <= 3


@pytest.mark.parametrize("layers", [257, 100_000, 2**31, 2**63])
def test_layers_without_number_are_refused(run: Run, drafter: Path, layers: int) -> None:
    with_key(drafter, "num_hidden_layers", str(layers))
    found = run("inspect", str(drafter), "--for", "vllm", "--for", "sglang", "--for", "trtllm")
    assert found.exit_code == 2
    assert f"num_hidden_layers is {layers}; 256 is the limit" in found.stderr


def test_a_target_may_hold_numbers_that_are_none(run: Run, drafter: Path, tmp_path: Path) -> None:
    """Configs of hybrid models do (time_step_limit), and nothing of them is written."""
    target = shutil.copytree(TARGET, tmp_path / "target")
    with_key(target, "time_step_limit", "[0.0, Infinity]")
    assert run("inspect", str(drafter), "--target", str(target)).exit_code == 0


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["convert", DRAFTER, "OUT", "--target", TARGET], LONG),
        (["convert", DRAFTER, "OUT", "--target", TARGET], TIGHT),
        (["quantize", DRAFTER, "OUT", "--recipe", "w4a16", "--target", TARGET], TIGHT),
        (["prune", DRAFTER, "OUT", "--vocab", "256", "--counts", PROMPTS, "--target", TARGET], TIGHT),
        (["trace", "--target", TARGET, "--prompts", PROMPTS, "--out", "OUT"], LONG),
        (["parity", DRAFTER, DRAFTER, "--trace", "absent", "--report", "OUT"], TIGHT),
        (["parity", DRAFTER, DRAFTER, "--for", "vllm", "--target", TARGET, "--prompts", PROMPTS, "--run", "OUT",
          "--url", "http://127.0.0.1:1"], LONG),
    ],
)  # fmt: skip
def test_outputs_whose_name_is_too_long(run: Run, tmp_path: Path, argv: list[object], name: str) -> None:
    found = run(*(str(tmp_path / name) if part == "OUT" else str(part) for part in argv))
    assert found.exit_code == 2
    assert f"has {len(name)} bytes" in found.stderr
    assert "255 is the limit" in found.stderr
    assert "Choose a shorter name" in found.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", LONG],
        ["inspect", DRAFTER, "--target", LONG],
        ["convert", DRAFTER, f"{LONG}/out", "--target", TARGET],
        ["prune", DRAFTER, "out", "--vocab", "64", "--counts", LONG, "--target", TARGET],
        ["prune", DRAFTER, "out", "--vocab", "64", "--counts", PROMPTS, "--target", LONG],
        ["prune", DRAFTER, "out", "--vocab", "64", "--counts", PROMPTS, "--target", TARGET, "--trace", LONG],
        ["verify", LONG, "--against", DRAFTER],
        ["parity", DRAFTER, DRAFTER, "--trace", LONG],
        ["recipes", f"{LONG}.yaml"],
        ["serve", DRAFTER, "--for", "vllm", "--target", LONG],
        ["trace", "--target", TARGET, "--prompts", LONG, "--out", "out"],
        ["trace", "--target", TARGET, "--prompts", PROMPTS, "--out", "out", "--device", "meta"],
    ],
)
def test_names_of_nothing_are_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[object]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(*map(str, argv))
    assert found.exit_code == 2
    assert "Error: " in found.stderr
    assert "fault of draftconv" not in found.stderr
    assert not any(tmp_path.iterdir())
