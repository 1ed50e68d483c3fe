"""Recipes: what is accepted, what is refused and with which words, and what the digest sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from attnres_cli.config import as_typed, complete, shipped, strict_yaml
from attnres_cli.config import margin as margins
from attnres_cli.config import recipe as recipes
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import RecipeError

TEXT = """\
model: {n_layers: 2, d_model: 16, n_heads: 2, seq_len: 16}
optim: {lr: 3e-4}
train: {tokens: 1.5k, batch_size: 4, eval_tokens: 256}
"""


def typed(section: str, text: str) -> dict[str, str]:
    """Values as --set takes them, by key of a section."""
    return {f"{section}.{key}": value for key, value in (each.split("=") for each in text.split())}


OTHER = {
    "name": "other",
    "description": "other",
    "variants": "[standard]",
    "ladder": "[{optim.lr: 2e-3}]",
    "slope": "0.4",
    "margin": "1.05x",
    "regret": "{attnres: 0.01}",
    "arms": "{attnres: {optim.lr: 2e-3}}",
    **typed("model", "n_layers=3 d_model=32 n_heads=4 n_kv_heads=1 d_head=4 d_ff=24 seq_len=8"),
    **typed("model", "attention=mla d_latent=12 positions=none qk_norm=yes softcap=15 mlp=gelu"),
    **typed("model", "n_experts=4 top_k=3 n_shared_experts=0"),
    **typed("model", "tie_embeddings=yes rope_theta=5e5 norm_eps=1e-5"),
    **typed("data", "source=text path=elsewhere val_path=elsewhere val_fraction=0.1"),
    **typed("data", "edition=2 deduplicate=yes tokenizer=words.json separator=none"),
    **typed("data", "documents=isolated vocab_size=50257 dtype=uint32"),
    **typed("data", "subset=other split=other val_split=other column=other rows=100 streaming=yes"),
    **typed("data", "nodes=9 hops=5 degree=5 length=5 pairs=9 keys=33 values=33"),
    **typed(
        "optim", "optimizer=muon lr=4e-4 beta1=0.8 beta2=0.99 eps=1e-9 weight_decay=0 clip=0.5"
    ),
    **typed(
        "optim",
        "design_lr_scale=3 schedule=wsd warmup_fraction=0.1 decay_fraction=0.1 final_lr_fraction=0",
    ),
    "optim.part_lr_scale": "{x0: 30}",
    "optim.transfer": "completep",
    "optim.base": "{d_model: 8, n_layers: 1}",
    **typed("train", "tokens=2k batch_size=2 micro_batch_size=1 checkpoint_activations=true"),
    **typed("train", "eval_tokens=512 n_evals=2 precision=fp32 compile='off' parallel=ddp"),
    **typed("train.pipeline", "stages=2 virtual=2 schedule=gpipe"),
}
"""One value for every key, none of them the one that TEXT or the default gives."""

FREE = {"name", "slope", "regret", "margin", "description", "variants", "ladder", "data.path"}
FREE |= {"data.separator"}  # the fingerprint sees it
FREE |= {"train.parallel", *(f"train.pipeline.{key}" for key in ("stages", "virtual", "schedule"))}

NO_POSITIONS = "model.positions=none"
READ_BY = {
    "model.attention": (NO_POSITIONS,),
    "model.d_latent": (NO_POSITIONS, "model.attention=mla"),
    **dict.fromkeys(
        [f"model.{key}" for key in ("n_experts", "top_k", "n_shared_experts")], ("model.mlp=moe",)
    ),
    **dict.fromkeys(["data.val_path", "data.deduplicate", "data.documents"], ("data.source=text",)),
    **dict.fromkeys(["data.vocab_size", "data.dtype"], ("data.source=nanogpt",)),
    **dict.fromkeys(
        [f"data.{key}" for key in ("subset", "split", "val_split", "column", "rows", "streaming")],
        ("data.source=huggingface",),
    ),
    **dict.fromkeys(["data.nodes", "data.hops"], ("data.source=pointers",)),
    **dict.fromkeys(["data.degree", "data.length"], ("data.source=permutations",)),
    **dict.fromkeys(["data.pairs", "data.keys", "data.values"], ("data.source=recall",)),
    **dict.fromkeys(
        ["optim.transfer", "optim.base"],
        ("optim.transfer=mup", "optim.base={d_model: 16, n_layers: 1}"),
    ),
}
"""What reads a key, where the default does not."""

COUNTS = {
    "1500": 1500, "1.5k": 1500, "2M": 2_000_000, "0.5B": 500_000_000, "1e3": 1000, "1_000": 1000,
    "440k": 440_000, "1.001k": 1001, "2.01M": 2_010_000, "16.1M": 16_100_000,
}  # fmt: skip
NO_COUNTS = ["1.55555k", "2.5", "k", "2K", "2kk", "infk", "nank", "1e400k", ".inf", ".nan", "two"]
REFUSED = {
    **{f"train.tokens={text}": ("integer", text.strip(".")) for text in NO_COUNTS},
    **{f"model.n_layers={text}": ("greater than 0", text) for text in ("0", "-1", "-2k", "0M")},
    "optim.lr=fast": ("valid number", "got 'fast'"),
    "rates={attnres: 1e-3}": ("unknown key 'rates'",),
    "arms={attnres: {optim.lr: yes}}": ("arms.attnres.optim.lr", "valid number", "got True"),
    "arms={attnres: {optim.lr: .inf}}": ("attnres: optim.lr: expected a number", "got inf"),
    "arms.attnres:heads=2.optim.lr=0": ("arms.attnres:heads=2.optim.lr", "greater than 0", "0.0"),
    "arms={attnres: 3}": ("attnres: expected a mapping such as {optim.lr: 4e-3}, got 3",),
    "arms={mhc: {optim.rl: 1}}": ("mhc: unknown key 'optim.rl': did you mean 'optim.lr'",),
    "arms=[1]": ("a mapping such as {attnres:", "got [1]"),
    "optim.part_lr_scale=x0": ("optim.part_lr_scale", "a mapping such as {x0: 30}"),
    "optim.part_lr_scale={x0: -1}": ("optim.part_lr_scale", "greater than 0"),
    "arms.mhc.optim.design_lr_scale=-1": ("arms.mhc.optim.design_lr_scale", "greater than 0"),
    "arms={mhc: {train.tokens: 1}}": ("mhc: unknown key 'train.tokens'",),
    "regret={mhc: -1}": ("regret", "greater than or equal to 0"),
    "optim.lr=yes": ("valid number", "got True"),
    "optim.lr=": ("valid number", "got None"),
    "optim.lr='0.1'": ("valid number", "got '0.1'"),
    "optim.lr=[0.1]": ("valid number", "got [0.1]"),
    "model.n_layers=yes": ("valid integer", "got True"),
    "model.n_layers='2'": ("valid integer", "got '2'"),
    "model.tie_embeddings=1": ("valid boolean", "got 1"),
    "model.tie_embeddings='yes'": ("valid boolean", "got 'yes'"),
    "model.mlp=relu": ("model.mlp", "unknown kind 'relu': did you mean 'relu2'?", "swiglu"),
    "model.mlp=[gelu, 3]": ("unknown kind '3'", "gelu, moe, relu2, swiglu"),
    "model.attention=[]": ("at least one kind",),
    "model.attention=mla": ("mla has no rotary positions", "positions to none"),
    "model.softcap=0": ("greater than 0",),
    "model.d_latent=8": ("with attention: mla, got attention: softmax", "model.attention=mla"),
    "model.top_k=2": ("top_k is read with mlp: moe, got mlp: swiglu", "--set model.mlp=moe"),
    "data.source=tex": ("'stdlib', 'text', 'nanogpt'", "got 'tex'"),
    "name=1": ("valid string", "got 1"),
    "model=3": ("section with keys", "got 3"),
    "optim.lr=0": ("greater than 0", "got 0"),
    "optim.lr=1e400": ("finite",),
    "optim.lr=.nan": ("finite",),
    "optim.beta1=1": ("less than 1",),
    "optim.beta2=-0.1": ("greater than or equal to 0",),
    "optim.weight_decay=-1": ("greater than or equal to 0",),
    "optim.clip=0": ("greater than 0",),
    "optim.warmup_fraction=1.5": ("less than or equal to 1",),
    "data.val_fraction=0": ("greater than 0",),
    "data.val_fraction=1": ("less than 1",),
    "model.rope_theta=1": ("greater than 1",),
    "model.norm_eps=0": ("greater than 0",),
    "optim.lr=" + "9" * 5000: ("--set",),
    "model.n_heads=3": ("d_model must be a multiple of n_heads", "give d_head", "got 16 and 3"),
    "model.d_head=7": ("d_head must be even", "got 7"),
    "model.d_model=6": ("d_head must be even", "got 3"),
    "model.n_kv_heads=4": ("n_kv_heads, got 2 and 4",),
    "train.tokens=63": ("64", "got 63"),
    "train.eval_tokens=15": ("model.seq_len 16", "got 15"),
    "data.path=my.txt": ("source: text",),
    "data={source: recall, nodes: 4}": ("got source: recall", "--set data.source=pointers"),
    "data={source: recall, degree: 3}": ("got source: recall", "--set data.source=permutations"),
    "data={source: pointers, pairs: 3}": ("got source: pointers", "--set data.source=recall"),
    "data={source: recall, vocab_size: 300}": ("source: recall", "--set data.source=nanogpt"),
    "data={source: recall, column: text}": ("source: recall", "--set data.source=text"),
    "data={source: recall, tokenizer: a.json}": ("source: recall", "--set data.source=stdlib"),
    "data={source: recall, val_path: a}": ("got source: recall", "--set data.source=text"),
    "data={source: pointers, nodes: 1}": ("nodes",),
    "data={source: permutations, degree: 7}": ("degree",),
    "data={source: recall, values: 1}": ("values",),
    "data={source: recall, pairs: 40}": ("pairs",),
    "data={source: nanogpt, dtype: int8}": ("dtype",),
    "data.documents=isolated": ("got source: stdlib", "--set data.source=text"),
    "data={source: recall, documents: isolated}": ("got source: recall", "data.source=text"),
    "data={source: nanogpt, separator: 3}": ("token files", "--set data.documents=isolated"),
    "data={source: npy, separator: end, documents: isolated}": ("number of a token", "got 'end'"),
    "data={source: text, val_fraction: }": ("val_fraction",),
    **{
        text: ("--set takes section.key=value", f"'{text}'")
        for text in ("", "=", "=3", ".=3", "optim.=3", "optim.lr", "optim")
    },
    "optim.lrr=1": ("'lrr'", "did you mean 'lr'"),
    "model.n_layer=3": ("'n_layer'", "did you mean 'n_layers'"),
    "optin.lr=1": ("'optin'", "did you mean 'optim'"),
    "lr=1": ("unknown key 'lr': did you mean 'optim.lr'?",),
    "train.seq_len=8": ("train: unknown key 'seq_len': did you mean 'model.seq_len'?",),
    "trian={}": ("'trian'", "did you mean 'train'"),
    **{
        f"{text}=1": ("--set", "unknown key", "optim")
        for text in ("zzz.y", "a.b.c.d", "optim..lr", ".lr", "lr")
    },
    "model.n_layers.deep=3": ("--set model.n_layers.deep=3", "'n_layers'"),
    "optim.lr=[": ("--set optim.lr=[: line 1",),
    "optim.lr=!!python/name:os.system": (": line 1",),
}
"""What --set takes, and words of the line that refuses it."""

BROKEN = {
    TEXT.replace("lr: 3e-4", "lrr: 3e-4"): ("optim", "'lrr'", "did you mean 'lr'"),
    TEXT.replace("model:", "modle:"): ("'modle'", "did you mean 'model'"),
    TEXT.replace("lr: 3e-4", ""): ("optim.lr is missing",),
    TEXT + "optim: {lr: 1}\n": ("'optim' is given twice",),
    **dict.fromkeys(["", "# empty\n", "- model\n", "quick\n", "3\n"], ("model, data, optim",)),
}
"""Files, and words of the line that refuses them."""


Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a recipe to lab.yaml and gives its path."""

    def writer(text: str | bytes = TEXT, name: str = "lab.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return writer


@pytest.fixture
def lab(write: Write) -> str:
    """The path of a valid recipe."""
    return write()


def refusal(path: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        recipes.load(path, overrides)
    (line,) = str(caught.value).splitlines()
    return line


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key that a recipe can hold, as --set names it."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_a_file_is_read_with_its_numbers_counts_defaults_and_name(write: Write):
    recipe = recipes.load(write())
    assert (recipe.optim.lr, recipe.train.tokens) == (3e-4, 1500)
    assert (recipe.optim.beta2, recipe.data.source, recipe.name) == (0.95, "stdlib", "lab")
    assert recipes.load(write("name: mine\n" + TEXT)).name == "mine"


def test_every_shipped_recipe_loads_under_its_name():
    assert "quick" in complete.recipes()
    for name in complete.recipes():
        recipe = recipes.load(name)
        assert recipe.name == name
        assert recipe.description
        assert recipe.steps >= recipe.train.n_evals
    own = recipes.load("paper-436m", ["data.path=a", "data.val_path=b"])  # typed over a fraction
    assert own.data.val_fraction == 0.001


def test_recipes_of_the_papers_table_2_have_its_rows_and_about_its_active_parameters():
    names = [name for name in complete.recipes("kimi-") if name != "kimi-tiny"]
    kimi, rows = [recipes.load(name) for name in names], shipped.paper()["scaling"]

    assert [each.model.n_layers for each in kimi] == rows["n_layers"]
    assert [each.model.d_model for each in kimi] == rows["d_model"]
    assert [each.optim.lr for each in kimi] == rows["lr"]
    assert [each.train.tokens for each in kimi] == rows["tokens"]
    for each in kimi:
        shape = each.model.shape(vocab_size=1)
        inside = shape.n_active_params() - 2 * shape.d_model
        assert inside / 1e6 == pytest.approx(int(each.name[5:8]), rel=0.03)


def test_counts_switches_and_choices_are_read_as_people_write_them(lab: str):
    for text, count in COUNTS.items():
        assert recipes.load(lab, [f"train.tokens={text}"]).train.tokens == count
    recipe = recipes.load(lab)
    assert (recipe.tokens_per_step, recipe.steps) == (4 * 16, 1500 // 64)  # whole steps
    for text, value in {"yes": True, "no": False, "true": True}.items():
        assert recipes.load(lab, [f"model.tie_embeddings={text}"]).model.tie_embeddings is value
    for choice in ("auto", "on", "off"):
        assert recipes.load(lab, [f"train.compile={choice}"]).train.compile == choice


def test_an_impossible_override_is_refused_in_a_line_with_its_key_and_what_is_allowed(lab: str):
    for override, words in REFUSED.items():
        message = refusal(lab, override)
        assert all(word in message for word in words), message
        if words[0].startswith(("valid", "integer", "greater", "less", "finite")):
            assert override.partition("=")[0] in message
    assert "(and 2 more)" in refusal(lab, "optim.lr=0", "optim.clip=0", "optim.eps=0")
    kda = ["model.attention=[softmax, kda]", "model.positions=none"]
    isolated = refusal(lab, "data.source=text", "data.documents=isolated", *kda)
    assert "kda carries state across documents: --set model.attention=softmax" in isolated
    for other in ("source=recall", "source=text val_path=b", "source=huggingface val_split=test"):
        sets = [f"data.{each}" for each in other.split()]
        assert recipes.load(lab, sets)
        assert "data.val_fraction is not read" in refusal(lab, *sets, "data.val_fraction=0.1")


def test_sizes_left_out_follow_from_the_width_and_given_ones_are_used(lab: str):
    sizes = {"gelu": 64, "[gelu,relu2]": 64, "[gelu]": 64, "swiglu": 48, "[gelu,swiglu]": 48}
    for mlp, d_ff in sizes.items():
        shape = recipes.load(lab, [f"model.mlp={mlp}"]).model.shape(vocab_size=11)
        assert (shape.n_kv_heads, shape.d_head, shape.d_ff, shape.vocab_size) == (2, 8, d_ff, 11)
    given = ["model.n_heads=3", "model.n_kv_heads=1", "model.d_head=6", "model.d_ff=20"]
    shape = recipes.load(lab, given).model.shape(vocab_size=11)
    assert (shape.n_heads, shape.n_kv_heads, shape.d_head, shape.d_ff) == (3, 1, 6, 20)


def test_a_broken_file_is_refused_with_its_name_and_what_it_lacks(write: Write):
    for text, words in BROKEN.items():
        message = refusal(write(text))
        assert "lab.yaml" in message
        assert all(word in message for word in words), message


def test_a_path_that_holds_no_recipe_is_refused_with_the_reason(tmp_path: Path, write: Write):
    write()
    write("description: caf\u00e9\n".encode("latin-1") + TEXT.encode(), "latin.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "folder").mkdir()

    for path, reason in (
        ("latin.yaml", "UTF-8"),
        ("none.yaml", "No such file"),
        ("folder.yaml", "directory"),
        ("folder/", "directory"),
        ("lab.yaml/inner.yaml", "Not a directory"),
    ):
        message = refusal(f"{tmp_path}/{path}")
        assert path.removesuffix("/") in message
        assert reason in message


def test_an_unknown_recipe_or_suite_is_refused_with_the_nearest():
    message = refusal("quik")
    assert all(words in message for words in ("'quik'", "did you mean 'quick'", ".yaml"))
    with pytest.raises(RecipeError, match=r"suite 'quikc'.*did you mean 'quick'"):
        shipped.suite("quikc")
    for name in ("../quick", "suites/quick", "quick.yaml", ""):  # a suite has a name and no path
        with pytest.raises(RecipeError, match="unknown suite"):
            shipped.suite(name)


def test_overrides_replace_values_and_sections_and_the_last_one_wins(lab: str):
    recipe = recipes.load(lab, ["optim.lr=1e-3", "model.n_layers=4", "optim.lr = 2e-3"])
    section = recipes.load(lab, ["optim={lr: 1e-3, clip: 2}"])
    assert (recipe.optim.lr, recipe.model.n_layers, recipe.model.d_model) == (2e-3, 4, 16)
    assert recipes.load(lab, ["data.val_fraction=0.2"]).data.val_fraction == 0.2
    assert (section.optim.lr, section.optim.clip) == (1e-3, 2)
    assert recipes.load(lab, ["description=a=b"]).description == "a=b"


def test_the_digest_does_not_see_names_and_places(lab: str):
    plain = recipes.load(lab, ["data.source=text"])
    for key in FREE:
        other = recipes.load(lab, ["data.source=text", f"{key}={OTHER[key]}"])
        assert (other != plain, other.digest) == (True, plain.digest), key
    here, there = (  # only that there are separate validation data
        recipes.load("smoke", ["data.source=nanogpt", "data.path=a", f"data.val_path={place}"])
        for place in "bc"
    )
    assert here.digest == there.digest


def test_the_digest_sees_the_separator_of_isolated_token_files_and_no_key_of_joined_ones(lab: str):
    given = ["data.source=nanogpt", "data.documents=isolated"]
    digests = [recipes.load(lab, [*given, f"data.separator={n}"]).digest for n in (3, 4)]
    assert digests[0] != digests[1]
    data = recipes.load(lab, ["data.source=text", "data.documents=joined", "data.separator=|"]).data
    assert data.fixed() == {"source": "text", "val_fraction": 0.05}


def test_the_digest_sees_every_other_key(lab: str):
    assert set(leaves(Recipe)) == set(OTHER)
    for key in OTHER.keys() - FREE:
        reads = READ_BY.get(key, ())
        other = recipes.load(lab, [*reads, f"{key}={OTHER[key]}"])
        assert other.digest != recipes.load(lab, reads).digest, key
        assert Recipe.model_validate_json(other.model_dump_json()) == other  # as it is stored


def test_a_slope_is_dropped_where_the_measured_recipe_is_changed(write: Write):
    path = write("slope: 0.43\n" + TEXT)

    assert recipes.load(path).slope == 0.43
    assert recipes.load(path, ["description=the same"]).slope == 0.43
    assert recipes.load(path, ["train.tokens=2k"]).slope is None
    assert recipes.load(path, ["train.tokens=2k", "slope=0.4"]).slope == 0.4
    assert recipes.load(path).at(3000).slope is None
    path = write("slope: 0.43\nladder: [{train.tokens: 2k}, {train.tokens: 4k}]\n" + TEXT)
    assert [size.slope for size in recipes.rungs(recipes.load(path))] == [None, None]


def test_a_size_of_a_ladder_is_the_recipe_that_its_keys_make():
    *_, largest = recipes.rungs(recipes.load("sizes"))
    keys = ["model.n_layers=10", "model.d_model=96", "train.tokens=1.6M"]
    alone = recipes.load("sizes", ["ladder=[]", *keys])
    assert recipes.rungs(alone) == [alone]
    assert (alone.name, alone.digest) == (largest.name, largest.digest)


def test_the_digest_does_not_see_how_values_and_keys_are_written(write: Write):
    for overrides in (
        ["model.n_kv_heads=2", "model.d_head=8"],
        ["model.mlp=[swiglu]"],
        ["model.mlp=[swiglu, swiglu]"],
        ["optim.lr=0.0003"],
        ["train.tokens=1500"],
        ["optim.clip=1"],
        ["data={}"],
        ["optim.optimizer=adamw", "train.checkpoint_activations=false"],
    ):
        assert recipes.load(write(), overrides).digest == "2f5c6e35054b"  # of the first studies
    backward = write("\n".join(reversed(TEXT.splitlines())))
    assert recipes.load(backward).digest == "2f5c6e35054b"
    of_old = {"quick": "5821f707fa1b", "smoke": "7d36719ae8d6", "small": "88c659a2b0f3"}
    as_of_old = ["data.edition=null", "optim.warmup_fraction=0.05"]
    for recipe in (recipes.load(name, as_of_old) for name in of_old):
        lr = 6e-3 if recipe.name == "quick" else recipe.optim.lr
        assert recipe.at_rate(lr).digest == of_old[recipe.name]
    for key, digest in ("source=text", "f0952485d795"), ("val_fraction=0.1", "1cbcdbb20ff1"):
        quick = recipes.load("quick", [*as_of_old, f"data.{key}"])
        assert quick.at_rate(6e-3).digest == digest
    plain, spelled = (
        recipes.load("smoke", [f"data={{source: pointers{more}}}"]).digest
        for more in ("", ", nodes: 8, hops: 4")
    )
    assert plain == spelled


def test_the_digest_sees_a_pattern_as_far_as_there_are_layers(lab: str):
    found = {
        text: recipes.load(lab, [f"model.mlp={text}"]).digest
        for text in ("swiglu", "gelu", "[swiglu, gelu]", "[gelu, swiglu]", "[swiglu, gelu, gelu]")
    }
    assert found["[swiglu, gelu]"] == found.pop("[swiglu, gelu, gelu]")
    assert len(set(found.values())) == 4


@pytest.mark.filterwarnings("error")
def test_a_pattern_is_stored_as_a_list_and_read_back(lab: str):
    for pattern in ["swiglu", "gelu"], ["swiglu", "moe"]:
        recipe = recipes.load(lab, [f"model.mlp=[{', '.join(pattern)}]"])
        values = recipe.model_dump(mode="json")
        assert values["model"]["mlp"] == pattern
        assert Recipe.model_validate(values) == recipe


def test_a_design_is_trained_at_its_own_rate(write: Write):
    plain = recipes.load(write(TEXT))
    mhc, blocks = "mhc: {optim.lr: 1e-3}", "'attnres:block_size=4': {optim.lr: 2e-3}"
    recipe = recipes.load(write(f"{TEXT}arms: {{{mhc}, {blocks}}}\n"))

    assert recipe.of("attnres:block_size=4") == plain.at_rate(2e-3)
    assert recipe.of("standard") == plain
    assert recipe.digest not in (plain.digest, recipe.of("mhc").digest)
    turned = recipes.load(write(f"{TEXT}arms: {{{blocks}, {mhc}}}\n"))
    assert turned.digest == recipe.digest
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_an_empty_key_of_published_studies_says_nothing(lab: str):
    recipe = recipes.load(lab)
    assert Recipe.model_validate({**recipe.model_dump(mode="json"), "rates": []}) == recipe


def test_an_arm_has_settings_of_its_own_and_the_baseline_keeps_its_identity(write: Write):
    plain = recipes.load(write(TEXT))
    text = "arms: {mhc: {optim.lr: 1e-3, optim.design_lr_scale: 10}}\nregret: {mhc: 0.01}\n"
    recipe = recipes.load(write(TEXT + text))

    assert recipe.of("standard") == plain
    mhc = recipe.of("mhc")
    assert (mhc.optim.lr, mhc.optim.design_lr_scale, mhc.regret) == (1e-3, 10.0, ())
    assert mhc.digest not in (plain.digest, plain.at_rate(1e-3).digest)
    assert recipe.digest != plain.digest
    one = plain.changed(("optim.design_lr_scale", 1.0))
    assert one.digest == plain.digest  # studies of before have no such key
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_a_typed_rate_drops_the_rates_of_the_file_and_says_so(write: Write):
    path = write(TEXT + "arms: {attnres: {optim.lr: 2e-3}, mhc: {optim.lr: 1e-3}}\n")
    told, heads = [], "arms.attnres:heads=2.optim.lr=3e-3"

    one = recipes.load(path, ["optim.lr=1e-3"], told.append)
    two = recipes.load(path, [heads, "optim.lr=1e-3"], told.append)
    more = recipes.load(path, [heads], told.append)

    assert one.arms == ()
    assert [name for name, _ in two.arms] == ["attnres:heads=2"]
    rates = [(name, dict(own)["optim.lr"]) for name, own in more.arms]
    assert rates == [("attnres", 2e-3), ("attnres:heads=2", 3e-3), ("mhc", 1e-3)]
    scaled = recipes.load(path, ["arms.attnres.optim.design_lr_scale=3"], told.append)
    assert scaled.of("attnres").optim.design_lr_scale == 3
    assert len(told) == 2


def test_a_recipe_cannot_be_changed(lab: str):
    recipe = recipes.load(lab)
    for held, key in (recipe, "name"), (recipe, "model"), (recipe.model, "n_layers"):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(held, key, getattr(held, key))


def test_a_margin_is_in_nats_or_a_multiple_of_compute_which_takes_a_slope(write: Write):
    assert margins.nats(0.01, None) == margins.nats("0.01", None) == pytest.approx(0.01)
    assert margins.nats("1.05x", 0.4) == pytest.approx(0.4 * math.log(1.05))
    with pytest.raises(RecipeError, match=r"give the margin in nats per token, as 0\.01"):
        margins.nats("1.05x", None)
    for margin in ("x", "-0.1", "0", "1x", "0.9x", "nan", "1.05y"):
        with pytest.raises(RecipeError, match=r"as 0\.01, or of compute, as 1\.05x, got"):
            margins.nats(margin, 0.4)
        with pytest.raises(RecipeError, match="margin"):
            recipes.load(write(f"margin: {margin}\n" + TEXT))


def test_text_is_read_back_as_it_was_written():
    for text in ("\U0001f4da: my books", "plain", "1e3", "a: b", "\U0001f4da", "a\tb: \x85"):
        assert strict_yaml.load(as_typed.as_yaml(text), "") == text


@pytest.mark.parametrize(
    "text",
    ["a #b", "#x", "null", "~", "none", "trail ", '"q"', "12_000", "1.50", "1e5", "no", "a: b"],
)
def test_a_key_that_takes_text_takes_it_as_it_is_typed(text: str):
    recipe = recipes.load(
        "smoke", ["data.source=huggingface", "data.path=wikitext", f"data.subset={text}"]
    )

    assert recipe.data.subset == text
    assert as_typed.typed("data.subset", text) == f"data.subset={text}"
    name, overrides = as_typed.overrides_of(recipe)
    assert recipes.load(name, overrides).digest == recipe.digest
    unset = recipes.load("smoke", ["data.source=huggingface", "data.path=wikitext", "data.subset="])
    assert unset.data.subset is None


def test_settings_can_be_told_apart_also_where_they_are_lists():
    plain = recipes.load("kimi-tiny")
    scaled = recipes.load("kimi-tiny", ["optim.part_lr_scale={x0: 3}"])
    told = [as_typed.settings(each) for each in (plain, scaled)]
    assert all(set(held.values()) for held in told)
    (key,) = as_typed.differing([plain, scaled])
    assert key == "optim.part_lr_scale.x0"
    again = recipes.load("kimi-tiny", [as_typed.typed(key, told[1][key])])
    assert again.digest == scaled.digest


@pytest.mark.parametrize("name", ["budgets", "depth", "sizes", "gpt2"])
def test_each_size_of_a_ladder_has_a_command_of_its_own(name: str):
    whole = recipes.load(name)
    for size in recipes.rungs(whole):
        named, overrides = as_typed.overrides_of(size)
        again = recipes.load(named, overrides)
        assert (again.ladder, again.digest) == ((), size.digest)
    assert as_typed.overrides_of(whole) == (name, [])


@pytest.mark.parametrize(
    ("typed", "is_kept"),
    [
        ("train.tokens=2048", True),  # kept settings may be off by no less there
        ("optim.lr=1e-3", False),
        ("arms.mhc.optim.lr=2e-3", False),
    ],
)
def test_regret_stays_unless_settings_change_and_the_slope_does_not(
    write: Write, typed: str, is_kept: bool
):
    text = "slope: 0.2\narms: {mhc: {optim.lr: 2e-3}}\nregret: {mhc: 0.01}\n"
    changed = recipes.load(write(TEXT + text), [typed])

    assert changed.regret == ((("mhc", 0.01),) if is_kept else ())
    assert changed.slope is None
