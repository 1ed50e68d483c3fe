"""Preregistrations: what a comparison will be, fixed before its first run."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the table. Earlier studies have none."""
    op.create_table(
        "attnres_registrations",
        sa.Column(
            "recipe_digest",
            sa.String(12),
            sa.ForeignKey("attnres_recipes.digest"),
            primary_key=True,
        ),
        sa.Column("digest", sa.String(12), nullable=False),
        sa.Column("made_at", sa.String(32), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
