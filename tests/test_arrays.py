"""Operands of other libraries: shared memory, the way back, and refusals that say why."""

import array as stdlib_array
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from einsum_engine.arrays import adapt, adapt_all, adapt_out
from einsum_engine.errors import EngineTypeError, EngineValueError


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


@pytest.fixture
def bfloat16():
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)


def refused(x, error=EngineTypeError):
    with pytest.raises(error) as caught:
        adapt(x, 1, "ij,jk->ik")
    message = str(caught.value)
    assert message.startswith("operand 1 of 'ij,jk->ik' ")
    return message


def address(array):
    return array.__array_interface__["data"][0]


# ---- NumPy and what NumPy reads -------------------------------------------------------------------------------


def test_plain_arrays_pass_as_they_are():
    a, b = np.ones((2, 3)), np.ones(4, ">f4")[::-1]
    b.flags.writeable = False
    assert adapt(a) == (a, False, None, "numpy")
    (first, second), conj, wrap = adapt_all([a, b])
    assert first is a and second is b and conj == () and wrap is None


class Wrapped:
    """Speaks only ``__array__``."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize(
    "x",
    [
        [[1, 2], [3, 4]],
        (1.0, 2.5),
        3,
        2.5,
        1j,
        True,
        np.float32(4),
        np.arange(4.0).reshape(2, 2).view(np.matrix),
        np.ma.array([1.0, 2, 3], mask=[0, 1, 0]),
        np.rec.array(np.ones(3)),
        memoryview(b"abc"),
        stdlib_array.array("d", [1, 2]),
        Wrapped(np.arange(3.0)),
        Fraction(1, 2),
        Decimal("0.5"),
        [Fraction(1, 2)] * 2,
        10**30,
        [],
    ],
)
def test_read_as_numpy_einsum_reads_it(x):
    found = adapt(x)
    expected = np.einsum("...->...", x)  # a view of what NumPy made of it
    assert type(found.array) is np.ndarray and found.wrap is None and not found.conj
    assert found.array.shape == np.shape(expected)
    assert found.array.dtype == np.asarray(expected).dtype
    assert np.all(found.array == expected)


def test_subclasses_and_array_interface_share_memory():
    matrix, plain = np.ones((2, 2)).view(np.matrix), np.arange(3.0)
    assert address(adapt(matrix).array) == address(matrix)
    assert address(adapt(Wrapped(plain)).array) == address(plain)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([[1, 2], [3]], EngineValueError, "cannot be read as an array: setting an array element with a sequence"),
        (None, EngineTypeError, "is a builtins.NoneType, which is no array and has no __array__ or __dlpack__"),
        (object(), EngineTypeError, "is a builtins.object, which is no array"),
        ({1, 2}, EngineTypeError, "is a builtins.set, which is no array"),
        (print, EngineTypeError, "which is no array"),
    ],
)
def test_what_is_no_array(x, error, message):
    assert message in refused(x, error)


class Device:
    """Speaks DLPack, from the memory of some device."""

    def __init__(self, number):
        self.number = number

    def __dlpack_device__(self):
        return (self.number, 0)

    def __dlpack__(self, **options):
        raise AssertionError("must not be read")


@pytest.mark.parametrize(("number", "name"), [(2, "CUDA"), (10, "ROCm"), (8, "Metal"), (99, "DLPack type 99")])
def test_device_memory_is_refused_by_name(number, name):
    assert f"is a {__name__}.Device on a {name} device: only CPU memory can be read" in refused(Device(number))


def test_cuda_array_interface_is_refused():
    class OnGpu(Wrapped):
        __cuda_array_interface__ = {}

    assert "on a CUDA device" in refused(OnGpu(np.ones(3)))


class Standard:
    """An array of a library of the array API standard, on the CPU."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __array_namespace__(self, api_version=None):
        return Namespace


class Namespace:
    asarray = staticmethod(Standard)


def test_array_api_arrays_share_memory_and_come_back():
    x = Standard(np.arange(6.0).reshape(2, 3)[:, ::-1])
    found = adapt(x)
    assert address(found.array) == address(x.array) and found.array.strides == x.array.strides
    back = adapt_all([np.ones(2), x]).wrap(np.arange(3))
    assert type(back) is Standard and list(back.array) == [0, 1, 2]


def test_dlpack_that_numpy_cannot_read_falls_back_to_array():
    class Stubborn(Wrapped):
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            raise BufferError("no such dtype")

    assert list(adapt(Stubborn(np.arange(3))).array) == [0, 1, 2]


def test_scipy_sparse_is_not_densified():
    sparse = pytest.importorskip("scipy.sparse")
    for x in (sparse.eye(3).tocsr(), sparse.coo_array(np.eye(3))):
        assert "sparse operands are not densified, convert it to an array first" in refused(x)


def test_pydata_sparse_is_not_densified():
    kind = type("COO", (), {"__module__": "sparse.numba_backend._coo.core", "__array__": lambda self: np.eye(3)})
    assert "is a sparse.numba_backend._coo.core.COO: sparse operands are not densified" in refused(kind())


# ---- out= -----------------------------------------------------------------------------------------------------


def test_out_is_written_in_place():
    out = np.zeros((2, 3))
    assert adapt_out(out) is out
    assert address(adapt_out(out.view(np.matrix))) == address(out)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ([1, 2], EngineTypeError, "out= of 'i->i' is a list: it must be an array that can be written into"),
        (Wrapped(np.ones(2)), EngineTypeError, "out= of 'i->i' is a Wrapped: it must be an array"),
        (np.broadcast_to(1.0, (2,)), EngineValueError, "out= of 'i->i' is read-only"),
    ],
)
def test_out_refusals(out, error, message):
    with pytest.raises(error) as caught:
        adapt_out(out, "i->i")
    assert message in str(caught.value)


# ---- torch ----------------------------------------------------------------------------------------------------

TORCH_DTYPES = "float32 float64 complex64 complex128 float16 int8 int16 int32 int64 uint8 bool".split()


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_torch_round_trip_shares_memory(torch, name):
    base = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name))
    for x in (base, base.permute(2, 0, 1), base[:, ::2, 1:], base[0, 0, 0], base[:0], base[:, :1].expand(2, 5, 4)):
        found = adapt(x)
        assert found.array.dtype == np.dtype(name) and found.array.shape == tuple(x.shape)
        assert x.numel() == 0 or address(found.array) == x.data_ptr()
        back = found.wrap(found.array)
        assert type(back) is torch.Tensor and back.dtype == x.dtype and torch.equal(back, x)


def test_torch_bfloat16_round_trip(torch, bfloat16):
    x = torch.randn(4, 6).to(torch.bfloat16).T[1::2]
    found = adapt(x)
    assert found.array.dtype == bfloat16 and address(found.array) == x.data_ptr()
    np.testing.assert_array_equal(found.array.astype("f4"), x.float().numpy())
    back = found.wrap(found.array.copy())
    assert back.dtype == torch.bfloat16 and torch.equal(back, x)
    assert found.wrap(found.array[0, 0]).shape == ()


def test_torch_lazy_conjugate_is_a_flag_on_the_same_memory(torch):
    x = torch.randn(3, 4, dtype=torch.complex64)
    found = adapt(x.conj().T)
    assert found.conj and address(found.array) == x.data_ptr()
    np.testing.assert_array_equal(found.array.conj(), x.numpy().conj().T)
    assert adapt_all([x, x.conj(), np.ones(2), x.mH]).conj == (1, 3)


def test_torch_lazy_negative_is_resolved(torch):
    x = torch.randn(3, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    np.testing.assert_array_equal(adapt(x).array, x.resolve_neg().numpy())


def test_torch_results_of_any_strides_and_scalars(torch, recwarn):
    wrap = adapt(torch.ones(2)).wrap
    frozen = np.broadcast_to(1.0, (3,))
    for result in (np.arange(6.0)[::-2], frozen, np.float32(2), np.zeros((0, 3)), np.ones((2, 3)).T):
        back = wrap(result)
        assert type(back) is torch.Tensor and np.array_equal(back.numpy(), result)
    assert not recwarn.list
    fresh = np.zeros(3)
    assert wrap(fresh).data_ptr() == address(fresh)
    for dtype in (object, np.longdouble):
        with pytest.raises(EngineTypeError, match="the result is of dtype .*, which torch does not have"):
            wrap(np.ones(2, dtype))


def test_torch_refusals(torch, recwarn):
    assert "is a torch.Tensor that requires grad, which would be lost: pass x.detach()" in refused(
        torch.ones(2, requires_grad=True)
    )
    assert "requires grad" in refused(torch.nn.Parameter(torch.ones(2)))
    assert "on device meta: only CPU memory can be read" in refused(torch.ones(2, device="meta"))
    for sparse in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
        assert "sparse operands are not densified, pass x.to_dense()" in refused(sparse)
    assert "torch.float8_e4m3fn whose memory cannot be read" in refused(torch.ones(2).to(torch.float8_e4m3fn))


def test_torch_without_values_is_refused(torch):
    seen = []
    torch.func.vmap(lambda x: seen.append(refused(x)) or x)(torch.ones(2, 3))
    torch.func.grad(lambda x: seen.append(refused(x)) or x.sum())(torch.ones(3))
    assert "whose memory cannot be read" in seen[0] and "requires grad" in seen[1]


def test_torch_detached_and_frozen_parameters_pass(torch):
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert address(adapt(frozen).array) == frozen.data_ptr()
    assert adapt(torch.ones(2, requires_grad=True).detach()).array.shape == (2,)


def test_torch_out(torch):
    out = torch.zeros(2, 3)
    adapt_out(out.T)[2, 1] = 5
    assert out[1, 2] == 5
    half = torch.zeros(2, dtype=torch.complex64)
    for lazy in (half.conj(), half.conj().imag):
        with pytest.raises(EngineTypeError, match="out= is a lazily conjugated or negated torch.Tensor"):
            adapt_out(lazy)
    with pytest.raises(EngineTypeError, match="out= of 'i' is a torch.Tensor that requires grad"):
        adapt_out(torch.zeros(2, requires_grad=True), "i")


# ---- JAX ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", "float32 complex64 float16 bfloat16 int8 int32 uint8 bool".split())
def test_jax_round_trip_shares_memory(jax, name):
    x = jax.numpy.arange(64).reshape(8, 8).astype(name)
    found = adapt(x)
    assert found.array.dtype.name == name and not found.array.flags.writeable
    assert address(found.array) == x.unsafe_buffer_pointer()
    back = found.wrap(found.array.copy())
    assert isinstance(back, jax.Array) and back.dtype == x.dtype and (back == x).all()
    assert found.wrap(found.array[0, 0]).shape == ()


def test_jax_results_stay_uncommitted_like_their_operand(jax):
    device = jax.devices("cpu")[0]
    assert not adapt(jax.numpy.ones(2)).wrap(np.ones(2)).committed
    assert adapt(jax.device_put(jax.numpy.ones(2), device)).wrap(np.ones(2)).devices() == {device}


def test_jax_refusals(jax):
    seen = []

    def called_in(x):
        seen.append(refused(x))
        return x

    x = jax.numpy.ones((2, 2))
    jax.jit(called_in)(x)
    jax.vmap(called_in)(x)
    jax.grad(lambda x: called_in(x).sum())(x)
    assert all("is a jax tracer (" in message and "jax.pure_callback" in message for message in seen) and len(seen) == 3
    assert "is a jax.Array that cannot be read" in refused(jax.random.key(0))
    sparse = pytest.importorskip("jax.experimental.sparse")
    assert "sparse operands are not densified" in refused(sparse.BCOO.fromdense(x))
    with pytest.raises(EngineTypeError, match=r"out= is a \w+ \(jax arrays are immutable\)"):
        adapt_out(x)
    for dtype in (object, np.longdouble):
        with pytest.raises(EngineTypeError, match="the result is of dtype .*, which jax does not have"):
            adapt(x).wrap(np.ones(2, dtype))
    gone = jax.numpy.ones(2)
    gone.delete()
    assert "is a jax.Array that cannot be read" in refused(gone)


# ---- several libraries ----------------------------------------------------------------------------------------


def test_one_library_besides_numpy_wins(torch):
    wrap = adapt_all([np.ones(2), torch.ones(2), [1, 2], 2.0]).wrap
    assert type(wrap(np.ones(2))) is torch.Tensor


def test_jax_beside_numpy_gives_jax(jax):
    assert isinstance(adapt_all([np.ones(2), jax.numpy.ones(2)]).wrap(np.ones(2)), jax.Array)


def test_two_libraries_are_refused(torch, jax):
    with pytest.raises(EngineTypeError) as caught:
        adapt_all([np.ones(2), jax.numpy.ones(2), torch.ones(2)], "i,i,i")
    assert "operand 2 of 'i,i,i' is an array of torch, operand 1 one of jax: convert one" in str(caught.value)


def test_other_libraries_are_never_imported():
    code = (
        "import sys; from einsum_engine.arrays import adapt, adapt_all; adapt_all([[1.0], 2]); "
        "assert not {'torch', 'jax', 'scipy', 'ml_dtypes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
