"""How much better than the chosen setting the best may be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnres_cli.stats.regret import regret

LEVELS = np.array([0.0, 0.1, -0.1, 0.05])  # of seeds, which all settings share
LINE = np.log([1.0, 2.0, 4.0, 8.0, 16.0])


def losses(*means: float, noise: float = 0.0) -> np.ndarray:
    drawn = np.random.default_rng(0).standard_normal((len(means), 4))
    return np.array(means)[:, None] + LEVELS + noise * drawn


def test_without_noise_it_is_the_distance_to_the_vertex_whatever_the_seeds_levels():
    bowl = 0.1 * (LINE - LINE[2] - 0.2) ** 2
    assert regret(losses(*bowl), 2, LINE) == pytest.approx(0.1 * 0.2**2)
    assert regret(losses(*bowl), 1, LINE) == pytest.approx(bowl[1] - bowl[2])
    assert regret(losses(*bowl), 2, LINE, LINE[2] + 0.2) == pytest.approx(0.0, abs=1e-12)
    assert regret(losses(*bowl), 2, LINE, LINE[2] - 0.1) == pytest.approx(0.1 * 0.3**2)
    assert regret(losses(1.0, 0.5, 2.0), 1) == 0.0


def test_at_an_end_only_what_was_tried_counts():
    assert regret(losses(1.0, 1.1, 1.3), 0, LINE[:3]) == 0.0
    assert regret(losses(1.1, 1.0, 1.3), 0, LINE[:3]) == pytest.approx(0.1)


def test_it_is_what_is_not_exceeded_in_four_of_five_cases():
    found = losses(1.0, 1.01, 1.02, 1.2, noise=0.02)
    rest = found - found.mean(1, keepdims=True) - found.mean(0) + found.mean()
    error = math.sqrt((rest**2).sum() / 9 / 4)
    drawn = found.mean(1) + error * np.random.default_rng(1).standard_normal((400_000, 4))

    simulated = np.quantile(drawn[:, 0] - drawn.min(1), 0.8)
    assert regret(found, 0) == pytest.approx(simulated, rel=0.05)
    assert regret(found, 3) > regret(found, 2) > regret(found, 0) > 0


def test_nothing_beside_it_or_one_seed_tell_nothing():
    assert regret(losses(1.0), 0) == math.inf
    assert regret(losses(1.0, 2.0)[:, :1], 0) == math.inf
