"""A complete training step with our kernels and with those of others, in one trunk, on a GPU.

    python benchmarks/rivals.py --json rivals.json

24 layers, Full, width 1024, 2,048 tokens, bf16, compiled. Others are measured where they are
installed: fla-core (`fla`), and fast-attnres, whose import name is `attnres`, so that it wants an
environment of its own. None of them is needed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Setting, arguments, facts, finish, shape_of, started
from step import FULL, NAIVE, measured

from attnres_cli.nn.residual import Hidden, Residual, register


class _Theirs(Residual):
    """Full attnres, each read by somebody else's operator on a list of sources of one type."""

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.query = nn.Parameter(torch.zeros(n_sublayers + 1, d_model))
        self.gain = nn.Parameter(torch.ones(n_sublayers + 1, d_model))

    def start(self, x: Hidden) -> tuple[Tensor, ...]:
        """The embedding, in the type that sublayers put out."""
        return (x.to(torch.get_autocast_dtype(x.device.type)),)

    def read(self, state: Any, l: int) -> tuple[Hidden, Any]:
        """The mix that sublayer l sees."""
        return self._mix(state, l - 1), state

    def write(self, state: Any, l: int, y: Hidden) -> Any:
        """One more source."""
        return (*state, y)

    def finish(self, state: Any) -> Hidden:
        """The mix that the output norm sees."""
        return self._mix(state, self.n_sublayers)

    def _mix(self, sources: tuple[Tensor, ...], site: int) -> Hidden:
        raise NotImplementedError  # abstract: each library's operator is given below


def _register_theirs() -> list[str]:
    """The names of those that are installed."""
    found = []
    if importlib.util.find_spec("fla") is not None:
        from fla.ops.attnres import fused_attnres

        @register("fla")
        class Fla(_Theirs):
            """fla-core's fused operator."""

            def _mix(self, sources: tuple[Tensor, ...], site: int) -> Hidden:
                if len(sources) == 1:
                    return sources[0]
                query, gain = self.query[site].to(sources[0]), self.gain[site].to(sources[0])
                mixed = fused_attnres(query, sources, gain)
                return mixed[0] if isinstance(mixed, tuple) else mixed

        found.append("fla")
    if importlib.util.find_spec("attnres") is not None:
        from attnres import attnres

        @register("fast-attnres")
        class FastAttnRes(_Theirs):
            """fast-attnres, which folds the keys' gain into the query."""

            def _mix(self, sources: tuple[Tensor, ...], site: int) -> Hidden:
                if len(sources) == 1:
                    return sources[0]
                query = (self.query[site] * self.gain[site]).to(sources[0])
                return attnres(list(sources), query)

        found.append("fast-attnres")
    return found


def main() -> None:
    """Measure, and print ours over the better of theirs."""
    given = arguments("whole training steps with other libraries' kernels", rounds=31).parse_args()
    device = started(given.threads, "cuda")
    theirs = _register_theirs()
    NAIVE.update(dict.fromkeys(theirs, FULL))  # checked against our formula before they are timed
    arms = [("standard", "auto"), ("attnres", "triton"), *((name, "auto") for name in theirs)]
    setting = Setting("rivals", shape_of(24, 1024, 2048, 32768), 1, "bf16", True, tuple(arms))
    result = measured(setting, given.rounds, device)
    steps = {arm["variant"]: arm["step_s"]["median"] for arm in result["arms"] if "step_s" in arm}
    best = min((steps[name] for name in theirs if name in steps), default=None)
    if best is None:
        print("no rival is installed here: pip install fla-core fast-attnres")
    elif "attnres" in steps:
        result["ours_over_best"] = steps["attnres"] / best
        print(f"ours over the better of theirs: {steps['attnres'] / best:.3f}   target 0.80")
    document = {"benchmark": "rivals", "machine": facts(device, given.threads), "results": [result]}
    finish(document, given.json, [])


if __name__ == "__main__":
    main()
