"""Builds the stand-in (cuda.c) for the torch that runs this, with gcc, nm and CUDA's headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("cuda.c")
LIBRARIES = ("torch_cuda", "c10_cuda", "torch_cuda_linalg", "torch_python")
CALLED = re.compile(r"(cuda[A-Z]|__cuda[A-Z]|cublas|cusolverDn|cusparse[A-Z])\w*")
LAUNCHES = re.compile(r"cublas\w*([gG]emm|[gG]emv|trsm|[dD]ot)\w*|cublasLtMatmul")
CUDA = Path("/usr/local/cuda/include")


def headers() -> list[Path]:
    """Folders with CUDA's headers: of its Python packages, and of a toolkit."""
    packages = Path(torch.__file__).parents[1] / "nvidia"
    found = sorted(path.parent for path in packages.rglob("driver_types.h"))
    found += [
        path for path in (CUDA, *sorted(CUDA.parents[1].glob("cuda-*/include"))) if path.is_dir()
    ]
    return found


def run(program: str, *arguments: object) -> str:
    """What a program prints; it ends this one where it fails."""
    if (path := shutil.which(program)) is None:
        sys.exit(f"{program} is missing: apt install gcc binutils")
    command = [path, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def called() -> set[str]:
    """What torch calls of the runtime and of libraries, and all of the driver."""
    names: set[str] = set()
    for library in LIBRARIES:
        path = Path(torch.__file__).parent / "lib" / f"lib{library}.so"
        listed = run("nm", "-D", "--undefined-only", path)
        words = (line.split()[-1].partition("@")[0] for line in listed.splitlines())
        names |= {word for word in words if CALLED.fullmatch(word)}
    for folder in headers():
        if (header := folder / "cuda.h").is_file():
            text = header.read_text(encoding="utf-8", errors="replace")
            return names | set(re.findall(r"\b(cu[A-Z]\w+)\(", text))
    sys.exit("cuda.h is missing: pip install nvidia-cuda-runtime, or install CUDA's toolkit")


def build(folder: Path) -> Path:
    """The library, made in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    have = set(re.findall(r"^(?!static).*?\b(\w+)\(", SOURCE.read_text(encoding="utf-8"), re.M))
    lines = ["void standin_library(void);"]
    for name in sorted(called() - have):
        launches = "standin_library(); " if LAUNCHES.fullmatch(name) else ""
        lines.append(f"int {name}(void) {{ {launches}return 0; }}")
    rest = folder / "rest.c"
    rest.write_text("\n".join(lines) + "\n", encoding="utf-8")
    library = folder / "libcuda.so.1"
    include = [f"-I{path}" for path in headers()]
    how = ("-O1", "-w", "-shared", "-fPIC", *include, "-Wl,-soname,libcuda.so.1", "-o", library)
    run("gcc", *how, SOURCE, rest, "-ldl", "-lpthread")
    return library


def variables(library: Path) -> dict[str, str]:
    """The environment in which a process takes the stand-in for CUDA."""
    own = {"LD_PRELOAD": str(library), "TRITON_LIBCUDA_PATH": str(library.parent)}
    return {**os.environ, **own}
