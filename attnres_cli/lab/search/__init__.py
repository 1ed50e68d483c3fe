"""Search: which shape of a model a budget should have, for each residual design."""

from attnres_cli.lab.search.studies import read

__all__ = ["read"]
