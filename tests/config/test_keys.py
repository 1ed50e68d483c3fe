"""The keys of a recipe as people read about them: in the command, and in docs/keys.md."""

from __future__ import annotations

import os
from pathlib import Path

from attnres_cli.config.keys import MEANINGS, keys
from attnres_cli.config.recipe import load

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"
HEAD = """\
# The keys of a recipe

A recipe is a YAML file with these keys. `--set` changes one of them: `--set train.tokens=2M`.

```console
$ attnres recipes --keys data
```

The last column names the choice that reads a key. A key that nothing reads is refused, or
changes nothing. This page is made from the code.

"""


def test_each_key_of_the_schema_has_a_meaning_and_no_other_has():
    assert [key.name for key in keys() if not key.meaning] == [], "add it to config/keys.py"
    assert set(MEANINGS) == {key.name for key in keys()}


def test_a_key_says_what_it_takes_by_default_and_what_reads_it():
    known = {key.name: key for key in keys()}

    assert known["model.n_layers"].default == ""
    assert (known["data.nodes"].default, known["data.nodes"].read_with) == (
        "8",
        "data.source: pointers",
    )
    assert known["model.n_experts"].read_with == "model.mlp: moe"
    assert known["optim.decay_fraction"].read_with == "optim.schedule: wsd"
    assert known["optim.optimizer"].type == "adamw or muon"
    assert known["data.rows"].type == "whole number"
    assert known["variants"].type == "list of text"
    assert known["model.qk_norm"].default == "false"


def test_keys_by_their_beginning_are_those_of_a_section(attnres):
    assert {key.name.partition(".")[0] for key in keys("optim")} == {"optim"}
    shown = attnres.json("recipes", "--keys", "optim.w")
    assert [key["name"] for key in shown] == ["optim.weight_decay", "optim.warmup_fraction"]


def test_a_default_is_what_a_recipe_has_that_says_nothing():
    held = load("smoke").model_dump(mode="json")
    for key in keys("optim."):
        value = held["optim"][key.name.removeprefix("optim.")]
        assert key.name == "optim.lr" or key.default == (
            "unset" if value in (None, []) else str(value)
        )


def test_what_is_no_key_is_refused_with_the_nearest(attnres):
    assert "did you mean 'slope'?" in attnres.refuses("recipes", "--keys", "slop.")
    assert "--set changes one recipe" in attnres.refuses("recipes", "--keys", "--set", "optim.lr=1")


def test_the_page_is_what_the_code_says(attnres):
    text = HEAD + attnres.prints("recipes", "--keys", "--format", "markdown").strip() + "\n"
    if os.environ.get("ATTNRES_GOLDEN") == "renew":
        PAGE.write_text(text, encoding="utf-8")
    known = PAGE.read_text(encoding="utf-8")
    assert known == text, "ATTNRES_GOLDEN=renew pytest tests/config/test_keys.py writes it anew"
