"""What a layer cannot do it says, at the user's line, with what to do instead."""

import jax
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import nn

from .cases import IDS, D, E, F, H, T, V, X

KEY = jax.random.key(0)
TABLE = nn.Embedding(V, D, key=KEY)
HERE = wf.arange(T)
RECURRENT = nn.GRU(D, F, key=KEY)


def loss(**how):
    return nn.summed_cross_entropy(TABLE.logits, X, IDS, **how)


def relative(buckets, farthest, is_causal=True):
    return nn.RelativeBias(wf.Dim("buckets", buckets), H, is_causal=is_causal, farthest=farthest, key=KEY)


WRONG = {
    "an activation of feed-forward": (lambda: nn.FeedForward(D, F, activation="rleu"), "did you mean `relu`?"),
    "no activation": (lambda: nn.FeedForward(D, F, activation=None), "use one of: `gelu`"),
    "sizes for dims": (lambda: nn.FeedForward(16, 32, key=KEY), "wf.Dim('d_model', 8)"),
    "feed-forward of other dims": (lambda: nn.FeedForward(E, F, key=KEY)(X), "use one of"),
    "dropout of 1": (lambda: nn.FeedForward(D, F, key=KEY)(X, key=KEY, dropout=1.0), "[0, 1)"),
    "dropout below 0": (lambda: nn.FeedForward(D, F, key=KEY)(X, key=KEY, dropout=-0.1), "[0, 1)"),
    "an activation of experts": (lambda: nn.MixtureOfExperts(D, F, E, activation="gelu_tan"), "`gelu_tanh`?"),
    "a gating": (lambda: nn.MixtureOfExperts(D, F, E, gating="top3"), "did you mean `top2`?"),
    "no gating": (lambda: nn.MixtureOfExperts(D, F, E, gating=None), "use one of"),
    "no capacity": (lambda: nn.MixtureOfExperts(D, F, E, capacity=0), "above 0, e.g. `capacity=1.25`"),
    "a capacity below 0": (lambda: nn.MixtureOfExperts(D, F, E, capacity=-1.0), "above 0"),
    "a capacity that is no number": (lambda: nn.MixtureOfExperts(D, F, E, capacity="1"), "above 0"),
    "a capacity without end": (lambda: nn.MixtureOfExperts(D, F, E, capacity=float("nan")), "above 0"),
    "jitter of 1": (lambda: nn.MixtureOfExperts(D, F, E, jitter=1.0), "from 0 and below 1"),
    "jitter below 0": (lambda: nn.MixtureOfExperts(D, F, E, jitter=-0.1), "from 0 and below 1"),
    "expert dropout of 1": (lambda: nn.MixtureOfExperts(D, F, E, dropout=1.0), "from 0 and below 1"),
    "a count of experts": (lambda: nn.MixtureOfExperts(D, F, 8), "wf.Dim('experts', 8)"),
    "a seed for a key": (lambda: nn.MixtureOfExperts(D, F, E, jitter=0.1, key=KEY)(X, key=3), "jax.random.key"),
    "groups that do not divide": (lambda: nn.GroupNorm(D, 3), "divides 16, e.g. `groups=2`"),
    "no groups": (lambda: nn.GroupNorm(D, 0), "divides 16, e.g. `groups=1`"),
    "groups below 0": (lambda: nn.GroupNorm(D, -2), "divides 16"),
    "groups and a half": (lambda: nn.GroupNorm(D, 2.5), "divides 16"),
    "more groups than channels": (lambda: nn.GroupNorm(D, 32), "`groups=16`"),
    "a group norm over its channels": (lambda: nn.GroupNorm(D, 2, key=KEY)(X, over="length d_model"), "over='length'"),
    "a group norm over a typo": (lambda: nn.GroupNorm(D, 2, key=KEY)(X, over="lenght"), "did you mean `length`?"),
    "a group norm of other channels": (lambda: nn.GroupNorm(F, 2, key=KEY)(X, over="length"), "use one of"),
    "a batch norm over its channels": (lambda: nn.BatchNorm(D, key=KEY)(X, over="batch d_model"), "over='batch'"),
    "a batch norm over too little": (lambda: nn.BatchNorm(D, key=KEY)(X, over="batch"), "over='batch length'"),
    "a batch norm of other channels": (lambda: nn.BatchNorm(F, key=KEY)(X, over="batch length"), "use one of"),
    "the same at inference": (lambda: nn.BatchNorm(F, key=KEY)(X, over="batch", training=False), "use one of"),
    "a norm of a dim that is not there": (lambda: nn.LayerNorm(F, key=KEY)(X), "use one of"),
    "a norm of an array": (lambda: nn.BatchNorm(D, key=KEY)(X.array, over="batch"), "wf.tensor"),
    "a norm of another size": (lambda: nn.RMSNorm(D.resized(8), key=KEY)(X), "same size"),
    "a map from what is not there": (lambda: nn.Linear(F, D, key=KEY)(X), "use one of"),
    "a map to what is there": (lambda: nn.Linear(D, T, key=KEY)(X), "x.rename(length='length_in')"),
    "feed-forward with its d_ff": (lambda: nn.FeedForward(D, T, key=KEY)(X), "x.rename(length='length_in')"),
    "experts with their d_ff": (
        lambda: nn.MixtureOfExperts(D, IDS.dims[0], E, key=KEY)(X),
        "x.rename(batch='batch_in')",
    ),
    "attention with its heads": (lambda: nn.Attention(D, IDS.dims[0], F, key=KEY)(X), "x.rename(batch='batch_in')"),
    "logits of what has a vocab": (lambda: nn.Embedding(T, D, key=KEY).logits(X), "x.rename(length='length_in')"),
    "a state with its gates": (lambda: RECURRENT(X.rename(batch="gates")), "x.rename(gates='gates_in')"),
    "a recurrent layer of an array": (lambda: RECURRENT(X.array), "wf.tensor"),
    "patches of an array": (lambda: nn.Patches(D, F, {"length": 2}, key=KEY)(X.array), "wf.tensor"),
    "a recurrent layer in a sequence": (lambda: nn.Sequential([RECURRENT, nn.Linear(F, D, key=KEY)])(X), "`[0]` of it"),
    "a map of an array": (lambda: nn.Linear(D, F, key=KEY)(X.array), "wf.tensor"),
    "a map of names": (lambda: nn.Linear("d_model", "d_ff", key=KEY), "wf.Dim('d_model', 8)"),
    "a map from a dim twice": (lambda: nn.Linear([D, D], F, key=KEY), "d_model_2"),
    "a map with a seed": (lambda: nn.Linear(D, F, key=3), "jax.random.key"),
    "a table of a size": (lambda: nn.Embedding(61, D), "wf.Dim('ids', 8)"),
    "ids that are floats": (lambda: TABLE(X), "wf.cast"),
    "rotations of odd channels": (lambda: nn.rope(wf.ones([T, wf.Dim("d_kv", 7)]), HERE), "8"),
    "rotations of what is not there": (lambda: nn.rope(X, HERE), "use one of"),
    "rotations by base 0": (lambda: nn.rope(X, HERE, over="d_model", base=0), "above 0"),
    "sinusoids of a name": (lambda: nn.sinusoids(HERE, "d_model", X), "wf.Dim('d_model', 8)"),
    "one bucket": (lambda: relative(1, 128), "give 2, or more"),
    "three buckets both ways": (lambda: relative(3, 128, is_causal=False), "give 4, or more"),
    "a farthest that is near": (lambda: relative(32, 16), "above 16, e.g. `farthest=128`"),
    "chunks that do not divide": (lambda: loss(chunks=3), "divides 16, e.g. `chunks=2`"),
    "no chunks": (lambda: loss(chunks=0), "divides 16, e.g. `chunks=1`"),
    "chunks below 0": (lambda: loss(chunks=-2), "divides 16"),
    "chunks that are no number": (lambda: loss(chunks="2"), "divides 16"),
    "chunks over a typo": (lambda: loss(chunks=2, over="lenght"), "did you mean `length`?"),
    "smoothing of 1": (lambda: loss(smoothing=1.0), "from 0 and below 1"),
    "smoothing below 0": (lambda: loss(smoothing=-0.1), "from 0 and below 1"),
    "a z-loss below 0": (lambda: loss(z_loss=-1.0), "from 0"),
    "targets that are floats": (lambda: nn.cross_entropy(TABLE.logits(X), wf.cast(IDS, "float32")), "wf.cast"),
    "a loss without a vocab": (lambda: nn.cross_entropy(X, IDS), "`over='d_model'`"),
}


@pytest.mark.parametrize("act, fix", WRONG.values(), ids=WRONG)
def test_wrong_input_is_named_with_a_cure(act, fix):
    assert fix in error_of(act).fix


def test_an_error_inside_a_region_names_its_layout():
    layer = nn.BatchNorm(D, key=KEY)
    run = wf.spmd(lambda x: layer(x, over="batch"), mesh="x=8", layout="batch:x")
    error = error_of(lambda: run(X), wf.DimError)
    assert "layout: batch:x" in error.state
