"""A small net to plan and to search layouts of, with parameters and gradients."""

import jax

import weft as wf

BATCH, D_IO, HIDDEN = wf.dims(batch=64, d_io=32, hidden=128)


def shaped(make, *dims, dtype="float32"):
    return make(jax.ShapeDtypeStruct(tuple(dim.size for dim in dims), dtype), dims)


def loss(params, x):
    h = wf.relu(wf.einsum(x, params["w"], over=D_IO))
    y = wf.einsum(h, params["v"], over=HIDDEN)
    return wf.mean(y * y, over=[BATCH, D_IO])


step = wf.value_and_grad(loss)
ARGS = (
    {"w": shaped(wf.parameter, D_IO, HIDDEN), "v": shaped(wf.parameter, HIDDEN, D_IO)},
    shaped(wf.tensor, BATCH, D_IO),
)
DIMS = ["batch", "d_io", "hidden", "params.d_io", "params.hidden"]

STAGE = wf.Dim("stage", 4)


def staged_loss(params, x):
    """Four stages of a product and back, eight microbatches."""

    def stage(x, w, key):
        h = wf.relu(wf.einsum(x, w["w"], over=D_IO))
        return wf.einsum(h, w["v"], over=HIDDEN), {}

    y, _ = wf.pipeline(stage, x, params, micro=8)
    return wf.mean(y * y, over=[BATCH, D_IO])


staged = wf.value_and_grad(staged_loss)
STAGED_ARGS = (
    {"w": shaped(wf.parameter, STAGE, D_IO, HIDDEN), "v": shaped(wf.parameter, STAGE, HIDDEN, D_IO)},
    shaped(wf.tensor, BATCH, D_IO),
)
