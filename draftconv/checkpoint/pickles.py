"""A pickle machine that can build data and nothing else.

pickletools reads the opcodes. Of them the machine knows those that torch.save emits with protocols 2 to 4, and
the names in `GLOBALS`; a name stays a marker, there is no import and no call. What a hostile pickle asks for
beyond that is an error that names it. (Python's own unpickler, however restricted, also allocates what a length
field says; torch.load with weights_only needs torch, and the whole file.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

_CONSTANTS = MappingProxyType({"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()})


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
    machine = _Machine(where)
    for name, argument in _opcodes(data, where):
        machine.step(name, argument)
    return machine.result()


def _opcodes(data: bytes, where: str) -> Iterator[tuple[str, object]]:
    """Names and arguments, up to STOP."""
    import pickletools

    try:
        for opcode, argument, _ in pickletools.genops(data):
            if isinstance(argument, str):
                argument.encode()  # it lets halves of surrogate pairs pass
            yield opcode.name, argument
    except (ValueError, DeprecationWarning) as error:  # the latter where warnings are errors: a name with a backslash
        raise _malformed(where, str(error)) from error


class _Machine:
    def __init__(self, where: str) -> None:
        self._where = where
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def result(self) -> object:
        return self._pop()

    def step(self, name: str, argument: object) -> None:
        """Carry out one opcode."""
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "BININT1" | "BININT2" | "BININT" | "LONG1" | "BINFLOAT" | "SHORT_BINUNICODE" | "BINUNICODE":
                # what a number or a text is used for is checked where it is used
                self._stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                self._stack.append(_CONSTANTS[name])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self._pop() for _ in range(int(name[-1]))]
                self._stack.append(tuple(reversed(items)))
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
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memo[argument if isinstance(argument, int) else len(self._memo)] = self._top()
            case "BINGET" | "LONG_BINGET":
                if argument not in self._memo:
                    raise _malformed(self._where, "it recalls what it never stored")
                self._stack.append(self._memo[argument])
            case "GLOBAL":
                self._global(str(argument))
            case "STACK_GLOBAL":
                last = self._pop()
                self._global(f"{self._pop()} {last}")
            case "BINPERSID":
                self._stack.append(self._storage(self._pop()))
            case "REDUCE":
                arguments = self._pop()
                self._stack.append(self._build(self._pop(), arguments))
            case "BUILD":
                # state_dict() leaves its version numbers as an attribute of the OrderedDict
                self._pop()
                if not isinstance(self._top(), dict):
                    raise _hostile(self._where, "the state of an object")
            case _:
                raise _hostile(self._where, f"the pickle opcode {name}")

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


def _hostile(where: str, request: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{where} asks for {show(request)}, which is not part of a state dict",
        why="loading such a pickle runs code of its author; nothing of it was run here",
        cure="save only model.state_dict(), as safetensors if you can",
    )
