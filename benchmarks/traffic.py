"""Bytes that a compiled kernel asks of global memory, counted by running its addresses.

Of the PTX only what addresses, masks and branches are made of is run, for all threads of a program
at once; nothing is loaded. So loops count by their trips, masked lanes not at all, and threads that
ask for the same bytes at once count once. Every pointer gets a range of addresses of its own, which
tells whose bytes they are. Nothing may depend on what is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BITS = 44
"""Of the address of a byte behind its pointer: pointer k begins at (k + 1) << BITS."""

Lanes = NDArray[np.int64]

_MASK = 0xFFFFFFFF
_NUMBER = re.compile(r"-?(0x[0-9A-Fa-f]+|\d+)$")
_TEXT = re.compile(r"^\s*(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);?\s*(?://.*)?$")
_MOVES = ("ld.global", "st.global", "cp.async.ca.shared.global", "cp.async.cg.shared.global")


class Line(NamedTuple):
    """An instruction: its guard (register, negated), name, and operands."""

    guard: str | None
    negated: bool
    name: str
    operands: tuple[str, ...]

    @property
    def moves(self) -> bool:
        """Whether it asks global memory for bytes."""
        return self.name.startswith(_MOVES)

    @property
    def reads(self) -> tuple[str, ...]:
        """Registers that decide what it does, as far as bytes go."""
        guard = (self.guard,) if self.guard else ()
        if not self.moves:
            return (*guard, *(_registers(self.operands[1:]) if self.operands else ()))
        if self.name.startswith("cp.async"):
            return (*guard, *_registers(self.operands[1:]))
        addressed = [each for each in self.operands if each.startswith("[")]
        return (*guard, *_registers(addressed))


def count(
    ptx: str, values: Sequence[int | None], place: tuple[int, int], threads: int
) -> dict[tuple[int, bool], int]:
    """Bytes by the number of the kernel's parameter and whether they are stored, of the program at
    `place` of the grid; `values` has an integer's value, and None for a pointer. ValueError: not to
    be known from the code, as where an address has been loaded.
    """
    code, labels = _parsed(ptx)
    needed, program = _slice(code), _Program(code, values, place, threads)
    found: dict[tuple[int, bool], int] = {}
    at = 0
    while at < len(code):
        line, here = code[at], at
        at += 1
        if here not in needed:
            continue
        on, jumps = program.threads_at(line), line.name.startswith("bra")
        if jumps and (on is None or on.any() != on.all()):
            if not _aside(code, labels, at, line.operands[0]):
                raise ValueError(f"threads of one program may part ways by {line.guard}")
        elif on is None:
            raise ValueError(f"bytes depend on what {line.guard} of a loaded number says")
        elif jumps:
            at = labels[line.operands[0]] if on.all() else at
        elif line.name == "ret":
            at = len(code) if on.all() else at
        elif line.moves:
            for address, width in _moved(line, on, program.value):
                owner = int(address[0] >> BITS) - 1, line.name.startswith("st")
                found[owner] = found.get(owner, 0) + len(np.unique(address)) * width
        else:
            program.compute(line, on)
    return found


class _Program:
    """The registers of all threads of one program of the grid, where bytes depend on them."""

    def __init__(
        self,
        code: Sequence[Line],
        values: Sequence[int | None],
        place: tuple[int, int],
        threads: int,
    ) -> None:
        self._values, self._threads = values, threads
        self._written = {name for line in code for name in _registers(line.operands[:1])}
        self._registers: dict[str, Lanes | None] = {}
        self._special = {
            "%tid.x": np.arange(threads),
            "%ctaid.x": place[0],
            "%ctaid.y": place[1],
            "%ctaid.z": 0,
        }

    def value(self, operand: str) -> Lanes | None:
        """An operand, one number per thread; None where it depends on what was loaded."""
        threads = self._threads
        if operand in self._special:
            return np.broadcast_to(np.asarray(self._special[operand], np.int64), threads)
        if operand.startswith("%") and operand in self._written:
            return self._registers.get(operand)
        if operand.startswith("%"):  # nobody looks at what is in it
            return np.zeros(threads, np.int64)
        if operand.startswith("{"):
            return _joined([self.value(each.strip()) for each in operand.strip("{}").split(",")])
        return np.full(threads, int(operand, 0), np.int64) if _NUMBER.match(operand) else None

    def threads_at(self, line: Line) -> NDArray[np.bool_] | None:
        """The threads that a line is for; None where that depends on what was loaded."""
        if not line.guard:
            return np.ones(self._threads, bool)
        guard = self.value(line.guard)
        return None if guard is None else (guard != 0) != line.negated

    def compute(self, line: Line, on: NDArray[np.bool_]) -> None:
        """Set what an arithmetic line sets, in the threads that it is for."""
        if line.operands[0].startswith("{"):
            self._registers |= _halves(line, self.value)
            return
        result = _result(line, self.value, self._values, self._threads)
        before = self._registers.get(line.operands[0])
        if line.guard and before is not None and result is not None:
            result = np.where(on, result, before)
        self._registers[line.operands[0]] = result


def _aside(code: Sequence[Line], labels: dict[str, int], at: int, label: str) -> bool:
    """Whether a branch to the label goes around arithmetic alone, as where one thread multiplies
    for all.
    """
    while at != labels[label]:
        line = code[at]
        if line.moves or line.name == "ret" or (line.name.startswith("bra") and line.guard):
            return False
        at = labels[line.operands[0]] if line.name.startswith("bra") else at + 1
    return True


def _moved(
    line: Line, on: NDArray[np.bool_], value: Callable[[str], Lanes | None]
) -> Iterator[tuple[Lanes, int]]:
    """Addresses and the bytes at each."""
    if line.name.startswith("cp.async"):
        address, size = _address(line.operands[1], value), int(line.operands[2], 0)
        if len(line.operands) > 3:
            on = on & (value(line.operands[3]) > 0)
    else:
        place = next(each for each in line.operands if each.startswith("["))
        address = _address(place, value)
        lanes = int(found[1]) if (found := re.search(r"\.v(\d)", line.name)) else 1
        size = lanes * int(line.name[-2:].lstrip("bsuf")) // 8
    if on.any():
        yield address[on], size


def _address(operand: str, value: Callable[[str], Lanes | None]) -> Lanes:
    base, _, offset = operand.strip("[] ").partition("+")
    known = value(base.strip())
    if known is None:
        raise ValueError(f"the address {operand} is made of loaded numbers")
    return known + int(offset or "0", 0)


def _parsed(ptx: str) -> tuple[list[Line], dict[str, int]]:
    """The instructions, and where the labels point."""
    code: list[Line] = []
    labels: dict[str, int] = {}
    for text in ptx[ptx.index(".entry") :].splitlines():
        stripped = text.strip()
        if (
            stripped.startswith(("$", "waitLoop", "skip"))
            and stripped.split("//")[0].strip()[-1] == ":"
        ):
            labels[stripped.split(":")[0]] = len(code)
            continue
        if stripped.startswith((".section", ".file")):
            break
        if stripped.startswith((".", "//", "{", "}", "(", ")")) or not stripped:
            continue
        if match := _TEXT.match(text):
            negated, guard, name, rest = match.groups()
            operands = tuple(re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest))
            code.append(Line(guard, bool(negated), name, operands))
    return code, labels


def _slice(code: Sequence[Line]) -> set[int]:
    """What bytes and branches depend on."""
    wanted, kept = set[str](), set[int]()
    while True:
        size = len(kept), len(wanted)
        for number, line in enumerate(code):
            decides = line.moves or line.name.startswith("bra") or line.name == "ret"
            if decides or wanted.intersection(_registers(line.operands[:1])):
                kept.add(number)
                wanted.update(line.reads)
        if (len(kept), len(wanted)) == size:
            return kept


def _registers(operands: Sequence[str]) -> list[str]:
    return re.findall(r"%[a-z]+\d+", " ".join(operands))


def _joined(halves: Sequence[Lanes | None]) -> Lanes | None:
    """The 64 bits of two registers of 32."""
    low, high = halves if len(halves) == 2 else (None, None)
    return None if low is None or high is None else (low & _MASK) | (high << 32)


def _halves(line: Line, value: Callable[[str], Lanes | None]) -> dict[str, Lanes | None]:
    """What registers that are written together get; None of what was loaded."""
    names = [each.strip() for each in line.operands[0].strip("{}").split(",")]  # _ is for nobody
    whole = value(line.operands[1]) if line.name == "mov.b64" and len(names) == 2 else None
    return {
        name: None if whole is None else _signed(whole >> 32 * k) for k, name in enumerate(names)
    }


def _signed(x: Lanes) -> Lanes:
    """The lower 32 bits, as a number with a sign."""
    return ((x & _MASK) ^ 0x80000000) - 0x80000000


def _result(
    line: Line, value: Callable[[str], Lanes | None], values: Sequence[int | None], threads: int
) -> Lanes | None:
    kind, *parts = line.name.split(".")
    if line.name.startswith("ld.param"):
        number = int(line.operands[1].strip("[]").rsplit("_", 1)[1].split("+")[0])
        integer = values[number] if number < len(values) else 0
        return np.full(threads, (number + 1) << BITS if integer is None else integer, np.int64)
    given = [value(each) for each in line.operands[1:]]
    known = [each for each in given if each is not None]
    if len(known) < len(given) or parts[-1:] == ["f32"]:
        return None
    a, b, c = (known + [np.zeros(threads, np.int64)] * 3)[:3]
    unsigned = parts[-1].startswith(("u", "b"))
    if (
        unsigned
        and parts[-1].endswith("32")
        and kind in ("shr", "div", "rem", "bfe", "setp", "cvt", "mul", "mad")
    ):
        a, b = a & _MASK, b & _MASK
    compare = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
               "eq": np.equal, "ne": np.not_equal}  # fmt: skip
    if kind == "setp":
        return compare[parts[0]](a, b).astype(np.int64)
    simple: dict[str, Callable[[], Lanes]] = {
        "mov": lambda: a,
        "cvt": lambda: a,
        "cvta": lambda: a,
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "mad": lambda: a * b + c,
        "shl": lambda: a << b,
        "shr": lambda: a >> b,
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "selp": lambda: np.where(c != 0, a, b),
        "rem": lambda: np.fmod(a, np.maximum(b, 1)),
        "div": lambda: a // np.maximum(b, 1),
        "neg": lambda: -a,
        "bfe": lambda: (a >> b) & ((1 << c) - 1),
        "min": lambda: np.minimum(a, b),
        "max": lambda: np.maximum(a, b),
        "not": lambda: (a == 0).astype(np.int64) if parts[-1] == "pred" else ~a,
    }
    if kind not in simple or parts[-1].startswith("f"):
        return None
    result = simple[kind]()
    narrow = parts[-1][1:] == "32" and "wide" not in parts and kind != "cvt"
    if kind == "cvt" and parts[0][1:] == "32":
        narrow = True
    return _signed(result) if narrow else result
