"""The registry and the grammar of specs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import attnres

from attnres_cli.nn import residual
from attnres_cli.nn.addon import Addon
from attnres_cli.nn.design_page import page_of
from attnres_cli.nn.residual import Norms, Residual, VariantError, register
from attnres_cli.nn.variant import parse


class Plain(Residual):
    """A design of a user's own."""

    def write(self, state, l, y):
        return state + y


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch):
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("attnres:heads=8,block_size=4,key_norm=on", "attnres:block_size=4,heads=8"),
        (" standard ", "standard"),
        ("attnres:window=none", "attnres"),
        ("attnres:block_size=1,heads=1", "attnres"),
        ("delta:block_size=1,gate=none,partial=on", "delta"),
    ],
)
def test_options_are_sorted_and_defaults_and_spaces_dropped(spec: str, canonical: str):
    assert str(parse(spec)) == canonical


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("standart", ["unknown variant 'standart'", "did you mean 'standard'?"]),
        ("attnres:blok_size=4", ["unknown option of attnres 'blok_size'", "'block_size'"]),
        ("attnres:block_size=four", ["block_size", "a whole number", "'four'"]),
        ("attnres:block_size=4.5", ["block_size", "a whole number", "'4.5'"]),
        ("attnres:key_norm=maybe", ["key_norm", "on or off", "'maybe'"]),
        ("attnres:norm=softmin", ["norm", "softmax or sigmoid", "'softmin'"]),
        ("attnres:window=wide", ["window", "a whole number or none", "'wide'"]),
        ("attnres:block_size", ["option=value", "'block_size'"]),
        ("attnres:heads=2,heads=4", ["'heads'", "twice"]),
        ("attnres:", ["expected option=value"]),
        ("", ["unknown variant ''"]),
    ],
)
def test_a_mistyped_spec_is_refused_with_what_can_be_typed(spec: str, words: list[str]):
    with pytest.raises(VariantError) as caught:
        parse(spec)

    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_a_name_taken_by_another_module_names_both():
    Plain.__module__ = "my_variant"

    with pytest.raises(VariantError, match=r"'standard'.*variants\.standard and my_variant"):
        register("standard")(Plain)


@pytest.mark.parametrize(
    ("name", "presets", "words"),
    [
        ("nanochat", {}, "'nanochat'.*by the preset backout[+]x0 and my_variant"),
        ("kimi-k3", {}, "'kimi-k3'.*by the preset attnres and my_variant"),
        ("mine", {"mine": {}}, "'mine'.*twice"),
        ("mine", {"attnres": {}}, r"'attnres'.*variants\.attnres and a preset of my_variant"),
        ("mine", {"nanochat": {}}, "'nanochat'.*preset backout[+]x0 and a preset of my_variant"),
    ],
)
def test_a_name_of_a_preset_and_a_design_is_one_name(
    name: str, presets: dict, words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Plain, "__module__", "my_variant")
    with pytest.raises(VariantError, match=words):
        register(name, presets)(Plain)
    assert str(parse("nanochat")) == "backout+x0"


def test_a_preset_takes_no_name_that_has_a_meaning():
    residual.register_preset("nanochat", "backout+x0")  # its own again
    for name in ("attnres", "nanochat", "kimi-k3"):
        with pytest.raises(VariantError, match=rf"'{name}'.* and the preset x0: rename one"):
            residual.register_preset(name, "x0")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.two", "letters, digits, _ and -, as my_variant, got 'mine.two'"),
        ("2nd", "letters, digits"),
        ("my design", "letters, digits"),
        ("größe", "letters, digits"),
        ("x" * 101, "at most 100 characters"),
        ("values", "'values' is the name of a method of torch"),
        ("half", "'half' is the name of a method of torch"),
    ],
)
def test_a_name_that_a_page_or_a_composition_cannot_take_is_refused(name: str, words: str):
    for given in ((name,), ("mine", {name: {}})):
        with pytest.raises(VariantError, match=words):
            register(*given)(Plain)


def test_a_design_with_a_hyphen_has_a_page_and_is_composed():
    class Hyphened(Addon):
        """my-own: h_l = x."""

    register("my-own")(Hyphened)

    assert page_of(Hyphened).equation == "h_l = x."
    assert "my-own" in parse("attnres+my-own").build(8, 4).addons


def test_a_design_that_swallows_options_is_refused():
    class Swallows(Plain):
        def __init__(self, d_model: int, n_sublayers: int, **options: int) -> None:
            super().__init__(d_model, n_sublayers)

    with pytest.raises(VariantError, match="name every option"):
        register("swallows")(Swallows)


def test_a_registered_design_is_parsed_with_its_own_options():
    class Scaled(Plain):
        norms = Norms.PRE_AND_POST

        def __init__(self, d_model: int, n_sublayers: int, *, scale: float = 1.0) -> None:
            super().__init__(d_model, n_sublayers)
            self.scale = scale

    register("own_scale")(Scaled)

    assert parse("own_scale:scale=3e-1").build(8, 2).scale == 0.3
    assert str(parse("own_scale:scale=1")) == "own_scale"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that installs somebody's package with the file of a design."""

    def install(design: str) -> None:
        package, info = tmp_path / "their_variants", tmp_path / "theirs-1.0.dist-info"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "mine.py").write_text(design)
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[attnres.variants]\ntheirs = their_variants\n")
        monkeypatch.syspath_prepend(tmp_path)
        residual._load_entry_points.cache_clear()

    yield install
    residual._load_entry_points.cache_clear()
    for name in ("their_variants", "their_variants.mine"):
        sys.modules.pop(name, None)


def test_a_file_dropped_into_an_entry_points_package_is_found(install: Callable[[str], None]):
    install(
        "from attnres_cli.nn.residual import register\n"
        "from attnres_variants.standard import Standard\n"
        "@register('mine')\nclass Mine(Standard):\n    pass\n"
    )

    found = list(residual.registry())

    assert found[0] == "standard"
    assert {"attnres", "denseformer", "mine"} <= set(found)


def test_a_package_of_designs_that_cannot_be_imported_is_named_in_one_line(
    install: Callable[[str], None], capsys: pytest.CaptureFixture[str]
):
    install("import nobody_has_this\n")

    code, _, error = attnres(capsys, "variants", "standard")

    assert code == 2
    assert error == (
        "attnres: package theirs brings designs and cannot be imported: ModuleNotFoundError: No "
        "module named 'nobody_has_this'; install nobody_has_this where attnres is, or put its "
        "folder on PYTHONPATH: mend it, or pip uninstall theirs\n"
    )


def test_what_is_on_or_off_is_also_true_or_false_and_yes_or_no():
    for off, on in (("off", "on"), ("false", "true"), ("no", "yes"), ("False", "True")):
        assert str(parse(f"attnres:key_norm={off}")) == "attnres:key_norm=off"
        assert str(parse(f"attnres:key_norm={on}")) == "attnres"
