"""Between arrays of numbers in the study and `records`: probes, and answers to items of tasks."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from attnres_cli.files import check_name
from attnres_cli.records.items import Items, Kind
from attnres_cli.records.run import Probe
from attnres_cli.store.rows import Row, now, shared
from attnres_cli.store.tables import items

_TEXTS = ("no_mixing", "added")  # of a probe; all else are numbers


def of_probe(run_id: int, probe: Probe) -> list[dict[str, Any]]:
    """Rows of attnres_probes: one for each thing that was measured, none for what was not."""
    found = []
    for name, value in vars(probe).items():
        if name == "step" or not value:
            continue
        is_text = name in _TEXTS
        array = np.frombuffer(value.encode(), np.uint8) if is_text else np.array(value, "<f4")
        shape = [] if is_text else list(array.shape)
        row = {"run_id": run_id, "step": probe.step, "name": name, "shape": shape}
        found.append(row | {"data": array.tobytes()})
    return found


def measured(row: Row) -> Any:
    """What a row of attnres_probes holds: the text, numbers or rows of numbers."""
    if row.name in _TEXTS:
        return row.data.decode()
    array = np.frombuffer(row.data, "<f4").reshape(row.shape)
    return tuple(tuple(each) if array.ndim > 1 else each for each in array.tolist())


def of_items(found: Items) -> dict[str, Any]:
    """A row of attnres_items. Its data, compressed: numbers of documents (int32), their hashes (8
    bytes each), then each metric's values (float32), all little-endian.
    """
    parts = [np.array(found.doc_ids, "<i4").tobytes(), bytes.fromhex("".join(found.doc_hashes))]
    parts += [np.array(values, "<f4").tobytes() for values in found.values.values()]
    own = {"n_items": len(found.doc_ids), "metrics": list(found.values), "evaluated_at": now()}
    return shared(Items, items, found) | own | {"data": zlib.compress(b"".join(parts))}


def to_items(row: Row) -> Items:
    """A row of attnres_items."""
    names, n = [check_name(name, "metric") for name in row.metrics], row.n_items
    if n < 1:
        raise ValueError(f"attnres_items.n_items holds {n!r}")
    held = _decompressed(row.data, n * (12 + 4 * len(names)))
    numbers = np.frombuffer(held, "<f4", offset=12 * n).reshape(len(names), n)
    hashes = held[4 * n : 12 * n]
    check_name(row.task, "task")
    return Items(
        **shared(Items, items, row) | {"kind": Kind(row.kind)},
        doc_ids=tuple(np.frombuffer(held, "<i4", n).tolist()),
        doc_hashes=tuple(hashes[i : i + 8].hex() for i in range(0, 8 * n, 8)),
        values={name: tuple(of) for name, of in zip(names, numbers.tolist(), strict=True)},
    )


def _decompressed(data: bytes, size: int) -> bytes:
    """Exactly `size` bytes. Raises ValueError, whatever the data are."""
    try:
        held = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"attnres_items.data: {error}") from error
    if len(held) != size:
        raise ValueError(f"attnres_items.data holds {len(held)} bytes or more, not {size}")
    return held
