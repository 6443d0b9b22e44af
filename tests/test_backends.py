"""The module as ``backend="einsum_engine"`` of opt_einsum, cotengra and quimb: the real packages, against NumPy."""

import importlib
import random

import autoray
import cotengra as ctg
import numpy as np
import opt_einsum as oe
import pytest

import einsum_engine as engine

qtn = pytest.importorskip("quimb.tensor")
BACKEND = "einsum_engine"
RING = "abc,cde,efg,gha->bdfh"


@pytest.fixture
def calls(monkeypatch):
    """Counts of the calls that reach the module, by name."""
    counts = dict.fromkeys(("einsum", "tensordot", "transpose"), 0)
    originals = {name: getattr(engine, name) for name in counts}

    def counting(name):
        def call(*args, **kwargs):
            counts[name] += 1
            return originals[name](*args, **kwargs)

        return call

    for name in counts:
        monkeypatch.setattr(engine, name, counting(name))
    forget_backend(monkeypatch)
    return counts


def forget_backend(monkeypatch):
    """opt_einsum and autoray keep the functions that they looked up: let them look again, then and afterwards."""
    from opt_einsum.backends import dispatch

    kept = {key: fn for key, fn in dispatch._cached_funcs.items() if key[1] != BACKEND}
    monkeypatch.setattr(dispatch, "_cached_funcs", kept)
    monkeypatch.setattr(autoray.autoray, "_NAMESPACE_CACHE", {})
    for table in ("_FUNCS",):
        found = getattr(autoray.autoray, table)
        for key in [key for key in found if key[0] == BACKEND]:
            monkeypatch.delitem(found, key)


@pytest.fixture(autouse=True)
def no_backend_left():
    yield
    qtn.set_contract_backend(None)
    qtn.set_tensor_linop_backend(None)


def arrays_of(expression, dtype="float64", seed=0, size=3):
    rng = np.random.default_rng(seed)
    terms = expression.partition("->")[0].split(",")
    arrays = [rng.standard_normal([size] * len(term)) for term in terms]
    if np.dtype(dtype).kind == "c":
        arrays = [array + 1j * rng.standard_normal(array.shape) for array in arrays]
    return [array.astype(dtype) for array in arrays]


def random_expression(seed, count=7):
    """A connected network of ``count`` operands with hyper-indices, an output and sizes of 1 to 4."""
    chooser = random.Random(seed)
    inputs, output, shapes, _ = ctg.utils.rand_equation(
        count, 3, n_out=2, n_hyper_in=1, n_hyper_out=1, d_min=1, d_max=4, seed=chooser.randrange(10**6)
    )
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    return ",".join("".join(term) for term in inputs) + "->" + "".join(output), arrays


SEEDS = range(12)


# ---- opt_einsum --------------------------------------------------------------------------------------------------

EXPRESSIONS = [
    *(RING, "ab,bc->ac", "bjk,bij->bik", "ab,cb->ca", "ab,ab->", "ab,cd->dacb", "a,b,c->cba", "ij,jk,kl,li->"),
    *("abc->cab", "aab->b", "ab->", "ab,bc,cd,da->bd", "abcd,cd,ab->", "ijk,ljm,knm->iln", "ab,ac,ad->bcd"),
    "αβ,βγ->αγ",
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_opt_einsum_contract(expression, dtype):
    arrays = arrays_of(expression, dtype)
    expected = oe.contract(expression, *arrays)
    bound = 100 * np.finfo(dtype).eps * oe.contract(expression, *map(np.abs, arrays))
    for option in ({}, {"use_blas": False}, {"optimize": "greedy"}):
        found = oe.contract(expression, *arrays, backend=BACKEND, **option)
        assert np.all(np.abs(found - expected) <= bound), option


def test_opt_einsum_reaches_the_module(calls):
    arrays = arrays_of(RING)
    oe.contract(RING, *arrays, backend=BACKEND)
    assert calls["tensordot"] >= 2
    oe.contract("ab,ab,bc->ac", *arrays_of("ab,ab,bc->ac"), backend=BACKEND)
    assert calls["einsum"] >= 1


def test_opt_einsum_expression_and_constants():
    arrays = arrays_of(RING)
    expected = oe.contract(RING, *arrays)
    expression = oe.contract_expression(RING, *[array.shape for array in arrays])
    assert np.allclose(expression(*arrays), expected)
    assert np.allclose(expression(*arrays, backend=BACKEND), expected)
    out = np.empty_like(expected)
    assert expression(*arrays, out=out, backend=BACKEND) is out and np.allclose(out, expected)
    expression = oe.contract_expression(RING, arrays[0], arrays[1], *[a.shape for a in arrays[2:]], constants=[0, 1])
    for _ in range(2):
        assert np.allclose(expression(*arrays[2:], backend=BACKEND), expected)


def test_opt_einsum_passes_options_on():
    a, b = arrays_of("abc,cba->")
    result = oe.contract("abc,cba->", a, b, backend=BACKEND, use_blas=False, dtype="complex128")
    assert result.dtype == np.complex128
    with oe.shared_intermediates():
        assert np.allclose(oe.contract("abc,cba->", a, b, backend=BACKEND), oe.contract("abc,cba->", a, b))


@pytest.mark.parametrize("seed", SEEDS)
def test_opt_einsum_random_networks(seed):
    expression, arrays = random_expression(seed)
    assert np.allclose(oe.contract(expression, *arrays, backend=BACKEND), oe.contract(expression, *arrays))


# ---- cotengra ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_cotengra_random_networks(seed):
    expression, arrays = random_expression(seed)
    expected = oe.contract(expression, *arrays)
    assert np.allclose(ctg.einsum(expression, *arrays), expected)
    assert np.allclose(ctg.einsum(expression, *arrays, backend=BACKEND), expected)
    mantissa, exponent = ctg.einsum(expression, *arrays, backend=BACKEND, strip_exponent=True)
    assert np.allclose(mantissa * 10.0**exponent, expected)


def test_cotengra_reaches_the_module(calls):
    arrays = arrays_of(RING)
    ctg.einsum(RING, *arrays)
    before = dict(calls)
    assert before == dict.fromkeys(calls, 0)
    ctg.einsum(RING, *arrays, backend=BACKEND)
    assert calls["tensordot"] >= 2
    ctg.einsum("abc->cab", arrays[0], backend=BACKEND)
    assert calls["transpose"] + calls["einsum"] >= 1
    ctg.einsum("ab,ab,bc->ac", *arrays_of("ab,ab,bc->ac"), backend=BACKEND)
    assert calls["einsum"] >= 1


@pytest.mark.parametrize("expression", ["abc->cab", "abc->ac", "aab->b", "ab->ab", "a->", "aa->"])
def test_cotengra_single_operands(expression):
    (a,) = arrays_of(expression)
    assert np.allclose(ctg.einsum(expression, a, backend=BACKEND), np.einsum(expression, a))


@pytest.mark.parametrize("seed", SEEDS)
def test_cotengra_sliced_trees(seed):
    expression, arrays = random_expression(seed)
    expected = oe.contract(expression, *arrays)
    inputs, output = ctg.utils.eq_to_inputs_output(expression)
    sizes = {index: size for term, array in zip(inputs, arrays) for index, size in zip(term, array.shape)}
    tree = ctg.array_contract_tree(inputs, output, sizes)
    assert np.allclose(tree.contract(arrays, backend=BACKEND), expected)
    sliced = tree.slice(target_slices=3)
    assert np.allclose(sliced.contract(arrays, backend=BACKEND), expected)
    mantissa, exponent = sliced.contract(arrays, backend=BACKEND, strip_exponent=True)
    assert np.allclose(mantissa * 10.0**exponent, expected)
    if output:
        tree.remove_ind_(output[0])
        assert np.allclose(tree.contract(arrays, backend=BACKEND), expected)
        parts = [tree.contract_slice(arrays, number, backend=BACKEND) for number in range(tree.nslices)]
        assert np.allclose(tree.gather_slices(parts), expected)


def test_cotengra_constants():
    arrays = arrays_of(RING)
    expected = oe.contract(RING, *arrays)
    shapes = [array.shape for array in arrays]
    expression = ctg.einsum_expression(RING, arrays[0], *shapes[1:], constants=[0])
    assert np.allclose(expression(*arrays[1:], backend=BACKEND), expected)
    inputs, output = ctg.utils.eq_to_inputs_output(RING)
    expression = ctg.array_contract_expression(inputs, output, shapes=shapes, constants=dict(enumerate(arrays[:2])))
    assert np.allclose(expression(*arrays[2:], backend=BACKEND), expected)


def test_cotengra_other_entries():
    a, b = arrays_of("abc,cde")
    expected = np.tensordot(a, b, ((2,), (0,)))
    assert np.allclose(ctg.ncon([a, b], [(-1, -2, 1), (1, -3, -4)], backend=BACKEND), expected)
    assert np.allclose(ctg.array_contract([a, b], [(0, 1, 2), (2, 3, 4)], (0, 1, 3, 4), backend=BACKEND), expected)
    # The name cotengra.contract is also a function's.
    default_implementation = importlib.import_module("cotengra.contract").default_implementation
    with default_implementation((engine.einsum, engine.tensordot)):
        assert np.allclose(ctg.einsum("ijk,klm->ijlm", a, b), expected)


def test_underflow_is_avoided_by_strip_exponent():
    count = 40
    arrays = [1e-20 * np.ones((2, 2)) for _ in range(count)]
    expression = ",".join(oe.get_symbol(n) + oe.get_symbol((n + 1) % count) for n in range(count)) + "->"
    mantissa, exponent = ctg.einsum(expression, *arrays, backend=BACKEND, strip_exponent=True, optimize="greedy")
    assert np.isclose(np.log10(abs(mantissa)) + exponent, -20 * count + count * np.log10(2))


# ---- quimb -------------------------------------------------------------------------------------------------------


def test_quimb_mps_norm(calls):
    mps = qtn.MPS_rand_state(12, 6, dtype="complex128", seed=1)
    expected = mps.H @ mps
    before = sum(calls.values())
    assert before == 0
    qtn.set_contract_backend(BACKEND)
    assert np.isclose(mps.H @ mps, expected) and sum(calls.values()) > 10
    assert np.isclose(mps.norm(), abs(expected) ** 0.5)
    mantissa, exponent = (mps.H & mps).contract(strip_exponent=True)
    assert np.isclose(mantissa * 10**exponent, expected)


def test_quimb_random_tensor_network():
    network = qtn.TN_rand_reg(10, 3, 2, seed=2)
    expected = network.contract(optimize="greedy")
    with qtn.contract_backend(BACKEND):
        assert np.isclose(network.contract(optimize="greedy"), expected)
        assert np.isclose(network.contract(optimize="greedy", backend=BACKEND), expected)
        left, right = qtn.rand_tensor((2, 3, 4), "abc"), qtn.rand_tensor((4, 3, 5), "cbd")
        assert np.allclose((left @ right).data, np.tensordot(left.data, right.data, ((1, 2), (1, 0))))
        assert np.isclose(left @ left, np.tensordot(left.data, left.data, 3))


def circuit():
    circ = qtn.Circuit(6)
    rng = random.Random(3)
    for layer in range(4):
        for qubit in range(6):
            circ.apply_gate("U3", *(rng.uniform(0, 3) for _ in range(3)), qubit)
        for qubit in range(layer % 2, 5, 2):
            circ.apply_gate("CZ", qubit, qubit + 1)
    return circ


def test_quimb_circuit():
    import quimb as qu

    circ = circuit()
    pair = qu.pauli("Z") & qu.pauli("Z")
    # Not the default search, which forks.
    greedy = {"optimize": "greedy"}
    amplitude, local = circ.amplitude("010110", **greedy), circ.local_expectation(pair, (1, 4), **greedy)
    dense = circ.to_dense(**greedy)
    qtn.set_contract_backend(BACKEND)
    circ = circuit()
    assert np.isclose(circ.amplitude("010110", **greedy), amplitude)
    assert np.isclose(circ.local_expectation(pair, (1, 4), **greedy), local)
    assert np.allclose(circ.to_dense(**greedy), dense)
    assert len(list(circ.sample(2, seed=1, **greedy))) == 2


def test_quimb_dmrg_and_boundary():
    qtn.set_contract_backend(BACKEND)
    qtn.set_tensor_linop_backend(BACKEND)
    dmrg = qtn.DMRG2(qtn.MPO_ham_heis(8), bond_dims=[4, 8, 16])
    dmrg.solve(tol=1e-6, verbosity=0)
    assert np.isclose(dmrg.energy, -3.374932598687, rtol=1e-5)
    ising = qtn.TN2D_classical_ising_partition_function(4, 4, 0.4)
    exact = ising.contract(backend="numpy")
    assert np.isclose(ising.contract_boundary(max_bond=8), exact, rtol=1e-6)


# ---- arrays of other libraries through these --------------------------------------------------------------------


def test_torch_tensors_stay_torch_tensors():
    torch = pytest.importorskip("torch")
    arrays = [torch.from_numpy(array) for array in arrays_of(RING)]
    for result in (
        oe.contract(RING, *arrays, backend=BACKEND),
        ctg.einsum(RING, *arrays, backend=BACKEND),
        ctg.einsum(RING, *arrays, backend=BACKEND, strip_exponent=True)[0],
    ):
        assert isinstance(result, torch.Tensor)
    assert torch.allclose(ctg.einsum(RING, *arrays, backend=BACKEND), torch.einsum(RING, *arrays))


def test_object_arrays():
    arrays = [array.astype(object) for array in arrays_of("ab,bc,cd->ad")]
    result = oe.contract("ab,bc,cd->ad", *arrays, backend=BACKEND)
    expected = (arrays[0] @ arrays[1] @ arrays[2]).astype(float)
    assert result.dtype == object and np.allclose(result.astype(float), expected)
