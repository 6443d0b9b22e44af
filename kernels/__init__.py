"""Kernels: families as data with NumPy references, their registry, generators, thread pool, disk cache, calibration."""

if __name__ != "einsum_engine.kernels":
    raise ImportError(
        f"this folder is the package einsum_engine.kernels, not {__name__}: install the clone with"
        " 'pip install -e .' and import einsum_engine.kernels"
    )
