"""The same models in Weft, in JAX by hand and in PyTorch, for `benchmarks/gpu.py`."""
