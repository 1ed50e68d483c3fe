"""The pictures of the README, drawn from losses.

    python benchmarks/pictures.py [attnres.db]

From docs/images/study.json: `terminal.svg` is the table of `attnres report` as a terminal shows it,
`page.png` the top of its page in Chromium (apt install chromium), `page.txt` what stands on that. A
study that is named first gives the losses: study.json is its `attnres report --format json`. A test
draws all but the page's picture again, so that they are always of the version that they stand in.
"""

from __future__ import annotations

import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.records.comparison_terms import ArmRecipe, Given, Terms, Tuned
from attnres_cli.records.gates import PROOFS
from attnres_cli.records.run import DataDescription, RunRecord, RunResult, Settings, Status
from attnres_cli.report import comparison as reported
from attnres_cli.report import page
from attnres_cli.report.table import brief
from attnres_cli.report.terminal import print_report
from attnres_cli.verdict.comparison import Comparison, Rules
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.report_section import Chapter

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
TERMINAL = {"COLUMNS": "100", "FORCE_COLOR": "1"}  # of the environment
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


def recipe_of(told: dict[str, Any]) -> Recipe:
    """The recipe that JSON tells of, which comes with the tool."""
    recipe = load(told["recipe"])
    if recipe.digest != told["recipe_digest"]:
        sys.exit(f"recipe {told['recipe']} is not that of the JSON: name a study of the new one")
    return recipe


def comparison(told: dict[str, Any]) -> Comparison:
    """The comparison that JSON tells of, judged again from its losses."""
    recipe, lines, held = recipe_of(told), told["reference"], told["data"]
    data = DataDescription(
        held["fingerprint"], held["source"], held["bytes"], held["vocab_size"],
        held["train_tokens"], held["val_tokens"], lines["unigram_loss"], lines["bigram_loss"],
        lines["floor"], lines["zlib_bits_per_byte"], lines["xz_bits_per_byte"], held["split"],
    )  # fmt: skip
    runs, own, terms = [], [], Terms(**told["terms"])
    versions = dict(part.split(" ") for part in told["versions"][0].split(", "))
    settings = Settings("cpu", "a CPU", "fp32", compiled=False, threads=1, engine="eager")
    for arm in told["arms"]:
        mine = (told["recipe"], arm["recipe_digest"], arm["variant"])
        if arm["own"]:
            how = (Tuned if "rates" in arm["own"] else Given)(**arm["own"])
            here = (recipe.digest, data.fingerprint, terms)
            own.append(ArmRecipe(*here, mine[2], mine[1], how, recipe.name))
        for seed, loss in arm["losses"].items():
            proofs = tuple((g["name"], "") for g in arm["gates"][seed] if g["name"] in PROOFS)
            gates = {gate["name"]: gate["value"] for gate in arm["gates"][seed]}
            result = RunResult(
                Status.COMPLETE, loss, gates["start"], recipe.steps, arm["tokens"], 0.0, 0.0, 0.0,
                0, arm["params"], arm["flops_per_token"], settings, (), proofs=proofs,
            )  # fmt: skip
            runs.append(
                RunRecord(
                    len(runs),
                    *mine,
                    int(seed),
                    data.fingerprint,
                    Status.COMPLETE,
                    versions=versions,
                    result=result,
                )
            )
    rules = Rules(
        told["margin"],
        told["slope"],
        eval_tokens=recipe.train.eval_tokens,
        is_registered=told["registered"].startswith("preregistered"),
    )
    found = compare(runs, data, told["baseline"], terms, own, rules)
    return replace(found, recipe=recipe.name)


def terminal(found: Comparison, path: Path) -> None:
    """What `attnres report` prints."""
    printed = io.StringIO()
    typed = (
        "Details: attnres report --notes",
        "Page: attnres report --format html --output report.html",
    )
    print_report(brief(reported.report_of([found]), *typed), printed)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=int(TERMINAL["COLUMNS"]), file=nowhere)
        console.print(Text("$ attnres report", style="bold"))
        console.print(Text.from_ansi(printed.getvalue().rstrip()))
        console.save_svg(str(path), title="attnres")


def page_of(found: Comparison) -> str:
    """The page of the comparison."""
    recipe = recipe_of({"recipe": found.recipe, "recipe_digest": found.recipe_digest})
    return page.to_html([Chapter(found, recipes={recipe.digest: recipe}, study="attnres.db")])


def top(whole: str) -> str:
    """What stands on a page down to its first figure, as text."""
    body = whole.partition("<main>")[2].partition("<h3>Figures</h3>")[0]
    text = html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"</(p|li|h\d|tr|caption)>", "\n", body)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def photograph(whole: str, path: Path) -> None:
    """The page down to its first figure, as wide as a laptop shows it."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "page.html")
        file.write_text(whole, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1280, "height": 1060})
        view.goto(file.as_uri())
        end = view.get_by_role("heading", name="Figures").bounding_box()
        height = 1060 if end is None else end["y"]
        view.screenshot(path=str(path), clip={"x": 0, "y": 0, "width": 1280, "height": height})
        browser.close()


def draw(images: Path) -> None:
    """All that needs no browser, from the losses that lie there, in the environment TERMINAL."""
    found = comparison(json.loads((images / "study.json").read_text(encoding="utf-8")))
    terminal(found, images / "terminal.svg")
    (images / "page.txt").write_text(top(page_of(found)), encoding="utf-8")


def main() -> None:
    """Draw all of them."""
    if len(sys.argv) > 1:
        command = [sys.executable, "-m", "attnres_cli", "report", "--study", sys.argv[1]]
        told = subprocess.run([*command, "--format", "json"], check=True, capture_output=True)  # noqa: S603
        (IMAGES / "study.json").write_bytes(told.stdout)
    os.environ |= TERMINAL
    draw(IMAGES)
    if BROWSER is None:
        sys.exit("no page.png: Chromium is not installed (apt install chromium)")
    told_by = json.loads((IMAGES / "study.json").read_text(encoding="utf-8"))
    photograph(page_of(comparison(told_by)), IMAGES / "page.png")


if __name__ == "__main__":
    main()
