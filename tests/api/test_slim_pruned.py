"""A search that tries heads of fewer rows too: what is written, how it is made again, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import draftconv
from draftconv.api.slim import SlimOptions, prepare, slim
from draftconv.cli import cli
from draftconv.errors import UsageError
from draftconv.replay.pruned import pruned_arm
from draftconv.search import run
from draftconv.search.result import SlimResult
from draftconv.traces.halves import split_halves
from draftconv.traces.request import TraceRequest
from draftconv.traces.trace import Trace, TraceEntry, open_trace
from tests import opening
from tests.reference.test_fixtures import DATA
from tests.searched import make_halves

DRAFTER, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
ENGINE = "vllm:b200"
ROWS = 512
"""Of the head that is certified here: of 1024, 512, 256 and 128 rows it loses least per byte that it saves."""


def typed(*argv: object) -> None:
    """A command as a person gives it; it ends well."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in argv[1:]])
    assert ended.value.code == 0


@pytest.fixture(scope="module", autouse=True)
def few_recipes() -> Iterator[None]:
    """A head in 8 bits and layers by GPTQ are what heads of fewer rows are combined with."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "recipe_names", lambda: ("fp8-all", "w4a16-gptq"))
        yield


@pytest.fixture(scope="module")
def found(halves: Path, written_text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SlimResult, Path]:
    """A search that allows half of the accept length, so that a small head passes."""
    out = tmp_path_factory.mktemp("pruned") / "out"
    how: dict[str, Any] = {"trace": halves, "counts": (str(written_text),), "target": TARGET}
    return slim(DRAFTER, out, engine=ENGINE, **how, max_loss=0.5, candidates=1), out


def test_a_pruned_head_is_certified_in_eight_bits(found: tuple[SlimResult, Path]) -> None:
    result, out = found
    assert result.chosen is not None
    planned = result.chosen.planned
    assert planned.rows == ROWS
    assert planned.recipe is not None
    assert json.loads((out / "config.json").read_text())["draft_vocab_size"] == ROWS
    tensors = load_file(out / "model.safetensors")
    assert {str(tensors[name].dtype) for name in tensors if name.startswith("lm_head.weight")} >= {
        "torch.float8_e4m3fn"
    }
    assert sum(tensor.nbytes for tensor in tensors.values()) == planned.file_bytes
    sizes = [result.bytes_read(candidate) for candidate in result.path]
    assert sizes == sorted(sizes, reverse=True)


def test_the_commands_that_are_told_make_every_byte_again(
    found: tuple[SlimResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, out = found
    result.save(tmp_path / "report")
    monkeypatch.chdir(tmp_path / "report")
    assert result.again is not None
    assert [argv[1] for argv in result.again.commands] == ["prune", "quantize"]
    for argv in result.again.commands:
        typed(*argv)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "report/again" / name).read_bytes() == (out / name).read_bytes()


def test_a_head_that_is_only_pruned_is_converted_and_what_to_type_next_proves_it(
    halves: Path,
    written_text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "recipe_names", lambda: ())
    how = ("--for", ENGINE, "--trace", halves, "--max-loss", "0.5", "--counts", written_text, "--target", TARGET)
    typed("draftconv", "slim", DRAFTER, "out", *how, "--report", "report")
    (following,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Next: "))
    typed(*following.removeprefix("Next: ").split())
    told = json.loads((tmp_path / "report/slim.json").read_text())["again"]
    assert [argv[1] for argv in told] == ["prune", "convert"]
    assert not any(Path(word).is_absolute() for argv in told for word in argv)
    places = {place.name: str(place) for place in (DRAFTER, halves, written_text, TARGET)}
    for argv in told:
        typed(*(places.get(word, word) for word in argv))
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_verify_proves_it_from_the_whole_drafter(found: tuple[SlimResult, Path], halves: Path) -> None:
    _, out = found
    proof = draftconv.verify(out, DRAFTER, target=TARGET, calibrate=halves)
    assert proof.passed
    assert {row.outcome for row in proof.tensors} <= {"equal", "declared"}


def test_its_record_tells_both_steps(found: tuple[SlimResult, Path]) -> None:
    _, out = found
    record = json.loads((out / "draftconv.json").read_text())
    assert record["source"]["name"] == f"llama-eagle3-{ROWS}-rows"
    (first,) = record["earlier"]
    assert first["source"]["name"] == "llama-eagle3"
    assert first["pruning"]["rows"] == 2048
    assert first["pruning"]["trace"].startswith("sha256:")
    card = (out / "README.md").read_text()
    assert f"{ROWS} of 2048 rows of the head stay" in card
    assert f"llama-eagle3-{ROWS}-rows" not in card
    assert "pruned and quantized by draftconv" in card
    assert "of the accept length of `llama-eagle3`" in card
    assert card.lower().count("not run on hardware") == 1


def test_rows_are_chosen_by_the_first_half_and_the_text_alone(
    found: tuple[SlimResult, Path], halves: Path, written_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is replayed to choose rows is of the half that is searched on, and the rows are those of the output."""
    _, out = found
    searched = split_halves(open_trace(halves).entries).choosing
    seen: set[str] = set()
    options = SlimOptions(engine=ENGINE, trace=halves, max_loss=0.5, target=TARGET, counts=(str(written_text),))
    search = prepare(DRAFTER, options)
    assert search.heads is not None
    real = Trace.read

    def read(self: Trace, entry: TraceEntry, boundaries: Sequence[int]) -> TraceRequest:
        seen.add(entry.id)
        return real(self, entry, boundaries)

    monkeypatch.setattr(Trace, "read", read)
    kept = search.heads.decide(search.trace, searched)
    assert seen == {entry.id for entry in searched}
    maps = opening.read(out).maps
    assert maps is not None
    assert maps.map is not None
    assert kept[ROWS].kept.ids == maps.map.ids


def test_what_was_measured_of_other_rows_is_not_taken(
    halves: Path, written_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that was stopped goes on with its own rows only: other text is another search."""
    other = tmp_path / "other.jsonl"
    lines = written_text.read_text().splitlines()
    other.write_text("".join(f"{line}\n" for line in lines[::2]) + "".join(f"[5, 6, 7, {n}]\n" for n in range(2000)))
    arms: list[int] = []

    def counted(arm: object, tokens: tuple[int, ...], *more: str) -> object:
        arms.append(len(tokens))
        return pruned_arm(arm, tokens, *more)  # type: ignore[arg-type]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftconv.search.measuring.pruned_arm", counted)
    monkeypatch.setattr(run, "recipe_names", lambda: ())
    monkeypatch.setattr(run, "certified", stop)
    replayed = []
    for text in (written_text, written_text, other):
        arms.clear()
        with pytest.raises(KeyboardInterrupt):
            slim(
                DRAFTER, tmp_path / "out", engine=ENGINE, trace=halves, max_loss=0.5, target=TARGET, counts=(str(text),)
            )
        replayed.append(len(arms))
    assert replayed == [4, 0, 4]


# ── what is left out, and what is refused ──────────────────────────────────────────


def left_out(drafter: Path, engine: str, **options: object) -> dict[str, str]:
    search = prepare(drafter, SlimOptions(engine=engine, **({"max_loss": 0.1} | options)))  # type: ignore[arg-type]
    return {choice.name: choice.why for choice in search.left_out if " rows" in choice.name}


def test_sizes_with_too_little_text_are_left_out_with_the_reason(halves: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(f"{json.dumps([*range(n, n + 200)])}\n" for n in range(60)))  # 10,800 of them choose
    found = left_out(DRAFTER, ENGINE, trace=halves, target=TARGET, counts=(str(few),))
    assert set(found) == {"lm_head of 1024 rows", "lm_head of 512 rows"}
    assert "10800 tokens of text are too few to choose 512 rows by" in found["lm_head of 512 rows"]
    assert "each row asks for 30, 15360 in all" in found["lm_head of 512 rows"]


def test_an_engine_that_cannot_load_a_pruned_head_gets_none(written_text: Path, tmp_path: Path) -> None:
    """TensorRT-LLM has no reduced vocabulary beside MLA: its loader stops at d2t."""
    trace = make_halves(tmp_path / "trace", "mla")
    how: dict[str, Any] = {"trace": trace, "target": DATA / "targets/mla", "counts": (str(written_text),)}
    found = left_out(DATA / "drafters/mla-eagle3", "trtllm:b200", **how)
    assert set(found) == {f"lm_head of {rows} rows" for rows in (1024, 512, 256, 128)}
    assert all("d2t" in why for why in found.values())
    assert left_out(DATA / "drafters/mla-eagle3", "vllm:b200", **how) == {}


def test_text_in_another_language_is_told(halves: Path, tmp_path: Path) -> None:
    """What the trace's target hardly ever writes chooses rows that it hardly ever needs."""
    other = tmp_path / "other.jsonl"
    other.write_text("".join(f"{json.dumps([*range(1900, 2040)] * 10 + [n])}\n" for n in range(100)))
    result = slim(
        DRAFTER, tmp_path / "out", engine=ENGINE, trace=halves, max_loss=0.001, target=TARGET, counts=(str(other),)
    )
    assert not result.passed
    assert any("is it of another language or kind?" in note for note in result.notes)
    assert any("Warning: the text is not what the target writes" in str(block) for block in result.blocks())


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ("[1, 2]\n[2048]\n", "holds token 2048; the target has 2048 tokens"),
        ("", "holds nothing that the target wrote"),
        ("[1, 2]\n", "holds a single conversation"),
    ],
)
def test_counts_that_cannot_be_are_refused_before_anything_is_measured(
    halves: Path, tmp_path: Path, counts: str, says: str
) -> None:
    (tmp_path / "counts.jsonl").write_text(counts)
    with pytest.raises(UsageError, match=says):
        prepare(
            DRAFTER,
            SlimOptions(
                engine=ENGINE, trace=halves, max_loss=0.1, target=TARGET, counts=(str(tmp_path / "counts.jsonl"),)
            ),
        )


def test_tokens_that_have_to_stay_are_held_to_the_head(halves: Path, written_text: Path) -> None:
    how: dict[str, Any] = {
        "engine": ENGINE,
        "trace": halves,
        "max_loss": 0.1,
        "target": TARGET,
        "counts": (str(written_text),),
    }
    with pytest.raises(UsageError, match="no row for 4000"):
        prepare(DRAFTER, SlimOptions(**how, keep=("4000",)))
    found = left_out(DRAFTER, **how, keep=("0-200",))
    assert list(found) == ["lm_head of 128 rows"]
    assert "201 tokens have to stay" in found["lm_head of 128 rows"]
