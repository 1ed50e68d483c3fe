"""What many tests need: tiny shapes, a tiny recipe, a seeded generator."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from servers import Server, open_to_all, running

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.nn.shape import Shape

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several: torch, here and in what we start,
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # would else use all cores in each,
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # and threads that wait would keep them

for _number, _usual in (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL):
    if signal.getsignal(_number) is signal.SIG_IGN:  # in the background of a script, under nohup:
        signal.signal(_number, _usual)  # commands that we start would not heed it either

for _name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
              "ATTNRES_RETRY_S", "ATTNRES_CHECKPOINT_S", "ATTNRES_PLUGINS"):  # fmt: skip
    os.environ.pop(_name, None)  # whoever tests may have set them, and would see other output

_SLOW = [hypothesis.HealthCheck.too_slow]
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=_SLOW, derandomize=True)
hypothesis.settings.register_profile("dev", _PATIENT, max_examples=5)
hypothesis.settings.register_profile("nightly", _PATIENT, max_examples=100, derandomize=False)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

pytest_plugins = ["comparisons"]  # fixtures that tests of verdicts and of reports share


@pytest.fixture
def attnres(capsys: pytest.CaptureFixture[str]) -> Any:
    """The command `attnres`, in this process: `commands.Attnres`."""
    from commands import Attnres

    return Attnres(capsys)


@pytest.fixture(autouse=True)
def _on_a_fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no line be told only since this machine has more to do than one command of ours."""
    monkeypatch.setattr("attnres_cli.console._LONG_S", 600.0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny_shape() -> Shape:
    """Three layers, six sublayers, width 16, eleven tokens, and an eps too small to matter."""
    return Shape(3, 16, 2, 2, d_head=8, d_ff=24, vocab_size=11, seq_len=8, norm_eps=1e-12)


@pytest.fixture
def tiny_recipe() -> Recipe:
    """A recipe that trains six steps in a moment."""
    model = {"n_layers": 3, "d_model": 16, "n_heads": 2, "seq_len": 16}
    train = {"tokens": 384, "batch_size": 4, "eval_tokens": 256, "n_evals": 2}
    return validate({"name": "tiny", "model": model, "optim": {"lr": 1e-2}, "train": train}, "tiny")


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may enter, which a tmp_path is not."""
    with tempfile.TemporaryDirectory(prefix="attnres-", dir=open_to_all()) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for path in folder.iterdir():
            path.chmod(0o755)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with running() as server:
        yield server


@pytest.fixture
def database(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Server, str]]:
    """That server and the name of a new, empty database on it; files of runs go to `tmp_path`."""
    name = f"lab_{uuid.uuid4().hex[:12]}"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PGPASSWORD", "none")  # a command may set it: put back afterwards
    monkeypatch.delenv("PGPASSWORD")
    postgres.sql(f"CREATE DATABASE {name}")
    yield postgres, name
    postgres.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def any_study(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where to make a study: in a file and, slow, on PostgreSQL (tests/store/test_postgres.py)."""
    if request.param == "sqlite":
        return str(tmp_path / "study.db")
    server, name = request.getfixturevalue("database")
    return server.url(name)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may stop."""
    with running() as server:
        yield server
