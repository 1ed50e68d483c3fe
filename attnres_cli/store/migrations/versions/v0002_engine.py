"""The engine of depth mixing that a run was computed by."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the engine. All earlier runs were computed by the list form, compiled or not: it was
    the only one.
    """
    op.add_column("attnres_runs", sa.Column("engine", sa.String(16)))
    op.execute(
        "UPDATE attnres_runs SET engine = 'compile' WHERE status IN ('complete', 'diverged')"
    )
