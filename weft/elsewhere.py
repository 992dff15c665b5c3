"""What other libraries call things, and what is written here instead.

Imports errors alone. A name that NumPy, JAX, PyTorch or Mesh-TensorFlow would have is an error that says what to write;
any other, one that names the nearest.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import TensorError, UnknownNameError

_RANDOM = "`wf.random.{name}(key, dims)`"
_JAX = "`jax.{name}(fn)`, which takes tensors as they are"
_DTYPE = "'{name}', as text: `wf.cast(x, '{name}')`"
_REGION = "nothing: the layout says what is sent; `wf.spmd(fn, mesh=..., layout='batch:rows')`"
_ORDER = "nothing: dims are matched by name; for an order of the array, `wf.broadcast(x, 'd_model batch')`"
_PARTS = "`wf.split(x, d_model=[heads, d_kv])` or `wf.merge(x, [heads, d_kv], into=d_model)`"
_PRODUCT = "`wf.einsum(x, w, over='d_model')`"
_SLICES = "`wf.arange(dim)`, or a dim for the result: `wf.broadcast(x, [*x.dims, dim])`"


def _each(names: str, written: str) -> dict[str, str]:
    return {name: written.format(name=name) for name in names.split()}


FUNCTIONS: dict[str, str] = {
    # Mesh-TensorFlow
    **{f"reduce_{name}": f"`wf.{name}(x, over='batch')`" for name in "sum mean max min prod any all logsumexp".split()},
    "reduce_variance": "`wf.var(x, over='batch')`",
    "reduce_first": "`x['batch', 0]`",
    "top_1": "`wf.top_k(x, over='vocab', k=wf.Dim('k', 1))`, or wf.max and wf.argmax",
    "Dimension": "`wf.Dim('batch', 8)`",
    "Shape": "a list of dims: `[batch, d_model]`",
    **_each("Graph Lowering Operation MeshImpl", "nothing: `wf.spmd(fn, mesh=..., layout=...)` runs a function, "
            "`wf.trace` shows it"),
    **_each("get_variable Variable variable", "`wf.parameter(array, dims)`, or a layer of `weft.nn`"),
    **_each("import_tf_tensor import_fully_replicated import_laid_out_tensor constant",
            "`wf.tensor(array, 'batch d_model')`"),
    **_each("export_to_tf_tensor", "`wf.get(x)`"),
    **_each("LayoutRules convert_to_layout_rules parse_layout", "`wf.Layout('batch:rows, d_ff:cols')`"),
    **_each("convert_to_shape convert_to_dimension", "`wf.dims(batch=8, d_model=16)`"),
    **_each("rename_dimension replace_dimensions", "`x.rename(old='new')`"),
    **_each("mtf_range range", "`wf.arange(dim)`"),
    "random_uniform": "`wf.random.uniform(key, dims)`",
    "random_normal": "`wf.random.normal(key, dims)`",
    "gradients": "`wf.value_and_grad(loss)(params, batch)`",
    **_each("assign assign_add assign_sub", "nothing is assigned to: return the new value, or `wf.train_step`"),
    "Print": "`wf.print('{}', x)`",
    "add_n": "`a + b`",
    "recompute_grad": "`wf.remat(fn)`",
    **_each("halo_exchange left_halo_exchange", "nothing: `wf.conv`, `wf.shift` and pools exchange borders themselves"),
    **_each("allreduce allconcat alltoall allsplit", _REGION),
    **_each("simd_mesh_impl placement_mesh_impl", "`wf.Mesh('rows=4, cols=2')`"),
    **_each("layers transformer attention", "`weft.nn` for layers, `weft.models` for Transformers"),
    "optimize": "`wf.train_step(loss, optax.adam(1e-3))`",
    "auto_mtf": "`wf.search(fn, *args, processors=8)`",
    # products, orders and shapes of NumPy, JAX and PyTorch
    **_each("matmul dot tensordot vdot inner mm bmm", _PRODUCT),
    "outer": "`x * y`: dims that differ in name make the outer product",
    **_each("transpose permute swapaxes moveaxis T", _ORDER),
    **_each("reshape view flatten ravel rearrange", _PARTS),
    **_each("squeeze", "`x['batch', 0]`"),
    **_each("expand_dims unsqueeze", "nothing: operands need not have the same dims; else `wf.broadcast(x, dims)`"),
    **_each("broadcast_to expand tile repeat", _SLICES),
    **_each("concatenate cat hstack vstack", "`wf.concat([x, y], over='batch')`"),
    **_each("take_along_axis index_select", "`wf.gather(x, ids, over='vocab')` or `wf.take(x, ids, over='vocab')`"),
    "argsort": "`wf.top_k(x, over='vocab', k=dim)`, whose second result are the places",
    "scatter": "`wf.scatter_add(x, ids, updates, over='vocab')`",
    # values
    **_each("array asarray as_tensor named from_numpy", "`wf.tensor(array, 'batch d_model')`"),
    **_each("zeros_like ones_like", "`wf.zeros(x.dims, like=x)` or `wf.ones(x.dims, like=x)`"),
    **_each("full_like empty_like empty", "`wf.full(x.dims, 0.0, like=x)`"),
    **_each("eye identity", "`wf.one_hot(wf.arange(row), column)`"),
    "linspace": "`wf.arange(dim) * step + start`",
    **_each("float32 float16 bfloat16 float64 int8 int32 int64 uint8 uint32 bool_ complex64", _DTYPE),
    **_each("normal uniform gumbel bernoulli randint truncated_normal", _RANDOM),
    **_each("randn", "`wf.random.normal(key, dims)`"),
    **_each("rand", "`wf.random.uniform(key, dims)`"),
    **_each("PRNGKey key seed manual_seed", "`jax.random.key(0)`"),
    # reductions
    **_each("amax nanmax", "`wf.max(x, over='batch')`"),
    **_each("amin nanmin", "`wf.min(x, over='batch')`"),
    "std": "`wf.sqrt(wf.var(x, over='batch'))`",
    "norm": "`wf.sqrt(wf.sum(x * x, over='d_model'))`",
    **_each("allclose isclose array_equal", "`np.allclose(wf.get(x), wf.get(y))`"),
    **_each("astype convert_element_type", "`wf.cast(x, 'float32')`"),
    **_each("true_divide", "`x / y`"),
    **_each("pow", "`x ** y`"),
    # programs and placement
    **_each("jit checkpoint", _JAX),
    **_each("vjp jvp", "`wf.value_and_grad(fn)`, or `jax.{name}` of arrays"),
    **_each("map", "`wf.vmap(fn, over='batch')`"),
    **_each("shard shard_map pmap xmap pjit auto_shard named_jit", "`wf.spmd(fn, mesh='rows=4', layout='batch:rows')`"),
    **_each("device_put with_sharding_constraint", "`wf.put(tree, mesh=..., layout=...)`"),
    **_each("device_get", "`wf.get(tree)`"),
    **_each("PartitionSpec NamedSharding P", "`wf.Layout('batch:rows, d_ff:cols')`"),
    **_each("psum pmean pmax all_reduce all_gather all_to_all reduce_scatter ppermute axis_index", _REGION),
    **_each("Axis", "`wf.Dim('batch', 8)`"),
    **_each("NamedArray Array", "`wf.tensor(array, 'batch d_model')`"),
    # layers
    **_each("Linear linear dense Dense", "`nn.Linear(ins, outs)`"),
    **_each("layer_norm LayerNorm", "`nn.LayerNorm(dims)`"),
    **_each("embedding Embedding", "`nn.Embedding(vocab, d_model)`"),
    **_each("cross_entropy softmax_cross_entropy_with_logits", "`nn.cross_entropy(logits, targets)`"),
    **_each("conv1d conv2d conv3d", "`wf.conv(x, w, over={{height: kh, width: kw}}, channels=(c_in, c_out))`, or "
            "`nn.Conv`"),
    "max_pool2d": "`wf.max_pool(x, window={height: 2, width: 2})`",
    **_each("Adam adam sgd adamw Optimizer", "an optimizer of Optax: `wf.train_step(loss, optax.adam(1e-3))`"),
}  # fmt: skip

LAYERS: dict[str, str] = {
    "Dense": "`nn.Linear(ins, outs)`",
    **_each("Conv1d Conv2d Conv3d", "`nn.Conv(ins, outs, kernel={{'height': 3, 'width': 3}})`"),
    **_each(
        "ConvTranspose1d ConvTranspose2d ConvTranspose3d UpConv",
        "`nn.ConvTranspose(ins, outs, kernel={{'height': 2}}, stride=2)`",
    ),
    **_each("InstanceNorm InstanceNorm2d InstanceNorm3d", "`nn.GroupNorm(channels, channels.size)`"),
    **_each("MaxPool MaxPool2d MaxPool3d", "`wf.max_pool(x, window={{'height': 2}})`"),
    **_each("AvgPool AvgPool2d AvgPool3d", "`wf.avg_pool(x, window={{'height': 2}})`"),
    **_each("Upsample", "`wf.upsample(x, by={{'height': 2}})`"),
    **_each("MultiHeadAttention MultiheadAttention SelfAttention", "`nn.Attention(d_model, heads, d_kv)`"),
    **_each("MoE", "`nn.MixtureOfExperts(d_model, d_ff, experts)`"),
    **_each("Embed", "`nn.Embedding(vocab, d_model)`"),
    **_each("relu gelu silu softmax tanh sigmoid", "`wf.{name}`"),
    **_each("Module", "a class of `equinox.Module`, or a function"),
    **_each("apply_rope rotary_embedding", "`nn.rope(x, position)`"),
}

RANDOM: dict[str, str] = {
    **_each("PRNGKey key fold_in", "`jax.random.{name}`: keys are JAX's own"),
    **_each("randn standard_normal", "`wf.random.normal(key, dims)`"),
    **_each("rand", "`wf.random.uniform(key, dims)`"),
    **_each("choice", "`wf.random.categorical(key, logits, over='vocab')` or `wf.random.randint`"),
    **_each("permutation shuffle", "`wf.sort` or `wf.top_k` of `wf.random.uniform(key, dims)`"),
    **_each("seed", "`jax.random.key(0)`, given to what draws"),
}

_ALL = "`wf.{name}(x, over='{{all}}')`"
METHODS: dict[str, str] = {
    **_each("sum mean max min prod any all var logsumexp softmax log_softmax", _ALL),
    **_each("argmax argmin cumsum cumprod cummax sort flip", "`wf.{name}(x, over='{{one}}')`"),
    "std": "`wf.sqrt(wf.var(x, over='{all}'))`",
    "shape": "`x.dims` for names and sizes, `x.size('{one}')` for one of them, `x.dims.sizes` for all",
    **_each("ndim rank dim_names axes names", "`x.dims`: `len(x.dims)`, `x.dims.names`"),
    **_each("T mT H transpose permute swapaxes", "nothing: dims are matched by name; for an order of the array, "
            "`wf.broadcast(x, '{{back}}')`"),
    **_each("reshape view flatten ravel resize",
            "`wf.split(x, {{one}}=[a, b])` or `wf.merge(x, [a, b], into=dim)`"),
    **_each("astype to type float half double int long bfloat16", "`wf.cast(x, 'float32')`"),
    **_each("at index_add index_put", "`wf.update(x, new, over='{{one}}', at=0)` or "
            "`wf.scatter_add(x, ids, updates, over='{{one}}')`"),
    **_each("dot matmul mm", "`wf.einsum(x, w, over='{{last}}')`"),
    **_each("squeeze", "`x['{{one}}', 0]`"),
    **_each("unsqueeze expand repeat tile broadcast_to expand_as", "`wf.broadcast(x, [*x.dims, dim])`"),
    **_each("item tolist", "`float(x)`, or `wf.get(x).{name}()`"),
    **_each("numpy cpu", "`wf.get(x)`"),
    **_each("copy clone detach", "nothing for a copy: a tensor never changes; for no gradient, `wf.stop_gradient(x)`"),
    **_each("grad backward requires_grad", "`wf.grad(loss)(params, batch)`"),
    **_each("sharding device devices addressable_shards", "`x.layout`; outside a region `x.array.{name}`"),
    "block_until_ready": "`jax.block_until_ready(x)`",
    **_each("nbytes itemsize", "`x.array.{name}`"),
    **_each("take gather", "`wf.{name}(x, ids, over='{{one}}')`"),
    **_each("split chunk", "`wf.unstack(x, over='{{one}}')`, `x['{{one}}', 0:4]`, or for parts of a dim `wf.split`"),
    **_each("set add multiply", "`wf.update(x, new, over='{{one}}', at=0)`"),
    **_each("clip clamp", "`wf.clip(x, low, high)`"),
    **_each("abs exp log sqrt square tanh sin cos relu sigmoid round conj real imag", "`wf.{name}(x)`"),
    **_each("masked_fill where", "`wf.where(mask, value, x)`"),
    **_each("backend", "`jax.default_backend()`"),
}  # fmt: skip

OF_A_TENSOR = ("array", "dim", "dims", "dtype", "layout", "local_array", "rename", "size", "ways")


def unknown_method(x: Any, name: str) -> UnknownNameError:
    """The error for a name that a tensor lacks; the fix names the tensor's own dims."""
    names = x.dims.names or ("batch",)
    parts = {"all": " ".join(names), "one": names[0], "last": names[-1], "back": " ".join(reversed(names))}
    if name in METHODS:
        return UnknownNameError(f"a tensor has no `{name}`: {x!r}", fix=f"write {METHODS[name].format(**parts)}")
    near = difflib.get_close_matches(name, OF_A_TENSOR, n=1, cutoff=0.6)
    has = f"it has {', '.join(f'`{word}`' for word in OF_A_TENSOR)}"
    fix = f"did you mean `x.{near[0]}`?" if near else f"{has}; functions are `wf.{name}(x, ...)`"
    return UnknownNameError(f"a tensor has no `{name}`: {x!r}", fix=fix)


def wrong_rename(wrong: Sequence[Any]) -> TensorError:
    """The error for a rename by position, with the call to write."""
    names = wrong[0] if isinstance(wrong[0], Mapping) else {"old": "new"}
    pairs = ((getattr(old, "name", old), getattr(new, "name", new)) for old, new in names.items())
    written = ", ".join(f"{old}={new!r}" for old, new in pairs)
    return TensorError(
        f"rename takes names by keyword, and got {', '.join(map(repr, wrong)):.80}", fix=f"write `x.rename({written})`"
    )
