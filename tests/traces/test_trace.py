"""Traces: what is written comes back, and what was cut, shifted or invented is refused."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.checkpoint import open_checkpoint
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.traces.trace import Trace, open_trace, token_hash
from tests.traces import made

INDEX = "trace.json"
Document = dict[str, object]


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return made.trace(tmp_path / "trace")


def edit(directory: Path, change: Callable[[dict[str, object]], object]) -> None:
    document = json.loads((directory / INDEX).read_text())
    change(document)
    (directory / INDEX).write_text(json.dumps(document))


def read_all(directory: Path) -> None:
    found = open_trace(directory)
    for entry in found.entries:
        found.read(entry, (4,))


def test_what_is_written_comes_back(trace: Trace) -> None:
    assert trace.about == made.ABOUT
    assert [(entry.id, entry.cluster, entry.category) for entry in trace.entries] == [
        ("a/1", "a", "prose"),
        ("a/2", "a", "prose"),
        ("b", "b", "code"),
    ]
    for index, entry in enumerate(trace.entries):
        given, request = made.captured(index), trace.read(entry, (2, 4, 5))
        assert (request.prompt, request.counted) == (given.prompt, given.counted)
        assert torch.equal(request.tokens_N, given.tokens_N)
        assert torch.equal(request.states_TAW[:], given.states_TAW[:])
        assert request.states_TAW.dtype == torch.bfloat16
        assert len(request.tokens_N) == entry.prompt + entry.counted + trace.about.depth


def relabelled(document: dict[str, object]) -> None:
    """The states of one layer under the number of another: every file is as it was, and every replay another."""
    boundaries = document["boundaries"]
    assert isinstance(boundaries, list)
    document["boundaries"] = [boundaries[0] - 1, *boundaries[1:]]


READ: Mapping[str, Callable[[Any], object]] = {
    "boundaries": relabelled,
    "family": lambda document: document.update(family="deepseek"),
    "eos": lambda document: document.update(eos=[1]),
    "chat": lambda document: document.update(chat=not document["chat"]),
    "category": lambda document: requests(document)[0].update(category="other"),
    "cluster": lambda document: requests(document)[0].update(cluster="other"),
    "a table": lambda document: document["tables"]["embed_tokens"].update(sha256="0" * 64),
}
TOLD: Mapping[str, Callable[[Any], object]] = {
    "target": lambda document: document.update(target="another name"),
    "made_by": lambda document: document.update(made_by="somebody"),
    "prompts": lambda document: document.update(prompts="a file"),
}


@pytest.mark.parametrize("change", READ.values(), ids=READ)
def test_whatever_a_replay_reads_is_part_of_the_hash(change: Callable[[Any], object], trace: Trace) -> None:
    edit(trace.directory, change)
    assert open_trace(trace.directory).digest != trace.digest


@pytest.mark.parametrize("change", TOLD.values(), ids=TOLD)
def test_what_it_is_called_is_not(change: Callable[[Any], object], trace: Trace) -> None:
    edit(trace.directory, change)
    assert open_trace(trace.directory).digest == trace.digest


def test_columns_are_chosen_by_boundary(trace: Trace) -> None:
    states_TAW = made.captured(1).states_TAW[:]
    request = trace.read(trace.entries[1], (5, 2))
    assert torch.equal(request.states_TAW[:], states_TAW[:, [2, 0]])
    with pytest.raises(UsageError, match="holds boundaries 2,4,5, not 3,8") as caught:
        trace.read(trace.entries[1], (2, 3, 8))
    assert "draftconv trace --boundaries 2,3,4,5,8" in caught.value.cure


def test_any_safetensors_reader_can_read_it(trace: Trace) -> None:
    tensors = load_file(trace.directory / "requests/000002.safetensors")
    given = made.captured(2)
    assert torch.equal(tensors["token_ids"], given.tokens_N)
    assert tensors["prompt_len"].tolist() == [given.prompt]
    assert torch.equal(tensors["hidden_states"], given.states_TAW[:])
    assert (trace.directory / "tokenizer.json").read_bytes() == b"{}"
    assert trace.tokenizer == trace.directory / "tokenizer.json"


def test_the_token_hash_is_of_little_endian_int64() -> None:
    assert token_hash([1, 256]) == "89063da2926620b0bcd927a7ef76480cb4772b71306d614f79e016c826e8a0e8"


def test_tables_have_the_bytes_that_were_given(trace: Trace) -> None:
    table = trace.table("embed_tokens")
    assert table is not None
    assert (table.dtype, table.shape, table.read()) == ("F32", (50, 6), made.table().read())
    assert trace.table("lm_head") is None
    path = trace.directory / "tables/embed_tokens.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(BadCheckpoint, match="is not the embed_tokens that the trace was made with"):
        trace.table("embed_tokens")


@pytest.mark.parametrize(("rows", "width"), [(49, 6), (50, 7)])
def test_a_table_of_another_size_is_refused(tmp_path: Path, rows: int, width: int) -> None:
    with made.writer(tmp_path / "trace", tables={"embed_tokens": made.table(rows, width)}) as writer:
        for index in range(3):
            writer.write(index, made.captured(index))
        found = writer.finish()
    with pytest.raises(BadCheckpoint, match=f"is \\[{rows}, {width}\\], the target has 50 tokens of width 6"):
        found.table("embed_tokens")


def test_linked_tables_are_read_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text("{}")
    file = tmp_path / "target/model.safetensors"
    save_file({"model.embed_tokens.weight": torch.arange(300.0).reshape(50, 6)}, file)
    tables = {"embed_tokens": open_checkpoint(tmp_path / "target").tensors["model.embed_tokens.weight"]}
    with made.writer(tmp_path / "trace", tables=tables, link=True) as writer:
        for index in range(3):
            writer.write(index, made.captured(index))
        found = writer.finish()
    assert not any((tmp_path / "trace/tables").iterdir())
    assert found.tables["embed_tokens"].file == str(file)
    table = found.table("embed_tokens")
    assert table is not None
    assert table.read() == made.table().read()
    save_file({"model.embed_tokens.weight": torch.arange(300.0).reshape(50, 6) + 1}, file)
    with pytest.raises(BadCheckpoint, match="is not the embed_tokens") as caught:
        found.table("embed_tokens")
    assert "--link-tables" in caught.value.cure
    save_file({"another": torch.arange(300.0)}, file)
    with pytest.raises(BadCheckpoint, match=r"holds no tensor model\.embed_tokens\.weight"):
        found.table("embed_tokens")
    file.unlink()
    for lost in (file, Path("/dev/zero"), Path("/etc/passwd")):
        broken = {"embed_tokens": replace(found.tables["embed_tokens"], file=str(lost))}
        with pytest.raises(BadCheckpoint, match=rf"the target's embed_tokens cannot be had: {lost.name}") as caught:
            replace(found, tables=broken).table("embed_tokens")
        assert "make the trace without --link-tables" in caught.value.cure


# ── what is refused ────────────────────────────────────────────────────────────────


def test_no_trace_and_an_incomplete_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="nope does not exist") as caught:
        open_trace(tmp_path / "nope")
    assert caught.value.cure == "make one with `draftconv trace`"
    (tmp_path / "some").mkdir()
    (tmp_path / "some/file").touch()
    with pytest.raises(BadCheckpoint, match="some is no trace: it has no trace"):
        open_trace(tmp_path / "some")
    with made.writer(tmp_path / "begun") as writer:
        writer.write(0, made.captured(0))
    with pytest.raises(BadCheckpoint, match="begun is incomplete") as caught:
        open_trace(tmp_path / "begun")
    assert caught.value.cure.startswith("finish it")


def requests(document: Document) -> list[dict[str, object]]:
    rows = document["requests"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(format="other"), "is not of the format draftconv-trace"),
        (lambda d: d.update(version=2), "has version 2, 1 is read here"),
        (lambda d: d.update(boundaries=[4, 2, 5]), "boundaries 4,2,5 are not ascending numbers from 0 to 8"),
        (lambda d: d.update(boundaries=[2, 2, 5]), "are not ascending"),
        (lambda d: d.update(boundaries=[2, 4, 9]), "are not ascending"),
        (lambda d: d.update(boundaries=[-1, 4, 5]), "are not ascending"),
        (lambda d: d.update(boundaries=[]), "boundaries none are not ascending"),
        (lambda d: d.update(dtype="int8"), "dtype int8 is none of float64"),
        (lambda d: d.update(depth=0), "depth is 0, not a size"),
        (lambda d: d.pop("target"), "has no target"),
        (lambda d: d.update(prompts_sha256="0"), "prompts_sha256 is not a SHA-256"),
        (lambda d: d.update(requests=[]), "lists no requests"),
        (lambda d: d.update(requests={}), "lists no requests"),
        (lambda d: d.update(requests=["a"]), "lists no requests"),
        (lambda d: requests(d)[1].update(id="a/1"), "lists the id a/1 twice"),
        (lambda d: requests(d)[1].update(file="000000.safetensors"), r"lists the file 000000\.safetensors twice"),
        (lambda d: requests(d)[1].update(file="../../secret.safetensors"), "is not the name of a file in requests"),
        (lambda d: requests(d)[1].update(file="/etc/passwd"), "is not the name of a file in requests"),
        (lambda d: requests(d)[1].update(file="000009.safetensors"), r"lacks 000009\.safetensors"),
        (lambda d: requests(d)[1].update(counted=5), "5 counted tokens, 4 at most"),
        (lambda d: requests(d)[1].update(tokens="A" * 64), "tokens is not a SHA-256"),
        (lambda d: requests(d)[1].update(counted=1), r"holds 3 prompt tokens of 8; trace\.json says 3 \+ 1 counted"),
        (lambda d: requests(d)[1].update(prompt=2, counted=3), "says 2 \\+ 3 counted"),
        (lambda d: requests(d)[1].update(tokens="a" * 64), "does not hold the tokens"),
        (lambda d: requests(d)[1].update(states="a" * 64), "does not hold the hidden states"),
        (lambda d: d.update(boundaries=[2, 4]), "hidden_states is BF16 .*2 boundaries and width 6"),
        (lambda d: d.update(dtype="float16"), "make F16"),
        (lambda d: d.update(family="gpt"), "family gpt is none of llama, deepseek, gpt-oss"),
        (lambda d: d.update(vocab=20), "token ids outside the vocabulary of 20"),
        (lambda d: d.update(tables={"fc": {}}), "fc is none of embed_tokens, lm_head"),
        (lambda d: d["tables"]["embed_tokens"].update(file="../x.safetensors"), "is neither tables/embed_tokens"),
        (lambda d: d["tables"]["embed_tokens"].update(linked=True), "nor a linked absolute path"),
    ],
)
def test_an_edited_index_is_refused(trace: Trace, change: Callable[[Document], object], said: str) -> None:
    read_all(trace.directory)
    edit(trace.directory, change)
    with pytest.raises(BadCheckpoint, match=said):
        read_all(trace.directory)


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(hidden_states=t["hidden_states"].roll(1, 0)), "does not hold the hidden states"),
        (lambda t: t.update(hidden_states=t["hidden_states"].flip(1)), "does not hold the hidden states"),
        (lambda t: t.update(hidden_states=t["hidden_states"][:-1]), "8 tokens, 3 boundaries and width 6 make"),
        (lambda t: t.update(hidden_states=t["hidden_states"].float()), "hidden_states is F32"),
        (lambda t: t.update(token_ids=t["token_ids"].roll(1)), "does not hold the tokens"),
        (lambda t: t.update(token_ids=t["token_ids"].int()), "is not a list of I64"),
        (lambda t: t.update(token_ids=t["token_ids"][:-1], hidden_states=t["hidden_states"][:-1]), "says 3 \\+ 2"),
        (lambda t: t.update(prompt_len=t["prompt_len"] + 1), "holds 4 prompt tokens"),
        (lambda t: t.update(prompt_len=t["prompt_len"] * 0), "has 0 prompt tokens of 8"),
        (lambda t: t.update(prompt_len=t["prompt_len"] + 99), "has 102 prompt tokens of 8"),
        (lambda t: t.update(prompt_len=t["prompt_len"] + 3), "has 6 prompt tokens of 8 in all, 3 of them uncounted"),
        (lambda t: t.update(more=t["prompt_len"] * 1), "holds hidden_states, more, prompt_len"),
        (lambda t: t.pop("prompt_len"), "holds hidden_states, token_ids"),
    ],
)
def test_an_edited_request_is_refused(
    trace: Trace, change: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    rewrite(trace.directory / "requests/000001.safetensors", change)
    with pytest.raises(BadCheckpoint, match=said):
        read_all(trace.directory)


def test_a_short_file_is_refused(trace: Trace) -> None:
    path = trace.directory / "requests/000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadCheckpoint, match="leave the file"):
        read_all(trace.directory)
    path.unlink()
    with pytest.raises(BadCheckpoint, match=r"lacks 000001\.safetensors"):
        open_trace(trace.directory)


def test_requests_in_each_others_place_are_refused(trace: Trace) -> None:
    first, second = (trace.directory / f"requests/00000{i}.safetensors" for i in (0, 1))
    shutil.copy(second, first)
    with pytest.raises(BadCheckpoint, match="3 prompt tokens"):
        read_all(trace.directory)


def test_a_link_out_of_the_directory_is_refused(trace: Trace, tmp_path: Path) -> None:
    path = trace.directory / "requests/000001.safetensors"
    shutil.move(path, tmp_path / "elsewhere.safetensors")
    path.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(BadCheckpoint, match="is a link that leads out of the directory"):
        read_all(trace.directory)


def test_an_absurd_header_is_refused(trace: Trace) -> None:
    path = trace.directory / "requests/000001.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(BadCheckpoint, match="its header claims"):
        read_all(trace.directory)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    made.trace(tmp_path / "one")
    made.trace(tmp_path / "two")
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert [str(file) for file in files] == [
        "requests/000000.safetensors",
        "requests/000001.safetensors",
        "requests/000002.safetensors",
        "tables/embed_tokens.safetensors",
        "tokenizer.json",
        "trace.json",
    ]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_later_key_does_no_harm(trace: Trace) -> None:
    edit(trace.directory, lambda d: d.update(note="kept by another program"))
    assert open_trace(trace.directory).about == replace(made.ABOUT)
