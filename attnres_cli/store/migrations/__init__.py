"""Alembic's folder: env.py runs a migration, versions/ holds one file per schema."""
