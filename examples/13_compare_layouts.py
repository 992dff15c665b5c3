"""Compare two layouts on one page: a file to open in a browser, with no network.

Run it: `python examples/13_compare_layouts.py [FILE.html]`. It writes `layouts.html` unless a name is given.
`weft plan MODEL --layout ... --against ... --html FILE` does the same from the command line.
"""

import sys
from pathlib import Path

import jax

import weft as wf
from weft.plan import page

batch, d_io, hidden = wf.dims(batch=512, d_io=1024, hidden=4096)


def net(x, w, v):
    h = wf.relu(wf.einsum(x, w, out=[batch, hidden]))
    return wf.einsum(h, v, out=[batch, d_io])


def shape(*dims):
    return wf.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], "float32"), dims)


def main(file="layouts.html"):
    args = shape(batch, d_io), shape(d_io, hidden), shape(hidden, d_io)
    plans = [
        wf.Plan(wf.trace(net, *args, mesh="rows=4, cols=2", layout=layout), "h100")
        for layout in ("batch:rows, d_io:cols", "batch:rows, hidden:cols")
    ]
    one, two = plans
    Path(file).write_text(page(one.program, one, two.program, two), encoding="utf-8")
    print(one.program.diff(two.program))
    print(f"\n{one.seconds * 1e6:.0f} us under {one.layout}, {two.seconds * 1e6:.0f} us under {two.layout}")
    print(f"open {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
