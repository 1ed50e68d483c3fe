"""`attnres plan --pipeline`: what hops send, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Attnres

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


def test_hops_and_sums_stand_beside_the_papers(attnres: Attnres):
    out = attnres.prints("plan", "--pipeline", "4,2", "attnres:block_size=2", "standard")

    lines = [line.split() for line in out.splitlines()]
    assert ["3", "to", "0", "8", "5", "3"] in lines
    assert ["whole", "35", "143,360", "8", "0", "28", "28"] in lines
    assert ["cached", "21", "86,016", "4", "5", "18", "22"] in lines
    assert ["cached", "7", "28,672", "1", "0", "7", "-"] in lines
    assert "counts blocks that the receiver made itself" in " ".join(out.split())


def test_plain_values_have_bytes_too(attnres: Attnres):
    typed = ("plan", "--pipeline", "2,2", "attnres:block_size=4", "mhc", "--shape", "d_model=64")

    paper, mhc = attnres.json(*typed)["designs"]

    assert [hop["cached_bytes"] for hop in paper["hops"]] == [512, 256, 256]
    assert mhc["sums"]["whole"]["total"] == 12
    assert (mhc["n_blocks"], mhc["sums"]["whole"]["paper"]) == (None, None)
    wholes = [row["whole"] for row in attnres.csv(*typed)]
    assert wholes == ["2.0", "3.0", "4.0", "4.0", "4.0", "4.0"]


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
@pytest.mark.usefixtures("plugins")
def test_what_cannot_be_meant_is_refused_in_a_line(
    arguments: list[str], words: str, folder: Path, attnres: Attnres
):
    (folder / "pair.py").write_text(MINE)

    assert words in " ".join(attnres.refuses("plan", *arguments).split())
