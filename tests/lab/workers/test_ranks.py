"""One run on several ranks, started by torchrun as users do: numbers, stops, kills, refusals."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import grids
import pytest
import torch
from attnres_variants.standard import Standard
from grids import KIMI, OFTEN, PLACE, Command, done, forked_by, query, started, wait_until
from studies import SETTINGS

from attnres_cli.cli import app
from attnres_cli.config.recipe import load
from attnres_cli.errors import UsageError, VariantError
from attnres_cli.lab import grid, verify
from attnres_cli.lab.workers import pool
from attnres_cli.nn import residual
from attnres_cli.records.plan import Plan
from attnres_cli.train import group
from attnres_cli.train.checkpoint import differing
from attnres_cli.train.device import settings

slow, nightly = pytest.mark.slow, pytest.mark.nightly
SHORT = ["--recipe", "smoke", "--seeds", "0,", "--set", "train.tokens=4k"]  # 8 steps of 16 x 32
ARMS = ["standard", "attnres:block_size=2", "mhc"]
BLOCK = ["attnres:block_size=2", "--baseline", "attnres:block_size=2"]
LONG = [*BLOCK, *SHORT, "--set", "train.tokens=30k"]
MUON = ["--set", "optim.optimizer=muon"]
MICRO = ["--set", "train.micro_batch_size=2"]
RECOMPUTED = ["--set", "train.checkpoint_activations=true"]
FASTER = ["--set", "optim.design_lr_scale=10"]
OPEN = ["mudd", "attnres:block_size=2+vres", "backout+x0", *RECOMPUTED]  # on softmax attention


def ranks(command: Command) -> list[int]:
    """The process ids of the ranks, in order."""
    found = {}
    for pid in forked_by(command.process.pid, deep=False):
        with suppress(OSError, StopIteration):
            said = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found[int(next(each for each in said if each.startswith(b"RANK="))[5:])] = pid
    return [found[rank] for rank in sorted(found)]


def trained(folder: Path, n: int, *typed: str, **environment: str) -> str:
    folder.mkdir(exist_ok=True)
    with started(folder, *typed, ranks=n, **environment) as command:
        command.succeed()
    return command.out + command.err


def alone(folder: Path, n: int, *typed: str) -> Path:
    """The study of one process with the micro-batches of n ranks."""
    here = folder / f"alone{n}"
    here.mkdir()
    done(here, "ablate", *typed, "--set", f"train.micro_batch_size={16 // n}")
    return here


def losses(folder: Path) -> list[tuple]:
    columns = "r.variant, c.step, IFNULL(c.train_loss, 0), IFNULL(c.val_loss, 0), r.val_loss"
    points = "attnres_curve c JOIN attnres_runs r ON r.id = c.run_id"
    return query(folder, f"SELECT {columns} FROM {points} ORDER BY 1, 2")


def weights(folder: Path) -> dict[str, Path]:
    runs = query(folder, "SELECT id, variant FROM attnres_runs")
    files = (folder / "attnres.runs").glob
    return {variant: next(files(f"{run}-*/weights-*.safetensors")) for run, variant in runs}


def ways(folder: Path) -> set[str]:
    return {way for (way,) in query(folder, "SELECT way FROM attnres_runs")}


def assert_equal(ours: Path, theirs: Path, relative: float = 0.0) -> None:
    """Losses are equal to within so much; with 0, they and the weights are, bit for bit."""
    one, other = losses(ours), losses(theirs)
    assert [point[:2] for point in one] == [point[:2] for point in other] != []
    for point, expected in zip(one, other, strict=True):
        assert point[2:] == pytest.approx(expected[2:], rel=relative, abs=0.0), point[:2]
    for variant, file in weights(ours).items() if relative == 0.0 else ():
        assert differing(file, weights(theirs)[variant]) == [], variant


def as_rank(rank: int, n: int, port: int, folder: Path, *typed: str) -> None:
    """Run a command in this process as torchrun starts it, with its output in a file."""
    os.chdir(folder)
    os.environ |= PLACE | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(n)}
    sys.argv = ["attnres", *typed]
    sys.stdout = sys.stderr = (folder / f"said.{rank}").open("w")
    app.main()


def forked(folder: Path, n: int, *typed: str) -> str:
    """Run a command on n ranks that are copies of one process, which saves their imports: what the
    first says. Other tests start torchrun.
    """
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pool.prepare()
    process, of = get_context("forkserver").Process, (n, port, folder, *typed)
    every = [process(target=as_rank, args=(rank, *of)) for rank in range(n)]
    for each in every:
        each.start()
    for each in every:
        each.join()
    said = (folder / "said.0").read_text()
    assert [each.exitcode for each in every] == n * [0], said
    return said


def test_two_ranks_give_the_bits_of_one_process(tmp_path: Path):
    typed = [*BLOCK, *SHORT]
    (theirs := tmp_path / "2026.json").write_text("{}")  # no checkpoint
    said = forked(tmp_path, 2, "-v", "ablate", *typed)

    assert_equal(tmp_path, alone(tmp_path, 2, *typed))
    assert ways(tmp_path) == {"ddp on 2 ranks"}  # the default under torchrun
    assert "1 worker, cpu fp32 eager, 1 thread, ddp on 2 ranks" in said
    assert said.count("val loss") == said.count("seed 0: val loss") + 1  # the last in the table
    assert (tmp_path / "said.1").read_text() == ""
    assert theirs.read_text() == "{}"


@pytest.fixture
def a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is rank 0 of 3."""
    monkeypatch.setattr(group, "_current", group.Group(0, 3, 0, 3, None, None))


def test_the_way_belongs_to_the_numerics_of_a_run_and_not_to_its_recipe(a_rank: None):
    recipe = load("smoke", ["train.parallel=fsdp", "train.batch_size=24"])
    assert recipe.digest == load("smoke", ["train.batch_size=24"]).digest
    assert settings(recipe, "cpu", 1, 0.0).numerics == "cpu fp32 eager, 1 thread, fsdp on 3 ranks"


def test_a_run_names_all_its_ways_and_the_last_one_counts():
    for way, parallel in (
        ("", ("none", 1)),
        ("fsdp on 3 ranks", ("fsdp", 3)),
        ("ddp on 2 ranks, then fsdp on 4 ranks", ("fsdp", 4)),
        ("ddp on 2 ranks, then one device", ("none", 1)),
    ):
        found = replace(SETTINGS, way=way)
        assert (found.parallel, found.ranks) == (parallel, parallel[1])
        assert found.numerics == "cpu fp32 eager, 1 thread" + (f", {way}" if way else "")


def test_recipes_and_workers_that_ranks_cannot_have_are_refused(a_rank: None):
    six = "train.batch_size=6"
    for overrides, words in (
        (["train.parallel=none", six], "type attnres instead of torchrun"),
        (["train.batch_size=16"], "--set train.batch_size=18, or --nproc-per-node 1"),
        (["train.parallel=fsdp", six, "train.compile=on"], "is not compiled"),
    ):
        with pytest.raises(UsageError, match=words):
            settings(load("smoke", overrides), "cpu", 1, 0.0)
    recipe = load("smoke", [six])
    with pytest.raises(UsageError, match="the 3 ranks of torchrun are one worker"):
        grid.make(recipe, grid.resolve(["standard"], recipe, 256), (0,), "", "cpu", 2)


class Gated(Standard):
    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.gate = torch.nn.Parameter(torch.tensor(1.0))


def test_a_design_that_learns_a_number_without_an_axis_has_no_parts_for_ranks(
    a_rank: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(residual._REGISTRY, "gated", Gated)

    def plan(parallel: str) -> Plan:
        recipe = load("smoke", [f"train.parallel={parallel}", "train.batch_size=6"])
        return grid.make(recipe, grid.resolve(["gated"], recipe, 256), (0,), "", "cpu", None)

    assert plan("ddp").settings.ranks == 3
    with pytest.raises(VariantError, match=r"cannot divide gate, .*torch\.full\(\(1,\), "):
        plan("fsdp")


@pytest.mark.parametrize(
    ("way", "typed"),
    [
        ("pipeline 3x1 1f1b on 3 ranks", "train.pipeline.virtual=2"),
        ("ddp on 2 ranks, then pipeline 3x2 loopedbfs on 3 ranks", "train.pipeline.virtual=1"),
    ],
)
def test_a_pipeline_is_verified_by_the_cut_that_its_run_had(way: str, typed: str, a_rank: None):
    recipe = load("smoke", ["train.batch_size=24", "model.n_layers=3", typed])
    found = verify._shared_as(recipe, replace(SETTINGS, way=way))
    last = way.rpartition(", then ")[2]
    assert verify._here(1, found, replace(SETTINGS, way=way))[1].way == last
    cut = found.train.pipeline
    assert f"pipeline 3x{cut.virtual} {cut.named()} on 3 ranks" == last


def test_ranks_without_torchrun_are_refused_with_the_command_to_type(attnres, here: Path):
    err = attnres.refuses("ablate", "--recipe", "smoke", "--set", "train.parallel=ddp")
    assert "torchrun --nproc-per-node N -m attnres_cli ablate" in err
    assert list(here.iterdir()) == []


def test_the_micro_batches_of_a_rank_divide_its_share():
    train = load("smoke", ["train.batch_size=12", "train.micro_batch_size=4"]).train
    shares = [train.of_rank(n) for n in (1, 2, 3, 6)]
    assert [each.batch_size for each in shares] == [12, 6, 4, 2]
    assert [each.rows for each in shares] == [4, 3, 4, 2]


@pytest.mark.parametrize(
    ("way", "n", "more", "relative"),
    [
        pytest.param("ddp", 2, [*KIMI, *RECOMPUTED, *FASTER], 0.0, marks=slow, id="ddp-kimi"),
        pytest.param("ddp", 2, MUON, 0.0, marks=nightly, id="ddp-muon"),
        pytest.param("ddp", 4, [*KIMI, *MICRO], 1e-5, marks=nightly, id="ddp-4"),
        # shards and micro-batches are summed in another order, and Muon multiplies in bfloat16
        pytest.param("fsdp", 2, [*KIMI, *RECOMPUTED, *FASTER], 1e-5, marks=slow, id="fsdp-kimi"),
        pytest.param("fsdp", 2, OPEN, 1e-5, marks=slow, id="fsdp-open"),
        pytest.param("fsdp", 2, MUON, 5e-4, marks=nightly, id="fsdp-muon"),
        pytest.param("fsdp", 4, [*KIMI, *RECOMPUTED, *MICRO], 1e-5, marks=nightly, id="fsdp-4"),
    ],
)
def test_ranks_give_the_numbers_of_one_process(way: str, n: int, more, relative, tmp_path: Path):
    typed, ranks_ = [*ARMS, *SHORT, *more], tmp_path / "ranks"
    forked(ranks_, n, "ablate", *typed, "--set", f"train.parallel={way}")
    assert_equal(ranks_, alone(tmp_path, n, *typed), relative)
    assert ways(ranks_) == {f"{way} on {n} ranks"}


def stopped(folder: Path, *typed: str, by: signal.Signals, rank: int | None) -> None:
    """Start on two ranks, and signal a rank, or torchrun (None), once there is a checkpoint."""
    folder.mkdir(exist_ok=True)
    with started(folder, "ablate", *typed, ranks=2, **OFTEN) as command:
        command.wait_for(lambda: grids.some_have_begun(folder))
        os.kill(command.process.pid if rank is None else ranks(command)[rank], by)
        assert command.end() == 1
        wait_until(lambda: not ranks(command), 60)  # torchrun gives them half a minute
    assert "attnres_cli/" not in command.err  # no traceback of ours: torchrun has its own
    (status,) = grids.statuses(folder)
    assert status in ("pending", "running")


CUT = ["--set", "train.parallel=pipeline", "--set", "train.pipeline.virtual=2"]


@pytest.mark.parametrize(
    ("more", "by", "rank", "way"),
    [
        pytest.param(FASTER, signal.SIGKILL, 0, "ddp", marks=slow),
        pytest.param([], signal.SIGTERM, 1, "ddp", marks=nightly),
        pytest.param(CUT, signal.SIGKILL, 1, "pipeline 2x2 interleaved1f1b", marks=slow),
    ],
)
def test_stopped_or_killed_ranks_go_on_with_the_same_bits(more, by, rank, way: str, tmp_path):
    typed, calm, killed = [*LONG, *KIMI, *more], tmp_path / "calm", tmp_path / "killed"
    forked(calm, 2, "ablate", *typed)
    stopped(killed, *typed, by=by, rank=rank)
    assert "goes on" in trained(killed, 2, "ablate", *typed)
    assert_equal(killed, calm)
    assert ways(killed) == {f"{way} on 2 ranks"}


@pytest.mark.parametrize(
    ("first", "other", "more", "by", "rank", "relative"),
    [
        pytest.param("ddp", "fsdp", KIMI, signal.SIGINT, None, 1e-4, marks=slow, id="kimi"),
        pytest.param("fsdp", "ddp", MUON, signal.SIGTERM, 0, 5e-3, marks=nightly, id="muon"),
    ],  # Muon multiplies in bfloat16
)
def test_any_number_of_ranks_continues_from_a_checkpoint(
    first: str, other: str, more: list[str], by, rank: int | None, relative: float, tmp_path: Path
):
    typed, before = [*LONG, *more], f"{first} on 2 ranks"
    typed += ["--set", "train.tokens=12k"]  # 23 steps: rounding grows tenfold in ten
    begun = [*typed, "--set", f"train.parallel={first}"]
    (tmp_path / "alone").mkdir()
    done(tmp_path / "alone", "ablate", *typed)
    forked(tmp_path / "same", 2, "ablate", *begun)
    stopped(tmp_path / "begun", *begun, by=by, rank=rank)
    for n, way, name in (
        (1, "auto", f"{before}, then one device"),
        (4, other, f"{before}, then {other} on 4 ranks"),
        (2, first, before),
    ):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "begun", folder)
        again = ("ablate", *typed, "--set", f"train.parallel={way}")
        said = trained(folder, n, *again) if n > 1 else done(folder, *again)
        assert ways(folder) == {name}
        assert_equal(folder, tmp_path / "alone", relative)
        assert n == 1 or name == before or "a run of its own rounding" in said
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


@slow
@pytest.mark.parametrize("bad", ["0,1", pytest.param("0", marks=nightly), "1"])
def test_a_run_that_fails_is_recorded_and_ends_no_other_if_all_ranks_are_left(bad: str, tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    typed = ["ablate", "bad", "standard", *SHORT, "--set", "train.tokens=10k"]
    with started(tmp_path, *typed, "--plugin", "bad.py", ranks=2, BAD=bad) as command:
        assert command.end() == 1
        assert not ranks(command)
    sql = "SELECT variant, status, error FROM attnres_runs ORDER BY variant"
    (_, status, error), (_, other, _) = query(tmp_path, sql)
    assert status == "failed"
    assert "RuntimeError: no more" in error
    assert ("rank 1: " in error) == (bad == "1")
    assert (other == "complete") == (bad == "0,1")


@slow
def test_a_later_command_cuts_a_known_recipe_otherwise_and_its_run_is_verified(tmp_path: Path):
    typed = [*BLOCK, *SHORT, "--set", "train.parallel=pipeline"]
    forked(tmp_path, 2, "ablate", *typed)
    forked(tmp_path, 2, "ablate", *typed, "--seeds", "1,", "--set", "train.pipeline.virtual=2")
    assert [way for (way,) in query(tmp_path, "SELECT way FROM attnres_runs ORDER BY id")] == [
        "pipeline 2x1 1f1b on 2 ranks",
        "pipeline 2x2 interleaved1f1b on 2 ranks",
    ]
    assert "equal, bit for bit" in forked(tmp_path, 2, "verify", "2")


@slow
def test_runs_of_ranks_are_verified_by_as_many_and_paired_only_with_their_like(tmp_path: Path):
    two = tmp_path / "two"
    forked(two, 2, "ablate", "standard", *SHORT, "--set", "train.parallel=fsdp")
    assert "equal, bit for bit" in forked(two, 2, "verify", "1")
    found = done(two, "verify", "1")
    assert (found["equal"], found["tolerance"]) == (True, 0.02)  # of one process: losses
    assert {"name": "way", "recorded": "fsdp on 2 ranks", "now": ""} in found["changed"]
    done(two, "ablate", "attnres", *SHORT)
    said = trained(two, 2, "report")  # any command runs, on rank 0
    assert "the baseline on cpu fp32 eager, 1 thread, fsdp on 2 ranks" in said
