"""The pictures of the README, drawn from a study.

    python benchmarks/pictures.py attnres.db

`terminal.svg` is the table of `attnres report` as a terminal shows it, `page.png` the top of its
page in Chromium (apt install chromium). They go to docs/images, or to the folder that a second
argument names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS = 112
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


def report(study: str, *arguments: str) -> str:
    """What `attnres report` prints in a wide terminal with colours."""
    environment = os.environ | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "attnres_cli", "report", "--study", study, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)  # noqa: S603
    return done.stdout


def terminal(study: str, path: Path) -> None:
    """The title and the table, without the notes below it."""
    lines = report(study).splitlines()
    blank = [number for number, line in enumerate(lines) if not Text.from_ansi(line).plain.strip()]
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text("$ attnres report", style="bold"))
        console.print(Text.from_ansi("\n".join(lines[: blank[1]])))
        console.save_svg(str(path), title="attnres")


def page(study: str, folder: Path, path: Path) -> None:
    """The top of the page, as wide as a laptop shows it."""
    from playwright.sync_api import sync_playwright

    report(study, "--format", "html", "--output", str(folder / "page.html"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1280, "height": 1060})
        view.goto((folder / "page.html").as_uri())
        view.screenshot(path=str(path))
        browser.close()


def main() -> None:
    """Draw all of them."""
    study = str(Path(sys.argv[1]).resolve())
    images = Path(sys.argv[2]) if len(sys.argv) > 2 else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    terminal(study, images / "terminal.svg")
    if BROWSER is None:
        sys.exit("no page.png: Chromium is not installed (apt install chromium)")
    with tempfile.TemporaryDirectory() as made:
        page(study, Path(made), images / "page.png")


if __name__ == "__main__":
    main()
