"""The fields of a configuration that say how experts (MoE) are made and chosen.

Imports the layer's ways of choosing and how fields are checked.
"""

import dataclasses

from ..dims import Dim
from ..errors import DimError
from ..fields import bounded, one_of
from ..nn.moe import GATINGS, SCORINGS, expert_capacity, experts_per_token

_OF_EXPERTS = (
    "experts_multiple",
    "gating",
    "top_k",
    "normalised",
    "scoring",
    "choice_bias",
    "routed_scale",
    "expert_ff",
    "shared_experts",
)  # nothing without any


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertFields:
    """A mixture of experts in place of the feed-forward part of some layers."""

    experts: int = bounded(0, least=0)
    """MoE: how many experts the feed-forward part of a layer has; 0 for a plain one."""
    experts_multiple: int = 1
    """The experts are padded to a multiple of this; no token is routed to the padding."""
    every: int = 1
    """Every how many layers have experts, the last of them counted."""
    gating: str = one_of(*GATINGS, default="switch")
    """Routing: one expert a token (`switch`), two (`top2`), `top_k`; experts choose tokens (`choice`); `dropless`:
    `top_k` without a capacity."""
    top_k: int = 2
    """How many experts a token goes to, where `gating` is `top_k` or `dropless`."""
    normalised: bool | None = None
    """Whether the shares of the experts a token goes to are made to sum to one; None: where they are several."""
    scoring: str = one_of(*SCORINGS)
    """What makes shares of a router's scores: a `softmax` of all experts, or of each a `sigmoid` (DeepSeek-V3)."""
    choice_bias: bool = False
    """Whether experts are chosen by share and a bias, which no gradient reaches (DeepSeek-V3)."""
    routed_scale: float = 1.0
    """How often what the chosen experts make counts, beside shared ones."""
    expert_ff: int | None = None
    """How wide an expert is, where not as `d_ff`."""
    shared_experts: int = bounded(0, least=0)
    """How many experts all tokens go to, beside those they choose (DeepSeek)."""
    capacity: float = 1.25
    """How many tokens an expert takes of each sequence, times its fair share."""
    expert_room: int | None = None
    """How many tokens of a sequence an expert takes, however long it is; by `capacity` if not said."""
    balance_over: str = one_of("batch", "sequences")
    """Over what experts are to be in balance: in each layer all tokens of a `batch`, and the losses of layers are
    summed; or all layers together each of the `sequences`, and the router's z-loss is their mean (Switch)."""
    balance_loss: float = bounded(0.01, least=0)
    """How much the loss counts that keeps experts in balance."""
    router_z_loss: float = bounded(0.0, least=0)
    """How much the z-loss of the router's logits counts."""
    jitter: float = bounded(0.0, least=0, below=1)
    """The router's inputs are multiplied by noise between 1 less this and 1 more, while training."""

    @property
    def choices(self) -> int:
        """How many experts a token goes to."""
        return experts_per_token(self.gating, self.top_k)

    def expert_slots(self, length: int) -> int:
        """How many tokens of a sequence of that length an expert has room for."""
        if self.expert_room is not None:
            return min(self.expert_room, length)
        return expert_capacity(length, self.experts, self.choices, self.capacity)

    def expert_width(self, d_ff: int) -> Dim:
        """The dim of what an expert has between its maps, beside dense parts of `d_ff`."""
        return Dim("d_ff", d_ff) if self.expert_ff in (None, d_ff) else Dim("expert_ff", self.expert_ff or 0, "d_ff")

    def check_experts(self, layers: int) -> None:
        """Raises where experts are spoken of that are not there, or not in these layers."""
        if self.experts and layers % self.every:
            raise DimError(
                f"every {self.every} of {layers} layers was to have experts",
                fix=f"give a number that divides {layers}",
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not self.experts and field.name in _OF_EXPERTS and value != field.default:
                raise DimError(
                    f"`{field.name}` is {value!r}, and there are no experts",
                    fix=f"say how many `experts` there are, or leave `{field.name}` out",
                )
        if self.experts and self.choices > self.experts:
            less = "`gating='switch'`" if self.gating == "top2" else f"`top_k={self.experts}` or less"
            raise DimError(
                f"a token goes to {self.choices} of {self.experts} experts",
                fix=f"say {less}, or give at least {self.choices} `experts`",
            )
