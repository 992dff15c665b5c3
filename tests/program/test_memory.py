"""The memory of a program equals what is worked out by hand, and lies near XLA's own figures for language models."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import weft as wf
from benchmarks.memory_accuracy import CASES, LIMITS, recorded
from tests.program.cases import B, D, F, cases, shape, weight
from weft.cli.model import load_preset
from weft.program.liveness import tiled_size

MESH = "rows=2,cols=4"
FLOAT = 4


def size(*dims, ways=1):
    """The bytes of an f32 tensor that is split so many ways."""
    count = FLOAT
    for dim in dims:
        count *= dim.size
    return count // ways


def memory(fn, *args, mesh="all=1", layout="", target="gpu"):
    return wf.trace(fn, *args, mesh=mesh, layout=layout).memory_on(target)


# ---- by hand


def test_what_is_only_scaled_needs_its_result_beside_it():
    assert memory(lambda x: x * 2, shape(B, D)).peak == 2 * size(B, D)


def test_what_is_donated_is_written_over():
    double = wf.spmd(lambda x: x * 2, mesh="all=1", layout="", donate=0)
    found = wf.trace(double, shape(B, D)).memory
    assert (found.peak, found.arguments, found.donated) == (size(B, D), size(B, D), size(B, D))


@pytest.mark.parametrize(("target", "stored"), [("gpu", 2), ("tpu", 2), ("cpu", 3)])
def test_what_a_compiler_folds_into_the_next_kernel_is_not_stored(target, stored):
    def three(x):
        return wf.exp(wf.sin(x) + 1)  # on a CPU one result lives while the next is made of it

    x = wf.tensor(jax.ShapeDtypeStruct((256, 1024), "float32"), wf.dims(rows=256, cols=1024))
    kept = memory(lambda x: wf.sum(three(x) * x, over=x.dims), x, target=target)
    assert kept.arguments == 2**20
    assert kept.peak - kept.arguments in ((stored - 2) * 2**20 + 4, (stored - 2) * 2**20 + 512)


def test_a_product_holds_its_operands_and_its_result():
    def two(x, w, v):
        return wf.einsum(wf.einsum(x, w, over=D), v, over=F)

    found = memory(two, shape(B, D), weight(D, F), weight(F, D))
    assert found.peak == size(B, D) + 2 * size(D, F) + size(B, F) + size(B, D)


def test_each_processor_holds_its_slice():
    def product(x, w):
        return wf.einsum(x, w, over=D)

    found = memory(product, shape(B, D), weight(D, F), mesh=MESH, layout="batch:rows,d_ff:cols")
    assert found.arguments == size(B, D, ways=2) + size(D, F, ways=4)
    assert found.outputs == size(B, F, ways=8)
    assert found.peak == found.arguments + found.outputs


@pytest.mark.parametrize(("target", "buffers"), [("gpu", 2), ("tpu", 1)])
def test_an_all_reduce_holds_operand_and_result_on_a_gpu_alone(target, buffers):
    a, b, c = wf.dims(a=256, b=512, c=1024)

    def product(x, w):
        return wf.einsum(x, w, over=b)

    x, w = (wf.tensor(jax.ShapeDtypeStruct([d.size for d in dims], "float32"), dims) for dims in ([a, b], [b, c]))
    found = memory(product, x, w, mesh="all=4", layout="b:all", target=target)
    assert found.peak == found.arguments + buffers * size(a, c)


LAYERS = wf.Dim("layers", 6)


def deep(x, w):
    def layer(x, w):
        return wf.tanh(wf.einsum(x, w, over=D, rename={"d_ff": D})), None

    return wf.sum(wf.square(wf.scan(layer, x, w, over=LAYERS)[0]), over=[B, D])


def test_a_loop_is_what_it_piles_up_and_what_one_turn_needs():
    square = wf.Dim("d_ff", D.size)
    x, w = shape(B, D), weight(LAYERS, D, square)

    def train(x, w):
        return wf.value_and_grad(deep, argnums=1)(x, w)

    found = memory(train, x, w)
    saved = [each for each in found.alive if each.kind == "saved"]
    assert {each.bytes for each in saved} == {size(LAYERS, B, D)}
    gradients = [each for each in found.alive if each.bytes == size(LAYERS, D, square) and each.kind != "argument"]
    assert len(gradients) == 1
    one_turn = found.peak - found.arguments - sum(each.bytes for each in (*saved, *gradients))
    assert 0 < one_turn <= 2 * size(D, square) + 6 * size(B, D)


def test_a_branch_counts_its_larger_side():
    def either(x, w):
        large = lambda: wf.sum(wf.square(wf.einsum(x, w, over=D)), over=[B, F])  # noqa: E731
        return wf.cond(wf.sum(x, over=[B, D]) > 0, large, lambda: wf.sum(x, over=[B, D]))

    found = memory(either, shape(B, D), weight(D, F))
    assert found.peak >= found.arguments + size(B, F)
    assert any(each.bytes == size(B, F) for each in found.alive)


def test_a_loop_of_unknown_length_counts_one_turn():
    def grow(x):
        return wf.while_loop(lambda x: wf.sum(x, over=[B, D]) < 100.0, lambda x: x * 2 + 1, x)

    found = memory(grow, shape(B, D))
    assert 2 * size(B, D) <= found.peak <= 4 * size(B, D)


def test_recomputing_needs_less_than_saving():
    made = {
        remat: load_preset("tiny-lm", optimizer="adam", remat=remat, length=64).traced(mesh="all=1", layout="").memory
        for remat in (True, False)
    }
    assert made[True].peak < made[False].peak
    assert made[True].arguments == made[False].arguments


def test_microbatches_fully_sharded_hold_less_than_the_whole_batch():
    layers = wf.Dim("layers", 8)

    def part(w, x):
        x, _ = wf.scan(
            lambda x, w: (wf.tanh(wf.einsum(x, w, over="d_in").rename(d_out="d_in")), None), x, w, over=layers
        )
        return wf.sum(x, over="batch d_in"), 1.0

    def peak(count):
        def loss(w, x):
            return wf.accumulate(part, w, x, over="batch", count=count)

        w = wf.parameter(
            jax.ShapeDtypeStruct((8, 64, 64), "float32"), [layers, wf.Dim("d_in", 64), wf.Dim("d_out", 64)]
        )
        x = wf.tensor(jax.ShapeDtypeStruct((512, 64), "float32"), [wf.Dim("batch", 512), wf.Dim("d_in", 64)])
        program = wf.trace(wf.value_and_grad(loss), w, x, mesh="x=8", layout="batch:x,params.d_out:x")
        return program.memory.peak

    one, two, four = map(peak, (1, 2, 4))
    assert one > two > four


def test_a_train_step_writes_its_state_over():
    step = wf.train_step(one_product, optax.sgd(0.1))
    program = wf.trace(step, step.init({"w": weight(D, F)}), shape(B, D), mesh="all=1", layout="")
    assert program.memory.donated == size(D, F) + FLOAT  # the weights and the number of the step
    assert program.memory.peak < size(B, D) + 2 * size(D, F) + 3 * size(B, F) + 1000


def one_product(params, x, key):
    return wf.sum(wf.square(wf.einsum(x, params["w"], over=D)), over=[B, F])


def test_arrays_of_a_tpu_lie_in_tiles():
    assert tiled_size((6, 1024), 4) == 8 * 1024 * 4
    assert tiled_size((4, 256), 4) == 4 * 256 * 4
    assert tiled_size((), 4) == tiled_size((3,), 4) == tiled_size((), 8) == 512
    assert tiled_size((384,), 4) == 512 * 4
    assert tiled_size((16384, 64), 4) == 16384 * 64 * 4  # laid the other way, nothing is lost


# ---- beside XLA


def adam_step(layout):
    def loss(params, x, key):
        hidden = wf.relu(wf.einsum(x, params["w"], over=D))
        return wf.mean(wf.square(wf.einsum(hidden, params["v"], over=F)), over=[B, D])

    step = wf.train_step(loss, optax.adam(1e-3), mesh=MESH, layout=layout)
    return step, {"w": weight(D, F), "v": weight(F, D)}, shape(B, D)


@pytest.mark.parametrize("layout", ["batch:rows,d_ff:cols", "batch:rows,params.d_model:cols"])
def test_arguments_are_what_xla_says(layout):
    step, params, x = adam_step(layout)
    found = wf.trace(step, step.init(params), x).memory
    compiled = step.lower(step.init(params), x).compile()
    assert found.arguments == compiled.memory_analysis().argument_size_in_bytes


QUICK = ["8 M", "4.90 B", "GPT-2 medium", "1.28 B, fully sharded"]


def marked(chosen):
    return [pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow) for case in chosen]


@pytest.mark.quick("8 M", "1.28 B, fully sharded")
@pytest.mark.parametrize("case", marked(CASES))
def test_the_memory_of_language_models_lies_near_xlas(case):
    program = case.program()
    xla = recorded()[case.name]
    assert xla
    for target, said in xla.items():
        found = program.memory_on(target)
        assert found.arguments == said["arguments"]
        assert found.range[0] <= said["peak"] <= found.range[1]
        assert not found.fits(said["peak"] - 1)
        if case.kind == "scanned":
            assert abs(found.peak / said["peak"] - 1) < LIMITS[target]


# ---- what is alive


@pytest.mark.parametrize("target", ["gpu", "tpu", "cpu"])
@pytest.mark.parametrize(
    "name", ["two layers, 2-D", "branches, backward", "loop, fully sharded", "Adam, state split further", "tied"]
)
def test_what_is_alive_adds_up_to_the_peak(name, target):
    found = cases("float32")[name].program().memory_on(target)
    assert sum(each.bytes for each in found.alive) == found.peak
    assert max(moment.bytes for moment in found.course) == found.peak
    assert [each.bytes for each in found.alive] == sorted((each.bytes for each in found.alive), reverse=True)
    assert all(each.name and "[" in each.type for each in found.alive)
    assert {each.kind for each in found.alive} <= {"argument", "saved", "temporary", "output"}


def test_what_is_alive_has_the_users_names_types_and_lines():
    def loss(params, x, key):
        hidden = wf.relu(wf.einsum(x, params["layer"]["w"], over=D))
        return wf.sum(wf.square(wf.einsum(hidden, params["layer"]["v"], over=F)), over=[B, D])

    step = wf.train_step(loss, optax.adam(1e-3))
    state = step.init({"layer": {"w": weight(D, F), "v": weight(F, D)}})
    found = wf.trace(step, state, shape(B, D), mesh=MESH, layout="batch:rows,d_ff:cols").memory
    kinds = {each.name: each for each in found.alive}
    assert kinds["layer.w"].type == "f32[d_model d_ff/cols]"
    assert kinds["layer.w"].kind == "argument"
    assert kinds["optimizer[0].mu.layer.v"].type == "f32[d_ff/cols d_model]"
    here = Path(__file__).name
    made = [each for each in found.alive if each.kind != "argument"]
    assert made
    assert all(here in each.source for each in made if each.phase != "update")


def test_a_loops_results_are_named_by_what_makes_them():
    square = wf.Dim("d_ff", D.size)
    found = memory(lambda x, w: wf.value_and_grad(deep, argnums=1)(x, w), shape(B, D), weight(LAYERS, D, square))
    types = {each.type for each in found.alive}
    assert any(text.startswith("f32[layers batch") for text in types)
    assert any(text.startswith("f32[layers d_model") for text in types)


def test_the_course_tells_phases_and_lines():
    step, params, x = adam_step("batch:rows,d_ff:cols")
    course = wf.trace(step, step.init(params), x).memory.course
    assert {"forward", "backward", "update"} <= {moment.phase for moment in course}
    assert any(Path(__file__).name in moment.source for moment in course)


# ---- what is said


def test_it_fits_only_where_the_high_end_of_the_range_does():
    found = memory(lambda x: x * 2, shape(B, D))
    low, high = found.range
    assert low <= found.peak <= high
    assert found.fits(high)
    assert not found.fits(high - 1)
    assert not found.fits(found.peak)


def test_the_range_is_wider_where_layers_are_recomputed_outside_a_loop():
    ranges = {}
    for scanned in (True, False):
        found = (
            load_preset("tiny-lm", optimizer="adam", remat=True, scanned=scanned).traced(mesh="all=1", layout="").memory
        )
        ranges[scanned] = (found.range[1] - found.arguments) / (found.peak - found.arguments)
    assert ranges[False] > ranges[True]


def test_an_optimizer_that_cannot_be_typed_is_laid_as_the_parameters_are():
    step = wf.train_step(one_product, optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.1)))
    state = step.init({"w": weight(D, F)})
    program = wf.trace(step, state, shape(B, D), mesh=MESH, layout="batch:rows,d_ff:cols")
    assert program.memory.peak < size(B, D) + 8 * size(D, F, ways=4) + 4 * size(B, F)


def test_it_prints_as_a_short_table():
    text = str(memory(lambda x: x * 2, shape(B, D)))
    assert text.startswith("memory on each processor (gpu): peak ")
    assert "argument" in text
    assert "output" in text
    assert len(text.splitlines()) == 3


def test_it_can_be_written_as_json():
    found = memory(lambda x: x * 2, shape(B, D))
    said = json.loads(json.dumps(found.to_dict()))
    assert said["peak"] == found.peak == sum(each["bytes"] for each in said["alive"])
    assert said["range"] == list(found.range)


def test_another_target_says_which_there_are():
    with pytest.raises(wf.WeftError, match=r"there is no target `gpus`\n.*\n.*did you mean `gpu`"):
        wf.trace(lambda x: x * 2, shape(B, D), mesh="all=1", layout="").memory_on("gpus")


def test_the_memory_is_found_once():
    program = wf.trace(lambda x: x * 2, shape(B, D), mesh="all=1", layout="")
    assert program.memory is program.memory_on("gpu")
    assert program.memory is not program.memory_on("tpu")


def test_nothing_is_nothing():
    found = memory(lambda x: x, shape(B, D))
    assert found.arguments == found.peak == size(B, D)
    assert jnp.asarray([moment.bytes for moment in found.course]).size == 0
