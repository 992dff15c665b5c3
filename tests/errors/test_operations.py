"""Wrong input of what moves, orders, looks up, convolves, pools and draws: each is a named error with its fix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

from .raised import error_of, is_inside

batch, length, d = wf.dims(batch=8, length=8, d=4)
pair, three = wf.dims(pair=2, three=3)
x = wf.tensor(np.arange(256, dtype="float32").reshape(8, 8, 4), [batch, length, d])
row = wf.tensor(np.ones((8, 4), "float32"), [batch, d])
ids = wf.tensor(np.zeros((8, 8), "int32"), [batch, length])
image = wf.tensor(np.ones((4, 8, 8, 4), "float32"), "batch height width channels")
kernel = wf.tensor(np.ones((3, 3, 4, 8), "float32"), "kh kw channels made")
key = jax.random.key(0)


def short(name: str) -> wf.Tensor:
    """`x` with four places of a dim."""
    return wf.slice(x, over=name, start=0, size=4)


def assign() -> None:
    x["length", 0] = 1.0


# Each case: what is called, a part of the fact, a part of the fix.
SLICES = {
    "slice of -1": (lambda: wf.slice(x, over=length, start=0, size=-1), "size=-1", "at least 1, e.g. `size=1`"),
    "slice of nothing": (lambda: wf.slice(x, over=length, start=0, size=0), "slice got size=0", "at least 1"),
    "slice of half a size": (lambda: wf.slice(x, over=length, start=0, size=2.5), "size=2.5", "a whole number"),
    "slice of a traced size": (
        lambda: jax.jit(lambda n: wf.slice(x, over=length, start=0, size=n))(2), "may not be traced", "`size=1`"),
    "slice of too much": (lambda: wf.slice(x, over=length, start=0, size=9), "takes 9 of `length`", "`size=8`"),
    "slice before the start": (lambda: wf.slice(x, over=length, start=-1, size=2), "[-1, 1)", "between 0 and 6"),
    "slice past the end": (lambda: wf.slice(x, over=length, start=7, size=2), "[7, 9)", "between 0 and 6"),
    "slice past the end by numpy": (
        lambda: wf.slice(x, over=length, start=np.int32(7), size=2), "[7, 9)", "between 0 and 6"),
    "slice from a float": (lambda: wf.slice(x, over=length, start=1.0, size=2), "1.0 for `start`", "`start=0`"),
    "slice from text": (lambda: wf.slice(x, over=length, start="a", size=2), "'a' for `start`", "`start=0`"),
    "slice from nothing": (lambda: wf.slice(x, over=length, start=None, size=2), "None for `start`", "`start=0`"),
    "slice from many": (lambda: wf.slice(x, over=length, start=ids, size=2), "i32[batch length]", "`start=0`"),
    "slice over a wrong name": (lambda: wf.slice(x, over="lenght", start=0, size=2), "`lenght`", "`length`"),
    "slice over two": (lambda: wf.slice(x, over="batch length", start=0, size=2), "are 2", "`over='batch'`"),
    "slice over a number": (lambda: wf.slice(x, over=1, start=0, size=2), "names no dims", "over='batch length d'"),
    "slice over another size": (lambda: wf.slice(x, over=length.resized(9), start=0, size=2), "size 8", "rename"),
    "slice of an array": (lambda: wf.slice(np.ones(3), over=length, start=0, size=2), "plain array", "wf.tensor"),
    "stretch with a step by halves": (lambda: x["length", ::0.5], "step 0.5", "a whole number"),
    "stretch backwards to nothing": (lambda: x["length", 2:5:-1], "2:5:-1 of `length` (size 8) is empty", "0:1"),
    "empty stretch": (lambda: x["length", 5:5], "5:5 of `length` (size 8) is empty", "0:1"),
    "stretch beyond": (lambda: x["length", 8:10], "is empty", "0:1"),
    "stretch by floats": (lambda: x["length", 1.0:2.0], "from 1.0 to 2.0", "whole numbers"),
    "place beyond": (lambda: x["length", 8], "place 8 of `length`", "0 to 7"),
    "place beyond by numpy": (lambda: x["length", np.int64(30)], "place 30 of `length`", "0 to 7"),
    "place before": (lambda: x["length", -9], "place -9", "0 to 7"),
    "place by a float": (lambda: x["length", 1.5], "`length` that is 1.5", "x['length', 0:1]"),
    "places by a list": (lambda: x["length", [1, 2]], "[1, 2]", "wf.take(x, ids, over='length')"),
    "places by a mask": (lambda: x["length", x > 0], "bool[batch length d]", "wf.take"),
    "place of a wrong name": (lambda: x["lenght", 0], "`lenght`", "did you mean `length`?"),
    "place without a name": (lambda: x[0], "was indexed with 0", 'x["batch", 0]'),
    "places without names": (lambda: x[1:3, ...], "was indexed", 'x["batch", 3:7]'),
}  # fmt: skip

MOVES = {
    "pad of -1": (lambda: wf.pad(x, over=length, before=-1), "before=-1", "at least 0"),
    "pad of -1 after": (lambda: wf.pad(x, over=length, after=-1), "after=-1", "at least 0"),
    "pad of a pair": (lambda: wf.pad(x, over=length, before=(1, 2)), "before=(1, 2)", "whole number"),
    "pad with text": (lambda: wf.pad(x, over=length, before=1, value="a"), "'a'", "a number"),
    "pad with many": (lambda: wf.pad(x, over=length, before=1, value=row), "filled with f32[batch d]", "one number"),
    "pad integers with a fraction": (lambda: wf.pad(ids, over=length, before=1, value=0.5), "0.5", "'float32'"),
    "pad over a wrong name": (lambda: wf.pad(x, over="lenght", before=1), "`lenght`", "`length`"),
    "shift by half": (lambda: wf.shift(x, over=length, by=0.5), "by=0.5", "`by=1`"),
    "shift by a dict": (lambda: wf.shift(x, over=length, by={"length": 1}), "by={'length': 1}", "`by=1`"),
    "shift by a traced number": (lambda: jax.jit(lambda n: wf.shift(x, over=length, by=n))(1), "traced", "`by=1`"),
    "shift with text": (lambda: wf.shift(x, over=length, by=1, fill="a"), "'a'", "a number"),
    "shift with nothing": (lambda: wf.shift(x, over=length, by=1, fill=None), "None", "a number"),
    "shift integers with nan": (lambda: wf.shift(ids, over=length, by=1, fill=np.nan), "nan", "'float32'"),
    "roll by half": (lambda: wf.roll(x, over=length, by=0.5), "by=0.5", "`by=1`"),
    "roll over a wrong name": (lambda: wf.roll(x, over="lenght", by=1), "`lenght`", "`length`"),
    "flip over two": (lambda: wf.flip(x, over=[batch, length]), "are 2", "`over='batch'`"),
    "flip of a number": (lambda: wf.flip(3, over="length"), "int 3", "wf.tensor"),
    "concat of nothing": (lambda: wf.concat([], over=length), "concat got []", "a list of tensors"),
    "concat of one": (lambda: wf.concat(x, over=length), "concat got f32", "a list of tensors"),
    "concat of other sizes": (lambda: wf.concat([x, short("batch")], over=length), "size 8", "same size"),
    "concat of other dims": (lambda: wf.concat([x, row], over=d), "concat got [batch=8", "broadcast"),
    "concat of an array": (lambda: wf.concat([x, np.ones((8, 8, 4))], over=length), "plain array", "wf.tensor"),
    "concat over a new dim": (lambda: wf.concat([x, x], over=pair), "`pair`", "`batch`"),
    "stack of other dims": (lambda: wf.stack([row, row.rename(d="e")], pair), "[batch=8 e=4]", "rename"),
    "stack of fewer dims": (lambda: wf.stack([x, row], pair), "[batch=8 d=4]", "wf.broadcast(x, [batch, length, d])"),
    "stack of other sizes": (lambda: wf.stack([x, short("batch")], pair), "size 8", "same size"),
    "stack of too few": (lambda: wf.stack([x, x], three), "2 tensors along three=3", "`wf.Dim('copies', 2)`"),
    "stack along a name": (lambda: wf.stack([x, x], "pair"), "along 'pair'", "`wf.Dim('copies', 2)`"),
    "stack along a dim it has": (lambda: wf.stack([x] * 8, batch), "has already", "wf.Dim('batch_2', 8)"),
    "unstack over two": (lambda: wf.unstack(x, over="batch d"), "are 2", "`over='batch'`"),
    "unstack over a wrong name": (lambda: wf.unstack(x, over="lenght"), "`lenght`", "`length`"),
    "split that does not multiply up": (lambda: wf.split(x, length=[pair, three]), "[pair=2 three=3]", "to 8"),
    "split into numbers": (
        lambda: wf.split(x, length=[2, 4]), "into [2, 4]", "[wf.Dim('length_1', 2), wf.Dim('length_2', 4)]"),
    "split into names": (lambda: wf.split(x, length=["a", "b"]), "`a` alone", "wf.Dim('a', 8)"),
    "split of a wrong name": (lambda: wf.split(x, lenght=[pair, d]), "`lenght`", "`length`"),
    "split into a dim it has": (lambda: wf.split(x, length=[pair, d]), "`d` twice", "`d_2`"),
    "merge to another size": (lambda: wf.merge(x, [batch, d], into=pair), "pair=2", "wf.Dim('name', 32)"),
    "merge into a name": (lambda: wf.merge(x, [batch, d], into="both"), "'both'", "wf.Dim('name', 32)"),
    "merge into a dim it has": (
        lambda: wf.merge(x, [batch, d], into=wf.Dim("length", 32)), "has already", "wf.Dim('length_2', 32)"),
    "merge of nothing": (lambda: wf.merge(x, [], into=wf.Dim("one", 1)), "no dims", "wf.merge(x, [heads, d_kv]"),
    "merge of a wrong name": (lambda: wf.merge(x, "batch lenght", into=pair), "`lenght`", "`length`"),
    "update past the end": (lambda: wf.update(x, row, over=length, at=8), "[8, 9)", "between 0 and 7"),
    "update past the end by numpy": (lambda: wf.update(x, row, over=length, at=np.int64(9)), "[9, 10)", "0 and 7"),
    "update before the start": (lambda: wf.update(x, row, over=length, at=-1), "[-1, 0)", "between 0 and 7"),
    "update at a float": (lambda: wf.update(x, row, over=length, at=1.0), "1.0 for `at`", "`at=0`"),
    "update at nothing": (lambda: wf.update(x, row, over=length, at=None), "None for `at`", "`at=0`"),
    "update at many": (lambda: wf.update(x, row, over=length, at=ids), "i32[batch length] for `at`", "`at=0`"),
    "update of too much": (
        lambda: wf.update(x, wf.zeros([length.resized(9)]), over=length, at=0), "9 into `length`", "at most 8"),
    "update by a number": (lambda: wf.update(x, 0.0, over=length, at=0), "float 0.0", "wf.tensor"),
    "update by another dim": (lambda: wf.update(x, row.rename(d="e"), over=length, at=0), "`e`", "sum over `e`"),
    "update of integers by floats": (
        lambda: wf.update(ids, wf.zeros([batch]), over=length, at=0), "float32 into int32", "wf.cast(new, 'int32')"),
    "assignment": (assign, "cannot be changed", "wf.update(x, new, over='length', at=0)"),
}  # fmt: skip

ORDER = {
    "argmax over nothing": (lambda: wf.argmax(x, over=[]), "are 0", "`over='length'`"),
    "argmax without over": (lambda: wf.argmax(x), "'over'", "wf.argmax(x, over=...)"),
    "argmin over a wrong name": (lambda: wf.argmin(x, over="lenght"), "`lenght`", "`length`"),
    "top_k of a number": (lambda: wf.top_k(x, over=length, k=2), "k=2", "k=wf.Dim('top', 2)"),
    "top_k of none": (lambda: wf.top_k(x, over=length, k=0), "k=0", "k=wf.Dim('top', 1)"),
    "top_k of a name": (lambda: wf.top_k(x, over=length, k="top"), "k='top'", "k=wf.Dim('top', 1)"),
    "top_k of too many": (lambda: wf.top_k(x, over=d, k=batch), "takes 8 of `d`", "wf.Dim('batch', 4)"),
    "top_k of a dim it has": (lambda: wf.top_k(x, over=length, k=batch), "has already", "wf.Dim('batch_top', 8)"),
    "sort of complex numbers": (lambda: wf.sort(x * 1j, over=length), "no order", "wf.abs(x)"),
    "cumsum over two": (lambda: wf.cumsum(x, over="batch d"), "are 2", "`over='batch'`"),
    "cumsum along an axis": (lambda: wf.cumsum(x, axis=1), "'axis'", "wf.cumsum(x, over=..., reverse=False)"),
    "cumprod over a wrong name": (lambda: wf.cumprod(x, over="lenght"), "`lenght`", "`length`"),
    "cummax of an array": (lambda: wf.cummax(np.ones(3), over=d), "plain array", "wf.tensor"),
    "prefixes by no function": (lambda: wf.associative_scan(3, x, over=length), "3", "a function"),
    "prefixes by a function of one": (lambda: wf.associative_scan(lambda a: a, x, over=length), "argument", "2 arg"),
    "prefixes of other sizes": (
        lambda: wf.associative_scan(lambda a, b: a, (x, short("length")), over=length), "size 4", "same size"),
    "prefixes of what lacks the dim": (
        lambda: wf.associative_scan(lambda a, b: a, (x, row), over=length), "no dim `length`", "`batch`"),
    "take by floats": (lambda: wf.take(x, row.rename(d="e"), over=length), "float32", "wf.cast(ids, 'int32')"),
    "take by a number": (lambda: wf.take(x, 3, over=d), "int 3", "wf.tensor"),
    "take without over": (lambda: wf.take(x, ids), "'over'", "wf.take(table, ids, over=..., rename=None)"),
    "gather by floats": (lambda: wf.gather(x, x, over=length), "float32", "wf.cast(ids, 'int32')"),
    "gather by ids without the dim": (lambda: wf.gather(x, ids, over=d), "lack", "wf.take(x, ids, over='d')"),
    "gather by other sizes": (
        lambda: wf.gather(x, wf.zeros([batch.resized(4), length], dtype="int32"), over=length), "size 8", "same size"),
    "scatter_add by floats": (lambda: wf.scatter_add(x, x, x, over=length), "float32", "wf.cast(ids, 'int32')"),
    "scatter_add of fewer dims": (
        lambda: wf.scatter_add(x, ids, row, over=length), "are due", "wf.broadcast(updates, 'batch d length')"),
    "scatter_add of floats to integers": (
        lambda: wf.scatter_add(ids, ids, wf.zeros([batch, length]), over=length), "float32 to int32", "wf.cast(x"),
    "scatter_add of booleans": (lambda: wf.scatter_add(ids > 0, ids, ids > 0, over=length), "booleans", "'int32'"),
    "scatter_add of a number": (lambda: wf.scatter_add(x, ids, 1.0, over=length), "float 1.0", "wf.tensor"),
    "one_hot of a number of classes": (lambda: wf.one_hot(ids, 3), "3 for its new dim", "wf.Dim("),
}  # fmt: skip


def conv(op: Any = wf.conv, **how: Any) -> Any:
    given = {"x": image, "w": kernel, "over": {"height": "kh", "width": "kw"}, "channels": ("channels", "made"), **how}
    return lambda: op(given.pop("x"), given.pop("w"), **given)


def pool(window: Any, op: Any = wf.max_pool, **how: Any) -> Any:
    return lambda: op(image, window=window, **how)


def sized(**sizes: int) -> wf.Tensor:
    return wf.zeros(wf.dims(**sizes))


CONVOLUTIONS = {
    "kernel larger than the image": (
        conv(w=sized(kh=9, kw=3, channels=4, made=8), padding="VALID"), "9 along `height` (size 8)", "at most 8"),
    "kernel larger than the padded image": (
        conv(w=sized(kh=12, kw=3, channels=4, made=8), padding={"height": (1, 1)}), "10 with its pads", "at most 10"),
    "kernel spread past the image": (conv(dilation=4, padding="VALID"), "window of 9", "padding='SAME'"),
    "padding in small letters": (conv(padding="same"), "padding='same'", "'SAME', 'VALID'"),
    "padding by no known name": (conv(padding="CIRCULAR"), "'CIRCULAR'", "'SAME', 'VALID'"),
    "padding by a number": (conv(padding=1), "padding=1", "{'height': (1, 2)}"),
    "padding by nothing": (conv(padding=None), "padding=None", "'SAME', 'VALID'"),
    "negative pads": (conv(padding={"height": (-1, 0)}), "(-1, 0)", "at least 0"),
    "pads of a wrong name": (conv(padding={"hieght": (1, 1)}), "`hieght`", "did you mean `height`?"),
    "stride 0": (conv(stride=0), "stride=0", "at least 1"),
    "half a stride": (conv(stride=1.5), "stride=1.5", "stride={'height': 2}"),
    "strides without names": (conv(stride=(2, 2)), "stride=(2, 2)", "stride={'height': 2}"),
    "dilation 0": (conv(dilation=0), "dilation=0", "at least 1"),
    "groups 0": (conv(groups=0), "groups=0", "at least 1"),
    "groups that do not divide": (conv(groups=3), "3 groups do not divide `channels` (size 4)", "e.g. 4"),
    "a kernel of all groups": (conv(groups=2), "2 group", "`channels` of size 2"),
    "no channels": (lambda: wf.conv(image, kernel, over={"height": "kh", "width": "kw"}), "'channels'", "channels=..."),
    "one name for channels": (conv(channels="channels"), "channels='channels'", "(channels, channels_out)"),
    "channels of a wrong name": (conv(channels=("chanels", "made")), "`chanels`", "`channels`"),
    "channels the wrong way round": (conv(channels=("made", "channels")), "`made`", "`channels`"),
    "a kernel of other channels": (conv(w=sized(kh=3, kw=3, channels=3, made=8)), "size 3", "size 4"),
    "a kernel without channels": (conv(w=sized(kh=3, kw=3, made=8)), "no `channels`", "`channels` of size 4"),
    "over no dict": (conv(over="height width"), "over='height width'", "over={'height': 'kh'}"),
    "over a wrong name": (conv(over={"hieght": "kh", "width": "kw"}), "`hieght`", "`height`"),
    "over a dim less than the kernel": (conv(over={"height": "kh"}), "`kw`", "over='kw'"),
    "one kernel dim twice": (conv(over={"height": "kh", "width": "kh"}), "`kh` twice", "rename"),
    "booleans": (conv(x=image > 0), "booleans", "wf.cast(x, 'float32')"),
    "an array for a kernel": (conv(w=np.ones((3, 3, 4, 8))), "plain array", "wf.tensor"),
    "transposed with stride 0": (conv(wf.conv_transpose, stride=0), "stride=0", "at least 1"),
    "transposed with a wrong padding": (conv(wf.conv_transpose, padding="FULL"), "'FULL'", "'SAME', 'VALID'"),
    "transposed with groups that do not divide": (conv(wf.conv_transpose, groups=3), "3 groups", "e.g. 4"),
    "transposed by too large a kernel": (
        conv(wf.conv_transpose, w=sized(kh=9, kw=3, channels=4, made=8), padding={}), "window of 9", "padding='SAME'"),
    "a window of no dims": (pool({}), "window={}", "window={'height': 2}"),
    "a window without names": (pool(2), "window=2", "window={'height': 2}"),
    "a window of 0": (pool({"height": 0}), "{'height': 0}", "at least 1"),
    "a window larger than the image": (pool({"height": 9}), "window of 9", "at most 8"),
    "a mean of a window larger than the image": (pool({"height": 9}, wf.avg_pool), "window of 9", "at most 8"),
    "a window of a wrong name": (pool({"hieght": 2}), "`hieght`", "`height`"),
    "a pool of stride 0": (pool({"height": 2}, stride=0), "stride=0", "at least 1"),
    "a pool with a wrong padding": (pool({"height": 2}, padding="FULL"), "'FULL'", "'SAME', 'VALID'"),
    "a pool with negative pads": (pool({"height": 2}, padding={"height": (0, -1)}), "(0, -1)", "at least 0"),
    "a pool with pads as large as the window": (
        pool({"height": 2}, wf.avg_pool, padding={"height": (2, 0)}), "pads (2, 0)", "at most 1"),
    "upsample by a wrong method": (lambda: wf.upsample(image, by={"height": 2}, method="cubic"), "'cubic'", "'linear'"),
    "upsample by a fraction": (lambda: wf.upsample(image, by={"height": 1.5}), "1.5", "by={'height': 2}"),
    "upsample by a number": (lambda: wf.upsample(image, by=2), "by=2", "by={'height': 2}"),
    "upsample by 0": (lambda: wf.upsample(image, by={"height": 0}), "{'height': 0}", "at least 1"),
    "upsample of integers by lines": (
        lambda: wf.upsample(wf.cast(image, "int32"), by={"height": 2}, method="linear"), "int32", "'float32'"),
}  # fmt: skip

DRAWS = {
    "randint of nothing": (lambda: wf.random.randint(key, [d], minval=2, maxval=2), "[2, 2)", "maxval=3"),
    "randint of nothing by numpy": (
        lambda: wf.random.randint(key, [d], minval=np.int32(2), maxval=np.int32(1)), "[2, 1)", "maxval=3"),
    "randint from a float": (lambda: wf.random.randint(key, [d], minval=0.5, maxval=2), "`minval` is 0.5", "whole"),
    "randint of too much": (lambda: wf.random.randint(key, [d], minval=0, maxval=2**40), "32 bits", "4294967295"),
    "randint as floats": (
        lambda: wf.random.randint(key, [d], minval=0, maxval=2, dtype="float32"), "float32", "'int32'"),
    "randint without an end": (lambda: wf.random.randint(key, [d], minval=0), "'maxval'", "maxval=..."),
    "uniform the wrong way round": (
        lambda: wf.random.uniform(key, [d], minval=1.0, maxval=0.0), "wrong way round", "`maxval` above 1.0"),
    "truncated the wrong way round": (
        lambda: wf.random.truncated_normal(key, [d], lower=2.0, upper=-2.0), "wrong way round", "`upper` above 2.0"),
    "gumbel of integers": (lambda: wf.random.gumbel(key, [d], dtype="int32"), "int32", "'float32'"),
    "gumbel without a key": (lambda: wf.random.gumbel(None, [d]), "got no key", "jax.random.key(seed)"),
    "bernoulli by numpy": (lambda: wf.random.bernoulli(key, [d], p=np.float32(1.5)), "p=1.5", "[0, 1]"),
    "dropout at rate 1 by numpy": (lambda: wf.dropout(x, np.float32(1), key), "rate 1.0", "[0, 1)"),
    "dropout at rate -1": (lambda: wf.dropout(x, -1, key), "rate -1", "[0, 1)"),
    "dropout by text": (lambda: wf.dropout(x, 0.5, "key"), "dropout got str", "jax.random.key(seed)"),
    "categorical without over": (lambda: wf.random.categorical(key, x), "'over'", "logits, over=...)"),
    "categorical over two": (
        lambda: wf.random.categorical(key, x, over="length d"), "random.categorical goes over one", "`over='length'`"),
    "categorical over a wrong name": (lambda: wf.random.categorical(key, x, over="lenght"), "`lenght`", "`length`"),
    "categorical of integers": (lambda: wf.random.categorical(key, ids, over=length), "i32", "wf.cast(logits"),
    "categorical by an old key": (
        lambda: wf.random.categorical(jax.random.PRNGKey(0), x, over=length), "random.categorical got uint32[2]",
        "jax.random.key(seed)"),
    "split of a key by a number": (lambda: wf.random.split(key, 3), "got 3", "wf.Dim('copies', 3)"),
    "split of a key by a name": (lambda: wf.random.split(key, "copies"), "'copies'", "wf.Dim('copies'"),
    "split of a number": (lambda: wf.random.split(0, d), "for its key", "jax.random.key(seed)"),
}  # fmt: skip

WRONG = SLICES | MOVES | ORDER | CONVOLUTIONS | DRAWS


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_input_is_a_named_error_with_its_fix(case):
    act, fact, fix = WRONG[case]
    error = error_of(act)
    assert fact in error.fact
    assert fix in error.fix


def test_no_case_hides_another():
    assert len(WRONG) == sum(map(len, (SLICES, MOVES, ORDER, CONVOLUTIONS, DRAWS)))


# ---- what is right alone and does not fit the layout

a, b = wf.dims(a=2, b=4)
UNEVEN = {
    "slice": (lambda x: wf.slice(x, over=length, start=1, size=6), x, "length", 6),
    "slice from a traced start": (lambda x: wf.slice(x, over=length, start=jnp.int32(1), size=6), x, "length", 6),
    "indexing": (lambda x: x["length", 1:], x, "length", 7),
    "pad": (lambda x: wf.pad(x, over=length, after=1), x, "length", 9),
    "concat": (lambda x: wf.concat([x, wf.zeros([batch, length.resized(2), d])], over=length), x, "length", 10),
    "gather": (lambda x: wf.gather(x, wf.zeros([length.resized(3)], dtype="int32"), over=length), x, "length", 3),
    "top_k": (lambda x: wf.top_k(x, over=length, k=wf.Dim("length", 3)), x, "length", 3),
    "split": (lambda x: wf.split(x, batch=[wf.Dim("length_1", 2), b]), x, "length_1", 2),
    "stack": (lambda x: wf.stack([x] * 3, wf.Dim("length_1", 3)), x, "length_1", 3),
    "one_hot": (lambda x: wf.one_hot(x, wf.Dim("length_1", 6)), ids, "length_1", 6),
    "conv": (lambda x: conv(x=x, padding="VALID")(), image, "height", 6),
    "conv with a stride": (lambda x: conv(x=x, stride=3)(), image, "height", 3),
    "conv_transpose": (lambda x: conv(wf.conv_transpose, x=x, padding="VALID")(), image, "height", 10),
    "max_pool": (lambda x: wf.max_pool(x, window={"height": 3}, stride=1), image, "height", 6),
    "avg_pool": (lambda x: wf.avg_pool(x, window={"height": 4}), image, "height", 2),
}


@pytest.mark.parametrize("case", UNEVEN)
def test_a_new_size_that_does_not_divide_is_the_error_of_the_layout(case):
    fn, given, name, size = UNEVEN[case]
    run = wf.spmd(fn, mesh="rows=4", layout=f"{name}:rows")
    error = error_of(lambda: run(given), wf.LayoutError)
    assert error.fact == f"dim `{name}` (size {size}) does not divide over mesh axis `rows` (size 4)"
    assert f"make `{name}` a multiple of 4 (nearest: " in error.fix and f"drop `{name}:rows`" in error.fix
    assert is_inside(error, f"{name}:rows")


def test_what_must_be_whole_is_named_with_its_rule():
    run = wf.spmd(lambda x, w: conv(x=x, w=w)(), mesh="rows=4", layout="kh:rows")
    error = error_of(lambda: run(image, sized(kh=4, kw=3, channels=4, made=8)), wf.LayoutError)
    assert "needs `kh` whole" in error.fact and "layout.drop('kh')" in error.fix
    run = wf.spmd(lambda x, w: conv(x=x, w=w, groups=2)(), mesh="rows=4", layout="made:rows")
    error = error_of(lambda: run(image, sized(kh=3, kw=3, channels=2, made=8)), wf.LayoutError)
    assert "2 groups, which do not divide over rows (4 ways)" in error.fact and "multiple of 4 groups" in error.fix


def test_what_looks_odd_and_is_meant():
    assert wf.slice(x, over=length, start=np.int64(2), size=np.int64(3)).size("length") == 3
    assert x["length", np.int64(6) : 100].size("length") == 2
    assert wf.shift(x, over=length, by=100).dims == x.dims
    assert wf.concat([x, wf.cast(x, "int32")], over=length).dtype == "float32"  # promoted, as in jnp
    assert wf.stack([x, wf.cast(x, "int32")], pair).dtype == "float32"
    edge = wf.zeros([batch, length.resized(2), d])  # whole, so it need not divide
    wider = wf.spmd(lambda x: wf.concat([edge, x, edge], over=length), mesh="rows=4", layout="length:rows")(x)
    np.testing.assert_array_equal(wider.array, np.pad(x.array, ((0, 0), (2, 2), (0, 0))))
    assert conv(w=sized(kh=19, kw=3, channels=4, made=8))().size("height") == 8  # SAME pads as much as it must
    assert wf.update(x, wf.cast(row, "int32"), over=length, at=0).dtype == "float32"
    assert wf.pad(x, over=length, after=1, value=1).size("length") == 9
