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


# Functions and optimizers of Mesh-TensorFlow, by what is written for them here; docs/from/mesh-tensorflow.md has all.
_OF_MESH_TENSORFLOW = {
    "`wf.elementwise(fn, x, y)`": "cwise",
    "`wf.local(fn, x, out=dims)`": "slicewise",
    "`wf.power(x, y)`, or `x ** y`": "mtf_pow",
    "`wf.abs(x)`": "mtf_abs",
    "`wf.square(wf.relu(x))`": "squared_relu",
    "`wf.cast(x, 'float32')`": "to_float to_bfloat16 to_int32",
    "`x // y`, or `wf.floor_divide(x, y)`": "floordiv",
    "`x % y`, or `wf.remainder(x, y)`": "mod",
    "`x - y`, or `wf.subtract(x, y)`": "sub",
    "`x + y`, or `wf.add(x, y)`": "add_n",
    "`wf.max_pool(x, window={'length': 2})`, or wf.avg_pool": "pool_fn pool_backprop pool_tensor_1d max_pool3d",
    "`wf.avg_pool(x, window={'height': 2, 'width': 2})`": "avg_pool2d avg_pool3d",
    "`x['length', ::2]`": "stride_tensor_1d",
    "`wf.conv(x, w, over={'height': 'kh'}, channels=(c_in, c_out))`, whose gradients come by themselves":
        "conv2d_backprop_input conv2d_backprop_filter conv3d_backprop_input conv3d_backprop_filter corr",
    "`wf.conv_transpose`, in as many dims as `over` names":
        "conv2d_transpose_backprop_input conv2d_transpose_backprop_filter "
        "conv3d_transpose_backprop_input conv3d_transpose_backprop_filter",
    "`wf.shift(x, over='length', by=1)`; by a traced number, `wf.slice` of `wf.pad(x)`": "dynamic_shift",
    "`x['length', 3:7]`, or `wf.slice(x, over='length', start=3, size=4)`": "mtf_slice",
    "`wf.get(x)`, or `x.rename(batch='batch_whole')`: a name without a rule is whole": "anonymize anonymous_shape",
    "`wf.parameter(array, dims)`, and pass it as an argument": "read_variable",
    "`wf.update(x, new, over='batch', at=0)` or `wf.scatter_add`": "assign_slice assign_add_slice assign_sub_slice",
    "it into what the loss returns: `wf.train_step(..., has_aux=True)`": "scalar_summary",
    "`wf.sort(x, over='d')['d', n]`": "nth_largest_element nth_smallest_element",
    "`wf.random.categorical(key, logits / temperature, over='vocab')`": "sample_with_temperature",
    "`wf.custom_vjp`": "custom_gradient clip_activation_gradient summary_for_clip_activation_gradient",
    "`wf.accumulate(fn, params, data, over='batch', count=8)`": "serialize_training_step",
    "`print(wf.trace(fn, *args, mesh=..., layout=...).ledger)`": "pretty_print_counters",
    "`print(wf.Plan(program, hardware='h100').memory)`": "log_variable_sizes",
    "`x.ways('batch')`, the number of slices; in `wf.local`, `here.size(dim)`":
        "tensor_dim_to_mesh_dim_size tensor_dim_to_size_per_split",
    "`wf.merge(x, [a, b], into=dim)`": "combined_dimension",
    "`print(wf.Mesh('rows=2').describe())`":
        "pnum_to_processor_coordinates processor_coordinates_to_pnum pnum_to_processor_coordinates_nd "
        "processor_coordinates_to_pnum_map_nd pnum_to_group processor_groups",
    "`nn.Linear(ins, outs)`": "dense_product get_dense_kernel_weights",
    "`wf.einsum(x, w, over='d') / d.size ** 0.5`": "us_einsum",
    "`nn.Conv(ins, outs, kernel={'height': 3, 'width': 3})`, split by a layout":
        "conv2d_with_blocks conv3d_with_blocks separable_conv1d",
    "`nn.ConvTranspose(ins, outs, kernel={'height': 2}, stride=2)`":
        "conv2d_transpose conv3d_transpose conv2d_transpose_with_blocks conv3d_transpose_with_blocks",
    "`nn.BatchNorm(channels)`": "batch_norm",
    "`wf.softplus(x) - x * labels`": "sigmoid_cross_entropy_with_logits",
    "`wf.cast(targets != 0, 'float32')`": "weights_nonzero",
    "`nn.FeedForward(d_model, d_ff)`": "dense_relu_dense",
    "nothing: convolutions, shifts and pools exchange borders; the stretches themselves are `wf.windows`":
        "local_1d_halo_exchange local_2d_halo_exchange",
    "`nn.BlockAttention(channels, heads, d_kv, blocks)`":
        "local_self_attention_spatial_blocks local_2d_self_attention_spatial_blocks",
    "`nn.Attention`, called with `mask=nn.Mask(causal=True, window=128)`":
        "masked_local_attention_1d attention_bias_local_block attention_bias_local_2d_block",
    "`decode.generate(model, prompts)`, which calls the model's `step`":
        "masked_local_attention_1d_incremental multihead_self_attention_incremental "
        "multihead_encdec_attention_incremental",
    "`nn.Attention(d_model, heads, d_kv)`":
        "multihead_attention multihead_attention_vars multihead_attention_params dot_product_attention",
    "`wf.avg_pool` of keys and values, then `nn.Attention`": "multihead_self_attention_memory_compressed compress_mean",
    "`nn.Mask(causal=True, segments=ids)`":
        "attention_mask_ignore_padding attention_mask_same_segment attention_mask_autoregressive",
    "`jitter=` of `nn.MixtureOfExperts`, or `x * wf.random.uniform(key, x.dims, minval=0.9, maxval=1.1)`":
        "multiplicative_jitter",
    "`nn.Embedding(vocab, d_model)`": "embedding_weights",
    "`wf.remat(fn)`, which recomputes for the same memory": "reversible_half_residual_and_swap",
    "`wf.dropout(x, rate, key)`, whose rate may be traced": "annealed_dropout",
    "`wf.train_step(loss, optax.adam(1e-3))`": "make_optimizer",
    "`optax.sgd(1e-3, momentum=0.9)`": "SgdOptimizer MomentumOptimizer",
    "`optax.adamw(1e-3)`": "AdamWeightDecayOptimizer",
    "`optax.adafactor(1e-3)`":
        "AdafactorOptimizer adafactor_decay_rate_adam adafactor_decay_rate_pow adafactor_optimizer_from_hparams",
    "`wf.sqrt(wf.mean(wf.square(x), over=x.dims))`": "reduce_rms",
    "a schedule of Optax: `optax.warmup_cosine_decay_schedule`": "product_learning_rate compute_lr_for_step",
}  # fmt: skip

FUNCTIONS: dict[str, str] = {
    **{name: written for written, names in _OF_MESH_TENSORFLOW.items() for name in names.split()},
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
    **_each("rename_dimension replace_dimensions", "`x.rename(old='new')`, or wf.split and wf.merge"),
    **_each("mtf_range range", "`wf.arange(dim)`"),
    "random_uniform": "`wf.random.uniform(key, dims)`",
    "random_normal": "`wf.random.normal(key, dims)`",
    "gradients": "`wf.value_and_grad(loss)(params, batch)`",
    **_each("assign assign_add assign_sub", "nothing is assigned to: return the new value, or `wf.train_step`"),
    "Print": "`wf.print('{}', x)`",
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
    "eye": "`wf.one_hot(wf.arange(row), column)`",
    "identity": "`wf.positive(x)`, or `x`; for the matrix, `wf.one_hot(wf.arange(row), column)`",
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
    **_each("cross_entropy softmax_cross_entropy_with_logits", "`nn.cross_entropy(logits, targets)[1]`"),
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
    **{name: f"`wf.{name.lower()}(x)`" for name in "ReLU GELU SiLU Tanh Sigmoid ELU Softplus".split()},
    **{"Softmax": "`wf.softmax(x, over='classes')`", "LogSoftmax": "`wf.log_softmax(x, over='classes')`"},
    "LeakyReLU": "`wf.leaky_relu(x)`",
    **_each("CrossEntropyLoss NLLLoss", "`nn.cross_entropy(logits, targets, over='classes')[1]`, and `wf.mean` of it"),
    "MSELoss": "`wf.mean(wf.square(x - y), over=x.dims)`",
    "L1Loss": "`wf.mean(wf.abs(x - y), over=x.dims)`",
    "BCEWithLogitsLoss": "`wf.mean(wf.softplus(x) - x * labels, over=x.dims)`",
    **_each("BatchNorm1d BatchNorm2d BatchNorm3d", "`nn.BatchNorm(channels)`"),
    **_each("Parameter Variable", "`nn.Weight(dims, stddev=0.02)` in a layer, `wf.parameter(array, dims)` elsewhere"),
    **_each("ModuleList ModuleDict", "a list or a dict of layers; `nn.Stacked` where they are alike"),
    "Flatten": "`wf.merge(x, [height, width], into=features)`",
    "Identity": "`lambda x: x`",
    "functional": "`wf`, which has the functions: `wf.relu(x)`",
    **_each("Module", "a class of `equinox.Module`, or a function"),
    **_each("apply_rope rotary_embedding", "`nn.rope(x, position)`"),
}

OPTIMIZERS: dict[str, str] = {
    written: f"`optax.{name}(1e-3)`: optimizers are Optax's, but for those in 8 bits"
    for name, others in {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad",
                         "adafactor": "Adafactor", "lion": "Lion"}.items()
    for written in (name, others)
}  # fmt: skip

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
    "to": "`wf.cast(x, 'float32')` for a dtype; for another place, `wf.put(x, mesh=..., layout=...)`",
    "cuda": "nothing: JAX's arrays lie on the accelerator where there is one; split, `wf.put(x, mesh=..., layout=...)`",
    **_each("astype type float half double int long bfloat16", "`wf.cast(x, 'float32')`"),
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
