import json
import struct
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from draftconv import limits
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.headers import HeaderEntry, encode_header, read_header
from draftconv.errors import BadCheckpoint
from tests.checkpoint.made import MemoryFile, raw_file, tensor_bytes, tensors

STRICTER = ("does not start with", "key a twice", "entry is not an object")
"""Where this reader refuses what the library lets pass: the format's text forbids it, or it is ambiguous."""


def entry(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(tensors(), metadata={"format": "pt", "torchspec_version": "1"}))
    header = read_header(LocalFile(path))
    assert header.metadata == {"format": "pt", "torchspec_version": "1"}
    assert set(header.tensors) == set(tensors())
    for name, tensor in tensors().items():
        ref = header.tensors[name]
        assert (ref.name, ref.shape) == (name, tuple(tensor.shape))
        assert ref.read() == tensor_bytes(tensor)
    offsets = [ref.offset for ref in header.tensors.values()]
    assert offsets == sorted(offsets)


def test_reads_every_dtype_of_the_library() -> None:
    for dtype in (
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.complex64,
    ):
        tensor = torch.zeros(4, dtype=dtype)
        ref = read_header(MemoryFile(save({"x": tensor}))).tensors["x"]
        assert ref.nbytes == 4 * tensor.itemsize


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "it has 0 bytes"),
        (b"\x02\0\0\0\0\0\0", "it has 7 bytes"),
        (raw_file("{}", length=2**64 - 1), f"{limits.HEADER.value} is the limit"),
        (raw_file("{}", length=limits.HEADER.value + 1), f"{limits.HEADER.value} is the limit"),
        (raw_file("{}", length=3), "claims 3 bytes, the file has 10"),
        (raw_file("{}", length=1), "less than an empty object"),
        (raw_file(" {}"), "does not start with"),
        (raw_file("[]"), "does not start with"),
        (raw_file("{]"), "not valid JSON"),
        (raw_file("{}x"), "not valid JSON"),
        (raw_file(b'{"\xff":1}'), "not UTF-8"),
        (raw_file('{"\\ud800":' + json.dumps(entry()) + "}", b"1234"), "not UTF-8"),
        (
            raw_file('{"a":' + json.dumps(entry()) + ',"a":' + json.dumps(entry()) + "}", b"1234"),
            "key a twice",
        ),
        (raw_file('{"a":NaN}'), "holds NaN"),
        (raw_file({"a": [1]}), "tensor a: its entry is not an object"),
        (raw_file({"a": {"dtype": "U8", "shape": [4]}}), "tensor a: its entry is not an object"),
        (raw_file({"a": {**entry(), "more": 1}}, b"1234"), "tensor a: its entry is not an object"),
        (raw_file({"a": entry(dtype=3)}, b"1234"), "its dtype is not text"),
        (raw_file({"a": entry(dtype="F12")}, b"1234"), "unknown dtype F12"),
        (raw_file({"a": entry(shape="4")}, b"1234"), "not a list of whole numbers"),
        (raw_file({"a": entry(shape=[4.0])}, b"1234"), "not a list of whole numbers"),
        (raw_file({"a": entry(shape=[True, 4])}, b"1234"), "not a list of whole numbers"),
        (raw_file({"a": entry(shape=[-4])}, b"1234"), "not a list of whole numbers"),
        (raw_file({"a": entry(shape=[2**62, 4])}, b"1234"), "absurd shape"),
        (raw_file({"a": entry(shape=[2**62, 4, 0], offsets=(0, 0))}), "absurd shape"),
        (raw_file({"a": entry(dtype="F4", shape=[3], offsets=(0, 1))}, b"1"), "whole byte"),
        (raw_file({"a": entry(offsets=[0])}, b"1234"), "not two whole numbers"),
        (raw_file({"a": entry(offsets=[0, 4, 4])}, b"1234"), "not two whole numbers"),
        (raw_file({"a": entry(offsets=[-4, 0])}, b"1234"), "not two whole numbers"),
        (raw_file({"a": entry(offsets=[4, 0])}, b"1234"), "before they start"),
        (raw_file({"a": entry(offsets=[2, 6])}, b"1234"), "leave the file, which has 4 bytes"),
        (raw_file({"a": entry()}, b"123"), "leave the file, which has 3 bytes"),
        (raw_file({"a": entry(shape=[3])}, b"1234"), r"U8 \[3\] needs 3 bytes, its range holds 4"),
        (raw_file({"a": entry(), "b": entry(offsets=(2, 6))}, b"123456"), "tensor b: its bytes overlap"),
        (raw_file({"a": entry(), "b": entry()}, b"1234"), "tensor b: its bytes overlap"),
        (raw_file({"a": entry(offsets=(1, 5))}, b"12345"), "tensor a: 1 bytes in front of it"),
        (raw_file({"a": entry()}, b"12345"), "1 bytes at its end belong to no tensor"),
        (raw_file({"__metadata__": []}), "__metadata__ is not an object"),
        (raw_file({"__metadata__": {"a": 1}}), "__metadata__ key a is not text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a git-lfs pointer"),
    ],
)
def test_refuses(data: bytes, fault: str) -> None:
    file = MemoryFile(data)
    with pytest.raises(BadCheckpoint, match=fault) as caught:
        read_header(file)
    assert "x.safetensors" in caught.value.what
    assert file.largest <= len(data)
    if not any(part in fault for part in STRICTER):
        with pytest.raises(safetensors.SafetensorError):
            load(data)


def test_messages_stay_short() -> None:
    data = raw_file({"n" * 100_000: entry(dtype="d" * 100_000)}, b"1234")
    with pytest.raises(BadCheckpoint) as caught:
        read_header(MemoryFile(data))
    assert len(str(caught.value)) < 1000


def test_encode_matches_the_library() -> None:
    """Same order, same spelling, same padding as safetensors' own writer."""
    written = save(tensors(), metadata={"format": "pt"})
    header = read_header(MemoryFile(written))
    begin = min(ref.offset for ref in header.tensors.values())
    entries = [
        HeaderEntry(ref.name, ref.dtype, ref.shape, ref.offset - begin, ref.offset - begin + ref.nbytes)
        for ref in header.tensors.values()
    ]
    assert encode_header(entries, {"format": "pt"}) == written[:begin]


def test_encode_is_aligned_and_sorted() -> None:
    for length in range(1, 9):
        assert len(encode_header([HeaderEntry("a" * length, "U8", (1,), 0, 1)], {})) % 8 == 0
    raw = encode_header([HeaderEntry("ä", "U8", (1,), 0, 1)], {"b": "2", "a": "1"})
    assert struct.unpack("<Q", raw[:8]) == (len(raw) - 8,)
    assert raw[8:].startswith('{"__metadata__":{"a":"1","b":"2"},"ä":{"dtype":"U8"'.encode())


@pytest.mark.parametrize("names", [("a", "a"), ("__metadata__",)])
def test_encode_refuses_taken_names(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="is taken"):
        encode_header([HeaderEntry(name, "U8", (0,), 0, 0) for name in names], {"format": "pt"})


SEED = save(
    {"a": torch.arange(6, dtype=torch.int16).reshape(2, 3), "b": torch.zeros(3, dtype=torch.uint8)},
    metadata={"format": "pt"},
)


@settings(max_examples=400)
@given(st.data())
def test_mutated_headers_never_surprise(data: st.DataObject) -> None:
    """Whatever is changed: BadCheckpoint, or a reading that the library shares."""
    raw = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["flip", "delete", "insert", "digit"])):
            case "flip":
                raw[at] = data.draw(st.integers(0, 255))
            case "delete":
                del raw[at : at + data.draw(st.integers(1, 8))]
            case "insert":
                raw[at:at] = data.draw(st.binary(max_size=8))
            case "digit":
                raw[at] = data.draw(st.sampled_from(list(b'0123456789-{}[]",: ')))
        if not raw:
            break
    file = MemoryFile(bytes(raw))
    try:
        header = read_header(file)
    except BadCheckpoint:
        return
    finally:
        assert file.largest <= len(raw)
    theirs = load(bytes(raw))
    assert {name: ref.read() for name, ref in header.tensors.items()} == {
        name: tensor_bytes(tensor) for name, tensor in theirs.items()
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "BF16", "F4", "F99"]) | json_values,
        "shape": st.lists(st.integers(-2, 2**65), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-2, 40), min_size=2, max_size=2) | json_values,
    }
)


@settings(max_examples=300)
@given(
    st.dictionaries(st.text(max_size=4) | st.just("__metadata__"), entries | json_values, max_size=4),
    st.binary(),
)
def test_invented_headers_never_surprise(header: dict[str, object], data: bytes) -> None:
    try:
        read = read_header(MemoryFile(raw_file(header, data)))
    except BadCheckpoint:
        return
    assert sum(ref.nbytes for ref in read.tensors.values()) == len(data)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_never_surprise(data: bytes) -> None:
    try:
        read_header(MemoryFile(data))
    except BadCheckpoint:
        return
    load(data)
