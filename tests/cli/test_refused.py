"""Commands that cannot be meant: refused in one line with exit code 2 before anything is done."""

from __future__ import annotations

import json
import lzma
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from another_user import as_nobody
from commands import Attnres
from studies import fill

from attnres_cli.config.recipe import load

LONG, NINES = "x" * 300, "9" * 400
SERVER = "postgresql+psycopg://lab@127.0.0.1:1/lab"
NO_HOME, CIRCLE = "there is no such home", "Too many levels of symbolic links"
REFUSED = {
    "ablate --recipe smoke": {
        "standart": "did you mean 'standard'?",
        "attnres:blocksize=4": "did you mean 'block_size'?",
        "attnres:block_size=big": "block_size must be a whole number",
        "attnres:block_size=0": "block_size must be at least 1",
        "attnres:block_size=2,window=3": "exclude each other",
        "resv --dry-run --set model.n_kv_heads=1": "resv: ResV adds the stream of width 32",
        "attnres:heads=5": "heads must divide d_model 32, got 5",
        "--baseline standrad": "did you mean 'standard'?",
        "standard --suite quick": "not both",
        "--set train.tokns=2M": "did you mean 'tokens'?",
        "--set train.tokens=9999999999B": "less than",
        "--set train.tokens=010000": "valid integer",
        "--set 'train.tokens=2M\nfoo: 3'": "--set",
        "--seeds 0": "--seeds must be at least 1, at most 1000, got 0",
        "--match parms": "did you mean 'params'?",
        "standard mhc --match flops": "mhc cannot be brought within 0.5% of standard: the nearest "
        "is d_ff 1",
        "--workers 0": "workers",
        "--workers 999999999": "'--workers'",
        "--in-process --workers 2": "starts no worker",
        "--format jsno": "did you mean 'json'?",
        "--format html": "--format html: `attnres report --format html` prints it",
        "--device gpu": "auto, cpu, cuda or cuda:N",
        "--engine egaer": "did you mean 'eager'?",
        "--engine compile --set train.compile=off": "--set train.compile=on, or drop --engine",
        "--engine eager --set train.compile=on": "--set train.compile=off, or drop --engine",
        "--study no/such/folder/a.db": "does not exist",
        "--dry-run --study no/a.db": "does not exist",
        "--study /proc/attnres.db": "/proc",
        "--study .": "is a folder",
        "--study :memory:": "the path of a file",
        "--study /dev/null": "is no file",
        "--study postgresql://127.0.0.1:1/db": "cannot be reached",
    },
    "ablate --recipe smoke --dry-run --set data.source=text": {
        "": "--set data.path=",
        "--set data.path=none.txt": "none.txt does not exist",
        "--set data.path=/dev/zero": "no file or folder",
        "--set data.path=~nobody_here/x": NO_HOME,
        "--set data.path=circle": CIRCLE,
    },
    "ablate standard --recipe smoke": {
        "--launch slrm": "did you mean 'slurm'",
        "--launch slurm": "how many jobs? --workers N",
        "--launch slurm --workers 2": "several machines need a study on a server",
        "--launch ray --workers 2 --print": "--print prints the batch script of",
        "--launch ray --workers 2 --job num_gpus": "takes name=value",
        "--launch ray --workers 1 --in-process": "leave --launch ray out",
        "--job time=90": "--job is for --launch",
        f"standart --launch slurm --workers 2 --study {SERVER}": "did you mean 'standard'",
    },
    "ablate": {
        "--suite tabel4": "did you mean 'table4'?",
        "--suite ''": "unknown suite",
        "--recipe quik": "did you mean 'quick'?",
        "--recipe ./none.yaml": "No such file",
        "--recipe /dev/zero": "is no file",
        "--recipes quick": "--recipe",
    },
    "search standard --dry-run": {
        "--space n_layer=2..4": "did you mean 'n_layers'",
        "--space lr=1e-320..1e308": "--space lr: expected a number above 0",
        "--space lr=1e-4..1e-3..1e-320": "--space lr: expected a number above 0",
        "--space mlp_ratio=1..1e300": "--space mlp_ratio: expected a number",
        "--trials 0": "'--trials': Input should be greater than or equal to 1",
        "--trials 1000000000": "'--trials'",
        "--confirm 1000000000": "'--confirm'",
        "--workers 1025": "'--workers'",
        "--budget params=1000": "no shape of the space has --budget params=1000 within",
        "--budget params=1e29": "up to 1e+12, got '1e29'",
        "--budget flops=1e29": "up to 1e+27, got '1e29'",
        "--budget=": "--budget is empty: leave it out for the recipe's own size",
        "--objective val_los": "did you mean 'val_loss'",
        "--objective params,val_loss": "val_loss, or val_loss and one more",
        "--objective val_loss,params,flops": "val_loss, or val_loss and one more",
        "--objective val_loss,params": "the recipe's params, fixes it",
        "--objective val_loss,params --budget params=2M": "take step_time, flops, or",
        "--objective val_loss,params --budget flops=1e13 --space params=1M": "fixes it for every "
        "shape, but for rounding; take step_time, or on a GPU memory",
        "--recipe smoke --objective val_loss,memory --budget params=40k --device cpu --workers 1 "
        "--space n_layers=2|4,n_heads=2": "--objective memory: on a CPU the peak is that of the "
        "whole process",
        "--pruner median": "No such option: --pruner",
        "--confirm 0 --seeds 5,6": "--confirm 0 confirms no shape: leave --seeds out",
        "--seeds 0,1": "seed 0 is the first look's",
        "--seeds none": "--seeds takes a number, a list as 0,3,7",
        "--suite fig7": "either variants or --suite",
        "standrad": "did you mean 'standard'",
        "--study no/such/folder.db --budget params=2M": "does not exist, make it first",
        "--format yaml": "unknown format 'yaml'",
        "--recipe quik": "did you mean 'quick'",
    },
    "bench": {
        "standart": "did you mean 'standard'?",
        "attnres:blocksize=4": "did you mean 'block_size'?",
        "--baseline standrad": "did you mean 'standard'?",
        "--recipe quik": "did you mean 'quick'?",
        "--set model.d_modl=4": "did you mean 'd_model'?",
        "--format jsno": "did you mean 'json'?",
        "--engine eger": "did you mean 'eager'?",
        "--device gpu": "auto, cpu, cuda or cuda:N",
        "--rounds 0": "rounds",
        "--round 3": "--rounds",
        "decode standart": "did you mean 'standard'?",
        "decode --batch 0": "batch",
        "decode --engine compile": "train.compile=on compiles generation",
    },
    "plan": {
        "--gap 1e-300": "--gap takes a difference in loss above 0",
        "--gap nan": "--gap takes a difference in loss above 0",
        "--arms 999999999": "'--arms'",
        "--workers 999999999": "'--workers'",
        "--pipeline 4x2 attnres": "takes stages and virtual stages, as 4,2, got '4x2'",
        "--pipeline 4,2": "of which designs? As --pipeline 4,2 attnres",
        "--pipeline 1 attnres": "a pipeline has two stages or more",
        "--pipeline 9,2 attnres": "18 chunks, of 16 sublayers",
        "attnres": "designs and --shape are for --pipeline",
    },
    "variants": {
        "atnres": "did you mean 'attnres'?",
        "attnres --shape n_layers=0": "whole numbers",
        "attnres --shape depth=3": "unknown size 'depth'",
        "attnres --shape n_layers=9999999": "n_layers up to 200",
        "attnres --shape d_model=9999999": "d_model up to 131072",
        "attnres:heads=7": "must divide d_model 1024",
        "--shape n_layers=3": "attnres variants NAME --shape",
        "attnres --new x": "takes nothing else",
        "--new standard": "is there already",
        "--plugin ~nobody_here/x.py": NO_HOME,
    },
    "recipes": {
        "-q --verbose": "give one of them",
        "--set model.n_layers=3": "recipes NAME",
        "smok": "did you mean 'smoke'?",
        "smoke --set model.d_model=9999999": "model.d_model",
        "smoke --set model.seq_len=1B": "model.seq_len",
        "smoke --set train.batch_size=1B": "train.batch_size",
        "/dev/zero/x.yaml": "recipe /dev/zero/x.yaml cannot be read",
        "~nobody_here/x.yaml": NO_HOME,
        f"{LONG}.yaml": "File name too long",
        "circle/x.yaml": CIRCLE,
    },
    "report": {
        "--study none.db": "no study at none.db",
        "mine/none.db": "'mine/none.db' is a file, not a design: --study mine/none.db",
        "--format pdf": "unknown format 'pdf'",
        "--format htlm": "did you mean 'html'?",
        "--preregister /dev/zero": "preregistration /dev/zero is no file",
        "--preregister none.yaml": "cannot be read",
    },
    "runs": {
        "--study ~nobody_here/x": NO_HOME,
        f"--study {LONG}": "File name too long",
        "--study circle": CIRCLE,
        f"--study {SERVER}?connect_timeout=1&connect_timeout=2": "is given twice",
        f"--study {SERVER}?port=z": "non-integer port",
        "--study postgresql://127..1:1/lab": "study postgresql://127..1:1/lab: ",
        f"show {NINES}": "'ID'",
        "show 9223372036854775808": "'ID'",
        "rm 1 9223372036854775808": "'[ID...]'",
    },
    "verify": {"9223372036854775808": "'ID'"},
    "check": {
        "atnres": "did you mean 'attnres'?",
        "": "'VARIANT': attnres check VARIANT",
        "mine.py": "'mine.py' is a file, not a design: --plugin mine.py",
    },
    "init": {"": "'DATA': attnres init DATA"},
    "ablat": {"": "ablat"},
}
"""By the words that they begin with: the rest of commands, and words of the lines that refuse."""


@pytest.mark.parametrize("begin", REFUSED)
def test_a_command_that_cannot_be_meant_is_refused_and_writes_nothing(
    begin: str,
    folder: Path,
    attnres: Attnres,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
):
    monkeypatch.setenv("ATTNRES_RETRY_S", "0")
    (folder / "circle").symlink_to("circle")
    for rest, words in REFUSED[begin].items():
        with subtests.test(rest[:80]):
            assert words in attnres.refuses(*shlex.split(f"{begin} {rest}"))
            assert [each.name for each in folder.iterdir()] == ["circle"]


@pytest.mark.parametrize(
    ("option", "words"),
    [("--device=cuda", "use --device cpu"), ("--engine=triton", "--engine triton needs")],
)
def test_what_needs_cuda_is_refused_without_it(
    option: str, words: str, attnres: Attnres, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    assert words in attnres.refuses("ablate", "--recipe", "smoke", option)
    assert list(folder.iterdir()) == []


def test_data_that_are_too_short_are_refused(attnres: Attnres, folder: Path):
    typed = "ablate --recipe smoke --set data.source=text --set data.path=short.txt"
    for content, words in (
        (b"", "holds no text"),
        (b"x" * 30, "training data hold"),
        (b"x" * 5000, "validation data hold"),
    ):
        (folder / "short.txt").write_bytes(content)

        assert words in attnres.refuses(*typed.split())
        assert not (folder / "attnres.db").exists()


def test_a_recipe_that_stands_for_more_than_it_says_is_refused(folder: Path, attnres: Attnres):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    for content, message in (
        ("\n".join(lines), "line 2: *name is not read: write out what it stands for"),
        ("x" * 70_000, "too large: at most 65,536 bytes are read"),
        ("[" * 60_000, "recipe "),
    ):
        (folder / "bomb.yaml").write_text(content, encoding="utf-8")

        assert message in attnres.refuses("recipes", "bomb.yaml")


def test_a_folder_that_this_user_may_not_read_is_refused(folder: Path, attnres: Attnres):
    (folder / "closed").mkdir(mode=0o700)
    (folder / "closed" / "study.db").write_bytes(b"")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)

    with as_nobody():
        for arguments in (["runs", "--study", "closed/study.db"], ["recipes", "closed/x.yaml"]):
            assert "Permission denied" in attnres.refuses(*arguments)


# Studies


@pytest.fixture
def study(folder: Path) -> Path:
    path = folder / "attnres.db"
    fill(path, load("smoke"), {"standard": [1.5, 1.6], "attnres": [1.4, 1.5]})
    return path


@pytest.mark.parametrize("content", [b"my diary\n" * 100, b"SQLite format 3\0 cut"])
def test_a_file_that_is_no_study_stays_as_it_was(content: bytes, attnres: Attnres, folder: Path):
    (folder / "attnres.db").write_bytes(content)
    for command in ("ablate --recipe smoke", "report"):
        assert attnres(*command.split())[0] == 2
        assert (folder / "attnres.db").read_bytes() == content


def test_a_compressed_study_is_refused_with_what_unpacks_it(attnres: Attnres, folder: Path):
    (folder / "mine.db.xz").write_bytes(lzma.compress(b"SQLite format 3\0"))
    told = attnres.refuses("report", "--study", "mine.db.xz")
    assert told.endswith("compressed: `xz -dk mine.db.xz`, then --study mine.db\n")


def test_a_study_with_values_that_nobody_wrote_is_damaged(study: Path, attnres: Attnres):
    probe = "INSERT INTO attnres_probes VALUES (1, 1, "
    for statement, commands in (
        ("UPDATE attnres_recipes SET resolved = '{'", ["runs", "report"]),
        ("UPDATE attnres_recipes SET resolved = '{}'", ["runs", "report"]),
        ("UPDATE attnres_recipes SET name = char(27)", ["runs", "report"]),
        ("UPDATE attnres_runs SET steps = 'many'", ["runs", "report", "plan"]),
        ("UPDATE attnres_runs SET status = 'odd'", ["runs", "report"]),
        ("UPDATE attnres_runs SET created_at = 'then'", ["runs"]),
        ("UPDATE attnres_curve SET train_loss = 'low'", ["runs show 1"]),
        (f"{probe} 'entropy', '[7]', x'00')", ["runs show 1"]),
        (f"{probe} 'no_mixing', '[]', x'ff')", ["runs show 1"]),
        (f"{probe} 'odd', '[1]', x'00000000')", ["runs show 1"]),
        ("UPDATE attnres_schema SET version_num = x'ff'", ["runs", "report"]),
    ):
        shutil.copyfile(study, "damaged.db")
        with closing(sqlite3.connect("damaged.db")) as connection, connection:
            connection.execute(statement)
        for command in commands:
            told = attnres.refuses(*command.split(), "--study", "damaged.db")
            assert "study damaged.db is damaged (" in told, statement
        for left in Path().glob("damaged.db*"):
            left.unlink()


def test_files_that_cannot_be_written_beside_a_study_are_refused(study: Path, attnres: Attnres):
    assert "File name too long" in attnres.refuses("report", "--output", LONG)
    study.with_suffix(".runs").write_bytes(b"")
    for command in ("runs", "ablate --recipe smoke --seeds 1"):
        told = attnres.refuses(*command.split())
        assert "attnres.runs is no folder, where its runs keep files" in told


def test_a_note_of_brackets_is_a_bad_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]):
    from attnres_cli.train.checkpoint import Checkpoints

    body = "[" * 100_000
    (folder / "000000001.json").write_text(json.dumps({"sha256": "", "body": body}))
    (folder / "000000002.json").write_text(body)

    assert Checkpoints(folder, {}).load() is None
    assert capsys.readouterr().err.count("is damaged") == 2
