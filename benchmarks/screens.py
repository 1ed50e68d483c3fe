"""What a person sees, as pictures: docs/images/screens/, made by running the commands.

    python benchmarks/screens.py

Every picture is of a command that runs here, in a pseudo-terminal of so many columns: a comparison
with its live view, its verdict at three widths, a search, `verify`; the verdict of 38 arms from
docs/results/reference.db.xz, and the first screen of its page in Chromium. It takes some minutes.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from pictures import BROWSER
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
SCREENS = ROOT / "docs" / "images" / "screens"
WIDTHS = (80, 100, 160)
THREE = ("ablate", "standard", "attnres", "denseformer", "--recipe", "smoke", "--seeds", "5")
SEARCH = (
    *("search", "standard", "attnres", "--recipe", "smoke", "--budget", "params=150k"),
    *("--space", "n_layers=1..6,n_blocks=1..3", "--trials", "12", "--confirm", "3"),
)
QUICK = ("--study", "reference.db", "--recipe", "quick")
_REDRAWN = re.compile(r"\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)+")
_CONTROL = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[AK]|\r")


def run(folder: Path, columns: int, *words: str) -> list[str]:
    """What `attnres` shows in a terminal, as the frames that replace each other at its end."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "attnres_cli", *words]
    process = subprocess.Popen(  # noqa: S603
        command, cwd=folder, env=environment, stdin=writer, stdout=writer, stderr=writer
    )
    os.close(writer)
    said = b""
    try:
        while part := os.read(reader, 65536):
            said += part
    except OSError:  # as Linux says that nobody writes any more
        pass
    if process.wait():
        sys.exit(f"attnres {' '.join(words)}: {said.decode()[-2000:]}")
    return [_CONTROL.sub("", frame) for frame in _REDRAWN.split(said.decode())]


def save(name: str, columns: int, words: tuple[str, ...], text: str) -> None:
    """One screen as SVG, below the command that gave it."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=columns, file=nowhere)
        console.print(Text(f"$ attnres {' '.join(words)}", style="bold"))
        console.print(Text.from_ansi(text.strip("\n")))
        console.save_svg(str(SCREENS / f"{name}.svg"), title="attnres")


def photograph(page: Path, to: Path) -> None:
    """The first screen of a page, 1200 x 800."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1200, "height": 800})
        view.goto(page.as_uri())
        view.screenshot(path=str(to))
        browser.close()


def main() -> None:
    """Run everything, and draw it."""
    SCREENS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frames = run(folder, 100, *THREE)
        plan = frames[0].partition("\N{BOX DRAWINGS HEAVY HORIZONTAL}")[0]
        save("live", 100, THREE, plan + max(frames[1:-1], key=len))
        for columns in WIDTHS:
            save(f"verdict-3-{columns}", columns, ("report",), run(folder, columns, "report")[-1])
        save("verify", 100, ("verify", "1"), run(folder, 100, "verify", "1")[-1])
        save("search", 100, SEARCH, run(folder, 100, *SEARCH)[-1])
        packed = ROOT / "docs" / "results" / "reference.db.xz"
        (folder / "reference.db").write_bytes(lzma.decompress(packed.read_bytes()))
        for columns in WIDTHS:
            shown = run(folder, columns, "report", *QUICK)[-1]
            save(f"verdict-38-{columns}", columns, ("report", *QUICK), shown)
        run(folder, 100, "report", *QUICK, "--format", "html", "--output", "page.html")
        if BROWSER is None:
            sys.exit("no page.png: Chromium is not installed (apt install chromium)")
        photograph(folder / "page.html", SCREENS / "page.png")


if __name__ == "__main__":
    main()
