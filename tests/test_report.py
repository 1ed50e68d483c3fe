"""`attnres report` on a study that was really trained: pages, figures and tables as files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from attnres_cli import cli
from attnres_cli.recipe import Recipe
from attnres_cli.run import DataFacts, RunSpec
from attnres_cli.store import Store

ARMS = ["standard", "attnres", "hc"]


def attnres(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command in this process."""
    argv, sys.argv = sys.argv, ["attnres", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = argv
    out, err = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), out, err


def test_a_trained_study_becomes_a_page_figures_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    brief = ("--recipe", "smoke", "--seeds", "2", "--set", "train.tokens=2k", "--workers", "1")
    trained = attnres(capsys, "ablate", *ARMS, *brief)

    page = attnres(capsys, "report", "--format", "html", "--output", "out/page.html")
    drawn = attnres(capsys, "report", "--figures", "out/figures/", "--format", "json")
    table = attnres(capsys, "report", "--format", "latex")
    told = attnres(capsys, "report", "--output", "out/table.txt")

    assert [code for code, *_ in (trained, page, drawn, table, told)] == [0] * 5
    html = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert page[1] == f"out/page.html  {len(html.encode()):,} bytes\n"
    for arm in ARMS:
        assert f"<code>{arm}</code>" in html
        assert rf"\texttt{{{arm}}}" in table[1]
    assert "--set train.tokens=2000 --seeds 2" in html
    assert "attnres verify 1" in html
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {f"{n}.svg" for n in ("forest", "curves", "cost", "depth", "mixing")}
    assert json.loads(drawn[1])["arms"][0]["variant"] == "standard"
    assert "figures in out/figures: forest.svg, curves.svg" in drawn[2]
    written = (tmp_path / "out" / "table.txt").read_text(encoding="utf-8")
    assert "recipe smoke, the same for every arm" in written


def test_a_study_in_which_nothing_has_ended_is_a_page_too(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny_recipe: Recipe,
):
    monkeypatch.chdir(tmp_path)
    facts = DataFacts("0123456789abcdef", "stdlib", 5000, 256, 4750, 250, 3.3, 2.4)
    spec = RunSpec(tiny_recipe, "standard", 0, facts.fingerprint)
    Store.open("attnres.db", create=True).plan([spec], facts)

    found = [
        attnres(capsys, "report", "--format", form, "--figures", "figures")
        for form in ("html", "latex", "json", "markdown", "csv", "table")
    ]

    assert [code for code, *_ in found] == [0] * 6
    assert "No answer: no run has ended (1 waiting or running)" in found[0][1]
    assert all("no figures: no run has ended" in err for *_, err in found)


def test_an_empty_study_says_what_fills_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Store.open("attnres.db", create=True)

    code, out, err = attnres(capsys, "report", "--format", "html", "--output", "page.html")

    assert (code, out) == (2, "")
    assert "study attnres.db holds no runs yet: `attnres ablate --study attnres.db`" in err
    assert not (tmp_path / "page.html").exists()
