"""On what terms a comparison was made, in words: its title, and what each arm has of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.comparison_terms import ArmRecipe, Matched, Terms, Tuned, settings_text
from attnres_cli.records.run import DataDescription
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.numbers import between

_MATCHED = {"params": "parameters", "flops": "FLOPs per token", "time": "training time"}


def name(terms: Terms) -> str:
    """For a column of a table: `shared`, `tuned`, `settings by design`, `params matched to
    standard, tuned`.
    """
    named = [] if terms.match == "tokens" else [f"{terms.match} matched to {terms.baseline}"]
    named += ["tuned"] if terms.is_tuned else ["settings by design"] if terms.by_design else []
    return ", ".join(named) or "shared"


def title(comparison: Comparison) -> str:
    """`recipe quick, the same for every arm`, or what each arm has of its own instead."""
    own = parts(comparison.terms) or ["the same for every arm"]
    named = ", ".join([f"recipe {comparison.recipe}", *own])
    return f"{named} [{comparison.registered}]" if comparison.registered else named


def parts(terms: Terms) -> list[str]:
    """What each arm has of its own; nothing where one recipe is for all."""
    found = []
    if terms.match != "tokens":
        found.append(f"each arm of {terms.baseline}'s {_MATCHED[terms.match]}")
    if terms.is_tuned:
        what = "learning rate" if terms.rate_only else "settings"
        found.append(f"each arm at its own tuned {what}")
    if terms.by_design:
        found.append("each arm at the recipe's settings for it")
    return found


def tokens(comparison: Comparison) -> str:
    """`439,296 tokens per run`; a range where time is matched. One that diverged saw fewer."""
    numbers = {arm.tokens for arm in comparison.arms}
    if comparison.terms.match != "time" or len(numbers) == 1:
        return f"{max(numbers):,} tokens per run"
    return f"{between(numbers)} tokens per run, on purpose: training time is matched"


def of_data(data: DataDescription, recipe: Recipe, n_tokens: Collection[int]) -> list[str]:
    """What runs of so many tokens will see: size, vocabulary, split, epochs."""
    tokenizer = recipe.data.tokenizer or ("bytes" if data.is_bytes else "")
    named = f" ({tokenizer})" if tokenizer else ""
    lines = [f"data {data.called}, {data.size}; vocabulary {data.vocab_size:,}{named}"]
    if data.split:
        lines.append(f"split: {data.split}")
    if data.train_tokens:
        epochs = [f"{n / data.train_tokens:.2g}" for n in (min(n_tokens), max(n_tokens))]
        times = " to ".join(dict.fromkeys(epochs))
        lines.append(
            f"a run reads its {data.train_tokens:,} training tokens {times} times (epochs)"
        )
    return lines


def lines(comparison: Comparison) -> list[str]:
    """How each arm came to its recipe, with the numbers that decided, and what remains unequal."""
    own = [arm.own for arm in comparison.arms if arm.own is not None]
    rates = [_rate(each.variant, each.how) for each in own if isinstance(each.how, Tuned)]
    return [*remaining(own), rates_of(comparison), *rates]


def rates_of(comparison: Comparison) -> str:
    """Whose learning rates its arms have."""
    own = [arm.own.how for arm in comparison.arms if arm.own is not None]
    return whose_rates(comparison.terms, [how for how in own if isinstance(how, Tuned)])


def said(comparison: Comparison) -> list[str]:
    """What people say of the runs of a table: a line for each note, then one for each tag."""
    runs = comparison.records
    lines = [f"note of {r.variant} seed {r.seed} (run {r.id}): {r.note}" for r in runs if r.note]
    for tag in sorted({tag for run in runs for tag in run.tags}):
        ids = ", ".join(str(run.id) for run in runs if tag in run.tags)
        lines.append(f"tag {tag}: run{'s' if ',' in ids else ''} {ids}")
    return lines


def whose_rates(terms: Terms, hows: Sequence[Tuned] = ()) -> str:
    """Whose learning rates the arms have: the recipe's, one or by design, or found here."""
    if hows:
        return (
            f"settings tuned here: {_tried(hows)}; over the whole budget on seeds "
            f"{', '.join(map(str, hows[0].seeds))}, which no comparison uses; mean losses"
        )
    if terms.by_design:
        return (
            "settings: the recipe's by design; a design without its own takes the recipe's optim.lr"
        )
    return "learning rate: one for every arm, the recipe's"


def _tried(hows: Sequence[Tuned]) -> str:
    """What tuning has tried, of each arm alike or by whether the recipe has settings for it."""
    apart = "a factor of about 1.41 apart"
    if not hows[0].rate_digest:  # a study of before
        return f"{len(hows[0].rates)} learning rates for every arm, {apart}"
    edge, whole = "two more where the best was at an edge", any(how.second for how in hows)
    near = f"three learning rates around the recipe's for it, {apart}, {edge}, its others kept"
    if not whole:
        return f"of each arm {near}"
    found = (
        f"5 learning rates for every arm, {apart}, {edge}; then at the best of them three settings "
        "of a second number: design_lr_scale of an arm that adds parameters, else weight decay and "
        "warm-up"
    )
    has_own = not all(how.second for how in hows)
    return f"{found}; of an arm that the recipe has settings for, {near}" if has_own else found


def remaining(own: Sequence[ArmRecipe]) -> list[str]:
    """For each matched arm, what was changed and what is left of the difference."""
    return [
        f"{each.variant}: {_change(each.how, each.terms)}"
        for each in own
        if isinstance(each.how, Matched)
    ]


def warnings(own: Sequence[ArmRecipe]) -> list[str]:
    """A line for each arm whose best settings are at the edge of what was tried."""
    return [
        f"{each.variant}: {each.text} ({each.how.fit}). {_moving(each.variant, each.how)}"
        for each in own
        if isinstance(each.how, Tuned) and each.how.is_on_edge
    ]


def _moving(variant: str, how: Tuned) -> str:
    if how.second or not how.rate_digest:
        return "Another --set optim.lr moves the grid of every arm"
    return f"--set arms.{variant}.optim.lr={how.lr:g} moves its grid"


def _change(how: Matched, terms: Terms) -> str:
    kept, unit, base = how.before == how.after, _MATCHED[terms.match], terms.baseline
    change = f"{how.changed} {how.before:,} " + ("kept" if kept else f"-> {how.after:,}")
    remains = f"remains {how.remains:+.3%}"
    if how.step_ratio is None:
        value = "" if kept else f" -> {how.value:,.0f}"
        return f"{change}, {unit} {how.unmatched:,.0f}{value}; {remains} of {base}'s"
    median, low, high = how.step_ratio
    return (
        f"{change}, a step takes {median:.3f} [{low:.3f}, {high:.3f}] times {base}'s (median and "
        f"quartiles of {how.rounds} rounds in turn on {how.device_name}); {remains} {unit} of "
        f"{base}'s"
    )


def _rate(variant: str, how: Tuned) -> str:
    points = [(f"{lr:g}", loss) for lr, loss in zip(how.rates, how.losses, strict=True)]
    points += [(settings_text(trial.changes), trial.mean) for trial in how.second]
    tried = [f"{what} {'diverged' if loss is None else f'{loss:.4f}'}" for what, loss in points]
    missed = "" if how.regret is None else f"; it may miss the best by {how.regret:.4f}"
    return f"{variant}: {', '.join(tried)}; {how.text} ({how.fit}){missed}"
