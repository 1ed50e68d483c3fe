"""Numbers as words of a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from attnres_cli.config.recipe import Recipe

if TYPE_CHECKING:
    from attnres_cli.records.plan import Plan


def plural(n: object, word: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{n} {word}{'' if str(n) == '1' else 's'}"


def between(numbers: Collection[int]) -> str:
    """`1,024`, or `1,024 to 2,048` of several."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def spans(numbers: Sequence[int]) -> str:
    """Sorted numbers in words: `0 to 4, 6, 9 to 11`."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1][1:] = [each]
        else:
            runs.append([each])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def number(value: float | None) -> str:
    """A loss, to four decimals; `-` for None."""
    return "-" if value is None else f"{value:.4f}"


def interval(value: float, ends: tuple[float, float] | None, form: str) -> str:
    """`1.253 [1.101, 1.402]`, each number in this form; without ends the value alone."""
    text = f"{value:{form}}"
    return text if ends is None else f"{text} [{ends[0]:{form}}, {ends[1]:{form}}]"


def outward(value: float, ends: tuple[float, float] | None, digits: int) -> str:
    """`1.253 [1.101, 1.403]`, the ends rounded outward, so that they are never one number; `inf`
    from a million up.
    """

    def shown(number: float, whole: Callable[[float], int]) -> str:
        scale = 10**digits
        return "inf" if number >= 1e6 else f"{whole(number * scale) / scale:.{digits}f}"

    text = shown(value, round)
    if ends is None:
        return text
    return f"{text} [{shown(ends[0], math.floor)}, {shown(ends[1], math.ceil)}]"


def duration(seconds: float) -> str:
    """75 -> `1 min 15 s`; 7320 -> `2 h 2 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def multiple(value: float) -> str:
    """Of compute: `1.05x`, `over 100x`."""
    return f"{value:.2f}x" if value < 100 else "over 100x"


def megabytes(n_bytes: int) -> str:
    """20 MB, 1.3 GB; never 0."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{max(1, round(n_bytes / 1e6))} MB"


def computing(plan: Plan) -> str:
    """How the runs of a plan are computed: `2 workers, each cpu fp32 eager, 1 thread, ...`."""
    settings, hands = plan.settings, plural(len(plan.devices), "worker")
    how = f"{settings.numerics}, {settings.device_name}, depth mixing by {settings.engine}"
    return f"{hands}, each {how}" if len(plan.devices) > 1 else f"{hands}, {how}"


def params(n_params: int, recipe: Recipe) -> str:
    """Parameters of a model, and how many of them a token uses where those are not all."""
    active = recipe.model.active(n_params)
    return f"{n_params:,}" + (f" ({active:,} active)" if active < n_params else "")
