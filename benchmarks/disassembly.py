"""Which spills a program of a kernel pays over and over: those inside of loops of machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile

_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA\b.*?(\.L_x_\d+)")
_SPILL = re.compile(r"\b(?:LDL|STL)\b")


def spills_in_loops(cubin: bytes) -> int:
    """Instructions between a loop's first and last that load from a thread's own memory or store
    to it, by Triton's disassembler.
    """
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(instruction[1])
    inside: set[int] = set()
    for place, text in enumerate(instructions):
        if branch := _BRANCH.search(text):
            first = labels.get(branch[1], place + 1)
            if first < place:  # the last line of a kernel branches to itself
                inside.update(range(first, place + 1))
    return sum(_SPILL.search(instructions[place]) is not None for place in inside)
