"""`attnres plan --pipeline`: what hops send, as a user types it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from commands import attnres

from attnres_cli.nn import residual

MINE = '''"""pair: h = x."""

from attnres_cli.nn.residual import Residual, register


@register("pair")
class Pair(Residual):
    def start(self, x):
        return x, x

    def read(self, state, l):
        return state[0], state

    def write(self, state, l, y):
        return state[0] + y, state[1]

    def finish(self, state):
        return state[0]
'''


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return attnres(capsys, "plan", *arguments)


def test_hops_and_sums_stand_beside_the_papers(capsys):
    code, out, _ = planned(capsys, "--pipeline", "4,2", "attnres:block_size=2", "standard")

    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert ["3", "to", "0", "8", "5", "3"] in lines
    assert ["whole", "35", "143,360", "8", "0", "28", "28"] in lines
    assert ["cached", "21", "86,016", "4", "5", "18", "22"] in lines
    assert ["cached", "7", "28,672", "1", "0", "7", "-"] in lines
    assert "counts blocks that the receiver made itself" in " ".join(out.split())


def test_plain_values_have_bytes_too(capsys):
    arguments = ("--pipeline", "2,2", "attnres:block_size=4", "mhc", "--shape", "d_model=64")
    document = json.loads(planned(capsys, *arguments, "--format", "json")[1])
    rows = list(csv.DictReader(planned(capsys, *arguments, "--format", "csv")[1].splitlines()))

    attnres, mhc = document["designs"]
    assert [hop["cached_bytes"] for hop in attnres["hops"]] == [512, 256, 256]
    assert mhc["sums"]["whole"]["total"] == 12
    assert (mhc["n_blocks"], mhc["sums"]["whole"]["paper"]) == (None, None)
    assert [row["whole"] for row in rows] == ["2.0", "3.0", "4.0", "4.0", "4.0", "4.0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pipeline", "4x2", "attnres"], "takes stages and virtual stages, as 4,2, got '4x2'"),
        (["--pipeline", "4,2"], "of which designs? As --pipeline 4,2 attnres"),
        (["--pipeline", "1", "attnres"], "a pipeline has two stages or more"),
        (["--pipeline", "9,2", "attnres"], "18 chunks, of 16 sublayers"),
        (["attnres"], "designs and --shape are for --pipeline"),
        (["--pipeline", "2,2", "pair", "--plugin", "pair.py"], "Pair cannot be cut between"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    residual.registry()  # all built-in designs; this one comes into a copy
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
    monkeypatch.setenv(residual.PLUGINS, "")  # which the command sets for its workers
    monkeypatch.chdir(tmp_path)
    Path("pair.py").write_text(MINE)

    code, _, err = planned(capsys, *arguments)

    assert code == 2
    assert words in " ".join(err.split())
