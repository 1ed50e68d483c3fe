"""How far a run is, and when its process last said so."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add both. Of earlier runs, those that have ended had come to their last step."""
    op.add_column("attnres_runs", sa.Column("step", sa.Integer))
    op.add_column("attnres_runs", sa.Column("heartbeat_at", sa.String(32)))
    op.execute("UPDATE attnres_runs SET step = steps")
