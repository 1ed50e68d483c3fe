"""Changes of code of which a release says that they kept every number: both codes are run."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from attnres_cli.nn import code
from attnres_cli.nn.code import KEPT, Kept

ROOT = Path(__file__).parents[2]
DESIGNS = ("standard", "attnres:block_size=2", "attnres:heads=2", "denseformer", "hc")
DIGEST = """
import sys
from attnres_cli.nn import code
from attnres_cli.nn.residual import registry
part = sys.argv[1]
designs = {code.of_design(cls) for cls in registry().values()}
print(*(designs if part == "design" else {code.of_parts()[part]}))
"""


class Package:
    """The package as some folder has it, put together to be imported from there."""

    def __init__(self, source: Path, made: Path) -> None:
        self.folder = made
        made.mkdir()
        names = {"attnres_cli": "attnres_cli", "variants": "attnres_variants"}
        for name, installed in (names | {"recipes": "attnres_recipes"}).items():
            shutil.copytree(source / name, made / installed)

    def run(self, *arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def digests(self, part: str) -> set[str]:
        """Of that part, of every design where it is `design`."""
        return set(self.run("-c", DIGEST, part).split())

    def numbers(self) -> tuple[list[object], dict[str, bytes]]:
        """Curves and final weights of some designs that are trained with it."""
        typed = [
            "ablate",
            *DESIGNS,
            "--recipe",
            "smoke",
            "--set",
            "train.tokens=8k",
            "--seeds",
            "1",
        ]
        self.run("-m", "attnres_cli", *typed, "--workers", "1", "--study", "s.db")
        with closing(sqlite3.connect(self.folder / "s.db")) as study:
            losses = study.execute("SELECT id, variant, val_loss FROM attnres_runs").fetchall()
            curves = study.execute("SELECT * FROM attnres_curve ORDER BY run_id, step").fetchall()
        weights = {
            path.parent.name.partition("-")[0]: path.read_bytes()
            for path in self.folder.glob("s.runs/*/weights*.safetensors")
        }
        assert len(losses) == len(weights) == len(DESIGNS)
        return [losses, curves], weights


def at_commit(commit: str, folder: Path) -> Path:
    """The files of a commit, where there is the history that has it."""
    if not (ROOT / ".git").exists():
        pytest.skip("the proof needs the history of the repository: this is no checkout")
    command = ["git", "-C", str(ROOT), "archive", commit, "attnres_cli", "variants", "recipes"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        pytest.skip(f"the proof needs commit {commit}, which this checkout does not have")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def prove(kept: Kept, before: Path, now: Path, folder: Path) -> None:
    """Fail unless these sources are of the entry's codes, and train the same, bit for bit."""
    old, new = Package(before, folder / "old"), Package(now, folder / "new")
    assert kept.before in old.digests(kept.part)
    assert kept.now in new.digests(kept.part)
    equal = old.numbers() == new.numbers()
    # pytest would explain where two megabytes differ, under CI without an end
    assert equal, "other numbers"


@pytest.mark.slow
@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept.part} {kept.before}")
def test_code_that_is_said_to_keep_the_numbers_keeps_every_bit(kept: Kept, tmp_path: Path):
    later = [each.commit for each in KEPT if (each.part, each.before) == (kept.part, kept.now)]
    now = at_commit(later[0], tmp_path / "later") if later else ROOT
    prove(kept, at_commit(kept.commit, tmp_path / "commit"), now, tmp_path)


def test_no_code_is_said_to_follow_two_others_or_itself():
    assert len({(kept.part, kept.now) for kept in KEPT}) == len(KEPT)
    assert len({(kept.part, kept.before) for kept in KEPT}) == len(KEPT)
    assert all(len(kept.commit) == 40 and kept.before != kept.now for kept in KEPT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [("targets", "wanted", True), ("0.02", "0.021", False)],
    ids=["a rename", "another scale of initial weights"],
)
def test_the_proof_tells_a_rename_from_a_change(
    old: str, new: str, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = {"targets": "loss.py", "0.02": "model.py"}[old]
    edited = tmp_path / "edited"
    for name in ("attnres_cli", "variants", "recipes"):
        shutil.copytree(ROOT / name, edited / name)
    text = (edited / "attnres_cli" / "nn" / file).read_text()
    assert old in text
    (edited / "attnres_cli" / "nn" / file).write_text(text.replace(old, new))
    before = code.of_parts()["trunk"]
    monkeypatch.setattr(code, "_PACKAGE", edited / "attnres_cli")
    now = code.of_parts.__wrapped__()["trunk"]
    kept = Kept("trunk", before, now, "")

    if keeps:
        prove(kept, ROOT, edited, tmp_path)
    else:
        with pytest.raises(AssertionError, match="other numbers"):
            prove(kept, ROOT, edited, tmp_path)
    assert before != now
