"""Reference lines of the data: the floor of generated tasks, zlib and xz."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add them. They stay null until the data are loaded again."""
    op.add_column("attnres_data", sa.Column("floor", sa.Float))
    op.add_column("attnres_data", sa.Column("zlib_bits", sa.Float))
    op.add_column("attnres_data", sa.Column("xz_bits", sa.Float))
