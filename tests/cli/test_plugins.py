"""A design of a user's own: begun, checked, compared; and what is said when it is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Attnres, process
from safetensors.torch import save_model

from attnres_cli.errors import VariantError
from attnres_cli.lab.huggingface import files
from attnres_cli.nn import code, residual
from attnres_cli.nn.exported import load
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.proofs.subject import SHAPE
from attnres_cli.nn.variant import parse

SOUND = '''"""mine: h_{l+1} = h_l + f_l(h_l) / 2."""

import torch
from attnres_cli.nn.residual import Residual, register


@register("mine")
class Mine(Residual):
    equals_standard_at_init = False

    def start(self, x):
        return x

    def read(self, state, l):
        return state, state

    def write(self, state, l, y):
        return state + y / 2

    def finish(self, state):
        return state
'''
ABLATE = ("ablate", "standard", "mine", "--recipe", "smoke", "--seeds", "1")
ABLATE += ("--set", "train.tokens=2k")
ALL = {
    "check": ("check", "mine"),
    "variants": ("variants", "mine"),
    "ablate": (*ABLATE, "--workers", "1"),
    "bench": ("bench", "standard", "mine", "--recipe", "smoke", "--rounds", "1"),
    "search": ("search", "mine", "--recipe", "smoke", "--budget", "params=40k", "--workers", "1"),
}
TRAIN = ("ablate", "bench", "search")
CHECK = ("check",)
PARAMETER = "self.p = torch.nn.Parameter(torch.ones(1))"


def init(body: str, arguments: str = ", d_model, n_sublayers") -> tuple[str, str]:
    """A change that gives the design an __init__."""
    start = "    def start"
    return start, f"    def __init__(self{arguments}):\n        {body}\n\n{start}"


def forget() -> None:
    """The plugin, as if it had never been imported."""
    sys.modules.pop("attnres_plugins.mine", None)
    residual._REGISTRY.pop("mine", None)
    os.environ["ATTNRES_PLUGINS"] = ""


@pytest.fixture
def mine(plugins: Path) -> Path:
    """The file of a design that works."""
    (plugins / "mine.py").write_text(SOUND)
    return plugins / "mine.py"


WRONG: dict[str, tuple[tuple[str, str], Sequence[str], str]] = {
    "file": (("", ""), CHECK, "none.py is none"),
    "nothing": (('@register("mine")\n', ""), ALL, 'registers nothing: put @register("name")'),
    "name": (('"mine"', '"standard"'), CHECK, "twice, by attnres_variants.standard and /"),
    "syntax": (("start(self, x):", "start(self, x)"), ALL, "mine.py, line 11: SyntaxError"),
    "import": (("import Residual", "import Residul"), ALL, "mine.py, line 4: ImportError"),
    "module": (("import torch", "import torhc"), CHECK, "install torhc where attnres is"),
    "class": (("(Residual)", ""), CHECK, "line 7: variant 'mine': Mine must be a subclass"),
    "abstract": (("def write", "def wriet"), ALL, "'mine': Mine must have def write("),
    "raises": (init("1 / 0"), ALL, "line 12, in __init__: ZeroDivisionError"),
    "super": (init("self.n = 2"), ALL, "line 11, in __init__: begin it with super"),
    "early": (init(PARAMETER), ALL, "before Module.__init__() call; begin it with"),
    "options": (init("pass", ", d_model, n_sublayers, s=1"), ALL, "of a type and a default, as"),
    "sizes": (init("pass", ""), ALL, "it takes d_model and"),
    "pair": (("return state, state", "return state"), TRAIN, "must return the pair (h, state)"),
    "shape": (("return state, state", "return state[:, 1:], state"), TRAIN, "line 14, in read)"),
    "none": (("return state + y", "state + y"), TRAIN, "write gives None: end it with `return`"),
    "causal": (("y / 2", "y.roll(-1, dims=1)"), TRAIN, "it mixes tokens"),
    "attribute": (("y / 2", "y / self.two"), TRAIN, "line 18, in write: AttributeError"),
}


@pytest.mark.parametrize(("change", "commands", "words"), WRONG.values(), ids=WRONG)
def test_a_plugin_that_is_wrong_gets_one_line_of_every_command(
    change: tuple[str, str], commands: Sequence[str], words: str, mine: Path, attnres: Attnres
):
    mine.write_text(SOUND.replace(*change))
    for name in commands:
        sys.modules.pop("attnres_plugins.mine", None)
        file = "mine.py" if any(change) else "none.py"
        code, out, err = attnres(*ALL[name], "--plugin", file)
        *progress, told = err.splitlines()
        assert (code, out) == (2, ""), err
        assert words in told, name
        assert all(line.startswith("attnres: ") for line in progress)
        assert not Path("attnres.db").exists()


def test_the_traceback_of_an_error_is_shown_where_you_ask_for_it(mine: Path, attnres: Attnres):
    mine.write_text(SOUND.replace("y / 2", "y / self.two"))

    plain = attnres(*ALL["ablate"], "--plugin", "mine.py")
    traced = attnres(*ALL["ablate"], "--plugin", "mine.py", "--traceback")
    proven = attnres("--traceback", *ALL["check"], "--only", "keeps_shape")

    assert "Traceback" not in plain[2]
    assert (traced[0], proven[0]) == (2, 3)
    for _, _, err in traced, proven:
        assert "Traceback (most recent call last)" in err
        assert "return state + y / self.two" in err
        assert err.splitlines()[-1].startswith("attnres: ")


def test_proofs_are_chosen_by_the_start_of_their_name(attnres: Attnres):
    brief = attnres.prints("check", "standard", "--only", "keeps", "--skip", "co")
    told = attnres.refuses("check", "standard", "--only", "casual")
    assert "keeps_shape" in brief
    assert "keeps_states" in brief
    assert "is_causal" not in brief
    assert "unknown proof 'casual': did you mean 'is_causal'?" in told


@pytest.mark.slow
def test_a_plugin_is_compared_by_workers_and_never_mixed_with_other_code(
    mine: Path, attnres: Attnres
):
    compare = (*ABLATE, "--plugin", "mine.py")

    def compared(text: str, *, trains: bool) -> tuple[str, str]:
        mine.write_text(text)
        forget()
        code, out, err = process(*compare) if trains else attnres(*compare)
        assert code == 0, err
        assert (" to train on " in err) == trains
        return out, err

    def reported(*options: str) -> float:
        arms = attnres.json("report", *options)["arms"]
        return next(arm["mean"] for arm in arms if arm["variant"] == "mine")

    out, _ = compared(SOUND, trains=True)
    assert "mine" in out
    compared(SOUND + "# a remark\n", trains=False)  # the same code
    out, err = compared(SOUND.replace("/ 2", "/ 3"), trains=True)

    _, first, edited = attnres.json("runs")
    old = first["code"]
    assert "the study holds 1 run of mine by other code (design changed): they stay, `attnre" in err
    whole = attnres.prints("report", "--notes")
    assert f"1 run of mine by other code (design changed): attnres report --code {old}" in whole
    assert [run["variant"] for run in (first, edited)] == ["mine"] * 2
    assert (first["seed"], edited["code"] == old) == (edited["seed"], False)
    assert edited["val_loss"] != first["val_loss"]
    assert reported() == edited["val_loss"]
    assert reported("--code", old[:5]) == first["val_loss"]
    code, out, _ = attnres("verify", str(first["run"]), "--plugin", "mine.py")
    assert code == 3
    assert f"changed since: code: {old}, now {edited['code']}" in out
    compared(SOUND, trains=False)  # back


@pytest.mark.slow
def test_the_line_that_trains_a_plugins_design_again_can_be_typed(mine: Path, attnres: Attnres):
    (mine.parent / "plugins").mkdir()
    mine.rename(mine.parent / "plugins" / "mine.py")
    typed = "search mine --recipe smoke --set train.tokens=1k --workers 1 --confirm 0 "
    typed += "--space n_layers=2,n_heads=2 --budget params=40k --plugin plugins/mine.py"

    out = attnres.prints(*typed.split(), "-v")
    (line,) = [line for line in out.splitlines() if line.startswith("mine again: `attnres ")]
    words = shlex.split(line.split("`")[1])[1:]
    planned = attnres.prints(*words[: words.index("--study")], "--dry-run")
    forget()
    _, *unknown = attnres("report", "--notes")

    assert "--plugin plugins/mine.py --device" in line
    assert "1 run (1 arm x 1 seed), 0 to train" in planned  # in the study that has it
    attnres.prints(*words)  # and in one of its own
    assert "mine again (FILE: the plugin that has it): `attnres ablate mine" in "".join(unknown)
    assert " --plugin FILE --device" in "".join(unknown)


@pytest.mark.slow
def test_a_new_variant_passes_its_check_and_a_false_claim_fails_with_the_first_wrong_number(
    mine: Path, attnres: Attnres
):
    claims = SOUND.replace("at_init = False", "at_init = True")
    mine.write_text(claims)

    begun = attnres.prints("variants", "--new", "my_own")
    passed = attnres.prints("check", "my_own", "--plugin", "my_own.py")
    code, failed, err = attnres("check", "mine", "--plugin", "mine.py")

    assert "attnres check my_own --plugin my_own.py" in begun
    assert "FAILED" not in passed
    assert "class MyOwn(Residual)" in (mine.parent / "my_own.py").read_text()
    assert code == 3
    assert re.search(r"\b1 of \d+ proofs failed", err)
    assert "FAILED" in failed
    assert "equals_standard_at_init is True, but logits" in failed


@pytest.mark.slow
def test_a_run_of_a_plugin_is_exported_with_the_code_that_trained_it(mine: Path, attnres: Attnres):
    attnres.prints(*ABLATE, "--in-process", "--plugin", "mine.py")
    forget()

    unknown = attnres.refuses("runs", "export", "2", "--output", "a")
    out = attnres.prints("runs", "export", "2", "--output", "a", "--plugin", "mine.py")
    forget()
    mine.write_text(SOUND.replace("/ 2", "/ 3"))
    _, _, changed = attnres("runs", "export", "2", "--output", "b", "--plugin", "mine.py")

    assert "run 2 is of mine, which is not known here: its file is exported beside" in unknown
    assert "by --plugin FILE or ATTNRES_PLUGINS" in unknown
    assert Path("a/mine.py").read_text() == SOUND
    assert out.endswith("from attnres_cli import load; model = load('a', plugin=True)\n")
    loading = [sys.executable, "-c", out.splitlines()[-1]]
    assert subprocess.run(loading, env=os.environ | {"ATTNRES_PLUGINS": ""}).returncode == 0
    assert "mine.py has changed since run 2 was trained" in changed
    assert not Path("b").exists()


def exported(mine: Path) -> tuple[Transformer, dict[str, Any]]:
    """An untrained model of the plugin, whose weights are a file, and its configuration."""
    residual.add_plugin("mine.py")
    design = parse("mine").build(SHAPE.d_model, SHAPE.n_sublayers)
    model = Transformer(SHAPE, design)
    config = {"shape": asdict(SHAPE), "variant": "mine", "plugin": "mine.py"}
    config["versions"] = {"code_design": code.of_design(type(design))}
    save_model(model, mine.parent / "model.safetensors")
    return model.eval(), config


CHANGED = r"mine\.py is not the code of mine that trained these"


def test_the_source_beside_weights_is_imported_only_if_you_ask(mine: Path):
    trained, config = exported(mine)
    folder = mine.parent
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).residual.n_params() == 0  # it is known here
    forget()

    with pytest.raises(VariantError, match=r"which is code: read it and .*ATTNRES_PLUGINS"):
        load(folder)
    assert "attnres_plugins.mine" not in sys.modules
    found, tokens = load(folder, plugin=True), torch.zeros(1, 3, dtype=torch.long)

    assert torch.equal(found(tokens), trained(tokens))
    forget()
    mine.write_text(SOUND.replace("/ 2", "/ 3"))
    with pytest.raises(VariantError, match=CHANGED):
        load(folder, plugin=True)


def test_a_model_of_transformers_brings_its_design(mine: Path, monkeypatch: pytest.MonkeyPatch):
    transformers = pytest.importorskip("transformers")
    cache = str(mine.parent / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", cache)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    trained, config = exported(mine)
    texts, _ = files({**config, "recipe": {"data": {"source": "stdlib", "tokenizer": None}}})
    for name, text in texts.items():
        (mine.parent / name).write_text(text)
    forget()
    read = transformers.AutoModelForCausalLM.from_pretrained

    found = read(mine.parent, trust_remote_code=True)
    tokens = torch.zeros(1, 3, dtype=torch.long)

    assert torch.equal(found(tokens).logits, trained(tokens))
    found.save_pretrained("tuned")
    forget()
    again = read("tuned", trust_remote_code=True)
    assert torch.equal(again(tokens).logits, trained(tokens))
    found.config.name_or_path = "somebody/on-the-hub"
    with pytest.raises(ValueError, match=r"from a folder of this machine, not somebody/on-the-hub"):
        type(found)(found.config)
    forget()
    mine.write_text(SOUND.replace("/ 2", "/ 3"))
    with pytest.raises(VariantError, match=CHANGED):
        read(mine.parent, trust_remote_code=True)


def test_a_new_file_never_takes_the_place_of_another(folder: Path, attnres: Attnres):
    (folder / "held.py").write_text("mine")

    for name, words in (
        ("standard", "is there already"),
        ("kimi-k3", "a word of a-z, 0-9 and _"),
        ("My", "a word of a-z"),
        ("held", "held.py is there already"),
    ):
        assert words in attnres.refuses("variants", "--new", name)
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("held.py", "mine")]


def test_two_plugins_of_one_name_are_refused(plugins: Path):
    for number in ("1", "2"):
        (plugins / number).mkdir()
        text = SOUND.replace('"mine"', f'"mine{number}"')
        (plugins / number / "twice.py").write_text(text)
    residual.add_plugin("1/twice.py")

    with pytest.raises(residual.VariantError, match=r"two plugins are named twice\.py"):
        residual.add_plugin("2/twice.py")

    residual.add_plugin("1/twice.py")  # once more, which changes nothing
    assert os.environ["ATTNRES_PLUGINS"] == str(plugins / "1" / "twice.py")
