"""The functions of `program_cases` in NumPy, as ours traces them and as NumPy runs them; and their arguments.

Arguments that a function writes stay bounded and far from subnormal however often it is called with them, so a timed
call starts from what the call before left.
"""

from __future__ import annotations

import math
import zlib
from functools import partial
from typing import Any, Callable

import numpy as np

from .. import while_loop
from . import program_chains
from .cases import REDUCTIONS
from .program_cases import ProgramCase

Arrays = tuple[np.ndarray, ...]

# -- views ------------------------------------------------------------------------------------------------------------


def view_example(a: np.ndarray) -> np.ndarray:
    """The RFC's example: a row is written between two reads of the whole."""
    b, c = a[1, :], a[2, :]
    d = b + c
    c += 2
    return a + d


def offset2bbox(source: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Boxes (top, left, bottom, right), (n, 4), moved and scaled by offsets (dy, dx, dh, dw) of c classes, (n, 4 c)."""
    height, width = source[:, 2] - source[:, 0], source[:, 3] - source[:, 1]
    centre_y, centre_x = source[:, 0] + 0.5 * height, source[:, 1] + 0.5 * width
    y = offset[:, 0::4] * height[:, None] + centre_y[:, None]
    x = offset[:, 1::4] * width[:, None] + centre_x[:, None]
    h, w = np.exp(offset[:, 2::4]) * height[:, None], np.exp(offset[:, 3::4]) * width[:, None]
    boxes = np.zeros_like(offset)
    boxes[:, 0::4] = y - 0.5 * h
    boxes[:, 1::4] = x - 0.5 * w
    boxes[:, 2::4] = y + 0.5 * h
    boxes[:, 3::4] = x + 0.5 * w
    return boxes


def yolov3_boxes(prediction: np.ndarray, grid: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """A head's output (b, a (5 + classes), g, g) as boxes, objectness and scores, (b, a g g, 5 + classes)."""
    batch, _, size, _ = prediction.shape
    count = anchors.shape[0]
    found = prediction.reshape(batch, count, -1, size, size).transpose(0, 1, 3, 4, 2).copy()
    found[..., :2] = (1 / (1 + np.exp(-found[..., :2])) + grid) * 32
    found[..., 2:4] = np.exp(found[..., 2:4]) * anchors[:, None, None, :]
    found[..., 4:] = 1 / (1 + np.exp(-found[..., 4:]))
    return found.reshape(batch, count * size * size, -1)


def ssd_anchors(location: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Offsets (b, n, 4) at anchors (centre, size), (n, 4), as corners."""
    boxes = np.concatenate(
        (
            prior[:, :2] + location[..., :2] * 0.1 * prior[:, 2:],
            prior[:, 2:] * np.exp(location[..., 2:] * 0.2),
        ),
        axis=-1,
    )
    boxes[..., :2] -= boxes[..., 2:] / 2
    boxes[..., 2:] += boxes[..., :2]
    return boxes


def fcos_centres(centres: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances (left, top, right, bottom), (b, n, 4), from centres (n, 2): boxes cut to 1333 x 800, and centreness."""
    boxes = np.empty_like(distance)
    boxes[..., :2] = centres - distance[..., :2]
    boxes[..., 2:] = centres + distance[..., 2:]
    boxes[..., 0::2] = np.clip(boxes[..., 0::2], 0, 1332)
    boxes[..., 1::2] = np.clip(boxes[..., 1::2], 0, 799)
    across, along = distance[..., 0::2], distance[..., 1::2]
    shares = (across.min(axis=-1) / across.max(axis=-1)) * (along.min(axis=-1) / along.max(axis=-1))
    return boxes, np.sqrt(shares)


def normalisation(image: np.ndarray, boxes: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """An image (h, w, 3) is normalised in place; its boxes (n, 4) in units of its size are returned."""
    image -= mean
    image /= deviation
    scaled = boxes.copy()
    scaled[:, 0::2] /= image.shape[1]
    scaled[:, 1::2] /= image.shape[0]
    return scaled


def mask_crop(masks: np.ndarray, boxes: np.ndarray) -> None:
    """Masks (h, w, n) are zero outside their boxes (n, 4), whose corners may be in any order."""
    height, width, _ = masks.shape
    left = np.maximum(np.minimum(boxes[:, 0], boxes[:, 2]) * width - 1, 0)
    right = np.minimum(np.maximum(boxes[:, 0], boxes[:, 2]) * width + 1, width)
    top = np.maximum(np.minimum(boxes[:, 1], boxes[:, 3]) * height - 1, 0)
    bottom = np.minimum(np.maximum(boxes[:, 1], boxes[:, 3]) * height + 1, height)
    columns = np.arange(width, dtype=masks.dtype)[None, :, None]
    rows = np.arange(height, dtype=masks.dtype)[:, None, None]
    masks *= (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)


def lstm_cell(
    x: np.ndarray, hidden: np.ndarray, cell: np.ndarray, from_x: np.ndarray, from_hidden: np.ndarray, bias: np.ndarray
) -> None:
    """Hidden and cell state (b, h) are written; gates are (input, forget, output, candidate), (b, 4 h)."""
    size = hidden.shape[1]
    gates = x @ from_x + hidden @ from_hidden + bias
    gates[:, : 3 * size] = 1 / (1 + np.exp(-gates[:, : 3 * size]))
    candidate = gates[:, 3 * size :]
    candidate[...] = np.tanh(candidate)
    cell *= gates[:, size : 2 * size]
    cell += gates[:, :size] * candidate
    hidden[...] = gates[:, 2 * size : 3 * size] * np.tanh(cell)


def cached_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """Key and value (b, h, d) go to the middle of the caches (b, h, t, d); the query attends to what is up to there."""
    place = keys.shape[2] // 2
    keys[:, :, place] = key
    values[:, :, place] = value
    scores = (keys[:, :, : place + 1] @ query[..., None])[..., 0] * query.shape[-1] ** -0.5
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights[:, :, None, :] @ values[:, :, : place + 1])[:, :, 0]


def gate_sweep(sites: np.ndarray, gates: np.ndarray, gauges: np.ndarray) -> None:
    """Site tensors (n, l, p, r) take orthogonal gates (n - 1, p, p), and gauges (n - 1, r, r) between them."""
    for at in range(sites.shape[0] - 1):
        left, right = sites[at], sites[at + 1]
        left[...] = gates[at] @ left @ gauges[at]
        right[...] = np.tensordot(gauges[at].T, right, axes=1)


def jacobi_sweep(u: np.ndarray) -> None:
    """Every inner point becomes the mean of what its four neighbours were."""
    u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])


def red_black_sweep(u: np.ndarray) -> None:
    """Gauss-Seidel: the inner points of one colour, then, from these, those of the other."""
    rows, columns = u.shape
    for row, column in ((1, 1), (2, 2), (1, 2), (2, 1)):
        u[row : rows - 1 : 2, column : columns - 1 : 2] = 0.25 * (
            u[row - 1 : rows - 2 : 2, column : columns - 1 : 2]
            + u[row + 1 : rows : 2, column : columns - 1 : 2]
            + u[row : rows - 1 : 2, column - 1 : columns - 2 : 2]
            + u[row : rows - 1 : 2, column + 1 : columns : 2]
        )


# -- whole ------------------------------------------------------------------------------------------------------------


def _contract(expr: str, *arrays: np.ndarray) -> np.ndarray:
    return np.einsum(expr, *arrays, optimize=True)


def _norm(a: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(a.real * a.real + a.imag * a.imag))


def tebd(sites: np.ndarray, gates: np.ndarray, projectors: np.ndarray) -> None:
    """Gates (n - 1, p, q, s, t) on pairs of sites (n, l, p, r), cut by projectors (n - 1, r, q, k), normalised."""
    for at in range(sites.shape[0] - 1):
        left, right = sites[at], sites[at + 1]
        pair = _contract("lsm,mtr->lstr", left, right)
        pair = _contract("pqst,lstr->lpqr", gates[at], pair)
        left[...] = _contract("lpqr,rqk->lpk", pair, projectors[at])
        left /= _norm(left)
        right[...] = _contract("lpk,lpqr->kqr", np.conj(left), pair)
        right /= _norm(right)


def peps_boundary(boundary: np.ndarray, row: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A row (n, u, d, a, b) goes into the boundary (n, l, u, r), cut by projectors (n, l, a, k), (n, r, b, k).

    Its tensors are scaled to a largest component of 1; the logarithms of the scales are returned.
    """
    scales = np.zeros_like(boundary[:, 0, 0, 0])
    for at in range(boundary.shape[0]):
        site = boundary[at]
        cut = _contract("lur,lak->urak", site, left[at])
        grown = _contract("urak,udab->rkdb", cut, row[at])
        site[...] = _contract("rkdb,rbm->kdm", grown, right[at])
        largest = np.max(np.abs(site))
        site /= largest
        scales[at] = np.log(largest)
    return scales


def attention_layer(
    x: np.ndarray, projection: np.ndarray, out: np.ndarray, gain: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """One token (b, e) through layer norm, attention over the caches (b, h, t, d) that it is added to, and a residual.

    ``projection`` (3, e, h, d) makes query, key and value; ``out`` is (h, d, e).
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * gain
    query, key, value = _contract("be,sehd->sbhd", normal, projection)
    place = keys.shape[2] // 2
    keys[:, :, place], values[:, :, place] = key, value
    scores = _contract("bhd,bhtd->bht", query, keys[:, :, : place + 1]) * query.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = _contract("bht,bhtd->bhd", weights, values[:, :, : place + 1])
    return x + _contract("bhd,hde->be", mixed, out)


def ccd_residual(
    t: np.ndarray,
    oovv: np.ndarray,
    vvvv: np.ndarray,
    oooo: np.ndarray,
    ovvo: np.ndarray,
    occupied: np.ndarray,
    virtual: np.ndarray,
) -> np.ndarray:
    """Doubles amplitudes (i, j, a, b) are moved halfway to residual / denominators; the energy is returned."""
    ladder = _contract("abef,ijef->ijab", vvvv, t) + _contract("klij,klab->ijab", oooo, t)
    ring = _contract("kbcj,ikac->ijab", ovvo, t)
    dressed = _contract("klcd,ljdb->kcjb", oovv, t)
    residual = oovv + 0.5 * ladder + _contract("ikac,kcjb->ijab", t, dressed)
    residual += ring
    residual += ring.transpose(1, 0, 3, 2)
    pairs = occupied[:, None, None, None] + occupied[:, None, None]
    residual /= pairs - virtual[:, None] - virtual
    t *= 0.5
    t += 0.5 * residual
    return np.sum(oovv * (2 * t - t.swapaxes(2, 3)))


def correlation(x: np.ndarray) -> np.ndarray:
    """Of the columns of (n, k), which are standardised."""
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    return _contract("ni,nj->ij", standard, standard) / x.shape[0]


def gaussian_kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """exp(-|x_i - y_j|^2 / 2) of all pairs of points (n, k) and (m, k)."""
    near = _contract("ik,jk->ij", x, y)
    return np.exp(near - 0.5 * (x * x).sum(axis=1)[:, None] - 0.5 * (y * y).sum(axis=1))


def dominant_site(
    sites: np.ndarray, left: np.ndarray, transfer: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of boundary tensors (n, l, p, r), which stay as they are, the middle one goes by power iteration to the dominant
    eigenvector of what is around it: left (w, l, l), transfer (w, p, q, v), right (v, r, r). It and its eigenvalue."""
    changed = sites.copy()
    site = changed[sites.shape[0] // 2]

    def turn(state: tuple) -> tuple:
        grown = _contract("wlk,lpr->wkpr", left, site)
        grown = _contract("wkpr,wpqv->kqrv", grown, transfer)
        grown = _contract("kqrv,vrs->kqs", grown, right)
        largest = np.max(grown)
        grown = grown / largest
        gap = np.max(np.abs(grown - site))
        site[...] = grown
        return state[0] + 1, gap, largest

    one = np.ones_like(left[0, 0, 0])
    _, _, largest = while_loop(lambda state: (state[0] < 50) & (state[1] > 1e-6), turn, (np.int64(0), one, one))
    return site.copy(), largest


# -- reductions -------------------------------------------------------------------------------------------------------


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, axis: int) -> np.ndarray:
    """Scale and shift run along the axis and are one element in the others."""
    d = x - x.mean(axis=axis, keepdims=True)
    return d / np.sqrt((d * d).mean(axis=axis, keepdims=True) + 1e-5) * scale + shift


def log_sum_exp(x: np.ndarray, axis: int) -> np.ndarray:
    high = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - high).sum(axis=axis)) + high.squeeze(axis)


# -- arguments --------------------------------------------------------------------------------------------------------


def _boxes(rng: np.random.Generator, count: int, height: float = 800, width: float = 1333) -> np.ndarray:
    """Boxes (left, top, right, bottom) with sides of at least a hundredth of the image."""
    corner = rng.uniform(0, 0.7, (count, 2))
    side = rng.uniform(0.01, 0.3, (count, 2))
    return np.concatenate((corner, corner + side), axis=1) * (width, height, width, height)


def _orthogonal(rng: np.random.Generator, *shape: int, dtype: str = "float64") -> np.ndarray:
    """Matrices of these last two sizes with orthonormal columns."""
    drawn = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        drawn = drawn + 1j * rng.standard_normal(shape)
    return np.linalg.qr(drawn)[0]


def _view_example(rng: np.random.Generator) -> Arrays:
    return (rng.standard_normal((64, 1024)),)


def _offset2bbox(rng: np.random.Generator) -> Arrays:
    return _boxes(rng, 300)[:, [1, 0, 3, 2]], 0.3 * rng.standard_normal((300, 84))


def _yolov3_boxes(rng: np.random.Generator) -> Arrays:
    grid = np.stack(np.meshgrid(np.arange(19), np.arange(19)), axis=-1)
    return rng.standard_normal((2, 255, 19, 19)), grid, np.array([[116, 90], [156, 198], [373, 326]])


def _ssd_anchors(rng: np.random.Generator) -> Arrays:
    return rng.standard_normal((4, 8732, 4)), rng.uniform(0.1, 0.9, (8732, 4))


def _fcos_centres(rng: np.random.Generator) -> Arrays:
    return rng.uniform(0, 1333, (16800, 2)), rng.uniform(1, 200, (2, 16800, 4))


def _normalisation(rng: np.random.Generator) -> Arrays:
    mean, deviation = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
    return rng.uniform(0, 255, (800, 1333, 3)), _boxes(rng, 100), mean, deviation


def _mask_crop(rng: np.random.Generator) -> Arrays:
    boxes = _boxes(rng, 100, 1, 1)
    boxes[::2] = boxes[::2][:, [2, 3, 0, 1]]
    return rng.uniform(0.1, 1, (138, 138, 100)), boxes


def _lstm_cell(rng: np.random.Generator) -> Arrays:
    batch, inputs, size = 32, 128, 128
    weights = [rng.standard_normal((many, 4 * size)) / math.sqrt(many) for many in (inputs, size)]
    states = rng.standard_normal((2, batch, size))
    return rng.standard_normal((batch, inputs)), *states, *weights, rng.standard_normal(4 * size)


def _cached_attention(rng: np.random.Generator) -> Arrays:
    one, cache = (4, 8, 64), (4, 8, 512, 64)
    return tuple(rng.standard_normal(shape) for shape in (one, one, one, cache, cache))


def _gate_sweep(rng: np.random.Generator) -> Arrays:
    return rng.standard_normal((16, 24, 2, 24)), _orthogonal(rng, 15, 2, 2), _orthogonal(rng, 15, 24, 24)


def _jacobi_sweep(rng: np.random.Generator) -> Arrays:
    return (rng.uniform(1, 2, (2048, 2048)),)


def _red_black_sweep(rng: np.random.Generator) -> Arrays:
    return (rng.uniform(1, 2, (1026, 1026)),)


def _tebd(rng: np.random.Generator) -> Arrays:
    count, bond = 12, 24
    sites = _orthogonal(rng, count, 2 * bond, bond, dtype="complex64").reshape(count, bond, 2, bond)
    gates = _orthogonal(rng, count - 1, 4, 4, dtype="complex64").reshape(count - 1, 2, 2, 2, 2)
    projectors = _orthogonal(rng, count - 1, 2 * bond, bond, dtype="complex64")
    return sites, gates, projectors.reshape(count - 1, bond, 2, bond)


def _peps_boundary(rng: np.random.Generator) -> Arrays:
    count, bond, size = 8, 24, 6
    left, right = _orthogonal(rng, 2, count, bond * size, bond).reshape(2, count, bond, size, bond)
    return rng.uniform(0.5, 1, (count, bond, size, bond)), rng.uniform(0.5, 1, (count, *(size,) * 4)), left, right


def _attention_layer(rng: np.random.Generator) -> Arrays:
    batch, heads, size, length = 8, 8, 64, 512
    width = heads * size
    projection = rng.standard_normal((3, width, heads, size)) / math.sqrt(width)
    out = rng.standard_normal((heads, size, width)) / math.sqrt(width)
    caches = rng.standard_normal((2, batch, heads, length, size))
    return rng.standard_normal((batch, width)), projection, out, rng.uniform(0.5, 1.5, width), *caches


def _reduction(rng: np.random.Generator, case: ProgramCase) -> Arrays:
    """An array, and what `layer_norm` is scaled and shifted by, along its axis."""
    x = rng.standard_normal(case.shape)
    if case.function != "layer_norm":
        return (x,)
    rows, columns = case.shape
    along = (columns,) if case.axis == -1 else (rows, 1)
    return x, rng.uniform(0.5, 1.5, along), rng.standard_normal(along)


def _ccd_residual(rng: np.random.Generator) -> Arrays:
    o, v = 8, 24
    shapes = ((o, o, v, v), (v, v, v, v), (o, o, o, o), (o, v, v, o))
    integrals = [rng.standard_normal(shape) * 2 / (o * v) for shape in shapes]
    amplitudes = rng.standard_normal((o, o, v, v)) * 0.01
    return amplitudes, *integrals, rng.uniform(-2, -1, o), rng.uniform(1, 2, v)


def _correlation(rng: np.random.Generator) -> Arrays:
    return (rng.standard_normal((16384, 64)) * rng.uniform(1, 3, 64) + rng.uniform(-1, 1, 64),)


def _gaussian_kernel(rng: np.random.Generator) -> Arrays:
    return tuple(0.5 * rng.standard_normal((2, 2048, 8)))


def _dominant_site(rng: np.random.Generator) -> Arrays:
    count, bond, size, width = 64, 24, 2, 4
    shapes = ((count, bond, size, bond), (width, bond, bond), (width, size, size, width), (width, bond, bond))
    return tuple(rng.uniform(0.5, 1, shape) for shape in shapes)


def arguments(case: ProgramCase) -> Arrays:
    """C-ordered arguments of the function of a case, the same at each call."""
    name = case.function
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name in program_chains.CHAINS:
        return tuple(rng.uniform(0.5, 1.5, case.shape).astype(case.dtype) for _ in program_chains.operands(name))
    if case.family == REDUCTIONS:
        made = _reduction(rng, case)
    else:
        maker: Callable[[np.random.Generator], Arrays] = globals()[f"_{name}"]
        made = maker(rng)
    return tuple(np.ascontiguousarray(array, dtype=case.dtype) for array in made)


def function(case: ProgramCase) -> Callable[..., Any]:
    """The function of a case."""
    if case.function in program_chains.CHAINS:
        return program_chains.function(case.function, np)
    found = globals()[case.function]
    return found if case.axis is None else partial(found, axis=case.axis)
