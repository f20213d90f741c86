"""Traces of the trained fixtures, from the options to the files."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from target_model import continue_greedily, load_target

import draftconv
from draftconv.api.trace import TraceOptions, TraceSize, trace
from draftconv.drafter.boundaries import IDS
from draftconv.errors import BadCheckpoint, Undecided, UsageError, WriteError
from draftconv.traces.chat_template import load_tokenizer
from draftconv.traces.prompts import Prompt, PromptSet
from draftconv.traces.trace import open_trace
from tests import tiny
from tests.keywords import keywords

DATA = Path(__file__).parents[1] / "data"
LLAMA, MLA = DATA / "targets/llama", DATA / "targets/mla"
FAST = TraceOptions(device="cpu", dtype="float32", max_tokens=6, num_speculative_tokens=3, batch=2, ignore_eos=True)
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """Three prompts of token ids, of unequal length."""
    found = json.loads((DATA / "prompts.json").read_text())
    (tmp_path / "ids.json").write_text(json.dumps([found[0][:20], found[1][:9], found[2][:14]]))
    return tmp_path / "ids.json"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [{"id": "81", "category": "writing", "turns": ["def f(", "Now g."]}, {"id": "82", "prompt": "import"}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "texts.jsonl"


def test_a_trace_is_what_the_target_does(ids: Path, tmp_path: Path) -> None:
    told: list[TraceSize] = []
    options = replace(FAST, drafters=(DATA / "drafters/mla-eagle3.1",))
    made = trace(MLA, ids, tmp_path / "out", **keywords(options, announce=told.append))
    assert made.about == replace(
        made.about, target="mla", revision=None, layers=8, hidden=256, vocab=2048, boundaries=(2, 4, 5), depth=3,
        max_tokens=6, dtype="float32", prompts="ids.json", chat=False, eos=(), family="deepseek",
    )  # fmt: skip
    (sizing,) = told
    assert sizing.reason == "as the drafter reads"
    assert (sizing.requests, sizing.tokens) == (3, 20 + 9 + 14 + 3 * 9)
    assert sizing.states == sizing.tokens * 3 * 256 * 4
    held = [path.stat().st_size for path in (tmp_path / "out/requests").iterdir()]
    assert 0.9 < sum(held) / sizing.states < 1.1
    assert sizing.tables == 2048 * 256 * 2
    model = load_target(MLA)
    for entry in made.entries:
        request = made.read(entry, (2, 4, 5))
        prompt = request.tokens_N[: entry.prompt]
        assert request.tokens_N[entry.prompt :].tolist() == continue_greedily(model, prompt[None], 9)[0].tolist()
        states_TAW = model(request.tokens_N[None, :-1], boundaries=(2, 4, 5)).states[0]
        assert (request.states_TAW[:] - states_TAW).abs().max() < 2e-3  # of 150; a row later it would be > 100
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (MLA / "tokenizer.json").read_bytes()


def test_a_tokenizer_that_cannot_be_kept_is_an_error_in_words(
    ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers could read it a moment ago; the disk fails when it is read for the trace."""
    pread = os.pread

    def fails(descriptor: int, length: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/tokenizer.json"):  # noqa: PTH115
            raise OSError(5, "Input/output error")
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json cannot be read: Input/output error"):
        trace(MLA, ids, tmp_path / "out", **keywords(FAST))
    assert not (tmp_path / "out").exists()


def test_the_commit_of_a_suite_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = PromptSet("mt-bench (owner/set@c0ffee, train)", (Prompt("0", "", tokens=(1, 2)),))
    monkeypatch.setattr("draftconv.api.trace.load_prompts", lambda *_: fetched)
    assert trace(LLAMA, "mt-bench", tmp_path / "out", **keywords(FAST)).about.prompts == fetched.source


def test_it_is_the_function_of_its_command() -> None:
    assert draftconv.trace is trace


def test_tables_are_the_target_s_own_bytes(ids: Path, tmp_path: Path) -> None:
    made = trace(LLAMA, ids, tmp_path / "out", **keywords(replace(FAST, lm_head=True)))
    stored = load_file(LLAMA / "model.safetensors")
    for name, spelled in (("embed_tokens", "model.embed_tokens.weight"), ("lm_head", "lm_head.weight")):
        table = made.table(name)
        assert table is not None
        assert table.dtype == "BF16"  # the file's, though the target ran in float32
        assert table.read() == stored[spelled].view(torch.uint8).numpy().tobytes()


def test_a_tied_head_is_the_embedding(ids: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(LLAMA, tmp_path / "tied"))
    tensors = load_file(target / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    made = trace(target, ids, tmp_path / "out", **keywords(replace(FAST, lm_head=True)))
    assert made.tables["lm_head"].sha256 == made.tables["embed_tokens"].sha256


def test_linked_tables_name_the_target_s_file(ids: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(LLAMA, tmp_path / "target"))
    made = trace(target, ids, tmp_path / "out", **keywords(replace(FAST, link_tables=True)))
    assert made.tables["embed_tokens"].file == str(target / "model.safetensors")
    assert made.table("embed_tokens") is not None
    (target / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        made.table("embed_tokens")


def test_the_second_turn_quotes_the_answer_to_the_first(texts: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(LLAMA, tmp_path / "target"))
    config = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    made = trace(target, texts, tmp_path / "out", **keywords(FAST))
    assert made.about.chat
    assert [(e.id, e.cluster, e.category) for e in made.entries] == [
        ("81/1", "81", "writing"),
        ("81/2", "81", "writing"),
        ("82", "82", ""),
    ]
    tokenizer = load_tokenizer(target, trust_remote_code=False)
    first, second, _ = (made.read(entry, (2,)) for entry in made.entries)
    answer = tokenizer.decode(
        first.tokens_N[first.prompt : first.prompt + first.counted].tolist(), skip_special_tokens=True
    )
    asked = tokenizer.decode(second.tokens_N[: second.prompt].tolist(), skip_special_tokens=False)
    assert asked == f"user: def f(\nassistant: {answer}\nuser: Now g.\nassistant:"
    raw = trace(target, texts, tmp_path / "raw", **keywords(replace(FAST, chat=False)))
    assert not raw.about.chat
    assert raw.about.prompts_sha256 != made.about.prompts_sha256
    assert raw.entries[0].prompt < made.entries[0].prompt


def test_the_end_of_the_text_is_the_target_s(ids: Path, tmp_path: Path) -> None:
    free = trace(LLAMA, ids, tmp_path / "free", **keywords(FAST))
    first = free.read(free.entries[0], (2,))
    target = Path(shutil.copytree(LLAMA, tmp_path / "target"))
    end = int(first.tokens_N[first.prompt + 2])
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [end], "repetition_penalty": 9.0}))
    made = trace(target, ids, tmp_path / "out", **keywords(replace(FAST, ignore_eos=False)))
    assert made.about.eos == (0, end)
    assert made.entries[0].counted <= 3
    request = made.read(made.entries[0], (2,))
    # the text goes on as it would have, and no penalty of generation_config.json changes it
    assert torch.equal(request.tokens_N, first.tokens_N[: len(request.tokens_N)])


@pytest.mark.parametrize(
    ("options", "boundaries", "reason"),
    [
        ({}, (2, 4, 5), "the triple that every engine takes by default"),
        ({"boundaries": (8, 0)}, (0, 8), "as given"),
        ({"drafters": ("llama-eagle3", "llama-eagle3.1")}, (2, 4, 5), "as the drafters read, together"),
    ],
)
def test_which_boundaries_are_kept(
    ids: Path, tmp_path: Path, options: dict[str, object], boundaries: tuple[int, ...], reason: str
) -> None:
    if "drafters" in options:
        options = {"drafters": tuple(DATA / "drafters" / name for name in ("llama-eagle3", "llama-eagle3.1"))}
    told: list[TraceSize] = []
    made = trace(LLAMA, ids, tmp_path / "out", **keywords(replace(FAST, limit=1, **options), announce=told.append))  # type: ignore[arg-type]
    assert made.about.boundaries == boundaries
    assert [sizing.reason for sizing in told] == [reason]


def test_a_drafter_that_does_not_tell_its_layers(ids: Path, tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    spelled.config[IDS] = [1, 3, 4]
    spelled.config["eagle_config"] = {IDS: [2, 4, 5]}
    drafter = spelled.write(tmp_path / "drafter")
    with pytest.raises(Undecided, match=r"which layers .* reads is not told") as caught:
        trace(LLAMA, ids, tmp_path / "out", **keywords(replace(FAST, drafters=(drafter,))))
    assert "--aux-convention" in caught.value.cure
    assert "--boundaries" in caught.value.cure
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"boundaries": (2, 9)}, "boundaries 2, 9: llama has 0 to 8"),
        ({"boundaries": (-1,)}, "boundaries -1: llama has 0 to 8"),
        ({"boundaries": (2,), "drafters": ("x",)}, "--boundaries and --drafter both"),
        ({"batch": 0}, "--batch 0: too small"),
        ({"num_speculative_tokens": 0}, "--num-speculative-tokens 0: too small"),
        ({"max_tokens": 0}, "--max-tokens 0: too small"),
        ({"dtype": "int8"}, "--dtype int8: unknown"),
        ({"revision": "main"}, "--revision main: .* is no bare Hub id"),
        ({"device": "nowhere"}, "--device nowhere"),
    ],
)
def test_options_that_do_not_fit(ids: Path, tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        trace(LLAMA, ids, tmp_path / "out", **keywords(replace(FAST, **options)))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_prompts_of_another_target(tmp_path: Path) -> None:
    (tmp_path / "far.json").write_text("[[5, 2048]]")
    with pytest.raises(UsageError, match="prompt 0 holds token 2048; llama has 2048 tokens"):
        trace(LLAMA, tmp_path / "far.json", tmp_path / "out", **keywords(FAST))


@pytest.mark.parametrize("prompt", [2048 - 9, 2048 - 8])
def test_no_text_goes_beyond_the_target_s_positions(prompt: int, tmp_path: Path) -> None:
    """6 counted tokens and 3 more; past its positions a target would go on writing all the same."""
    (tmp_path / "long.json").write_text(json.dumps([[5, 6], [7] * prompt]))
    if prompt + 9 <= 2048:
        made = trace(LLAMA, tmp_path / "long.json", tmp_path / "out", **keywords(replace(FAST, batch=1)))
        assert [entry.prompt for entry in made.entries] == [2, prompt]
        return
    with pytest.raises(UsageError, match="prompt 1 and its text take up to 2049 tokens, llama has 2048 positions"):
        trace(LLAMA, tmp_path / "long.json", tmp_path / "out", **keywords(FAST))
    assert not (tmp_path / "out").exists()


class Stopped(BaseException):
    """As abrupt as a kill."""


def test_a_stopped_run_goes_on(ids: Path, tmp_path: Path) -> None:
    whole = trace(LLAMA, ids, tmp_path / "whole", **keywords(FAST))

    def stop(_: int, done: float) -> None:
        if done > 0.7:
            raise Stopped

    with pytest.raises(Stopped):
        trace(LLAMA, ids, tmp_path / "cut", **keywords(FAST, progress=stop))
    with pytest.raises(BadCheckpoint, match="is incomplete"):
        open_trace(tmp_path / "cut")
    with pytest.raises(UsageError, match="has depth 3, this command 4"):
        trace(LLAMA, ids, tmp_path / "cut", **keywords(replace(FAST, num_speculative_tokens=4)))
    with pytest.raises(UsageError, match="has prompts_sha256 "):
        trace(LLAMA, ids, tmp_path / "cut", **keywords(replace(FAST, limit=2)))
    finished = trace(LLAMA, ids, tmp_path / "cut", **keywords(FAST))
    assert finished.entries == whole.entries
    assert (tmp_path / "cut/trace.json").read_bytes() == (tmp_path / "whole/trace.json").read_bytes()
    with pytest.raises(WriteError, match="cut holds a complete trace"):
        trace(LLAMA, ids, tmp_path / "cut", **keywords(FAST))


def test_no_run_begins_that_the_disk_cannot_hold(ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 0, 10**5))
    with pytest.raises(WriteError, match=r"out needs up to [\d.]+ MB, its file system has 100\.00 kB left"):
        trace(LLAMA, ids, tmp_path / "out", **keywords(FAST))
    assert not (tmp_path / "out").exists()


def test_the_directory_one_stands_in_is_called_by_its_name(
    ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WriteError, match=rf"{tmp_path.name} exists and holds no incomplete trace"):
        trace(LLAMA, ids, Path(), **keywords(FAST))


def test_a_target_without_sizes(ids: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(LLAMA, tmp_path / "target"))
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "vocab_size"}))
    with pytest.raises(UsageError, match=r"config\.json of target has no vocab_size"):
        trace(target, ids, tmp_path / "out", **keywords(FAST))
