"""Windows that slide over split dims: values, gradients, what is sent, and what is refused.

The reference is plain lax on the global arrays. All cases of a placement compile as one region.
"""

import itertools
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft as wf

EPS = float(jnp.finfo("float32").eps)
SPATIAL = ("depth", "height", "width")
KERNEL = ("kd", "kh", "kw")


def floats(shape: Any, seed: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(seed.encode())).uniform(-1, 1, shape).astype("float32")


def image(sizes: tuple[int, ...], channels: int = 4, batch: int = 4) -> wf.Tensor:
    return wf.tensor(
        floats((batch, *sizes, channels), f"image {sizes}"), f"batch {' '.join(SPATIAL[-len(sizes) :])} channels"
    )


def kernel(sizes: tuple[int, ...], channels: int = 4, made: int = 8) -> wf.Tensor:
    names = f"{' '.join(KERNEL[-len(sizes) :])} channels channels_out"
    return wf.tensor(floats((*sizes, channels, made), f"kernel {sizes}"), names)


def over(dims: int) -> dict[str, str]:
    return dict(zip(SPATIAL[-dims:], KERNEL[-dims:], strict=True))


def numbers(dims: int) -> Any:
    letters = "DHW"[-dims:]
    return (f"N{letters}C", f"{letters}IO", f"N{letters}C")


def conv(x: wf.Tensor, w: wf.Tensor, **how: Any) -> wf.Tensor:
    return wf.conv(x, w, over=over(len(w.dims) - 2), channels=("channels", "channels_out"), **how)


def plain_conv(x: Any, w: Any, stride: int = 1, dilation: int = 1, padding: Any = "SAME") -> Any:
    dims = x.ndim - 2
    return lax.conv_general_dilated(
        x, w, (stride,) * dims, padding, rhs_dilation=(dilation,) * dims, dimension_numbers=numbers(dims)
    )


def assert_close(got: Any, want: Any, terms: int, what: str) -> None:
    """Sums of `terms` products in two orders: each addition rounds by at most eps/2 of a partial sum."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, what
    allowed = (16 + terms) * EPS * max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(got, want, rtol=0, atol=allowed, err_msg=what)


def check_all(cases: dict[str, tuple[Any, Any, tuple[wf.Tensor, ...]]], mesh: str | None, layout: str) -> None:
    """Each case's weft function equals its plain one, in value and in gradient."""

    def run(inputs: Any) -> Any:
        found = {}
        for name, (fn, _, _) in cases.items():

            def total(given: Any, fn: Any = fn) -> Any:
                y = fn(*given)
                return wf.sum(wf.sin(y), over=y.dims), y

            found[name] = wf.value_and_grad(total, has_aux=True)(inputs[name])
        return found

    inputs = {name: given for name, (_, _, given) in cases.items()}
    found = jax.jit(run)(inputs) if mesh is None else wf.spmd(run, mesh=mesh, layout=layout)(inputs)
    for name, (_, plain, given) in cases.items():
        arrays = tuple(jnp.asarray(x.array) for x in given)
        want, pull = jax.vjp(plain, *arrays)
        gradients = pull(jnp.cos(want))
        (_, y), got = found[name]
        terms = max(y.array.size, *(a.size for a in arrays)) // min(a.size for a in (want, *arrays))
        terms = max(terms, want.size // arrays[-1].size * 4, 64)
        assert_close(y.array, want, terms, f"{name}: value")
        for i, (mine, due) in enumerate(zip(got, gradients, strict=True)):
            assert_close(mine.array, due, terms, f"{name}: gradient of input {i}")


# ---- convolution under layouts

NONE = pytest.param(None, "", marks=pytest.mark.slow)
QUICK = [
    (1, "a=2,b=2", "width:a+b"),
    (2, "a=2,b=4", "height:a,width:b"),
    (3, "a=2,b=2,c=2", "depth:a,height:b,width:c"),
]
PLACES = [
    (1, None, ""),
    (2, None, ""),
    (3, None, ""),
    (1, "x=2", "width:x"),
    (1, "x=4", "width:x"),
    (1, "a=2,b=2", "width:a+b"),
    (1, "a=2,b=4", "width:b+a"),
    (1, "a=2,b=2,c=2", "width:a,channels:b,channels_out:c"),
    (2, "x=4", "height:x"),
    (2, "a=2,b=4", "height:a,width:b"),
    (2, "a=2,b=2,c=2", "height:c+a,width:b"),
    (2, "a=2,b=2,c=2", "height:a,batch:b,channels:c"),
    (2, "a=2,b=2,c=2", "width:a,batch:b,channels_out:c"),
    (3, "a=2,b=2,c=2", "depth:a,height:b,width:c"),
    (3, "a=2,b=2,c=2", "depth:a+b,channels:c"),
]
COUNT = {1: 12, 2: 5, 3: 3}


def geometries(dims: int, place: str) -> list[tuple[int, ...]]:
    """Some of all kernels, strides, dilations and paddings, drawn anew for each place."""
    everything = list(itertools.product((1, 2, 3, 5), (1, 2), (1, 2), ("SAME", "VALID", (1, 2), (3, 0))))
    chosen = np.random.default_rng(zlib.crc32(place.encode())).permutation(len(everything))[: COUNT[dims]]
    return [everything[i] for i in chosen]


def conv_cases(dims: int, place: str) -> dict[str, Any]:
    cases = {}
    for k, stride, dilation, padding in geometries(dims, place):
        size, reach = 8 * (1 + (stride == 2 and dims < 3)), (k - 1) * dilation + 1
        if padding != "SAME":  # until what comes out divides over 8
            low, high = (0, 0) if padding == "VALID" else padding
            size += 8 * (size + low + high < reach)
            made = (size + low + high - reach) // stride + 1
            padding = padding if made % 8 == 0 else (low, high + (8 - made % 8) * stride)
        size = 16 if padding == "SAME" and stride == 2 else size
        pads = padding if isinstance(padding, str) else dict.fromkeys(SPATIAL[-dims:], padding)
        plain_pads = padding if isinstance(padding, str) else [padding] * dims
        how = {"stride": stride, "dilation": dilation}
        cases[f"kernel {k} {how} padding {padding} of {size}"] = (
            lambda x, w, how=how, pads=pads: conv(x, w, padding=pads, **how),
            lambda x, w, how=how, pads=plain_pads: plain_conv(x, w, padding=pads, **how),
            (image((size,) * dims, batch=2), kernel((k,) * dims)),
        )
    return cases


@pytest.mark.quick("1-a=2,b=2-width:a+b", "2-a=2,b=4-height:a,width:b")
@pytest.mark.parametrize(
    ("dims", "mesh", "layout"),
    [place if place in QUICK else pytest.param(*place, marks=pytest.mark.slow) for place in PLACES],
)
def test_a_convolution_under_a_layout_is_that_of_lax(dims, mesh, layout):
    check_all(conv_cases(dims, f"{dims} {mesh} {layout}"), mesh, layout)


def test_valid_convolutions_need_not_lie_alike_on_all_processors():
    """What comes out divides, and yet no slice of it lies over the same part of its own."""
    cases = {
        f"{size} {k} {stride}": (
            lambda x, w, s=stride: conv(x, w, stride=s, padding="VALID"),
            lambda x, w, s=stride: plain_conv(x, w, s, padding="VALID"),
            (image((size,)), kernel((k,))),
        )
        for size, k, stride in [(12, 5, 1), (12, 3, 3), (16, 5, 1), (16, 2, 4), (20, 5, 2), (8, 5, 1)]
    }
    check_all(cases, "x=4", "width:x")


def test_a_kernel_may_reach_past_everything():
    cases = {f"{k}": (conv, plain_conv, (image((8,)), kernel((k,)))) for k in (9, 15, 21)}
    check_all(cases, "x=8", "width:x")
    check_all(cases, "x=2", "width:x")


@pytest.mark.parametrize("layout", ["", "height:x", "channels:x", "batch:x", "height:x,params.channels_out:x"])
def test_a_stored_kernel_is_gathered(layout):
    def run(x: wf.Tensor, w: wf.Tensor) -> Any:
        return wf.value_and_grad(lambda w: wf.sum(wf.sin(conv(x, w)), over="batch height width channels_out"))(w)

    x, w = image((8, 8)), wf.parameter(kernel((3, 3)))
    total, gradient = wf.spmd(run, mesh="x=4", layout=layout)(x, w)
    want, due = jax.value_and_grad(lambda w: jnp.sum(jnp.sin(plain_conv(x.array, w))))(jnp.asarray(w.array))
    assert_close(gradient.array, due, 256, "gradient")
    np.testing.assert_allclose(total.array, want, rtol=1e-5)


# ---- groups


@pytest.mark.parametrize("layout", ["", "channels:x", "channels:x,height:y", "height:x,width:y", "batch:x"])
def test_where_each_channel_is_by_itself_it_may_be_split(layout):
    x = image((8, 8), channels=8)
    w = wf.tensor(floats((3, 3, 8), "depthwise"), "kh kw channels")
    channels = ("channels", "channels")
    case = (
        lambda x, w: wf.conv(x, w, over=over(2), channels=channels, groups=8),
        lambda x, w: lax.conv_general_dilated(
            x, w[:, :, None], (1, 1), "SAME", dimension_numbers=numbers(2), feature_group_count=8
        ),
        (x, w),
    )
    check_all({"depthwise": case}, "x=4,y=2", layout)


@pytest.mark.parametrize("layout", [pytest.param("", marks=pytest.mark.slow), "height:x", "batch:x,width:y"])
@pytest.mark.parametrize(
    ("groups", "has_inputs"), [pytest.param(2, True, marks=pytest.mark.slow), (4, True), (8, False)]
)
def test_groups_are_those_of_lax(layout, groups, has_inputs):
    x = image((8, 8), channels=8)
    w = floats((3, 3, 8 // groups, 16), "groups")
    tensor = wf.tensor(w, "kh kw channels channels_out") if has_inputs else wf.tensor(w[:, :, 0], "kh kw channels_out")

    def plain(x: Any, w: Any) -> Any:
        w = w if has_inputs else w[:, :, None]
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers(2), feature_group_count=groups)

    check_all({"groups": (lambda x, w: conv_of(x, w, groups=groups), plain, (x, tensor))}, "x=4,y=2", layout)


@pytest.mark.parametrize("stored", ["params.channels", "params.channels_out", "params.kh"])
def test_a_stored_kernel_of_groups_is_gathered(stored):
    x = image((8, 8), channels=8)
    w = wf.parameter(floats((2, 3, 4, 16), "stored groups"), "kh kw channels channels_out")

    def plain(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers(2), feature_group_count=2)

    case = (lambda x, w: conv_of(x, w, groups=2), plain, (x, w))
    check_all({"stored": case}, "x=2", f"height:x,{stored}:x")


def conv_of(x: wf.Tensor, w: wf.Tensor, **how: Any) -> wf.Tensor:
    return wf.conv(x, w, over=over(2), channels=("channels", "channels_out"), **how)


@pytest.mark.parametrize("has_inputs", [True, False])
@pytest.mark.parametrize(
    ("layout", "sends"),
    [
        ("channels:x,channels_out:x", []),  # each has its own groups
        ("channels_out:x", []),
        ("channels:x", ["all_gather"]),  # what comes out is to be whole
        ("channels:x,channels_out:x,height:y", ["permute", "permute"]),
    ],
)
def test_groups_of_split_channels_stay_where_they_are(layout, sends, has_inputs):
    groups = 4 if has_inputs else 8
    x, w = image((8, 8), channels=8), floats((3, 3, 8 // groups, 16), "split groups")
    tensor = wf.tensor(w, "kh kw in_group channels_out") if has_inputs else wf.tensor(w[:, :, 0], "kh kw channels_out")

    def plain(x: Any, w: Any) -> Any:
        w = w if has_inputs else w[:, :, None]
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers(2), feature_group_count=groups)

    def convolved(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return conv_of(x, w, groups=groups)

    check_all({"groups": (convolved, plain, (x, tensor))}, "x=4,y=2", layout)
    program = wf.trace(convolved, x, tensor, mesh="x=4,y=2", layout=layout)
    assert [row.collective for row in program.ledger] == sends
    assert all(row.reason for row in program.ledger)


def test_groups_that_do_not_divide_are_refused():
    x, w = image((8, 8), channels=8), wf.tensor(floats((3, 3, 4, 16), "groups"), "kh kw in_group channels_out")
    with pytest.raises(wf.LayoutError, match="2 groups") as error:
        wf.trace(lambda x, w: conv_of(x, w, groups=2), x, w, mesh="x=4", layout="channels:x")
    assert "multiple of 4 groups" in error.value.fix


# ---- dims, names, dtypes, loops


def test_all_other_dims_are_the_batch_and_keep_their_places():
    x = wf.tensor(floats((4, 2, 8, 3, 8), "odd order"), "channels batch height time width")
    w = kernel((3, 3))
    y = wf.spmd(conv, mesh="a=2,b=2", layout="height:a,width:b")(x, w)
    assert y.dims.names == ("channels_out", "batch", "height", "time", "width")
    turned = np.transpose(x.array, (1, 3, 2, 4, 0)).reshape(6, 8, 8, 4)
    want = np.asarray(plain_conv(turned, w.array)).reshape(2, 3, 8, 8, 8)
    assert_close(y.array, np.transpose(want, (4, 0, 2, 1, 3)), 36, "value")


def test_an_image_needs_no_batch():
    x = wf.tensor(floats((8, 4), "no batch"), "width channels")
    y = wf.spmd(conv, mesh="x=4", layout="width:x")(x, kernel((3,)))
    assert_close(y.array, plain_conv(x.array[None], kernel((3,)).array)[0], 12, "value")


def test_the_lines_of_a_u_net_work_as_written():
    C2 = wf.Dim("channels_out", 8)

    def run(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.conv(
            x, w, over={"depth": "kd", "height": "kh", "width": "kw"}, channels=("channels", C2), stride=2
        ).rename(channels_out="channels")

    x, w = image((8, 8, 8)), kernel((3, 3, 3))
    y = wf.spmd(run, mesh="a=2,b=2", layout="depth:a,height:b")(x, w)
    assert y.dims.names == x.dims.names
    assert_close(y.array, plain_conv(x.array, w.array, 2), 108, "value")


def test_strides_dilations_and_pads_may_differ_by_dim():
    height, width = wf.dims(height=8, width=16)
    x, w = image((8, 16)), kernel((3, 2))

    def run(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return conv(x, w, stride={width: 2}, dilation={"height": 2}, padding={height: (3, 1), "width": "SAME"})

    y = wf.spmd(run, mesh="a=2,b=4", layout="height:a,width:b")(x, w)
    want = lax.conv_general_dilated(
        x.array, w.array, (1, 2), [(3, 1), (0, 0)], rhs_dilation=(2, 1), dimension_numbers=numbers(2)
    )
    assert_close(y.array, want, 24, "value")


def test_narrow_floats_come_out_as_lax_makes_them():
    x, w = image((8, 8)), kernel((3, 3))
    x, w = (wf.tensor(jnp.asarray(t.array, "bfloat16"), t.dims) for t in (x, w))
    y = wf.spmd(conv, mesh="a=2,b=4", layout="height:a,width:b")(x, w)
    want = plain_conv(x.array, w.array)
    assert y.dtype == want.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(y.array, "float32"), np.asarray(want, "float32"))


def test_it_works_in_loops_and_maps():
    layers = wf.Dim("layers", 3)
    x = image((8,))
    w = wf.tensor(floats((3, 3, 4, 4), "layers"), "layers kw channels channels_out")

    def step(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.tanh(conv(x, w)).rename(channels_out="channels")

    def loop(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda x, w: (step(x, w), None), x, w, over=layers)[0]

    def mapped(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.sum(wf.vmap(lambda w: step(x, w), over=layers)(w), over=layers)

    def plain_loop(x: Any, w: Any) -> Any:
        for i in range(3):
            x = jnp.tanh(plain_conv(x, w[i]))
        return x

    def plain_mapped(x: Any, w: Any) -> Any:
        return sum(jnp.tanh(plain_conv(x, w[i])) for i in range(3))

    cases = {"scan": (loop, plain_loop, (x, w)), "vmap": (mapped, plain_mapped, (x, w))}
    check_all(cases, "a=2,b=2", "width:a,batch:b")
    check_all(cases, "a=2,b=2", "width:b+a")
    check_all({"vmap": cases["vmap"]}, "a=2,b=3", "width:a,layers:b")


# ---- what is sent


def sent(fn: Any, *tensors: wf.Tensor, mesh: str, layout: str) -> list[tuple[str, tuple[str, ...], int, int]]:
    ledger = wf.trace(fn, *tensors, mesh=mesh, layout=layout).ledger
    return [(row.collective, row.axes, row.bytes, row.count) for row in ledger]


def test_a_kernel_of_3_gets_one_row_of_each_neighbour():
    x, w = image((8, 16)), kernel((3, 3))
    row, column = 4 * 4 * 4 * (16 // 4), 4 * 4 * 4 * (8 // 2 + 2)  # batch * channels * float32; the corners go along
    assert sent(conv, x, w, mesh="a=2,b=4", layout="height:a,width:b") == [
        ("permute", ("a",), row, 1),
        ("permute", ("a",), row, 1),
        ("permute", ("b",), column, 1),
        ("permute", ("b",), column, 1),
    ]


def test_a_whole_dim_adds_nothing_to_the_halo():
    row = 4 * 4 * 4 * 16
    assert (
        sent(conv, image((8, 16)), kernel((3, 3)), mesh="a=2", layout="height:a") == [("permute", ("a",), row, 1)] * 2
    )


@pytest.mark.parametrize(
    ("sizes", "how"), [((1, 1), {}), ((1, 1), {"stride": 2}), ((2, 2), {"stride": 2, "padding": "VALID"})]
)
def test_nothing_is_sent_where_no_window_crosses_a_border(sizes, how):
    def run(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return conv(x, w, **how)

    assert sent(run, image((8, 16)), kernel(sizes), mesh="a=2,b=4", layout="height:a,width:b") == []


def test_a_kernel_of_5_on_slices_of_one_row_takes_two_hops():
    assert sent(conv, image((8,)), kernel((5,)), mesh="x=8", layout="width:x") == [("permute", ("x",), 64, 1)] * 4


def test_a_stride_takes_only_the_rows_its_windows_see():
    """SAME pads 0 before and 1 after: with stride 2 a kernel of 3 looks one row ahead, and none back."""

    def run(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return conv(x, w, stride=2)

    assert sent(run, image((16,)), kernel((3,)), mesh="x=4", layout="width:x") == [("permute", ("x",), 64, 1)]


def test_split_input_channels_are_one_all_reduce_and_output_channels_none():
    x, w = image((8, 8)), kernel((1, 1))
    size = 4 * 8 * 8 * 8 * 4
    assert sent(conv, x, w, mesh="x=4", layout="channels:x") == [("all_reduce", ("x",), size, 1)]
    assert sent(conv, x, w, mesh="x=4", layout="channels_out:x") == []


def test_the_backward_pass_sends_the_halos_back_and_exchanges_none_again():
    def run(x: wf.Tensor, w: wf.Tensor) -> Any:
        total = lambda x: wf.sum(wf.sin(conv(x, w)), over="batch width channels_out")  # noqa: E731
        return wf.grad(total)(x)

    x, w = image((8,)), wf.parameter(kernel((3,)))
    for layout in ("width:x", "width:x,params.channels_out:x"):
        permutes = [row for row in sent(run, x, w, mesh="x=4", layout=layout) if row[0] == "permute"]
        assert permutes == [("permute", ("x",), 64, 1)] * 4


# ---- what is refused


def refusal(**how: Any) -> Any:
    given = {"over": {"height": "kh", "width": "kw"}, "channels": ("channels", "channels_out"), **how}
    x, w = given.pop("x", image((8, 8))), given.pop("w", kernel((3, 3)))
    return lambda: wf.conv(x, w, **given)


REFUSED = {
    "padding='same'": (refusal(padding="same"), "padding='same'"),
    "negative pads": (refusal(padding={"height": (-1, 1)}), r"\(-1, 1\)"),
    "three pads": (refusal(padding={"height": (1, 1, 1)}), "padding"),
    "pads of an unknown dim": (refusal(padding={"heigth": (1, 1)}), "heigth"),
    "pads without a dim": (refusal(padding=(1, 1)), "padding"),
    "stride 0": (refusal(stride=0), "stride=0"),
    "stride by an unknown dim": (refusal(stride={"depth": 2}), "depth"),
    "dilation 0": (refusal(dilation={"height": 0}), "dilation"),
    "stride by a dim of another size": (refusal(stride={wf.Dim("height", 16): 2}), "16"),
    "half a stride": (refusal(stride=0.5), "stride=0.5"),
    "kernel larger than the image": (refusal(w=kernel((9, 3)), padding="VALID"), "window of 9"),
    "dilated past the image": (refusal(dilation=4, padding="VALID"), "window of 9"),
    "no such dim of x": (refusal(over={"depth": "kh"}), "depth"),
    "no such dim of w": (refusal(over={"height": "kd"}), "kd"),
    "over is no dict": (refusal(over="height width"), "over="),
    "nothing to go over": (refusal(over={}), "over="),
    "a kernel dim twice": (refusal(over={"height": "kh", "width": "kh"}), "kh"),
    "a kernel dim left over": (refusal(over={"height": "kh"}), "kw"),
    "no such channels": (refusal(channels=("colors", "channels_out")), "colors"),
    "no such output channels": (refusal(channels=("channels", "made")), "made"),
    "one name of channels": (refusal(channels="channels"), "channels="),
    "channels twice": (refusal(channels=("channels", "channels")), "twice"),
    "channels in over": (refusal(over={"channels": "kh", "width": "kw"}), "one of the two|`over`"),
    "other channels in w": (refusal(w=kernel((3, 3), channels=2)), "size 2"),
    "output channels in x": (
        refusal(w=wf.tensor(np.ones((3, 3, 4, 4), "float32"), "kh kw channels batch"), channels=("channels", "batch")),
        "batch",
    ),
    "kernel dim in x": (
        refusal(
            w=wf.tensor(np.ones((3, 3, 4, 4), "float32"), "height kw channels made"),
            over={"height": "height", "width": "kw"},
            channels=("channels", "made"),
        ),
        "height",
    ),
    "groups 0": (refusal(groups=0), "groups=0"),
    "groups that do not divide": (refusal(groups=3), "3 groups"),
    "kernel of all groups": (refusal(groups=2), "2 group"),
    "booleans": (refusal(x=wf.tensor(np.ones((1, 8, 8, 4), bool), "batch height width channels")), "booleans"),
    "a plain array": (refusal(x=np.ones((1, 8, 8, 4))), "plain array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_its_fix(case):
    call, said = REFUSED[case]
    with pytest.raises(wf.WeftError, match=said) as error:
        call()
    assert error.value.fix


def test_a_result_that_does_not_divide_is_the_layout_error():
    with pytest.raises(wf.LayoutError, match=r"`height` \(size 6\) does not divide"):
        wf.trace(lambda x, w: conv(x, w, padding="VALID"), image((8, 8)), kernel((3, 3)), mesh="x=4", layout="height:x")


def test_a_split_kernel_dim_is_refused():
    with pytest.raises(wf.LayoutError, match="`kh` whole"):
        wf.trace(conv, image((8, 8)), kernel((2, 2)), mesh="x=2", layout="kh:x")


# ---- the transpose


def conv_transpose(x: wf.Tensor, w: wf.Tensor, **how: Any) -> wf.Tensor:
    return wf.conv_transpose(x, w, over=over(len(w.dims) - 2), channels=("channels", "channels_out"), **how)


def transpose_cases(dims: int, sizes: tuple[int, ...], paddings: Any) -> dict[str, Any]:
    cases = {}
    for size, k, stride, padding in itertools.product(sizes, (1, 2, 3, 5), (1, 2, 3), paddings):
        pads = padding if isinstance(padding, str) else dict.fromkeys(SPATIAL[-dims:], padding)
        plain_pads = padding if isinstance(padding, str) else [padding] * dims
        cases[f"kernel {k} stride {stride} padding {padding} of {size}"] = (
            lambda x, w, stride=stride, pads=pads: conv_transpose(x, w, stride=stride, padding=pads),
            lambda x, w, stride=stride, pads=plain_pads: lax.conv_transpose(
                x, w, (stride,) * dims, pads, dimension_numbers=numbers(dims)
            ),
            (image((size,) * dims, batch=2), kernel((k,) * dims)),
        )
    return cases


@pytest.mark.parametrize(
    ("mesh", "layout"), [NONE, ("x=4", "width:x"), ("a=2,b=2,c=2", "width:b+a,channels:c"), ("x=8", "width:x")]
)
def test_a_transposed_convolution_under_a_layout_is_that_of_lax(mesh, layout):
    check_all(transpose_cases(1, (8,), ["SAME"]), mesh, layout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "layout"), [NONE, pytest.param("x=2", "width:x", marks=pytest.mark.slow), ("x=4", "width:x")]
)
def test_what_a_transposed_convolution_makes_need_not_lie_alike_on_all_processors(mesh, layout):
    def divides(case: Any) -> bool:
        return jax.eval_shape(case[1], *(x.array for x in case[2])).shape[1] % 4 == 0

    cases = transpose_cases(1, (8, 12), ["VALID", (1, 2), (3, 3)])
    check_all({name: case for name, case in cases.items() if divides(case)}, mesh, layout)


@pytest.mark.parametrize(
    ("dims", "mesh", "layout"),
    [(2, "a=2,b=4", "height:a,width:b"), (3, "a=2,b=2,c=2", "depth:a,height:b,width:c")],
)
def test_a_transposed_convolution_in_several_dims(dims, mesh, layout):
    cases = transpose_cases(dims, (8 if dims == 2 else 4,), ["SAME"])
    chosen = [name for name in cases if name.startswith(("kernel 2 stride 2", "kernel 3 stride 2"))]
    check_all({name: cases[name] for name in chosen}, mesh, layout)


@pytest.mark.parametrize("layout", ["", "width:x", "channels:x"])
def test_a_transposed_convolution_of_each_channel_by_itself(layout):
    w = wf.tensor(floats((3, 4), "depthwise transpose"), "kw channels")

    def plain(x: Any, w: Any) -> Any:
        how = {"lhs_dilation": (2,), "dimension_numbers": numbers(1), "feature_group_count": 4}
        return lax.conv_general_dilated(x, w[:, None], (1,), [(2, 1)], **how)

    def run(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.conv_transpose(x, w, over=over(1), channels=("channels", "channels"), groups=4, stride=2)

    check_all({"depthwise": (run, plain, (image((8,)), w))}, "x=4", layout)


def test_a_transposed_convolution_sends_only_what_its_windows_see():
    def twice(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return conv_transpose(x, w, stride=2)

    assert sent(twice, image((8,)), kernel((2,)), mesh="x=4", layout="width:x") == []
    assert sent(twice, image((8,)), kernel((3,)), mesh="x=4", layout="width:x") == [("permute", ("x",), 64, 1)]


# ---- pooling


def plain_max(x: Any, sizes: Any, strides: Any, padding: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, *sizes, 1), (1, *strides, 1), padding)


def plain_mean(x: Any, sizes: Any, strides: Any, padding: Any) -> Any:
    def total(a: Any) -> Any:
        return lax.reduce_window(a, 0.0, lax.add, (1, *sizes, 1), (1, *strides, 1), padding)

    return total(x) / total(jnp.ones_like(x))


def pool_cases() -> dict[str, Any]:
    cases = {}
    pads = {"height": (1, 1), "width": (0, 2)}
    for (k, stride), padding in itertools.product([(2, 2), (3, 1), (3, 2), (2, 1), (1, 2)], ("SAME", "VALID", pads)):
        height, width = 16 if stride == 2 else 8, 16
        if padding == pads and k < 3:
            continue
        if padding == "VALID" and stride < k:
            continue
        if padding == pads and stride == 1:
            padding = {"height": (1, 1), "width": (2, 0)}
        plain_pads: Any = padding
        if isinstance(padding, dict):
            plain_pads = [(0, 0), padding["height"], padding["width"], (0, 0)]
        how = {"window": {"height": k, "width": k}, "stride": stride, "padding": padding}
        for fn, plain in ((wf.max_pool, plain_max), (wf.avg_pool, plain_mean)):
            cases[f"{fn.__name__} {k} {stride} {padding}"] = (
                lambda x, fn=fn, how=how: fn(x, **how),
                lambda x, plain=plain, k=k, s=stride, p=plain_pads: plain(x, (k, k), (s, s), p),
                (image((height, width), batch=2),),
            )
    return cases


@pytest.mark.quick("a=2,b=2,c=2-width:c+a,channels:b")
@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        NONE,
        pytest.param("x=4", "height:x", marks=pytest.mark.slow),
        ("a=2,b=4", "height:a,width:b"),
        ("a=2,b=2,c=2", "width:c+a,channels:b"),
        pytest.param("a=2,b=4", "height:b+a", marks=pytest.mark.slow),
    ],
)
def test_pools_under_a_layout_are_those_of_lax(mesh, layout):
    check_all(pool_cases(), mesh, layout)


def test_pads_are_never_the_largest_and_are_not_counted():
    x = wf.tensor(np.full((8,), -3.0, "float32"), "width")
    for mesh, layout in (("one=1", "width:one"), ("x=4", "width:x"), ("x=8", "width:x")):
        for fn in (wf.max_pool, wf.avg_pool):
            pooled = wf.spmd(
                lambda x, fn=fn: fn(x, window={"width": 3}, stride=1, padding="SAME"), mesh=mesh, layout=layout
            )
            np.testing.assert_allclose(pooled(x).array, x.array, rtol=1e-6)


def test_the_largest_of_integers_and_nan_wins():
    integers = wf.tensor(-np.arange(16, dtype="int32"), "width")
    odd = floats((16,), "odd")
    odd[5], odd[9] = np.nan, -np.inf

    def run(x: wf.Tensor) -> wf.Tensor:
        return wf.max_pool(x, window={"width": 3}, stride=1, padding="SAME")

    split = wf.spmd(run, mesh="x=8", layout="width:x")
    for x in (integers, wf.tensor(odd, "width")):
        np.testing.assert_array_equal(split(x).array, run(x).array)
    want = [0, *(-np.arange(15))]
    np.testing.assert_array_equal(split(integers).array, want)
    assert np.isnan(split(wf.tensor(odd, "width")).array).tolist() == [i in (4, 5, 6) for i in range(16)]


def test_the_mean_of_integers_is_a_float_and_narrow_floats_are_added_up_in_float32():
    run = wf.spmd(lambda x: wf.avg_pool(x, window={"width": 8}), mesh="x=2", layout="width:x")
    assert run(wf.tensor(np.arange(16, dtype="int32"), "width")).array.tolist() == [3.5, 11.5]
    narrow = wf.tensor(jnp.asarray([256.0] + [1.0] * 15, "bfloat16"), "width")
    assert run(narrow).dtype == jnp.bfloat16
    assert float(run(narrow).array[0]) == float(jnp.asarray(263 / 8, "bfloat16"))


def test_the_gradient_of_narrow_floats_goes_to_the_first_of_the_largest():
    x = jnp.asarray([1, 2, 2, 0, 3, 3, 3, 1], "bfloat16")

    def run(x: wf.Tensor) -> Any:
        pooled = lambda x: wf.max_pool(x, window={"width": 3}, stride=1, padding="SAME")  # noqa: E731
        return wf.grad(lambda x: wf.sum(wf.cast(pooled(x), "float32"), over="width"))(x)

    plain = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "SAME")  # noqa: E731
    want = jax.grad(lambda x: jnp.sum(plain(x).astype("float32")))(x)
    for ways in (1, 2, 8):
        got = wf.spmd(run, mesh=f"x={ways}", layout="width:x")(wf.tensor(x, "width"))
        np.testing.assert_array_equal(np.asarray(got.array, "float32"), np.asarray(want, "float32"))


def test_a_pool_whose_windows_are_its_strides_sends_nothing():
    x = image((8, 16))
    for fn in (wf.max_pool, wf.avg_pool):
        run = lambda x, fn=fn: fn(x, window={"height": 2, "width": 2})  # noqa: E731
        assert sent(run, x, mesh="a=2,b=4", layout="height:a,width:b") == []


# ---- upsampling


@pytest.mark.quick("a=2,b=4-height:a,width:b-linear", "a=2,b=4-width:b+a-nearest")
@pytest.mark.parametrize("method", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("mesh", "layout"), [NONE, ("a=2,b=4", "height:a,width:b"), ("a=2,b=4", "width:b+a"), ("x=4", "channels:x")]
)
def test_upsampling_under_a_layout_is_that_of_jax_image(method, mesh, layout):
    cases = {
        f"{h} {w}": (
            lambda x, h=h, w=w: wf.upsample(x, by={"height": h, "width": w}, method=method),
            lambda x, h=h, w=w: jax.image.resize(x, (2, 4 * h, 8 * w, 4), method),
            (image((4, 8), batch=2),),
        )
        for h, w in [(2, 2), (1, 3), (3, 4), (5, 1)]
    }
    check_all(cases, mesh, layout)


def test_upsampling_sends_one_place_of_each_neighbour_or_nothing():
    x = image((8,))
    for method, sends in (("nearest", []), ("linear", [("permute", ("x",), 64, 1)] * 2)):
        run = lambda x, method=method: wf.upsample(x, by={"width": 2}, method=method)  # noqa: E731
        assert sent(run, x, mesh="x=4", layout="width:x") == sends


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: wf.max_pool(x, window={"height": 3, "width": 3}, stride=1, padding="SAME"),
        lambda x: wf.avg_pool(x, window={"height": 3, "width": 3}, stride=1, padding="SAME"),
        lambda x: wf.upsample(x, by={"height": 2, "width": 2}, method="linear"),
    ],
)
def test_the_printed_program_says_once_what_goes_over_what(fn):
    program = wf.trace(fn, image((8, 8)), mesh="a=2,b=2", layout="height:a,width:b")
    assert len([line for line in str(program).splitlines() if "f32[batch height/a width/b channels]" in line]) == 1
    assert ") x" not in str(program)
    reasons = {row.reason for row in program.ledger}
    assert len(reasons) == 2 and all("goes over" in reason for reason in reasons)


OTHER_REFUSED = {
    "windows of no dims": (lambda x: wf.windows(x, over={"width": 3}), "windows got over={'width': 3}"),
    "windows along a dim of x": (
        lambda x: wf.windows(x, over={"width": wf.Dim("width", 3)}),
        "along `width`, which x",
    ),
    "window of 0": (lambda x: wf.max_pool(x, window={"width": 0}), "window"),
    "window is no dict": (lambda x: wf.max_pool(x, window=2), "window=2"),
    "window of an unknown dim": (lambda x: wf.avg_pool(x, window={"depth": 2}), "depth"),
    "window larger than the image": (lambda x: wf.avg_pool(x, window={"width": 9}), "window of 9"),
    "stride of 0": (lambda x: wf.max_pool(x, window={"width": 2}, stride=0), "stride=0"),
    "unknown padding": (lambda x: wf.max_pool(x, window={"width": 2}, padding="FULL"), "FULL"),
    "a window in the pads alone": (
        lambda x: wf.max_pool(x, window={"width": 2}, padding={"width": (2, 0)}),
        "pads alone",
    ),
    "booleans": (lambda x: wf.max_pool(x > 0, window={"width": 2}), "booleans"),
    "by nothing": (lambda x: wf.upsample(x, by={}), "by="),
    "by a half": (lambda x: wf.upsample(x, by={"width": 1.5}), "by="),
    "by an unknown dim": (lambda x: wf.upsample(x, by={"depth": 2}), "depth"),
    "unknown method": (lambda x: wf.upsample(x, by={"width": 2}, method="cubic"), "cubic"),
    "linear integers": (lambda x: wf.upsample(wf.cast(x, "int32"), by={"width": 2}, method="linear"), "int32"),
    "transpose stride 0": (lambda x: conv_transpose(x, kernel((3,)), stride=0), "stride=0"),
    "transpose padding": (lambda x: conv_transpose(x, kernel((3,)), padding="FULL"), "FULL"),
    "transpose of too little": (
        lambda x: conv_transpose(x, kernel((9,)), padding={"width": (0, 0)}),
        "window of 9",
    ),
}


@pytest.mark.parametrize("case", OTHER_REFUSED)
def test_what_cannot_be_pooled_or_spread_is_refused_with_its_fix(case):
    call, said = OTHER_REFUSED[case]
    with pytest.raises(wf.WeftError, match=said) as error:
        call(image((8,)))
    assert error.value.fix
