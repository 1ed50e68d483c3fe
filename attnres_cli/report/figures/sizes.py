"""Figures of a ladder: loss over compute with its laws (paper, Fig. 4), differences over sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator, ScalarFormatter

from attnres_cli.report.figures.style import LOSS, Look, canvas, legend, looks, short
from attnres_cli.verdict import labels
from attnres_cli.verdict.ladder import PFLOP_S_DAY, Ladder, Scaled, compute
from attnres_cli.verdict.numbers import between, outward, plural

_LONGEST = 34  # characters of a name that leave room for its multiplier
_FARTHEST = 5.0  # a multiplier whose arrow would leave little room for the rest
_TIMES = "\N{MULTIPLICATION SIGN}"
_NEAREST = 1.05  # one whose arrow would be no longer than its heads
_APART = 0.5  # of the room between two sizes that their arms take
GAINS = (
    "Mean over seeds of arm minus baseline, paired by seed; bars: the intervals of each size's "
    "verdict table, for its arms together. Below zero is better."
)


def draw_laws(found: Ladder) -> Figure:
    """Losses and fitted laws over training FLOPs, both on logarithmic axes."""
    baseline = found.rungs[0].comparison.baseline
    look = looks([arm.variant for arm in found.arms], baseline)
    figure, (axes,) = canvas(3.6)
    for arm in found.arms:
        _points(axes, found, arm.variant, look[arm.variant])
        _laws(axes, found, arm, look[arm.variant])
    _arrow(axes, found, look)
    sizes = [compute(rung.baseline) * PFLOP_S_DAY for rung in found.rungs]
    axes.set(xscale="log", yscale="log", xlabel="training FLOPs of a run", ylabel=LOSS)
    ticks = _apart(sizes)
    axes.set_xticks(ticks, [EngFormatter(sep="")(float(f"{tick:.2g}")) for tick in ticks])
    axes.margins(y=0.1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    legend(figure, axes)
    return figure


def laws_caption(found: Ladder) -> str:
    """What is drawn, and of what."""
    n, has_floor = len(found.rungs), found.arms[0].plain is not None
    form = "L = E + A C^-alpha, one E for all arms," if has_floor else "L = A C^-alpha"
    checked = ", here through two points, so that nothing checks it" if n == 2 else ""
    text = (
        f"Large points: mean over seeds; small ones: single seeds; lines: {form} by least squares "
        f"in logs of the means{checked}. "
    )
    text += "Dotted: the same without E. " if has_floor else ""
    if any(arm.worth for arm in found.arms):
        text += (
            f"Beside a name: how many times an arm's compute {found.rungs[0].comparison.baseline} "
            "takes to its loss at the largest size"
            f"{', with the 95 % interval over sizes' if n > 2 else ''}. "
        )
    return text.rstrip()


def about(found: Ladder) -> str:
    """What the numbers are of: recipe, sizes, terms, seeds, tokens, versions."""
    comparison = found.rungs[0].comparison
    label = f" [{found.registered}]" if found.registered else ""
    own = "".join(f", {part}" for part in labels.parts(found.terms))
    drawn = [rung.arm(arm.variant) for rung in found.rungs for arm in found.arms]
    seeds = plural(between([len(arm.losses) for arm in drawn if arm is not None]), "seed")
    tokens = between([rung.baseline.tokens for rung in found.rungs])
    versions = {text.split(",")[0] for rung in found.rungs for text in rung.comparison.versions}
    return (
        f"Recipe {comparison.recipe}, {len(found.rungs)} sizes{own}{label}; {seeds} per arm and "
        f"size; {tokens} tokens per run; {', '.join(sorted(versions))}."
    )


def _points(axes: Axes, found: Ladder, variant: str, look: Look) -> None:
    """Every seed of every size, and their means."""
    for rung in found.rungs:
        arm = rung.arm(variant)
        assert arm is not None
        at, losses = compute(arm) * PFLOP_S_DAY, list(arm.losses.values())
        axes.plot([at] * len(losses), losses, "o", ms=2.5, mfc="white", mec=look.colour, mew=0.7)
        axes.plot(at, rung.mean(arm), look.marker, ms=6, color=look.colour, zorder=4)


def _laws(axes: Axes, found: Ladder, arm: Scaled, look: Look) -> None:
    """The line of the law over the arm's sizes, and that of the law without a floor."""
    own = [rung.arm(arm.variant) for rung in found.rungs]
    sizes = [compute(each) for each in own if each is not None]
    label = short(arm.variant, _LONGEST)
    if arm.worth is not None:
        label += f"  {_TIMES}{outward(arm.worth.value, arm.worth.ci95, 2)}"
    assert arm.law is not None
    x = np.geomspace(min(sizes), max(sizes), 50)
    y = [arm.law.loss(at) for at in x]
    axes.plot(x * PFLOP_S_DAY, y, look.dashes, color=look.colour, lw=1.5, label=label)
    if arm.plain is not None:
        y = [arm.plain.loss(at) for at in x]
        axes.plot(x * PFLOP_S_DAY, y, ":", color=look.colour, lw=1.1)


def _arrow(axes: Axes, found: Ladder, looks: Mapping[str, Look]) -> None:
    """From the best arm's loss at the largest size to where the baseline's law has it."""
    base = found.arms[0]
    best = max(found.arms, key=lambda arm: arm.worth.value if arm.worth else 0.0)
    if best.worth is None or not _NEAREST <= best.worth.value <= _FARTHEST:
        return
    assert best.law is not None
    assert base.law is not None
    times, start = best.worth.value, best.worth.compute
    last, loss = compute(found.rungs[-1].baseline), best.law.loss(start)
    ends = np.array([last, start * times]) * PFLOP_S_DAY
    axes.plot(ends, [base.law.loss(last), loss], "--", color=looks[base.variant].colour, lw=1)
    colour = looks[best.variant].colour
    axes.annotate(
        "", xy=(ends[1], loss), xytext=(start * PFLOP_S_DAY, loss),
        arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.4, "shrinkA": 4, "shrinkB": 0},
    )  # fmt: skip
    axes.annotate(
        f"{times:.2f}{_TIMES}", xy=(ends[1], loss), xytext=(0, -4), textcoords="offset points",
        ha="right", va="top", color=colour, weight="bold",
    )  # fmt: skip


def _apart(sizes: Sequence[float]) -> list[float]:
    """Those of the sizes whose labels do not run into each other."""
    kept: list[float] = []
    room = 0.14 * np.log(sizes[-1] / sizes[0])
    for size in reversed(sizes):
        if not kept or np.log(kept[-1] / size) > room:
            kept.append(size)
    return kept[::-1]


def draw_gains(found: Ladder) -> Figure | None:
    """Paired differences over the sizes, side by side; None where no size has any."""
    baseline, *others = [arm.variant for arm in found.arms]
    look = looks([baseline, *others], baseline)
    every = [arm for rung in found.rungs for arm in rung.comparison.arms if arm.variant in look]
    if not any(arm.difference for arm in every):
        return None
    figure, (axes,) = canvas(3.0)
    for place, variant in enumerate(others):
        arms = enumerate(rung.arm(variant) for rung in found.rungs)
        shift = _APART * ((place + 0.5) / len(others) - 0.5)
        points = [
            (at + shift, arm.difference.mean, arm.interval)
            for at, arm in arms
            if arm is not None and arm.difference is not None
        ]
        if not points:
            continue
        colour, marker = look[variant].colour, look[variant].marker
        x, means, bars = zip(*points, strict=True)
        axes.plot(x, means, look[variant].dashes, color=colour, lw=0.8, alpha=0.6)
        axes.plot(x, means, marker, color=colour, ms=6, label=short(variant))
        for at, bar in zip(x, bars, strict=True):
            if bar is not None:
                axes.plot((at, at), bar, color=colour, lw=1.8, solid_capstyle="butt")
    axes.axhline(0, color=look[baseline].colour, lw=1, ls="--", zorder=1)
    axes.set_xticks(range(len(found.rungs)), [name.replace(" ", "\n") for name in found.size_names])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(visible=False, axis="x")
    axes.set(ylabel=f"loss minus that of {short(baseline)}\n(nats/token)")
    legend(figure, axes)
    return figure
