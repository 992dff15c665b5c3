"""One net, several layouts, one answer, gradients included. It fails if an answer differs."""

import sys
from collections import Counter
from itertools import zip_longest

import jax
import numpy as np

import weft as wf

batch, d_io, hidden = wf.dims(batch=64, d_io=128, hidden=512)
MESH = wf.Mesh("rows=4, cols=2")  # 8 processors; virtual ones where there is no accelerator
LAYOUTS = {
    "data parallel": "batch:rows+cols",
    "model parallel": "hidden:rows+cols",
    "both": "batch:rows, hidden:cols",
    "fully sharded": "batch:rows+cols, params.hidden:rows+cols",
}
# Sums come in another order under each layout: rounding grows with the root of the number of terms.
TOLERANCE = np.finfo("float32").eps * hidden.size**0.5


def loss(params, x, target):
    h = wf.relu(wf.einsum(x, params["w"], over=d_io))
    y = wf.einsum(h, params["v"], over=hidden)
    return wf.mean(wf.square(y - target), over=[batch, d_io])


def make_inputs():
    keys = jax.random.split(jax.random.key(0), 4)
    w, v, x, target = map(wf.random.normal, keys, [[d_io, hidden], [hidden, d_io], [batch, d_io], [batch, d_io]])
    params = {"w": wf.parameter(w / d_io.size**0.5), "v": wf.parameter(v / hidden.size**0.5)}
    return params, x, target


def largest_difference(found, expected):
    """The largest difference between two trees of tensors, relative to the largest value."""
    pairs = zip(jax.tree.leaves(wf.get(found)), jax.tree.leaves(wf.get(expected)), strict=True)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)


def sent(program):
    """(collective x count, axes, bytes) for each kind of collective, single numbers such as the loss left out."""
    count, size = Counter(), Counter()
    for row in program.ledger:
        if row.bytes > 4:
            count[row.collective, row.axes] += row.count
            size[row.collective, row.axes] += row.count * row.bytes
    return [(f"{what} x{count[what, axes]}", "+".join(axes), f"{size[what, axes]:,}") for what, axes in count]


def main():
    inputs = make_inputs()
    step = wf.value_and_grad(loss)
    expected = step(*inputs)  # no mesh, no layout: one processor
    print(f"The net relu(x w) v, its loss and gradients, on {MESH.size} processors ({MESH}): one code, 4 layouts.\n")
    line, second = "{:24} {:10} {:12} {:18} {:10} {:>8}".format, "  {:45}  {:18} {:10} {:>8}".format
    print(line("layout", "loss", "difference", "sends", "over", "bytes"))
    print(line("one processor", f"{expected[0]:.6f}", "", "nothing", "", "").rstrip())
    failed = []
    for name, layout in LAYOUTS.items():
        found = wf.spmd(step, mesh=MESH, layout=layout)(*inputs)
        difference = largest_difference(found, expected)
        failed += [name] if not difference <= TOLERANCE else []
        first, *more = sent(wf.trace(step, *inputs, mesh=MESH, layout=layout))
        print(line(name, f"{found[0]:.6f}", f"{difference:.0e}", *first))
        for label, row in zip_longest([layout], more, fillvalue=""):
            print(second(label, *(row or [""] * 3)).rstrip())
    print(f"\ndifference: the largest in loss and gradients, relative; up to {TOLERANCE:.0e} is float32 rounding.")
    print("bytes: what each processor gives to its collectives (takes from a gather); one number, the loss, aside.")
    if failed:
        sys.exit(f"FAILED: the answer differs under {', '.join(failed)}.")
    print("The same answer under every layout: it changes what is sent and stored, never the result.")


if __name__ == "__main__":
    main()
