"""The lowering: how ops become work on local arrays, and collectives.

No op stands here. Operands meet (`meet`): one region, one placement, parameters gathered. The op computes on local
arrays, along a dim (`along`), through windows with halos (`halos`, `exchange`) or in a ring (`overlap`). What it made
is summed and moved to where the layout wants it (`move`), by the collectives of JAX (`collectives`), and the
program's record says what was done and why (`recorded`).
"""
