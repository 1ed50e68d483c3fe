"""Checkpoints as files: whole or not at all, and checked before they are believed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnres_cli.train.checkpoint import FORMAT, Checkpoints, clear

IDENTITY = {"recipe": "abcdef012345", "variant": "attnres", "torch": "2.9.0"}
STATE = {"curve": [[0, None, 5.5], [2, 0.1 + 0.2, float("inf")]], "times": [0.1]}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "study.runs" / "7", IDENTITY)


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, {"step": step}, {"step": torch.tensor(step)})


def loaded_step(checkpoints: Checkpoints) -> int | None:
    found = checkpoints.load()
    if found is None:
        return None
    state, tensors = found
    assert tensors["step"].item() == state["step"]
    return state["step"]


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(file.name for file in checkpoints.folder.iterdir())


def test_state_and_tensors_come_back_bit_for_bit_beside_a_note_in_plain_json(
    checkpoints: Checkpoints,
):
    tensors = {
        "weights": torch.randn(3, 4),
        "half": torch.randn(5).bfloat16(),
        "step": torch.tensor(7.0),
        "generator": torch.get_rng_state(),
    }
    assert checkpoints.load() is None
    assert not checkpoints.folder.exists()
    checkpoints.save(400, STATE, tensors)

    found = checkpoints.load()

    assert found is not None
    assert found[0] == STATE
    assert found[1].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[1][name].dtype == tensor.dtype
        assert torch.equal(found[1][name], tensor)
    note = json.loads((checkpoints.folder / "000000400.json").read_text())
    assert json.loads(note["body"])["identity"] == IDENTITY


def test_the_newest_two_are_kept(checkpoints: Checkpoints):
    save(checkpoints, 8, 9, 10)

    assert loaded_step(checkpoints) == 10
    kept = [f"{step:09}{suffix}" for step in (9, 10) for suffix in (".json", ".safetensors")]
    assert names(checkpoints) == kept


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("damage", ["cut", "empty", "a bit", "gone"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    checkpoints: Checkpoints, suffix: str, damage: str, capsys: pytest.CaptureFixture[str]
):
    save(checkpoints, 1, 2)
    file = checkpoints.folder / f"000000002{suffix}"
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes({"cut": content[:-9], "empty": b"", "a bit": content}[damage])

    assert loaded_step(checkpoints) == 1
    is_reported = "is damaged" in capsys.readouterr().err
    assert is_reported == ((suffix, damage) != (".json", "gone"))
    save(checkpoints, 2)
    assert loaded_step(checkpoints) == 2
    for file in checkpoints.folder.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    assert checkpoints.load() is None
    first, last = capsys.readouterr().err.splitlines()
    assert first.endswith("is not as it was written): the one before is tried")
    assert last.endswith("is not as it was written): the run starts again")


def test_a_checkpoint_that_cannot_be_read_just_now_stays(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stale(path: Path) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    save(checkpoints, 2)
    with monkeypatch.context() as patch:
        patch.setattr("attnres_cli.train.checkpoint.sha256", stale)
        assert checkpoints.load() is None
    assert "Stale file handle" in capsys.readouterr().err
    assert loaded_step(checkpoints) == 2


def test_a_run_made_differently_starts_again(
    checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
):
    save(checkpoints, 1, 2)
    newer = Checkpoints(checkpoints.folder, {**IDENTITY, "torch": "2.10.0"})

    assert newer.load() is None
    assert "made with another torch (2.9.0, now 2.10.0): the run starts" in capsys.readouterr().err
    assert not checkpoints.folder.exists()


def test_a_later_format_is_not_read(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with monkeypatch.context() as later:
        later.setattr("attnres_cli.train.checkpoint.FORMAT", FORMAT + 1)
        save(checkpoints, 1)

    assert checkpoints.load() is None
    assert f"format {FORMAT + 1}, this version reads {FORMAT}" in capsys.readouterr().err


def test_clearing_removes_the_run_and_leaves_others(checkpoints: Checkpoints):
    other = Checkpoints(checkpoints.folder.parent / "8", IDENTITY)
    save(checkpoints, 1)
    save(other, 1)

    clear(checkpoints.folder)
    assert names(other) == ["000000001.json", "000000001.safetensors"]
    assert not checkpoints.folder.exists()

    clear(other.folder)
    assert not other.folder.parent.exists()
    clear(other.folder)


MOMENTS = [  # a call of Path or os, the how manieth of the later two saves, the step then found
    ("fsync", 1, 1),
    ("replace", 1, 1),
    ("replace", 2, 1),  # before the note that makes it a checkpoint
    ("fsync", 3, 1),
    ("unlink", 2, 2),  # after that note
    ("fsync", 4, 2),
    ("fsync", 8, 3),
    ("unlink", 6, 3),
]
SAVE_AND_DIE = """
import json, os, pathlib, signal, sys, torch
from attnres_cli.train.checkpoint import Checkpoints

def save_and_die(folder, call, count):
    checkpoints = Checkpoints(pathlib.Path(folder), {"recipe": "a"})
    checkpoints.save(1, {"step": 1}, {"x": torch.ones(9)})
    owner = os if call == "fsync" else pathlib.Path
    function = getattr(owner, call)

    def dies(*arguments, **keywords):
        nonlocal count
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)

    setattr(owner, call, dies)
    checkpoints.save(2, {"step": 2}, {"x": 2 * torch.ones(9)})
    checkpoints.save(3, {"step": 3}, {"x": 3 * torch.ones(9)})

for number, (call, count, _) in enumerate(json.loads(sys.argv[2])):
    child = os.fork()
    if child == 0:
        save_and_die(f"{sys.argv[1]}/{number}", call, count)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_killed_while_it_writes_leaves_a_sound_checkpoint(tmp_path: Path):
    command = [sys.executable, "-c", SAVE_AND_DIE, str(tmp_path), json.dumps(MOMENTS)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert ended.split() == ["-9"] * len(MOMENTS)

    for number, (_, _, expected) in enumerate(MOMENTS):
        checkpoints = Checkpoints(tmp_path / str(number), {"recipe": "a"})
        found = checkpoints.load()

        assert found is not None
        assert found[0] == {"step": expected}
        assert torch.equal(found[1]["x"], expected * torch.ones(9))
        checkpoints.save(9, {"step": 9}, {"x": torch.ones(1)})
        assert len(names(checkpoints)) == 4  # nothing half written is left


def test_checkpoints_leave_a_mebibyte_of_a_small_disk_to_the_study(
    tmp_path: Path, request: pytest.FixtureRequest
):
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    request.addfinalizer(lambda: subprocess.run(["umount", "--lazy", str(tmp_path)], check=True))
    checkpoints = Checkpoints(tmp_path / "run", {})
    checkpoints.save(1, {"step": 1}, {"x": torch.ones(100_000)})
    with pytest.raises(OSError, match="No space left on device"):  # 0.9 of 2.1 MB would be free
        checkpoints.save(2, {"step": 2}, {"x": torch.ones(200_000)})

    found = checkpoints.load()

    assert found is not None
    assert found[0] == {"step": 1}
