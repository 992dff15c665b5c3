"""The U-Net: against plain jnp, the same under every layout, halos by formula, a volume that fits only when split."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import weft as wf
from weft import models, nn

SGD = optax.sgd(0.05, momentum=0.9)
FLAT = dict(height=16, width=16, batch=2, classes=4, channels=4, groups=2, in_channels=3)
DEEP = dict(depth=8, height=8, width=8, batch=2, classes=3, channels=4, groups=2)
MODELS = {
    "2-D": ("tiny-unet", FLAT | dict(levels=3, dropout=0.2)),
    "2-D, attention": ("tiny-unet", FLAT | dict(heads=2, d_kv=4, remat=True, dice_loss=0.0)),
    "2-D, blocks": ("tiny-unet", FLAT | dict(heads=2, d_kv=4, attention_block=2, remat="convolution")),
    "3-D": ("tiny-unet-3d", DEEP | dict(remat=True)),
    "3-D, attention": ("tiny-unet-3d", DEEP | dict(heads=2, d_kv=4, dropout=0.1)),
}


def config_of(model: str) -> Any:
    preset, changes = MODELS[model]
    return models.preset(preset, **changes)


def batch_of(config: Any, seed: int = 0) -> dict[str, wf.Tensor]:
    """Random images and labels; a border of them does not count."""
    random = np.random.default_rng(seed)
    shapes = config.batch_shapes()
    images, labels = (shapes[name].dims for name in ("images", "labels"))
    weights, classes = np.ones(labels.sizes, "float32"), random.integers(0, config.classes, labels.sizes)
    weights[:, -1], classes[:, -1] = 0, 255
    return {
        "images": wf.tensor(random.normal(size=images.sizes).astype("float32"), images),
        "labels": wf.tensor(classes.astype("int32"), labels),
        "weights": wf.tensor(weights, labels),
    }


def trained(model: str, mesh: str | None = None, layout: str = "") -> tuple[Any, Any, list[float], Any]:
    """The state after the first step and after the second, the losses, and the last Dice scores; dropout on."""
    config = config_of(model)
    where = () if mesh is None else (mesh, layout)
    step = wf.train_step(lambda m, batch, key: m.loss_and_metrics(batch, key), SGD, has_aux=True)
    step = step if mesh is None else wf.spmd(step, mesh=mesh, layout=layout)
    state = step.init(models.init(config, jax.random.key(1), *where))
    losses, states, dice = [], [], None
    for turn in range(2):
        state, told = step(state, batch_of(config), jax.random.fold_in(jax.random.key(7), turn))
        losses.append(float(told["loss"]))
        states.append(wf.get(state))
        dice = np.asarray(wf.get(told["dice"]))
    return *states, losses, dice


@functools.cache
def alone(model: str) -> Any:
    return trained(model)


def check_close(found: Any, wanted: Any, rtol: float) -> None:
    """Every array within `rtol` of the largest of its numbers."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(np.abs(b).max(), 1e-30))


LAYOUTS = {
    "2-D": [
        ("x=2,y=2", "height:x,width:y"),
        ("x=4", "height:x"),
        ("x=2,y=2", "batch:x,filters:y"),
        ("x=2,y=2", "height:x,channels:y"),
        ("x=2,y=2,z=2", "width:x,channels:y,filters:z"),
        ("x=2,y=2,z=2", "batch:x,height:y,width:z,params.channels:x"),
        ("x=2,y=2,z=2", "height:z+x,optimizer.channels:x,classes:y"),
    ],
    "2-D, attention": [
        ("x=2,y=2", "height:x,width:y"),
        ("x=2,y=2", "height:x,width:y,length:x+y"),
        ("x=2,y=2", "height:x,heads:y,filters:y"),
        ("x=2,y=2", "batch:x,params.channels:x,heads:y"),
    ],
    "2-D, blocks": [
        ("x=2,y=2", "height:x,width:y"),
        ("x=4", "height:x"),
    ],
    "3-D": [
        ("x=2,y=2", "depth:x,height:y"),
        ("x=2,y=2,z=2", "depth:x,height:y,width:z"),
        ("x=2,y=2,z=2", "batch:x,depth:y,filters:z"),
        ("x=2,y=2", "depth:x,channels:y,params.filters:x"),
        ("x=2", "batch:x,params.channels:x"),
    ],
    "3-D, attention": [
        ("x=2,y=2", "depth:x,height:y"),
        ("x=2,y=2,z=2", "depth:x,height:y,width:z,memory_length:x"),
    ],
}
QUICK = {("3-D, attention", "depth:x,height:y")}  # those that the others say little beyond
CASES = [
    pytest.param(model, mesh, layout, marks=() if (model, layout) in QUICK else pytest.mark.slow)
    for model, layouts in LAYOUTS.items()
    for mesh, layout in layouts
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize(("model", "mesh", "layout"), CASES)
def test_losses_gradients_and_weights_are_those_of_one_processor(model, mesh, layout):
    first, last, losses, dice = trained(model, mesh, layout)
    first_alone, last_alone, losses_alone, dice_alone = alone(model)
    np.testing.assert_allclose(losses, losses_alone, rtol=1e-5)
    np.testing.assert_allclose(dice, dice_alone, rtol=1e-5)
    # What momentum holds after one step is the gradient.
    check_close(first.optimizer, first_alone.optimizer, 1e-4)
    check_close(last.params, last_alone.params, 1e-4)
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(first.optimizer))


def plain_conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def plain_norm(x: Any, norm: nn.GroupNorm) -> Any:
    parts = x.reshape(*x.shape[:-1], norm.groups, -1)
    mean, var = (fn(parts, (1, 2, 4), keepdims=True) for fn in (jnp.mean, jnp.var))
    normed = ((parts - mean) / jnp.sqrt(var + norm.epsilon)).reshape(x.shape)
    return jax.nn.relu(normed * norm.scale.array + norm.bias.array)


def plain_block(block: Any, x: Any) -> Any:
    x = plain_norm(plain_conv(x, block.first.weight.array), block.first_norm)
    return plain_norm(plain_conv(x, block.second.weight.array), block.second_norm)


def plain_unet(model: Any, x: Any) -> Any:
    """A flat U-Net without attention, of plain arrays."""
    skips = []
    for block in model.down:
        if skips:
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        skips.append(x := plain_block(block, x))
    skips.pop()
    for up in reversed(model.up):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_transpose(x, up.up.weight.array, (2, 2), "SAME", dimension_numbers=numbers)
        joined = jnp.stack([skips.pop(), x], axis=-1)
        x = plain_block(up.block, joined.reshape(*x.shape[:-1], -1))
    return x @ model.out.weight.array + model.out.bias.array


def test_without_a_mesh_it_is_what_plain_jnp_gives():
    config = models.preset("tiny-unet", **FLAT)
    model = models.init(config, jax.random.key(2))
    batch = batch_of(config)
    logits, want = model.logits(batch["images"]), plain_unet(model, batch["images"].array)
    np.testing.assert_allclose(logits.array, want, rtol=0, atol=1e-5)
    loss, told = model.loss_and_metrics(batch)
    labels, weights = (np.asarray(batch[name].array) for name in ("labels", "weights"))
    labels = np.where(weights == 0, 0, labels)
    truth, shares = np.eye(config.classes)[labels], np.asarray(jax.nn.softmax(want))
    nll = -(np.log(shares) * truth).sum(-1)
    places = (0, 1, 2)

    def dice(found: Any) -> Any:
        both = ((found + truth) * weights[..., None]).sum(places)
        return 2 * (found * truth * weights[..., None]).sum(places) / both

    found = np.eye(config.classes)[np.asarray(want).argmax(-1)]
    mean_nll = (nll * weights).sum() / weights.sum()
    np.testing.assert_allclose(told["nll"].array, mean_nll, rtol=1e-5)
    np.testing.assert_allclose(told["dice"].array, dice(found), rtol=0, atol=1e-6)
    np.testing.assert_allclose(loss.array, mean_nll + 1 - dice(shares).mean(), rtol=1e-5)
    hits = (found.argmax(-1) == labels) * weights
    np.testing.assert_allclose(told["accuracy"].array, hits.sum() / weights.sum(), rtol=1e-5)


def halo_bytes(config: Any, ways: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """What one processor sends along each dim in the forward pass; and of it the first convolution's."""
    reach, levels = config.kernel - 1, config.levels
    convs = [(0, config.in_channels)]
    convs += [(level, config.channels << level - 1) for level in range(1, levels)]  # the first of each on the way down
    convs += [(level, config.channels << level) for level in range(levels)]  # the second
    convs += [(level, times * config.channels << level) for level in range(levels - 1) for times in (2, 1)]
    sent = []
    for level, channels in convs:
        local = {d.name: (d.size >> level) // ways.get(d.name, 1) for d in config.space}
        own = {}
        for name in ways:  # the second dim brings the corners of the first
            plane = math.prod(size for other, size in local.items() if other != name)
            own[name] = 4 * config.batch * channels * reach * plane
            local[name] += reach
        sent.append(own)
    return {name: sum(own[name] for own in sent) for name in ways}, sent[0]


@pytest.mark.parametrize("size", [3, 5])
def test_convolutions_send_the_planes_they_reach_and_pools_send_nothing(size):
    config = models.preset("tiny-unet-3d", batch=2, kernel=size)
    mesh, layout, ways = "x=2,y=4", "depth:x,height:y", {"depth": 2, "height": 4}
    forward, first = halo_bytes(config, ways)
    given = models.shapes(config), config.batch_shapes()

    def halos(fn: Any) -> dict[str, int]:
        program = wf.trace(fn, *given, mesh=mesh, layout=layout)
        assert not program.flops_duplicated
        rows = [row for row in program.ledger if row.collective != "all_reduce"]
        assert {row.collective for row in rows} == {"permute"}
        return {d: sum(r.bytes * r.count for r in rows if r.axes == (a,)) for d, a in (("depth", "x"), ("height", "y"))}

    def loss(model: Any, batch: Any) -> Any:
        return model.loss(batch)

    assert halos(lambda model, batch: model.logits(batch["images"])) == forward
    # Gradients go the way back; the images need none.
    assert halos(wf.value_and_grad(loss)) == {name: 2 * forward[name] - first[name] for name in ways}


def test_filters_cost_one_sum_a_block():
    config = models.preset("tiny-unet", batch=2, levels=3)
    program = wf.trace(
        lambda model, batch: model.logits(batch["images"]),
        models.shapes(config), config.batch_shapes(), mesh="y=2", layout="filters:y",
    )  # fmt: skip
    # The second convolution's result, [batch height width channels], of each block.
    places = [2 * (32 >> level) ** 2 * (8 << level) for level in (0, 1, 2, 1, 0)]
    assert {row.collective for row in program.ledger} == {"all_reduce"}
    assert program.ledger.bytes("y") == 4 * sum(places)


def step_of(config: Any, mesh: str, layout: str) -> tuple[Any, Any]:
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adam(1e-3))
    given = step.init(models.shapes(config)), config.batch_shapes(), jax.eval_shape(lambda: jax.random.key(0))
    return wf.spmd(step, mesh=mesh, layout=layout), given


@pytest.mark.parametrize(("levels", "size"), [(1, 3), (2, 3), (3, 3), (2, 5)])
def test_the_receptive_field_is_how_far_one_place_is_felt(levels, size):
    config = models.preset("tiny-unet", height=8, width=8, levels=levels, kernel=size)
    reach, places = config.receptive_field, 256
    # What one place of an image changes, through convolutions of ones along a line, without norms.
    kernels = [wf.ones(wf.dims(k=size, channels=1, channels_out=1)), wf.ones(wf.dims(k=2, channels=1, channels_out=1))]

    def conv(x: Any, kernel: Any = kernels[0], op: Any = wf.conv, **how: Any) -> Any:
        y = op(x, kernel, over={"width": "k"}, channels=("channels", "channels_out"), **how)
        return wf.cast(y.rename(channels_out="channels") > 0, "float32")

    felt = 0
    for at in range(120, 120 + 2**levels):
        x, skips = wf.one_hot(wf.tensor(np.array([at]), "channels"), wf.Dim("width", places)), []
        for level in range(levels):
            x = conv(conv(x if level == 0 else wf.max_pool(x, window={"width": 2})))
            skips.append(x)
        skips.pop()
        while skips:
            x = conv(conv(conv(x, kernels[1], wf.conv_transpose, stride=2) + skips.pop()))
        found = np.nonzero(np.asarray(wf.get(x)).reshape(-1))[0]
        felt = max(felt, at - found.min(), found.max() - at)
    assert felt == reach


PLACES = [("x=1", ""), ("x=2,y=2,z=2", "depth:x,height:y,width:z")]


@pytest.mark.slow
def test_a_volume_too_large_for_one_processor_fits_on_eight():
    # A brain at half a millimetre, padded, and the features of a whole U-Net, kept for the backward pass.
    config = models.preset(
        "unet-3d", depth=416, height=480, width=384, levels=3, batch=1, channels=64, dtype="float32", remat=False
    )  # fmt: skip
    programs = (wf.trace(fn, *given) for fn, given in (step_of(config, *place) for place in PLACES))
    whole, split = (wf.Plan(program, "h100", share=0.95) for program in programs)
    assert not whole.fits and split.fits
    assert split.memory.peak < whole.memory.peak / 6  # weights are whole on each, and halos lie beside slices


@pytest.mark.slow
def test_xla_holds_an_eighth_of_a_volume_too():
    config = models.preset("tiny-unet-3d", depth=64, height=64, width=64, batch=1)
    held, foretold = [], []
    for fn, given in (step_of(config, *place) for place in PLACES):
        analysis = jax.jit(fn).lower(*given).compile().memory_analysis()
        held.append(analysis.temp_size_in_bytes + analysis.argument_size_in_bytes)
        foretold.append(wf.trace(fn, *given).memory_on("cpu"))
    budget = 80 * 2**20
    assert held[1] < budget < held[0]
    assert held[1] < held[0] / 7
    assert foretold[1].fits(budget) and not foretold[0].fits(budget)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [dict(remat=True), dict(remat="convolution")], ids=str)
def test_remat_changes_nothing(changes):
    def of(**changes: Any) -> Any:
        config = models.preset("tiny-unet", **FLAT, dropout=0.2, heads=2, **changes)
        model, batch = models.init(config, jax.random.key(1)), batch_of(config)
        return jax.jit(wf.value_and_grad(lambda m: m.loss(batch, jax.random.key(3))))(model)

    value, gradients = of(**changes)
    wanted, wanted_gradients = of(remat=False)
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-6)
    check_close(gradients, wanted_gradients, 1e-5)


def test_weights_have_paths_and_activations_a_dtype_of_their_own():
    config = models.preset("tiny-unet", levels=2, dtype="bfloat16")
    model = models.shapes(config)
    assert {"down.0.first.weight", "down.1.second_norm.scale", "up.0.up.weight", "out.bias"} <= set(nn.paths(model))
    assert str(model.down[0].first.weight.dims) == "kernel_height=3 kernel_width=3 in_channels=1 filters=8"
    program = wf.trace(lambda m, x: m.logits(x), model, config.batch_shapes()["images"], mesh="x=2", layout="height:x")
    assert [str(out.dtype) for out in program.jaxpr.out_avals] == ["float32"]
    assert {row.dtype for row in program.ledger if row.collective == "permute"} == {"bfloat16"}


TINY = models.preset("tiny-unet", **FLAT)
IMAGES, LABELS = np.zeros((2, 16, 16, 3), "float32"), np.zeros((2, 16, 16), "int32")
WRONG = {
    "no dict": (IMAGES, "the batch is ndarray", "`{'images': images, 'labels': labels}`"),
    "an unknown name": ({"image": IMAGES}, "the batch has 'image'", "did you mean `images`?"),
    "no labels": ({"images": IMAGES}, "the batch has no `labels`", "as `labels`"),
    "floats for labels": ({"images": IMAGES, "labels": LABELS * 1.0}, "`labels` are float", "integers"),
    "one image": ({"images": IMAGES[0], "labels": LABELS}, "`images` has shape (16, 16, 3)", "in_channels]"),
    "other dims": (
        {"images": wf.tensor(IMAGES, "batch rows cols in_channels"), "labels": LABELS},
        "and the model reads `batch` `height` `width` `in_channels`", "wf.tensor(images, 'batch height width",
    ),
    "two sizes": ({"images": IMAGES, "labels": LABELS[:, :8]}, "height", ""),
    "an odd size": (
        {"images": IMAGES[:, :15], "labels": LABELS[:, :15]},
        "`height` has size 15, and 2 levels need a multiple of 2",
        "pad it to 16: `wf.pad(x, over='height', after=1)`, where labels have `weights` of 0",
    ),
    "other colours": ({"images": IMAGES[..., :2], "labels": LABELS}, "in_channels", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_batch_is_told_with_its_cure(name):
    batch, fact, fix = WRONG[name]
    with pytest.raises(wf.WeftError) as raised:
        models.init(TINY, jax.random.key(0)).loss(batch)
    assert fact in raised.value.fact and fix in raised.value.fix


def test_a_size_must_divide_over_processors_at_every_level():
    config = models.preset("tiny-unet", height=24, width=32, levels=3)
    with pytest.raises(wf.DimError, match="`height` has size 24, and 3 levels over 4 processors need a multiple of 16"):
        wf.trace(lambda m, b: m.loss(b), models.shapes(config), config.batch_shapes(), mesh="x=4", layout="height:x")


def test_a_size_that_does_not_divide_is_told_what_the_levels_need():
    config = models.preset("tiny-unet", height=18, width=32, levels=2)
    with pytest.raises(wf.LayoutError, match="for a U-Net to 24 with 2, 32 with 3, 32 with 4, 64 with 5 levels"):
        wf.trace(lambda m, b: m.loss(b), models.shapes(config), config.batch_shapes(), mesh="x=4", layout="height:x")
