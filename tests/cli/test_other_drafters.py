"""A drafter of another kind: inspect says what it is and who serves it, everything else refuses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftconv.api.other_drafter import other_drafter
from draftconv.cli import cli
from tests import tiny
from tests.layouts import test_detect as drafters


def written(path: Path, kind: str = "dspark_specforge") -> Path:
    config, tensors = getattr(drafters, kind)()
    return tiny.Spelled("", tiny.BASE, tensors, dict(config), {}).write(path)


@pytest.fixture
def dflash(tmp_path: Path) -> Path:
    return written(tmp_path / "drafter", "dflash_specforge")


@pytest.mark.parametrize("told", [[], ["--from", "specforge-sglang"], ["--from", "generic"]])
def test_inspect_says_what_it_is_and_who_serves_it(told: list[str], dflash: Path) -> None:
    """Also to somebody who calls it a layout of EAGLE-3: a layout says how a network is spelled, not which it is."""
    done = CliRunner().invoke(cli, ["inspect", str(dflash), *told])
    assert done.exit_code == 2
    for line in ("a DFlash drafter (block diffusion)", "layers", "block", "16", "[1, 9, 17, 25, 33]", "method dflash",
                 "--speculative-algorithm DFLASH", "decoding_type: DFlash"):  # fmt: skip
        assert line in done.stdout, line
    assert "EAGLE-3," not in done.stdout
    assert done.stderr.startswith("Error: this is a DFlash drafter (block diffusion)")


def test_the_same_in_json(dflash: Path) -> None:
    done = CliRunner().invoke(cli, ["inspect", str(dflash), "--format", "json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["kind"], told["config"]["block"]) == (2, "dflash", "16")
    assert {row["engine"]: row["setting"] for row in told["engines"]} == {
        "vllm": "method dflash",
        "sglang": "--speculative-algorithm DFLASH",
        "trtllm": "decoding_type: DFlash",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "{}", "out"],
        ["convert", "{}", "out", "--repair", "tensor-unexpected"],
        ["quantize", "{}", "out", "--recipe", "w4a16"],
        ["verify", "{}", "--against", "{}"],
        ["diff", "{}", "{}"],
        ["serve", "{}", "--for", "vllm", "--target", "kimi-k2.5"],
        ["convert", "{}", "out", "--from", "specforge-sglang"],
        ["convert", "{}", "out", "--from", "generic", "--repair", "tensor-unexpected"],
        ["quantize", "{}", "out", "--recipe", "w4a16", "--from", "specforge-sglang"],
        ["verify", "{}", "--against", "{}", "--from", "speculators"],
        ["serve", "{}", "--for", "vllm", "--target", "kimi-k2.5", "--from", "specforge-sglang"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["dflash_without_a_word", "dspark_specforge"])
def test_every_other_command_refuses_it(
    arguments: list[str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "drafter", kind)
    done = CliRunner().invoke(cli, [part.format("drafter") for part in arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: this is a D{'Spark' if 'spark' in kind else 'Flash'} drafter")
    assert not (tmp_path / "out").exists()


def test_nobody_is_named_who_does_not_say_so(tmp_path: Path) -> None:
    xpress = other_drafter(written(tmp_path / "xpress", "xpress"))
    assert xpress is not None
    assert [*xpress.blocks()][1:] == ["No engine is known to serve it."]
    domino = other_drafter(written(tmp_path / "domino", "domino"))
    assert domino is not None
    assert [*domino.served] == ["sglang"]
    assert other_drafter(written(tmp_path / "lora", "lora")) is None
    assert other_drafter(tiny.spell("llama", "speculators").write(tmp_path / "eagle")) is None
