import contextlib
import io
import os
import pickle
import shlex
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.pickles import load
from draftconv.checkpoint.torchbin import read_torch
from draftconv.errors import BadCheckpoint
from tests.checkpoint.made import MemoryFile, tensor_bytes, tensors


def saved(value: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def archive(data_pkl: bytes, members: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A torch archive with any pickle and other members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as made:
        made.writestr("archive/data.pkl", data_pkl)
        for name, data in (members or {}).items():
            made.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def refuses(data: bytes, fault: str) -> None:
    with pytest.raises(BadCheckpoint, match=fault) as caught:
        read_torch(MemoryFile(data, "pytorch_model.bin"))
    assert "pytorch_model.bin" in caught.value.what


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_reads_what_torch_saves(protocol: int) -> None:
    refs = read_torch(MemoryFile(saved(tensors(), pickle_protocol=protocol), "x.bin"))
    assert list(refs) == list(tensors())
    for name, tensor in tensors().items():
        assert refs[name].shape == tuple(tensor.shape)
        assert refs[name].read() == tensor_bytes(tensor), name
    assert [ref.dtype for ref in refs.values()] == ["BF16", "F32", "F16", "I64", "BOOL", "F32", "F32", "I8"]


def test_reads_a_module_state_with_views_and_parameters(tmp_path: Path) -> None:
    state = torch.nn.Linear(3, 2).state_dict()
    state["tied"] = state["weight"]
    state["tail"] = state["weight"][1:]
    state["parameter"] = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    state["column"] = torch.ones(4, 3)[:, :1][:1]
    torch.save(state, tmp_path / "pytorch_model.bin")
    refs = read_torch(LocalFile(tmp_path / "pytorch_model.bin"))
    assert {name: ref.read() for name, ref in refs.items()} == {
        name: tensor_bytes(tensor) for name, tensor in state.items()
    }
    assert refs["tied"].offset == refs["weight"].offset


class Runs:
    """Runs a command when unpickled by the ordinary machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {shlex.quote(str(self.path))}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_nothing_of_a_hostile_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    bait = tmp_path / "bait"
    hostile = pickle.dumps({"fc.weight": Runs(bait)}, protocol=protocol)
    refuses(archive(hostile), r"asks for (posix\.system|the pickle opcode)")
    assert not bait.exists()
    pickle.loads(hostile)["fc.weight"]
    assert bait.exists(), "the bait itself must work, or the test proves nothing"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", r"asks for os\.system"),
        (b"c__builtin__\neval\n(X\x01\0\0\0atR.", r"asks for __builtin__\.eval"),
        (b"(ios\nsystem\n.", "the pickle opcode INST"),
        (b"ctorch._utils\n_rebuild_tensor_v3\n.", r"asks for torch\._utils\._rebuild_tensor_v3"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", r"asks for os\.system"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "the pickle opcode NEWOBJ"),
        (b"ccollections\nOrderedDict\n(]tR.", "rebuilds an object"),
        (b"ctorch\nFloatStorage\n)R.", "rebuilds an object"),
        (b"K\x01)R.", "rebuilds an object"),
        (b"](K\x01b.", "the state of an object|takes from an empty"),
        (b"}}b.", "holds|is not"),
        (b"K\x01K\x02b.", "the state of an object"),
        (b"\x82\x01.", "the pickle opcode EXT1"),
        (b"Pabc\n.", "the pickle opcode PERSID"),
        (b"h\x05.", "recalls what it never stored"),
        (b"t.", "closes what it never opened"),
        (b"0.", "the pickle opcode POP"),
        (b".", "takes from an empty stack"),
        (b"(.", "takes from an empty stack"),
        (b"}(K\x01u.", "sets items of what is not a dictionary"),
        (b"]K\x01K\x02s.", "sets items of what is not a dictionary"),
        (b"}K\x01a.", "appends to what is not a list"),
        (b"})K\x01s.", "neither text nor a number"),
        (b"}(K\x01K\x01K\x01K\x02u.", "the key 1 twice"),
        (b"K\x01Q.", "describes a storage"),
        (b"}", "not a readable state dict: pickle exhausted"),
        (b"", "not a readable state dict"),
        (b"\xff", r"opcode b'\\xff' unknown"),
        (b"X\xff\xff\xff\x7fabc.", "not a readable state dict"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "not a readable state dict"),
        (b"\x8e\x03\0\0\0\0\0\0\0abc.", "the pickle opcode BINBYTES8"),
        (b"X\x01\0\0\0\xff.", "not a readable state dict: 'utf-8' codec"),
        (b"X\x03\0\0\0\xed\xa0\x80.", "not a readable state dict: 'utf-8' codec"),
        (b"cos\nsystem", "no newline found"),
        (b"\x8a\x02\x01", "but only 1 remain|not enough data"),
        (b"I" + b"9" * 5000 + b"\n.", "not a readable state dict"),
        (b"K\x01.", "holds a int, not a state dict"),
        (b"}X\x01\0\0\0aK\x01s.", "holds a, which is not a named tensor"),
        (b"}K\x01}s.", "a training state"),
    ],
)
def test_refuses_pickles(code: bytes, fault: str) -> None:
    if code == b"}}b.":
        assert load(code, "x") == {}
        return
    refuses(archive(code), fault)


def test_deep_nesting_is_no_trouble() -> None:
    refuses(archive(b")" + b"\x85" * 500_000 + b"."), "holds a tuple")
    refuses(archive(b"})" + b"\x85" * 500_000 + b"K\x01s."), "neither text nor a number")


@pytest.mark.parametrize("wrapper", ["module", "state_dict", "draft_state_dict"])
def test_training_states_are_named(wrapper: str) -> None:
    refuses(saved({wrapper: tensors(), "step": 3}), rf"a training state \(it holds {wrapper}, step\)")


def test_other_formats_are_named() -> None:
    refuses(saved(tensors(), _use_new_zipfile_serialization=False), "the format of torch before 1.6")
    refuses(b"", "not a torch archive")
    refuses(b"hello", "not a torch archive")
    refuses(b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer")
    refuses(archive(b"}.", {"code/x": b""}), "a TorchScript program")
    refuses(archive(b"}.", {"constants.pkl": b""}), "a TorchScript program")
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as made:
        made.writestr("a", "b")
    refuses(empty.getvalue(), r"no data\.pkl")


def test_big_endian_is_refused() -> None:
    refuses(archive(b"}.", {"byteorder": b"big"}), "big-endian")


def test_views_out_of_order_are_refused_by_name() -> None:
    refuses(saved({"a": torch.ones(2, 3).t()}), r"tensor a is not contiguous: shape \(3, 2\), strides \(1, 3\)")
    refuses(saved({"a": torch.ones(1).expand(3)}), "tensor a is not contiguous")


def rebuilt(key: str = "0", count: int = 4, offset: int = 0, shape: tuple[int, ...] = (4,)) -> bytes:
    """The pickle of one F32 tensor with any numbers in it."""

    class Storage:
        pass

    class Pickler(pickle._Pickler):
        def persistent_id(self, obj: object) -> object:
            return ("storage", torch.FloatStorage, key, "cpu", count) if isinstance(obj, Storage) else None

    class Tensor:
        def __reduce__(self) -> tuple[object, ...]:
            strides = tuple(torch.empty(shape, device="meta").stride()) if max(shape) < 100 else (1,) * len(shape)
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, shape, strides, False, OrderedDict())

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"a": Tensor()})
    return buffer.getvalue()


def test_storages_must_hold_what_they_claim() -> None:
    good = archive(rebuilt(), {"data/0": struct.pack("<4f", 1, 2, 3, 4)})
    assert read_torch(MemoryFile(good))["a"].read() == struct.pack("<4f", 1, 2, 3, 4)
    refuses(archive(rebuilt(), {"data/0": b"123"}), "claims 4 elements of F32, the archive holds 3 bytes")
    refuses(archive(rebuilt(count=2**61), {"data/0": bytes(16)}), "claims 2305843009213693952 elements")
    refuses(archive(rebuilt(count=-1), {"data/0": b""}), "describes a storage in a way that torch.save does not")
    refuses(archive(rebuilt(offset=1), {"data/0": bytes(16)}), "tensor a leaves its storage")
    refuses(archive(rebuilt(shape=(5,)), {"data/0": bytes(16)}), "tensor a leaves its storage")
    refuses(archive(rebuilt(shape=(2**62, 4)), {"data/0": bytes(16)}), "absurd shape")
    refuses(archive(rebuilt(key="1"), {"data/0": bytes(16)}), "storage 1 is not in the archive")
    refuses(archive(rebuilt(key="../../x"), {"data/0": bytes(16)}), r"\.\./\.\./x is not in the archive")


def test_compressed_and_doubled_members_are_refused() -> None:
    refuses(archive(b"}.", compression=zipfile.ZIP_DEFLATED), "compressed or encrypted")
    with pytest.warns(UserWarning, match="Duplicate name"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as made:
            made.writestr("archive/data.pkl", b"}.")
            made.writestr("archive/data.pkl", b"}.")
    refuses(buffer.getvalue(), "twice")


def test_damage_is_noticed() -> None:
    data = saved(tensors())
    refuses(data[:-1], "no zip directory|bytes follow")
    refuses(data + b"x", "bytes follow its zip directory")
    refuses(data[: len(data) // 2], "no zip directory")
    at = data.index(b"fc.weight")
    refuses(data[:at] + b"fd" + data[at + 2 :], r"checksum of \w+/data\.pkl is wrong")


def test_zip64_sizes_are_understood(tmp_path: Path) -> None:
    """A sparse archive of more than 4 GiB: sizes and offsets only in the 64-bit fields."""
    path = tmp_path / "pytorch_model.bin"
    large, pickled, full = 2**32 + 4096, rebuilt(count=2**30 + 1024, shape=(99, 99)), 0xFFFF_FFFF
    central = b""
    with path.open("wb") as file:
        for name, size, crc in ((b"a/data/0", large, 0), (b"a/data.pkl", len(pickled), zlib.crc32(pickled))):
            header = file.tell()
            file.write(struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, 0, 0, len(name), 8))
            file.write(name + struct.pack("<2HL", 0x4246, 4, 0))
            wide = struct.pack("<2H3Q", 1, 24, size, size, header)
            fields = (45, 45, 0, 0, 0, 0, crc, full, full, len(name), len(wide), 0, 0, 0, 0, full)
            central += struct.pack("<4s6H3L5H2L", b"PK\1\2", *fields) + name + wide
            if size == large:
                begin = file.tell()
                file.seek(size, os.SEEK_CUR)
            else:
                file.write(pickled)
        where = file.tell()
        file.write(central)
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(central), where))
        file.write(struct.pack("<4sLQL", b"PK\6\7", 0, where + len(central), 1))
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, full, full, 0))
    ref = read_torch(LocalFile(path))["a"]
    assert (ref.offset, ref.nbytes) == (begin, 99 * 99 * 4)
    assert path.stat().st_blocks * 512 < 2**20


SEED = saved({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)})


@settings(max_examples=300)
@given(st.data())
def test_mutated_archives_never_surprise(data: st.DataObject) -> None:
    raw = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.integers(0, 255))
        else:
            raw[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    file = MemoryFile(bytes(raw))
    try:
        for ref in read_torch(file).values():
            ref.read()
    except BadCheckpoint:
        pass
    assert file.largest <= len(raw)


PICKLED = zipfile.ZipFile(io.BytesIO(SEED)).read("archive/data.pkl")


@settings(max_examples=500)
@given(st.data())
def test_mutated_pickles_never_surprise(data: st.DataObject) -> None:
    raw = bytearray(PICKLED)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.integers(0, 255))
        else:
            raw[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    with contextlib.suppress(BadCheckpoint):
        load(bytes(raw), "x")


@settings(max_examples=300)
@given(st.binary(max_size=120))
def test_random_pickles_never_surprise(raw: bytes) -> None:
    with contextlib.suppress(BadCheckpoint):
        load(raw, "x")
