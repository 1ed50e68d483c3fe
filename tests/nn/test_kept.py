"""Releases say that some changes of code kept every number. Here both codes train and agree."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from attnres_cli.nn.code import KEPT, Kept

ROOT = Path(__file__).parents[2]
DESIGNS = (
    "standard", "attnres:block_size=2", "attnres:heads=2", "denseformer", "hc", "x0", "unet",
    "layerscale", "delta", "mhc",
)  # fmt: skip
NEWEST = ("standard", "mudd", "attnres+vres", "mudd:layers=2,window=2+resv")
WITH_VALUES = (
    *NEWEST, "vres", "dca", "delta:ways=qkv", "vres:weights=sum+unet+x0:init=neutral",
)  # fmt: skip
THAT_SAY_HOW_RATES_FALL = (
    "standard", "attnres", "dca", "delta", "denseformer", "frac", "gtrxl", "hc", "highway",
    "laurel", "mhc", "mudd", "scaled", "attnres+vres", "mudd:layers=2,window=2+resv",
)  # fmt: skip
OF_ONE_NAME = (
    "standard", "attnres", "dca", "delta", "dlcl", "mhc", "mixln", "mudd", "resv", "attnres+resv",
    "mudd:layers=2,window=2+resv",
)  # fmt: skip
NEWER = {
    "548715b30eb67e95b41ee0246d46cd62d3d7547a": NEWEST,
    "44ddcb69de8990630f0713d065b80af3990dc46a": WITH_VALUES,
    "5102aab06172cfc2abce7038eb3eb653ec1cda2e": THAT_SAY_HOW_RATES_FALL,
    "2ff076740a3af03323632abb9761fa36af52e394": OF_ONE_NAME,
    "cdd4f0e1d1b99faa457d110ac4bbe164974cd63d": OF_ONE_NAME,
}
"""By the first commit that has them; the others train at all commits."""

PROGRAM = """
import sys
from attnres_cli.cli.app import main
from attnres_cli.nn import code
from attnres_cli.nn.residual import registry
from attnres_cli.nn.variant import parse
names = [name for name in sys.argv if "+" in name]
designs = [code.of_design(cls) for cls in registry().values()]
designs += [code.of_design(*parse(name).classes) for name in names]
pairs = [*code.of_parts().items(), *(("design", digest) for digest in designs)]
print(*(f"{part}:{digest}" for part, digest in pairs))
main()
"""


class Trained(NamedTuple):
    """Digests of all code, as `design:0123`, the curves and final weights of some designs."""

    digests: set[str]
    curves: list[object]
    weights: dict[str, bytes]


def trained(source: Path, folder: Path, designs: Sequence[str]) -> Trained:
    """Train these designs with the package that lies in a folder of sources."""
    folder.mkdir()
    names = {"attnres_cli": "attnres_cli", "variants": "attnres_variants"}
    for name, installed in (names | {"recipes": "attnres_recipes"}).items():
        shutil.copytree(source / name, folder / installed)
    recipe = folder / "attnres_recipes" / "smoke.yaml"  # of the first edition, as older code has it
    recipe.write_text(recipe.read_text().replace("  edition: 2", "  edition: null"))
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    options = ["--recipe", "smoke", "--set", "train.tokens=8k", "--seeds", "1", "--workers", "1"]
    command = [sys.executable, "-c", PROGRAM, "ablate", *designs, *options, "--study", "s.db"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(folder / "s.db")) as study:
        losses = study.execute("SELECT id, val_loss FROM attnres_runs").fetchall()
        curves = study.execute("SELECT * FROM attnres_curve ORDER BY run_id, step").fetchall()
    weights = {
        path.parent.name.partition("-")[0]: path.read_bytes()
        for path in folder.glob("s.runs/*/weights*.safetensors")
    }
    assert len(losses) == len(weights) == len(designs)
    return Trained(set(done.stdout.partition("\n")[0].split()), [losses, curves], weights)


def at_commit(commit: str, folder: Path) -> Path:
    """The files of a commit, or skip the test if there is no history that has it."""
    if not (ROOT / ".git").exists():
        pytest.skip("the proof needs the history of the repository: this is no checkout")
    command = ["git", "-C", str(ROOT), "archive", commit, "attnres_cli", "variants", "recipes"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        pytest.skip(f"the proof needs commit {commit}, which this checkout does not have")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def changes() -> dict[tuple[str, str], list[Kept]]:
    """By the commits of the code before and after, empty for that of now: what was changed."""
    found: dict[tuple[str, str], list[Kept]] = {}
    for kept in KEPT:
        later = [each.commit for each in KEPT if (each.part, each.before) == (kept.part, kept.now)]
        found.setdefault((kept.commit, *(later or [""])), []).append(kept)
    return found


def tier(change: tuple[tuple[str, str], list[Kept]]) -> ParameterSet:
    """A change; all but the newest are between codes that were proven when they came: nightly."""
    (commit, _), _ = change
    mark = pytest.mark.slow if commit == KEPT[-1].commit else pytest.mark.nightly
    return pytest.param(change, marks=mark, id=commit[:7])


@pytest.mark.parametrize("change", [tier(change) for change in changes().items()])
def test_code_that_claims_to_keep_the_numbers_keeps_every_bit(change, tmp_path: Path):
    (commit, later), every = change
    now = at_commit(later, tmp_path / "later") if later else ROOT
    designs, before = NEWER.get(commit, DESIGNS), at_commit(commit, tmp_path / "commit")
    old = trained(before, tmp_path / "old", designs)
    new = trained(now, tmp_path / "new", designs)

    assert {f"{kept.part}:{kept.before}" for kept in every} <= old.digests
    assert {f"{kept.part}:{kept.now}" for kept in every} <= new.digests
    equal = old[1:] == new[1:]
    # pytest would explain where two megabytes differ, under CI without an end
    assert equal, "other numbers"


def test_no_code_follows_two_others_or_itself():
    assert len({(kept.part, kept.now) for kept in KEPT}) == len(KEPT)
    assert len({(kept.part, kept.before) for kept in KEPT}) == len(KEPT)
    assert all(len(kept.commit) == 40 and kept.before != kept.now for kept in KEPT)
