"""The study's tables. Every name starts with attnres_: Optuna keeps its tables in the same file."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

PREFIX = "attnres_"

SCHEMA = "0013"  # which tables these are: a study says it in `schema`, as Alembic would write it

IDENTITY = ("recipe_digest", "variant", "seed", "fingerprint", "code")
"""The columns that tell a run from every other."""

metadata = MetaData()

schema = Table(
    "attnres_schema",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="attnres_schema_pkc"),
)

recipes = Table(
    "attnres_recipes",
    metadata,
    Column("digest", String(12), primary_key=True),
    Column("name", Text, nullable=False),
    Column("resolved", JSON, nullable=False),
)

data = Table(
    "attnres_data",
    metadata,
    Column("fingerprint", String(16), primary_key=True),
    Column("source", Text, nullable=False),
    Column("n_bytes", BigInteger, nullable=False),
    Column("vocab_size", Integer, nullable=False),
    Column("train_tokens", BigInteger, nullable=False),
    Column("val_tokens", BigInteger, nullable=False),
    Column("unigram_loss", Float),  # nats per token; these are null where they are not known
    Column("bigram_loss", Float),
    Column("floor", Float),
    Column("zlib_bits", Float),  # bits per byte of the validation text
    Column("xz_bits", Float),
    Column("split", Text),  # what trains and what validates, in words
    Column("path", Text),  # as the recipe's data.path was typed; null where there is none
    Column("val_path", Text),
)

runs = Table(
    "attnres_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("recipe_digest", ForeignKey("attnres_recipes.digest"), nullable=False),
    Column("variant", Text, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("fingerprint", ForeignKey("attnres_data.fingerprint"), nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("owner", Text),  # host|boot id|process id|process start, while it is running
    Column("attempts", Integer, nullable=False),
    Column("created_at", String(32), nullable=False),  # UTC, ISO 8601
    Column("started_at", String(32)),
    Column("finished_at", String(32)),
    Column("error", Text),
    Column("step", Integer),  # done so far, as its process last said
    Column("heartbeat_at", String(32)),  # when it did
    Column("val_loss", Float),  # nats per token; null until complete, and where it diverged
    Column("initial_loss", Float),
    Column("steps", Integer),
    Column("tokens", BigInteger),
    Column("step_s", Float),
    Column("tokens_per_second", Float),
    Column("train_s", Float),
    Column("peak_bytes", BigInteger),
    Column("n_params", BigInteger),
    Column("flops_per_token", BigInteger),
    Column("device", String(16)),
    Column("device_name", Text),
    Column("precision", String(8)),
    Column("compiled", Boolean),
    Column("threads", Integer),
    Column("engine", String(16)),
    Column("way", Text),  # how ranks shared the run; empty, or null: one device had it
    Column("versions", JSON),  # what it was planned with, then all it was trained with
    Column("weights_sha256", String(64)),  # null where no weights could be written
    Column("code", String(12), nullable=False),  # digest of what it was planned with; or empty
    Column("note", Text),  # people's words about it, as the next
    Column("tags", JSON),  # sorted
    Column("origin", Text),  # the study, and its number there, from which it was merged
    UniqueConstraint(*IDENTITY, name="attnres_one_run"),
)

removed = Table(
    "attnres_removed",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("recipe_digest", ForeignKey("attnres_recipes.digest"), nullable=False),
    Column("variant", Text, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("fingerprint", ForeignKey("attnres_data.fingerprint"), nullable=False),
    Column("code", String(12), nullable=False),
    Column("created_at", String(32), nullable=False),  # these are as they were of the run
    Column("status", String(16), nullable=False),
    Column("val_loss", Float),
    Column("versions", JSON),
    Column("removed_at", String(32), nullable=False),
    Column("reason", Text),
)

curve = Table(
    "attnres_curve",
    metadata,
    Column("run_id", ForeignKey("attnres_runs.id"), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("train_loss", Float),
    Column("val_loss", Float),
)

probes = Table(
    "attnres_probes",
    metadata,
    Column("run_id", ForeignKey("attnres_runs.id"), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("name", String(32), primary_key=True),  # a field of run.Probe
    Column("shape", JSON, nullable=False),  # [L+1] or [L+1, L+1]; [] for text
    Column("data", LargeBinary, nullable=False),  # float32, little-endian, by rows; or UTF-8
)

arm_recipes = Table(
    "attnres_arm_recipes",
    metadata,
    Column("base_digest", ForeignKey("attnres_recipes.digest"), primary_key=True),
    Column("fingerprint", ForeignKey("attnres_data.fingerprint"), primary_key=True),
    Column("variant", Text, primary_key=True),
    Column("matched", String(8), primary_key=True),  # tokens, params, flops or time
    Column("baseline", Text, primary_key=True),  # to which; empty for tokens
    Column("tuned", Boolean, primary_key=True),
    Column("digest", ForeignKey("attnres_recipes.digest"), nullable=False),
    Column("how", JSON, nullable=False),
)

items = Table(
    "attnres_items",
    metadata,
    Column("run_id", ForeignKey("attnres_runs.id"), primary_key=True),
    Column("task", String(200), primary_key=True),
    Column("content", String(12), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("n_items", Integer, nullable=False),
    Column("truncated", Integer, nullable=False),
    Column("metrics", JSON, nullable=False),  # names, in the order of `data`
    Column("data", LargeBinary, nullable=False),  # compressed, see arrays.of_items
    Column("weights_sha256", String(64), nullable=False),
    Column("harness", String(32), nullable=False),
    Column("evaluated_at", String(32), nullable=False),  # UTC, ISO 8601
)

step_ratios = Table(
    "attnres_step_ratios",
    metadata,
    Column("recipe_digest", ForeignKey("attnres_recipes.digest"), primary_key=True),
    Column("variant", Text, primary_key=True),
    Column("baseline", Text, primary_key=True),
    Column("numerics", Text, primary_key=True),
    Column("device_name", Text, primary_key=True),
    Column("n", Integer, nullable=False),  # pairs of steps, timed in turn
    Column("median", Float, nullable=False),  # of the arm's seconds over the baseline's
    Column("low", Float, nullable=False),  # quartiles
    Column("high", Float, nullable=False),
)

until_decided = Table(
    "attnres_until_decided",
    metadata,
    Column("recipe_digest", ForeignKey("attnres_recipes.digest"), primary_key=True),
    Column("fingerprint", ForeignKey("attnres_data.fingerprint"), primary_key=True),
    Column("baseline", Text, primary_key=True),
    Column("most", Integer, nullable=False),  # seeds of an arm
)

asked = Table(
    "attnres_asked",
    metadata,
    Column("recipe_digest", ForeignKey("attnres_recipes.digest"), primary_key=True),
    Column("fingerprint", ForeignKey("attnres_data.fingerprint"), primary_key=True),
    Column("baseline", Text, primary_key=True),
    Column("terms", Text, primary_key=True),
    Column("margin", String(32), primary_key=True),
    Column("asked_at", String(32), nullable=False),  # UTC, ISO 8601
)

evaluated = Table(
    "attnres_evaluated",
    metadata,
    Column("recipe_digest", ForeignKey("attnres_recipes.digest"), primary_key=True),
    Column("fingerprint", ForeignKey("attnres_data.fingerprint"), primary_key=True),
    Column("n_tokens", BigInteger, nullable=False),  # that evaluations predict
    Column("n_bytes", BigInteger, nullable=False),  # of their text, in UTF-8
)

registrations = Table(
    "attnres_registrations",
    metadata,
    Column("recipe_digest", ForeignKey("attnres_recipes.digest"), primary_key=True),
    Column("digest", String(12), nullable=False),
    Column("made_at", String(32), nullable=False),  # UTC, ISO 8601
    Column("document", JSON, nullable=False),
)

gates = Table(
    "attnres_gates",
    metadata,
    Column("run_id", ForeignKey("attnres_runs.id"), primary_key=True),
    Column("name", String(16), primary_key=True),
    Column("passed", Boolean, nullable=False),
    Column("value", Float),  # losses, nats per token
    Column("low", Float),
    Column("high", Float),
)
