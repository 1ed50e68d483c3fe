"""Exported folders that a disk or a hand has changed: one exception, whatever is wrong."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model

from attnres_cli import load
from attnres_cli.errors import AttnresError, ExportError
from attnres_cli.files import sha256
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

SHAPE = Shape(
    vocab_size=11, n_layers=2, d_model=16, n_heads=2, n_kv_heads=2, d_head=8, d_ff=24, seq_len=8
)
WRONG: tuple[Any, ...] = ("word", -1, 0, 2.5, None, [], {}, True, "1" * 40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What `runs export` writes, of a model that is not trained."""
    model = Transformer(SHAPE, parse("attnres").build(SHAPE.d_model, SHAPE.n_sublayers))
    save_model(model, tmp_path / "model.safetensors")
    config = {"shape": asdict(SHAPE), "variant": "attnres", "plugin": None, "versions": {}}
    config["weights_sha256"] = sha256(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_whole_folder_is_loaded_and_a_missing_file_named(folder: Path):
    assert load(folder)(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 11)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ExportError, match=r"is no folder of `attnres runs export`.*model\.saf"):
        load(folder)


def test_weights_with_a_byte_changed_or_an_end_cut_off_are_damaged(folder: Path):
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole, draw = weights.read_bytes(), random.Random(0)
    for has_checksum in (True, False):
        if not has_checksum:
            held = json.loads(config.read_text()) | {"weights_sha256": None}
            config.write_text(json.dumps(held))
        for place in (0, 7, 8, 20, *(draw.randrange(200) for _ in range(8))):
            weights.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
            if has_checksum:
                with pytest.raises(ExportError, match="is damaged"):
                    load(folder)
            else:
                opened(folder)
        for size in (0, 7, 8, 100, len(whole) - 1):
            weights.write_bytes(whole[:size])
            with pytest.raises(ExportError, match="is damaged"):
                load(folder)


def test_any_other_value_in_config_json_loads_or_is_damaged(folder: Path):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for key in config:
        for value in WRONG:
            file.write_text(json.dumps(config | {key: value}))
            opened(folder)
    for key in config["shape"]:
        for value in WRONG:
            file.write_text(json.dumps(config | {"shape": config["shape"] | {key: value}}))
            opened(folder)
    for text in ("", "[]", "{", "null", "\x00", json.dumps(config)[:-20]):
        file.write_text(text)
        with pytest.raises(ExportError):
            load(folder)


def opened(folder: Path) -> None:
    """Load it, or learn in one line why not."""
    told = ""
    try:
        load(folder)
    except AttnresError as error:
        told = str(error)
    assert "\n" not in told
