"""Planners: contraction order, and the layout of every value."""

if __name__ != "einsum_engine.planners":
    raise ImportError(
        f"this folder is the package einsum_engine.planners, not {__name__}: install the clone with"
        " 'pip install -e .' and import einsum_engine.planners"
    )
