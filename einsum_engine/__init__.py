"""A contraction engine: compile an einsum or a tensor network once, call it many times, fast."""

__version__ = "0.1.0"
