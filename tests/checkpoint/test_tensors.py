import numpy as np
import pytest
import torch
from safetensors.torch import save

from draftconv.checkpoint.headers import read_header
from draftconv.checkpoint.tensors import TensorRef, as_float32, row_blocks
from draftconv.errors import BadCheckpoint
from tests.checkpoint.made import MemoryFile, raw_file, tensor_bytes, tensors


@pytest.fixture
def refs() -> dict[str, TensorRef]:
    return read_header(MemoryFile(save(tensors()))).tensors


def test_rows(refs: dict[str, TensorRef]) -> None:
    fc = tensors()["fc.weight"]
    assert refs["fc.weight"].rows(3, 7) == tensor_bytes(fc[3:7])
    assert refs["fc.weight"].rows(24, 24) == b""
    assert refs["scalar"].rows(0, 1) == refs["scalar"].read()
    assert refs["empty"].rows(0, 0) == b""
    with pytest.raises(IndexError, match=r"rows 0:25 of fc\.weight, which has 24"):
        refs["fc.weight"].rows(0, 25)


def test_numpy_keeps_the_bits(refs: dict[str, TensorRef]) -> None:
    for name, tensor in tensors().items():
        array = refs[name].numpy()
        assert array.shape == tuple(tensor.shape)
        assert array.tobytes() == tensor_bytes(tensor)
    assert refs["fc.weight"].numpy().dtype == np.uint16
    assert refs["t2d"].numpy().dtype == np.bool_


def test_a_bool_is_true_or_false_whatever_its_byte() -> None:
    header = {"x": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    ref = read_header(MemoryFile(raw_file(header, b"\x00\x02\xff"))).tensors["x"]
    assert ref.numpy().tobytes() == b"\x00\x01\x01"


def test_sub_byte_tensors_have_no_numpy_form() -> None:
    header = {"x": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}
    ref = read_header(MemoryFile(raw_file(header, b"abc"))).tensors["x"]
    with pytest.raises(BadCheckpoint, match="x is F4"):
        ref.numpy()
    with pytest.raises(BadCheckpoint, match="do not end on whole bytes"):
        ref.rows(0, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_as_float32_is_exact_for_every_pattern(dtype: torch.dtype) -> None:
    tensor = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(256, 256)
    ref = read_header(MemoryFile(save({"x": tensor}))).tensors["x"]
    wanted = tensor.float().numpy()
    found = as_float32(ref)
    finite = ~np.isnan(wanted)
    assert found.dtype == np.float32
    assert (np.isnan(found) == ~finite).all()
    assert (found.view(np.uint32)[finite] == wanted.view(np.uint32)[finite]).all()
    assert (as_float32(ref, 10, 20)[:, 1:20] == wanted[10:20, 1:20]).all()


def test_as_float32_refuses_the_rest(refs: dict[str, TensorRef]) -> None:
    with pytest.raises(BadCheckpoint, match="d2t is I64"):
        as_float32(refs["d2t"])
    assert as_float32(refs["scalar"]).shape == ()


def test_row_blocks_cover_once(refs: dict[str, TensorRef]) -> None:
    assert list(row_blocks(refs["fc.weight"], 144 * 10)) == [(0, 10), (10, 20), (20, 24)]
    assert list(row_blocks(refs["fc.weight"], 1))[:2] == [(0, 1), (1, 2)]
    assert list(row_blocks(refs["empty"], 100)) == []
