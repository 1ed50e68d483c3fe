"""Digests of the code that decides a run's numbers.

They are of what code does: blind to comments, docstrings and layout, and equal under every Python
that can read the file. Needs no torch.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
_NO_MATTER = ("kind", "type_comment", "ctx")  # u"", comments of types, load or store
_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

PARTS = {
    "trunk": (
        "nn/model.py",
        "nn/trunk",
        "nn/loss.py",
        "nn/shape.py",
        "nn/residual.py",
        "nn/variant.py",
        "nn/addon.py",
        "nn/transfer.py",
    ),
    "engine": ("nn/depthmix",),
    "loop": ("train",),
    "data": ("data",),
}
"""Files and folders of the package that decide the numbers of every run."""


@dataclass(frozen=True)
class Kept:
    """A change of code that kept the numbers of every run, bit for bit: of which of PARTS, or
    `design`; the digests before and now; a git commit that has the code of before.
    tests/nn/test_kept.py proves each.
    """

    part: str
    before: str
    now: str
    commit: str


KEPT: tuple[Kept, ...] = (
    # what a step holds in memory is counted in lab/
    Kept("loop", "56846fe0bb4a", "d70ef4df936a", "f744deb75944baa27b1871fe7c7c293827ca65b3"),
    # a second edition of the standard library's text: all other data are as they were
    Kept("data", "271b62477881", "3f72d1154e40", "0305a759a239cf30b353bb5622e7f8c1ffc5f77b"),
    # documents of a text may have something between them; the standard library's have not
    Kept("data", "3f72d1154e40", "e02bcbb12026", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    # attentions have named inputs and values, and designs may be composed
    Kept("trunk", "a836ec3ace6b", "fa6268a0719d", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    # designs that act on a stream are add-ons
    Kept("design", "1cfa4ad296e9", "e7a06ca635fb", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    Kept("design", "f2ba413136c2", "b7744e1869d5", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    Kept("design", "3fd22873d564", "9ac7ba3c44a7", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    # an attention may read thrice
    Kept("design", "d3bf405547c6", "0896f070351e", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    Kept("design", "3c6fd9b01dc7", "99f60ce30298", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    # streams may never mix; a GPU is not waited for
    Kept("design", "b58ecd3315ed", "9798b848b5d5", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    # depth mixing is drawn once for each input of an attention
    Kept("design", "d137afb94b04", "314176c89e75", "548715b30eb67e95b41ee0246d46cd62d3d7547a"),
    Kept("design", "95e086f9fcdb", "9132f22bc2b0", "548715b30eb67e95b41ee0246d46cd62d3d7547a"),
    Kept("design", "bb7ec21e0fae", "ab23ed34849c", "548715b30eb67e95b41ee0246d46cd62d3d7547a"),
    # kernels write their masks as Triton 3.9's interpreter reads them
    Kept("engine", "495406ac8a25", "7f377b06143c", "74791939bb67c07c8437ddc7b5254a6ac9644cda"),
    # a call that torch 2.11 cannot trace; no wait for the device; other tiles of the fused kernels,
    # by which a GPU rounds otherwise, from which nothing is published
    Kept("engine", "7f377b06143c", "0f83d85c5cc2", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    # a run proves itself, and evaluates in evaluation mode
    Kept("loop", "d70ef4df936a", "974cfaaf36d9", "0305a759a239cf30b353bb5622e7f8c1ffc5f77b"),
    # what a design adds may have a rate of its own, and how far it moved is kept; other names
    Kept("loop", "974cfaaf36d9", "afebde607856", "de1b7d8369953ebe537c9491d1ed61fe3cd4b3b1"),
    # generation takes fewer calls; a gradient of values fewer buffers
    Kept("trunk", "fa6268a0719d", "c2c62e301c23", "44ddcb69de8990630f0713d065b80af3990dc46a"),
    Kept("design", "314176c89e75", "fe2b62712695", "44ddcb69de8990630f0713d065b80af3990dc46a"),
    Kept("design", "d42a4ff8d4b6", "b1a4f7e7ce1d", "44ddcb69de8990630f0713d065b80af3990dc46a"),
    Kept("design", "973e3e9376f9", "2a692cb3f091", "44ddcb69de8990630f0713d065b80af3990dc46a"),
    Kept("design", "9132f22bc2b0", "a8aa4a6dddd8", "44ddcb69de8990630f0713d065b80af3990dc46a"),
    Kept("design", "7508033e0d9d", "b563df202708", "44ddcb69de8990630f0713d065b80af3990dc46a"),
    Kept("design", "ab23ed34849c", "0bab91adda30", "44ddcb69de8990630f0713d065b80af3990dc46a"),
    # rates may be transferred from a smaller model; a GPU's copies, products and attention are set,
    # from which nothing is published; rows of containers are documents
    Kept("trunk", "c2c62e301c23", "ffac18bbe987", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("loop", "afebde607856", "2654e6b3cf98", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("data", "e02bcbb12026", "00ba6714ade1", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "0896f070351e", "f5d8b30ed70e", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "b1a4f7e7ce1d", "a2922c7b47a4", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "99f60ce30298", "ea37ac8b8e0d", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "fd3951bd4c37", "b63f4e036a35", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "6f9e51506c74", "b51bb298b6ba", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "b49d6c88faf8", "8217e729816a", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "706fce3c01b4", "161ecbb1a082", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "32206f187413", "43f4f5fb0105", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "f0fc23201bd0", "bef93aa18f79", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "9798b848b5d5", "80a9286dbb8c", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "fe2b62712695", "fc242c08c1ea", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "103d8018a3f6", "a942fca39bd8", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "a8aa4a6dddd8", "dd1ad2b09af5", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    Kept("design", "0bab91adda30", "768f51e2f61b", "5102aab06172cfc2abce7038eb3eb653ec1cda2e"),
    # documents may be isolated; parts of a design may have rates of their own; compiled runs are
    # evaluated compiled, which their numerics say; a dataset of the hub is kept
    Kept("trunk", "ffac18bbe987", "663d61fa5df4", "77f8497ae09288a339cceb3198e4318627822b58"),
    Kept("loop", "2654e6b3cf98", "a1d6e9aa1427", "77f8497ae09288a339cceb3198e4318627822b58"),
    Kept("data", "00ba6714ade1", "7d6caccd5e2c", "77f8497ae09288a339cceb3198e4318627822b58"),
    # documents without tokens before all others; what is packed, linked or too long is refused; a
    # checkpoint that cannot be read just now stays
    Kept("loop", "a1d6e9aa1427", "3518871426a8", "6407fa66e81f58bd88514ec16a9f81f5f4786ae3"),
    Kept("data", "7d6caccd5e2c", "935461d40d2c", "6407fa66e81f58bd88514ec16a9f81f5f4786ae3"),
    # kernels for the maps of mhc, from which nothing is published
    Kept("engine", "0f83d85c5cc2", "c3e1397eda38", "77f8497ae09288a339cceb3198e4318627822b58"),
    Kept("design", "80a9286dbb8c", "d346811652ac", "77f8497ae09288a339cceb3198e4318627822b58"),
    # names, sizes and cuts that no model can have are refused; what ranks, GPUs, autocast and
    # compilers did otherwise, from which nothing is published
    Kept("trunk", "663d61fa5df4", "db7753a434db", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("loop", "3518871426a8", "d6dd4764d5ee", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "a2922c7b47a4", "8ae06d77f125", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "ea37ac8b8e0d", "108dac1ed721", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "fa074a708bb7", "6687effb94ee", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "d346811652ac", "0fdd81e06c99", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "ff81d2dd156e", "d2ca10cc86ee", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "fc242c08c1ea", "ace833049123", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "604408f0a233", "cfb8ad7d3744", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "768f51e2f61b", "1acb3460fd2e", "2ff076740a3af03323632abb9761fa36af52e394"),
    Kept("design", "7cca8a312e74", "37ef385ae2db", "2ff076740a3af03323632abb9761fa36af52e394"),
    # targets of -100 do not count in a loss in parts; exported models are loaded elsewhere; what
    # nobody called is gone from the engine
    Kept("trunk", "db7753a434db", "3c3a921ffbdf", "cdd4f0e1d1b99faa457d110ac4bbe164974cd63d"),
    Kept("engine", "c3e1397eda38", "878458a6267a", "cdd4f0e1d1b99faa457d110ac4bbe164974cd63d"),
)
"""All of them. A run of the one code and a run of the other are of the same code."""


@cache
def first(part: str, digest: str) -> str:
    """The digest of the first code of a part that gave the numbers of this one."""
    before = {(kept.part, kept.now): kept.before for kept in KEPT}
    while (part, digest) in before:
        digest = before.pop((part, digest))
    return digest


@cache
def of_parts() -> dict[str, str]:
    """12 hex digits of each of PARTS, by its name."""
    return {name: digest(_files(paths)) for name, paths in PARTS.items()}


def of_design(*classes: type) -> str:
    """12 hex digits of the files of a design's parts (`files_of`); empty where one has none."""
    files = [files_of(cls) for cls in classes]
    return digest(file for its in files for file in its) if all(files) else ""


def files_of(cls: type) -> list[Path]:
    """A class's file with the files that it imports from its own folder or below, and those these
    import.
    """
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return _with_helpers(Path(file), cls.__module__.rpartition(".")[0]) if file else []


def digest(files: Iterable[Path]) -> str:
    """12 hex digits of what these Python files do, whatever their order; empty where one cannot be
    read as Python.
    """
    try:
        done = sorted(repr(_meaning(ast.parse(file.read_bytes()))) for file in files)
    except (OSError, SyntaxError, ValueError):
        return ""
    return hashlib.sha256("\n".join(done).encode()).hexdigest()[:12]


def _files(paths: Iterable[str]) -> list[Path]:
    found = [_PACKAGE / path for path in paths]
    return [file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path])]


def _meaning(node: object) -> object:
    """A syntax tree as plain values, without what does not matter and what newer Pythons add."""
    if isinstance(node, list):
        return [_meaning(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.JoinedStr):  # some Pythons end a format with an empty text
        fields["values"] = [v for v in node.values if getattr(v, "value", None) != ""]
    if isinstance(node, _HAVE_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = fields["body"][1:]
    kept = [(name, value) for name, value in fields.items() if name not in _NO_MATTER]
    # Fields that are empty are left out: `type_params` of functions came with Python 3.12.
    return type(node).__name__, [(n, _meaning(v)) for n, v in kept if v is not None and v != []]


def _with_helpers(file: Path, package: str) -> list[Path]:
    """The file, and all those of its folder, which is `package`, that it needs."""
    root, found, todo = file.parent, dict[Path, None](), [file]
    while todo:
        each = todo.pop()
        if each not in found:
            found[each] = None
            inside = ".".join([package, *each.relative_to(root).parent.parts])
            names = [name.removeprefix(f"{package}.") for name in _imported(each, inside)]
            paths = [root.joinpath(*name.split(".")) for name in names]
            files = [f for path in paths for f in (path.with_suffix(".py"), path / "__init__.py")]
            todo += [file for file in files if file.is_file()]
    return list(found)


def _imported(file: Path, package: str) -> Iterator[str]:
    """The names of modules in a file's imports, and of what may be modules; nowhere else."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            name = resolve_name(source, package)
            yield from (name, *(f"{name}.{alias.name}" for alias in node.names))
