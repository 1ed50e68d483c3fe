"""Runs asked to answer tasks: what the study has is not asked again, answers are kept at once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import TEXTS
from attnres_cli.console import warn
from attnres_cli.data import sources, tokenizers
from attnres_cli.data.tokenizers import Tokenizer
from attnres_cli.errors import UsageError, VariantError
from attnres_cli.files import sha256
from attnres_cli.lab.downstream import asking, shipped, tasks
from attnres_cli.lab.downstream.tasks import LOCAL, Task
from attnres_cli.lab.export import kept_weights
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.nn.exported import load
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.variant import parse
from attnres_cli.records.code import Code
from attnres_cli.records.items import Answered, Items
from attnres_cli.records.run import RunRecord, Status
from attnres_cli.store.store import Store
from attnres_cli.train.device import fix_numerics

if TYPE_CHECKING:
    from attnres_cli.lab.downstream.answers import Answers

_FILES = (".yaml", ".yml", ".jsonl")
_CODE = ("design", "trunk", "engine")
"""What decides a trained model's answers, of the code that trained it."""

Watch = Callable[[str, str, int, int], None]
"""Told who answers which task, how many requests are done, and of how many."""


@dataclass(frozen=True)
class Subject:
    """Weights that are asked: of a run, or in a folder that `runs export` wrote, whose run_id is 0
    and whose answers no study keeps.
    """

    label: str
    run_id: int
    variant: str
    seed: int
    recipe: Recipe
    fingerprint: str
    vocab_size: int
    weights_sha256: str
    build: Callable[[], Transformer]
    other_code: str = ""  # parts of its code that are now others than those that trained it

    def tokenizer(self) -> Tokenizer:
        """What its data were made with. Raises UsageError where they are no text, or other text."""
        data = self.recipe.data
        if data.source not in TEXTS:
            raise UsageError(
                f"{self.label} was trained on data.source {data.source}, whose tokens stand for no "
                "text that is known here: tasks are text"
            )
        found = tokenizers.of(data.tokenizer)
        if found.vocab_size != self.vocab_size:
            raise UsageError(
                f"{self.label} has a vocabulary of {self.vocab_size}, its tokenizer "
                f"{data.tokenizer} now one of {found.vocab_size}: it is another one"
            )
        return found


def of_run(store: Store, record: RunRecord) -> Subject:
    """A run of the study. Raises UsageError where it is not complete, or its weights are not here
    as they were written.
    """
    if record.status is Status.DIVERGED:
        raise UsageError(f"run {record.id} has diverged: it has nothing to answer")
    weights = kept_weights(store, record)
    assert record.result is not None
    recipe = store.recipe(record.recipe_digest, record.fingerprint)
    facts = store.data(record.fingerprint)

    def build() -> Transformer:
        from safetensors.torch import load_model

        shape = recipe.model.shape(facts.vocab_size)
        design = parse(record.variant).build(shape.d_model, shape.n_sublayers)
        model = Transformer(shape, design)
        load_model(model, weights)
        return model.eval()

    was, now = Code.of(record.versions), code_of(record.variant)
    other = [name for name in _CODE if getattr(was, name) != getattr(now, name)]
    checksum = record.result.weights_sha256 or sha256(weights)
    return Subject(
        f"run {record.id}", record.id, record.variant, record.seed, recipe, record.fingerprint,
        facts.vocab_size, checksum, build, ", ".join(other),
    )  # fmt: skip


def of_folder(folder: Path) -> Subject:
    """What `runs export` wrote. Raises UsageError where it is not that, or cannot answer."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        recipe = Recipe.model_validate(config["recipe"])
        _check(folder, config)
        return Subject(
            str(folder), 0, config["variant"], config["seed"], recipe,
            config["data"]["fingerprint"], config["shape"]["vocab_size"],
            config["weights_sha256"] or sha256(folder / "model.safetensors"),
            lambda: load(folder),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{folder} is no number of a run, and no folder of `attnres runs export` ({said})"
        ) from error


def _check(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise UsageError for a run that is not complete, or a plugin that is not loaded."""
    if (status := config.get("status", Status.COMPLETE)) != Status.COMPLETE:
        raise UsageError(f"{folder} is of a run that is {status}: it has nothing to answer")
    try:
        parse(config["variant"])
    except VariantError as error:
        if not config.get("plugin"):
            raise
        file = shlex.quote(str(folder / Path(config["plugin"]).name))
        raise UsageError(
            f"{folder} has a plugin's design, which is code. Read {file}, then add --plugin {file}"
        ) from error


@dataclass(frozen=True)
class Asked:
    """The tasks that each subject is to answer, in its order, and how many items of each."""

    subjects: Sequence[Subject]
    tasks: Mapping[str, Sequence[Task]]  # by label of the subject
    limit: int | None


def asked(
    subjects: Sequence[Subject], names: Sequence[str], limit: int | None, *, trust: bool = False
) -> Asked:
    """The tasks of these names: shipped ones of each subject's own data, `local` all of them;
    files, which run code only if `trust` allows it; or the harness's. Raises UsageError for what
    cannot be asked, before anything is.
    """
    tasks.harness()
    for subject in subjects:
        subject.tokenizer()
    names = list(dict.fromkeys(n for name in names for n in _parts(name)))
    elsewhere = [name for name in names if not _is_file(name) and name not in shipped.NAMES]
    of_harness = iter(tasks.of_names(elsewhere)) if elsewhere else iter(())
    files = [_path(name) for name in names if _is_file(name)]
    shared = [task for file in files for task in tasks.of_file(file, trust=trust)]
    shared += of_harness
    own = [name for name in names if name in shipped.NAMES]
    made: dict[str, list[Task]] = {}
    for subject in subjects:
        if subject.fingerprint not in made:
            made[subject.fingerprint] = _shipped(subject, own) if own else []
    found = {subject.label: [*made[subject.fingerprint], *shared] for subject in subjects}
    for each in found.values():
        twice = {t.name for t in each if sum(t.name == other.name for other in each) > 1}
        if twice:
            raise UsageError(f"two tasks are called {min(twice)}: ask one after the other")
    return Asked(subjects, found, limit)


def _parts(name: str) -> Sequence[str]:
    return shipped.NAMES if name == LOCAL else (name,)


def _is_file(name: str) -> bool:
    return name.endswith(_FILES)


def _path(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise UsageError(f"--tasks {name}: there is no such file")
    return path


def _shipped(subject: Subject, names: Sequence[str]) -> list[Task]:
    """Made of the data that a subject was trained on, which must be here as they were: other
    validation files could be among those that it was trained on.
    """
    tokens = sources.load(subject.recipe)
    if tokens.fingerprint != subject.fingerprint:
        raise UsageError(
            f"{subject.label} was trained on data {subject.fingerprint}, which are now "
            f"{tokens.fingerprint}: {', '.join(names)} are made of its own validation files"
        )
    train, val = sources.halves(subject.recipe.data)
    found = {name: shipped.items(name, train, val, tokens.fingerprint) for name in names}
    if few := [name for name, items in found.items() if len(items) < 2]:
        raise UsageError(
            f"the validation files of {subject.label} are too few, or no text, for {few[0]}"
        )
    return [tasks.of_items(name, items) for name, items in found.items()]


def answers(
    store: Store | None, found: Asked, batch_size: int, device: str, watch: Watch
) -> Iterator[Answered]:
    """What each subject answers to each of its tasks: as the study has it, where it has all that is
    asked, else by the weights, which is kept before it is told. A run that was removed meanwhile is
    named, and left out.
    """
    fix_numerics(torch.device(device))
    hashes = {
        id(task): task.hashes(found.limit) for task in _each(found)
    }  # of all, before a model is built
    held = {(h.run_id, h.task): h for h in (store.items() if store is not None else ())}
    for subject, task in ((s, task) for s in found.subjects for task in found.tasks[s.label]):
        _refuse_namesake(held.get((subject.run_id, task.name)), subject, task, hashes[id(task)])
    for subject in found.subjects:
        model: Answers | None = None
        for task in found.tasks[subject.label]:
            old = held.get((subject.run_id, task.name))
            if old is not None and _is_all(old, subject, task, hashes[id(task)]):
                yield Answered(subject.label, subject.variant, subject.seed, old, is_new=False)
                continue
            if _is_removed(store, subject):
                break
            if model is None:
                model = _built(subject, batch_size, device)
            items = _ask(model, subject, task, found.limit, watch)
            if store is not None and subject.run_id and not store.keep_items(items):
                _is_removed(store, subject)
                break
            yield Answered(subject.label, subject.variant, subject.seed, items)


def _is_removed(store: Store | None, subject: Subject) -> bool:
    """Whether a run is gone since the command began, which it warns of."""
    if store is None or not subject.run_id or store.runs(ids=[subject.run_id], curves=False):
        return False
    warn(f"{subject.label} was removed meanwhile: it has no answers")
    return True


def _each(found: Asked) -> list[Task]:
    every = (task for of in found.tasks.values() for task in of)
    return list({id(task): task for task in every}.values())


def _refuse_namesake(
    held: Items | None, subject: Subject, task: Task, hashes: Sequence[str]
) -> None:
    """Raise UsageError where a run has answered a task of that name of which the file has nothing:
    its answers would be replaced.
    """
    if held is not None and task.file and set(hashes).isdisjoint(held.doc_hashes):
        raise UsageError(
            f"{task.file}: {subject.label} has answered other items under the name {task.name}, "
            "which would be lost. Rename the file"
        )


def _is_all(held: Items, subject: Subject, task: Task, hashes: Sequence[str]) -> bool:
    """Whether the study has these weights' answers to all of these documents."""
    same = (held.content, held.weights_sha256) == (task.content, subject.weights_sha256)
    return same and set(hashes) <= set(held.doc_hashes)


def _built(subject: Subject, batch_size: int, device: str) -> Answers:
    from attnres_cli.lab.downstream.answers import Answers

    model = subject.build().to(torch.device(device))
    return Answers(model, subject.tokenizer(), batch_size, lambda _n: None)


def _ask(model: Answers, subject: Subject, task: Task, limit: int | None, watch: Watch) -> Items:
    total, done = len(task.loaded.instances), 0

    def tick(n: int) -> None:
        nonlocal done
        done += n
        watch(subject.label, task.name, done, total)

    model.tick, model.cut = tick, set()
    watch(subject.label, task.name, 0, total)
    return asking.ask(task, model, subject.run_id, subject.weights_sha256, limit)
