"""Tasks of lm-evaluation-harness, found by name or read from a file. The one place that imports the
harness, with asking.py and answers.py.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attnres_cli.console import note
from attnres_cli.errors import AttnresError, UsageError, required
from attnres_cli.files import read_text
from attnres_cli.lab.downstream.shipped import NAMES, Item
from attnres_cli.lab.downstream.task_files import Wish, wishes
from attnres_cli.records.items import ACC, ACC_NORM

LOCAL = "local"  # all shipped tasks
_MOST_BYTES = 2**30  # of a JSONL file
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
_ONLINE = " ".join(f"{name}=0" for name in _OFFLINE)
_PLACES = ("task_alias", "tag", "custom_dataset", "dataset_path", "dataset_name", "dataset_kwargs")
"""What a task's configuration says of where documents lie, not of how they are asked."""

_FORMS: dict[frozenset[str], dict[str, Any]] = {
    frozenset({"context", "choices", "gold"}): {
        "output_type": "multiple_choice",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metrics": (ACC, ACC_NORM),
    },
    frozenset({"context", "answer"}): {
        "output_type": "loglikelihood",
        "doc_to_text": "context",
        "doc_to_target": "answer",
        "metrics": (ACC,),
    },
    frozenset({"text"}): {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metrics": ("bits_per_byte",),
    },
}
"""How items are asked that are given as JSON, by the keys that they have."""


@dataclass(frozen=True)
class Task:
    """A task that is loaded, and what tells how it asks."""

    name: str
    content: str
    loaded: Any  # the harness's
    file: str = ""  # of items, after which it is named

    def seed(self) -> None:
        """Let few-shot examples be drawn anew, by the harness's seed: every run is asked the same
        prompts. Call it before the requests are made.
        """
        self.loaded.set_fewshot_seed(seed=1234)

    def hashes(self, limit: int | None) -> tuple[str, ...]:
        """Of its documents, or the first of them, with all that would be asked of each."""
        with quiet(), explained(self.name):
            self.seed()
            self.loaded.build_all_requests(limit=limit)
        arguments: dict[int, tuple[Any, list[Any]]] = {}
        for instance in self.loaded.instances:
            arguments.setdefault(instance.doc_id, (instance.doc, []))[1].append(instance.args)
        return tuple(hashed(doc, asked) for _, (doc, asked) in sorted(arguments.items()))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the harness's words: what counts of them we say."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def harness() -> str:
    """The version of the harness, which is imported: offline, unless the user has decided that, and
    with templates in a sandbox. Raises UsageError where it is not installed.
    """
    for name in _OFFLINE:
        os.environ.setdefault(name, "1")
    with quiet():
        required("lm_eval.tasks", "lm-eval", "attnres evaluate", UsageError)
        api: Any = importlib.import_module("lm_eval.api.task")
        importlib.import_module("datasets").disable_progress_bars()
        utils: Any = importlib.import_module("lm_eval.utils")
        sandbox = importlib.import_module("jinja2.sandbox").SandboxedEnvironment
        if not isinstance(utils.env, sandbox):
            kept = ("loader", "undefined", "keep_trailing_newline")
            made = sandbox(**{name: getattr(utils.env, name) for name in kept})
            made.filters |= utils.env.filters
            utils.env = made
    api.tqdm = lambda documents, **_: documents  # a bar of its own, which no setting takes away
    return version("lm_eval")


def of_items(name: str, items: Sequence[Item]) -> Task:
    """A task of items that are at hand, all of one of the _FORMS. Raises UsageError."""
    import datasets
    from lm_eval.api.task import ConfigurableTask

    form = next((form for keys, form in _FORMS.items() if keys <= items[0].keys()), None)
    if form is None:
        forms = "; ".join(", ".join(sorted(keys)) for keys in _FORMS)
        raise UsageError(f"task {name}: an item has one of these sets of keys: {forms}")
    metrics = [
        {
            "metric": m,
            "aggregation": m if m == "bits_per_byte" else "mean",
            "higher_is_better": True,
        }
        for m in form["metrics"]
    ]
    config = {key: value for key, value in form.items() if key != "metrics"} | {
        "task": name,
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(list(items))},
        "test_split": "test",
        "target_delimiter": "",
        "metric_list": metrics,
        "num_fewshot": 0,
    }
    with quiet(), explained(name):
        return _task(ConfigurableTask(config=config))


def of_file(path: Path, *, trust: bool = False) -> list[Task]:
    """The tasks of a YAML file of the harness, or of a JSONL file of items. Raises UsageError, also
    where a YAML file would run code and is not trusted, or has an address while we are offline.
    """
    if path.suffix == ".jsonl":
        if path.stem in (*NAMES, LOCAL):
            raise UsageError(f"{path}: {path.stem} is the name of a local task. Rename the file")
        return [replace(of_items(path.stem, _read(path)), file=str(path))]
    from lm_eval.api import metrics, registry
    from lm_eval.tasks import TaskManager

    assert metrics  # which registers them
    for wish in wishes(path, registry.METRIC_REGISTRY):
        _allow(wish, trust=trust)
    with quiet(), explained(str(path)):
        return _all(TaskManager(include_defaults=False).load([str(path)]))


def _allow(wish: Wish, *, trust: bool) -> None:
    if wish.kind == "address" and _is_offline():
        raise UsageError(
            f"{wish.where} has an address ({wish.text}), and evaluation is offline: "
            f"{_ONLINE} attnres evaluate ... contacts it"
        )
    if wish.kind == "code" and not trust:
        raise UsageError(
            f"{wish.where} would run code ({wish.text}), and a task file is data: --trust runs it"
        )
    if wish.kind == "code":
        note(f"{wish.where} runs code: {wish.text}")


def _is_offline() -> bool:
    return any(os.environ.get(name, "1") not in ("0", "false", "False") for name in _OFFLINE)


def _read(path: Path) -> list[Item]:
    found: list[Item] = []
    text = read_text(path, "--tasks", UsageError, _MOST_BYTES)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path} line {number} is no JSON: {error}") from error
        if not isinstance(item, dict) or (found and item.keys() != found[0].keys()):
            raise UsageError(f"{path} line {number} has not the keys of the first line")
        if wrong := _wrong(item):
            raise UsageError(f"{path} line {number}: {wrong}")
        found.append(item)
    if not found:
        raise UsageError(f"{path} holds no item: one JSON object a line")
    return found


def _wrong(item: Item) -> str:
    """What is not as it must be in an item's keys that are asked; empty where all is well."""
    for key in ("context", "answer", "text"):
        if not isinstance(item.get(key, ""), str):
            return f"{key} is no text"
    if "choices" not in item:
        empty = [key for key in ("answer", "text") if item.get(key) == ""]
        return f"{empty[0]} is empty" if empty else ""
    choices, gold = item["choices"], item.get("gold")
    if not (isinstance(choices, list) and all(isinstance(c, str) and c for c in choices)):
        return "choices are a list of texts, none of them empty"
    if len(choices) < 2 or type(gold) is not int or not 0 <= gold < len(choices):
        return "gold is the number of the right one of two choices or more, from 0 up"
    return ""


def of_names(names: Sequence[str]) -> list[Task]:
    """Tasks of the harness by name; groups and tags stand for all of theirs. Raises UsageError for
    one that is not known, or whose documents are not on this machine.
    """
    from lm_eval.tasks import TaskManager

    with quiet():
        manager = TaskManager()
    found = []
    for name in names:
        if name not in manager.task_index:
            near = difflib.get_close_matches(
                name, [*manager.all_tasks, *NAMES, LOCAL], n=1, cutoff=0.5
            )
            hint = f": did you mean '{near[0]}'?" if near else "."
            raise UsageError(
                f"unknown task '{name}'{hint} There are {', '.join(NAMES)} (all: {LOCAL}), files "
                "(.yaml, .jsonl) and what `lm-eval ls tasks` lists"
            )
        with quiet(), explained(name):
            found += _all(manager.load([name]))
    return found


def _all(loaded: Mapping[str, Any]) -> list[Task]:
    return [_task(each) for each in loaded["tasks"].values()]


def _task(loaded: Any) -> Task:
    """What the harness has loaded, with the settings that it makes itself before it asks."""
    name = str(loaded.task_name)
    if getattr(loaded, "UNSAFE_CODE", False):
        raise UsageError(f"task {name} runs code that a model wrote: that is not done here")
    if getattr(loaded, "MULTIMODAL", False):
        raise UsageError(f"task {name} shows pictures or sounds: these models read text")
    if loaded.get_config("num_fewshot") is None:
        loaded.set_config(key="num_fewshot", value=0)
    config = {key: value for key, value in loaded.dump_config().items() if key not in _PLACES}
    return Task(name, _digest(config)[:12], loaded)


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """What the harness, or what it calls, raises of a task, as one line: anything may."""
    try:
        yield
    except (AttnresError, KeyboardInterrupt):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        if "Offline" in said or isinstance(error, ConnectionError):
            raise UsageError(
                f"task {name} needs documents that are not in the cache of this machine ({said}): "
                f"{_ONLINE} attnres evaluate ... downloads them"
            ) from error
        raise UsageError(f"task {name} cannot be asked: {said}") from error


def hashed(doc: Any, arguments: Sequence[Any]) -> str:
    """16 hex digits over a document and all that is asked of it."""
    return _digest([doc, [list(each) for each in arguments]])[:16]


def _digest(value: Any) -> str:
    def named(other: Any) -> str:
        return str(getattr(other, "__qualname__", type(other).__name__))

    return hashlib.sha256(json.dumps(value, sort_keys=True, default=named).encode()).hexdigest()
