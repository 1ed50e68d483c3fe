"""The page: well-formed, whole in one file, open to everyone, and never saying more than it may."""

from __future__ import annotations

import html
import itertools
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from comparisons import BASE, BETTER

from attnres_cli.cli.app import app
from attnres_cli.cli.options import read_seeds
from attnres_cli.config import as_typed
from attnres_cli.config.as_typed import overrides_of
from attnres_cli.config.recipe import load, validate
from attnres_cli.records.comparison_terms import ArmRecipe, Terms, Tuned
from attnres_cli.records.run import Status
from attnres_cli.report import page as page_module
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.page import to_html

VOID = {"meta", "br", "link", "img"}
SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """Elements of a page in their order; every one has to be closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    def names(self) -> list[str | None]:
        """All ids; each is there once."""
        found = [held["id"] for _, held in self.elements if "id" in held]
        assert len(found) == len(set(found))
        return found

    def check_headings(self) -> None:
        """They begin with the only one of level 1 and go down one level at a time."""
        levels = [int(tag[1]) for tag, _ in self.elements if re.fullmatch(r"h\d", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


@pytest.fixture
def study(make_arm, make_run):
    """A baseline, a better arm, blocks of two sizes, and a failed run with an unkind error."""
    return [
        *make_arm("standard", *BASE[:3]),
        *make_arm("attnres", *BETTER[:3]),
        *make_arm("attnres:block_size=2", 1.44, 1.69, 1.55),
        *make_arm("attnres:block_size=4", 1.47, 1.66, 1.63),
        make_run("broken", 0, status=Status.FAILED, error="ValueError: <script>alert(1)</script>"),
    ]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without figures, which take most of the time."""
    monkeypatch.setattr(page_module, "drawings", lambda chapter, without: [])


def test_a_page_is_open_to_everyone_and_asks_for_nothing(make_chapter, study, subtests):
    page = to_html([make_chapter(study)])
    found = Page(page)

    with subtests.test("no name is given twice, and what is linked is there"):
        names = found.names()
        used = re.findall(r"(?:href=\"#|url\(#)([^\")]+)", page)
        assert used
        assert set(used) <= set(names)
    with subtests.test("nothing comes from elsewhere"):
        links = {"src", "href", "xlink:href", "data", "action", "srcset", "poster"}
        for _, held in found.elements:
            for name in links & held.keys():
                assert held[name].startswith(("#", "data:image/png;base64,"))
        assert not found.all("link", "iframe", "object", "embed", "img")
        assert found.all("script") == [{}]
        assert "@import" not in page
        assert set(re.findall(r"url\((.)", page)) <= {"#"}
    with subtests.test("every figure has a title, and words for people who cannot see it"):
        figures = re.findall(r"<figure id='c1-(\w+)'>.*?(<svg.*?</svg>)", page, flags=re.DOTALL)
        names = ["curves", "cost", "blocks", "depth", "mixing"]
        assert [name for name, _ in figures] == names
        for name, svg in figures:
            root = ET.fromstring(svg)
            title, told = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
            assert root.get("role") == "img"
            assert root.get("aria-labelledby") == f"{title.get('id')} {told.get('id')}"
            assert title.text
            assert "102,400 tokens per run" in told.text, name
    with subtests.test("every table has a caption, and headers for rows and columns"):
        tables = re.findall(r"<table.*?</table>", page, flags=re.DOTALL)
        assert len(tables) == 6  # verdicts, failures, gates, recipe, commands, the paper's
        for table in tables:
            head = re.findall(r"<th scope='col'[^>]*>([^<]+)</th>", table)
            assert re.search(r"<caption><span>\S", table)
            for row in re.findall(r"<tr>(.*?)</tr>", table, flags=re.DOTALL)[1:]:
                assert row.startswith("<th scope='row'")
                assert len(re.findall(r"<t[hd]\b", row)) == len(head)
    with subtests.test("headings go down one level at a time"):
        found.check_headings()
    with subtests.test("names are text"):
        assert "ValueError: &lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_study_without_an_answer_says_why(undrawn, make_chapter, make_run, make_arm):
    failed = make_run("standard", 0, status=Status.FAILED, error="Traceback\nValueError: why")
    for runs, words in (
        ([failed], ("No answer: no run has ended (1 failed)", "ValueError: why")),
        (make_arm("standard", 1.5), ("Only the baseline standard has been trained",)),
        (make_arm("attnres", 1.4, 1.5), ("<code>attnres ablate standard</code>",)),
    ):
        text = to_html([make_chapter(runs)])
        Page(text)
        assert [each for each in words if each not in text] == []


def test_a_page_has_the_papers_arms_and_no_password(undrawn, make_chapter, make_arm, study):
    chapter = replace(make_chapter(study), study="postgresql+psycopg://me:s3cr@t@host:5432/lab")
    other = [*make_arm("standard", 1.5, 1.6), *make_arm("laurel", 1.4, 1.6)]

    text = to_html([chapter])

    assert "s3cr" not in text
    assert "attnres verify 1 --study postgresql+psycopg://me@host:5432/lab" in text
    assert "<h2>Beside the paper</h2>" in text
    assert text.count("coefficients are rounded") == 1
    assert "Beside the paper" not in to_html([make_chapter(other)])


def test_recipes_of_one_study_are_sorted_by_size_and_never_pooled(undrawn, make_chapter, make_arm):
    def chapter(digest: str, overrides: list[str], *losses: float):
        runs = make_arm("standard", *losses, recipe=("smoke", digest))
        runs += make_arm("attnres", *[v - 0.1 * v for v in losses], recipe=("smoke", digest))
        return replace(make_chapter(runs), recipes={digest: load("smoke", overrides)})

    text = to_html(
        [
            chapter("aaaaaaaaaaaa", ["model.n_layers=4", "optim.lr=0.01"], 1.4, 1.5, 1.45),
            chapter("bbbbbbbbbbbb", ["train.tokens=8k"], 1.3),
            chapter("cccccccccccc", [], 1.6, 1.7, 1.65),
        ]
    )

    assert re.findall(r"<h2>([^<]*)</h2>", text) == [
        "Recipe smoke (cccccccccccc), 2 layers of width 32, lr 0.02, tokens 16,000, the same for "
        "every arm",
        "Recipe smoke (aaaaaaaaaaaa), 4 layers of width 32, lr 0.01, tokens 16,000, the same for "
        "every arm",
        "Beside the paper",
        "Recipes without a verdict",
    ]
    assert text.count("<p class='answer'>") == text.count("<article>") == 2
    links = {held["href"] for held in Page(text).all("a")}
    assert links == {"#c1", "#c2"} <= {f"#{name}" for name in Page(text).names()}
    row = re.search(r"<tr><th scope='row'[^>]*>Recipe smoke \(bbbb.*?</tr>", text, re.DOTALL)
    assert "attnres (1 of 5 seeds)" in row[0]
    assert "<title>attnres: 3 recipes of my.db, never pooled</title>" in text
    assert "with 2 to 4 layers of width 32" in text


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["train.tokens=48k", "optim.lr=3.3e-3"],
        ["data.source=recall", "data.pairs=4", "train.compile=off"],
        ["data.source=text", "data.path=my text/0.txt", "model.tie_embeddings=true"],
        ["data.source=text", 'data.path="no"'],
        ["data.source=text", 'data.path="1e-3: [a"'],
        ["data.source=huggingface", "data.path=wikitext", 'data.subset="no"'],
        None,  # a recipe of one's own, which starts from a shipped one
    ],
)
def test_a_rows_command_makes_the_recipe_of_its_runs(overrides: list[str] | None, tiny_recipe):
    mine = validate(tiny_recipe.model_dump() | {"name": "mine"}, "mine")
    recipe = mine if overrides is None else load("smoke", overrides)

    name, found = overrides_of(recipe)

    assert load(name, found).digest == recipe.digest
    assert load(name, found).data == recipe.data


@pytest.mark.parametrize("seeds", [(7,), (0,), (0, 1, 2), (3, 8)])
def test_a_rows_command_trains_its_seeds_and_no_others(make_chapter, make_run, seeds, monkeypatch):
    runs = [make_run(arm, seed, val_loss=1.5) for arm in ("standard", "attnres") for seed in seeds]
    chapter = make_chapter(runs)

    words = shlex.split(chapter.command(chapter.comparison.arms[1]))

    assert words[:4] == ["attnres", "ablate", "standard", "attnres"]
    assert read_seeds(words[words.index("--seeds") + 1]) == seeds
    commands = {command.callback.__name__: command for command in app.registered_commands}
    known = commands["ablate"].callback.__annotations__
    assert {word[2:] for word in words if word.startswith("--")} - {"set", "recipe"} <= set(known)
    monkeypatch.setattr(as_typed.recipes, "load", lambda *_: load("quick"))
    assert overrides_of(load("smoke", ["optim.lr=3.3e-3"])) is None  # no command gives it
    assert {chapter.command(arm) for arm in chapter.comparison.arms} == {""}


def test_a_plugins_commands_name_its_file(undrawn, make_chapter, make_run, tmp_path, monkeypatch):
    runs = [make_run(arm, s, val_loss=1.5) for arm in ("standard", "mine:x=2") for s in (0, 1)]
    chapter = make_chapter(runs)
    base, mine = chapter.comparison.arms
    assert " --plugin FILE --device " in chapter.command(mine)
    assert "FILE stands for the plugin" in to_html([chapter])

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for file, typed in (("here/my own.py", "'my own.py'"), ("a.py", str(tmp_path / "a.py"))):
        (tmp_path / file).write_text("@own.register('mine')\nclass Mine:\n    pass\n")
        monkeypatch.setenv("ATTNRES_PLUGINS", str(tmp_path / file))
        page = html.unescape(to_html([chapter]))

        assert f" --plugin {typed} --device " in chapter.command(mine)
        assert page.count(f" --plugin {typed}") == 1 + 2  # and in those that verify its runs
        assert "--plugin" not in chapter.command(base)
        assert "FILE stands for" not in page


def test_an_arm_with_a_rate_of_its_own_is_reproduced_at_it(make_chapter, study):
    chapter, mine = make_chapter(study), load("smoke", ["optim.lr=0.0141"])
    how = Tuned(0.02, (0.01, 0.02), (1.4, 1.5), (1_000_000,), 0.0141, is_on_edge=False, fit="best")
    terms = Terms(is_tuned=True)
    own = ArmRecipe("abcdef012345", "0123456789abcdef", terms, "attnres", mine.digest, how)
    arm = replace(chapter.comparison.arms[1], recipe_digest=mine.digest, own=own)

    command = replace(chapter, recipes={mine.digest: mine}).command(arm)

    assert command.startswith("attnres ablate attnres --recipe smoke --set optim.lr=0.0141")
    assert "--baseline attnres" in command


def test_a_page_of_many_answers_begins_with_them_and_says_once_what_qualifies_all():
    parts, doubts = [Part(text=["x"])], {n: ["exploratory", f"a doubt about {n}"] for n in range(9)}
    sections = [
        Section(f"Part {n}", f"c{n}", parts, f"Answer {n}.", doubts[n], n > 5) for n in range(1, 9)
    ]

    text = page("attnres: many", "Which?", sections, "my.db")

    top, *parts = text.split("<section id=")
    assert [f"Answer {n}." in top for n in range(1, 9)] == [True] * 5 + [False] * 3
    assert top.count("But: exploratory") == 1
    assert "a doubt about" not in top
    assert all(f"Answer {n}." in part for n, part in enumerate(parts, 1))
    assert all(f"But: a doubt about {n}" in part for n, part in enumerate(parts, 1))
