"""`attnres evaluate`: real, short runs answer tasks of the real harness, item by item."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import Attnres, ended

from attnres_cli import load
from attnres_cli.data import tokenizers
from attnres_cli.errors import installing
from attnres_cli.lab.downstream import asking, evaluating, shipped, tasks
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse
from attnres_cli.records.code import Code
from attnres_cli.records.items import Items
from attnres_cli.store.store import Store

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")

TINY = ("--recipe", "smoke", "--set", "train.tokens=2k", "--seeds", "1", "-q")
YAML = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{choices[gold]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 4}}
metric_list: [{{metric: exact_match}}]
"""
SUMS = [{"context": f"{i}+1=", "choices": [str(i + 1), "x", "no"], "gold": 0} for i in range(8)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study: runs 1 and 2 of standard and attnres, run 3 of a generated task."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert ended("ablate", "standard", "attnres", *TINY) == 0
        recall = ("--set", "data.source=recall", "--set", "data.pairs=2")
        assert ended("ablate", "standard", *TINY, *recall) == 0
    return folder


@pytest.fixture(autouse=True)
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with that study and some files; ask few items of each shipped task."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(shipped, "N_ITEMS", 12)
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, SUMS)) + "\n")
    Path("sums.yaml").write_text(YAML.format(file=tmp_path / "sums.jsonl"))
    Path("texts.jsonl").write_text('{"text": "def f(x):\\n    return x\\n"}\n{"text": "caf\u00e9"}')
    Path("next.jsonl").write_text('{"context": "impor", "answer": "t sys"}\n')


def held() -> list[Items]:
    return Store.open("attnres.db", create=False).items()


def results(attnres: Attnres, *arguments: str) -> list[dict[str, Any]]:
    return attnres.json("evaluate", *arguments, "-q")["results"]


def nats(model: torch.nn.Module, context: str, answer: str) -> float:
    """Nats of an answer, byte by byte, from the model's whole context."""
    total, text = 0.0, list((context + answer).encode())
    for at in range(len(context.encode()), len(text)):
        with torch.no_grad():
            logits = model(torch.tensor([text[max(0, at - 32) : at]]))[0, -1]
        total += logits.log_softmax(-1)[text[at]].item()
    return total


def test_the_shipped_tasks_need_no_files_and_every_answer_is_kept(attnres: Attnres, monkeypatch):
    found = results(attnres, "1", "2")

    expected = [(task, run, 12, 0.25) for task in shipped.NAMES for run in (1, 2)]
    assert [(r["task"], r["run"], r["items"], r["chance"]) for r in found] == expected
    items = held()
    by_key = {(each.run_id, each.task): each for each in items}
    for result in found:
        each = by_key[result["run"], result["task"]]
        assert result["acc"] == pytest.approx(each.mean("acc"))
        assert result["bits_per_byte"] == each.bits_per_byte
        assert each.truncated == (0 if each.task == "recall" else 12)
        one = by_key[1, result["task"]]  # the two runs' items pair
        assert (one.doc_hashes, one.content) == (each.doc_hashes, each.content)
        assert len(set(one.doc_hashes)) == 12

    monkeypatch.setattr(evaluating, "_built", lambda *_: pytest.fail("asked again"))
    code, out, err = attnres("evaluate", "1", "2", "--tasks", "local")
    assert code == 0
    assert "6 of 6 as the study had them" in err
    assert "cut: 48 contexts" in out
    assert held() == items


def test_likelihoods_are_those_of_the_exported_model(attnres: Attnres):
    results(attnres, "2", "--tasks", "sums.jsonl,next.jsonl,texts.jsonl")
    assert attnres("runs", "export", "2", "--output", "out")[0] == 0
    model = load("out")
    by_task = {each.task: each for each in held()}

    sums = by_task["sums"].values
    for number, item in enumerate(SUMS):
        every = [nats(model, item["context"], choice) for choice in item["choices"]]
        among = torch.tensor(every).log_softmax(-1)[0].item()
        assert sums["gold_nats"][number] == pytest.approx(every[0], abs=1e-4)
        assert sums["choice_nats"][number] == pytest.approx(among, abs=1e-4)
        assert sums["acc"][number] == (every[0] == max(every))
    assert set(sums["n_choices"]) == {3.0}
    (found,) = by_task["next"].values["gold_nats"]
    assert found == pytest.approx(nats(model, "impor", "t sys"), abs=1e-4)
    texts = by_task["texts"]
    assert texts.values["gold_bytes"] == (23.0, 5.0)
    assert texts.values["gold_nats"][1] == pytest.approx(nats(model, "\n", "caf\u00e9"), abs=1e-4)
    assert [str(by_task[t].kind) for t in ("sums", "next", "texts")] == ["choice", "answer", "text"]

    both = {r["run"]: r for r in results(attnres, "out", "2", "--tasks", "sums.jsonl")}
    assert both.keys() == {None, 2}
    assert both[None]["gold_nats"] == pytest.approx(both[2]["gold_nats"], abs=1e-5)


def test_a_folder_that_cannot_answer_is_refused_with_what_to_type(attnres: Attnres):
    attnres("runs", "export", "1", "--output", "out")
    config = json.loads(Path("out/config.json").read_text())
    for change, words in (
        ({"status": "diverged"}, "out is of a run that is diverged: it has nothing to answer"),
        ({"variant": "own", "plugin": "own.py"}, "Read out/own.py, then add --plugin out/own.py"),
    ):
        Path("out/config.json").write_text(json.dumps(config | change))
        assert words in attnres.refuses("evaluate", "out", "--tasks", "sums.jsonl")


def test_an_answer_is_tokenized_as_in_a_running_text():
    from attnres_cli.lab.downstream.answers import Answers

    package = pytest.importorskip("tokenizers")
    trained = package.ByteLevelBPETokenizer()
    texts = ["the cat sat on the mat\n", "the cat\n"] * 20
    trained.train_from_iterator(texts, vocab_size=300, show_progress=False)
    trained.save("bpe.json")
    tokenizer = tokenizers.of("bpe.json")
    shape = Shape(1, 8, 1, 1, 8, 8, tokenizer.vocab_size, 16)
    model = Transformer(shape, parse("standard").build(8, 2))
    asked = Answers(model, tokenizer, 4, lambda _n: None)

    for context, answer in (("the cat", " sat"), ("the cat ", "sat"), ("the ca", "t sat")):
        span = asked._span(context, answer)
        whole = list(next(iter(tokenizer.encode([context + answer]))))
        scored = tokenizer.decode(span.tokens[span.first :])
        assert tokenizer.decode(span.tokens[: span.first]) + scored == context + answer
        assert scored.strip() == answer.strip()
        assert (list(span.tokens) == whole) == (context != "the ca")  # there tokens would be joined
    begun = asked._span("", "the")
    assert (tokenizer.decode(begun.tokens), begun.first) == ("\nthe", 1)


def test_runs_of_other_code_answer_with_a_warning(attnres: Attnres, monkeypatch):
    assert "warning" not in attnres("evaluate", "1", "2", "--tasks", "sums.jsonl")[2]
    monkeypatch.setattr(evaluating, "code_of", lambda _variant: Code())
    _, _, err = attnres("evaluate", "1", "2", "--tasks", "sums.jsonl")
    assert err.count("warning: ") == 1
    assert "run 1, run 2: trained by other code (design, trunk, engine) than answers now" in err


def test_a_yaml_task_of_the_harness_generates_text(attnres: Attnres):
    (found,) = results(attnres, "1", "--tasks", "sums.yaml", "--batch-size", "3")
    assert (found["kind"], found["items"], found["chance"]) == ("generation", 8, None)
    assert 0 <= found["exact_match"] <= 1
    assert attnres("evaluate", "1", "--tasks", "sums.yaml,sums.jsonl")[0] == 2  # one name


def test_few_shot_examples_are_the_same_for_every_run_and_every_time(attnres: Attnres):
    shots = "num_fewshot: 2\nfewshot_split: test\n"
    Path("shots.yaml").write_text(Path("sums.yaml").read_text() + shots)
    results(attnres, "1", "2", "--tasks", "shots.yaml")

    one, two = held()
    assert one.doc_hashes == two.doc_hashes
    assert "2 of 2 as the study had" in attnres("evaluate", "1", "2", "--tasks", "shots.yaml")[2]


MARK = "import pathlib; pathlib.Path('ran').touch()\n"
WITH_CODE = {
    "a function": "doc_to_text: !function evil.text",
    "a function for a choice": "doc_to_choice: [!function evil.text]",
    "a class": "class: !function evil.Task",
    "a tag of Python": "doc_to_text: !!python/name:evil.text",
    "a metric that is a script": "metric_list: [{metric: ./evil.py}]",
    "a metric from elsewhere": "metric_list: [{metric: acc, hf_evaluate: true}]",
    "a script of a data set": "dataset_kwargs: {trust_remote_code: true}",
    "a key": "? !function evil.text\n: x",
    "a data set that is a script": "dataset_path: ./evil.py",
    "another file": "include: more.yaml",
    "an alias": "description: &a [!function evil.text]\nfewshot_config: *a",
}


@pytest.mark.parametrize("what", WITH_CODE)
def test_a_task_file_that_names_code_is_refused_and_nothing_of_it_runs(what: str, attnres: Attnres):
    Path("evil.py").write_text(MARK + "def text(doc): return 'x'\nclass Task: pass\n")
    Path("more.yaml").write_text("doc_to_text: !function evil.text\n")
    Path("evil.yaml").write_text(Path("sums.yaml").read_text() + WITH_CODE[what])

    told = attnres.refuses("evaluate", "1", "--tasks", "evil.yaml")

    assert "would run code" in told
    assert "--trust runs it" in told
    assert re.search(r"(evil|more)\.yaml line \d+ would", told)
    assert not Path("ran").exists()


def test_code_that_is_trusted_is_named_and_runs(attnres: Attnres):
    Path("evil.py").write_text(MARK + "def text(doc): return doc['context']\n")
    text = Path("sums.yaml").read_text().replace('"{{context}}"', "!function evil.text")
    Path("own.yaml").write_text(text)

    code, _, err = attnres("evaluate", "1", "--tasks", "own.yaml", "--trust")

    assert code == 0
    assert "own.yaml line 7 runs code: !function evil.text" in err
    assert Path("ran").exists()


def test_a_template_cannot_leave_its_sandbox(attnres: Attnres):
    reach = "{{ cycler.__init__.__globals__.os.system('touch ran') }}"
    text = Path("sums.yaml").read_text().replace("{{context}}", reach)
    Path("evil.yaml").write_text(text)

    assert "unsafe" in attnres.refuses("evaluate", "1", "--tasks", "evil.yaml")
    assert not Path("ran").exists()


def test_no_address_of_a_task_file_is_contacted_while_we_are_offline(attnres: Attnres, monkeypatch):
    def connect(*_: Any) -> None:
        raise AssertionError("an address was contacted")

    monkeypatch.setattr("socket.socket.connect", connect)
    for place in (
        "dataset_kwargs: {data_files: {test: 'http://127.0.0.1:9/a.jsonl'}}",
        "dataset_kwargs: {data_files: ['zip://a.jsonl::https://127.0.0.1:9/a.zip']}",
        "dataset_path: 'hf://datasets/a/b'",
    ):
        Path("far.yaml").write_text(Path("sums.yaml").read_text() + place)
        told = attnres.refuses("evaluate", "1", "--tasks", "far.yaml")
        assert "evaluation is offline: HF_HUB_OFFLINE=0" in told


def test_an_evaluation_replaces_only_a_shorter_or_outdated_one(attnres: Attnres):
    first = ("1", "--tasks", "sums.jsonl", "--limit", "3")
    assert [r["items"] for r in results(attnres, *first)] == [3]
    assert [r["items"] for r in results(attnres, "1", "--tasks", "sums.jsonl")] == [8]
    assert [r["items"] for r in results(attnres, *first)] == [8]
    changed = [SUMS[0] | {"context": "0 + 1 ="}, *SUMS[1:]]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, changed)))
    before = held()
    results(attnres, "1", "--tasks", "sums.jsonl")
    assert held()[0].doc_hashes[0] != before[0].doc_hashes[0]
    assert held()[0].doc_hashes[1:] == before[0].doc_hashes[1:]


def test_another_file_of_a_name_replaces_no_answers(attnres: Attnres):
    results(attnres, "1", "--tasks", "next.jsonl")
    before = held()
    Path("next.jsonl").write_text('{"context": "retur", "answer": "n x"}\n')
    shutil.copy("sums.jsonl", "cloze.jsonl")

    told = attnres.refuses("evaluate", "2", "1", "--tasks", "sums.jsonl,next.jsonl")

    assert "run 1 has answered other items under the name next, which would be lost" in told
    told = attnres.refuses("evaluate", "1", "--tasks", "cloze.jsonl")
    assert "cloze.jsonl: cloze is the name of a local task. Rename the file" in told
    assert held() == before


def test_an_interrupted_evaluation_keeps_finished_tasks(attnres: Attnres, monkeypatch):
    ask, calls = asking.ask, []

    def interrupted(*arguments: Any) -> Items:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return ask(*arguments)

    monkeypatch.setattr(asking, "ask", interrupted)
    code, _, err = attnres("evaluate", "1", "--tasks", "recall,sums.jsonl")

    assert code == 130
    assert "the same command goes on" in err
    assert [each.task for each in held()] == ["recall"]
    assert len(results(attnres, "1", "--tasks", "recall,sums.jsonl")) == 2
    assert len(calls) == 3  # recall was not asked again

    calls[:] = [()]  # the next one is interrupted
    attnres("runs", "export", "1", "--output", "out")
    code, _, err = attnres("evaluate", "out", "--tasks", "sums.jsonl")
    assert code == 130
    assert err.endswith("attnres: interrupted; nothing was kept\n")


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_run_that_is_removed_meanwhile_is_named_and_the_others_answer(
    is_asked: bool, attnres: Attnres, monkeypatch
):
    def removing(function: Any) -> Any:
        def removed(*arguments: Any) -> Any:
            if (store := Store.open("attnres.db", create=True)).runs(ids=[1]):
                store.remove([1])
            return function(*arguments)

        return removed

    for module, name in ((asking, "ask"),) if is_asked else ((evaluating, "fix_numerics"),):
        monkeypatch.setattr(module, name, removing(getattr(module, name)))
    code, _, err = attnres("evaluate", "1", "2", "--tasks", "sums.jsonl")

    assert code == 0
    assert "run 1 was removed meanwhile: it has no answers" in err
    assert [each.run_id for each in held()] == [2]


def test_a_line_of_a_task_may_hold_what_else_ends_lines(tmp_path: Path):
    (path := tmp_path / "task.jsonl").write_text('{"text": "a\u2028b\u0085"}\r\n{"text": "c"}\n')
    assert [item["text"] for item in tasks._read(path)] == ["a\u2028b\u0085", "c"]


def test_impossible_questions_end_in_one_line_and_exit_code_2(attnres):
    for arguments, words in (
        (("7",), "no run 7 in study attnres.db"),
        (("0",), "RUN takes numbers of runs"),
        (("no/folder",), "is no number of a run, and no folder"),
        (("1", "--tasks", ","), "--tasks takes names or files"),
        (("1", "--tasks", "gone.jsonl"), "there is no such file"),
        (("1", "--tasks", "bad.jsonl"), "bad.jsonl line 2 is no JSON"),
        (("1", "--tasks", "keys.jsonl"), "one of these sets of keys"),
        (("1", "--tasks", "gold.jsonl"), "line 1: gold is the number"),
        (("1", "--tasks", "answer.jsonl"), "answer.jsonl line 2: answer is empty"),
        (("1", "--tasks", "text.jsonl"), "text.jsonl line 1: text is empty"),
        (("1", "--tasks", "bad.yaml"), "task bad.yaml cannot be asked"),
        (("1", "--tasks", "deep.yaml"), "deep.yaml is no YAML"),
        (("3", "--tasks", "recall"), "whose tokens stand for no text"),
        (("1", "--device", "gpu"), "--device takes"),
    ):
        Path("bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
        Path("keys.jsonl").write_text('{"question": "a"}\n')
        Path("gold.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "gold": 2}\n')
        right = '{"context": "a", "answer": "b"}\n'
        Path("answer.jsonl").write_text(right + right.replace("b", ""))
        Path("text.jsonl").write_text('{"text": ""}\n')
        Path("deep.yaml").write_text("task: " + "[" * 9999)
        Path("bad.yaml").write_text("task: bad\ndataset_path: json\noutput_type: wrong\n")
        assert words in attnres.refuses("evaluate", *arguments)
        assert held() == []


def test_changed_data_and_damaged_weights_are_refused(attnres: Attnres, monkeypatch):
    store = Store.open("attnres.db", create=False)
    (first,) = store.runs(ids=[1])
    other = SimpleNamespace(fingerprint="0" * 16)
    with monkeypatch.context() as patch:
        patch.setattr(evaluating.sources, "load", lambda _: other)
        err = attnres("evaluate", "1", "--tasks", "cloze")[2]
        assert f"run 1 was trained on data {first.fingerprint}, which are now {'0' * 16}" in err
    store.weights_of(first).write_bytes(b"nothing")
    assert "are damaged" in attnres("evaluate", "1", "--tasks", "recall")[2]


def test_without_the_extra_one_line_says_what_to_install(attnres: Attnres, monkeypatch):
    for name in ("lm_eval", "lm_eval.tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    assert installing("lm-eval") in attnres.refuses("evaluate", "1")


@pytest.mark.slow  # the harness reads 14,000 files to know its tasks
def test_tasks_of_the_harness_are_found_by_name(attnres: Attnres, monkeypatch):
    err = attnres("evaluate", "1", "--tasks", "hellaswagg")[2]
    assert "unknown task 'hellaswagg': did you mean 'hellaswag'?" in err
    code, _, err = attnres("evaluate", "1", "--tasks", "hellaswag")
    assert code == 2
    assert re.search("needs documents that are not in the cache.*HF_HUB_OFFLINE=0", err)
