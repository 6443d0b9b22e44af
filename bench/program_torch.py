"""The functions of `program_cases` in PyTorch: eager, and in the subset that `torch.jit.script` takes."""

from __future__ import annotations

import torch
from torch import Tensor


def view_example(a: Tensor) -> Tensor:
    b, c = a[1, :], a[2, :]
    d = b + c
    c += 2
    return a + d


def offset2bbox(source: Tensor, offset: Tensor) -> Tensor:
    height, width = source[:, 2] - source[:, 0], source[:, 3] - source[:, 1]
    centre_y, centre_x = source[:, 0] + 0.5 * height, source[:, 1] + 0.5 * width
    y = offset[:, 0::4] * height[:, None] + centre_y[:, None]
    x = offset[:, 1::4] * width[:, None] + centre_x[:, None]
    h, w = torch.exp(offset[:, 2::4]) * height[:, None], torch.exp(offset[:, 3::4]) * width[:, None]
    boxes = torch.empty_like(offset)
    boxes[:, 0::4] = y - 0.5 * h
    boxes[:, 1::4] = x - 0.5 * w
    boxes[:, 2::4] = y + 0.5 * h
    boxes[:, 3::4] = x + 0.5 * w
    return boxes


def yolov3_boxes(prediction: Tensor, grid: Tensor, anchors: Tensor) -> Tensor:
    batch, size, count = prediction.shape[0], prediction.shape[2], anchors.shape[0]
    found = prediction.reshape(batch, count, -1, size, size).permute(0, 1, 3, 4, 2).contiguous()
    found[..., :2] = (torch.sigmoid(found[..., :2]) + grid) * 32
    found[..., 2:4] = torch.exp(found[..., 2:4]) * anchors[:, None, None, :]
    found[..., 4:] = torch.sigmoid(found[..., 4:])
    return found.reshape(batch, count * size * size, -1)


def ssd_anchors(location: Tensor, prior: Tensor) -> Tensor:
    boxes = torch.cat(
        (
            prior[:, :2] + location[..., :2] * 0.1 * prior[:, 2:],
            prior[:, 2:] * torch.exp(location[..., 2:] * 0.2),
        ),
        dim=-1,
    )
    boxes[..., :2] -= boxes[..., 2:] / 2
    boxes[..., 2:] += boxes[..., :2]
    return boxes


def fcos_centres(centres: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    boxes = torch.empty_like(distance)
    boxes[..., :2] = centres - distance[..., :2]
    boxes[..., 2:] = centres + distance[..., 2:]
    boxes[..., 0::2].clamp_(0, 1332)
    boxes[..., 1::2].clamp_(0, 799)
    across, along = distance[..., 0::2], distance[..., 1::2]
    shares = (across.amin(dim=-1) / across.amax(dim=-1)) * (along.amin(dim=-1) / along.amax(dim=-1))
    return boxes, torch.sqrt(shares)


def normalisation(image: Tensor, boxes: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    image -= mean
    image /= deviation
    scaled = boxes.clone()
    scaled[:, 0::2] /= image.shape[1]
    scaled[:, 1::2] /= image.shape[0]
    return scaled


def mask_crop(masks: Tensor, boxes: Tensor) -> None:
    height, width = masks.shape[0], masks.shape[1]
    left = torch.clamp(torch.minimum(boxes[:, 0], boxes[:, 2]) * width - 1, min=0)
    right = torch.clamp(torch.maximum(boxes[:, 0], boxes[:, 2]) * width + 1, max=width)
    top = torch.clamp(torch.minimum(boxes[:, 1], boxes[:, 3]) * height - 1, min=0)
    bottom = torch.clamp(torch.maximum(boxes[:, 1], boxes[:, 3]) * height + 1, max=height)
    columns = torch.arange(width, dtype=masks.dtype)[None, :, None]
    rows = torch.arange(height, dtype=masks.dtype)[:, None, None]
    masks *= (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)


def lstm_cell(
    x: Tensor, hidden: Tensor, cell: Tensor, from_x: Tensor, from_hidden: Tensor, bias: Tensor
) -> None:
    size = hidden.shape[1]
    gates = torch.addmm(bias, x, from_x)
    gates.addmm_(hidden, from_hidden)
    gates[:, : 3 * size].sigmoid_()
    candidate = gates[:, 3 * size :]
    candidate.tanh_()
    cell *= gates[:, size : 2 * size]
    cell += gates[:, :size] * candidate
    hidden.copy_(gates[:, 2 * size : 3 * size] * torch.tanh(cell))


def cached_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    place = keys.shape[2] // 2
    keys[:, :, place] = key
    values[:, :, place] = value
    scores = (keys[:, :, : place + 1] @ query[..., None])[..., 0] * query.shape[-1] ** -0.5
    weights = torch.softmax(scores, dim=-1)
    return (weights[:, :, None, :] @ values[:, :, : place + 1])[:, :, 0]


def gate_sweep(sites: Tensor, gates: Tensor, gauges: Tensor) -> None:
    for at in range(sites.shape[0] - 1):
        left, right = sites[at], sites[at + 1]
        left.copy_(gates[at] @ left @ gauges[at])
        right.copy_(torch.tensordot(gauges[at].T, right, dims=1))


def jacobi_sweep(u: Tensor) -> None:
    u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])


def red_black_sweep(u: Tensor) -> None:
    rows, columns = u.shape[0], u.shape[1]
    for row, column in ((1, 1), (2, 2), (1, 2), (2, 1)):
        u[row : rows - 1 : 2, column : columns - 1 : 2] = 0.25 * (
            u[row - 1 : rows - 2 : 2, column : columns - 1 : 2]
            + u[row + 1 : rows : 2, column : columns - 1 : 2]
            + u[row : rows - 1 : 2, column - 1 : columns - 2 : 2]
            + u[row : rows - 1 : 2, column + 1 : columns : 2]
        )


def tebd(sites: Tensor, gates: Tensor, projectors: Tensor) -> None:
    for at in range(sites.shape[0] - 1):
        left, right = sites[at], sites[at + 1]
        pair = torch.einsum("lsm,mtr->lstr", left, right)
        pair = torch.einsum("pqst,lstr->lpqr", gates[at], pair)
        left.copy_(torch.einsum("lpqr,rqk->lpk", pair, projectors[at]))
        left /= torch.linalg.vector_norm(left)
        right.copy_(torch.einsum("lpk,lpqr->kqr", torch.conj(left), pair))
        right /= torch.linalg.vector_norm(right)


def peps_boundary(boundary: Tensor, row: Tensor, left: Tensor, right: Tensor) -> Tensor:
    scales = torch.zeros_like(boundary[:, 0, 0, 0])
    for at in range(boundary.shape[0]):
        site = boundary[at]
        cut = torch.einsum("lur,lak->urak", site, left[at])
        grown = torch.einsum("urak,udab->rkdb", cut, row[at])
        site.copy_(torch.einsum("rkdb,rbm->kdm", grown, right[at]))
        largest = torch.max(torch.abs(site))
        site /= largest
        scales[at] = torch.log(largest)
    return scales


def attention_layer(
    x: Tensor, projection: Tensor, out: Tensor, gain: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    normal = torch.nn.functional.layer_norm(x, [x.shape[-1]], gain, None, 1e-5)
    query, key, value = torch.einsum("be,sehd->sbhd", normal, projection).unbind(0)
    place = keys.shape[2] // 2
    keys[:, :, place] = key
    values[:, :, place] = value
    scores = torch.einsum("bhd,bhtd->bht", query, keys[:, :, : place + 1]) * query.shape[-1] ** -0.5
    weights = torch.softmax(scores, dim=-1)
    mixed = torch.einsum("bht,bhtd->bhd", weights, values[:, :, : place + 1])
    return x + torch.einsum("bhd,hde->be", mixed, out)


def ccd_residual(
    t: Tensor, oovv: Tensor, vvvv: Tensor, oooo: Tensor, ovvo: Tensor, occupied: Tensor, virtual: Tensor
) -> Tensor:
    ladder = torch.einsum("abef,ijef->ijab", vvvv, t) + torch.einsum("klij,klab->ijab", oooo, t)
    ring = torch.einsum("kbcj,ikac->ijab", ovvo, t)
    dressed = torch.einsum("klcd,ljdb->kcjb", oovv, t)
    residual = oovv + 0.5 * ladder + torch.einsum("ikac,kcjb->ijab", t, dressed)
    residual += ring
    residual += ring.permute(1, 0, 3, 2)
    pairs = occupied[:, None, None, None] + occupied[:, None, None]
    residual /= pairs - virtual[:, None] - virtual
    t *= 0.5
    t += 0.5 * residual
    return torch.sum(oovv * (2 * t - t.transpose(2, 3)))


def correlation(x: Tensor) -> Tensor:
    standard = (x - x.mean(dim=0)) / x.std(dim=0, unbiased=False)
    return torch.einsum("ni,nj->ij", standard, standard) / x.shape[0]


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    near = torch.einsum("ik,jk->ij", x, y)
    return torch.exp(near - 0.5 * (x * x).sum(dim=1)[:, None] - 0.5 * (y * y).sum(dim=1))


def dominant_site(sites: Tensor, left: Tensor, transfer: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    site = sites[sites.shape[0] // 2]
    gap = largest = torch.ones((), dtype=sites.dtype)
    turns = 0
    while turns < 50 and bool(gap > 1e-6):
        grown = torch.einsum("wlk,lpr->wkpr", left, site)
        grown = torch.einsum("wkpr,wpqv->kqrv", grown, transfer)
        grown = torch.einsum("kqrv,vrs->kqs", grown, right)
        largest = torch.max(grown)
        grown = grown / largest
        gap = torch.max(torch.abs(grown - site))
        site = grown
        turns += 1
    return site, largest


# -- reductions -------------------------------------------------------------------------------------------------------


def softmax(x: Tensor, axis: int) -> Tensor:
    return torch.softmax(x, dim=axis)


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, axis: int) -> Tensor:
    if axis == -1:
        return torch.nn.functional.layer_norm(x, [x.shape[-1]], scale, shift, 1e-5)
    d = x - x.mean(dim=axis, keepdim=True)
    return d * torch.rsqrt((d * d).mean(dim=axis, keepdim=True) + 1e-5) * scale + shift


def log_sum_exp(x: Tensor, axis: int) -> Tensor:
    return torch.logsumexp(x, dim=axis)
