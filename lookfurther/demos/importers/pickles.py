"""Pickles of plain data, read by an interpreter of ours that calls nothing.

Python's own would call what a file names, allocate what it claims and hash what it nests: a few
hundred bytes of tuples in tuples, each twice in the next, take forever. Here keys are text, NumPy's
arrays and numbers are known by name, and nothing of a file is hashed, compared or printed but text
and numbers.
"""

from __future__ import annotations

import pickletools
import re
import struct
from typing import Any, NamedTuple

MOST_OPCODES = 1_250_000  # twice those of any known recording
MOST_OBJECTS = 250_000  # lists, dicts, tuples, calls: twice those of any known recording
OPCODES = frozenset(
    re.findall(
        r"\w+",
        """PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE APPEND APPENDS SETITEM SETITEMS
        BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE BININT BININT1 BININT2
        BINFLOAT BINUNICODE BINBYTES SHORT_BINBYTES TUPLE TUPLE1 TUPLE2 TUPLE3
        GLOBAL REDUCE BUILD""",
    )
)
NUMPY = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
NAMES = {f"{module} {name}" for module in NUMPY for name in ("_reconstruct", "scalar")}
NAMES |= {"numpy ndarray", "numpy dtype"}
SCALARS = {"f8": "<d", "i8": "<q"}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
MADE = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}


class Named(NamedTuple):
    """A function or class that a pickle names."""

    name: str  # its last part


class Kind:
    """A NumPy dtype."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Array:
    """A NumPy array, of which only the bytes matter."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = b""


_MARK = object()


def unpickled(data: bytes) -> Any:
    """The plain data of a pickle; a ValueError where it holds anything else."""
    machine = _Machine()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count > MOST_OPCODES:
            raise ValueError(f"its pickle is longer than {MOST_OPCODES} opcodes")
        if opcode.name not in OPCODES:
            raise ValueError(f"its pickle holds {opcode.name}")
        if opcode.name == "STOP":
            return machine.pop()
        machine.step(opcode.name, argument)
    raise ValueError("its pickle has no end")


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._objects = 0

    def pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("its pickle takes more than it holds")
        return self._stack.pop()

    def step(self, name: str, argument: Any) -> None:
        """Do what one opcode says."""
        if name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._top()
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in self._memo:
                raise ValueError("its pickle names what it does not hold")
            self._stack.append(self._memo[argument])
        elif name == "MARK":
            self._stack.append(_MARK)
        elif name in ("APPEND", "APPENDS"):
            items = self._marked() if name == "APPENDS" else [self.pop()]
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._marked() if name == "SETITEMS" else [self.pop(), self.pop()][::-1]
            self._set_items(items)
        elif name not in ("PROTO", "FRAME"):
            self._stack.append(self._value(name, argument))

    def _value(self, name: str, argument: Any) -> Any:
        """What an opcode puts on the stack."""
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name.startswith("BIN") or name == "SHORT_BINBYTES":
            return argument
        self._objects += 1
        if self._objects > MOST_OBJECTS:
            raise ValueError(f"its pickle holds more than {MOST_OBJECTS} objects")
        if name in MADE:
            return MADE[name]()
        if name == "TUPLE":
            return tuple(self._marked())
        if name.startswith("TUPLE"):
            return tuple([self.pop() for _ in range(int(name[5:]))][::-1])
        if name == "GLOBAL":
            if argument not in NAMES:
                raise ValueError(f"its pickle asks for {argument.replace(' ', '.', 1)[:80]}")
            return Named(argument.split(" ")[1])
        arguments = self.pop()
        return _built(self.pop(), arguments) if name == "BUILD" else _made(self.pop(), arguments)

    def _top(self, kind: type = object) -> Any:
        if not self._stack or self._stack[-1] is _MARK or not isinstance(self._stack[-1], kind):
            raise ValueError("its pickle has something else where it adds to a list or dict")
        return self._stack[-1]

    def _marked(self) -> list[Any]:
        """All since the last mark."""
        for start in range(len(self._stack) - 1, -1, -1):
            if self._stack[start] is _MARK:
                items = self._stack[start + 1 :]
                del self._stack[start:]
                return items
        raise ValueError("its pickle goes back to a mark that it does not have")

    def _set_items(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if len(keys) != len(values) or not all(type(key) is str for key in keys):
            raise ValueError("its pickle has a dict whose keys are not text")
        self._top(dict).update(zip(keys, values, strict=True))


def _made(called: Any, arguments: Any) -> Any:
    """What NumPy's functions would return."""
    if type(called) is not Named or type(arguments) is not tuple:
        raise ValueError("its pickle calls what is no function")
    if called.name == "_reconstruct":
        return Array()
    if called.name == "dtype" and arguments and type(arguments[0]) is str:
        return Kind(arguments[0])
    if called.name == "scalar" and [*map(type, arguments)] == [Kind, bytes]:
        kind, data = arguments
        if kind.name in SCALARS and len(data) == 8:
            return struct.unpack(SCALARS[kind.name], data)[0]
    raise ValueError(f"its pickle calls {called.name} with something else than NumPy does")


def _built(value: Any, state: Any) -> Any:
    """An array or dtype with its state."""
    if type(value) is Array and type(state) is tuple and len(state) == 5:
        if type(state[4]) is not bytes:  # bytes(n) of a number would be n zeros
            raise ValueError("its pickle has an array whose values are not bytes")
        value.data = state[4]
    elif type(value) is not Kind:
        raise ValueError("its pickle builds something else than an array")
    return value
