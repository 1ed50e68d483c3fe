"""What compiled kernels must hold, and what was found as tables (targets.py)."""

from __future__ import annotations

from typing import Any

SHARED = 99 * 1024
SPILLS = {"scores": 0}
"""Bytes that a thread may spill; OTHERS of other kernels: ptxas keeps to 96, 128 or 168 registers,
with which more programs run at once, and spills what a program needs once.
"""
OTHERS = 32
IN_LOOPS = 0
"""Loads and stores of spilled registers inside of loops, where they are paid for over and over."""
KERNELS, SECONDS = 13, 60
"""Kernels of an arm, and seconds that they take to compile."""
RATIOS = {"finish": 1.4}
"""Bytes counted over needed; ALMOST_ONE of other kernels. Gradients of scores, a tenth of what
`finish` needs, are read for each of its tiles, which lie beside each other, so mostly from a cache.
"""
ALMOST_ONE = 1.1


def passed(document: dict[str, Any]) -> list[str]:
    """The bounds that are passed, in words."""
    found = [
        "{kernel} sm_{target} {arm}: spills {spills}, {in_loops} in loops, shares {shared}".format(
            **one
        )
        for one in document["kernels"]
        if max(one["spills"]) > SPILLS.get(one["kernel"], OTHERS)
        or one["in_loops"] > IN_LOOPS
        or one["shared"] > SHARED
    ]
    found += [
        "sm_{target} {arm}: {kernels} kernels, {seconds} s".format(**one)
        for one in document["arms"]
        if one["kernels"] > KERNELS or one["seconds"] > SECONDS
    ]
    found += [
        "{kernel} sm_{target} {width} heads={heads}: {ratio} of its bytes".format(**one)
        for one in document["bytes"]
        if one["ratio"] > RATIOS.get(one["kernel"], ALMOST_ONE)
    ]
    return found


def tables(document: dict[str, Any]) -> str:
    """Markdown: the worst of each kernel by width and target; megabytes; arms."""
    targets = sorted({one["target"] for one in document["arms"]})
    places = sorted({(one["kernel"], one["width"]) for one in document["kernels"]})
    compiled_to, moved, costs = [], [], []
    for place in places:
        here = [one for one in document["kernels"] if (one["kernel"], one["width"]) == place]
        cells = []
        for target in targets:
            found = [one for one in here if one["target"] == target]
            names = "registers", "spills", "in_loops", "shared"
            registers, spills, in_loops, shared = (max(one[n] for one in found) for n in names)
            cells.append(f"{registers}; {max(spills)}; {in_loops}; {shared:,}")
        compiled_to.append((*place, *cells))
        here = [one for one in document["bytes"] if (one["kernel"], one["width"]) == place]
        cells = [_megabytes([one for one in here if one["heads"] == heads]) for heads in (1, 8)]
        moved.append((*place, *cells))
    for arm in dict.fromkeys(one["arm"] for one in document["arms"]):
        here = [one for one in document["arms"] if one["arm"] == arm]
        costs.append((arm, *("{kernels}; {seconds}".format(**one) for one in here)))
    names = [f"sm_{target}" for target in targets]
    return "\n\n".join(
        (
            _table(("registers; spills; in loops; shared", "width", *names), compiled_to),
            _table(("MB loaded + stored of needed", "width", "1 head", "8 heads"), moved),
            _table(("kernels; seconds", *names), costs),
        )
    )


def _megabytes(found: list[dict[str, Any]]) -> str:
    """Of one kernel for all targets, the worst where they differ."""
    worst = max(found, key=lambda one: one["ratio"])
    loads, stores, needed = (round(worst[name] / 1e6) for name in ("loads", "stores", "needed"))
    return f"{loads:,} + {stores:,} of {needed:,}: {worst['ratio']:.3f}"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
