"""Configurations of models: sizes, parts, and how they are computed.

Imports what stands below the layers. A configuration is checked where it is made; the models trust it.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..checks import is_real, is_whole
from ..dims import Dim, Shape
from ..errors import DimError, TensorError, closest
from ..fields import bounded, bounds_of, choices_of, kinds_of, one_of
from ..hints import tell_maker, tell_multiple
from ..nn import weights
from ..nn.arguments import check_number
from ..nn.attention import QK_NORMS
from ..nn.feed_forward import ACTIVATIONS
from ..tensor import Tensor, as_dtype, tensor
from .experts import ExpertFields
from .rotary import RotaryFields

BIASES = ("q", "k", "v", "o", "in", "gate", "out", "norm")
LAYER_KINDS = ("local", "global")
PADDED_BY = {"vocab": "vocab_multiple", "heads": "heads_multiple", "experts": "experts_multiple"}
"""Dims that a configuration can pad, so that they divide over processors; and the field that says to what."""
for _dim, _field in PADDED_BY.items():
    tell_multiple(_dim, _field)
tell_maker("stage", "stages=2")
CONTINUATIONS = 8  # of a sequence when decoding, for `dims`; the call may bring another number


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(abc.ABC):
    """What every model's configuration has; its fields are checked where it is made."""

    name: str
    """What it is called where it is shown; the preset's if not said."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _check_field(field, getattr(self, field.name)))
        self._check_together()

    @abc.abstractmethod
    def _check_together(self) -> None:
        """Raises where fields do not go together."""

    @property
    @abc.abstractmethod
    def param_dtype(self) -> str:
        """The dtype of the weights."""

    @property
    @abc.abstractmethod
    def dims(self) -> Shape:
        """Every dim of the weights and of what is computed with them."""

    def dim(self, name: str) -> Dim:
        return self.dims.find(name)

    @abc.abstractmethod
    def blueprint(self) -> Any:
        """The model without values."""

    @abc.abstractmethod
    def batch_shapes(self) -> dict[str, Tensor]:
        """A batch as shapes, for `wf.trace` of the model's loss."""

    @property
    def param_count(self) -> int:
        """How many numbers the weights hold, padding left out."""
        return weights.count(self.blueprint())


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(ExpertFields, RotaryFields, ModelConfig):
    """A Transformer: its sizes, its parts, and how it is computed."""

    layers: int
    """How many layers the model has; of an encoder-decoder, each of the two."""
    d_model: int
    """The width of the stream between layers."""
    heads: int
    """How many heads of keys and values attention has; there are `heads` times `group` of queries."""
    d_kv: int
    """The width of a head."""
    d_ff: int
    """The width within a feed-forward part."""
    vocab: int
    """How many tokens there are."""
    heads_multiple: int = 1
    """The heads are padded to a multiple of this, so that 6 of them divide over 4 processors; the padding attends to
    nothing and has no gradient."""
    group: int = 1
    """GQA: how many query heads share one head of keys and values."""
    batch: int = 256
    """How many sequences `dims` counts on; the data may bring another number."""
    length: int = 256
    """How many tokens a sequence has; the data may bring another number."""
    max_length: int | None = None
    """How many positions the model knows, where that is more than `length`."""
    family: str | None = None
    """The `model_type` of the Hugging Face files it was read from; it is written as one of these again."""
    vocab_multiple: int = 128
    """The vocab is padded to a multiple of this; the padding is never predicted."""
    tied: bool = False
    """Tied embeddings: whether the logits are made with the embedding instead of a table of their own."""
    embedding_stddev: float = 1.0
    """Of the first vectors of words; say 0.02 where they make the logits as they are (`tied`, `tied_scale=False`)."""
    weight_stddev: float | None = bounded(least=0)
    """Of the first values of the blocks' matrices; one over the root of what they sum over if not said."""
    output_stddev: float | None = bounded(least=0)
    """Of those whose products are added to the stream, if other; 0 begins with blocks that add nothing."""
    embedding_scale: bool = False
    """Whether the vectors of words are scaled up by the root of d_model where they enter (Vaswani et al. 2017): with a
    small `embedding_stddev` they then learn as fast as they are small."""
    tied_scale: bool = True
    """Whether a tied model makes its logits smaller by the root of d_model."""
    norm: str = one_of("rms", "layer")
    """The kind of norm: RMSNorm or LayerNorm."""
    norm_place: str = one_of("pre", "output", "sandwich", "post")
    """Where norms stand: before each part of a layer (`pre`-norm); after it, before its output is added (`output`, OLMo
    2); in both places (`sandwich`, Gemma 2); or after that, and none at the end (`post`-norm, BERT)."""
    first_norm: bool = True
    """Whether the first layer's attention has a norm before it (ModernBERT's has not: the embeddings have one)."""
    norm_offset: bool = False
    """Whether RMSNorm scales by one more than its weight, which begins at 0 (Gemma)."""
    epsilon: float = 1e-6
    """What a norm adds to the mean square before its root."""
    positions: str = one_of("sinusoid", "learned", "rotary", "relative", "none")
    """`rotary` is RoPE, `relative` are T5's biases by bucket of distance, `none` leaves order to the causal mask."""
    buckets: int = 32
    """Of `relative` positions: how many biases a head has."""
    farthest: int = 128
    """Of `relative` positions: the distance from which on all share the last bias."""
    qk_norm: str = one_of(*QK_NORMS)
    """QK-norm: RMSNorm of queries and keys, before RoPE, over the channels of each `head` (Qwen 3, Gemma 3) or of `all`
    heads together (OLMo 2)."""
    relative_by_layer: bool = False
    """Whether each layer has a table of relative biases of its own (UMT5), not all one."""
    scale_scores: bool = True
    """Whether scores are divided by the root of `d_kv`; T5's are not."""
    query_scalar: float | None = None
    """Scores are divided by the root of this, where not by that of `d_kv` (Gemma's `query_pre_attn_scalar`)."""
    scale_by_layer: bool = False
    """Whether the scores of a layer are also divided by its number, counted from 1 (GPT-2's
    `scale_attn_by_inverse_layer_idx`)."""
    softcap: float | None = None
    """A bound on attention's scores."""
    logits_softcap: float | None = None
    """A bound on the logits."""
    window: int | None = None
    """How many places back attention looks, the own one counted; in `local` layers alone where there is a `pattern`."""
    pattern: str = ""
    """Which layers are `local`, with the window, and which `global`, without: the words of some layers, repeated for
    all (`local local global`)."""
    parallel: bool = False
    """Whether both parts of a layer read the same stream (GPT-NeoX), not the second one what the first made of it."""
    activation: str = one_of(*ACTIVATIONS, default="relu")
    """The activation of feed-forward parts."""
    gated: bool = False
    """Whether the activation is multiplied by a second map: SwiGLU with `silu`, GeGLU with `gelu`."""
    bias: str = ""
    """Which maps have a bias: some of `q k v o in gate out norm`."""
    dropout: float = bounded(0.0, least=0, below=1)
    """The rate of dropout, while training."""
    attention_dropout: float | None = bounded(least=0, below=1)
    """Of the shares that attention gives; `dropout` if not said."""
    hidden_dropout: float | None = bounded(least=0, below=1)
    """Of what lies between the two maps of a feed-forward part (activation dropout); `dropout` if not said."""
    output_dropout: float | None = bounded(least=0, below=1)
    """Of what all blocks and the last norm give; `dropout` if not said."""
    smoothing: float = bounded(0.0, least=0, below=1)
    """Label smoothing: the share of the target that is spread over all words."""
    z_loss: float = bounded(0.0, least=0)
    """How much the square of the log of the softmax's sum counts in the loss, which keeps logits small."""
    loss_chunks: int = 1
    """In how many pieces the logits are made, so that all of them are never held."""
    logits_dtype: str = one_of("same", "float32")
    """Of the logits that a loss is made of: `same` is the dtype of activations, which halves what the loss reads and
    writes in bfloat16. Its sums are in float32 either way, and so are the logits that a model gives (`logits`)."""
    stages: int = 1
    """Pipeline parallelism: into how many stages the layers are cut, a dim `stage` of their weights."""
    pipeline_microbatches: int | None = None
    """In how many microbatches a batch flows through the stages; as many as there are stages, if not said."""
    pipeline_rounds: int = 1
    """How often a microbatch goes round all stages, a chunk of each at a time (circular or interleaved schedule)."""
    scanned: bool | str = "auto"
    """Whether the layers run as one loop; they are stored stacked either way. `auto` writes them out on a GPU, where
    few enough are all held (no remat) whole: a loop would copy what it keeps of each."""
    unroll: int = 1
    """How many turns of that loop are written out at a time."""
    prefetch: bool = False
    """FSDP: whether that loop gathers stored weights a layer ahead, beside the work of the one before."""
    remat: bool | str = True
    """Rematerialisation: whether a layer is computed again in the backward pass; or the names of what is kept, with
    `@host` in the memory of the host: `attention`, `feed_forward`, and `stream`, what goes into a layer. A stage
    of a pipeline always is, and with True each of its layers once more, so that they are not all held at one time.
    Where it keeps `stream` only the layers are: a fifth less work, weights that are stored split are gathered twice and
    not three times, and what goes into each layer is held for every microbatch."""
    dtype: str = "bfloat16"
    """Mixed precision: of activations; norms, softmax and the sums of the loss are computed in float32."""
    param_dtype: str = "float32"
    """Of the weights; gradient sums travel in the dtype a weight is computed in, unless `sum_dtype` says otherwise."""
    matmul_dtype: str = one_of("same", "float8")
    """Of the operands of the blocks' products: attention's projections, feed-forward parts, experts with a capacity.
    `float8` is fp8, each tensor scaled by its largest value; `same` the dtype of activations."""
    attention: str = one_of("auto", "plain")
    """Whether attention may use a fused kernel."""

    def _check_together(self) -> None:
        if self.stages == 1 and (self.pipeline_rounds > 1 or self.pipeline_microbatches is not None):
            raise DimError(
                "there is no pipeline of one stage, and `pipeline_rounds` or `pipeline_microbatches` are given",
                fix="say how many `stages` there are, or leave them out",
            )
        if self.stages > (groups := self.layers // self.group_size):
            what = f"groups of {self.group_size} layers" if self.group_size > 1 else "layers"
            raise DimError(
                f"`stages` is {self.stages}, more than there are {what} ({groups})",
                fix=f"say `stages={groups}` or less" if groups > 1 else "leave `stages` out, or give more `layers`",
            )
        self.check_experts(self.layers)
        if self.balance_over == "sequences" and (self.stages > 1 or self.layers % self.group_size):
            raise DimError(
                "experts are balanced over `sequences` by all layers together, and these run apart",
                fix="say balance_over='batch', or leave `stages` out",
            )
        if isinstance(self.scanned, str) and self.scanned != "auto":
            fix = "say 'auto', True (one loop) or False (all written out)"
            raise TensorError(f"`scanned` is {self.scanned!r}", fix=fix)
        check_kept(self.remat, self.kept_names)
        if self.relative_by_layer and self.positions != "relative":
            raise TensorError(
                f"`relative_by_layer` is True, and positions are {self.positions!r}",
                fix="say positions='relative', or leave it out",
            )
        if self.positions == "rotary":
            self.check_rotary(self.d_kv)
        self._check_pattern()
        named = self.bias.split()
        if unknown := next((name for name in named if name not in BIASES), None):
            raise TensorError(f"`bias` names {unknown!r}", fix=f"name some of: {' '.join(BIASES)}")
        if ("in" in named) != ("out" in named):
            raise TensorError(f"`bias` is {self.bias!r}", fix="name both of `in` and `out`, or neither")
        if "gate" in named and not (self.gated and "in" in named):
            raise TensorError(
                f"`bias` is {self.bias!r}, and `gate` goes with a gated part that has `in` and `out`",
                fix="say `gated=True` and name `in gate out`, or leave `gate` out",
            )
        if "norm" in named and self.norm != "layer":
            raise TensorError(
                f"`bias` names `norm`, and norms are {self.norm!r}", fix="say norm='layer', or leave it out"
            )
        if "in" in named and self.experts and self.every == 1:
            raise TensorError("`bias` names `in` and `out`, and experts have none", fix="leave them out")

    def _check_pattern(self) -> None:
        """Raises where layers are local and global, and nothing tells the two apart."""
        words = self.pattern.split()
        if unknown := next((word for word in words if word not in LAYER_KINDS), None):
            raise TensorError(
                f"`pattern` names {unknown!r}", fix="name layers `local` or `global`, e.g. `local global`"
            )
        if "local" in words and self.window is None and self.local_base is None:
            raise TensorError(
                f"`pattern` is {self.pattern!r}, and local layers are as global ones",
                fix="say how far they look back, e.g. `window=1024`, or leave it out",
            )
        if self.local_base is not None and "local" not in words:
            raise TensorError(
                f"`local_base` is {self.local_base}, and no layer is `local`", fix="say which are by `pattern`"
            )
        if self.stages > 1 and self.layers % self.group_size:
            raise DimError(
                f"{self.layers} layers do not divide into groups of {self.group_size}, whose `pattern` a stage repeats",
                fix="leave `stages` out, or give a number of layers that divides",
            )

    @property
    def attention_drop(self) -> float:
        """The rate of dropout of attention's shares."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def output_drop(self) -> float:
        """The rate of dropout of what a stack gives."""
        return self.dropout if self.output_dropout is None else self.output_dropout

    @property
    def hidden_drop(self) -> float:
        """The rate of dropout between the two maps of a feed-forward part."""
        return self.dropout if self.hidden_dropout is None else self.hidden_dropout

    @property
    def products(self) -> str | None:
        """The dtype of the blocks' products, where it is another than that of operands."""
        return None if self.matmul_dtype == "same" else self.matmul_dtype

    @property
    def loss_dtype(self) -> str:
        """The dtype of the logits that a loss is made of."""
        return self.dtype if self.logits_dtype == "same" else self.logits_dtype

    @property
    def kept_names(self) -> tuple[str, ...]:
        """The names of what remat can keep of a block."""
        return ("attention", "feed_forward", "stream")

    @property
    def vocab_dim(self) -> Dim:
        return self._pad(Dim("vocab", self.vocab))

    def _pad(self, dim: Dim) -> Dim:
        """The dim with the padding that the configuration asks for."""
        return dim.padded_to(getattr(self, PADDED_BY[dim.name])) if dim.name in PADDED_BY else dim

    @property
    def max_positions(self) -> int:
        """How many positions the model knows: as many as a sequence has, or more."""
        return max(self.length, self.max_length or 0)

    @property
    def group_size(self) -> int:
        """After how many layers they repeat; 1 where all are alike."""
        return min(math.lcm(self.every if self.experts else 1, len(self.layer_kinds)), self.layers)

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Which of some layers are local and global, by the `pattern` that all repeat."""
        words = (tuple(self.pattern.split()) * self.layers)[: self.layers]  # one for each layer
        shortest = next((n for n in range(1, len(words)) if words[n:] == words[:-n]), len(words))
        return words[:shortest] or LAYER_KINDS[:1]

    @property
    def chunk_groups(self) -> int:
        """How many groups of layers a stage has in each round; the last may be padded."""
        return -(-(self.layers // self.group_size) // (self.stages * self.pipeline_rounds))

    @property
    def microbatch(self) -> Dim:
        """The microbatches of a pipeline, which wait and end split as its stages are."""
        return Dim("microbatch", self.pipeline_microbatches or self.stages, follows="stage")

    def stack_dims(self, per_group: int) -> list[Dim]:
        """The dims of weights stacked for all layers, so many a group of layers."""
        if self.stages == 1:
            return [Dim("layers", self.layers * per_group // self.group_size)]
        rounds = [Dim("rounds", self.pipeline_rounds)] if self.pipeline_rounds > 1 else []
        return [*rounds, Dim("stage", self.stages), Dim("layers", self.chunk_groups * per_group)]

    @property
    def dims(self) -> Shape:
        """Every dim of the weights and of what is computed with them."""
        sizes = {name: getattr(self, name) for name in ("batch", "length", "d_model", "heads", "d_kv", "d_ff")}
        dims = [self._pad(Dim(name, size)) for name, size in sizes.items()] + self.stack_dims(self.group_size)
        if self.stages > 1:
            dims.append(self.microbatch)
        dims += [Dim("memory_length", self.length), stream(self.length), *([self.vocab_dim] if self.vocab else [])]
        heads = next(dim for dim in dims if dim.name == "heads")
        dims.append(Dim("queries", heads.size, "heads", heads.valid))
        if self.group > 1:
            dims.append(Dim("group", self.group))
        if self.positions == "relative":
            dims.append(Dim("buckets", self.buckets))
        if self.positions == "learned":
            dims.append(Dim("positions", self.max_positions))
        if self.experts:
            dims += self._expert_dims()
        return Shape([*dims, Dim("beam", CONTINUATIONS), Dim("samples", CONTINUATIONS)])

    def _expert_dims(self) -> list[Dim]:
        """The dims of experts, and of tokens on their way to them."""
        experts = self._pad(Dim("experts", self.experts))
        dims = [experts, experts.renamed("router"), Dim("expert_batch", self.batch, "batch")]
        if self.expert_width(self.d_ff).name != "d_ff":
            dims.append(self.expert_width(self.d_ff))
        if self.shared_experts:
            dims.append(Dim("shared_ff", self.shared_experts * self.expert_width(self.d_ff).size, "d_ff"))
        if self.gating == "dropless":
            return [*dims, Dim("choices", self.top_k), Dim("expert_length", self.length, "length")]
        slots = self.expert_slots(self.length)
        return [*dims, Dim("dispatch", experts.size, "experts", experts.valid), Dim("slots", slots)]

    def batch_shapes(self) -> dict[str, Tensor]:
        """A batch as shapes, for `wf.trace` of the model's loss."""
        ids = jax.ShapeDtypeStruct((self.batch, self.length), "int32")
        return dict.fromkeys(("inputs", "targets"), tensor(ids, "batch length"))


SEARCHED = (
    "batch", "length", "memory_length", "stream", "queries", "heads", "d_ff", "vocab", "d_model", "experts", "stage",
    "params.d_model", "optimizer.d_model",
)  # fmt: skip
"""The dims of a model that a search of layouts splits where none are named."""
SEARCHED_FIRST = ("batch", "length", "heads", "d_ff", "vocab", "d_model", "experts", "stage", "params.d_model")
"""Those that a run with `layout = "auto"` splits: a search of them takes a fraction of the time."""


def need_config(config: Any, kind: type = ModelConfig) -> None:
    """Raises where something else stands for a configuration."""
    if not isinstance(config, kind):
        raise TensorError(f"{config!r:.60} is no {kind.__name__}", fix="give `models.preset(name)`, e.g. 'tiny-lm'")


def check_kept(remat: bool | str, names: Sequence[str]) -> None:
    """Raises where remat is to keep, here or on the host, what is none of these."""
    kept = [word.removesuffix("@host") for word in remat.split()] if isinstance(remat, str) else []
    if unknown := next((name for name in kept if name not in names), None):
        named = " or ".join(f"`{name}`" for name in names)
        raise TensorError(
            f"`remat` names {unknown!r}, and no block has it",
            fix=f"name what is kept, {named} (on the host: `{names[0]}@host`), or say `remat=True` to keep nothing",
        )


def stream(length: int) -> Dim:
    """The positions of the residual stream, split as `length` unless a rule names it."""
    return Dim("stream", length, follows="length")


def _check_field(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """The value of one field, if it is of its kind, within bounds, among its choices."""
    name, kinds, choices, bounds = field.name, kinds_of(field), choices_of(field), bounds_of(field)
    if name in ("dtype", "param_dtype"):
        dtype = as_dtype(value)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TensorError(f"`{name}` is {dtype}, and activations are floats", fix="give 'bfloat16' or 'float32'")
        return str(dtype)
    if choices is not None and value not in choices:
        top1 = name == "gating" and value in ("top1", "top-1", "top_1")
        raise TensorError(f"`{name}` is {value!r}", fix="top-1 is `switch`" if top1 else closest(str(value), choices))
    if int in kinds and bool not in kinds and value is not None:
        if not is_whole(value) or int(value) not in bounds:
            raise DimError(f"`{name}` is {value!r}, which is no size", fix=f"give a whole number, e.g. `{name}=8`")
        return int(value)
    if float in kinds and is_real(value):
        is_least_in = bounds.least is not None
        return float(check_number(value, name, least=bounds.least or 0, below=bounds.below, may_be_least=is_least_in))
    if not isinstance(value, kinds):
        example = f"{name}=True` or `{name}=False" if bool in kinds else f"{name}='my-lm'" if str in kinds else "0.1"
        named = " or ".join(kind.__name__ for kind in kinds)
        raise DimError(f"`{name}` is {value!r}, which is no {named}", fix=f"say `{example}`")
    return value
