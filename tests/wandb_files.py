"""Files of offline runs of Weights & Biases, read by the client's own definition of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def records(file: Path) -> Iterator[Any]:
    """The messages in a file: LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            message = wandb_internal_pb2.Record()
            message.ParseFromString(parts)
            parts = b""
            yield message


def rows_of(held: Iterable[Any]) -> list[dict[str, Any]]:
    """The history among these messages: values by tag."""
    logged = [each.history.item for each in held if each.HasField("history")]
    return [
        {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
        for items in logged
    ]
