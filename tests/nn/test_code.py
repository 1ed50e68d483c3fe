"""Digests of code change with what the code does, and not with how it is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attnres_cli.nn import code
from attnres_cli.nn.residual import registry

DESIGN = '''
"""A design."""
from .parts.sums import added
import json

class Design:
    """What it is."""

    def read(self, state, width=3):
        return f"{added(state):>{width}.2f}"
'''
HELPER = "def added(x):\n    return x + 1\n"
CHANGES = {
    "a remark": (("    def read", "    # a remark\n    def read"), False),
    "a docstring": (('"""What it is."""', '"""What it was."""'), False),
    "no docstring": (('    """What it is."""\n\n', ""), False),
    "layout": (("state, width=3", "state,\n        width=3,\n    "), False),
    "a number": (("width=3", "width=4"), True),
    "a number's type": (("width=3", "width=3.0"), True),
    "a name": (("read", "reads"), True),
}


@pytest.fixture
def design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The digest of a design of these files."""
    folder = tmp_path / "folder"

    def digest(text: str = DESIGN, helper: str = HELPER) -> str:
        (folder / "parts").mkdir(parents=True, exist_ok=True)
        (folder / "mine.py").write_text(text)
        (folder / "parts" / "sums.py").write_text(helper)
        (folder / "other.py").write_text("1 +")
        module = type(sys)("package.mine")
        module.__file__ = str(folder / "mine.py")
        monkeypatch.setitem(sys.modules, "package.mine", module)
        return code.of_design(type("Design", (), {"__module__": "package.mine"}))

    return digest


@pytest.mark.parametrize("what", CHANGES)
def test_a_digest_changes_with_what_code_does(what: str, design):
    (old, new), changes = CHANGES[what]
    before = design()

    assert old in DESIGN
    assert (design(DESIGN.replace(old, new)) != before) is changes


def test_a_digest_includes_the_files_that_a_design_imports(design):
    before = design()

    assert before == "b23c87bd5719"  # under every Python
    assert design(helper=HELPER + "# a remark\n") == before
    assert design(helper=HELPER.replace("1", "2")) != before
    assert design(text="def read(:") == ""
    assert code.of_design(type("Made", (), {"__module__": "nowhere"})) == ""


def test_every_design_has_its_own_digest_with_its_helpers():
    digests = {cls.__module__: code.of_design(cls) for cls in registry().values()}

    assert len(set(digests.values())) == len(digests)
    assert all(len(digest) == 12 for digest in digests.values())
    file = Path(sys.modules["attnres_variants.attnres"].__file__)
    found = code._with_helpers(file, "attnres_variants")
    assert {path.name for path in found} >= {"attnres.py", "sources.py"}


def test_every_part_that_decides_numbers_has_a_digest():
    assert code.of_parts().keys() == {"trunk", "engine", "loop", "data"}
    assert all(len(digest) == 12 for digest in code.of_parts().values())
