"""What `--launch` gives to a cluster, and what it refuses in one line."""

from __future__ import annotations

import pytest
from commands import Attnres

from attnres_cli.cli.launching import claimers_words

URL = "postgresql+psycopg://lab@127.0.0.1:1/lab"
SMOKE = ("ablate", "standard", "--recipe", "smoke")


@pytest.fixture(autouse=True)
def _forget_the_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPASSWORD", "none")  # a command may set it: put back afterwards


def test_a_claimer_is_the_command_with_one_worker_and_without_our_own_options():
    typed = ["-q", "ablate", "standard", "--launch=slurm", "--seeds", "2", "--workers", "8"]
    typed += ["--job", "time=90", "--study", "postgresql+psycopg://lab:secret@h/lab", "--print"]

    found = claimers_words([*typed, "--", "attnres"], "postgresql+psycopg://lab@h/lab")

    assert found[:5] == ["-q", "ablate", "standard", "--seeds", "2"]
    assert found[5:9] == ["--workers", "1", "--study", "postgresql+psycopg://lab@h/lab"]
    assert found[9:] == ["--", "attnres"]


@pytest.mark.parametrize(
    "command", [SMOKE, ("search", "standard", "--recipe", "smoke", "--budget", "params=60k")]
)
def test_the_script_has_the_command_and_no_password(command: tuple[str, ...], attnres: Attnres):
    launch = ("--launch", "slurm", "--workers", "3", "--job", "time=4:00:00", "--print")
    secret = URL.replace("lab@", "lab:secret@")

    out = attnres.prints(*command, *launch, "--study", secret)

    assert "#SBATCH --array=0-2\n#SBATCH" in out
    assert "#SBATCH --time=4:00:00\n" in out
    assert f"attnres_cli {' '.join(command)} --workers 1 --study {URL} &\n" in out
    assert "secret" not in out


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--launch slrm", "did you mean 'slurm'"),
        ("--launch slurm", "how many jobs? --workers N"),
        ("--launch slurm --workers 2", "several machines need a study on a server"),
        ("--launch ray --workers 2 --print", "--print prints the batch script of"),
        ("--launch ray --workers 2 --job num_gpus", "takes name=value"),
        ("--launch ray --workers 1 --in-process", "leave --launch ray out"),
        ("--job time=90", "--job is for --launch"),
        (f"standart --launch slurm --workers 2 --study {URL}", "did you mean 'standard'"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_submitted(
    typed: str, message: str, attnres: Attnres
):
    assert message in attnres.refuses(*SMOKE, *typed.split())
