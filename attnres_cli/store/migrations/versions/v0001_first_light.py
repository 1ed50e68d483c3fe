"""Recipes, data, runs and their curves."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "attnres_recipes",
        sa.Column("digest", sa.String(12), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("resolved", sa.JSON, nullable=False),
    )
    op.create_table(
        "attnres_data",
        sa.Column("fingerprint", sa.String(16), primary_key=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("n_bytes", sa.BigInteger, nullable=False),
        sa.Column("vocab_size", sa.Integer, nullable=False),
        sa.Column("train_tokens", sa.BigInteger, nullable=False),
        sa.Column("val_tokens", sa.BigInteger, nullable=False),
        sa.Column("unigram_entropy", sa.Float, nullable=False),
        sa.Column("bigram_entropy", sa.Float, nullable=False),
    )
    op.create_table(
        "attnres_runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "recipe_digest", sa.String(12), sa.ForeignKey("attnres_recipes.digest"), nullable=False
        ),
        sa.Column("variant", sa.Text, nullable=False),
        sa.Column("seed", sa.Integer, nullable=False),
        sa.Column(
            "fingerprint", sa.String(16), sa.ForeignKey("attnres_data.fingerprint"), nullable=False
        ),
        sa.Column("status", sa.String(16), nullable=False, index=True),
        sa.Column("owner", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("started_at", sa.String(32)),
        sa.Column("finished_at", sa.String(32)),
        sa.Column("error", sa.Text),
        sa.Column("val_loss", sa.Float),
        sa.Column("initial_loss", sa.Float),
        sa.Column("steps", sa.Integer),
        sa.Column("tokens", sa.BigInteger),
        sa.Column("step_s", sa.Float),
        sa.Column("tokens_per_second", sa.Float),
        sa.Column("train_s", sa.Float),
        sa.Column("peak_bytes", sa.BigInteger),
        sa.Column("n_params", sa.BigInteger),
        sa.Column("flops_per_token", sa.BigInteger),
        sa.Column("device", sa.String(16)),
        sa.Column("device_name", sa.Text),
        sa.Column("precision", sa.String(8)),
        sa.Column("compiled", sa.Boolean),
        sa.Column("threads", sa.Integer),
        sa.Column("versions", sa.JSON),
        sa.UniqueConstraint(
            "recipe_digest", "variant", "seed", "fingerprint", name="attnres_one_run"
        ),
    )
    op.create_table(
        "attnres_curve",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("attnres_runs.id"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("train_loss", sa.Float),
        sa.Column("val_loss", sa.Float),
    )
