"""A run whose documents are isolated: training, evaluation, proofs, probes and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch
from processes import in_processes
from test_pipeline_ranks import free_port, meet
from training import COMPILED, SETTINGS, Lab, keeper_of, numbers

from attnres_cli.data.tokens import Streams
from attnres_cli.records.gates import CAUSAL
from attnres_cli.train import loop
from attnres_cli.train.proving import prove, prove_start
from attnres_cli.train.trainer import Trainer

SEPARATOR = ord("a")  # of eight tokens of the text one


@pytest.fixture
def isolated(lab: Lab) -> Lab:
    """The same tokens, in documents of eight tokens on average."""
    assert isinstance(lab.tokens, Streams)
    return replace(lab, tokens=lab.tokens.isolated(SEPARATOR))


def test_losses_and_their_probes_are_others_than_where_documents_are_joined(
    lab: Lab, isolated: Lab
):
    ours, theirs = isolated.run("attnres"), lab.run("attnres")

    assert ours.initial_loss != theirs.initial_loss
    assert ours.val_loss != theirs.val_loss
    assert ours.probes[-1].input_rms != theirs.probes[-1].input_rms
    assert not any(text for _, text in ours.proofs)


def test_an_evaluation_is_the_mean_over_documents_alone(isolated: Lab):
    trainer = isolated.trainer(train={"eval_tokens": 64}).model
    windows = torch.from_numpy(next(iter(isolated.tokens.eval_batches(64, 4, 16))))
    total = 0.0
    for row in windows:
        ends = [*((row[:-1] == SEPARATOR).nonzero()[:, 0] + 1).tolist(), 16]
        for start, end in zip([0, *ends], ends, strict=False):
            if end > start:
                loss = trainer(row[None, start:end], row[None, start + 1 : end + 1])
                total += (end - start) * loss.item()

    assert isolated.trainer(train={"eval_tokens": 64}).evaluate() == pytest.approx(total / 64)


def test_a_leak_between_documents_is_found(isolated: Lab, monkeypatch: pytest.MonkeyPatch):
    sound, leaky = isolated.trainer("attnres"), isolated.trainer("attnres")
    monkeypatch.setattr(leaky, "_documents", lambda _: ())

    assert not any(prove_start(sound).values())
    assert not any(prove(sound).values())
    found = prove_start(leaky)[CAUSAL]
    assert "tokens changed before the separator at position" in found
    assert "change what sublayer 2 reads at position" in found


def test_a_stopped_run_goes_on_to_the_same_bits(isolated: Lab, tmp_path: Path):
    isolated.stop_at(4, keeper_of(tmp_path), "attnres")

    found = isolated.run("attnres", keeper=keeper_of(tmp_path))

    assert numbers(found) == numbers(isolated.run("attnres"))


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_an_eager_one(isolated: Lab):
    ours, theirs = (isolated.run("attnres", 0, each) for each in (COMPILED, SETTINGS))

    assert ours.val_loss == pytest.approx(theirs.val_loss, rel=1e-4)
    assert not any(text for _, text in ours.proofs)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_in_every_precision_a_run_proves_itself(precision: str, isolated: Lab):
    found = isolated.run("attnres", 0, replace(SETTINGS, precision=precision))

    assert not any(text for _, text in found.proofs)


def two_steps(trainer: Trainer) -> dict[str, torch.Tensor]:
    for step in range(2):
        trainer.step(step)
    return {name: x.clone() for name, x in trainer.tensors().items() if name.startswith("model.")}


def on_rank(lab: Lab, port: int, ready: Barrier) -> dict[str, dict[str, torch.Tensor]]:
    meet(port, ready)
    found = {}
    for way in ("ddp", "fsdp"):
        on = replace(SETTINGS, way=f"{way} on 2 ranks")
        with pytest.MonkeyPatch.context() as patch:  # GPUs, on which the run is not
            patch.setattr(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
            trainer = loop.trainer_of(lab.spec("attnres"), lab.tokens, on, torch.device("cpu"))
        found[way] = two_steps(trainer)
        assert not any(prove(trainer).values())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found


@pytest.mark.slow
def test_ranks_that_share_batches_train_as_one_device(isolated: Lab):
    expected = two_steps(isolated.trainer("attnres"))

    for ways in in_processes(2, on_rank, isolated, free_port()):
        for found in ways.values():
            for name, tensor in expected.items():
                torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)
