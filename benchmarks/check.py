"""Check every engine of depth mixing on a device, with torch (and Triton) alone.

    python benchmarks/check.py cuda                        # minutes: `compile` compiles each case
    python benchmarks/check.py cuda triton bfloat16        # one engine alone, one type alone
    TRITON_INTERPRET=1 python benchmarks/check.py cpu      # the same, tiny, in the interpreter

Prints one line per check and ends with exit code 1 if any failed. Values and gradients are held
against the formula in float64, from the same rounded inputs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# Relative error of a vector against float64: a few roundings of its type in values and sums. The
# interpreter truncates where a GPU rounds, which doubles it. The gradients of queries pass through
# g . h with h as it was stored.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

CASES = [
    # (tokens, width, sources, heads, norm, key norm, static)
    (64, 64, 5, 1, "softmax", True, False),
    (33, 100, 9, 1, "softmax", True, False),
    (17, 96, 6, 4, "softmax", True, False),
    (40, 64, 7, 1, "sigmoid", True, False),
    (40, 64, 7, 1, "softmax", False, False),
    (40, 64, 7, 2, "softmax", True, True),
    (40, 64, 7, 1, "none", True, True),
]
LARGE = [
    (4097, 1024, 33, 1, "softmax", True, False),
    (1000, 1000, 50, 1, "softmax", True, False),
    (513, 7168, 9, 1, "softmax", True, False),
    (777, 768, 70, 8, "softmax", True, False),
    (2048, 8192, 5, 1, "sigmoid", True, False),
]


def draw(
    case: tuple, dtype: torch.dtype, device: str
) -> tuple[Scoring, list[Tensor], list[Tensor]]:
    """A scoring in which site l sees sources 0..l, its sources, and gradients of all sums."""
    tokens, width, n, heads, norm, key_norm, static = case
    g = torch.Generator().manual_seed(tokens + n)

    def make(*size: int) -> Tensor:
        return torch.randn(*size, generator=g).to(device)

    visible = tuple(tuple(range(l + 1)) for l in range(n))
    if static:
        scoring = Scoring(visible, norm, heads, table=make(n * (n + 1) // 2, heads))
    else:
        gain = make(n, width) if key_norm else None
        query = make(n, width) / width**0.5
        scoring = Scoring(visible, norm, heads, query=query, gain=gain)
    sources = [make(1, tokens, width).to(dtype) for _ in range(n)]
    return scoring, sources, [make(1, tokens, width).to(dtype) for _ in range(n)]


def run(
    scoring: Scoring,
    sources: Sequence[Tensor],
    gs: Sequence[Tensor],
    engine: str,
    dtype: torch.dtype,
) -> list[Tensor]:
    """All sums, then the gradients of sources and parameters, in float64."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    learned = {
        name: value.detach().to(wide).requires_grad_()
        for name in ("query", "gain", "table")
        if (value := getattr(scoring, name)) is not None
    }
    mine = Scoring(scoring.visible, scoring.norm, scoring.heads, **learned)
    leaves = [v.detach().to(dtype).requires_grad_() for v in sources]
    with use(engine):
        history, sums = History(mine), []
        for site, v in enumerate(leaves):
            history = history.append(v)
            h, history = history.read(site)
            sums.append(h)
    wanted = [*leaves, *learned.values()]
    found = torch.autograd.grad(sums, wanted, [g.to(dtype) for g in gs], materialize_grads=True)
    return [x.detach().double() for x in (*sums, *found)]


def error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative error of a vector; nan where a number is none."""
    scale = max(float(e.norm()) for e in expected) * 1e-6
    errors = [
        float((f - e).norm() / (e.norm() + scale)) for f, e in zip(found, expected, strict=True)
    ]
    return float("nan") if any(e != e for e in errors) else max(errors)


def agree(case: tuple, dtype: torch.dtype, device: str, engine: str) -> str | None:
    """What is wrong, or None."""
    scoring, sources, gs = draw(case, dtype, device)
    expected = run(scoring, sources, gs, "reference", torch.float64)
    found = run(scoring, sources, gs, engine, dtype)
    again = run(scoring, sources, gs, engine, dtype)
    off = error(found, expected)
    limit = TOLERANCE[dtype] * (2 if INTERPRETED else 1)
    if not off <= limit:
        return f"relative error {off:.1e} above {limit:.0e}"
    if not all(torch.equal(a, b) for a, b in zip(found, again, strict=True)):
        return "two runs differ"
    return None


def beyond_31_bits(device: str) -> str | None:
    """One source of more than 2^31 numbers: the last tokens are mixed right."""
    from attnres_cli.nn.depthmix.fused import ops

    tokens, width = 2**21 + 5, 1024
    v = torch.zeros(tokens, width, dtype=torch.bfloat16, device=device)
    v[-3:] = torch.randn(3, width, device=device).bfloat16()
    score = torch.zeros(tokens, 1, device=device)
    h, _ = ops.mix([v, v], [score, score], 0, torch.bfloat16)
    if not torch.equal(h[-3:], v[-3:]):
        return "the last tokens of a long source are wrong"
    w = torch.randn(2, width, device=device)
    z, _ = ops.scores(v, w, 1, False, 1e-6)
    expected = w.double() @ v[-3:].double().t()
    off = float((z[:, tokens - 3 : tokens, 0].double() - expected).norm() / expected.norm())
    return None if off < 1e-4 else f"scores of the last tokens are off by {off:.1e}"


def captured(device: str) -> str | None:
    """A CUDA graph of forward and backward gives the bits of the plain run."""
    scoring, sources, gs = draw((256, 256, 6, 1, "softmax", True, False), torch.bfloat16, device)
    expected = run(scoring, sources, gs, "triton", torch.bfloat16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(scoring, sources, gs, "triton", torch.bfloat16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = run(scoring, sources, gs, "triton", torch.bfloat16)
    graph.replay()
    torch.cuda.synchronize()
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return None if same else "the replayed graph differs"


def not_recompiled(device: str) -> str | None:
    """Other token counts compile no kernel anew."""
    from attnres_cli.nn.depthmix.fused import kernels

    def compiled() -> int:
        found = [getattr(kernels, name) for name in dir(kernels) if name.endswith("_kernel")]
        return sum(len(cache[0]) for kernel in found for cache in kernel.device_caches.values())

    def once(tokens: int) -> int:
        case = (tokens, 256, 6, 1, "softmax", True, False)
        run(*draw(case, torch.bfloat16, device), "triton", torch.bfloat16)
        return compiled()

    first = once(1000)
    later = [once(tokens) for tokens in (999, 1024, 1, 16, 4097)]
    return None if set(later) == {first} else f"kernels: {first}, then {later}"


ENGINES = ("triton", "eager", "compile")


def checks(device: str, words: Sequence[str] = ()) -> list[tuple[str, Callable[[], str | None]]]:
    """Those of the engines and types that words name, by default of all, or `small`; by name."""
    engines = [name for name in ENGINES if name in words] or ENGINES
    types = [dtype for dtype in TOLERANCE if str(dtype)[6:] in words] or TOLERANCE
    on_gpu = device.startswith("cuda")
    found: list[tuple[str, Callable[[], str | None]]] = []
    for engine in engines:
        for dtype in types:
            for case in [*CASES, *(LARGE if on_gpu and "small" not in words else [])]:
                label = f"{engine} {str(dtype).removeprefix('torch.')} {case}"
                found.append((label, lambda c=case, t=dtype, e=engine: agree(c, t, device, e)))
    if on_gpu and "triton" in engines and torch.bfloat16 in types:
        found.append(("more than 2^31 numbers", lambda: beyond_31_bits(device)))
        found.append(("CUDA graph", lambda: captured(device)))
        found.append(("no recompilation per token count", lambda: not_recompiled(device)))
    return found


def main(device: str = "cuda", *words: str) -> int:
    """Run all, or those that words name; the number that failed."""
    failed = 0
    for label, check in checks(device, words):
        try:
            wrong = check()
        except Exception as problem:  # a kernel may fail in any way; the others still run
            wrong = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
        failed += wrong is not None
        sys.stdout.write(f"{'ok   ' if wrong is None else 'WRONG'} {label} {wrong or ''}\n")
    sys.stdout.write(f"{failed} checks failed\n")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:]) else 0)
