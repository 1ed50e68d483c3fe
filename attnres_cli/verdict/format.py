"""Numbers as words of a sentence."""

from __future__ import annotations


def plural(n: object, word: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{n} {word}{'' if n == 1 else 's'}"


def duration(seconds: float) -> str:
    """75 -> `1 min 15 s`; 7320 -> `2 h 2 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
