"""Random convolutions, pools and upsamplings: spatial dims, strides, dilations, pads and groups of every kind."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import weft as wf
from tests.properties.programs import Form, Plain, flip_coin, form, pick, show, shuffled, subset

KERNEL = "klm"  # names that stand in kernels alone


@dataclass
class Slide:
    """How a window slides along one dim, and the pads as weft is told them and as they are."""

    dim: wf.Dim
    window: int
    stride: int
    dilation: int
    told: str | tuple[int, int]
    pads: tuple[int, int]

    @property
    def reach(self) -> int:
        return (self.window - 1) * self.dilation + 1


def draw_slide(rng, dim, most_window, kind, *, dilates=True, most_pad=6):
    """One that comes out at a size of at least 1; `kind` is SAME, VALID or explicit pads that fit a good size."""
    window = rng.randint(1, most_window)
    stride, dilation = pick(rng, [1, 1, 2, 2, 3]), pick(rng, [1, 1, 2]) if dilates else 1
    reach = (window - 1) * dilation + 1
    if kind == "SAME":
        size = -(-dim.size // stride)
        total = max((size - 1) * stride + reach - dim.size, 0)
        return Slide(dim, window, stride, dilation, "SAME", (total // 2, total - total // 2))
    if kind == "VALID":
        return Slide(dim, window, stride, dilation, "VALID", (0, 0)) if reach <= dim.size else None
    size = pick(rng, [2, 4, 6, 8])
    total = (size - 1) * stride + reach - dim.size + rng.randint(0, stride - 1)
    low = rng.randint(0, max(total, 0))
    pads = (low, total - low)
    return Slide(dim, window, stride, dilation, pads, pads) if total >= 0 and max(pads) <= most_pad else None


def draw_slides(rng, dims, most_window, **how):
    """The slides along some dims, and the padding to tell."""
    kind = pick(rng, ["SAME", "VALID", "pads", "pads"])
    slides = [draw_slide(rng, dim, most_window if len(dims) == 1 else min(most_window, 3), kind, **how) for dim in dims]
    if None in slides:
        return None, None
    told = kind if kind != "pads" else {s.dim.name: s.told for s in slides}
    return slides, told


def by_name(slides, what):
    return {s.dim.name: getattr(s, what) for s in slides}


def draw_kernel(rng, p, dims):
    """Spatial dims, the channels in and out, the groups, and the kernel's leaf."""
    given = pick(rng, dims)
    spatial = subset(rng, [d for d in dims if d.name != given.name], 1, 3)
    kind = pick(rng, ["full", "full", "full", "depthwise", "groups"])
    if kind == "depthwise":
        return spatial, given, given, given.size, [given]
    made = p.fresh(rng, pick(rng, [2, 4, 8]), dims)
    groups = 2 if kind == "groups" and given.size % 2 == 0 else 1
    return spatial, given, made, groups, [given.resized(given.size // groups), made]


def draw_conv(rng, p, dims, slides_of):
    """What a convolution is made of; some tries may not come out."""
    for _ in range(4 if len(dims) > 1 else 0):
        if (found := try_conv(rng, p, dims, slides_of)) is not None:
            return found
    return None


def try_conv(rng, p, dims, slides_of):
    spatial, given, made, groups, channels = draw_kernel(rng, p, dims)
    slides, padding = slides_of(rng, spatial)
    if slides is None:
        return None
    if any(name in KERNEL for name in (dim.name for dim in dims)):
        return None  # an image that was a kernel once
    kernel = [wf.Dim(KERNEL[i], s.window) for i, s in enumerate(slides)]
    order = shuffled(rng, [*kernel, *channels])
    if math.prod(dim.size for dim in order) > 1024:
        return None
    how = {
        "over": {s.dim.name: k.name for s, k in zip(slides, kernel, strict=True)},
        "channels": (given.name, made.name),
        "stride": by_name(slides, "stride"),
        "dilation": by_name(slides, "dilation"),
        "groups": groups,
        "padding": padding,
    }
    return slides, given, made, kernel, how, p.leaf(rng, order)


def lay_out(x, w, slides, given, made, kernel):
    """The image as [batch, channels, ...] and the kernel as [out, in, ...]; the dims of the batch."""
    spatial = [s.dim for s in slides]
    batch = [d for d in x.dims if d.name not in {given.name, *(d.name for d in spatial)}]
    image = x.along([*batch, given, *spatial])
    image = image.reshape((math.prod(image.shape[: len(batch)]), *image.shape[len(batch) :]))
    ins = [d for d in w.dims if d.name == given.name and given.name != made.name]
    weights = w.along([made, *ins, *kernel])
    return image, weights if ins else weights[:, None], batch


def taken_apart(array, batch, made, slides):
    array = array.reshape([*(d.size for d in batch), *array.shape[1:]])
    sizes = array.shape[len(batch) + 1 :]
    return Plain(array, (*batch, made, *(s.dim.resized(n) for s, n in zip(slides, sizes, strict=True))))


@form
def conv(rng, p, dims):
    found = draw_conv(rng, p, dims, lambda rng, spatial: draw_slides(rng, spatial, 5))
    if found is None:
        return None
    slides, given, made, kernel, how, w = found

    def plain(x, w):
        image, weights, batch = lay_out(x, w, slides, given, made, kernel)
        array = lax.conv_general_dilated(
            image,
            weights,
            [s.stride for s in slides],
            [s.pads for s in slides],
            rhs_dilation=[s.dilation for s in slides],
            feature_group_count=how["groups"],
        )
        return taken_apart(jnp.tanh(0.3 * array), batch, made, slides)

    return Form(
        f"conv({how}) with [{show(p.nodes[w].dims)}]",
        lambda x, w: wf.tanh(0.3 * wf.conv(x, w, **how)),
        plain,
        [w],
        whole=needed_whole(kernel),
    )


def needed_whole(kernel):
    return [d.name for d in kernel]


def draw_spreads(rng, spatial):
    """Slides of a transposed convolution: the pads are those of the image once it is spread out."""
    kind = pick(rng, ["SAME", "VALID", "pads"])
    slides = []
    for dim in spatial:
        window, stride, dilation = rng.randint(1, 4), pick(rng, [1, 2, 2, 3]), pick(rng, [1, 1, 2])
        reach = (window - 1) * dilation + 1
        low = rng.randint(0, reach)
        wanted = max(pick(rng, [dim.size * stride, dim.size, 8, 4]), 1)
        pads = (low, wanted + reach - 1 - ((dim.size - 1) * stride + 1) - low)
        if kind == "pads" and min(pads) < 0:
            return None, None
        slides.append(Slide(dim, window, stride, dilation, kind, pads))
    return slides, kind if kind != "pads" else by_name(slides, "pads")


@form
def conv_transpose(rng, p, dims):
    found = draw_conv(rng, p, dims, draw_spreads)
    if found is None:
        return None
    slides, given, made, kernel, how, w = found
    if how["groups"] > 1:  # jax.lax.conv_transpose has none
        return None

    def plain(x, w):
        image, weights, batch = lay_out(x, w, slides, given, made, kernel)
        letters = "HWD"[: len(slides)]
        array = lax.conv_transpose(
            image,
            weights,
            [s.stride for s in slides],
            how["padding"] if isinstance(how["padding"], str) else [s.pads for s in slides],
            rhs_dilation=[s.dilation for s in slides],
            dimension_numbers=(f"NC{letters}", f"OI{letters}", f"NC{letters}"),
        )
        return taken_apart(jnp.tanh(0.3 * array), batch, made, slides)

    return Form(
        f"conv_transpose({how}) with [{show(p.nodes[w].dims)}]",
        lambda x, w: wf.tanh(0.3 * wf.conv_transpose(x, w, **how)),
        plain,
        [w],
        whole=[d.name for d in kernel],
    )


def draw_pool(rng, dims):
    """What a pool is told, and its windows, strides and pads for every axis."""
    if not dims:
        return None
    for _ in range(4):
        if (found := try_pool(rng, dims)) is not None:
            return found
    return None


def try_pool(rng, dims):
    slides, padding = draw_slides(rng, subset(rng, dims, 1, 2), 4, dilates=False)
    if slides is None or (isinstance(padding, dict) and any(max(s.pads) >= s.window for s in slides)):
        return None
    how = {"window": by_name(slides, "window"), "stride": by_name(slides, "stride"), "padding": padding}
    if all(s.window == s.stride for s in slides) and flip_coin(rng):
        del how["stride"]
    return slides, how


def pooled(x, slides, start, combine):
    found = {s.dim.name: s for s in slides}
    each = [found.get(name, Slide(None, 1, 1, 1, "", (0, 0))) for name in x.names]
    windows, strides = [s.window for s in each], [s.stride for s in each]
    return lax.reduce_window(x.array, np.float32(start), combine, windows, strides, [s.pads for s in each])


@form
def max_pool(rng, p, dims):
    found = draw_pool(rng, dims)
    if found is None:
        return None
    slides, how = found
    return Form(
        f"max_pool({how})",
        lambda x: wf.max_pool(x, **how),
        lambda x: x.resized(pooled(x, slides, -np.inf, lax.max)),
        is_ordering=True,
    )


@form
def avg_pool(rng, p, dims):
    found = draw_pool(rng, dims)
    if found is None:
        return None
    slides, how = found

    def plain(x):
        counts = pooled(x.like(jnp.ones_like(x.array)), slides, 0, lax.add)
        return x.resized(pooled(x, slides, 0, lax.add) / counts)

    return Form(f"avg_pool({how})", lambda x: wf.avg_pool(x, **how), plain)


@form
def upsample(rng, p, dims):
    if not dims:
        return None
    by = {dim.name: rng.randint(1, 3) for dim in subset(rng, dims, 1, 2)}
    method = pick(rng, ["nearest", "linear"])

    def plain(x):
        sizes = [dim.size * by.get(dim.name, 1) for dim in x.dims]
        return x.resized(jax.image.resize(x.array, sizes, method))

    return Form(f"upsample({by}, {method})", lambda x: wf.upsample(x, by=by, method=method), plain)
