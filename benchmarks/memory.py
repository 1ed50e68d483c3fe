"""Activation memory, over that of `standard`, by depth and engine: of a forward and backward pass,
and of what needs no gradients.

    python benchmarks/memory.py --json memory.json
    python benchmarks/memory.py --device cuda --json memory_gpu.json

Three counts of the same pass, in bytes:

saved   unique storages that autograd saves for backward, by saved-tensor hooks, without what was
        there before: parameters, buffers, tokens. Blind to what only Python objects hold.
held    all tensors that are there after forward and were not before, by the allocator's account,
        while the loss is held: whoever holds them, autograd or a Python object, so nothing can be
        missed. It contains what was saved.
peak    the most that was there at once in forward and backward, likewise: what decides whether a
        model fits. Gradients of the weights are in it.

`beyond_saved` in the results is held less saved: what the hooks did not see, if positive.
Without gradients: the vectors of full width per token that a design holds while each sublayer
computes and at the output norm, by live tensors (Block: the embedding, finished blocks, the
running sum), and the peak of a pass; in evaluation of a batch, in prefill of one prompt of
512 tokens at most, and in generation of one token for 16 prompts.

Targets are of the peak at 16 layers. Loss and gradients are compared with the reference engine
first. The reference engine stacks all sources at every site: for scale.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Setting, Training, arguments, facts, failure, finish, save, shape_of, started

from attnres_cli.nn import measure
from attnres_cli.nn.depthmix import engines

FULL, BLOCK = "attnres", "attnres:block_size=4"
TARGET = 1.15
KINDS = ("saved", "held", "peak")


def main() -> None:
    """Every depth in turn; `standard` is the baseline of its own compiler setting."""
    parser = arguments("activation memory, as ratios to `standard`", rounds=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--depths", type=int, nargs="+", help="in layers; default: 4 8 16")
    parser.add_argument(
        "--engines", nargs="+", help="default: eager reference compile, on CUDA triton too"
    )
    given = parser.parse_args()
    device = started(given.threads, given.device)
    cuda = device.type == "cuda"
    engines = given.engines or [*(["triton"] if cuda else []), "eager", "reference", "compile"]
    depths = given.depths or ([1, 2] if given.quick else [4, 8, 16])
    results: list[dict[str, Any]] = []
    document = {"benchmark": "memory", "machine": facts(device, given.threads), "results": results}
    for depth in depths:
        for engine in engines:
            results += _at(depth, engine, given.quick, device)
            save(document, given.json)
    wrong = [
        f"{arm['variant']} ({arm['engine']}): {arm['wrong']}"
        for arm in results
        if arm["wrong"] and arm["engine"] != "reference"  # is for scale: it may find no memory
    ]
    finish(document, given.json, wrong)


def _setting(depth: int, engine: str, quick: bool, device: torch.device) -> Setting:
    if quick:
        shape, batch_size = shape_of(depth, 32, 16, 64, d_head=16), 2
    elif device.type == "cuda":
        shape, batch_size = shape_of(depth, 1024, 2048, 32768), 8
    else:
        shape, batch_size = shape_of(depth, 256, 256, 256), 8
    precision = "bf16" if device.type == "cuda" else "fp32"
    arms = (("standard", engine), (FULL, engine), (BLOCK, engine))
    return Setting(f"{depth} layers", shape, batch_size, precision, engine == "compile", arms)


def _at(depth: int, engine: str, quick: bool, device: torch.device) -> list[dict[str, Any]]:
    """All arms at one depth under one engine, with their ratios to `standard`."""
    setting = _setting(depth, engine, quick, device)
    measure.allow_compiling()
    found = [_measured(spec, engine, setting, device) for spec, _ in setting.arms]
    base = found[0]
    for arm in found:
        good = base["wrong"] is None and arm["wrong"] is None
        ratios = {kind: arm[kind] / base[kind] for kind in KINDS if good}
        arm |= {"layers": depth, "ratio": ratios, "target": TARGET, "setting": setting.described()}
        told = "  ".join(f"{kind} {_mib(arm[kind])} {ratios[kind]:5.3f}" for kind in ratios)
        name = f"{depth:3} layers  {engine:10} {arm['variant']:22}"
        print(f"{name} {told or arm['wrong']}", flush=True)
        for way, counts in arm.get("without_gradients", {}).items():
            held = counts["vectors"]
            most = f"at most {max(held):3}, at the output norm {held[-1]:3}"
            print(f"{name} {way:10} vectors held {most}  peak {_mib(counts['peak'])}", flush=True)
    return found


def _measured(spec: str, engine: str, setting: Setting, device: torch.device) -> dict[str, Any]:
    """Counts of one arm, which is checked first."""
    entry: dict[str, Any] = {"variant": spec, "engine": engine}
    try:
        training = Training(spec, engine, setting, device)
        few = training.windows if setting.compiled else training.windows[:1]
        found, _ = measure.check(training.model, training.forward, few, engine, setting.precision)
        entry |= {"disagreement": found._asdict(), "wrong": found.complaint(setting.precision)}
        if entry["wrong"]:
            return entry
        return entry | _counted(training, device) | _without_gradients(training, device)
    except Exception as error:  # stacking all sources may take more memory than there is
        return entry | {"wrong": failure(error, device)}


def _counted(training: Training, device: torch.device) -> dict[str, int]:
    training.forward_backward()  # warms up: caches of casts, buffers of libraries
    saved = _saved_bytes(training)
    held = _held_bytes(training, device)
    peak = measure.peak_bytes(training.forward_backward, device)
    return {"saved": saved, "held": held, "peak": peak, "beyond_saved": held - saved}


def _without_gradients(training: Training, device: torch.device) -> dict[str, Any]:
    """Vectors held and peak bytes in evaluation, prefill and generation, nothing compiled."""
    model, windows = training.model, training.windows
    prompt = windows[:1, :-1][:, :512]
    few = windows[:1, :1].expand(16, 1)
    ways = {
        "evaluation": (windows[:, :-1], lambda: model(windows[:, :-1], windows[:, 1:])),
        "prefill": (prompt, lambda: model.hidden(prompt, model.caches(prompt.shape[1]))),
        "generation": (few, lambda: model.hidden(few, model.caches(few.shape[1]))),
    }
    found: dict[str, Any] = {}
    with torch.inference_mode(), engines.use(training.engine):
        for way, (tokens, call) in ways.items():
            call()
            vectors = measure.vectors_held(model.residual, *tokens.shape, device)
            found[way] = {"vectors": vectors, "peak": measure.peak_bytes(call, device)}
    return {"without_gradients": found}


def _held_bytes(training: Training, device: torch.device) -> int:
    """Bytes of tensors that a forward pass leaves behind while its loss is held."""
    if device.type != "cuda":
        return measure.allocations(training.loss)[-1]
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    loss = training.loss()
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device) - before
    del loss
    return held


def _saved_bytes(training: Training) -> int:
    """Bytes of unique storages that autograd saves in a forward pass, parameters left out."""
    model = training.model
    there = (*model.parameters(), *model.buffers(), training.windows)
    known = {x.untyped_storage().data_ptr() for x in there}
    storages: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used again

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = training.loss()
    counted = sum(storage.nbytes() for storage in storages.values())
    del loss
    return counted


def _mib(count: int) -> str:
    return f"{count / 2**20:9.2f} MiB"


if __name__ == "__main__":
    main()
