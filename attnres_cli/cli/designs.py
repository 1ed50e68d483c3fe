"""The commands `variants`, `check` and `recipes`: what there is, and whether a design is sound."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from attnres_cli.cli import options
from attnres_cli.config import complete
from attnres_cli.console import note, say
from attnres_cli.errors import SOME_FAILED, UsageError, VariantError, unknown
from attnres_cli.files import write_new


def variants(
    name: str | None = typer.Argument(
        None, help="A variant to describe in full.", autocompletion=complete.specs
    ),
    shape: str | None = options.SIZES,
    new: str | None = typer.Option(
        None, help="Write a documented file to start a design of this name."
    ),
    tree: bool = typer.Option(False, "--tree", help="Draw which design contains which."),
    form: options.Format = options.PRINTED,
    _plugin: list[str] | None = options.PLUGINS,
) -> None:
    """List the residual designs, print one (equation, options, costs, proofs), or begin one."""
    given = name is not None or shape is not None
    if new is not None:
        if given or tree:
            raise UsageError("--new writes a file and takes nothing else: attnres variants --new X")
        _start(new)
    elif tree:
        if given:
            raise UsageError("--tree draws all designs: attnres variants --tree")
        _draw(form)
    elif name is not None:
        _describe(name, options.read_shape(shape), form)
    elif given:
        raise UsageError("--shape is of one variant: attnres variants NAME --shape ...")
    else:
        _list(form)


@dataclass(frozen=True, kw_only=True)
class Checking:
    """What `check` is asked."""

    context: typer.Context
    name: str = typer.Argument(
        help="The variant to check.",
        autocompletion=complete.specs,
        metavar="VARIANT",
        callback=options.no_file,
    )
    only: list[str] | None = typer.Option(
        None, help="Run only proofs whose name starts like this. Repeatable."
    )
    skip: list[str] | None = typer.Option(
        None, help="Skip proofs whose name starts like this. Repeatable."
    )
    recipe: str = typer.Option(
        "quick",
        "--recipe",
        "-r",
        help="Also check with the batch size and length of this recipe.",
        autocompletion=complete.recipes,
    )
    form: options.Format = options.PRINTED
    plugin: list[str] | None = options.PLUGINS

    def chosen(self, names: list[str]) -> list[str]:
        """The proofs of these that are asked for. Raises UsageError."""
        left_out = _named("--skip", self.skip, names)
        found = [n for n in _named("--only", self.only, names) or names if n not in left_out]
        if not found:
            raise UsageError("--skip leaves out all that --only names: nothing is proven")
        return found


@options.takes(Checking)
def check(asked: Checking) -> None:
    """Prove that a design keeps the contract: causal, sound gradients, counts, start, and the rest.

    The exit code is 3 where a proof fails.
    """
    from attnres_cli.config.recipe import load

    whole = load(asked.recipe)

    from attnres_cli.nn.proofs.prove import ALL, at_most, prove
    from attnres_cli.nn.proofs.subject import small
    from attnres_cli.nn.variant import parse
    from attnres_cli.report.designs import findings_of

    subject = small(parse(asked.name), n_layers=whole.model.n_layers)
    rows, length = at_most(subject.shape, whole.train.rows, whole.model.seq_len)
    subject = replace(subject, rows=rows, length=length)
    names = [proof.__name__ for proof in ALL]
    chosen = asked.chosen(names)
    is_last = names[-1] in chosen
    note(f"checking {subject.variant}" + ("; compiling it takes longest" if is_last else ""))
    findings = list(prove(subject, [proof for proof in ALL if proof.__name__ in chosen]))
    options.show(findings_of(str(subject.variant), findings), asked.form)
    if asked.context.find_root().params["_shows_all"]:
        for finding in findings:
            if finding.error:
                traceback.print_exception(finding.error)
    outcomes = Counter(finding.outcome for finding in findings)
    if outcomes["failed"]:
        rest = f", {outcomes['not run']} not run for that" if outcomes["not run"] else ""
        say(f"{outcomes['failed']} of {len(findings)} proofs failed{rest}")
        raise typer.Exit(SOME_FAILED)


def _named(option: str, starts: list[str] | None, names: list[str]) -> list[str]:
    """The names that begin with one of these. Raises UsageError."""
    for start in starts or []:
        if not any(name.startswith(start) for name in names):
            raise UsageError(f"{option}: {unknown('proof', start, names)}")
    return [name for name in names if name.startswith(tuple(starts or []))]


def recipes(
    name: str | None = typer.Argument(
        None, help="A recipe to describe in full: name or path.", autocompletion=complete.recipes
    ),
    override: list[str] | None = options.OVERRIDE,
    keys: bool = typer.Option(
        False, "--keys", help="What each key means; NAME is then how keys begin, such as data."
    ),
    form: options.Format = options.PRINTED,
) -> None:
    """List recipes and suites, describe one recipe, or say what its keys mean."""
    from attnres_cli.report.designs import keys_of, recipe_of, recipes_of

    if override and (keys or name is None):
        raise UsageError("--set changes one recipe: attnres recipes NAME --set ...")
    if keys:
        found = keys_of(name or "")
    else:
        found = recipes_of() if name is None else recipe_of(name, override or [])
    options.show(found, form)


def _list(form: options.Format) -> None:
    from attnres_cli.config.shipped import paper
    from attnres_cli.nn.addon import Addon
    from attnres_cli.nn.residual import presets, registry
    from attnres_cli.nn.variant import parse
    from attnres_cli.report.designs import variants_of

    named = {name: str(parse(name)) for name in presets()}
    addons = {name: cls for name, cls in registry().items() if issubclass(cls, Addon)}
    streams = {name: cls for name, cls in registry().items() if name not in addons}
    options.show(variants_of(streams, addons, named, paper()["table4"]), form)


def _draw(form: options.Format) -> None:
    from attnres_cli.nn.design_page import page_of
    from attnres_cli.nn.residual import registry
    from attnres_cli.nn.variant import parse
    from attnres_cli.report.designs import tree_of

    contains = {name: dict(page_of(cls).contains) for name, cls in registry().items()}
    for name, known in contains.items():
        starts = name != "standard" and parse(name).build(16, 12).equals_standard_at_init
        if starts and not known:
            known["standard"] = "nothing is learned yet"
    options.show(tree_of(contains), form)


def _describe(name: str, sizes: dict[str, int], form: options.Format) -> None:
    from attnres_cli.config.shipped import paper
    from attnres_cli.nn.describe import describe
    from attnres_cli.nn.variant import options_of, parse
    from attnres_cli.report.designs import composition_of, variant_of

    typed, said = parse(name), paper()
    losses = [("Table 4 and Fig. 6, 436M", said["table4"].get(str(typed)))]
    losses += [(f"Table 2, {size}", row.get(str(typed))) for size, row in said["table2"].items()]
    found = [(where, loss) for where, loss in losses if loss is not None]
    described = describe(typed, sizes["n_layers"], sizes["d_model"])
    (cls, *others) = typed.classes
    if others:
        options.show(composition_of(str(typed), typed.classes, found, described), form)
    else:
        options.show(variant_of(str(typed), cls, options_of(cls), found, described), form)


def _start(name: str) -> None:
    """Write NAME.py here, with a design to begin with. Raises VariantError."""
    from attnres_cli.nn.residual import check_name, presets, registry

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise VariantError(f"a variant's name is a word of a-z, 0-9 and _, as my_variant: '{name}'")
    check_name(name)
    if name in registry() or name in presets():
        raise VariantError(f"variant '{name}' is there already: take another name")
    text = Path(__file__).with_name("starting_variant.py").read_text(encoding="utf-8")
    camel = "".join(word.capitalize() for word in name.split("_"))
    text = text.replace("MyVariant", camel).replace("my_variant", name)
    file = Path(f"{name}.py")
    write_new(file, text, VariantError)
    typer.echo(f"wrote {file}: change it, then")
    for command in (f"check {name}", f"ablate standard {name}"):
        typer.echo(f"  attnres {command} --plugin {file}")
