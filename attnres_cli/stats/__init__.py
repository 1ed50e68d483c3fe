"""Statistics of a comparison: arrays in, values out. No torch, no SQL.

pairs: is an arm better than the baseline; power: could this study have seen it, and how many seeds
would; seeds: the same before arms are trained; scaling: how much compute an arm is worth; optima:
which shape may be best, and whether two designs share theirs; curves: the rest.
"""

from attnres_cli.stats.curves import parabola_vertex
from attnres_cli.stats.optima import (
    COMMON,
    CommonBest,
    above_zero,
    common_best,
    likeliest_common,
    may_be_best,
    mean_interval,
)
from attnres_cli.stats.pairs import (
    ALPHA,
    CONFIDENCE,
    Difference,
    Word,
    bca,
    holm,
    judged,
    mean_sd,
    paired,
    sign_flip,
    word,
)
from attnres_cli.stats.power import (
    POWER,
    Noise,
    detectable,
    noise,
    power,
    sd_interval,
    seeds_needed,
)
from attnres_cli.stats.scaling import (
    Multiplier,
    PowerLaw,
    adjusted,
    fit,
    fit_floor,
    multiplier,
    multiplier_of,
)
from attnres_cli.stats.seeds import ASSUMED, SEEDS, Pairing, assumed, measured, seconds

__all__ = [
    "ALPHA",
    "ASSUMED",
    "COMMON",
    "CONFIDENCE",
    "POWER",
    "SEEDS",
    "CommonBest",
    "Difference",
    "Multiplier",
    "Noise",
    "Pairing",
    "PowerLaw",
    "Word",
    "above_zero",
    "adjusted",
    "assumed",
    "bca",
    "common_best",
    "detectable",
    "fit",
    "fit_floor",
    "holm",
    "judged",
    "likeliest_common",
    "may_be_best",
    "mean_interval",
    "mean_sd",
    "measured",
    "multiplier",
    "multiplier_of",
    "noise",
    "paired",
    "parabola_vertex",
    "power",
    "sd_interval",
    "seconds",
    "seeds_needed",
    "sign_flip",
    "word",
]
