"""With what a run was made: versions, source revision, machine."""

from __future__ import annotations

import platform
import socket
import subprocess
from functools import cache
from pathlib import Path

import torch

import attnres_cli
from attnres_cli.nn import code
from attnres_cli.nn.residual import Residual, registry
from attnres_cli.nn.variant import parse
from attnres_cli.records.code import Code
from attnres_cli.records.run import RunSpec, Settings
from attnres_cli.train.device import GPU_NUMERICS


@cache
def versions() -> dict[str, str]:
    """Names and versions that the study keeps with every run, those of git in a checkout only."""
    found = {
        "attnres": attnres_cli.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
    }
    revision = _git("rev-parse", "HEAD")
    if revision is not None:
        found["git_revision"] = revision
        found["git_dirty"] = "yes" if _git("status", "--porcelain") else "no"
    return found


def made_with(spec: RunSpec, settings: Settings) -> dict[str, str]:
    """The versions of everything that a run is made with, its code included, and what is set on a
    GPU.
    """
    on_gpu = GPU_NUMERICS if settings.device == "cuda" else {}
    return versions() | code_of(spec.variant).versions | on_gpu


def code_of(variant: str) -> Code:
    """The code by which this process trains a variant: files are read once, when first asked for,
    since what is imported already does not change with its file.
    """
    return _code_of(*parse(variant).classes)


def remember_code() -> None:
    """Read the code of all designs now that they have just been imported."""
    for cls in registry().values():
        _code_of(cls)


@cache
def _code_of(*classes: type[Residual]) -> Code:
    parts = {"design": code.of_design(*classes), **code.of_parts()}
    return Code.of({f"code_{part}": digest for part, digest in parts.items()})


def _git(*arguments: str) -> str | None:
    root = Path(attnres_cli.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(root), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
