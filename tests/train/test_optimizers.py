"""Schedules and updates are those of their formulas, and the same on every layout."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from weft.train.optimizers import decays, schedule
from weft.train.step import Averaged, first_model, make_step, optimizer_metrics, update
from weft.train.tables import Optimizer, Schedule

from .running import config_of, losses, run

RATE, STEPS, COOLDOWN = 0.5, 40, 8
NAMES = [
    name for name in Optimizer.__dataclass_fields__["name"].metadata["choices"] if "8bit" not in name and name != "muon"
]
SCHEDULES = Schedule.__dataclass_fields__["kind"].metadata["choices"]


# Schedules: the rate of the step after `done` ones.


def warmed(done, warmup):
    return RATE * (done + 1) / warmup


def rsqrt(done, warmup):
    step, first = (done, warmup) if warmup else (done + 1, 1)
    return RATE * math.sqrt(first / step) * min((STEPS - step) / COOLDOWN, 1)


FORMULAS = {
    "constant": lambda done, warmup: RATE,
    "linear": lambda done, warmup: RATE * (1 - 0.75 * (done - warmup) / (STEPS - warmup)),
    "cosine": lambda done, warmup: (
        RATE * (0.25 + 0.75 * (1 + math.cos(math.pi * (done - warmup) / (STEPS - warmup))) / 2)
    ),
    "rsqrt": rsqrt,
    "wsd": lambda done, warmup: RATE * (0.25 + 0.75 * min((STEPS - done) / COOLDOWN, 1)),
}


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_a_schedule_is_its_formula(kind, warmup):
    rate = schedule(Schedule(kind=kind, rate=RATE, warmup=warmup, end=0.25, cooldown=COOLDOWN), STEPS)
    for done in range(STEPS):
        wanted = (warmed if done < warmup else FORMULAS[kind])(done, warmup)
        assert float(rate(done)) == pytest.approx(wanted, rel=1e-5), done


def test_the_papers_schedule_warms_up_falls_by_the_root_and_ends_at_0():
    rate = schedule(Schedule(kind="rsqrt", rate=1.0, warmup=4, cooldown=8), 36)
    found = [float(rate(done)) for done in range(37)]
    assert found[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert found[16] == pytest.approx(0.5) and found[25] == pytest.approx(0.4)
    assert found[32] == pytest.approx(math.sqrt(4 / 32) / 2) and found[36] == 0


def test_a_warmup_longer_than_the_run_only_warms_up():
    rate = schedule(Schedule(kind="cosine", rate=1.0, warmup=100), 10)
    assert [float(rate(done)) for done in (0, 9)] == pytest.approx([0.01, 0.1])


# Updates: three steps by hand, of a matrix that decays and a norm that does not.

DECAY, B1, B2, EPSILON, MOMENTUM, CLIP = 0.1, 0.8, 0.9, 1e-8, 0.7, 0.5
OWN = {"b1": B1, "b2": B2, "epsilon": EPSILON, "momentum": MOMENTUM, "weight_decay": DECAY}
SIZES = (128, 160)  # as large as Adafactor asks for to keep rows and columns


def settings(name, **own):
    rate = {"kind": "linear", "rate": 0.01, "end": 0.5}
    return config_of("x", optimizer={"name": name, **OWN, **own}, schedule={**rate, "warmup": 0})


def rates():
    return [float(schedule(settings("sgd").schedule, 8)(done)) for done in range(3)]


def draws():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=SIZES), "norm": rng.normal(size=SIZES[1])}
    return params, [{name: rng.normal(size=x.shape) for name, x in params.items()} for _ in range(3)]


class ByHand:
    """The direction of an update, as the papers write it."""

    def __init__(self, name):
        self.way, self.first, self.second, self.step = getattr(self, name), 0.0, 0.0, 0

    def __call__(self, gradient):
        self.step += 1
        return self.way(gradient)

    def sgd(self, gradient):
        return gradient

    def momentum(self, gradient):
        self.first = MOMENTUM * self.first + gradient
        return self.first

    def lion(self, gradient):
        direction = np.sign(B1 * self.first + (1 - B1) * gradient)
        self.first = B2 * self.first + (1 - B2) * gradient
        return direction

    def adam(self, gradient):
        self.first = B1 * self.first + (1 - B1) * gradient
        self.second = B2 * self.second + (1 - B2) * gradient**2
        first, second = self.first / (1 - B1**self.step), self.second / (1 - B2**self.step)
        return first / (np.sqrt(second) + EPSILON)

    adamw = adam

    def adafactor(self, gradient):
        kept = 1 - self.step**-0.8
        squares = gradient**2 + 1e-30
        self.second = kept * self.second + (1 - kept) * squares
        found = self.second
        if gradient.ndim == 2:  # the sums of rows and columns are all that is kept
            rows, columns = self.second.mean(1, keepdims=True), self.second.mean(0, keepdims=True)
            found = rows * columns / rows.mean()
        direction = gradient / np.sqrt(found)
        return direction / max(1.0, np.sqrt(np.mean(direction**2)))


@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_that_of_the_paper_on_clipped_gradients_with_decay_by_path(name):
    params, gradients = draws()
    ways = {part: ByHand(name) for part in params}
    wanted = {part: x.copy() for part, x in params.items()}
    for rate, given in zip(rates(), gradients, strict=True):
        norm = math.sqrt(sum((x**2).sum() for x in given.values()))
        for part, x in given.items():
            decay = DECAY * wanted[part] if part == "w" else 0.0
            wanted[part] = wanted[part] - rate * (ways[part](x * min(1, CLIP / norm)) + decay)
    found, rule = jax.tree.map(jnp.float32, params), update(settings(name, clip=CLIP))
    state = rule.init(found)
    for given in gradients:
        changes, state = rule.update(jax.tree.map(jnp.float32, given), state, found, value=0.0)
        found = optax.apply_updates(found, changes)
    for part in params:
        np.testing.assert_allclose(found[part], wanted[part], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["adam8bit", "adamw8bit"])
def test_8_bit_moments_keep_float32_by_path_and_have_the_blocks_of_the_file(name):
    params, gradients = draws()
    rule = update(settings(name, block_size=16))
    _, state = rule.update(jax.tree.map(jnp.float32, gradients[0]), rule.init(params), params, value=0.0)
    held = state[0].inner[0]
    assert held.mu["w"].dtype == "int8" and held.nu_scale["w"].shape == (128, 10)
    assert held.mu["norm"].dtype == "float32" and held.nu_scale["norm"] is None
    all_wide = update(settings(name, keep_float32=["*"])).init(params)[0].inner[0]
    assert all_wide.mu["w"].dtype == "float32"


def test_short_gradients_and_a_clip_of_0_are_left_alone():
    params, gradients = draws()
    small = jax.tree.map(lambda x: jnp.float32(x * 1e-4), gradients[0])
    for clip, given in ((CLIP, small), (0.0, jax.tree.map(jnp.float32, gradients[0]))):
        rule = update(settings("sgd", clip=clip, weight_decay=0.0))
        changes, _ = rule.update(given, rule.init(params), params, value=0.0)
        np.testing.assert_allclose(changes["w"], -0.01 * given["w"], rtol=1e-6)


def test_what_decays_is_chosen_by_path():
    params = {"embedding": {"table": 1.0}, "layers": {"norm": {"scale": 1.0}, "q": 1.0, "bias": 1.0}}
    plain = {"embedding": {"table": True}, "layers": {"norm": {"scale": False}, "q": True, "bias": False}}
    assert decays(params, settings("adamw").optimizer) == plain
    own = decays(params, settings("adamw", no_decay=["embedding.*", "*.q"]).optimizer)
    assert own == {"embedding": {"table": False}, "layers": {"norm": {"scale": True}, "q": False, "bias": True}}


# On a mesh.

MESH = "rows=2,cols=4"
LAYOUTS = ["batch:rows,d_ff:cols", "batch:rows,params.d_model:rows+cols,optimizer.d_ff:rows"]
BATCH, MODEL, FF = wf.Dim("batch", 16), wf.Dim("d_model", 128), wf.Dim("d_ff", 160)


def after_three_steps(config, layout):
    def loss(params, x, key):
        y = wf.einsum(x, params["w"], over="d_model") + params["norm"]
        return wf.mean(wf.square(y - 1), over="batch d_ff")

    params, _ = draws()
    rng = np.random.default_rng(1)
    x = wf.tensor(rng.normal(size=(16, 128)).astype("float32"), [BATCH, MODEL])
    named = {"w": (MODEL, FF), "norm": (FF,)}
    params = {name: wf.parameter(params[name].astype("float32"), list(dims)) for name, dims in named.items()}
    where = {} if layout is None else {"mesh": MESH, "layout": layout}
    step = wf.train_step(loss, update(config), **where)
    state = step.init(params)
    for _ in range(3):
        state, _ = step(state, x, None)
    return {
        **wf.get({name: x.array for name, x in state.params.items()}),
        "norm_": optimizer_metrics(state)["grad_norm"],
    }


@pytest.mark.parametrize("name", ["adafactor", "adamw", *[pytest.param(n, marks=pytest.mark.slow) for n in NAMES[1:]]])
def test_clipping_and_the_update_are_the_same_on_every_layout(name):
    config = settings(name, clip=CLIP)
    wanted = after_three_steps(config, None)
    assert wanted["norm_"] > CLIP
    for layout in LAYOUTS:
        found = after_three_steps(config, layout)
        for part, x in wanted.items():
            np.testing.assert_allclose(found[part], x, rtol=2e-5, atol=2e-6, err_msg=f"{part} on {layout}")


def test_averaged_weights_are_the_running_mean_of_all_before():
    config = config_of("x", train={"average": 0.75}, optimizer={"name": "sgd", "clip": 0.0})
    params, gradients = draws()
    rule = update(config)
    found = jax.tree.map(jnp.float32, params)
    state, mean = rule.init(found), dict(params)
    for given in gradients:
        changes, state = rule.update(jax.tree.map(jnp.float32, given), state, found, value=0.0)
        found = optax.apply_updates(found, changes)
        mean = {part: 0.75 * mean[part] + 0.25 * np.asarray(found[part]) for part in params}
    averaged = next(part.averaged for part in state if isinstance(part, Averaged))
    for part in params:
        np.testing.assert_allclose(averaged[part], mean[part], rtol=1e-5, atol=1e-6)


def test_the_scale_of_the_loss_is_taken_out_of_gradients_before_anything_looks_at_them():
    params, (gradients, *_) = draws()
    changes = []
    for scale in (1.0, 1024.0):
        rule = update(config_of("x", train={"loss_scale": scale}, optimizer={"name": "sgd", "clip": 1000.0}))
        scaled = jax.tree.map(lambda x: jnp.float32(x * scale), gradients)  # noqa: B023
        changes.append(rule.update(scaled, rule.init(params), params, value=0.0)[0])
    np.testing.assert_allclose(changes[1]["w"], changes[0]["w"], rtol=1e-6)


def test_the_noise_of_a_step_follows_from_its_number():
    config = config_of("x", model={"dropout": 0.5, "layers": 1}, mesh="", layout="")
    model, rows = first_model(config), [config.sized_model.dim("batch"), config.sized_model.dim("length")]
    ids = wf.tensor(np.arange(8 * 16, dtype="int32").reshape(8, 16), rows)
    batch = {"inputs": ids, "targets": ids, "weights": wf.tensor(np.ones((8, 16), "float32"), rows)}
    loss = jax.jit(lambda number: make_step(config).loss(model, batch, number)[0].array)
    first, again, second = (float(loss(np.int32(number))) for number in (3, 3, 4))
    assert first == again and first != second


# In whole runs.


UNEVEN = {
    "model": {"dropout": 0.0},
    "data": {"documents": "lines", "held_out": 0.1},
    "train": {"steps": 4, "pack": False},
}


def test_microbatches_and_a_scaled_loss_change_nothing_but_the_way_there(text, tmp_path):
    """A line a row: the parts of a batch have unlike numbers of tokens."""
    parts = {**UNEVEN, "train": {**UNEVEN["train"], "microbatches": 4, "loss_scale": 1024.0}}
    for name, changes in (("whole", UNEVEN), ("parts", parts)):
        outcome, _ = run(config_of(text, **changes), tmp_path / name)
        assert outcome.is_finished
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_learns_by_every_schedule(name, kind, text, tmp_path):
    rate = {"sgd": 1.0, "momentum": 0.3, "lion": 3e-3, "adafactor": 3e-2}.get(name, 1e-2)
    schedule = {"kind": kind, "rate": rate, "warmup": 2, "cooldown": 2}
    outcome, _ = run(config_of(text, optimizer={"name": name}, schedule=schedule), tmp_path)
    found = losses(tmp_path)
    assert outcome.is_finished and found[8] < found[1]


def test_adafactors_updates_are_as_large_as_what_they_update_where_that_is_asked():
    params, gradients = draws()
    found = {}
    for is_scaled in (False, True):
        rule = update(settings("adafactor", weight_decay=0.0, parameter_scale=is_scaled))
        given, own = (jax.tree.map(jnp.float32, tree) for tree in (gradients[0], params))
        found[is_scaled] = rule.update(given, rule.init(own), own, value=0.0)[0]
    for part, x in params.items():
        size = np.sqrt(np.mean(x**2))
        np.testing.assert_allclose(found[True][part], found[False][part] * size, rtol=1e-5)


@pytest.mark.slow
def test_a_last_state_that_is_not_wanted_is_not_saved_and_said_to_be(text, tmp_path):
    config = config_of(text, mesh="", layout="", train={"steps": 3}, checkpoint={"every": 2, "last": False})
    outcome, heard = run(config, tmp_path / "run")
    assert outcome.is_finished and outcome.is_saved
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir() if folder.name.isdigit()] == ["2"]
    assert "the state after step 3 is not saved: `checkpoint.last` is false" in heard.messages
