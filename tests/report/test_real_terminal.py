"""Reports in a terminal of 80 and of 160 columns: nothing wider than it, names cut at last."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from comparisons import grown
from studies import fill

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")

LONG = "attnres:block_size=4,heads=16,key_norm=off,score=sigmoid"
LOSSES = {
    "standard": [1.50, 1.70, 1.60, 1.40, 1.55],
    "attnres": [1.401, 1.600, 1.500, 1.301, 1.451],
    LONG: [1.602, 1.801, 1.700, 1.501, 1.650],
    "attnres:block_size=4": [1.45, 1.72, 1.63, 1.41, 1.52],
    "mhc:residual=lite": [1.5],
}
WORDS = {
    (): ("better", "worse", "inconclusive", "blocked"),
    ("--scaling", "--notes"): ("multiplier [95 %]", "one size left out", "without E"),
    ("--against", "paper", "--notes"): (
        "same sign",
        "within noise",
        "not in the paper",
        "coefficients are",
    ),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sizes, arms with long names, every verdict."""
    path = tmp_path_factory.mktemp("terminal") / "attnres.db"
    for n_layers in (2, 4, 8, 16):
        losses = {name: [loss / n_layers**0.1 for loss in of] for name, of in LOSSES.items()}
        fill(path, grown(n_layers), losses, flops_per_token=10**9 * n_layers**2)
    return path


def shown(study: Path, columns: int, *options: str) -> str:
    """What both streams of `attnres report` show in a terminal of so many columns."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {key: os.environ[key] for key in os.environ.keys() - {"COLUMNS", "LINES", "NO_COLOR"}}
    running = subprocess.Popen(
        [sys.executable, "-m", "attnres_cli", "report", "--study", str(study), *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm-256color"},
    )
    os.close(theirs)
    found = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end was closed
        while read := os.read(ours, 65536):
            found += read
    os.close(ours)
    assert running.wait() == 0, found.decode()
    return found.decode().replace("\r", "")


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        pytest.param((), 80, marks=pytest.mark.slow),
        pytest.param(("--scaling", "--notes"), 80, marks=pytest.mark.slow),
        pytest.param((), 160, marks=pytest.mark.nightly),
        pytest.param(("--against", "paper", "--notes"), 80, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_terminal_shows_names_and_verdicts_whole(options, columns: int, study: Path):
    text = shown(study, columns, *options)

    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()  # without colors and styles
    assert max(len(line) for line in lines if ": attnres " not in line) <= columns  # but commands
    if options:
        assert "…" not in text
    names = "".join(line.removeprefix(" ").partition(" ")[0] for line in lines)  # or their pieces
    arms = [name for name in LOSSES if "--scaling" not in options or len(LOSSES[name]) > 1]
    cut = LONG if options or columns > 80 else f"{LONG[:9]}…{LONG[-8:]}"
    assert [each for each in arms if each.replace(LONG, cut) not in names] == []
    flat = " ".join(" ".join(lines).split())
    assert [words for words in WORDS[options] if words not in flat] == []
    assert len(re.findall(r"\[[+-]?[0-9.]+, [+-]?[0-9.]+\]", text)) >= 3  # unbroken intervals
