"""A pickle interpreter for plain data that calls nothing.

Python's unpickler calls the functions a file names, allocates the sizes it claims and hashes nested
keys: a few hundred bytes of nested tuples, each used twice in the next, take exponential time. Here
keys must be text, NumPy arrays and scalars are recognised by name, and only text and numbers of a
file are ever hashed, compared or printed.
"""

from __future__ import annotations

import pickletools
import re
import struct
from typing import Any, NamedTuple

MAX_OPCODES = 1_250_000  # twice the most in a known recording
MAX_OBJECTS = 250_000  # lists, dicts, tuples, calls: twice the most in a known recording
ALLOWED_OPCODES = frozenset(
    re.findall(
        r"\w+",
        """PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE APPEND APPENDS SETITEM SETITEMS
        BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE BININT BININT1 BININT2
        BINFLOAT BINUNICODE BINBYTES SHORT_BINBYTES TUPLE TUPLE1 TUPLE2 TUPLE3
        GLOBAL REDUCE BUILD""",
    )
)
NUMPY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
ALLOWED_GLOBALS = {
    f"{module} {name}" for module in NUMPY_MODULES for name in ("_reconstruct", "scalar")
}
ALLOWED_GLOBALS |= {"numpy ndarray", "numpy dtype"}
SCALAR_FORMATS = {"f8": "<d", "i8": "<q"}
CONSTANT_OPCODES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY_CONTAINERS = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}


class GlobalName(NamedTuple):
    """A function or class named in a pickle."""

    name: str  # its last part


class DtypeStub:
    """Stands for a NumPy dtype."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class ArrayStub:
    """Stands for a NumPy array; only its bytes are kept."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = b""


_MARK = object()


def load_plain_pickle(data: bytes) -> Any:
    """Return the plain data of a pickle; raise a ValueError if it holds anything else."""
    machine = _PickleMachine()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count > MAX_OPCODES:
            raise ValueError(f"its pickle is longer than {MAX_OPCODES} opcodes")
        if opcode.name not in ALLOWED_OPCODES:
            raise ValueError(f"its pickle holds {opcode.name}")
        if opcode.name == "STOP":
            return machine.pop()
        machine.execute(opcode.name, argument)
    raise ValueError("its pickle has no end")


class _PickleMachine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._objects = 0

    def pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("its pickle pops from an empty stack")
        return self._stack.pop()

    def execute(self, opcode: str, argument: Any) -> None:
        """Execute one opcode."""
        if opcode in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._peek()
        elif opcode in ("BINGET", "LONG_BINGET"):
            if argument not in self._memo:
                raise ValueError("its pickle reads a memo entry that does not exist")
            self._stack.append(self._memo[argument])
        elif opcode == "MARK":
            self._stack.append(_MARK)
        elif opcode in ("APPEND", "APPENDS"):
            items = self._pop_to_mark() if opcode == "APPENDS" else [self.pop()]
            self._peek(list).extend(items)
        elif opcode in ("SETITEM", "SETITEMS"):
            items = self._pop_to_mark() if opcode == "SETITEMS" else [self.pop(), self.pop()][::-1]
            self._set_items(items)
        elif opcode not in ("PROTO", "FRAME"):
            self._stack.append(self._make_value(opcode, argument))

    def _make_value(self, opcode: str, argument: Any) -> Any:
        """Return the value that an opcode pushes."""
        if opcode in CONSTANT_OPCODES:
            return CONSTANT_OPCODES[opcode]
        if opcode.startswith("BIN") or opcode == "SHORT_BINBYTES":
            return argument
        self._objects += 1
        if self._objects > MAX_OBJECTS:
            raise ValueError(f"its pickle holds more than {MAX_OBJECTS} objects")
        if opcode in EMPTY_CONTAINERS:
            return EMPTY_CONTAINERS[opcode]()
        if opcode == "TUPLE":
            return tuple(self._pop_to_mark())
        if opcode.startswith("TUPLE"):
            return tuple([self.pop() for _ in range(int(opcode[5:]))][::-1])
        if opcode == "GLOBAL":
            if argument not in ALLOWED_GLOBALS:
                raise ValueError(f"its pickle names {argument.replace(' ', '.', 1)[:80]}")
            return GlobalName(argument.split(" ")[1])
        arguments = self.pop()
        return (
            _set_state(self.pop(), arguments)
            if opcode == "BUILD"
            else _call_numpy(self.pop(), arguments)
        )

    def _peek(self, expected_type: type = object) -> Any:
        if (
            not self._stack
            or self._stack[-1] is _MARK
            or not isinstance(self._stack[-1], expected_type)
        ):
            raise ValueError("its pickle adds to a value that is not a list or dict")
        return self._stack[-1]

    def _pop_to_mark(self) -> list[Any]:
        """Pop all values since the last mark."""
        for start in range(len(self._stack) - 1, -1, -1):
            if self._stack[start] is _MARK:
                items = self._stack[start + 1 :]
                del self._stack[start:]
                return items
        raise ValueError("its pickle has no mark to pop to")

    def _set_items(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if len(keys) != len(values) or not all(type(key) is str for key in keys):
            raise ValueError("its pickle has a dict whose keys are not text")
        self._peek(dict).update(zip(keys, values, strict=True))


def _call_numpy(function: Any, arguments: Any) -> Any:
    """Emulate the NumPy functions that a pickle may call."""
    if type(function) is not GlobalName or type(arguments) is not tuple:
        raise ValueError("its pickle calls a value that is not a function")
    if function.name == "_reconstruct":
        return ArrayStub()
    if function.name == "dtype" and arguments and type(arguments[0]) is str:
        return DtypeStub(arguments[0])
    if function.name == "scalar" and [*map(type, arguments)] == [DtypeStub, bytes]:
        dtype, data = arguments
        if dtype.name in SCALAR_FORMATS and len(data) == 8:
            return struct.unpack(SCALAR_FORMATS[dtype.name], data)[0]
    raise ValueError(f"its pickle calls {function.name} with unexpected arguments")


def _set_state(value: Any, state: Any) -> Any:
    """Set the state of an array or dtype."""
    if type(value) is ArrayStub and type(state) is tuple and len(state) == 5:
        if type(state[4]) is not bytes:  # bytes(n) of a number would be n zeros
            raise ValueError("its pickle has an array whose values are not bytes")
        value.data = state[4]
    elif type(value) is not DtypeStub:
        raise ValueError("its pickle sets the state of a value that is not an array")
    return value
