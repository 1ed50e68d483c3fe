"""A run as a folder to take away: its final weights, and all that decided them."""

from __future__ import annotations

import json
import math
import shutil
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnres_cli.errors import UsageError
from attnres_cli.files import sha256
from attnres_cli.records.run import RunRecord
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import is_weights, whole

FILES = ("model.safetensors", "config.json")


def export(store: Store, record: RunRecord, folder: Path) -> None:
    """Write model.safetensors and config.json into a new folder, for `model.load`. Raises
    UsageError where the weights are gone, or the folder has such files or cannot be written to.
    """
    if record.result is None:
        raise UsageError(
            f"run {record.id} is {record.status} and has no final weights: `attnres ablate` as it "
            "was typed trains it" + (", with --retry-failed" if record.error else "")
        )
    kept = store.weights_of(record)
    if not kept.exists():
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
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise UsageError(f"{folder} already has {there[0]}: --output names another folder")
    weights, config = (folder / name for name in FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(weights) as part:
            shutil.copyfile(kept, part)
        config.write_text(json.dumps(_config(store, record), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {folder} cannot be written: {error.strerror}") from error


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
    result, recipe = record.result, store.recipe(record.recipe_digest)
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
