"""Whether what a design adds was still on its way when training ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from attnres_cli.records.run import Probe

FIELDS = ("added", "moved", "agreement")
"""Of a probe, what this asks for."""

FAR = 1.5
"""Times the distance of a random walk from which numbers count as still moving: nothing has held
them yet. docs/fair-terms.md has the calibration.
"""

_WALK = 0.9
"""Mean distance that steps of random sign cover, times the root of their number, as a share of the
same steps all in one direction; of the schedules that recipes have, 0.85 to 0.94.
"""


def still_moving(probes: Sequence[Probe]) -> dict[str, float]:
    """By parameter, how far it moved on average over these last probes of runs, as a share of what
    its learning rate allows in one direction, where that is far.
    """
    names = probes[0].added.split(", ") if probes and probes[0].added else []
    alike = [probe for probe in probes if probe.moved and len(probe.moved) == len(names)]
    if not alike:
        return {}
    far = FAR * _WALK / math.sqrt(max(1, max(probe.step for probe in alike)))
    means = zip(*(probe.moved for probe in alike if probe.moved), strict=True)
    found = {name: fmean(shares) for name, shares in zip(names, means, strict=True)}
    return {name: share for name, share in found.items() if share >= far}
