"""Recipes of single arms, tuned or matched; gates of ended runs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make both tables. Earlier runs have no gates: they are computed when asked for."""
    op.create_table(
        "attnres_arm_recipes",
        sa.Column(
            "base_digest", sa.String(12), sa.ForeignKey("attnres_recipes.digest"), primary_key=True
        ),
        sa.Column(
            "fingerprint",
            sa.String(16),
            sa.ForeignKey("attnres_data.fingerprint"),
            primary_key=True,
        ),
        sa.Column("variant", sa.Text, primary_key=True),
        sa.Column("matched", sa.String(8), primary_key=True),
        sa.Column("baseline", sa.Text, primary_key=True),
        sa.Column("tuned", sa.Boolean, primary_key=True),
        sa.Column("digest", sa.String(12), sa.ForeignKey("attnres_recipes.digest"), nullable=False),
        sa.Column("how", sa.JSON, nullable=False),
    )
    op.create_table(
        "attnres_gates",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("attnres_runs.id"), primary_key=True),
        sa.Column("name", sa.String(16), primary_key=True),
        sa.Column("passed", sa.Boolean, nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("low", sa.Float),
        sa.Column("high", sa.Float),
    )
