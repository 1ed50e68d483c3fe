"""The second objective of a search in words and cells, where it has one."""

from __future__ import annotations

from collections.abc import Sequence

from attnres_cli.records.search_records import Search
from attnres_cli.verdict.shape_results import Optimum, Shape, front

_UNITS = {"step_time": "ms", "memory": "MB"}  # of what is measured on a device


def second(search: Search) -> str:
    """Its name; empty where the loss is the only objective."""
    return (*search.objectives, "")[1]


def both(search: Search) -> str:
    """`val_loss and step_time`."""
    return " and ".join(search.objectives)


def cells(one: Optimum, search: Search) -> list[dict[str, str]]:
    """For each listed shape its second objective and whether it is on the front; {} without one."""
    name, kept = second(search), {trial.number for trial in front(one)}
    if not name:
        return [{} for _ in one.listed]
    unit = f" ({_UNITS[name]})" if name in _UNITS else ""
    return [
        {
            f"goal: {name}{unit}": _text(name, shape.trial.values[1]),
            "front": "yes" if shape.trial.number in kept else "no",
        }
        for shape in one.listed
    ]


def _text(name: str, value: float) -> str:
    if name == "step_time":
        return f"{1e3 * value:.2f}"
    if name == "memory":
        return f"{value / 1e6:,.1f}"
    return f"{value:.4e}" if name == "flops" else f"{value:,.0f}"


def notes(search: Search, optima: Sequence[Optimum]) -> list[str]:
    """What it has to do with the verdict, and what the front is of."""
    name, shapes = second(search), [shape for one in optima for shape in one.shapes]
    if not name:
        return []
    where = f" on {_devices(shapes)}" if shapes and name in _UNITS else ""
    busy = "step times are of trials at different hours and loads: `attnres bench` times in turn"
    return [
        f"the verdict is of val_loss alone: {name} is that of the first look{where}",
        f"front: by the first look (seed {search.first_seed} alone, so that lucky losses are on "
        f"it), no other shape of the variant is as low in both {both(search)} and lower in one",
        *([busy] if name == "step_time" else []),
    ]


def _devices(shapes: Sequence[Shape]) -> str:
    names = sorted({shape.settings.device_name for shape in shapes if shape.settings})
    text = " and ".join(names) or "a device that is not known"
    return text if len(names) < 2 else f"{text}, which cannot be compared"
