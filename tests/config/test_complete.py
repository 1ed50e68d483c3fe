"""Shell completion: what is offered, and in bash, on a real bash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnres_cli.config import complete
from attnres_cli.nn import variant
from attnres_cli.nn.residual import presets, registry


def offered(typed: str) -> list[str]:
    return complete.specs(typed)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("stan", ["standard"]),
        ("dense", ["denseformer"]),
        ("denseformer:", ["denseformer:dilation=", "denseformer:period="]),
        ("denseformer:p", ["denseformer:period="]),
        ("denseformer:period=2,", ["denseformer:period=2,dilation="]),
        ("denseformer:period=2,p", []),
        ("attnres:key_norm=", ["attnres:key_norm=on", "attnres:key_norm=off"]),
        ("attnres:heads=2,score=st", ["attnres:heads=2,score=static"]),
        ("attnres:heads=", []),
        ("nothing:", []),
    ],
)  # fmt: skip
def test_what_is_typed_is_continued(typed: str, expected: list[str]):
    assert offered(typed) == expected


def test_every_design_and_every_preset_is_offered_without_importing_any():
    assert offered("") == sorted([*registry(), *presets()])
    show = (
        "import sys; from attnres_cli.config import complete; complete.specs('attnres:');"
        "print('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", registry())
def test_the_options_offered_are_those_of_the_signature(name: str):
    options = [each.removeprefix(f"{name}:").rstrip("=") for each in offered(f"{name}:")]

    assert options == list(variant.options_of(registry()[name]))


def test_a_plugins_design_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "mine.py"
    file.write_text("@register('mine')\nclass Mine:\n    pass\n")
    monkeypatch.setenv("ATTNRES_PLUGINS", str(file))

    assert offered("min") == ["mine"]


def test_recipes_and_suites_are_offered():
    assert complete.recipes("qu") == ["quick"]
    assert complete.suites("table") == ["table2", "table4"]
    assert "paper" not in complete.recipes("")


def in_bash(*words: str) -> list[str]:
    """What bash would offer with the cursor at the end of these words, split as bash splits."""
    attnres = Path(sys.executable).parent / "attnres"
    listed = " ".join(f"'{word}'" for word in words)
    script = (
        f'attnres() {{ {attnres} "$@"; }}; source <({attnres} --show-completion bash)\n'
        f"COMP_WORDS=({attnres} {listed}); COMP_CWORD={len(words)}\n"
        f"$(complete -p | sed -n 's/.*-F \\([^ ]*\\) attnres.*/\\1/p') {attnres}\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ablate", "stan"), ["standard"]),
        (("ablate", "standard", "denseformer", ":"), ["dilation=", "period="]),
        (("ablate", "denseformer", ":", "per"), ["period="]),
        (("ablate", "attnres", ":", "score", "="), ["query", "static"]),
        (("ablate", "attnres", ":", "heads", "=", "2,score", "=", "st"), ["static"]),
        (("variants", "dense"), ["denseformer"]),
        (("ablate", "--recipe", "smo"), ["smoke"]),
    ],
)
def test_bash_inserts_what_is_missing_of_its_own_word(words: tuple[str, ...], expected: list[str]):
    assert in_bash(*words) == expected
