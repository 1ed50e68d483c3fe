"""The built wheel, installed elsewhere, does what the clone does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    """stdout of a command that sees no source folder of ours and no home."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "COLUMNS": "140"}
    pip_settings = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | pip_settings,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def attnres(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a wheel in an environment of its own.

    Its dependencies are this environment's: installing torch once more proves nothing of ours.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns(".venv", ".git", "*.egg-info", "__pycache__", "build", "*.db*")
    shutil.copytree(ROOT, source, ignore=ignore)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("attnres_cli-*.whl")
    shutil.rmtree(source)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin" / "attnres"


def test_the_installed_command_trains_and_reports(attnres: Path, tmp_path: Path):
    out = run(
        attnres, "ablate", "standard", "attnres:block_size=2", "--recipe", "smoke", "--seeds", "2",
        "--format", "json", cwd=tmp_path,
    )  # fmt: skip
    again = run(attnres, "report", "--format", "json", cwd=tmp_path)

    assert {arm["variant"] for arm in json.loads(out)["arms"]} == {
        "standard",
        "attnres:block_size=2",
    }
    assert json.loads(again) == json.loads(out)


def test_the_installed_command_is_the_wheels_own(attnres: Path, tmp_path: Path):
    program = "import attnres_cli, attnres_variants, attnres_recipes; print(attnres_cli.__file__)"

    where = run(attnres.with_name("python"), "-c", program, cwd=tmp_path)

    assert where.startswith(str(attnres.parent.parent))


def test_the_wheel_holds_every_recipe_and_variant(attnres: Path, tmp_path: Path):
    listed = run(attnres, "recipes", cwd=tmp_path) + run(attnres, "variants", cwd=tmp_path)

    for folder in ("recipes", "recipes/suites"):
        for path in (ROOT / folder).glob("*.yaml"):
            assert path.stem in listed
    assert all(name in listed for name in ("standard", "denseformer", "attnres"))
