"""A pickle machine that can build data and nothing else.

It knows the opcodes in `OPCODES` and the names in `GLOBALS`; a name stays a marker, there is no
import and no call. What a hostile pickle asks for beyond that is an error that
names it. (Python's own unpickler, however restricted, also allocates what a length field says.)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint

STORAGES: Mapping[str, str] = MappingProxyType(
    {
        "torch BoolStorage": "BOOL",
        "torch ByteStorage": "U8",
        "torch CharStorage": "I8",
        "torch ShortStorage": "I16",
        "torch IntStorage": "I32",
        "torch LongStorage": "I64",
        "torch HalfStorage": "F16",
        "torch BFloat16Storage": "BF16",
        "torch FloatStorage": "F32",
        "torch DoubleStorage": "F64",
    }
)
"""Storage class → dtype of its elements."""

ORDERED_DICT = "collections OrderedDict"
TENSOR = "torch._utils _rebuild_tensor_v2"
PARAMETER = "torch._utils _rebuild_parameter"
GLOBALS = frozenset({ORDERED_DICT, TENSOR, PARAMETER, *STORAGES})

# code → (name, argument): a struct format, or text/long/names as `_Reader` reads them
OPCODES: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        0x80: ("PROTO", "<B"),
        0x95: ("FRAME", "<Q"),
        ord("."): ("STOP", ""),
        ord("("): ("MARK", ""),
        ord("N"): ("NONE", ""),
        0x88: ("NEWTRUE", ""),
        0x89: ("NEWFALSE", ""),
        ord("K"): ("NUMBER", "<B"),
        ord("M"): ("NUMBER", "<H"),
        ord("J"): ("NUMBER", "<i"),
        ord("G"): ("NUMBER", ">d"),
        0x8A: ("NUMBER", "long"),
        0x8C: ("TEXT", "text <B"),
        ord("X"): ("TEXT", "text <I"),
        ord(")"): ("EMPTY_TUPLE", ""),
        0x85: ("TUPLE1", ""),
        0x86: ("TUPLE2", ""),
        0x87: ("TUPLE3", ""),
        ord("t"): ("TUPLE", ""),
        ord("]"): ("EMPTY_LIST", ""),
        ord("a"): ("APPEND", ""),
        ord("e"): ("APPENDS", ""),
        ord("}"): ("EMPTY_DICT", ""),
        ord("s"): ("SETITEM", ""),
        ord("u"): ("SETITEMS", ""),
        0x94: ("MEMOIZE", ""),
        ord("q"): ("PUT", "<B"),
        ord("r"): ("PUT", "<I"),
        ord("h"): ("GET", "<B"),
        ord("j"): ("GET", "<I"),
        ord("c"): ("GLOBAL", "names"),
        0x93: ("STACK_GLOBAL", ""),
        ord("Q"): ("PERSID", ""),
        ord("R"): ("REDUCE", ""),
        ord("b"): ("BUILD", ""),
    }
)
"""What torch.save emits with pickle protocols 2 to 4."""

_CONSTANTS = MappingProxyType({"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()})
_TUPLES = MappingProxyType({"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3})


@dataclass(frozen=True, slots=True)
class Global:
    """A name that was asked for, as `module name`; one of `GLOBALS`."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """`count` elements in the archive's member `data/{key}`."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A strided view of a storage; offset, shape and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_MARK = object()


def load(data: bytes, where: str) -> object:
    """The value that the pickle describes: str, numbers, tuples, lists, dicts and `Tensor`.

    Raises:
        BadCheckpoint: malformed, or asks for anything but the data of tensors.
    """
    reader = _Reader(data, where)
    machine = _Machine(where)
    while True:
        name, argument = reader.opcode()
        if name == "STOP":
            return machine.result()
        machine.step(name, argument)


class _Reader:
    """Opcodes and their arguments; a length is compared with what is left before it is used."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        self._where = where
        self._position = 0

    def opcode(self) -> tuple[str, object]:
        code = self._take(1)[0]
        if code not in OPCODES:
            raise _hostile(self._where, f"the pickle opcode {bytes([code])!r}")
        name, argument = OPCODES[code]
        match argument.split():
            case []:
                return name, None
            case ["long"]:
                return name, int.from_bytes(self._take(self._number("<B")), "little", signed=True)
            case ["names"]:
                return name, f"{self._line()} {self._line()}"
            case ["text", width]:
                return name, self._text(self._take(self._number(width)))
        return name, self._number(argument)

    def _number(self, form: str) -> int:
        # BINFLOAT comes this way too: what it is used for is checked where it is used
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, count: int) -> bytes:
        piece = self._data[self._position : self._position + count]
        if len(piece) != count:
            raise _malformed(self._where, "it is cut off")
        self._position += count
        return piece

    def _line(self) -> str:
        end = self._data.find(b"\n", self._position)
        if end < 0:
            raise _malformed(self._where, "it is cut off")
        line = self._text(self._take(end - self._position))
        self._position += 1
        return line

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _malformed(self._where, "it holds text that is not UTF-8") from error


class _Machine:
    def __init__(self, where: str) -> None:
        self._where = where
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def result(self) -> object:
        return self._pop()

    def step(self, name: str, argument: object) -> None:
        """Carry out one opcode."""
        if name in ("NUMBER", "TEXT"):
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            items = [self._pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(items)))
        else:
            self._other(name, argument)

    def _other(self, name: str, argument: object) -> None:
        match name:
            case "MARK":
                self._stack.append(_MARK)
            case "TUPLE":
                self._stack.append(tuple(self._pop_to_mark()))
            case "EMPTY_DICT":
                self._stack.append({})
            case "EMPTY_LIST":
                self._stack.append([])
            case "APPEND":
                self._append([self._pop()])
            case "APPENDS":
                self._append(self._pop_to_mark())
            case "SETITEM":
                value = self._pop()
                self._set([self._pop(), value])
            case "SETITEMS":
                self._set(self._pop_to_mark())
            case "PUT" | "MEMOIZE":
                self._memo[argument if isinstance(argument, int) else len(self._memo)] = self._top()
            case "GET":
                if argument not in self._memo:
                    raise _malformed(self._where, "it recalls what it never stored")
                self._stack.append(self._memo[argument])
            case "GLOBAL":
                self._global(str(argument))
            case "STACK_GLOBAL":
                last = self._pop()
                self._global(f"{self._pop()} {last}")
            case "PERSID":
                self._stack.append(self._storage(self._pop()))
            case "REDUCE":
                arguments = self._pop()
                self._stack.append(self._build(self._pop(), arguments))
            case "BUILD":
                # state_dict() leaves its version numbers as an attribute of the OrderedDict
                self._pop()
                if not isinstance(self._top(), dict):
                    raise _hostile(self._where, "the state of an object")

    def _top(self) -> object:
        if not self._stack or self._stack[-1] is _MARK:
            raise _malformed(self._where, "it takes from an empty stack")
        return self._stack[-1]

    def _pop(self) -> object:
        value = self._top()
        self._stack.pop()
        return value

    def _pop_to_mark(self) -> list[object]:
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] is _MARK:
                items = self._stack[position + 1 :]
                del self._stack[position:]
                return items
        raise _malformed(self._where, "it closes what it never opened")

    def _append(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise _malformed(self._where, "it appends to what is not a list")
        target.extend(items)

    def _set(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise _malformed(self._where, "it sets items of what is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # hashing a deeply nested tuple would overflow the C stack
            if not isinstance(key, str | int):
                raise _malformed(self._where, "it has a key that is neither text nor a number")
            if key in target:
                raise _malformed(self._where, f"it has the key {show(key)} twice")
            target[key] = value

    def _global(self, name: str) -> None:
        if name not in GLOBALS:
            raise _hostile(self._where, name.replace(" ", ".", 1))
        self._stack.append(Global(name))

    def _storage(self, described: object) -> Storage:
        match described:
            case ("storage", Global(name), str(key), str(), int(count)) if name in STORAGES and count >= 0:
                return Storage(STORAGES[name], key, count)
        raise _malformed(self._where, "it describes a storage in a way that torch.save does not")

    def _build(self, function: object, arguments: object) -> object:
        match function, arguments:
            case Global(name=name), () if name == ORDERED_DICT:
                return {}
            case Global(name=name), (Storage() as storage, int(offset), tuple(shape), tuple(strides), *_) if (
                name == TENSOR
            ):
                sizes = (offset, *shape, *strides)
                if len(shape) == len(strides) and all(type(size) is int and size >= 0 for size in sizes):
                    return Tensor(storage, offset, shape, strides)
            case Global(name=name), (Tensor() as tensor, *_) if name == PARAMETER:
                return tensor
        raise _malformed(self._where, "it rebuilds an object in a way that torch.save does not")


def _malformed(where: str, fault: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{where} is not a readable state dict: {show(fault)}",
        why="it is damaged or was not written by torch.save",
        cure="download or export it again, as safetensors if you can",
    )


def _hostile(where: str, wanted: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{where} asks for {show(wanted)}, which is not part of a state dict",
        why="loading such a pickle runs code of its author; nothing of it was run here",
        cure="save only model.state_dict(), as safetensors if you can",
    )
