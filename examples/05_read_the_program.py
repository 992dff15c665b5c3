"""Read a program before it runs: what is sent, how much, how often, why, and by which line.

Run it: `python examples/05_read_the_program.py`. Nothing is computed and no device is needed: the mesh has 512
processors. `weft show` does the same from the command line.
"""

import jax

import weft as wf

batch, length, d_model, d_ff, layers = wf.dims(batch=512, length=256, d_model=1024, d_ff=8192, layers=12)
MESH = "rows=16, cols=32"


def feed_forward(w, x):
    h = wf.gelu(wf.einsum(x, w["in"], over=d_model))
    return wf.einsum(h, w["out"], over=d_ff)


def loss(params, x):
    def layer(x, w):
        return x + feed_forward(w, x), None

    y, _ = wf.scan(wf.remat(layer), x, params, over=layers)
    return wf.mean(y * y, over=[batch, length, d_model])


def shape(make, *dims):
    return make(jax.ShapeDtypeStruct([dim.size for dim in dims], "float32"), dims)


def main():
    params = {
        "in": shape(wf.parameter, layers, d_model, d_ff),
        "out": shape(wf.parameter, layers, d_ff, d_model),
    }
    x = shape(wf.tensor, batch, length, d_model)
    step = wf.value_and_grad(loss)

    program = wf.trace(step, params, x, mesh=MESH, layout="batch:rows, d_ff:cols")
    print(program)

    print("\nThe same with parameters stored split over the rows as well; what changes:\n")
    stored = wf.trace(step, params, x, mesh=MESH, layout="batch:rows, d_ff:cols, params.d_model:rows")
    print(program.diff(stored))

    print("\nAnd where the columns only store:\n")
    wasteful = wf.trace(step, params, x, mesh=MESH, layout="batch:rows, params.d_ff:cols")
    print(wasteful.flops_duplicated.reason)


if __name__ == "__main__":
    main()
