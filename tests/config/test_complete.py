"""Shell completion: what is offered, and in bash, on a real bash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnres_cli.config import complete
from attnres_cli.nn import variant
from attnres_cli.nn.residual import is_shipped, presets, registry

CONTINUED = {
    "stan": ["standard"],
    "dense": ["denseformer"],
    "denseformer:": ["denseformer:dilation=", "denseformer:period="],
    "denseformer:p": ["denseformer:period="],
    "denseformer:period=2,": ["denseformer:period=2,dilation="],
    "denseformer:period=2,p": [],
    "attnres:key_norm=": ["attnres:key_norm=on", "attnres:key_norm=off"],
    "attnres:heads=2,score=st": ["attnres:heads=2,score=static"],
    "attnres:heads=": [],
    "nothing:": [],
}


def test_a_typed_spec_is_continued_with_the_options_of_the_signature():
    assert {typed: complete.specs(typed) for typed in CONTINUED} == CONTINUED
    for name, design in registry().items():
        options = [each.removeprefix(f"{name}:") for each in complete.specs(f"{name}:")]
        assert options == [f"{option}=" for option in variant.options_of(design)]


def test_every_design_and_every_preset_is_offered_without_importing_any():
    ours = [name for name, cls in registry().items() if is_shipped(cls)]
    assert complete.specs("") == sorted([*ours, *presets()])
    show = "import sys; from attnres_cli.config import complete; complete.specs('attnres:'); "
    show += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", show], check=True)


def test_plugins_recipes_and_suites_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "mine.py"
    file.write_text("@register('mine')\nclass Mine:\n    pass\n")
    monkeypatch.setenv("ATTNRES_PLUGINS", str(file))

    assert complete.specs("min") == ["mine"]
    assert complete.recipes("qu") == ["quick"]
    assert complete.suites("table") == ["table2", "table4"]
    assert "paper" not in complete.recipes()


def in_bash(*words: str) -> list[str]:
    """What bash offers with the cursor at the end of these words, split as bash splits."""
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


IN_BASH = {
    "ablate standard denseformer :": ["dilation=", "period="],
    "ablate attnres : heads = 2,score = st": ["static"],
    "ablate --recipe smo": ["smoke"],
    "variants dense": ["denseformer"],
}


@pytest.mark.slow
@pytest.mark.parametrize("words", IN_BASH)
def test_bash_inserts_the_missing_part_of_its_own_word(words: str):
    assert in_bash(*words.split()) == IN_BASH[words]
