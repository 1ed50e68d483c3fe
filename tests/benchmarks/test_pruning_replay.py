"""The replay of pruning over a search that has been, as a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from untrained import SPECS, Bench, deep_is_good

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "pruning.py"


def test_a_finished_search_is_shown_to_both_pruners_again(tmp_path: Path):
    bench = Bench(str(tmp_path / "attnres.db"), n_trials=9)
    bench.run(deep_is_good)
    bench.close()

    done = subprocess.run(
        [sys.executable, str(SCRIPT), "attnres.db"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip

    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "%" in line]
    assert [tuple(row[:2]) for row in rows] == [
        (k, s) for k in ("median", "hyperband") for s in SPECS
    ]
    for _, _, trials, taken, ended, best, apart in rows:
        assert int(trials) == 9
        assert 0 < int(ended) < 9
        assert 10 <= int(taken.rstrip("%")) < 100
        assert best.endswith(" of 5")
        assert float(apart) >= 0
