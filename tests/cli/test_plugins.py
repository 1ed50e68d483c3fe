"""A design of a user's own: begun, checked, compared; and what is said when it is wrong."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import commands
import pytest
import torch
from commands import process
from safetensors.torch import save_model

from attnres_cli.errors import VariantError
from attnres_cli.lab.huggingface import files
from attnres_cli.nn import code, residual
from attnres_cli.nn.model import Transformer, load
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
BRIEFLY = ("--recipe", "smoke", "--seeds", "1", "--set", "train.tokens=2k")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delenv("ATTNRES_PLUGINS", raising=False)
    return tmp_path


ABLATE = ("ablate", "standard", "mine", *BRIEFLY)


ALL = {
    "check": ("check", "mine"),
    "variants": ("variants", "mine"),
    "ablate": (*ABLATE, "--workers", "1"),
    "bench": ("bench", "standard", "mine", "--recipe", "smoke", "--rounds", "1"),
    "search": ("search", "mine", "--recipe", "smoke", "--budget", "params=40k", "--workers", "1"),
}
TRAIN = ("ablate", "bench", "search")
START = "    def start"
PARAMETER = "self.p = torch.nn.Parameter(torch.ones(1))"
INIT = "    def __init__(self, d_model, n_sublayers{}):\n        {}\n\n    def start"


def forget() -> None:
    """The plugin, as if it had never been imported."""
    sys.modules.pop("attnres_plugins.mine", None)
    residual._REGISTRY.pop("mine", None)
    os.environ["ATTNRES_PLUGINS"] = ""


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a plugin that this process forgets."""
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
    monkeypatch.setenv("ATTNRES_PLUGINS", "")
    yield folder
    sys.modules.pop("attnres_plugins.mine", None)


@pytest.mark.parametrize(
    ("change", "commands_", "words"),
    [
        (("", ""), ("check",), "none.py is none"),
        (('@register("mine")\n', ""), ALL, 'registers nothing: put @register("name")'),
        (('"mine"', '"standard"'), ("check",), "twice, by attnres_variants.standard and /"),
        (("def start(self, x):", "def start(self, x)"), ALL, "mine.py, line 11: SyntaxError"),
        (("import Residual", "import Residul"), ALL, "mine.py, line 4: ImportError"),
        (("import torch", "import torhc"), ("check",), "install torhc where attnres is"),
        (("(Residual)", ""), ("check",), "line 7: variant 'mine': Mine must be a subclass"),
        (("def write", "def wriet"), ALL, "line 7: variant 'mine': Mine must have def write("),
        ((START, INIT.format("", "1 / 0")), ALL, "line 12, in __init__: ZeroDivisionError"),
        ((START, INIT.format("", "self.n = 2")), ALL, "line 11, in __init__: begin it with super"),
        ((START, INIT.format("", PARAMETER)), ALL, "before Module.__init__() call; begin it with"),
        ((START, INIT.format(", s=1", "pass")), ALL, "options of a type and a default, as"),
        ((START, "    def __init__(self):\n        pass\n\n" + START), ALL, "it takes d_model and"),
        (("return state, state", "return state"), TRAIN, "read must return the pair (h, state)"),
        (("return state, state", "return state[:, 1:], state"), TRAIN, "line 14, in read)"),
        (("return state + y", "state + y"), TRAIN, "write gives None: end it with `return` and"),
        (("y / 2", "y.roll(-1, dims=1)"), TRAIN, "it mixes tokens"),
        (("y / 2", "y / self.two"), TRAIN, "mine.py, line 18, in write: AttributeError"),
    ],
    ids=[
        *("file", "nothing", "name", "syntax", "import", "module", "class", "abstract", "raises"),
        *("super", "early", "options", "sizes", "pair", "shape", "none", "causal", "attribute"),
    ],
)  # fmt: skip
def test_a_plugin_that_is_wrong_gets_one_line_of_every_command(
    change: tuple[str, str],
    commands_: Sequence[str],
    words: str,
    own: Path,
    capsys: pytest.CaptureFixture[str],
):
    (own / "mine.py").write_text(SOUND.replace(*change))
    file = "none.py" if change == ("", "") else "mine.py"
    for name in commands_:
        sys.modules.pop("attnres_plugins.mine", None)
        code, out, err = commands.attnres(capsys, *ALL[name], "--plugin", file)
        *progress, told = err.splitlines()
        assert (code, out) == (2, ""), err
        assert words in told, name
        assert all(line.startswith("attnres: ") for line in progress)
        assert not (own / "attnres.db").exists()


def test_what_led_to_an_error_is_shown_where_it_is_asked_for(
    own: Path, capsys: pytest.CaptureFixture[str]
):
    (own / "mine.py").write_text(SOUND.replace("y / 2", "y / self.two"))

    plain = commands.attnres(capsys, *ALL["ablate"], "--plugin", "mine.py")
    traced = commands.attnres(capsys, *ALL["ablate"], "--plugin", "mine.py", "--traceback")
    proven = commands.attnres(capsys, "--traceback", *ALL["check"], "--only", "keeps_shape")

    assert "Traceback" not in plain[2]
    assert (traced[0], proven[0]) == (2, 3)
    for _, _, err in traced, proven:
        assert "Traceback (most recent call last)" in err
        assert "return state + y / self.two" in err
        assert err.splitlines()[-1].startswith("attnres: ")


def test_proofs_are_chosen_by_the_start_of_their_name(
    own: Path, capsys: pytest.CaptureFixture[str]
):
    _, brief, _ = commands.attnres(capsys, "check", "standard", "--only", "keeps", "--skip", "co")
    code, _, err = commands.attnres(capsys, "check", "standard", "--only", "casual")

    assert "keeps_shape" in brief
    assert "keeps_states" in brief
    assert "is_causal" not in brief
    assert code == 2
    assert "unknown proof 'casual': did you mean 'is_causal'?" in err


@pytest.mark.slow
def test_a_plugin_is_compared_by_workers_of_their_own_and_never_mixed_with_other_code(folder: Path):
    (folder / "mine.py").write_text(SOUND)
    compare = ("ablate", "standard", "mine", *BRIEFLY, "--plugin", "mine.py")

    code, out, err = process(*compare)
    assert code == 0, err
    assert "mine" in out

    (folder / "mine.py").write_text(SOUND + "# a remark\n")
    assert process(*compare)[0] == 0  # the same code

    listed = json.loads(process("runs", "--format", "json")[1])
    (old,) = [run["code"] for run in listed if run["variant"] == "mine"]
    assert len(listed) == 2

    (folder / "mine.py").write_text(SOUND.replace("/ 2", "/ 3"))
    code, out, err = process(*compare)
    assert code == 0
    assert "the study holds 1 run of mine by other code (design changed): they stay, `attnre" in err
    assert f"1 run of mine by other code (design changed): attnres report --code {old}" in out
    listed = json.loads(process("runs", "--format", "json")[1])
    _, first, edited = listed
    assert (first["code"], edited["variant"], edited["seed"]) == (old, "mine", first["seed"])
    assert edited["val_loss"] != first["val_loss"]

    def reported(*options: str) -> float:
        report = json.loads(process("report", "--format", "json", *options)[1])
        return next(arm["mean"] for arm in report["arms"] if arm["variant"] == "mine")

    assert reported() == edited["val_loss"]
    assert reported("--code", old[:5]) == first["val_loss"]
    code, out, _ = process("verify", str(first["run"]), "--plugin", "mine.py")
    assert code == 3
    assert f"changed since: code: {old}, now {edited['code']}" in out

    (folder / "mine.py").write_text(SOUND)  # back: nothing is to be trained
    assert process(*compare)[0] == 0
    assert len(json.loads(process("runs", "--format", "json")[1])) == 3


@pytest.mark.slow
def test_the_line_that_trains_a_plugins_design_again_can_be_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "400")
    (folder / "plugins").mkdir()
    (folder / "plugins" / "mine.py").write_text(SOUND)
    typed = "search mine --recipe smoke --set train.tokens=2k --workers 1 --confirm 0 "
    typed += "--space n_layers=2,n_heads=2 --budget params=40k --plugin plugins/mine.py"

    code, out, err = process(*typed.split())
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("mine again: `attnres ")]
    _, unknown, _ = process("report")

    assert "--plugin plugins/mine.py --device" in line
    code, out, err = process(*shlex.split(line.split("`")[1])[1:])
    assert code == 0, err
    assert "mine again (FILE: the plugin that has it): `attnres ablate mine" in unknown
    assert " --plugin FILE --device" in unknown


@pytest.mark.slow
def test_check_prints_what_failed_with_the_first_wrong_number(folder: Path):
    claims = SOUND.replace("at_init = False", "at_init = True")
    (folder / "mine.py").write_text(claims)

    code, out, err = process("check", "mine", "--plugin", "mine.py")

    assert code == 3
    assert "1 of 19 proofs failed" in err
    assert "FAILED" in out
    assert "equals_standard_at_init is True, but logits" in out


@pytest.mark.slow
def test_a_new_variant_passes_its_check_as_it_is_written(folder: Path):
    code, out, _ = process("variants", "--new", "my_own")
    assert code == 0
    assert "attnres check my_own --plugin my_own.py" in out

    code, out, _ = process("check", "my_own", "--plugin", "my_own.py")

    assert code == 0, out
    assert "FAILED" not in out
    assert "class MyOwn(Residual)" in (folder / "my_own.py").read_text()


@pytest.mark.slow
def test_a_run_of_a_plugin_is_exported_with_the_source_that_trained_it(folder: Path):
    (folder / "mine.py").write_text(SOUND)
    assert process(*ABLATE, "--plugin", "mine.py")[0] == 0

    _, _, unknown = process("runs", "export", "2", "--output", "a")
    code, out, err = process("runs", "export", "2", "--output", "a", "--plugin", "mine.py")
    (folder / "mine.py").write_text(SOUND.replace("/ 2", "/ 3"))
    _, _, changed = process("runs", "export", "2", "--output", "b", "--plugin", "mine.py")

    assert "run 2 is of mine, which is not known here: its file is exported beside" in unknown
    assert "by --plugin FILE or ATTNRES_PLUGINS" in unknown
    assert code == 0, err
    assert (folder / "a" / "mine.py").read_text() == SOUND
    assert out.endswith("from attnres_cli import load; model = load('a', plugin=True)\n")
    loading = [sys.executable, "-c", out.splitlines()[-1]]
    assert subprocess.run(loading, cwd=folder).returncode == 0
    assert "mine.py has changed since run 2 was trained" in changed
    assert not (folder / "b").exists()


def test_the_source_beside_weights_is_imported_only_if_asked(own: Path):
    (own / "mine.py").write_text(SOUND)
    residual.add_plugin("mine.py")
    shape = SHAPE
    design = parse("mine").build(shape.d_model, shape.n_sublayers)
    trained = Transformer(shape, design)
    config = {
        "shape": asdict(shape),
        "variant": "mine",
        "plugin": "mine.py",
        "versions": {"code_design": code.of_design(type(design))},
    }
    (own / "config.json").write_text(json.dumps(config))
    save_model(trained, own / "model.safetensors")
    assert load(own).residual.n_params() == 0  # it is known here
    forget()

    with pytest.raises(VariantError, match=r"which is code: read it and .*ATTNRES_PLUGINS"):
        load(own)
    assert "attnres_plugins.mine" not in sys.modules
    found = load(own, plugin=True)

    tokens = torch.zeros(1, 3, dtype=torch.long)
    assert torch.equal(found(tokens), trained.eval()(tokens))
    forget()
    (own / "mine.py").write_text(SOUND.replace("/ 2", "/ 3"))
    with pytest.raises(VariantError, match=r"mine\.py is not the code of mine that trained these"):
        load(own, plugin=True)


def test_a_model_of_transformers_brings_its_design(own: Path, monkeypatch: pytest.MonkeyPatch):
    transformers = pytest.importorskip("transformers")
    cache = str(own / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", cache)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (own / "mine.py").write_text(SOUND)
    residual.add_plugin("mine.py")
    design = parse("mine").build(SHAPE.d_model, SHAPE.n_sublayers)
    trained = Transformer(SHAPE, design).eval()
    told = {"shape": asdict(SHAPE), "variant": "mine", "plugin": "mine.py"}
    told["versions"] = {"code_design": code.of_design(type(design))}
    texts, _ = files({**told, "recipe": {"data": {"source": "stdlib", "tokenizer": None}}})
    for name, text in texts.items():
        (own / name).write_text(text)
    save_model(trained, own / "model.safetensors")
    forget()
    read = transformers.AutoModelForCausalLM.from_pretrained

    found = read(own, trust_remote_code=True)

    tokens = torch.zeros(1, 3, dtype=torch.long)
    assert torch.equal(found(tokens).logits, trained(tokens))
    found.config.name_or_path = "somebody/on-the-hub"
    with pytest.raises(ValueError, match=r"from a folder of this machine, not somebody/on-the-hub"):
        type(found)(found.config)
    forget()
    (own / "mine.py").write_text(SOUND.replace("/ 2", "/ 3"))
    with pytest.raises(VariantError, match=r"mine\.py is not the code of mine that trained these"):
        read(own, trust_remote_code=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("standard", "is there already"),
        ("kimi-k3", "a word of a-z, 0-9 and _"),
        ("My", "a word of a-z"),
        ("held", "held.py is there already"),
    ],
)
def test_a_new_file_never_takes_the_place_of_another(
    name: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "held.py").write_text("mine")

    code, _, err = commands.attnres(capsys, "variants", "--new", name)

    assert code == 2
    assert words in err

    assert [each.name for each in folder.iterdir()] == ["held.py"]
    assert (folder / "held.py").read_text() == "mine"


def test_two_plugins_of_one_name_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
    monkeypatch.setenv("ATTNRES_PLUGINS", "")
    for number in (1, 2):
        (folder / str(number)).mkdir()
        text = SOUND.replace('"mine"', f'"mine{number}"')
        (folder / str(number) / "twice.py").write_text(text)
    residual.add_plugin("1/twice.py")

    with pytest.raises(residual.VariantError, match=r"two plugins are named twice\.py"):
        residual.add_plugin("2/twice.py")

    assert os.environ["ATTNRES_PLUGINS"] == str(folder / "1" / "twice.py")
    residual.add_plugin("1/twice.py")  # once more, which changes nothing
    assert os.environ["ATTNRES_PLUGINS"] == str(folder / "1" / "twice.py")
