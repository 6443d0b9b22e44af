"""The benchmark harness behind `einsum-engine bench`, its cases and its recorded results."""

if __name__ != "einsum_engine.bench":
    raise ImportError(
        f"this folder is the package einsum_engine.bench, not {__name__}: install the clone with"
        " 'pip install -e .' and import einsum_engine.bench"
    )
