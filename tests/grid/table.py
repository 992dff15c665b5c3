"""The grid itself: every row, written or drawn, and the few of them that stand for the others in the fast suite.

A line is `layout | how it is computed`, or `layout ! what its refusal says`.
"""

from collections import Counter

from tests.grid.draw import draw_rows
from tests.grid.rows import CUBE, EXPERTS, HOSTS, IMAGES, KINDS, PODS, TALL, TWO, Row, Table

_table = Table()

_table.write("lm", TWO, """
    batch:x+y                                              | drop
    batch:x+y,params.d_model:x+y                           | remat=True drop
    batch:x+y,params.d_model:x+y                           | scanned=False loss_chunks=4
    batch:x+y,params.d_model:y                             | remat=True loss_chunks=4
    batch:x+y,params.d_model:y                             | scanned=False remat=True micro=2
    batch:x+y,params.d_model:y,optimizer.d_model:x+y       | drop
    batch:x+y,optimizer.d_model:x+y                        | drop
    batch:x+y,optimizer.vocab:y,optimizer.d_ff:x           | scanned=False
    batch:x,heads:y,d_ff:y,vocab:y                         | remat=attention+feed_forward drop
    batch:x,heads:y,d_ff:y,vocab:y                         | loss_chunks=4 micro=4
    batch:x,heads:y,d_ff:y,vocab:y,stream:y                | remat=True
    batch:x,heads:y,d_ff:y,vocab:y,stream:y,params.d_model:x | scanned=False drop
    batch:x,heads:y,d_ff:y,vocab:y,stream:y,queries:y      | remat=True
    batch:x,length:y                                       | drop
    batch:x,length:y,params.d_model:x                      | loss_chunks=4
    batch:x,length:y,params.d_ff:y                         | scanned=False
    batch:x,memory_length:y                                | remat=True drop
    d_model:x,heads:y,d_ff:y,vocab:y                       | drop
    batch:x,d_model:y                                      | micro=2
    batch:x,params.layers:x,optimizer.layers:x             | remat=True
    vocab:x+y,d_ff:x+y,heads:x+y,stream:x+y                | unroll=2
    batch:x+y,params.d_model:x+y                           | prefetch=True remat=True drop
    batch:x+y,params.d_model:y                             | prefetch=True loss_chunks=4
    batch:x,length:y,memory_length:y                       | drop
    length:x+y,memory_length:x+y                           | remat=True
    batch:x,length:y,memory_length:y,params.d_model:x      | scanned=False drop
    length:x,memory_length:x,heads:y,d_ff:y,vocab:y        | loss_chunks=2 micro=2
    batch:x,stream:y,queries:y                             | drop
    batch:x,stream:y,queries:y,vocab:y,params.d_model:x    | scanned=False remat=True
    stream:x+y,queries:x+y                                 | loss_chunks=4
    batch:x,length:y,queries:y                             ! dims `length` and `queries`
    batch:x,stage:y                                        | stages=4 layers=4 drop
    batch:y,stage:x                                        | stages=2 pipeline_microbatches=4 loss_chunks=4
    stage:x,heads:y,d_ff:y,vocab:y                         | stages=2 pipeline_microbatches=8 drop
    stage:x,heads:y,d_ff:y,vocab:y,stream:y                | stages=2 pipeline_rounds=2 layers=4
    batch:y,stage:x,params.d_model:y                       | stages=2 scanned=False drop
    batch:y,stage:x,optimizer.d_model:y                    | stages=2 micro=2
    batch:y,stage:x                                        | stages=2 layers=3
    batch:y,stage:x,params.d_model:y                       | stages=2 layers=4 remat=stream+attention drop
    batch:x,heads:x                                        ! dims `batch` and `heads`
    batch:x,vocab:x                                        ! are both split over axis `x`
    d_ff:x,params.d_model:x                                | drop
    batch:x,params.d_model:x,params.d_ff:x                 ! stored split over axis `x`
    batch:x,layers:y                                       ! does not divide
    batch:x,layers:x                                       ! scan goes over `layers`
    batch:x,stage:y                                        ! matches nothing
""")  # fmt: skip
_table.write("lm", TALL, """
    batch:y,heads:x,d_ff:x,vocab:x                         | scanned=False remat=True
    batch:x,length:y,params.d_model:x+y                    | drop
    length:x,heads:y,d_ff:y,vocab:y                        | loss_chunks=4
    batch:x+y,params.d_model:y,optimizer.vocab:x           | scanned=False micro=2
""")  # fmt: skip
_table.write("lm", TALL, """
    batch:y,stage:x                                        | stages=4 layers=4 pipeline_microbatches=8 prefetch=True
""")  # fmt: skip
_table.write("lm", CUBE, """
    batch:x,length:y,heads:z,d_ff:z,vocab:z,params.d_model:x | drop
    batch:x+y,heads:z,d_ff:z,vocab:z,stream:z,params.d_model:y | remat=attention+feed_forward
    batch:x+y,heads:z,d_ff:z,vocab:z,params.d_model:x+y    | scanned=False loss_chunks=4 drop
    batch:x,memory_length:y,heads:z,d_ff:y+z,vocab:z       | micro=2
    batch:x+y+z,params.vocab:x,params.d_ff:y,params.heads:z |
    batch:x,length:y,memory_length:y,heads:z,d_ff:z,vocab:z | remat=attention+feed_forward drop
    batch:x,length:y+z,memory_length:y+z,params.d_model:x  | prefetch=True remat=True
    batch:x,stage:y,heads:z,d_ff:z,vocab:z,params.d_model:x | stages=2 pipeline_microbatches=4 drop
    stage:x,length:y,memory_length:y,heads:z,d_ff:z        | stages=2 drop
    stage:x,stream:y,queries:y,batch:z                     | stages=2 drop
    batch:x,length:y,memory_length:y,stream:y+z,queries:z,vocab:z | remat=True
    batch:x,heads:y,d_ff:y,queries:y+z,stream:z            | prefetch=True
    batch:x,heads:y,d_ff:y,queries:y+z,stream:y+z          | drop
    batch:x,stage:y,length:z                               | stages=2 pipeline_rounds=2 layers=4 prefetch=True
""")  # fmt: skip

_table.write("modern lm", TWO, """
    batch:x,length:y                                       | drop
    batch:x,heads:y,d_ff:y,vocab:y,stream:y                | remat=True
    batch:x+y,params.d_model:x+y                           | scanned=False remat=True drop
    group:x,d_ff:y,vocab:y                                 | loss_chunks=4
    batch:x,length:y,memory_length:y                       | drop
    length:x+y,memory_length:x+y                           | scanned=False remat=True
    batch:x,stage:y                                        | stages=4 layers=4 pipeline_microbatches=8 drop
    heads:x+y                                              ! does not divide
""")  # fmt: skip
_table.write("modern lm", CUBE, """
    batch:x,length:y,heads:z,d_ff:z,vocab:z,params.d_model:x | scanned=False
    batch:x,memory_length:y,group:z                        | drop
    length:x,memory_length:x,heads:y,d_ff:y,batch:z        | remat=True
    stage:x,batch:y,length:z,memory_length:z               | stages=2
    batch:x,stream:y,queries:y,vocab:z                     | drop
    batch:x+y,heads:z,d_ff:z,params.d_model:y              | remat=True micro=2
""")  # fmt: skip
_table.write("relative lm", TWO, """
    batch:x,length:y                                       | drop
    batch:x,heads:y,d_ff:y,vocab:y,stream:y,params.buckets:x | remat=True
    batch:y,d_model:x,memory_length:x                      | drop
    batch:x+y,params.d_model:x+y,params.heads:y            ! stored split over axis `y`
""")  # fmt: skip
_table.write("relative lm", CUBE, """
    batch:x,length:y,heads:z                               | scanned=False remat=True
    batch:x,memory_length:y,heads:z,d_ff:z                 | drop
    batch:x,length:y,memory_length:y,heads:z               | drop
    length:x+z,memory_length:x+z,heads:y,d_ff:y            | scanned=False micro=2
    batch:x,stage:y,heads:z                                | stages=2 remat=True
    batch:x,stream:y+z,queries:y+z                         | drop
""")  # fmt: skip
_table.write("tied lm", TWO, """
    batch:x+y,params.d_model:x+y                           | remat=True loss_chunks=4
    batch:x,heads:y,d_ff:y,vocab:y                         | drop
    batch:x+y,params.vocab:y                               | scanned=False
    batch:x+y,optimizer.vocab:y                            | micro=2
""")  # fmt: skip
_table.write("tied lm", CUBE, """
    batch:x,length:y,vocab:z,params.positions:x            | drop
    batch:x+y,vocab:z,params.d_model:x                     | loss_chunks=4 remat=True
    stage:x,batch:y,vocab:z,params.d_model:y               | stages=2 pipeline_microbatches=4 drop
""")  # fmt: skip

_table.write("padded lm", TWO, """
    batch:x,heads:y,d_ff:y,vocab:y                         | drop
    batch:x,heads:y,d_ff:y,vocab:y,stream:y                | remat=True
    heads:x+y,vocab:x+y                                    | scanned=False
    batch:x,stage:y                                        | stages=4 layers=6
""")  # fmt: skip
_table.write("padded lm", CUBE, """
    batch:x,heads:y+z,d_ff:z,vocab:y,params.d_model:x      | drop
    batch:x,length:y,memory_length:y,heads:z,vocab:z       | remat=True micro=2
""")  # fmt: skip

_table.write("seq2seq", TWO, """
    batch:x+y                                              | drop
    batch:x+y,params.d_model:x+y                           | remat=True drop
    batch:x+y,optimizer.d_model:y                          | scanned=False
    batch:x,heads:y,d_ff:y,vocab:y                         | micro=2
    batch:x,heads:y,d_ff:y,vocab:y,stream:y                | remat=True
    batch:x,length:y                                       | drop
""")  # fmt: skip
_table.write("seq2seq", CUBE, """
    batch:x,length:y,heads:z,d_ff:z,vocab:z,params.d_model:x | loss_chunks=4
    batch:x,memory_length:y,heads:z,d_ff:z,vocab:z         | scanned=False drop
    batch:x+y,heads:z,d_ff:z,params.d_model:y              | remat=attention+feed_forward
    batch:x,length:y,memory_length:y,heads:z,d_ff:z        | drop
    batch:x,stage:y,heads:z,d_ff:z,vocab:z                 | stages=2 drop
    batch:x,stream:y,queries:y,vocab:z                     | remat=True
    stage:x,batch:y+z,params.d_model:z                     | stages=2 pipeline_microbatches=4
""")  # fmt: skip
_table.write("t5", TALL, """
    batch:x,heads:y,d_ff:y,vocab:y                         | drop
    batch:x+y,params.d_model:x                             | scanned=False remat=True
""")  # fmt: skip
_table.write("t5", CUBE, """
    batch:x,length:y,heads:z,d_ff:z,vocab:z,params.d_model:x | remat=True
    length:x,memory_length:y,heads:z,d_ff:z                | drop
    length:x,memory_length:x,batch:y,heads:z               | remat=True
""")  # fmt: skip

for _kind in EXPERTS:
    _table.write(_kind, TWO, """
        batch:x+y                                          | drop
        batch:x+y,experts:x+y                              | remat=True
        batch:x+y,experts:y                                | scanned=False drop
        batch:x+y,experts:x                                | drop
        batch:x,experts:x,d_ff:y                           | micro=2
        batch:x,stage:y                                    | stages=4 layers=4 every=1
    """)  # fmt: skip
    _table.write(_kind, CUBE, """
        batch:x+y,experts:x,d_ff:z,heads:z,vocab:z         | remat=True drop
        batch:x,experts:x,heads:y,d_ff:y,stream:y,params.d_model:z | scanned=False
        batch:x,experts:x,stage:y,d_ff:z                   | stages=2 drop
        batch:x,length:y,memory_length:y,experts:x,d_ff:z  | prefetch=True remat=True
    """)  # fmt: skip
_table.write("switch", TWO, """
    experts:x                                              | drop
    batch:x,experts:y                                      | loss_chunks=4
    batch:x,length:y,experts:x                             | remat=True
    batch:x+y,experts:y,params.d_model:x                   | remat=True drop
    experts:x+y,d_ff:y                                     ! are both split over axis `y`
""")  # fmt: skip
_table.write("top2", TALL, """
    batch:x,experts:x,heads:y,d_ff:y,stream:y              | drop
    batch:x+y,experts:x,params.d_model:y                   | scanned=False remat=True
""")  # fmt: skip
_table.write("dropless", TWO, """
    batch:x,d_model:y                                      | drop
    experts:x+y                                            | drop
    length:x,experts:y                                     | remat=True
    batch:x,length:y,experts:x+y                           | loss_chunks=4
    batch:x,experts:x,params.d_model:y,params.layers:x     | scanned=False prefetch=True
""")  # fmt: skip

_table.write("unet", TWO, """
    batch:x+y                                              | drop
    height:x,width:y                                       | drop
    height:x,filters:y                                     | remat=True
    batch:x,height:y,params.channels:x                     | remat=True drop
    batch:x,heads:y,filters:y                              |
    width:x+y,params.filters:y                             | remat=True
    batch:x,optimizer.channels:x,channels:y                | drop
    height:x+y                                             | drop
    channels:x+y,height:x                                  ! are both split over axis `x`
    height:x,width:x                                       ! are both split over axis `x`
""")  # fmt: skip
_table.write("unet", CUBE, """
    batch:x,height:y,width:z                               | drop
    batch:x,height:y,filters:z,params.channels:x           | remat=True
    batch:x+y,filters:z,params.channels:y                  | drop
    height:x,width:y,channels:z                            |
""")  # fmt: skip
_table.write("unet of volumes", TALL, """
    depth:x,height:y                                       | remat=True drop
    depth:y,height:x                                       |
    batch:x+y,params.channels:x                            | remat=True
    height:x+y                                             ! need a multiple of 16
""")  # fmt: skip
_table.write("unet of volumes", CUBE, """
    depth:x,height:y,width:z                               | drop
    batch:x,depth:y,height:z                               | remat=True
    depth:x+y,filters:z                                    |
    batch:x,depth:y,filters:z,params.channels:x            | remat=True drop
    depth:x,height:y,channels:z,optimizer.filters:x        |
""")  # fmt: skip
_table.write("lm", HOSTS, """
    batch:x+y                                              | drop
    batch:x+y,params.d_model:x+y                           | remat=True loss_chunks=4
    batch:x+y,optimizer.d_model:x+y                        | micro=2
    vocab:x+y,d_ff:x+y,heads:x+y,stream:x+y                | scanned=False
    length:x+y,memory_length:x+y                           | drop
    batch:y,stage:x                                        | stages=2 drop
""")  # fmt: skip
_table.write("lm", PODS, """
    batch:x+y+z,params.d_model:x+y+z                       | prefetch=True remat=True
    batch:x+y,heads:z,d_ff:z,vocab:y+z                     ! are both split over axis `y`
    batch:x,heads:z,d_ff:y+z,vocab:y+z                     | drop
""")  # fmt: skip
for _kind in ("top2", "dropless"):
    _table.write(_kind, HOSTS, "batch:x+y,experts:x+y      | drop")
    _table.write(_kind, PODS, "batch:x+y+z,experts:x+z     | remat=True")

_DRAWN = {
    "lm": 4,
    "modern lm": 3,
    "relative lm": 2,
    "tied lm": 2,
    "padded lm": 1,
    "seq2seq": 3,
    "t5": 2,
    **dict.fromkeys((*EXPERTS, *IMAGES), 2),
}
_drawn = [row for kind in KINDS for mesh in (TWO, TALL, CUBE) for row in draw_rows(kind, mesh, _DRAWN[kind])]
_drawn += [row for kind in KINDS for row in draw_rows(kind, HOSTS, 1)]
for _kind in ("lm", "modern lm", "relative lm", "seq2seq", "top2"):
    for _also in ("queries", "stage"):
        _drawn += [row for mesh in (TWO, CUBE) for row in draw_rows(_kind, mesh, 1, _also)]

ROWS: tuple[Row, ...] = (*_table.rows, *_drawn)


def expected_counts() -> dict[str, Counter[str]]:
    """How many rows of each kind there are, and what must come of them."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for row in ROWS:
        counts[row.kind]["refused" if row.refused else "equal"] += 1
        counts[row.kind]["drawn"] += row.is_drawn
    return counts


def show_counts(counts: dict[str, Counter[str]]) -> str:
    """The table in docs/parallelisms.md."""
    columns = ("model", "layouts", "of these drawn", "equal to one processor", "refused, as they must be")
    lines = [f"| {' | '.join(columns)} |", "|---|---|---|---|---|"]
    for kind, found in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        tried = sum(n for word, n in found.items() if word != "drawn")
        lines.append(f"| {kind} | {tried} | {found['drawn']} | {found['equal']} | {found['refused']} |")
    return "\n".join(lines)
