"""What `attnres runs show` prints of a model's inside."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from attnres_cli.records.run import Probe
from attnres_cli.report.probes import print_probes
from attnres_cli.report.terminal import console

M = ((1.0, 0.0, 0.0), (0.5, 1.0, 0.0), (0.25, 0.5, -1.0))
PROBE = Probe(
    step=100,
    output_rms=(1.0, 0.5, 2.0),
    gradient_rms=(0.08, 0.002, 0.04),
    input_rms=(1.0, 1.25, 1.75),
    newest_source_rms=(1.0, 0.5, 2.0),
    newest_share=(1.0, 0.75, 0.25),
    embedding_share=(1.0, 0.25, 0.05),
    entropy=(0.0, 0.5, 1.5),
    contribution=(0.1, 0.3, 0.6),
    mixing=M,
)
WITHOUT = Probe(100, (1.0, 0.5, 2.0), (0.08, 0.002, 0.04), (1.0, 1.25, 1.75), no_mixing="why not")


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")


def printed(*probes: Probe) -> list[str]:
    stream = io.StringIO()
    print_probes(console(stream), probes)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def row(lines: list[str], name: str) -> list[str]:
    (found,) = [line.split() for line in lines if line.strip().startswith(name)]
    return found


def test_every_sublayer_has_a_row_of_what_it_reads_and_writes():
    lines = printed(PROBE)

    assert row(lines, "embedding") == ["embedding", "1.00", "██", "0.08", "████", "10.0%"]
    assert row(lines, "1 attn")[2:6] == ["1.00", "1.00", "1.00", "0.00"]
    assert row(lines, "1 attn")[6:] == ["0.50", "█", "0.002", "▏", "30.0%"]
    assert row(lines, "2 mlp")[2:] == [
        "1.25",
        "0.75",
        "0.25",
        "0.50",
        "2.00",
        "████",
        "0.04",
        "██",
        "60.0%",
    ]
    assert row(lines, "output  ") == ["output", "1.75", "0.25", "0.05", "1.50"]


def test_m_is_drawn_by_shades_of_each_row():
    lines = printed(PROBE)

    assert lines[-3:] == ["   1 ██", "   2 ▒▒██", "   3 ░░▒▒██"]


def test_points_of_training_are_compared_in_one_row_each():
    lines = printed(replace(PROBE, step=0, output_rms=(1.0, 0.7, 0.6)), PROBE)

    first, last = (row(lines, f"{step} ") for step in (0, 100))
    assert first == ["0", "0.70", "of", "1", "attn", "0.002", "to", "0.04", "0.50", "0.15", "1.00"]
    assert last == ["100", "2.00", "of", "2", "mlp", "0.002", "to", "0.04", "0.50", "0.15", "1.00"]


def test_where_there_is_no_m_the_reason_stands_and_the_rest_is_there():
    lines = printed(replace(WITHOUT, step=0), WITHOUT)

    assert lines[-1] == "depth mixing: no table, why not"
    assert row(lines, "2 mlp")[2:] == ["1.25", "-", "-", "-", "2.00", "████", "0.04", "██", "-"]


def test_numbers_that_are_none_are_printed_as_they_are():
    lines = printed(replace(WITHOUT, output_rms=(math.nan, math.inf, 2.0)))

    assert row(lines, "embedding")[1] == "nan"
    assert row(lines, "1 attn")[6] == "inf"


@pytest.mark.parametrize("n_sublayers", [12, 48, 128])
@pytest.mark.parametrize("number", [1.2345e-5, 123.456, 1.2345e7])
def test_nothing_is_wider_than_a_terminal_of_80_columns(number: float, n_sublayers: int):
    row = (number,) * (n_sublayers + 1)
    share = (0.5,) * len(row)
    probe = Probe(10**6, *[row] * 4, *[share] * 4, mixing=(row,) * len(row))

    assert max(map(len, printed(probe, probe))) <= 80
    assert not any("…" in line for line in printed(probe, probe))


def test_no_probes_are_nothing_to_print():
    assert printed() == []
