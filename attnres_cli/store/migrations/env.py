"""Run our migrations on the connection that engine.py hands over; leave Optuna's tables alone."""

from alembic import context

from attnres_cli.store.tables import PREFIX, VERSION_TABLE, metadata


def _ours(name: str | None, kind: str, _parents: object) -> bool:
    """Whether autogenerate may look at a table."""
    return kind != "table" or (str(name).startswith(PREFIX) and name != VERSION_TABLE)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_name=_ours,
    transactional_ddl=True,  # as engine.py begins it: all migrations are one transaction
)
with context.begin_transaction():
    context.run_migrations()
