"""What was measured inside models, as arrays. Runs that ended before have none."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "attnres_probes",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("attnres_runs.id"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("shape", sa.JSON, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
