"""What was measured inside a run's model, in the width of a terminal and without colour."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnres_cli.records.run import Numbers, Probe
from attnres_cli.report.designs import shades_of

_MOST_COLUMNS = 74
_BAR = 4
_LEGEND = (
    "reads, writes, grad: rms, over tokens and width, of inputs, of outputs, and of\n"
    "the gradient that comes back to these; newest, embed: weight of the newest\n"
    "source and of the embedding's; entropy: of the weights, in nats; share: of an\n"
    "output in what the output norm reads\n"
)
_EIGHTHS = ("", *"▏▎▍▌▋▊▉")


def print_probes(out: Console, probes: Sequence[Probe]) -> None:
    """How the model changed over training, what each sublayer did at the end, and M there."""
    if not probes:
        return
    last = probes[-1]
    if len(probes) > 1:
        out.print(_over_training(probes))
    out.print(_inside(last))
    out.print(Text(_LEGEND))
    if last.mixing is None:
        out.print(Text(f"depth mixing: no table, {last.no_mixing}"))
        return
    if len(last.mixing) > _MOST_COLUMNS:
        out.print(Text(f"depth mixing: {len(last.mixing)} sites; --format json has M"))
        return
    out.print(
        Text(
            f"mean depth mixing M after step {last.step}: a row per site (the last is the\n"
            "output's), a column per output (the first is the embedding); the darker, the\n"
            "larger in its row"
        )
    )
    for l, row in enumerate(last.mixing, 1):
        out.print(Text(f"{l:4d} {_marks(row)}".rstrip()))


def _over_training(probes: Sequence[Probe]) -> Table:
    table = _table("inside the model (means over all sites but the first)")
    for name in ("step", "largest output", "gradients", "newest", "embed", "entropy"):
        table.add_column(name, justify="right")
    for probe in probes:
        outputs, gradients = probe.output_rms[1:], probe.gradient_rms[1:]
        largest = max(range(len(outputs)), key=outputs.__getitem__)
        table.add_row(
            str(probe.step),
            f"{_number(outputs[largest])} of {_name(largest + 1, len(outputs))}",
            f"{_number(min(gradients))} to {_number(max(gradients))}",
            *(_mean(each) for each in (probe.newest_share, probe.embedding_share, probe.entropy)),
        )
    return table


def _inside(probe: Probe) -> Table:
    """A row for the embedding, for each sublayer and for the output site."""
    table = _table(f"inside the model after step {probe.step}")
    columns = ("sublayer", "reads", "newest", "embed", "entropy", "writes", "", "grad", "")
    for name in (*columns, "share"):
        left = name in ("sublayer", "")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    sites = len(probe.output_rms)
    outputs, gradients = _bars(probe.output_rms), _bars(probe.gradient_rms)
    for i in range(sites + 1):
        read = [""] * 4
        if i > 0:
            read = [_at(probe.input_rms, i - 1)] + [
                _share(each, i - 1)
                for each in (probe.newest_share, probe.embedding_share, probe.entropy)
            ]
        written = [""] * 5
        if i < sites:
            written = [_at(probe.output_rms, i), outputs[i], _at(probe.gradient_rms, i)]
            written += [gradients[i], _percent(probe.contribution, i)]
        table.add_row(_name(i, sites - 1), *read, *written)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _name(i: int, n_sublayers: int) -> str:
    if i in (0, n_sublayers + 1):
        return "embedding" if i == 0 else "output"
    return f"{i} {'attn' if i % 2 else 'mlp'}"


def _at(numbers: Numbers | None, i: int) -> str:
    return "-" if numbers is None else _number(numbers[i])


def _share(numbers: Numbers | None, i: int) -> str:
    return "-" if numbers is None else f"{numbers[i]:.2f}"


def _percent(numbers: Numbers | None, i: int) -> str:
    return "-" if numbers is None else f"{numbers[i]:.1%}"


def _number(x: float) -> str:
    """Two or three digits, in six places."""
    if x == 0 or 0.1 <= abs(x) < 1000:
        return f"{x:.2f}"
    if 0.001 <= abs(x) < 0.1 or not math.isfinite(x):
        return f"{x:.2g}"
    return f"{x:.1e}".replace("e-0", "e-").replace("e+0", "e")


def _mean(numbers: Numbers | None) -> str:
    """Over the sites that have a choice."""
    return "-" if numbers is None else _number(sum(numbers[1:]) / len(numbers[1:]))


def _bars(numbers: Numbers) -> list[str]:
    """As long as the numbers are large, the largest one whole."""
    largest = max((x for x in numbers if x < float("inf")), default=0.0)
    eighths = [8 * _BAR * x / largest if 0 < x <= largest else 0 for x in numbers]
    return ["█" * (round(n) // 8) + _EIGHTHS[round(n) % 8] for n in eighths]


def _marks(row: Numbers) -> str:
    """Two marks per output where there is room."""
    wide = 1 if len(row) > _MOST_COLUMNS // 2 else 2
    return "".join(shade * wide for shade in shades_of(row))
