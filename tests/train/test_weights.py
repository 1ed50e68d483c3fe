"""Final weights as files: whole, without doubles, compared by their bits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attnres_cli.records.run import WEIGHTS, weights_file
from attnres_cli.train.checkpoint import Checkpoints, clear, differing, keep_weights


def linear(value: float = 0.5) -> torch.nn.Module:
    layer = torch.nn.Linear(2, 3)
    torch.nn.init.constant_(layer.weight, value)
    torch.nn.init.zeros_(layer.bias)
    return layer


def held_in(folder: Path) -> Path:
    """The one file of weights."""
    (found,) = folder.glob(WEIGHTS)
    return found


def test_weights_and_buffers_are_written_and_nothing_else(tmp_path: Path):
    model = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(3))

    keep_weights(model, tmp_path / "run")

    held = load_file(held_in(tmp_path / "run"))
    assert held.keys() == model.state_dict().keys()
    assert all(torch.equal(held[name], value) for name, value in model.state_dict().items())
    assert list((tmp_path / "run").iterdir()) == [held_in(tmp_path / "run")]


def test_what_is_tied_is_written_once(tmp_path: Path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight

    keep_weights(model, tmp_path)

    assert len(load_file(held_in(tmp_path))) == 3


def test_the_same_weights_are_the_same_file(tmp_path: Path):
    for folder in ("one", "other"):
        keep_weights(linear(), tmp_path / folder)

    one, other = (held_in(tmp_path / folder) for folder in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    assert differing(one, other) == []


def test_a_file_of_weights_is_named_by_its_checksum_which_is_returned(tmp_path: Path):
    digest = keep_weights(linear(), tmp_path)

    assert hashlib.sha256(held_in(tmp_path).read_bytes()).hexdigest() == digest
    assert held_in(tmp_path).name == weights_file(digest)


def test_a_machine_that_was_cut_off_replaces_no_weights_of_the_one_that_took_over(tmp_path: Path):
    run = tmp_path / "run"
    winner = run / weights_file(keep_weights(linear(), run))
    before = winner.read_bytes()
    cut_off = Checkpoints(run, {})

    for step in (1, 2, 3):  # each forgets what is older
        cut_off.save(step, {"step": step}, {"x": torch.ones(2)})
    loser = run / weights_file(keep_weights(linear(0.25), run))

    assert winner.read_bytes() == before
    assert loser != winner
    clear(run, winner.name)
    assert list(run.iterdir()) == [winner]


@pytest.mark.parametrize("value", [0.5000001, float("nan"), -0.5])
def test_a_tensor_that_differs_in_a_bit_is_named(tmp_path: Path, value: float):
    keep_weights(linear(), tmp_path / "one")
    keep_weights(linear(value), tmp_path / "other")

    assert differing(held_in(tmp_path / "one"), held_in(tmp_path / "other")) == ["weight"]


def test_nan_is_the_same_as_itself_and_zero_is_not_minus_zero(tmp_path: Path):
    for folder, value in (("a", float("nan")), ("b", float("nan")), ("c", 0.0), ("d", -0.0)):
        keep_weights(linear(value), tmp_path / folder)
    a, b, c, d = (held_in(tmp_path / folder) for folder in "abcd")

    assert differing(a, b) == []
    assert differing(c, d) == ["weight"]


def test_a_tensor_of_another_name_shape_or_type_is_named(tmp_path: Path):
    one = torch.nn.Linear(2, 3, bias=False)
    others = [torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 3, bias=False).double()]
    keep_weights(one, tmp_path / "one")
    for number, other in enumerate([*others, torch.nn.Sequential(one)]):
        keep_weights(other, tmp_path / str(number))

        found = differing(held_in(tmp_path / "one"), held_in(tmp_path / str(number)))
        assert found == (["weight"] if number < 2 else ["0.weight", "weight"])


def test_what_is_no_file_of_weights_is_an_os_error(tmp_path: Path):
    keep_weights(linear(), tmp_path)
    (tmp_path / "cut").write_bytes(held_in(tmp_path).read_bytes()[:40])

    with pytest.raises(OSError, match="cut"):
        differing(tmp_path / "cut", held_in(tmp_path))


def test_clearing_a_run_keeps_its_weights_and_nothing_that_is_half_written(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "runs" / "1", {})
    checkpoints.save(3, {"step": 3}, {"x": torch.ones(2)})
    keep_weights(linear(), checkpoints.folder)
    (checkpoints.folder / ".weights-17").write_bytes(b"half")

    clear(checkpoints.folder)

    assert list(checkpoints.folder.iterdir()) == [held_in(checkpoints.folder)]


NO_SPACE = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from attnres_cli.train.checkpoint import Checkpoints
from attnres_cli.train.keeper import Keeper, Stop
told = []
keeper = Keeper(Checkpoints(Path(sys.argv[2]), {}), 30, Stop(), on_trouble=told.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
kept = keeper.keep_weights(torch.nn.Linear(100, 100))
print(kept, told)
"""


def test_weights_that_cannot_be_written_are_told_and_nothing_of_them_stays(tmp_path: Path):
    command = [sys.executable, "-c", NO_SPACE, str(Path.cwd()), str(tmp_path / "run")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)

    assert "its final weights could not be written" in done.stdout
    assert "File too large" in done.stdout
    assert done.stdout.startswith("None ")
    assert list((tmp_path / "run").iterdir()) == []
