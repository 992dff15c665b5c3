"""Search layouts: every legal one on every mesh of 8 processors, ranked, and why the others lost.

Run it: `python examples/12_search_layouts.py`. The function is yours; nothing about it is known but its trace.
`weft search` does the same from the command line.
"""

import jax

import weft as wf

batch, d_io, hidden = wf.dims(batch=4096, d_io=1024, hidden=16384)


def loss(params, x):
    h = wf.relu(wf.einsum(x, params["w"], over=d_io))
    y = wf.einsum(h, params["v"], over=hidden)
    return wf.mean(y * y, over=[batch, d_io])


def shape(make, *dims):
    return make(jax.ShapeDtypeStruct([dim.size for dim in dims], "bfloat16"), dims)


def main():
    params = {"w": shape(wf.parameter, d_io, hidden), "v": shape(wf.parameter, hidden, d_io)}
    x = shape(wf.tensor, batch, d_io)
    dims = ["batch", "hidden", "d_io", "params.d_io"]

    found = wf.search(wf.value_and_grad(loss), params, x, processors=8, hardware="h100", dims=dims, keep=5)
    print(found)

    print("\nThe same where a processor has a little less than this needs:\n")
    less = int(0.97 * found.best.memory_bytes)
    found = wf.search(wf.value_and_grad(loss), params, x, processors=8, hardware="h100", dims=dims, keep=5, memory=less)
    print(found)


if __name__ == "__main__":
    main()
