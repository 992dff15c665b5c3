"""The U-Net, flat (2-D) and of volumes (3-D): segmentation of images.

To be read from top to bottom, and copied to be changed. Nothing here says anything about processors: under
`depth:x,height:y` neighbours send each other the halos of convolutions, and nothing else here knows that an image is in
parts.

Between blocks features are called `channels`, inside a block `filters`: `filters:y` is model parallelism with one
all-reduce a block, as `d_ff` is in a Transformer.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import nn
from .. import ops as wf
from ..dims import UNSHOWN, Dim, Shape
from ..errors import DimError, TensorError, closest, public
from ..fields import bounded
from ..hints import tell_factors
from ..nn.arguments import check_divisor
from ..nn.weights import apply_dropout, fold_key
from ..tensor import Tensor, is_tensor, tensor
from .config import ModelConfig, check_kept, need_config
from .inputs import check_dropout_key, check_sizes
from .running import Runnable

SPACE = ("depth", "height", "width")
for _name in SPACE:
    tell_factors(_name, "a U-Net", {levels: 1 << (levels - 1) for levels in (2, 3, 4, 5)})


@public(form="models.UNetConfig(name='mine', height=64, width=64, classes=3)")
@dataclasses.dataclass(frozen=True, kw_only=True)
class UNetConfig(ModelConfig):
    """A U-Net: its sizes, its parts, and how it is computed."""

    height: int
    """Of images, in pixels."""
    width: int
    """Of images, in pixels."""
    classes: int
    """Into how many classes pixels are told apart."""
    depth: int = bounded(0, least=0)
    """How many slices a volume has (3-D); 0 for flat images (2-D)."""
    in_channels: int = 1
    """How many numbers an image has at each place: 1 for grey, 3 for colours."""
    channels: int = 32
    """How many features the first level has; each level below has twice as many."""
    levels: int = 4
    """How many sizes the image is seen in; each level below halves it."""
    kernel: int = 3
    """The size of the convolutions, in pixels along each axis."""
    groups: int = 8
    """Of the GroupNorm after each convolution; as many as there are channels makes it an InstanceNorm."""
    heads: int = bounded(0, least=0)
    """Of the attention at the lowest level; 0 for none."""
    d_kv: int = 32
    """The width of a head of that attention."""
    attention_block: int = bounded(0, least=0)
    """How large the blocks of an image are that see themselves and the blocks around; 0 where all places see all."""
    batch: int = 8
    """How many images `dims` counts on; the data may bring another number, and other sizes of images."""
    dropout: float = bounded(0.0, least=0, below=1)
    """After each block."""
    dice_loss: float = bounded(1.0, least=0)
    """How much 1 - soft Dice counts beside the cross-entropy."""
    remat: bool | str = True
    """Rematerialisation: whether a block is computed again in the backward pass; with `convolution` its norms alone."""
    dtype: str = "bfloat16"
    """Of activations; norms and loss are computed in float32."""
    param_dtype: str = "float32"

    def _check_together(self) -> None:
        check_kept(self.remat, ["convolution"])
        check_divisor(self.groups, "groups", divides=self.channels, of="channels")
        if self.attention_block and not self.heads:
            raise DimError(
                f"`attention_block` is {self.attention_block}, and there is no attention",
                fix="say how many `heads` it has",
            )
        for dim in self.space:
            _check_halves(dim, self.levels)
            if self.attention_block:
                lowest = dim.size >> (self.levels - 1)
                check_divisor(self.attention_block, "attention_block", divides=lowest, of=dim.name)

    @property
    def space(self) -> Shape:
        """The dims of an image: height and width, and depth of a volume."""
        return Shape(Dim(name, size) for name in SPACE if (size := getattr(self, name)))

    @property
    def dims(self) -> Shape:
        """Every dim of the weights and of what is computed with them."""
        sizes = {name: getattr(self, name) for name in ("batch", "in_channels", "channels", "classes")}
        dims = [*(Dim(name, size) for name, size in sizes.items()), *self.space, self.filters(0)]
        if self.heads:
            sides = [self.attention_block or dim.size >> (self.levels - 1) for dim in self.space]
            names = {"heads": self.heads, "d_kv": self.d_kv, "memory_length": math.prod(sides)}
            dims += [Dim("length", math.prod(sides), self.space[0].name), *(Dim(n, s) for n, s in names.items())]
        return Shape(dims)

    def features(self, level: int) -> Dim:
        """The channels between the blocks of a level."""
        return Dim("channels", self.channels << level)

    def filters(self, level: int) -> Dim:
        """The channels inside the blocks of a level."""
        return Dim("filters", self.channels << level)

    @property
    def receptive_field(self) -> int:
        """How many places away, each way, convolutions look; norms know all of an image."""
        convolutions = [4 << level for level in range(self.levels - 1)] + [2 << (self.levels - 1)]
        blocks = (1 << (self.levels - 1)) - 1  # a place of the lowest level stands for so many beside it
        return sum(convolutions) * (self.kernel // 2) + blocks

    def by_dim(self, size: int) -> dict[str, int]:
        """One size for every dim of an image: of a kernel, or of a window."""
        return dict.fromkeys(self.space.names, size)

    def blueprint(self) -> "UNet":
        """The model without values."""
        return UNet(self)

    def batch_shapes(self) -> dict[str, Tensor]:
        """A batch as shapes, for `wf.trace` of the model's loss."""
        dims = {"images": [self.dim("batch"), *self.space, self.dim("in_channels")]}
        dims["labels"] = dims["images"][:-1]
        dtypes = {"images": "float32", "labels": "int32"}
        return {n: tensor(jax.ShapeDtypeStruct([d.size for d in of], dtypes[n]), of) for n, of in dims.items()}


def _check_halves(dim: Dim, levels: int, ways: int = 1) -> None:
    """Raises where a dim cannot be halved at every level, over so many processors."""
    multiple = ways << (levels - 1)
    if more := -dim.size % multiple:
        over = f" over {ways} processors" if ways > 1 else ""
        raise DimError(
            f"`{dim.name}` has size {dim.size}, and {levels} levels{over} need a multiple of {multiple}",
            fix=f"pad it to {dim.size + more}: `wf.pad(x, over='{dim.name}', after={more})`, where labels have "
            "`weights` of 0; or take fewer `levels`",
        )


class ConvBlock(eqx.Module):
    """Two convolutions, each with a GroupNorm and a ReLU: to `filters` and back."""

    first: nn.Conv
    first_norm: nn.GroupNorm
    second: nn.Conv
    second_norm: nn.GroupNorm

    def __init__(self, config: UNetConfig, ins: Dim, level: int):
        kernel, filters, channels = config.by_dim(config.kernel), config.filters(level), config.features(level)
        self.first = nn.Conv(ins, filters, kernel)
        self.first_norm = nn.GroupNorm(filters, config.groups)
        self.second = nn.Conv(filters, channels, kernel)
        self.second_norm = nn.GroupNorm(channels, config.groups)

    def __call__(self, x: Tensor, *, over: Sequence[str]) -> Tensor:
        """`over` are the dims of the image."""
        x = wf.name(self.first(x), "convolution")
        x = wf.relu(self.first_norm(x, over=over))
        x = wf.name(self.second(x), "convolution")
        return wf.relu(self.second_norm(x, over=over))


class UpBlock(eqx.Module):
    """An image doubled in size, joined with that of its level on the way down."""

    up: nn.ConvTranspose
    block: ConvBlock

    def __init__(self, config: UNetConfig, level: int):
        below, here = config.features(level + 1), config.features(level)
        self.up = nn.ConvTranspose(below, here, config.by_dim(2), stride=2)
        self.block = ConvBlock(config, here.resized(2 * here.size), level)

    def __call__(self, x: Tensor, skip: Tensor, *, over: Sequence[str]) -> Tensor:
        both = Dim(f"{UNSHOWN}both", 2)
        joined = wf.stack([skip, self.up(x)], both)
        # By pairs, not one image after the other: so nothing moves where channels are split.
        channels = joined.dim("channels")
        joined = wf.merge(joined, [channels, both], into=channels.resized(2 * channels.size))
        return self.block(joined, over=over)


class ImageAttention(eqx.Module):
    """Self-attention of the places of an image, all or in blocks, added to it."""

    norm: nn.RMSNorm
    attention: nn.Attention | nn.BlockAttention

    def __init__(self, config: UNetConfig):
        channels, heads, d_kv = config.features(config.levels - 1), config.dim("heads"), config.dim("d_kv")
        blocks = config.by_dim(config.attention_block)
        self.norm = nn.RMSNorm(channels)
        is_local = config.attention_block > 0
        self.attention = (
            nn.BlockAttention(channels, heads, d_kv, blocks) if is_local else nn.Attention(channels, heads, d_kv)
        )

    def __call__(self, x: Tensor, *, over: Sequence[str]) -> Tensor:
        if isinstance(self.attention, nn.BlockAttention):
            return x + self.attention(self.norm(x))
        space = [x.dim(name) for name in over]
        # Places stay where they are along the first dim of the image.
        length = Dim("length", math.prod(dim.size for dim in space), follows=space[0].name)
        h = wf.merge(self.norm(x), space, into=length)
        return x + wf.broadcast(wf.split(self.attention(h), length=space), x.dims)


class UNet(Runnable):
    """A U-Net: blocks on the way down, attention below, blocks on the way up."""

    searched_dims: ClassVar[Sequence[str]] = (
        "batch",
        *SPACE,
        "filters",
        "channels",
        "params.channels",
        "optimizer.channels",
    )
    down: tuple[ConvBlock, ...]
    attention: ImageAttention | None
    up: tuple[UpBlock, ...]
    """From the first level to the last but one."""
    out: nn.Linear
    config: UNetConfig = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: UNetConfig):
        need_config(config, UNetConfig)
        super().__init__()
        self.config = config
        ins = [config.dim("in_channels"), *(config.features(level) for level in range(config.levels - 1))]
        self.down = tuple(ConvBlock(config, dim, level) for level, dim in enumerate(ins))
        self.attention = ImageAttention(config) if config.heads else None
        self.up = tuple(UpBlock(config, level) for level in range(config.levels - 1))
        self.out = nn.Linear(config.features(0), config.dim("classes"), bias=True)

    @public
    def logits(self, images: Any) -> Tensor:
        """The logits of the class of each place: f32[batch (depth) height width classes]."""
        return self.run(_logits, _name_image("images", images, self.config), None)

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy of the `labels` of `images`, and 1 - their soft Dice.

        With `weights` places count so much: 0 what an image is padded with, whose labels may be anything. There is
        dropout where a key is given.
        """
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; and its metrics: `nll`, `accuracy`, and `dice` of each class."""
        return self.run(_loss_and_metrics, _name_batch(batch, self.config), check_dropout_key(key))


# What it computes.


def _logits(model: UNet, images: Tensor, key: Any) -> Tensor:
    config = model.config
    over = config.space.names
    for dim in config.space:
        _check_halves(images.dim(dim.name), config.levels, images.ways(dim.name))
    run = _remat(config)
    keys = (fold_key(key, i) for i in range(2 * config.levels))

    skips: list[Tensor] = []
    x = wf.cast(images, config.dtype)
    for block in model.down:
        if skips:
            x = wf.max_pool(x, window=config.by_dim(2))
        x = run(lambda x, block: block(x, over=over))(x, block)
        x = apply_dropout(x, config.dropout, next(keys))
        skips.append(x)
    skips.pop()
    if model.attention is not None:
        x = model.attention(x, over=over)
    for up in reversed(model.up):
        x = run(lambda x, skip, up: up(x, skip, over=over))(x, skips.pop(), up)
        x = apply_dropout(x, config.dropout, next(keys))
    return wf.cast(model.out(x), "float32")


def _remat(config: UNetConfig) -> Callable[[Any], Any]:
    """How a block runs: computed again in the backward pass, or not."""
    if not config.remat:
        return lambda fn: fn
    return functools.partial(wf.remat, save=config.remat.split() if isinstance(config.remat, str) else ())


def _loss_and_metrics(model: UNet, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    logits = _logits(model, batch["images"], key)
    labels, weights = batch["labels"], batch.get("weights")
    if weights is not None:
        weights = wf.broadcast(wf.cast(weights, "float32"), labels.dims)
        labels = wf.where(weights == 0, 0, labels)  # whatever stands where nothing counts
    nll, _ = nn.cross_entropy(logits, labels, over="classes")
    predicted = wf.argmax(wf.stop_gradient(logits), over="classes")
    hits = wf.cast(predicted == labels, "float32")
    total: Any = math.prod(dim.count for dim in labels.dims)
    if weights is not None:
        nll, hits, total = nll * weights, hits * weights, wf.sum(weights, over=weights.dims)
        total = wf.where(total > 0, total, 1.0)  # none count: 0
    metrics = {name: wf.sum(x, over=x.dims) / total for name, x in (("nll", nll), ("accuracy", hits))}
    loss = metrics["nll"]
    if model.config.dice_loss:
        soft = nn.dice(wf.softmax(logits, over="classes"), labels, weights=weights)
        loss = loss + model.config.dice_loss * (1 - wf.mean(soft, over="classes"))
    found = wf.one_hot(predicted, logits.dim("classes"), dtype="float32")
    return loss, metrics | {"dice": nn.dice(found, labels, weights=weights)}


# What it is given.


def _name_batch(batch: Any, config: UNetConfig) -> dict[str, Tensor]:
    """The tensors of a batch, with names: `images`, `labels`, and `weights` if given."""
    names = ("images", "labels", "weights")
    if not isinstance(batch, Mapping):
        raise TensorError(
            f"the batch is {type(batch).__name__}", fix="give a dict: `{'images': images, 'labels': labels}`"
        )
    if unknown := next((name for name in batch if name not in names), None):
        raise TensorError(f"the batch has {unknown!r}, which this model does not take", fix=closest(unknown, names))
    if missing := next((name for name in names[:2] if batch.get(name) is None), None):
        raise TensorError(f"the batch has no `{missing}`", fix=f"add an array of the images' size as `{missing}`")
    named = {name: _name_image(name, value, config) for name, value in batch.items() if value is not None}
    if not jnp.issubdtype(named["labels"].dtype, jnp.integer):
        raise TensorError(f"`labels` are {named['labels'].dtype}, not classes", fix="make them integers")
    check_sizes(*named.values())
    return named


def _name_image(name: str, value: Any, config: UNetConfig) -> Tensor:
    """Images, or what goes with each place of them, as a tensor."""
    dims = ["batch", *config.space.names, *(["in_channels"] if name == "images" else [])]
    if not is_tensor(value):
        if jnp.ndim(value) != len(dims):
            raise DimError(
                f"`{name}` has shape {jnp.shape(value)}", fix=f"give an array of shape [{', '.join(dims)}], or a tensor"
            )
        value = tensor(jnp.asarray(value), " ".join(dims))
    is_part = name == "weights" and set(value.dims.names) <= set(dims)
    if set(value.dims.names) != set(dims) and not is_part:
        raise DimError(
            f"`{name}` has dims [{value.dims}], and the model reads {' '.join(f'`{dim}`' for dim in dims)}",
            fix=f"name them so: `wf.tensor({name}, '{' '.join(dims)}')`",
        )
    return value
