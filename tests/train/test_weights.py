"""Final weights as files: whole, without duplicates, compared by their bits."""

from __future__ import annotations

import hashlib
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


def kept(model: torch.nn.Module, folder: Path) -> Path:
    """The one file of weights that the folder then holds."""
    keep_weights(model, folder)
    (found,) = folder.glob(WEIGHTS)
    return found


def test_weights_and_buffers_are_written_once_and_nothing_else(tmp_path: Path):
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    model = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(3))

    file = kept(model, tmp_path / "run")

    held = load_file(file)
    assert held.keys() == model.state_dict().keys()
    assert all(torch.equal(held[name], value) for name, value in model.state_dict().items())
    assert list((tmp_path / "run").iterdir()) == [file]
    assert len(load_file(kept(tied, tmp_path / "tied"))) == 3


def test_equal_weights_are_equal_files_named_by_their_checksum(tmp_path: Path):
    one, other = (kept(linear(), tmp_path / name) for name in ("one", "other"))

    digest = keep_weights(linear(), tmp_path / "one")

    assert one.read_bytes() == other.read_bytes()
    assert differing(one, other) == []
    assert hashlib.sha256(one.read_bytes()).hexdigest() == digest
    assert one.name == weights_file(digest)


def test_a_machine_that_was_cut_off_does_not_replace_the_weights_of_its_successor(tmp_path: Path):
    winner = kept(linear(), tmp_path)
    before = winner.read_bytes()
    cut_off = Checkpoints(tmp_path, {})

    for step in (1, 2, 3):  # each forgets what is older
        cut_off.save(step, {"step": step}, {"x": torch.ones(2)})
    loser = tmp_path / weights_file(keep_weights(linear(0.25), tmp_path))

    assert winner.read_bytes() == before
    assert loser != winner
    clear(tmp_path, winner.name)
    assert list(tmp_path.iterdir()) == [winner]


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (0.5, 0.5000001, ["weight"]),
        (0.5, -0.5, ["weight"]),
        (0.5, float("nan"), ["weight"]),
        (float("nan"), float("nan"), []),
        (0.0, -0.0, ["weight"]),
    ],
)
def test_a_tensor_that_differs_in_a_bit_is_named(
    one: float, other: float, names: list[str], tmp_path: Path
):
    files = (kept(linear(value), tmp_path / str(n)) for n, value in enumerate((one, other)))

    assert differing(*files) == names


def test_a_tensor_of_another_name_shape_or_type_is_named(tmp_path: Path):
    one = torch.nn.Linear(2, 3, bias=False)
    others = [torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 3, bias=False).double()]
    file = kept(one, tmp_path / "one")

    for number, other in enumerate([*others, torch.nn.Sequential(one)]):
        found = differing(file, kept(other, tmp_path / str(number)))
        assert found == (["weight"] if number < 2 else ["0.weight", "weight"])


def test_a_damaged_file_of_weights_is_an_os_error(tmp_path: Path):
    file = kept(linear(), tmp_path)
    (tmp_path / "cut").write_bytes(file.read_bytes()[:40])

    with pytest.raises(OSError, match="cut"):
        differing(tmp_path / "cut", file)


def test_clearing_a_run_keeps_its_weights_and_nothing_half_written(tmp_path: Path):
    folder = tmp_path / "runs" / "1"
    Checkpoints(folder, {}).save(3, {"step": 3}, {"x": torch.ones(2)})
    file = kept(linear(), folder)
    (folder / ".weights-17").write_bytes(b"half")

    clear(folder)

    assert list(folder.iterdir()) == [file]
