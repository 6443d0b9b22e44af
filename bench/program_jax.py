"""The functions of `program_cases` in JAX: pure, results and then the arguments that the others write, as one tuple."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

Arrays = tuple[Array, ...]


def view_example(a: Array) -> Arrays:
    d = a[1] + a[2]
    a = a.at[2].add(2)
    return a + d, a


def offset2bbox(source: Array, offset: Array) -> Arrays:
    height, width = source[:, 2] - source[:, 0], source[:, 3] - source[:, 1]
    centre_y, centre_x = source[:, 0] + 0.5 * height, source[:, 1] + 0.5 * width
    y = offset[:, 0::4] * height[:, None] + centre_y[:, None]
    x = offset[:, 1::4] * width[:, None] + centre_x[:, None]
    h, w = jnp.exp(offset[:, 2::4]) * height[:, None], jnp.exp(offset[:, 3::4]) * width[:, None]
    boxes = jnp.zeros_like(offset)
    boxes = boxes.at[:, 0::4].set(y - 0.5 * h).at[:, 1::4].set(x - 0.5 * w)
    return (boxes.at[:, 2::4].set(y + 0.5 * h).at[:, 3::4].set(x + 0.5 * w),)


def yolov3_boxes(prediction: Array, grid: Array, anchors: Array) -> Arrays:
    batch, _, size, _ = prediction.shape
    count = anchors.shape[0]
    found = prediction.reshape(batch, count, -1, size, size).transpose(0, 1, 3, 4, 2)
    found = found.at[..., :2].set((jax.nn.sigmoid(found[..., :2]) + grid) * 32)
    found = found.at[..., 2:4].set(jnp.exp(found[..., 2:4]) * anchors[:, None, None, :])
    found = found.at[..., 4:].set(jax.nn.sigmoid(found[..., 4:]))
    return (found.reshape(batch, count * size * size, -1),)


def ssd_anchors(location: Array, prior: Array) -> Arrays:
    centre = prior[:, :2] + location[..., :2] * 0.1 * prior[:, 2:]
    boxes = jnp.concatenate((centre, prior[:, 2:] * jnp.exp(location[..., 2:] * 0.2)), axis=-1)
    boxes = boxes.at[..., :2].add(-boxes[..., 2:] / 2)
    return (boxes.at[..., 2:].add(boxes[..., :2]),)


def fcos_centres(centres: Array, distance: Array) -> Arrays:
    boxes = jnp.empty_like(distance)
    boxes = boxes.at[..., :2].set(centres - distance[..., :2]).at[..., 2:].set(centres + distance[..., 2:])
    boxes = boxes.at[..., 0::2].set(jnp.clip(boxes[..., 0::2], 0, 1332))
    boxes = boxes.at[..., 1::2].set(jnp.clip(boxes[..., 1::2], 0, 799))
    across, along = distance[..., 0::2], distance[..., 1::2]
    shares = (across.min(axis=-1) / across.max(axis=-1)) * (along.min(axis=-1) / along.max(axis=-1))
    return boxes, jnp.sqrt(shares)


def normalisation(image: Array, boxes: Array, mean: Array, deviation: Array) -> Arrays:
    scaled = boxes.at[:, 0::2].divide(image.shape[1]).at[:, 1::2].divide(image.shape[0])
    return scaled, (image - mean) / deviation


def mask_crop(masks: Array, boxes: Array) -> Arrays:
    height, width, _ = masks.shape
    left = jnp.maximum(jnp.minimum(boxes[:, 0], boxes[:, 2]) * width - 1, 0)
    right = jnp.minimum(jnp.maximum(boxes[:, 0], boxes[:, 2]) * width + 1, width)
    top = jnp.maximum(jnp.minimum(boxes[:, 1], boxes[:, 3]) * height - 1, 0)
    bottom = jnp.minimum(jnp.maximum(boxes[:, 1], boxes[:, 3]) * height + 1, height)
    columns = jnp.arange(width, dtype=masks.dtype)[None, :, None]
    rows = jnp.arange(height, dtype=masks.dtype)[:, None, None]
    return (masks * ((columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)),)


def lstm_cell(x: Array, hidden: Array, cell: Array, from_x: Array, from_hidden: Array, bias: Array) -> Arrays:
    gates = x @ from_x + hidden @ from_hidden + bias
    first, forget, output, candidate = jnp.split(gates, 4, axis=1)
    cell = cell * jax.nn.sigmoid(forget) + jax.nn.sigmoid(first) * jnp.tanh(candidate)
    return jax.nn.sigmoid(output) * jnp.tanh(cell), cell


def cached_attention(query: Array, key: Array, value: Array, keys: Array, values: Array) -> Arrays:
    place = keys.shape[2] // 2
    keys, values = keys.at[:, :, place].set(key), values.at[:, :, place].set(value)
    scores = (keys[:, :, : place + 1] @ query[..., None])[..., 0] * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores, axis=-1)
    return (weights[:, :, None, :] @ values[:, :, : place + 1])[:, :, 0], keys, values


def gate_sweep(sites: Array, gates: Array, gauges: Array) -> Arrays:
    for at in range(sites.shape[0] - 1):
        sites = sites.at[at].set(gates[at] @ sites[at] @ gauges[at])
        sites = sites.at[at + 1].set(jnp.tensordot(gauges[at].T, sites[at + 1], axes=1))
    return (sites,)


def jacobi_sweep(u: Array) -> Arrays:
    return (u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])),)


def red_black_sweep(u: Array) -> Arrays:
    rows, columns = u.shape
    for row, column in ((1, 1), (2, 2), (1, 2), (2, 1)):
        u = u.at[row : rows - 1 : 2, column : columns - 1 : 2].set(
            0.25
            * (
                u[row - 1 : rows - 2 : 2, column : columns - 1 : 2]
                + u[row + 1 : rows : 2, column : columns - 1 : 2]
                + u[row : rows - 1 : 2, column - 1 : columns - 2 : 2]
                + u[row : rows - 1 : 2, column + 1 : columns : 2]
            )
        )
    return (u,)


def tebd(sites: Array, gates: Array, projectors: Array) -> Arrays:
    for at in range(sites.shape[0] - 1):
        pair = jnp.einsum("lsm,mtr->lstr", sites[at], sites[at + 1])
        pair = jnp.einsum("pqst,lstr->lpqr", gates[at], pair)
        left = jnp.einsum("lpqr,rqk->lpk", pair, projectors[at])
        left = left / jnp.linalg.norm(left)
        right = jnp.einsum("lpk,lpqr->kqr", jnp.conj(left), pair)
        sites = sites.at[at].set(left).at[at + 1].set(right / jnp.linalg.norm(right))
    return (sites,)


def peps_boundary(boundary: Array, row: Array, left: Array, right: Array) -> Arrays:
    scales = jnp.zeros_like(boundary[:, 0, 0, 0])
    for at in range(boundary.shape[0]):
        cut = jnp.einsum("lur,lak->urak", boundary[at], left[at])
        grown = jnp.einsum("urak,udab->rkdb", cut, row[at])
        site = jnp.einsum("rkdb,rbm->kdm", grown, right[at])
        largest = jnp.max(jnp.abs(site))
        boundary, scales = boundary.at[at].set(site / largest), scales.at[at].set(jnp.log(largest))
    return scales, boundary


def attention_layer(x: Array, projection: Array, out: Array, gain: Array, keys: Array, values: Array) -> Arrays:
    centred = x - x.mean(axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * gain
    query, key, value = jnp.einsum("be,sehd->sbhd", normal, projection)
    place = keys.shape[2] // 2
    keys, values = keys.at[:, :, place].set(key), values.at[:, :, place].set(value)
    scores = jnp.einsum("bhd,bhtd->bht", query, keys[:, :, : place + 1]) * query.shape[-1] ** -0.5
    mixed = jnp.einsum("bht,bhtd->bhd", jax.nn.softmax(scores, axis=-1), values[:, :, : place + 1])
    return x + jnp.einsum("bhd,hde->be", mixed, out), keys, values


def ccd_residual(
    t: Array, oovv: Array, vvvv: Array, oooo: Array, ovvo: Array, occupied: Array, virtual: Array
) -> Arrays:
    ladder = jnp.einsum("abef,ijef->ijab", vvvv, t) + jnp.einsum("klij,klab->ijab", oooo, t)
    ring = jnp.einsum("kbcj,ikac->ijab", ovvo, t)
    dressed = jnp.einsum("klcd,ljdb->kcjb", oovv, t)
    residual = oovv + 0.5 * ladder + jnp.einsum("ikac,kcjb->ijab", t, dressed)
    residual = residual + ring + ring.transpose(1, 0, 3, 2)
    pairs = occupied[:, None, None, None] + occupied[:, None, None]
    t = 0.5 * t + 0.5 * residual / (pairs - virtual[:, None] - virtual)
    return jnp.sum(oovv * (2 * t - t.swapaxes(2, 3))), t


def correlation(x: Array) -> Arrays:
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    return (jnp.einsum("ni,nj->ij", standard, standard) / x.shape[0],)


def gaussian_kernel(x: Array, y: Array) -> Arrays:
    near = jnp.einsum("ik,jk->ij", x, y)
    return (jnp.exp(near - 0.5 * (x * x).sum(axis=1)[:, None] - 0.5 * (y * y).sum(axis=1)),)


def dominant_site(sites: Array, left: Array, transfer: Array, right: Array) -> Arrays:
    def turn(state: tuple) -> tuple:
        turns, _, _, site = state
        grown = jnp.einsum("wlk,lpr->wkpr", left, site)
        grown = jnp.einsum("wkpr,wpqv->kqrv", grown, transfer)
        grown = jnp.einsum("kqrv,vrs->kqs", grown, right)
        largest = jnp.max(grown)
        grown = grown / largest
        return turns + 1, jnp.max(jnp.abs(grown - site)), largest, grown

    one = jnp.ones((), dtype=sites.dtype)
    state = jax.lax.while_loop(
        lambda state: (state[0] < 50) & (state[1] > 1e-6), turn, (0, one, one, sites[sites.shape[0] // 2])
    )
    return state[3], state[2]


# -- reductions -------------------------------------------------------------------------------------------------------


def softmax(x: Array, axis: int) -> Arrays:
    return (jax.nn.softmax(x, axis=axis),)


def layer_norm(x: Array, scale: Array, shift: Array, axis: int) -> Arrays:
    centred = x - x.mean(axis=axis, keepdims=True)
    variance = (centred * centred).mean(axis=axis, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * scale + shift,)


def log_sum_exp(x: Array, axis: int) -> Arrays:
    return (jax.nn.logsumexp(x, axis=axis),)
