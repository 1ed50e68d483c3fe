"""The docstring of a design has an equation, parts and options."""

from __future__ import annotations

import pytest

from attnres_cli.nn import design_page
from attnres_cli.nn.residual import registry

PARTS = ["Symbols", "Start", "Parameters", "Depth mixing", "Source"]


class Documented:
    """mine: h = x + y.

    Symbols: x the stream;
    y the output.

    Options:
        gain    what y is multiplied by,
                at the start.
        shared  one for all.

    Source: me.
    """


def test_a_page_has_the_equation_the_parts_and_the_meaning_of_options():
    page = design_page.page_of(Documented)

    assert page.equation == "h = x + y."
    assert list(page.parts) == ["Symbols", "Options", "Source"]
    assert page.parts["Symbols"] == "x the stream;\ny the output."
    assert page.options == {
        "gain": "what y is multiplied by, at the start.",
        "shared": "one for all.",
    }


def test_a_class_without_a_docstring_has_that_of_its_module():
    class Plain:
        pass

    page = design_page.page_of(Plain)

    assert page.text == __doc__
    assert page.equation == ""


def test_every_design_documents_all_parts(subtests: pytest.Subtests):
    for name, cls in registry().items():
        with subtests.test(name=name):
            page = design_page.page_of(cls)

            assert len(page.equation) < 100
            assert [part for part in PARTS if part not in page.parts] == []


def test_a_class_made_by_hand_has_no_file():
    assert design_page.file_of(Documented).endswith("test_design_page.py")
    assert design_page.file_of(type("Made", (), {"__module__": "nowhere"})) == ""
