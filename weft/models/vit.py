"""The vision Transformer (ViT): an encoder of patches, which tells images apart.

Made of the parts of `transformer.py`. The patches of an image and one token of class are a sequence; under rules of
`length` it is padded to what divides over the processors, and the padding is seen by none.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax

from .. import nn
from .. import ops as wf
from ..checks import is_whole
from ..dims import Dim, Shape
from ..errors import DimError, TensorError, public
from ..fields import bounded, one_of
from ..lower.rules import ways_under
from ..nn.weights import apply_dropout, fold_key, normal
from ..tensor import Tensor, is_tensor, tensor
from .config import TransformerConfig, need_config, stream
from .heads import TRANSFORMS, Transform, class_logits, class_loss, make_classifier, make_transform
from .inputs import check_dropout_key, name_tensor
from .running import Runnable
from .stack import Stack, deal_out, put_together
from .transformer import make_stack

_IMAGE = ("batch", "height", "width", "in_channels")


@public(
    form="models.ViTConfig(name='mine', layers=2, d_model=64, heads=4, d_kv=16, d_ff=256, height=32, width=32, "
    "patch_height=8, patch_width=8, classes=10)"
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(TransformerConfig):
    """A vision Transformer; `length` is how many patches an image has, and one more."""

    height: int = 224
    """Of images, in pixels."""
    width: int = 224
    """Of images, in pixels."""
    patch_height: int = 16
    """Of a patch, which becomes one token."""
    patch_width: int = 16
    """Of a patch."""
    in_channels: int = 3
    """How many numbers a pixel has."""
    classes: int = bounded(0, least=0)
    """Into how many classes images are told apart; 0 for an encoder alone."""
    pooler: str = one_of("none", *TRANSFORMS)
    """The activation of a dense layer before the logits of classes."""
    head_bias: bool = True
    """Whether the dense layer of the `pooler` has a bias."""
    classifier_dropout: float | None = bounded(least=0, below=1)
    """Of what classes are told from; none if not said."""
    vocab: int = bounded(0, least=0)
    """There are no words."""
    norm: str = one_of("layer", "rms")
    positions: str = one_of("learned", "rotary", "relative", "none")
    activation: str = dataclasses.field(
        default="gelu", metadata=TransformerConfig.__dataclass_fields__["activation"].metadata
    )
    bias: str = "q k v o in out norm"

    def __post_init__(self) -> None:
        sizes = (self.height, self.width, self.patch_height, self.patch_width)
        if all(is_whole(size, least=1) for size in sizes):  # what is not is told with the other fields
            object.__setattr__(
                self, "length", (self.height // self.patch_height) * (self.width // self.patch_width) + 1
            )
            object.__setattr__(self, "max_length", None)
        super().__post_init__()

    def _check_together(self) -> None:
        super()._check_together()
        for side in ("height", "width"):
            size, patch = getattr(self, side), getattr(self, f"patch_{side}")
            if size % patch:
                raise DimError(
                    f"`{side}` is {size}, which does not divide into patches of {patch}",
                    fix=f"give a multiple of {patch} (nearest: {size // patch * patch or patch}, "
                    f"{(size // patch + 1) * patch}), or another `patch_{side}`",
                )
        if self.vocab:
            raise TensorError(f"`vocab` is {self.vocab}, and a vision Transformer reads no words", fix="leave it out")

    @property
    def classifier_drop(self) -> float:
        """The rate of dropout of what classes are told from."""
        return 0.0 if self.classifier_dropout is None else self.classifier_dropout

    @property
    def dims(self) -> Shape:
        """Every dim of the weights and of what is computed with them."""
        names = ("height", "width", "patch_height", "patch_width", "in_channels", "classes")
        more = [Dim(name, size) for name in names if (size := getattr(self, name))]
        return Shape([*super().dims.without(["beam", "samples"]), *more])

    def batch_shapes(self) -> dict[str, Tensor]:
        """A batch as shapes, for `wf.trace` of the model's loss."""
        images = jax.ShapeDtypeStruct([getattr(self, name) for name in _IMAGE], "float32")
        labels = jax.ShapeDtypeStruct((self.batch,), "int32")
        return {"images": tensor(images, " ".join(_IMAGE)), "labels": tensor(labels, "batch")}

    def blueprint(self) -> "ViT":
        """The model without values."""
        return ViT(self)


class ViT(Runnable):
    """A vision Transformer: patches, a token of class, an encoder, a classifier."""

    patches: nn.Patches
    token: Tensor
    """The token of class, which comes before the patches: [d_model]."""
    positions: nn.Embedding | None
    encoder: Stack
    pooler: Transform | None
    classifier: nn.Linear | None
    config: ViTConfig = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: ViTConfig):
        need_config(config, ViTConfig)
        super().__init__()
        self.config = config
        d_model = config.dim("d_model")
        sizes = {"height": config.patch_height, "width": config.patch_width}
        self.patches = nn.Patches(config.dim("in_channels"), d_model, sizes, into="patches")
        self.token = normal([d_model], stddev=0.02)
        is_learned = config.positions == "learned"
        self.positions = nn.Embedding(config.dim("positions"), d_model, stddev=0.02) if is_learned else None
        self.encoder = make_stack(config, causal=False)
        self.pooler = make_transform(config, config.pooler, has_norm=False)
        self.classifier = make_classifier(config)

    @public
    def logits(self, images: Any) -> Tensor:
        """The logits of the classes of each image: f32[batch classes].

        Images are [batch height width in_channels], or tensors of these dims in any order.
        """
        return self.run(_logits, {"images": name_images(images, self.config)}, None)

    @public
    def hidden(self, images: Any) -> Tensor:
        """What the encoder makes of each patch: [batch patches d_model], class first."""
        return self.run(_hidden_whole, {"images": name_images(images, self.config)})

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy of `labels` for `images`; dropout where a key is given."""
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; and its metrics: `nll`, `accuracy`."""
        if not isinstance(batch, Mapping) or set(batch) != {"images", "labels"}:
            has = sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            raise TensorError(f"the batch has {has}", fix="give `{'images': .., 'labels': ..}`")
        batch = {
            "images": name_images(batch["images"], self.config),
            "labels": name_tensor("labels", batch["labels"], "row"),
        }
        return self.run(_loss_and_metrics, batch, check_dropout_key(key))


def name_images(images: Any, config: ViTConfig) -> Tensor:
    """Images as a tensor with names, if they have the sizes of the model's."""
    if not is_tensor(images):
        images = jax.numpy.asarray(images)
        if images.ndim != len(_IMAGE):
            raise DimError(
                f"`images` has shape {images.shape}", fix=f"give an array of shape [{', '.join(_IMAGE)}], or a tensor"
            )
        images = tensor(images, " ".join(_IMAGE))
    sizes = {name: getattr(config, name) for name in _IMAGE[1:]}
    if set(images.dims.names) != set(_IMAGE) or any(images.size(name) != size for name, size in sizes.items()):
        wanted = " ".join(f"{name}={size}" for name, size in sizes.items())
        raise DimError(
            f"`images` has dims [{' '.join(f'{dim.name}={dim.size}' for dim in images.dims)}], "
            f"and the model reads [batch {wanted}]",
            fix="give images of that size, channels last; in another order: "
            "`wf.tensor(images, 'batch in_channels height width')`",
        )
    if not jax.numpy.issubdtype(images.dtype, jax.numpy.floating):
        raise TensorError(f"`images` holds {images.dtype}", fix="make them floats, as the model was trained with")
    return images


def _loss_and_metrics(model: ViT, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return class_loss(_logits(model, {"images": batch["images"]}, key), batch["labels"], model.config.smoothing)


def _logits(model: ViT, batch: dict[str, Tensor], key: Any) -> Tensor:
    if model.classifier is None:
        raise TensorError("the model has no classes", fix="take `model.hidden(images)`, or say `classes=2` or so")
    x = _hidden(model, deal_out(batch, model.config)["images"], key)
    return class_logits(model, put_together(x["stream", 0]), fold_key(key, 3))


def _hidden_whole(model: ViT, batch: dict[str, Tensor]) -> Tensor:
    x = put_together(_hidden(model, deal_out(batch, model.config)["images"], None))
    return wf.unpad(x.rename(stream="patches"), "patches")


def _hidden(model: ViT, images: Tensor, key: Any) -> Tensor:
    """What classes are told from: [batch stream d_model]."""
    config = model.config
    x = model.patches(wf.cast(images, config.dtype)).rename(patches=Dim("patches", config.length - 1))
    x = wf.pad_to(wf.pad(x, over="patches", before=1), "patches", _ways(config.length, x))
    x = x.rename(patches=stream(x.dim("patches").count))
    place = wf.arange(x.dim("stream"), like=x)
    x = wf.where(place == 0, wf.cast(model.token, x.dtype), x, names="any")
    if model.positions is not None:
        x = wf.add(x, model.positions(place, config.dtype), names="subset")
    x = apply_dropout(x, config.dropout, fold_key(key, 0))
    x, _ = model.encoder(x, mask=nn.Mask.within(), key=fold_key(key, 1))
    return x


def _ways(length: int, x: Tensor) -> int:
    """Over how many processors positions must divide."""
    dims = [Dim("length", length), stream(length), Dim("memory_length", length)]
    return math.lcm(*(ways_under(x, dim) for dim in dims))
