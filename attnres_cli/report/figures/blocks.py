"""Loss against block size (paper, Fig. 6): designs that differ in `block_size` alone, as points;
the design without blocks, and the baseline, as lines.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from attnres_cli.report.figures.style import canvas, legend, short, styles
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.comparison import ArmResult

CAPTION = "Points and lines: mean over seeds; bars: one standard deviation to each side."
_OPTION = "block_size="

Family = dict[int, ArmResult]
"""Arms by block size."""


def draw(chapter: Chapter) -> Figure | None:
    """Loss over block size; None where no design comes in two sizes of block."""
    comparison = chapter.comparison
    arms = [arm for arm in comparison.arms if arm.mean == arm.mean]  # nan: diverged
    families = {name: sizes for name, sizes in families_of(arms).items() if len(sizes) > 1}
    if not families:
        return None
    figure, (axes,) = canvas(3.2)
    look = styles([arm.variant for arm in comparison.arms], comparison.baseline)
    for arm in arms:
        if arm.variant in families or arm.variant == comparison.baseline:
            style = look[arm.variant]
            label = f"{short(arm.variant)} ({'baseline' if arm.verdict == 'baseline' else 'Full'})"
            axes.axhline(arm.mean, color=style.colour, ls="--", lw=1.4, label=label)
    for name, sizes in families.items():
        style, label = look[sizes[min(sizes)].variant], f"{short(name)}, by block size"
        x = sorted(sizes)
        y, bars = [sizes[size].mean for size in x], [sizes[size].sd or 0.0 for size in x]
        axes.errorbar(x, y, yerr=bars, fmt="o-", color=style.colour, label=label, lw=1.4, capsize=3)
    every = sorted({size for sizes in families.values() for size in sizes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(size) for size in every])
    axes.minorticks_off()
    axes.set_xlabel("block size (sublayers)")
    axes.set_ylabel("validation loss (nats/token)")
    legend(figure, axes)
    return figure


def families_of(arms: list[ArmResult]) -> dict[str, Family]:
    """Arms with a block size, by the name they have without it."""
    found: dict[str, Family] = {}
    for arm in arms:
        name, _, rest = arm.variant.partition(":")
        options = rest.split(",")
        sizes = [part for part in options if part.startswith(_OPTION)]
        if sizes:
            kept = ",".join(part for part in options if part not in sizes)
            family = found.setdefault(f"{name}:{kept}" if kept else name, {})
            family[int(sizes[0].removeprefix(_OPTION))] = arm
    return found
