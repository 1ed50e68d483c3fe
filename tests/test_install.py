"""What is packaged; and the built wheel, installed elsewhere, does what the clone does."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import setuptools

from attnres_cli.errors import installing

ROOT = Path(__file__).parent.parent
FOLDERS = {"variants": "attnres_variants", "recipes": "attnres_recipes"}
FOLDERS["attnres_cli"] = "attnres_cli"


def installed(path: Path) -> str:
    """Where a file or folder of the clone lies in site-packages."""
    folder, *inner = path.relative_to(ROOT).parts
    return "/".join([FOLDERS[folder], *inner])


def shipped() -> set[Path]:
    return {
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_every_package_and_every_file_beside_the_code_is_packaged(monkeypatch):
    asked: dict[str, Any] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **keys: asked.update(keys))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    globs = project["tool"]["setuptools"]["package-data"]

    runpy.run_path(str(ROOT / "setup.py"))

    packages = {installed(path.parent) for path in shipped() if path.name == "__init__.py"}
    assert {name.replace(".", "/") for name in asked["packages"]} == packages
    data = {path for path in shipped() if path.suffix != ".py"}
    listed = {
        found
        for package, patterns in globs.items()
        for path in ROOT.glob("*")
        if path.name in FOLDERS and package.split(".")[0] == FOLDERS[path.name]
        for pattern in patterns
        for found in path.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    assert data <= listed


def run(*command: str | Path, cwd: Path) -> str:
    """stdout of a command that sees no source folder of ours and no home."""
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "COLUMNS": "140"}
    env |= {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}
    return subprocess.check_output(list(map(str, command)), cwd=cwd, text=True, env=env)


@pytest.fixture(scope="module")
def attnres(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a wheel in an environment with this one's dependencies, in which somebody else
    has installed packages named `variants` and `recipes`.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns(".venv", ".git", "*.egg-info", "__pycache__", "build", "*.db*")
    shutil.copytree(ROOT, source, ignore=ignore)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("attnres_cli-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {installed(path) for path in shipped()}
    shutil.rmtree(source)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    ours = [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join(ours))  # of venvs upon others, all
    for foreign in ("variants", "recipes"):
        (site / foreign).mkdir()
        (site / foreign / "__init__.py").write_text(f"raise RuntimeError('{foreign}: not ours')")
    return folder / "venv" / "bin" / "attnres"


@pytest.mark.slow
def test_the_installed_command_trains_and_reports(attnres: Path, tmp_path: Path):
    names = ("standard", "attnres:block_size=2")
    typed = ("ablate", *names, "--recipe", "smoke", "--seeds", "2", "--format", "json")
    found = json.loads(run(attnres, *typed, cwd=tmp_path))
    again = run(attnres, "report", "--format", "json", cwd=tmp_path)
    assert {arm["variant"] for arm in found["arms"]} == set(names)
    assert json.loads(again) == found


@pytest.mark.slow
def test_the_installed_packages_are_those_of_the_wheel(attnres: Path, tmp_path: Path):
    program = "import attnres_cli, attnres_variants, attnres_recipes; print(attnres_cli.__file__)"
    names = "from attnres_cli.errors import installing; print(installing('postgres'))"
    python = attnres.with_name("python")
    listed = run(attnres, "recipes", cwd=tmp_path) + run(attnres, "variants", cwd=tmp_path)
    assert run(python, "-c", program, cwd=tmp_path).startswith(str(attnres.parent.parent))
    folders = (ROOT / "recipes", ROOT / "recipes" / "suites")
    names_ = [path.stem for folder in folders for path in folder.glob("*.yaml")]
    assert all(name in listed for name in (*names_, "standard", "denseformer", "attnres"))
    assert run(python, "-c", names, cwd=tmp_path) == "pip install 'psycopg[binary]>=3.2'\n"


def test_the_command_for_a_missing_extra_names_the_clone():
    assert installing("ray") == f"pip install -e {shlex.quote(f'{ROOT}[ray]')}"
