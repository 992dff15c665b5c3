"""Kernels: attention on plain arrays, by Pallas on a GPU and a TPU.

Nothing here knows of names or processors: whoever calls gives slices, and says by global indices which they are. Pallas
is imported where it is used, so that `import weft` does without.
"""
