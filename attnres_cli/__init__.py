"""attnres finds out which residual connection a Transformer should be trained with."""

__version__ = "0.1.0"
