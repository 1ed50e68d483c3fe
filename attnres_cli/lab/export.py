"""A run as a folder to take away: its final weights, and all that decided them."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnres_cli.errors import UsageError, VariantError
from attnres_cli.files import sha256
from attnres_cli.lab import huggingface
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.nn import code, plugins
from attnres_cli.nn.residual import PLUGINS
from attnres_cli.nn.variant import parse
from attnres_cli.records.code import Code
from attnres_cli.records.run import RunRecord
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import is_weights, whole

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Exported:
    """A folder's files, whether a plugin's source is among them, and why no tokenizer is."""

    files: list[Path]
    has_plugin: bool
    no_tokenizer: str


def export(store: Store, record: RunRecord, folder: Path, *, to_hf: bool = False) -> Exported:
    """Write model.safetensors, config.json and a plugin's source into a new folder, for
    `load`; to Hugging Face also what transformers reads. Raises UsageError where the weights
    are gone, a plugin is not loaded or has changed since, or the folder has such files or cannot be
    written to.
    """
    kept = kept_weights(store, record)
    sources = _sources(record)
    told = _config(store, record) | ({"plugin": next(iter(sources))} if sources else {})
    texts, no_tokenizer = huggingface.files(told) if to_hf else ({}, "")
    texts.setdefault("config.json", json.dumps(told, indent=2) + "\n")
    names = [WEIGHTS, *texts, *sources]
    there = [name for name in names if (folder / name).exists()]
    if there:
        raise UsageError(f"{folder} already has {there[0]}: --output names another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / WEIGHTS) as part:
            shutil.copyfile(kept, part)
        for name, source in sources.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {folder} cannot be written: {error.strerror}") from error
    return Exported([folder / name for name in names], bool(sources), no_tokenizer)


def kept_weights(store: Store, record: RunRecord) -> Path:
    """The final weights of a run that has ended, in the study's folder. Raises UsageError where
    they are not there as they were written.
    """
    if record.result is None:
        raise UsageError(
            f"run {record.id} is {record.status} and has no final weights: "
            f"{_command(store, record)} as it was typed trains it"
            + (", with --retry-failed" if record.error else "")
        )
    kept = store.weights_of(record)
    if not kept.exists():
        if store.without_files:
            raise UsageError(f"run {record.id} has no weights here: {store.without_files}")
        host = record.versions.get("host", socket.gethostname())
        if host != socket.gethostname():
            raise UsageError(
                f"the final weights of run {record.id} lie on the machine that trained it, {host}: "
                "type this there"
            )
        raise UsageError(
            f"the final weights of run {record.id} are not kept (expected {kept}): "
            f"`attnres runs rm {record.id}`, and `attnres ablate` as it was typed trains it again"
        )
    check_weights(record.id, kept, record.result.weights_sha256)
    return kept


def _command(store: Store, record: RunRecord) -> str:
    """What trains a run: budgets of `ablate` go on from shorter runs too."""
    origin = re.match(r"trained on from run (\d+)", record.note)
    if origin is None:
        return "`attnres ablate`"
    tokens = store.recipe(record.recipe_digest).train.tokens
    return f"`attnres runs extend {origin[1]} --tokens {tokens}`, or `attnres ablate`,"


def _sources(record: RunRecord) -> dict[str, Path]:
    """The files of a plugin's design by their names beside the weights, its own first; none for a
    package's. Raises UsageError.
    """
    try:
        classes = parse(record.variant).classes
    except VariantError as error:
        name = record.variant.partition(":")[0]
        raise UsageError(
            f"run {record.id} is of {name}, which is not known here: its file is exported beside "
            f"the weights, name it by --plugin FILE or {PLUGINS}"
        ) from error
    own = {file: cls for cls in classes if (file := plugins.file_of(cls.__module__))}
    if not own:
        return {}
    if len(own) > 1:
        raise UsageError(
            f"the parts of {record.variant} are of two plugins, {' and '.join(own)}: export takes "
            "one file, join them"
        )
    ((plugin, cls),) = own.items()
    was, now = Code.of(record.versions).design, code_of(record.variant).design
    if was != now:
        raise UsageError(
            f"{plugin} has changed since run {record.id} was trained (code {was or 'unknown'}, now "
            f"{now}): export it with the file as it was"
        )
    return {str(file.relative_to(Path(plugin).parent)): file for file in code.files_of(cls)}


def check_weights(run_id: int, file: Path, written: str | None) -> None:
    """Raise UsageError where the file is not what the study knows of a run's final weights: its
    checksum, which studies of before do not have.
    """
    if not is_weights(file) or (written is not None and sha256(file) != written):
        raise UsageError(
            f"the final weights of run {run_id} are damaged, they are not as they were written: "
            f"`attnres runs rm {run_id}`, and `attnres ablate` as it was typed trains it again"
        )


def _config(store: Store, record: RunRecord) -> dict[str, Any]:
    """What the weights are of: the shape and the variant build the model, the rest made them."""
    result = record.result
    recipe = store.recipe(record.recipe_digest, record.fingerprint)
    assert result is not None
    facts = store.data(record.fingerprint)
    return {
        "shape": asdict(recipe.model.shape(facts.vocab_size)),
        "variant": record.variant,
        "seed": record.seed,
        "status": str(record.status),
        "val_loss": _finite(result.val_loss),  # nats per token, as the next
        "initial_loss": _finite(result.initial_loss),
        "steps": result.steps,
        "tokens": result.tokens,
        "n_params": result.n_params,
        "weights_sha256": result.weights_sha256,
        "recipe": recipe.model_dump(mode="json"),
        "recipe_digest": record.recipe_digest,
        "data": asdict(facts),
        "computed_with": asdict(result.settings),
        "versions": dict(record.versions),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
