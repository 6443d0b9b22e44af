"""Jitted functions held against NumPy."""

import numpy as np

import einsum_engine as engine


def assert_like_numpy(function, *arrays, calls=3, rtol=1e-6):
    """Results, written arguments and types are NumPy's, in each of several calls; the program has a plan."""
    jitted = engine.jit(function)
    assert jitted.plan(*arrays) is not None, jitted.explain()
    for _ in range(calls):
        eager, given = [copy_of(x) for x in arrays], [copy_of(x) for x in arrays]
        with np.errstate(all="ignore"):
            wanted, found = function(*eager), jitted(*given)
        pairs = list(zip(wanted, found, strict=True)) if isinstance(wanted, tuple) else [(wanted, found)]
        for one, two in [*pairs, *zip(eager, given)]:
            assert type(one) is type(two) and one.dtype == two.dtype and one.shape == two.shape
            np.testing.assert_allclose(two, one, rtol=rtol, atol=rtol)
    return jitted


def copy_of(array):
    """The same elements under the same strides."""
    if not array.size or isinstance(array, np.generic):
        return array.copy()
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.zeros(high - low, np.uint8)
    at = array.__array_interface__["data"][0] - low
    made = np.ndarray(array.shape, array.dtype, memory.data, at, array.strides)
    if array.strides and 0 in array.strides:
        made.flags.writeable = False
        made = np.broadcast_to(array[tuple(slice(0, 1 if s == 0 else None) for s in array.strides)].copy(), array.shape)
    else:
        made[...] = array
    return made
