"""A run proves that no token sees a later one, or another sequence, as it is judged."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from commands import Attnres
from grids import KIMI, query
from training import SETTINGS, Lab

from attnres_cli.config.recipe import load
from attnres_cli.config.shipped import suite
from attnres_cli.data import sources
from attnres_cli.nn import residual
from attnres_cli.records.gates import CAUSAL, REPEATS, TRACELESS
from attnres_cli.records.run import RunSpec
from attnres_cli.train.proving import prove, prove_start
from attnres_cli.train.trainer import Trainer

CHEATS = Path(__file__).parent.parent / "cheats.py"
SIX = {"batch_size": 6, "micro_batch_size": 6, "eval_tokens": 640}
SHORT = ["--recipe", "smoke", "--set", "model.seq_len=64", "--set", "train.tokens=8k"]
SHORT += ["--plugin", str(CHEATS), "--seeds", "2", "--in-process"]


@cache
def cheats() -> dict[str, type[residual.Residual]]:
    """The designs of the plugin, which is imported once."""
    before = set(residual.registry())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
        residual.add_plugin(str(CHEATS))
        patch.setenv(residual.PLUGINS, "")
        return {name: cls for name, cls in residual._REGISTRY.items() if name not in before}


@pytest.fixture(autouse=True)
def _cheats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual, "_REGISTRY", residual._REGISTRY | cheats())


@pytest.fixture
def cheat(lab: Lab):
    """A trainer of a design, on sequences that are long enough for it."""
    return lambda name: lab.trainer(name, model={"seq_len": 64}, train=SIX)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("at48", "evaluation"),
        ("in_float32", "evaluation"),
        ("in_evaluation", "evaluation"),
        ("batch_mean", "evaluation"),
        ("chunk_mean", "evaluation"),
    ],
)
def test_a_design_that_leaks_is_found_before_its_first_step(name: str, mode: str, cheat):
    found = prove_start(cheat(name))

    assert f"moved off their start, in {mode}" in found[CAUSAL]
    assert "change what sublayer 2 reads at position" in found[CAUSAL]
    assert ("other sequences" in found[CAUSAL]) == (name == "batch_mean")
    assert not found[REPEATS]


def test_a_leak_behind_a_gate_shows_when_the_gate_opens(cheat):
    trainer = cheat("chunk_mean")
    assert not any(prove(trainer).values())

    with torch.no_grad():
        trainer.model.residual.gate.fill_(0.01)

    assert "with its trained weights" in prove(trainer)[CAUSAL]


def test_chance_and_memory_are_no_leak_but_fail_too(cheat):
    assert "gives other numbers when it is computed again" in prove(cheat("coin"))[REPEATS]
    found = prove(cheat("remembers"))
    assert "leaves a trace in the design: last" in found[TRACELESS]
    assert not found[CAUSAL]


def test_what_rounding_hides_passes(cheat):
    assert not any(prove(cheat("whispers")).values())


def test_a_start_is_proven_without_a_trace(lab: Lab):
    trainer = lab.trainer("attnres:heads=2")
    before = [parameter.clone() for parameter in trainer.model.parameters()]

    assert not any(prove_start(trainer).values())

    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert trainer.model.training


def test_every_design_proves_itself_before_and_after_a_step(lab: Lab, subtests: pytest.Subtests):
    for spec in suite("all"):
        with subtests.test(spec=spec):
            trainer = lab.trainer(spec)
            assert not any(prove_start(trainer).values())
            trainer.step(0)
            assert not any(prove(trainer).values())


@pytest.mark.parametrize("changes", [KIMI[1::2], ["data.source=pointers"]], ids=["kimi", "task"])
def test_the_papers_trunk_and_a_generated_task_prove_themselves(changes: list[str]):
    recipe = load("smoke", changes)
    tokens = sources.load(recipe)
    spec = RunSpec(recipe, "attnres", 0, tokens.fingerprint)
    trainer = Trainer(spec, tokens, SETTINGS, torch.device("cpu"))

    assert not any(prove_start(trainer).values())
    trainer.step(0)
    assert not any(prove(trainer).values())


@pytest.mark.parametrize(
    "name", ["at48", "in_float32", "in_evaluation", "batch_mean", "chunk_mean", "coin"]
)
def test_a_cheat_is_refused_before_anything_is_trained(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    study = str(tmp_path / "study.db")

    code, _, err = Attnres(capsys)("ablate", "standard", name, *SHORT, "--study", study)

    assert code == 2
    what = "other numbers when the same is computed again" if name == "coin" else "it mixes tokens"
    assert what in err
    assert not Path(study).exists()


def test_a_run_that_fails_its_proof_is_kept_blocked_and_trained_again_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    study, run = str(tmp_path / "attnres.db"), Attnres(capsys)
    command = ("ablate", "standard", "once_trained", *SHORT, "--study", study)

    code, out, err = run(*command, "--format", "json")

    assert code == 3
    assert "--retry-failed trains them again" in err
    (arm,) = [arm for arm in json.loads(out)["arms"] if arm["variant"] == "once_trained"]
    assert arm["verdict"] == "blocked"
    assert "fails a proof: with its trained weights, in evaluation, tokens changed" in arm["reason"]
    losses = "SELECT val_loss, status FROM attnres_runs WHERE variant = 'once_trained' ORDER BY id"
    kept = query(tmp_path, losses)
    assert all(loss > 0 and status == "complete" for loss, status in kept)

    assert run(*command, "--retry-failed")[0] == 3
    assert query(tmp_path, losses) == kept


def test_what_is_only_doubtful_is_said_beside_the_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    study, run = str(tmp_path / "attnres.db"), Attnres(capsys)

    code, out, _ = run("ablate", "standard", "detached", *SHORT, "--study", study)

    assert code == 0
    assert "detached is identical to standard" in out
    assert "detached: some of its parameters can never learn" in out
