"""A run cut over ranks is that of one device, and so are its checkpoints."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch
from grids import KIMI, done, query
from processes import in_processes
from torch import Tensor
from training import SETTINGS

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import UsageError
from attnres_cli.nn.residual import PLUGINS
from attnres_cli.records.gates import CAUSAL
from attnres_cli.records.run import RunSpec
from attnres_cli.train import device, group, loop
from attnres_cli.train.proving import prove_start
from attnres_cli.train.trainer import Trainer

WAY = "pipeline 2x2 interleaved1f1b on 2 ranks"
Tensors = dict[str, Tensor]
CUT = ["train.parallel=pipeline", "train.pipeline.virtual=2"]
SHORT = ["--recipe", "smoke", "--seeds", "0,", "--set", "train.tokens=4k"]
SHORT += ["--set", "train.micro_batch_size=4"]


def recipe_of(*more: str) -> Recipe:
    return load("smoke", ["model.n_layers=2", "train.micro_batch_size=4", *more, *CUT])


def trainer_of(tokens: Tokens, variant: str, changes: Sequence[str], way: str = "") -> Trainer:
    spec = RunSpec(recipe_of(*changes), variant, 0, tokens.fingerprint)
    return loop.trainer_of(spec, tokens, replace(SETTINGS, way=way), torch.device("cpu"))


def two_steps(trainer: Trainer, first: int) -> Tensors:
    for step in range(first, first + 2):
        trainer.step(step)
    return {name: tensor.clone() for name, tensor in trainer.tensors().items()}


def on_rank(
    tokens: Tokens,
    cases: list[tuple[str, list[str]]],
    kept: list[Tensors],
    port: int,
    ready: Barrier,
) -> list[tuple[Tensors, Tensors]]:
    """Two steps from the start, then from what one device had after two."""
    meet(port, ready)
    found = []
    for (variant, changes), of_one_device in zip(cases, kept, strict=True):
        way = device.settings(recipe_of(*changes), "cpu", 1, 0.0).way
        assert way == WAY
        trainer = trainer_of(tokens, variant, changes, way)
        after_two = two_steps(trainer, 0)
        after_four = two_steps(trainer, 2)
        for name, tensor in trainer.whole().state_dict().items():
            assert torch.equal(tensor, after_four[f"model.{name}"]), name
        trainer.restore(after_two)
        again = two_steps(trainer, 2)
        assert all(torch.equal(after_four[name], again[name]) for name in after_four)
        trainer.restore(of_one_device)
        found.append((after_two, two_steps(trainer, 2)))
        loss = trainer.evaluate()
        assert abs(loss - 3) < 3, loss
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found


def meet(port: int, ready: Barrier) -> None:
    rank = str(ready.wait())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    group.join()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def proofs_on_rank(tokens: Tokens, port: int, ready: Barrier) -> dict[tuple[str, str], str]:
    """What each way finds of a design that leaks, and of one that does not."""
    meet(port, ready)
    found = {}
    for parallel in ("ddp", "fsdp", "pipeline"):
        for variant in ("attnres", "at48"):
            changes = [f"train.parallel={parallel}", "model.seq_len=64", "train.eval_tokens=512"]
            recipe = load("smoke", ["train.micro_batch_size=4", *changes])
            way = device.settings(recipe, "cpu", 1, 0.0).way
            spec = RunSpec(recipe, variant, 0, tokens.fingerprint)
            on = replace(SETTINGS, way=way)
            trainer = loop.trainer_of(spec, tokens, on, torch.device("cpu"))
            before = [x.clone() for name, x in trainer.tensors().items() if "model." in name]
            found[parallel, variant] = prove_start(trainer)[CAUSAL]
            after = [x for name, x in trainer.tensors().items() if "model." in name]
            assert all(map(torch.equal, before, after)), parallel
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found


@pytest.mark.slow
def test_ranks_prove_their_run_alike(tokens: Tokens, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PLUGINS, str(Path(__file__).parent.parent / "cheats.py"))

    one, other = in_processes(2, proofs_on_rank, tokens, free_port())

    assert one == other
    assert not any(text for (_, variant), text in one.items() if variant == "attnres")
    assert all("reads at position" in text for (_, name), text in one.items() if name == "at48")


@pytest.mark.slow
def test_checkpoints_are_whole_and_resume_anywhere(tokens: Tokens):
    faster = ["optim.optimizer=muon", "optim.design_lr_scale=10"]
    cases = [("attnres:block_size=2", KIMI[1::2]), ("mhc", faster)]
    trainers = [trainer_of(tokens, *case) for case in cases]
    two = [two_steps(trainer, 0) for trainer in trainers]
    four = [two_steps(trainer, 2) for trainer in trainers]
    ranks = in_processes(2, on_rank, tokens, cases, two, free_port())

    for rank in ranks:
        assert not isinstance(rank, str), rank
        for trainer, mine, ended, (kept, went_on) in zip(trainers, two, four, rank, strict=True):
            near(kept, mine)
            near(went_on, ended)
            trainer.restore(kept)  # and on one device from what the ranks have kept
            near(two_steps(trainer, 2), ended)


def near(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            off = (found[name] - tensor).norm()
            assert off <= 1e-3 * tensor.norm() + 1e-7, (name, off, tensor.norm())


def losses(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run, variant, loss in query(folder, "SELECT id, variant, val_loss FROM attnres_runs"):
        sql = f"SELECT train_loss, val_loss FROM attnres_curve WHERE run_id = {run} ORDER BY step"
        curve = [value for point in query(folder, sql) for value in point if value is not None]
        found[variant] = [loss, *curve]
    return found


@pytest.mark.slow
def test_an_ablation_in_a_pipeline_gives_the_losses_of_one_process(tmp_path: Path):
    arms = ["standard", "attnres:block_size=2", *KIMI]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    done(tmp_path / "one", "ablate", *arms, *SHORT)
    start = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 -m"
    cut = [part for each in CUT for part in ("--set", each)]
    command = [*shlex.split(start), "attnres_cli", "ablate", *arms, *SHORT, *cut]
    subprocess.run(
        command, cwd=tmp_path / "two", check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )

    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert one.keys() == two.keys() == {"standard", "attnres:block_size=2"}
    for variant, expected in one.items():
        assert two[variant] == pytest.approx(expected, rel=1e-5), variant
    assert set(query(tmp_path / "two", "SELECT way FROM attnres_runs")) == {(WAY,)}
    sql = "SELECT DISTINCT recipe_digest FROM attnres_runs"
    digests = [query(tmp_path / name, sql) for name in ("one", "two")]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["train.pipeline.stages=4"], "train.pipeline.stages=4, and torchrun has started 2 ranks"),
        (["train.pipeline.virtual=9"], "no more chunks than the 4 sublayers: got 2 of 9"),
        (
            ["data.source=text", "data.documents=isolated"],
            "stages of a pipeline see no separators: --set train.parallel=ddp",
        ),
        (["model.tie_embeddings=true"], "embedding and head are on two ranks"),
        (["train.pipeline.schedule=ZBVZeroBubble"], "splits backward into one pass"),
        (["train.pipeline.schedule=1f1b"], "has one chunk per rank: 2 virtual stages take"),
        (["train.compile=on"], "train.parallel=pipeline is not compiled here"),
        (["train.batch_size=9"], "cannot be split evenly over 2 ranks"),
    ],
)
def test_impossible_pipelines_are_refused_before_anything_is_trained(
    changes: list[str], words: str, monkeypatch: pytest.MonkeyPatch
):
    ranks = group.Group(0, 2, 0, 2, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(group, "_current", ranks)
    recipe = load("smoke", ["model.n_layers=2", *CUT, *changes])

    with pytest.raises(UsageError, match=words):
        device.settings(recipe, "cpu", 1, 0.0)
