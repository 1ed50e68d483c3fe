"""Every command that the README shows is run here, with a recipe of seconds where it trains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attnres_variants.attnres import AttnRes

from attnres_cli.nn.model import Transformer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.+?)(?:\s+#.*)?$", README, flags=re.MULTILINE)
ATTNRES = [line for line in COMMANDS if line.startswith("attnres ")]
MAKE = [line for line in COMMANDS if line.startswith("make ")]
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SERVER = "postgresql+psycopg://lab@db.example/lab"
BRIEFLY = " --recipe smoke --seeds 1 --set train.tokens=2k"


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    bin_folder = str(Path(sys.executable).parent)
    path = bin_folder + os.pathsep + os.environ["PATH"]
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"PATH": path, "COLUMNS": "140"} | environment,
    )


def with_study(command: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """The command on a server of ours, in whose database something has been trained."""
    server, name = request.getfixturevalue("database")
    study = server.url(name)
    if not command.startswith("attnres ablate"):
        done = run(f"attnres ablate standard --study {study}{BRIEFLY}", folder)
        assert done.returncode == 0, done.stderr
    return command.replace(SERVER, study)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some text of the user's and a study, as the README's reader has by then."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my_text").mkdir()
    for number in range(3):
        (folder / "my_text" / f"{number}.txt").write_text("a text of my own, " * 3000)
    done = run("attnres ablate" + BRIEFLY, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_readme_shows_commands():
    assert len(ATTNRES) >= 10
    assert {"make ablate", "make test"} == set(MAKE)
    assert len(MAKE) + len(ATTNRES) == len(COMMANDS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", ATTNRES)
def test_a_command_of_the_readme_runs(command: str, folder: Path, request: pytest.FixtureRequest):
    if SERVER in command:
        command = with_study(command, folder, request)
    trains = command.startswith("attnres ablate") and "--dry-run" not in command
    if command.startswith("attnres search") and "--dry-run" not in command:
        command += BRIEFLY + " --budget params=60k --trials 2 --confirm 1"
        command = command.replace("--budget params=700k", "")
    if command == "attnres bench":
        command += " --rounds 3"
    if "table4" in command:  # its 16 heads fit the width of recipe quick
        command += " --seeds 1"
    if command.startswith("attnres plan"):  # after seeds of the baseline, as the reader has by then
        prepared = run("attnres ablate standard" + BRIEFLY.replace("seeds 1", "seeds 2"), folder)
        assert prepared.returncode == 0, prepared.stderr
        command += " --recipe smoke"
    if "plan.yaml" in command:
        fixed = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)[-1]
        (folder / "plan.yaml").write_text(fixed)
    if "--scaling" in command:
        for depth in (2, 4):
            sized = BRIEFLY.replace("seeds 1", "seeds 2") + f" --set model.n_layers={depth}"
            prepared = run("attnres ablate standard attnres" + sized, folder)
            assert prepared.returncode == 0, prepared.stderr

    done = run(command + (BRIEFLY if trains else ""), folder)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("command", MAKE)
def test_make_knows_the_target_and_what_it_runs(command: str):
    done = run(f"{command} --dry-run --always-make", ROOT)

    assert done.returncode == 0, done.stderr
    wanted = {
        "make ablate": ["bin/attnres ablate"],
        "make test": ["ruff", "mypy", "lint-imports", "pytest"],
    }
    assert all(tool in done.stdout for tool in wanted[command])


@pytest.mark.slow
def test_the_readmes_own_design_is_found_compared_and_passes_the_contract(tmp_path: Path):
    copy = tmp_path / "clone"
    ignore = shutil.ignore_patterns(".venv", ".git", "*.egg-info", "__pycache__", "*.db*")
    shutil.copytree(ROOT, copy, ignore=ignore)
    (copy / "variants" / "halved.py").write_text(PYTHON[0])
    here = {"PYTHONPATH": str(copy)}

    compared = run("python -m attnres_cli ablate standard halved" + BRIEFLY, copy, **here)
    proved = run("python -m pytest tests/test_contract.py -q -k halved", copy, **here)

    assert compared.returncode == 0, compared.stderr
    assert "halved" in compared.stdout
    assert proved.returncode == 0, proved.stdout[-3000:]


def test_the_readmes_snippet_builds_a_model():
    names: dict[str, object] = {}

    exec(PYTHON[1], names)

    model = names["model"]
    assert isinstance(model, Transformer)
    assert isinstance(model.residual, AttnRes)
    assert names["tokens"].shape == (1, 17)


@pytest.mark.slow
def test_the_readmes_exported_run_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch):
    if not (folder / "winner").exists():
        done = run("attnres runs export 2 --output winner", folder)
        assert done.returncode == 0, done.stderr
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}

    exec(PYTHON[2], names)

    assert isinstance(names["model"], Transformer)


def test_the_readmes_tree_names_what_there_is():
    tree = README.split("## Where things are")[1].split("```")[1]
    named = re.findall(r"^  ([\w/.]+(?:  [\w/.]+)?)  ", tree, flags=re.MULTILINE)

    files = {name for entry in named for name in entry.split()}

    assert files
    for name in files:
        assert (ROOT / "attnres_cli" / name).exists(), name
    listed = {path.name for path in (ROOT / "attnres_cli").iterdir() if path.name[0] != "_"}
    assert listed <= {name.rstrip("/") for name in files}
