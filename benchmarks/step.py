"""The whole training step of every arm as a ratio to `standard`.

    python benchmarks/step.py cpu-eager cpu-compile-4 cpu-compile-12 --json step.json
    python benchmarks/step.py gpu --json step_gpu.json

In each round every arm makes one step (forward, backward, clip, fused AdamW) on the same batch. A
ratio is that of the two times of a round; median and quartiles over rounds. Before any clock
starts, loss and gradients of every arm are compared with the reference engine in float32. `stacked`
is the paper's pseudo-code, which stacks all sources at every site: for scale.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import (
    Setting,
    Training,
    arguments,
    built,
    facts,
    failure,
    finish,
    save,
    shape_of,
    spread_text,
    started,
)

from attnres_cli.nn import cost, measure
from attnres_cli.nn.residual import Hidden, Residual, register

FULL, BLOCK = "attnres", "attnres:block_size=4"
NAIVE = {"stacked": FULL, "stacked:block_size=4": BLOCK}
"""The design that each must equal."""


@register("stacked")
class Stacked(Residual):
    """attnres as its paper's pseudo-code has it: stack, norm, dot, softmax, sum, at every site."""

    def __init__(self, d_model: int, n_sublayers: int, *, block_size: int = 1) -> None:
        super().__init__(d_model, n_sublayers)
        self.block_size = block_size
        self.query = nn.Parameter(torch.zeros(n_sublayers + 1, d_model))
        self.gain = nn.Parameter(torch.ones(n_sublayers + 1, d_model))

    def start(self, x: Hidden) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Finished blocks, and the running sum of the current one."""
        return (x,), None

    def read(self, state: Any, l: int) -> tuple[Hidden, Any]:
        """The mix that sublayer l sees."""
        return self._mix(state, l - 1), state

    def write(self, state: Any, l: int, y: Hidden) -> Any:
        """The state with y in it."""
        blocks, running = state
        if (l - 1) % self.block_size == 0:
            return (blocks if running is None else (*blocks, running)), y
        return blocks, running + y

    def finish(self, state: Any) -> Hidden:
        """The mix that the output norm sees."""
        return self._mix(state, self.n_sublayers)

    def _mix(self, state: Any, site: int) -> Hidden:
        blocks, running = state
        v = torch.stack(blocks if running is None else (*blocks, running))  # (S, B, T, D)
        keys = F.rms_norm(v, (self.d_model,), self.gain[site].to(v.dtype), 1e-6)
        logits = torch.einsum("d,sbtd->sbt", self.query[site].to(v.dtype), keys)
        return torch.einsum("sbt,sbtd->btd", logits.softmax(dim=0).to(v.dtype), v)


def _arms(*engines: str, naive: bool) -> tuple[tuple[str, str], ...]:
    ours = tuple((spec, engine) for engine in engines for spec in (FULL, BLOCK))
    scale = tuple((spec, engines[0]) for spec in NAIVE) if naive else ()
    return (("standard", engines[0]), *ours, *scale)


CPU_EAGER = Setting(
    "cpu-eager", shape_of(6, 128, 128, 256), 16, "fp32", False, _arms("eager", naive=True)
)
CPU_4 = Setting(
    "cpu-compile-4", shape_of(4, 256, 256, 4096), 8, "bf16", True, _arms("compile", naive=True)
)
CPU_12 = replace(CPU_4, name="cpu-compile-12", shape=replace(CPU_4.shape, n_layers=12))
GPU = Setting(
    "gpu", shape_of(16, 1024, 2048, 32768), 32, "bf16", True,
    _arms("triton", "compile", naive=False),
)  # fmt: skip
ENGINES = Setting(  # what each gains at a size as that of recipe quick
    "cpu-engines", shape_of(6, 64, 64, 256), 16, "fp32", False,
    (
        ("standard", "eager"),
        *((spec, engine) for spec in (FULL, BLOCK) for engine in ("eager", "compile", "reference")),
    ),
)  # fmt: skip
SETTINGS = {setting.name: setting for setting in (CPU_EAGER, CPU_4, CPU_12, ENGINES, GPU)}
TARGETS = {
    "cpu-eager": {FULL: 1.15, BLOCK: 1.08},
    "cpu-compile-4": {FULL: 1.08, BLOCK: 1.05},
    "cpu-compile-12": {FULL: 1.20, BLOCK: 1.05},
    "gpu": {FULL: 1.15, BLOCK: 1.08},
}


def main() -> None:
    """Run the settings named, one after the other."""
    parser = arguments("whole training steps, as ratios to `standard`", rounds=31)
    parser.add_argument("settings", nargs="+", choices=SETTINGS)
    parser.add_argument("--engines", nargs="+", help="only these of a setting's engines")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    wrong: list[str] = []
    device = started(given.threads, "cuda" if "gpu" in given.settings else "cpu")
    if device.type == "cuda" and set(given.settings) != {"gpu"}:
        parser.error("the gpu setting runs alone")
    document = {"benchmark": "step", "machine": facts(device, given.threads), "results": results}
    for name in given.settings:
        setting = SETTINGS[name]
        if given.engines:
            first, *rest = setting.arms
            kept = tuple(arm for arm in rest if arm[1] in given.engines)
            setting = replace(setting, arms=(first, *kept))
        if given.quick:
            setting = replace(setting, shape=shape_of(2, 32, 16, 64, d_head=16), batch_size=2)
            if setting.compiled:  # half a minute per arm
                setting = replace(setting, arms=setting.arms[:2])
        result = measured(setting, given.rounds, device)
        wrong += [f"{name}: {arm['arm']}: {arm['wrong']}" for arm in result["arms"] if arm["wrong"]]
        results.append(result)
        save(document, given.json)
    finish(document, given.json, wrong)


def measured(setting: Setting, rounds: int, device: torch.device) -> dict[str, Any]:
    """One setting: every arm checked, then all in turn."""
    print(f"{setting.name}: {len(setting.arms)} arms", flush=True)
    measure.allow_compiling()
    trainings: dict[str, Training] = {}
    arms: dict[str, dict[str, Any]] = {}
    for spec, engine in setting.arms:
        name = spec if spec == "standard" or spec in NAIVE else f"{spec} ({engine})"
        training, arms[name] = checked(name, spec, engine, setting, device)
        if training is not None:
            trainings[name] = training
    for training in trainings.values():
        training.step()
        training.step()
    calls = {name: training.step for name, training in trainings.items()}
    times = measure.in_turn(calls, rounds, device)
    for name, seconds in times.items():
        ratio = cost.ratio(seconds, times["standard"]) if "standard" in times else None
        target = TARGETS.get(setting.name, {}).get(name.partition(" ")[0])
        arms[name] |= {
            "step_s": cost.spread(seconds)._asdict(),
            "ratio": None if ratio is None else ratio._asdict(),
            "target": target,
            "peak_bytes": measure.peak_bytes(calls[name], device),
            "seconds": seconds,
        }
        print(
            f"  {name:32} {spread_text(cost.spread(seconds), 1000, 1):>24} ms   "
            f"{spread_text(ratio) if ratio else '-':>22}   target {target or '-'}"
        )
    return {"setting": setting.described(), "rounds": rounds, "arms": list(arms.values())}


def checked(
    name: str, spec: str, engine: str, setting: Setting, device: torch.device
) -> tuple[Training | None, dict[str, Any]]:
    """The arm's training, None if it is wrong or cannot be run, and what the check found."""
    entry: dict[str, Any] = {
        "arm": name,
        "variant": spec,
        "engine": None if spec == "standard" or spec in NAIVE else engine,
    }
    try:
        training = Training(spec, engine, setting, device)
        oracle = None
        if spec in NAIVE:
            oracle = built(NAIVE[spec], setting.shape, device)
            oracle.load_state_dict(training.model.state_dict())
        found, start_s = measure.check(
            training.model, training.forward, training.windows, engine, setting.precision, oracle
        )
    except Exception as error:  # the others go on
        return None, entry | {"wrong": failure(error, device)}
    wrong = found.complaint(setting.precision)
    print(
        f"  {name:32} loss off by {found.loss:.1e}, gradients by {found.gradient:.1e} "
        f"({found.where}), first pass {start_s:.1f} s",
        flush=True,
    )
    entry |= {"wrong": wrong, "disagreement": found._asdict(), "start_s": start_s}
    return (training if wrong is None else None), entry


if __name__ == "__main__":
    main()
