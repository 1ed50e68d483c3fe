"""The words around the tables of a report: its answer, what it rests on, and what weakens it."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from comparisons import BASE, PROBE

from attnres_cli.config.recipe import load
from attnres_cli.records.run import Probe, Status
from attnres_cli.records.step_ratio import StepRatio
from attnres_cli.report.answer import answer, to_decide
from attnres_cli.report.comparison import CHOICES, facts_of, report_of, table_of
from attnres_cli.report.file_formats import escaped, show
from attnres_cli.report.probes import probe_tables
from attnres_cli.report.runs import speed_text
from attnres_cli.report.table import Column, Report, Table, brief, captioned
from attnres_cli.stats.multiples import Budget
from attnres_cli.verdict.comparison import Rules
from attnres_cli.verdict.power import deciding


def shifted(gap: float) -> list[float]:
    noise = (0.001, -0.002, 0.003, 0.0, -0.001)
    return [loss + gap + step for loss, step in zip(BASE, noise, strict=True)]


def test_an_answer_names_six_arms_and_counts_more(base, make_arm, judge, make_run):
    arms = [make_arm(f"arm{i}", *shifted(-0.1 - 0.01 * i)) for i in range(7)]
    gone = [make_run("gone", 0, status=Status.DIVERGED, steps=7)]

    assert "and by 0.0998 (" in answer(judge(base, *arms[:6]))
    found = judge(base, *arms, gone)
    told = answer(found)
    assert told.startswith("arm6 beats standard by 0.1598 (")
    assert "Of 8 arms: 7 better, 1 blocked. No verdict: gone (seed 0 diverged at step 7)." in told
    assert "gone is blocked: seed 0 diverged at step 7" in facts_of(found)
    worse = [make_arm(f"arm{i}", *shifted(0.1)) for i in range(7)]
    assert answer(judge(base, *worse)) == "None of 7 arms beats standard. Of 7 arms: 7 worse."


def test_an_answer_of_many_says_how_many_are_better_in_equal_time(base, make_arm, judge):
    arms = [make_arm(f"arm{i}", *shifted(-0.1 - 0.001 * i)) for i in range(7)]
    budgets = (Budget(0.5, -0.3, 0.004, 7), Budget(2, 0.2, 0.004, 7))
    found = judge(base, *arms, rules=Rules(budgets=budgets))

    def told(*ratios: float) -> str:
        timed = {f"arm{i}": StepRatio(8, r, 0.99 * r, 1.01 * r) for i, r in enumerate(ratios)}
        return answer(replace(found, step_ratios=timed))

    assert "7 better (none of them in equal time)." in told(*[1.5] * 7)
    assert "7 better (2 of them in equal time too)." in told(1.0, 0.9, *[1.5] * 5)
    assert told(1.5).endswith("Of 7 arms: 7 better.")  # of others it is not known


def test_one_reason_of_many_arms_is_said_once(base, make_arm, judge, make_run):
    arms = [make_arm(f"arm{i}", *shifted(-0.1)) for i in range(2)]
    gone = [[make_run(f"gone{i}", 0, status=Status.DIVERGED, steps=7)] for i in range(5)]
    told = answer(judge(base, *arms, *gone, [make_run("late", 0, status=Status.DIVERGED, steps=9)]))
    first = "gone0, gone1, gone2 and 2 more (seed 0 diverged at step 7)"
    assert told.endswith(f"No verdict: {first}; late (seed 0 diverged at step 9).")


def test_an_answer_has_three_sentences_whatever_its_verdicts(base, make_arm, judge, make_run):
    arms = [make_arm(f"a{i}", *shifted(gap)) for i, gap in enumerate((-0.1, 0.1, 0.01))]
    gone = [make_run("gone", 0, status=Status.DIVERGED, steps=7)]

    told = answer(judge(base, *arms, gone, rules=Rules(margin=0.05)))

    assert told.startswith("a0 beats standard by 0.0998 (")
    assert "a1 is worse than standard by 0.1002 (" in told
    assert told.endswith(". a2 is equivalent; gone is blocked.")


def test_an_open_answer_says_what_would_decide_it_with_the_command(base, make_arm, judge):
    gaps = (0.06, -0.07, -0.02, 0.03, -0.09)
    arm = make_arm("attnres", *(b + g for b, g in zip(BASE, gaps, strict=True)))
    found = judge(base, arm)

    (line,) = to_decide(found, load("smoke"), "my.db")

    told, _, command = line.partition("): ")
    seeds = deciding(found).seeds
    assert f"{seeds} seeds find the difference that attnres seems to have" in told
    assert command == (
        f"attnres ablate standard attnres --recipe smoke --seeds {seeds} --study my.db"
    )
    (line,) = to_decide(found, load("smoke"), "my.db", "--margin", "0.5")
    assert line.endswith("--study my.db --margin 0.5")
    assert to_decide(found, None, "my.db") == to_decide(judge(base), load("smoke"), "") == []


def test_at_a_glance_there_are_three_caveats_no_notes_and_what_to_type():
    last = Report("b", caveats="4567", notes=["note"])
    whole = Report("a", text=["answer"], caveats="4567", notes=["note"], more=[last])

    first, second, below = brief(whole, "Details: all")

    assert (first.text, first.caveats, first.notes) == (("answer",), tuple("456"), ())
    assert (second.caveats, second.notes) == (tuple("456"), ())
    assert below == Report("", notes=["Details: all"])


def test_reference_lines_and_the_split_are_those_that_the_data_have(make_arm, judge, facts):
    def notes(**changes: object) -> str:
        data = replace(facts, **changes)
        return "\n".join(facts_of(judge(make_arm("standard", 1.5, 1.6), data=data)))

    assert "(bigram) 2.4000, byte frequencies (unigram) 3.3000 nats/token" in notes()
    for absent in ("floor", "compressors", "split:"):
        assert absent not in notes()
    assert "floor: a model that knows the task loses 0.8125 nats/token" in notes(floor=0.8125)
    only_unigram = notes(bigram_loss=None)
    assert "training bytes: byte frequencies (unigram) 3.3000 nats/token" in only_unigram
    assert "bigram" not in only_unigram
    assert "fitted it to validation tokens" in notes(unigram_loss=None, bigram_loss=None)
    packed = {"zlib_bits": 2.0, "xz_bits": 1.5}  # per byte, of bytes as a loss too
    assert "zlib 2.0000 bits/byte (1.3863 nats/token)" in notes(**packed)
    assert "zlib 2.0000 bits/byte, xz 1.5000" in notes(**packed, vocab_size=50257)
    split = "whole files validate: 3 of 60; left out, as no text: logo.png"
    assert f"split: {split}" in notes(split=split)


def test_other_engines_are_named_and_choices_of_experts_where_tokens_choose(make_arm, judge):
    base, arm = make_arm("standard", 1.5, 1.6), make_arm("a", 1.4, 1.5)
    other = make_arm("a", 1.4, 1.5, settings={"engine": "compile"})
    line = "different engines, which agree to rounding: standard by eager; a by compile"

    assert line in "\n".join(facts_of(judge(base, other)))
    assert "different engines" not in "\n".join(facts_of(judge(base, arm)))
    assert CHOICES not in facts_of(judge(base))
    assert CHOICES in facts_of(judge(base, rules=Rules(is_routed=True)))


def test_losses_of_tokens_that_are_not_bytes_have_no_bits_per_byte(make_arm, judge, facts):
    tokens = replace(facts, source="nanogpt", n_bytes=200_000, vocab_size=50257)
    task = replace(facts, source="recall", n_bytes=0, train_tokens=0)

    sizes = "100,000 tokens, 5,000 of", "generated without end, 5,000 tokens"
    for data, size in zip((tokens, task), sizes, strict=True):
        found = judge(make_arm("standard", 1.5, 1.6), data=data)
        text = "\n".join(facts_of(found))
        assert size in text
        assert "next token given this token" in text
        assert "bits/byte" not in [column.title for column in table_of(found).columns]


def test_the_share_of_a_known_peak_is_printed(make_arm):
    gpu = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "precision": "bf16"}
    speed = {"tokens_per_second": 1e6, "flops_per_token": 494_700_000}
    (run,) = make_arm("standard", 1.5, settings=gpu, **speed)

    assert speed_text(run.result) == "1,000,000 tokens/s, MFU 50.0 %"


def test_a_probe_without_shares_or_m_has_the_rest_and_the_reason():
    probe = Probe(100, (math.nan, math.inf, 2.0), (0.08, 0.002, 0.04), (1.0, 1.25, 1.75),
                  no_mixing="why not")  # fmt: skip

    (table,), notes = probe_tables([probe])

    assert table.rows[0] == ["embedding", "", "", "", "", "nan", "0.08", "-"]
    assert table.rows[1] == ["1 attn", "1.00", "-", "-", "-", "inf", "0.002", "-"]
    assert table.rows[3] == ["output", "1.75", "-", "-", "-", "", "", ""]
    assert notes[-1] == "depth mixing: no table, why not"
    assert probe_tables([]) == ([], [])


def test_the_load_of_experts_has_a_column_where_there_are_any():
    probe = replace(PROBE, imbalance=(0.0, 0.0, 1.25))

    (over, inside), notes = probe_tables([probe, probe])

    assert [row[-1] for row in over.rows] == ["1.25 of 2 mlp"] * 2
    assert [row[-1] for row in inside.rows] == ["", "", "1.25", ""]
    assert "most of them" in notes[1]
    assert [each.title for each in inside.columns].count("load") == 1
    plain, _ = probe_tables([PROBE])
    assert "load" not in [each.title for each in plain[0].columns]


@pytest.mark.parametrize("number", [1.2345e-5, 123.456, 1.2345e7])
def test_a_deep_model_is_no_wider_than_a_terminal(number: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    row, out = (number,) * 129, io.StringIO()
    probe = replace(PROBE, step=10**6, output_rms=row, gradient_rms=row, input_rms=row,
                    newest_share=row, embedding_share=row, entropy=row, mixing=(row,) * 129
                    )  # fmt: skip
    tables, notes = probe_tables([probe, probe])

    show(Report("", tables, notes=notes), "table", out)

    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "…" not in out.getvalue()


def test_characters_that_are_commands_in_latex_are_escaped():
    assert escaped("a_b 50% $x$ {y} \\z & #1 ~^ ±") == (
        r"a\_b 50\% \$x\$ \{y\} \textbackslash{}z \& \#1 \textasciitilde{}\textasciicircum{} $\pm$"
    )


def test_notes_and_tags_of_runs_are_below_the_table_and_in_json(make_arm, judge):
    first, second, *others = make_arm("standard", 1.5, 1.6, 1.7)
    first = replace(first, note="the GPU was hot", tags=("keep",))
    second = replace(second, tags=("keep", "old"))

    found = judge([first, second, *others])

    told, document = facts_of(found), report_of([found]).document
    assert f"note of standard seed 0 (run {first.id}): the GPU was hot" in told
    assert f"tag keep: runs {first.id}, {second.id}" in told
    assert f"tag old: run {second.id}" in told
    assert document["notes"] == {first.id: "the GPU was hot"}
    assert document["tags"] == {first.id: ("keep",), second.id: ("keep", "old")}


def test_for_a_paper_there_are_titles_and_tables_and_a_reason_where_nothing_is_compared():
    table = Table("losses", [Column("arm")], [["standard"], ["attnres"]])
    whole = Report("quick", [table], ["attnres wins"], ["one text"], notes=["why"])

    assert captioned(whole) == Report("quick", [table])
    alone = replace(whole, tables=[replace(table, rows=[["standard"]])])
    assert captioned(alone).text == ("attnres wins",)
