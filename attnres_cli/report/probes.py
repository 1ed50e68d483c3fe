"""What was measured inside a run's model, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from attnres_cli.records.run import Numbers, Probe
from attnres_cli.report.table import Table, columns

_OVER_TRAINING = ("step", "largest output", "gradients", "newest", "embed", "entropy")
_INSIDE = ("reads", "newest", "embed", "entropy", "writes", "grad", "share")
_LEGEND = (
    "reads, writes, grad: rms, over tokens and width, of inputs, of outputs, and of the gradient "
    "that comes back to these; newest, embed: weight of the newest source and of the embedding's; "
    "entropy: of the weights, in nats; share: of an output in what the output norm reads"
)
_LOAD = "load: tokens of the expert that has most of them, as times the mean of a layer's experts"


def probe_tables(probes: Sequence[Probe]) -> tuple[list[Table], list[str]]:
    """How the model changed over training and what each sublayer did at the end; with notes."""
    if not probes:
        return [], []
    last, tables = probes[-1], []
    load = ["load"] if last.imbalance else []
    if len(probes) > 1:
        title = "inside the model (means over all sites but the first)"
        rows = [_means(probe) for probe in probes]
        tables.append(Table(title, columns(*_OVER_TRAINING, *load), rows))
    heads = columns("sublayer:word", *_INSIDE, *load)
    tables.append(Table(f"inside the model after step {last.step}", heads, _sublayers(last)))
    mixing = (
        f"depth mixing: no table, {last.no_mixing}"
        if last.mixing is None
        else "mean depth mixing M: `attnres report --figures DIR` draws it, --format json has it"
    )
    return tables, [_LEGEND, *([_LOAD] if load else []), *_moved(last), mixing]


def _moved(probe: Probe) -> list[str]:
    if not (probe.moved and probe.agreement):
        return []
    shares = zip(probe.added.split(", "), probe.moved, probe.agreement, strict=True)
    told = [f"{name} {share:.1%} ({agreement:.2f})" for name, share, agreement in shares]
    return [
        "what the design adds has moved, as a share of the way that its learning rate allows (and "
        f"how far its last steps agreed in sign, 1: all): {', '.join(told)}"
    ]


def _means(probe: Probe) -> list[str]:
    outputs, gradients = probe.output_rms[1:], probe.gradient_rms[1:]
    shares = (probe.newest_share, probe.embedding_share, probe.entropy)
    return [
        str(probe.step),
        _largest(outputs),
        f"{_number(min(gradients))} to {_number(max(gradients))}",
        *("-" if each is None else _number(fmean(each[1:])) for each in shares),
        *([_largest(probe.imbalance[1:])] if probe.imbalance else []),
    ]


def _largest(of: Numbers) -> str:
    """The largest number of the sublayers', and whose it is."""
    most = max(range(len(of)), key=of.__getitem__)
    return f"{_number(of[most])} of {_name(most + 1, len(of))}"


def _sublayers(probe: Probe) -> list[list[str]]:
    """A row for the embedding, for each sublayer and for the output site."""
    rows, n = [], len(probe.output_rms)
    shares = (probe.newest_share, probe.embedding_share, probe.entropy)
    for i in range(n + 1):
        read, written = [""] * 4, [""] * 3
        if i > 0:
            read = ["-" if probe.input_rms is None else _number(probe.input_rms[i - 1])]
            read += ["-" if each is None else f"{each[i - 1]:.2f}" for each in shares]
        if i < n:
            share = probe.contribution
            written = [_number(probe.output_rms[i]), _number(probe.gradient_rms[i])]
            written += ["-" if share is None else f"{share[i]:.1%}"]
        if probe.imbalance:
            load = probe.imbalance[i] if i < n else 0
            written += [_number(load) if load else ""]
        rows.append([_name(i, n - 1), *read, *written])
    return rows


def _name(i: int, n_sublayers: int) -> str:
    if i in (0, n_sublayers + 1):
        return "embedding" if i == 0 else "output"
    return f"{i} {'attn' if i % 2 else 'mlp'}"


def _number(x: float) -> str:
    """Two or three digits, in six places."""
    if x == 0 or 0.1 <= abs(x) < 1000:
        return f"{x:.2f}"
    if 0.001 <= abs(x) < 0.1 or not math.isfinite(x):
        return f"{x:.2g}"
    return f"{x:.1e}".replace("e-0", "e-").replace("e+0", "e")
