"""`pytorch_model.bin`: torch's zip archives, read without torch and without running a pickle.

The tensors point into the archive's stored members, so they are as lazy as safetensors.
"""

from __future__ import annotations

import math

from draftconv import limits
from draftconv.checkpoint.dtypes import SIZES, nbytes
from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.headers import refuse_pointer
from draftconv.checkpoint.pickles import Tensor, load
from draftconv.checkpoint.tensors import TensorRef
from draftconv.checkpoint.text import show, show_some
from draftconv.checkpoint.zips import Member, data_offset, read_member, read_members
from draftconv.errors import BadCheckpoint

ZIP = b"PK\x03\x04"
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch.save began before version 1.6: its magic number, pickled (torch/serialization.py)."""

RESAVE = "load it with torch.load(…, weights_only=True) and save it with safetensors.torch.save_file"


def read_torch(file: DataFile) -> dict[str, TensorRef]:
    """The tensors of a state dict, in its order.

    Raises:
        BadCheckpoint: not a torch zip archive, not a flat state dict, big-endian, a tensor that is
            not contiguous or leaves its storage, or a pickle that asks for anything else.
    """
    where = show(file.name)
    refuse_pointer(file)
    start = file.read(0, min(len(LEGACY), file.size))
    if not start.startswith(ZIP):
        legacy = start == LEGACY
        raise BadCheckpoint(
            f"{where} is {'in the format of torch before 1.6' if legacy else 'not a torch archive'}",
            why="its tensors cannot be read without running its pickle" if legacy else "",
            cure=RESAVE,
        )
    members = read_members(file)
    root = _root(members, where)
    if any(name.startswith(f"{root}/code/") for name in members) or f"{root}/constants.pkl" in members:
        raise BadCheckpoint(f"{where} is a TorchScript program, not a state dict", cure=RESAVE)
    order = members.get(f"{root}/byteorder")
    if order is not None and (order.size > 16 or read_member(file, order) != b"little"):
        raise BadCheckpoint(f"{where} was written on a big-endian machine", cure=RESAVE)
    program = members[f"{root}/data.pkl"]
    limits.PICKLE.check(program.size, f"{where}: {show(program.name)} claims {program.size} bytes")
    state = load(read_member(file, program), where)
    if not isinstance(state, dict):
        raise BadCheckpoint(f"{where} holds a {type(state).__name__}, not a state dict", cure=RESAVE)
    _refuse_nested(state, where)
    offsets: dict[str, int] = {}
    return {name: _reference(file, name, value, members, root, offsets) for name, value in state.items()}


def _root(members: dict[str, Member], where: str) -> str:
    roots = [name.removesuffix("/data.pkl") for name in members if name.endswith("/data.pkl")]
    roots = [root for root in roots if "/" not in root]
    if len(roots) != 1:
        raise BadCheckpoint(f"{where} is a zip archive, but not one of torch.save (no data.pkl)", cure=RESAVE)
    return roots[0]


def _refuse_nested(state: dict[object, object], where: str) -> None:
    others = [key for key, value in state.items() if not isinstance(value, Tensor) or not isinstance(key, str)]
    if not others:
        return
    inner = [key for key in others if isinstance(state[key], dict)]
    if inner:
        raise BadCheckpoint(
            f"{where} is a training state (it holds {show_some(state)}), not a flat state dict",
            why="which of its parts is the drafter cannot be told from the file",
            cure=f"save the inner dictionary alone, for example state[{show(inner[0])!r}], as safetensors",
        )
    raise BadCheckpoint(f"{where} holds {show_some(others)}, which is not a named tensor", cure=RESAVE)


def _reference(
    file: DataFile, name: str, tensor: Tensor, members: dict[str, Member], root: str, offsets: dict[str, int]
) -> TensorRef:
    where = f"{show(file.name)}, tensor {show(name)}"
    limits.TENSOR_NAME.check(len(name), f"{where}: its name has {len(name)} characters")
    storage = tensor.storage
    member = members.get(f"{root}/data/{storage.key}")
    if member is None:
        raise BadCheckpoint(f"{where}: its storage {show(storage.key)} is not in the archive", cure=RESAVE)
    width = SIZES[storage.dtype] // 8
    if member.size != storage.count * width:
        raise BadCheckpoint(
            f"{where}: its storage claims {storage.count} elements of {storage.dtype}, "
            f"the archive holds {member.size} bytes",
            cure="download or export it again",
        )
    try:
        size = nbytes(storage.dtype, tensor.shape)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{where}: {error.what}") from error
    if not _contiguous(tensor):
        raise BadCheckpoint(
            f"{where} is not contiguous: shape {show(tensor.shape)}, strides {show(tensor.strides)}",
            why="it is a transposed or sliced view; its bytes are not in order",
            cure="save it again after tensor.contiguous()",
        )
    if tensor.offset * width + size > member.size:
        raise BadCheckpoint(f"{where} leaves its storage", cure="download or export it again")
    if storage.key not in offsets:
        offsets[storage.key] = data_offset(file, member)
    return TensorRef(name, storage.dtype, tensor.shape, file, offsets[storage.key] + tensor.offset * width, size)


def _contiguous(tensor: Tensor) -> bool:
    """Whether the strides are those of row-major order; those of size-1 dimensions do not matter."""
    if 0 in tensor.shape:
        return True
    return all(
        size == 1 or stride == math.prod(tensor.shape[axis + 1 :])
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True))
    )
