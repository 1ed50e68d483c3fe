"""One run on several ranks, started by torchrun as users do: numbers, stops, kills, refusals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from commands import attnres
from grids import KIMI, OFTEN, PATIENCE_S, done, query, some_have_begun, statuses

from attnres_cli.config.recipe import load
from attnres_cli.errors import UsageError
from attnres_cli.lab import grid
from attnres_cli.records.run import Settings
from attnres_cli.train import group
from attnres_cli.train.checkpoint import differing
from attnres_cli.train.device import settings

SHORT = ["--recipe", "smoke", "--seeds", "0,", "--set", "train.tokens=4k"]  # 8 steps of 16 x 32
ARMS = ["standard", "attnres", "attnres:block_size=2", "mhc"]
LONG = ["attnres:block_size=2", "--recipe", "smoke", "--seeds", "0,", "--set", "train.tokens=60k"]
LONG += ["--baseline", "attnres:block_size=2"]


class Torchrun:
    """`torchrun -m attnres_cli ...` on so many ranks, with what it says in a file."""

    def __init__(self, folder: Path, ranks: int, *typed: str, **environment: str) -> None:
        self.said = folder / f"said.{len(list(folder.glob('said.*')))}"
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        with self.said.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *start, "-m", "attnres_cli", *typed],
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | environment,
                start_new_session=True,
            )

    def ranks(self) -> list[int]:
        """The process ids of the ranks, in their order: each is in a session of its own."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if folder.name.isdecimal() and int(parent) == self.process.pid:
                    said = (folder / "environ").read_bytes().split(b"\0")
                    rank = next(each for each in said if each.startswith(b"RANK="))
                    found[int(rank[5:])] = int(folder.name)
        return [found[rank] for rank in sorted(found)]

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def succeed(self) -> None:
        assert self.end() == 0, self.said.read_text()

    def wait_for(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.02)


@contextmanager
def torchrun(folder: Path, ranks: int, *typed: str, **environment: str) -> Iterator[Torchrun]:
    command = Torchrun(folder, ranks, *typed, **environment)
    try:
        yield command
    finally:
        for pid in (*command.ranks(), command.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.process.wait()


def trained(folder: Path, ranks: int, *typed: str, **environment: str) -> str:
    """What a command on so many ranks says, 1 being the plain command; it succeeds."""
    folder.mkdir(exist_ok=True)
    if ranks == 1:
        done(folder, *typed, **environment)
        return ""
    with torchrun(folder, ranks, *typed, **environment) as command:
        command.succeed()
    return command.said.read_text()


def ended(folder: Path) -> dict[str, tuple]:
    """By design: validation loss, curve and the file of final weights."""
    found = {}
    for run, variant, loss in query(folder, "SELECT id, variant, val_loss FROM attnres_runs"):
        sql = f"SELECT step, train_loss, val_loss FROM attnres_curve WHERE run_id = {run}"
        (weights,) = (folder / "attnres.runs").glob(f"{run}-*/weights-*.safetensors")
        found[variant] = (loss, query(folder, f"{sql} ORDER BY step"), weights)
    return found


def ways(folder: Path) -> set[str]:
    return {way for (way,) in query(folder, "SELECT way FROM attnres_runs")}


def assert_equal(ours: Path, theirs: Path) -> None:
    """Bit for bit, whatever the runs are called."""
    one, other = ended(ours), ended(theirs)
    assert one.keys() == other.keys()
    for variant, (loss, curve, weights) in one.items():
        assert (loss, curve) == other[variant][:2], variant
        assert differing(weights, other[variant][2]) == [], variant


def assert_near(ours: Path, theirs: Path, relative: float = 1e-5) -> None:
    one, other = ended(ours), ended(theirs)
    assert one.keys() == other.keys()
    for variant, (loss, curve, _) in one.items():
        assert loss == pytest.approx(other[variant][0], rel=relative), variant
        losses = [
            [x for point in each for x in point[1:] if x] for each in (curve, other[variant][1])
        ]
        assert losses[0] == pytest.approx(losses[1], rel=relative), variant


def alone(folder: Path, ranks: int, *typed: str) -> Path:
    """The study of one process with the micro-batches of so many ranks."""
    here = folder / f"alone{ranks}"
    trained(here, 1, "ablate", *typed, "--set", f"train.micro_batch_size={16 // ranks}")
    return here


def test_two_ranks_give_the_bits_of_one_process(tmp_path: Path):
    typed = ["standard", "attnres:block_size=2", *SHORT]
    said = trained(tmp_path / "two", 2, "ablate", *typed)
    assert_equal(tmp_path / "two", alone(tmp_path, 2, *typed))
    assert ways(tmp_path / "two") == {"ddp on 2 ranks"}  # by itself, under torchrun
    assert "1 worker, cpu fp32 eager, 1 thread, ddp on 2 ranks" in said
    assert said.count("val loss") == said.count("seed 0: val loss") + 1  # by rank 0, and the table


@pytest.fixture
def a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is rank 0 of 3."""
    monkeypatch.setattr(group, "_current", group.Group(0, 3, 0, 3, None, None))


def test_the_way_is_no_part_of_a_recipe_but_of_how_a_run_was_computed(a_rank: None):
    recipe = load("smoke", ["train.parallel=fsdp", "train.batch_size=24"])
    assert recipe.digest == load("smoke", ["train.batch_size=24"]).digest
    found = settings(recipe, "cpu", 1, 0.0)
    assert found.numerics == "cpu fp32 eager, 1 thread, fsdp on 3 ranks"
    assert found.parallel == ("fsdp", 3)


@pytest.mark.parametrize(
    ("way", "name", "ranks"),
    [("", "none", 1), ("ddp on 2 ranks, then fsdp on 4 ranks", "fsdp", 4),
     ("ddp on 2 ranks, then one device", "none", 1)],
)  # fmt: skip
def test_a_run_names_all_its_ways_and_the_last_one_counts(way: str, name: str, ranks: int):
    found = Settings("cpu", "A CPU", "fp32", compiled=False, threads=1, engine="eager", way=way)
    assert (found.parallel, found.ranks) == ((name, ranks), ranks)
    assert found.numerics == "cpu fp32 eager, 1 thread" + (f", {way}" if way else "")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["train.parallel=none", "train.batch_size=6"], "type attnres instead of torchrun"),
        (["train.batch_size=16"], "--set train.batch_size=18, or --nproc-per-node 1"),
        (["train.parallel=fsdp", "train.batch_size=6", "train.compile=on"], "is not compiled"),
    ],
)
def test_what_ranks_cannot_do_is_refused(a_rank: None, overrides: list[str], told: str):
    with pytest.raises(UsageError, match=told):
        settings(load("smoke", overrides), "cpu", 1, 0.0)


def test_ranks_are_one_worker(a_rank: None):
    recipe = load("smoke", ["train.batch_size=6"])
    with pytest.raises(UsageError, match="the 3 ranks of torchrun are one worker"):
        grid.make(recipe, grid.resolve(["standard"], recipe, 256), (0,), "", "cpu", 2)


def test_ranks_without_torchrun_are_refused_with_what_to_type(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = attnres(capsys, "ablate", "--recipe", "smoke", "--set", "train.parallel=ddp")
    assert code == 2
    assert "torchrun --nproc-per-node N -m attnres_cli ablate" in err
    assert list(tmp_path.iterdir()) == []


def test_a_rank_trains_micro_batches_that_go_into_its_share():
    train = load("smoke", ["train.batch_size=12", "train.micro_batch_size=4"]).train
    shares = {ranks: train.of_rank(ranks) for ranks in (1, 2, 3, 6)}
    assert [(each.batch_size, each.rows) for each in shares.values()] == [
        (12, 4), (6, 3), (4, 4), (2, 2)
    ]  # fmt: skip


CASES = [  # plain ones are in others of these, and the first test of this file
    ("ddp", ["--set", "optim.optimizer=muon"]),
    ("ddp", [*KIMI, "--set", "train.checkpoint_activations=true"]),
    ("fsdp", ["--set", "train.checkpoint_activations=true"]),
    ("fsdp", ["--set", "optim.optimizer=muon"]),
    ("fsdp", KIMI),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "more"), CASES, ids=lambda x: x if isinstance(x, str) else "".join(x[1::2])
)
def test_ranks_give_what_one_process_does(way: str, more: list[str], tmp_path: Path):
    typed = [*ARMS, *SHORT, *more]
    trained(tmp_path / "two", 2, "ablate", *typed, "--set", f"train.parallel={way}")
    alone(tmp_path, 2, *typed)
    if way == "ddp":
        assert_equal(tmp_path / "two", tmp_path / "alone2")
    else:  # Muon multiplies in bfloat16, shards' products are summed in another order
        assert_near(tmp_path / "two", tmp_path / "alone2", 5e-4 if "muon" in str(more) else 1e-5)
    assert ways(tmp_path / "two") == {f"{way} on 2 ranks"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_four_ranks_and_micro_batches_give_it_to_rounding(way: str, tmp_path: Path):
    typed = [*ARMS, *SHORT, *KIMI, "--set", f"train.parallel={way}"]
    trained(tmp_path / "four", 4, "ablate", *typed, "--set", "train.micro_batch_size=2")
    assert_near(tmp_path / "four", alone(tmp_path, 4, *ARMS, *SHORT, *KIMI))


def stopped(folder: Path, ranks: int, *typed: str, by: signal.Signals, whom: int | None) -> None:
    """Begin, and send that signal to a rank, or to torchrun (None), once there is a checkpoint."""
    folder.mkdir(exist_ok=True)
    with torchrun(folder, ranks, "ablate", *typed, **OFTEN) as command:
        command.wait_for(lambda: some_have_begun(folder))
        os.kill(command.process.pid if whom is None else command.ranks()[whom], by)
        assert command.end() == 1
        deadline = time.monotonic() + 60
        while command.ranks():  # torchrun gives them half a minute
            assert time.monotonic() < deadline
    assert (
        "attnres_cli/" not in command.said.read_text()
    )  # no traceback of ours, torchrun has its own
    (status,) = statuses(folder)
    assert status in ("pending", "running")


@pytest.mark.slow
def test_what_is_stopped_or_killed_goes_on_bit_for_bit(tmp_path: Path):
    typed = [*LONG, *KIMI]
    trained(tmp_path / "calm", 2, "ablate", *typed)
    for by, whom in ((signal.SIGINT, None), (signal.SIGTERM, 1), (signal.SIGKILL, 0)):
        folder = tmp_path / f"{by.name}{whom}"
        stopped(folder, 2, *typed, by=by, whom=whom)
        said = trained(folder, 2, "ablate", *typed)
        assert "goes on" in said
        assert_equal(folder, tmp_path / "calm")
        assert ways(folder) == {"ddp on 2 ranks"}


@pytest.mark.slow
def test_a_pipeline_of_which_a_rank_is_killed_goes_on_bit_for_bit(tmp_path: Path):
    typed = [*LONG, *KIMI, "--set", "train.parallel=pipeline", "--set", "train.pipeline.virtual=2"]
    trained(tmp_path / "calm", 2, "ablate", *typed)
    stopped(tmp_path / "killed", 2, *typed, by=signal.SIGKILL, whom=1)

    assert "goes on" in trained(tmp_path / "killed", 2, "ablate", *typed)

    assert_equal(tmp_path / "killed", tmp_path / "calm")
    assert ways(tmp_path / "killed") == {"pipeline 2x2 interleaved1f1b on 2 ranks"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "other", "more", "relative"),
    [("ddp", "fsdp", KIMI, 1e-4), ("fsdp", "ddp", ["--set", "optim.optimizer=muon"], 5e-3)],
    ids=["kimi", "muon"],  # which is in bfloat16
)
def test_any_ranks_go_on_from_a_checkpoint(
    first: str, other: str, more: list[str], relative: float, tmp_path: Path
):
    typed, before = [*LONG, *more], f"{first} on 2 ranks"
    typed += ["--set", "train.tokens=12k"]  # 23 steps: rounding grows tenfold in ten
    begun = [*typed, "--set", f"train.parallel={first}"]
    trained(tmp_path / "alone", 1, "ablate", *typed)
    trained(tmp_path / "same", 2, "ablate", *begun)
    stopped(tmp_path / "begun", 2, *begun, by=signal.SIGTERM, whom=0)
    for ranks, way, name in (
        (1, "auto", f"{before}, then one device"),
        (4, other, f"{before}, then {other} on 4 ranks"),
        (2, first, before),
    ):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "begun", folder)
        said = trained(folder, ranks, "ablate", *typed, "--set", f"train.parallel={way}")
        assert ways(folder) == {name}
        assert_near(folder, tmp_path / "alone", relative)
        assert ranks == 1 or name == before or "a run of its own rounding" in said
    assert_equal(tmp_path / before, tmp_path / "same")


BAD = """
import os
import torch
from attnres_cli.nn.residual import register
from attnres_variants.standard import Standard

@register("bad")
class Bad(Standard):
    \"\"\"Raises in the tenth step, on all ranks or on one; fewer are timed.\"\"\"

    n = 0

    def start(self, x):
        self.n += torch.is_grad_enabled()
        if self.n == 10 and os.environ.get("RANK") in os.environ["BAD"].split(","):
            raise RuntimeError("no more")
        return super().start(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["0,1", "0", "1"])
def test_a_run_that_fails_is_told_and_ends_no_other_where_all_ranks_are_there(
    whom: str, tmp_path: Path
):
    (tmp_path / "bad.py").write_text(BAD)
    typed = ["ablate", "bad", "standard", *SHORT, "--set", "train.tokens=20k"]
    with torchrun(tmp_path, 2, *typed, "--plugin", "bad.py", BAD=whom) as command:
        assert command.end() == 1
        assert not command.ranks()
    sql = "SELECT variant, status, error FROM attnres_runs ORDER BY variant"
    (_, status, error), (_, other, _) = query(tmp_path, sql)
    assert status == "failed"
    assert "RuntimeError: no more" in error
    assert ("rank 1: " in error) == (whom == "1")
    assert (other == "complete") == (whom == "0,1")


@pytest.mark.slow
def test_verify_compares_bits_by_the_ranks_of_the_run_and_else_losses(tmp_path: Path):
    trained(tmp_path / "two", 2, "ablate", *ARMS[:1], *SHORT, "--set", "train.parallel=fsdp")
    said = trained(tmp_path / "two", 2, "verify", "1")
    assert "equal, bit for bit" in said
    found = done(tmp_path / "two", "verify", "1")
    assert (found["equal"], found["tolerance"]) == (True, 0.02)
    assert {"name": "way", "recorded": "fsdp on 2 ranks", "now": ""} in found["changed"]


@pytest.mark.slow
def test_runs_of_other_ranks_are_not_paired(tmp_path: Path):
    trained(tmp_path / "two", 2, "ablate", "standard", *SHORT)
    done(tmp_path / "two", "ablate", "attnres", *SHORT)
    with torchrun(tmp_path / "two", 2, "report") as command:  # any command runs, on rank 0
        command.succeed()
    assert "the baseline on cpu fp32 eager, 1 thread, ddp on 2 ranks" in command.said.read_text()
