"""Programs whose ledger is compared with the compiled code: a small language model and single ideas, on 8 processors.

Sizes differ so that no two dims can be taken for each other.
"""

import dataclasses
import math
from collections import Counter
from typing import Any

import jax
import optax

import weft as wf
from tests.program.cases_ops import whole_language
from tests.program.independent import Sent
from weft.spmd import TrainStep

B, T, M, D = wf.dims(batch=8, length=16, memory_length=16, d_model=24)
H, K, F, V, L = wf.dims(heads=4, d_kv=6, d_ff=40, vocab=56, layers=3)
S = wf.Dim("stream", T.size, follows="length")

PAPERS = "batch:rows,vocab:cols,heads:cols,d_ff:cols"
LAYER = {
    "norm_1": [D],
    "q": [D, H, K],
    "k": [D, H, K],
    "v": [D, H, K],
    "o": [H, K, D],
    "norm_2": [D],
    "w_1": [D, F],
    "w_2": [F, D],
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, the shapes it is called with, and where it runs."""

    fn: Any
    args: tuple[Any, ...]
    mesh: str
    layout: str

    def program(self) -> Any:
        """The program as it is read."""
        is_step = isinstance(self.fn, TrainStep)
        args = (self.fn.init(self.args[0]), *self.args[1:]) if is_step else self.args
        return wf.trace(self.fn, *args, mesh=self.mesh, layout=self.layout)

    def lowered(self, mesh: wf.Mesh) -> Any:
        """The program as it is compiled for the devices of a mesh, its arguments placed where it wants them."""
        bound: Any = wf.spmd(self.fn, mesh=mesh, layout=self.layout)
        if not isinstance(bound, TrainStep):
            return bound.lower(*self.args)
        params, batch = self.args
        return bound.lower(bound.init(params), batch)


def ledger(program: Any, phase: str | None = None) -> Sent:
    """What a program's ledger says is sent, by collective and axes; with `phase`, in it."""
    found: Sent = Counter()
    for row in program.ledger:
        assert row.exact, row
        if phase in (None, row.phase):
            found[row.collective, frozenset(row.axes)] += row.bytes * row.count
    return found


def shape(*dims: wf.Dim, dtype: str = "float32") -> wf.Tensor:
    return wf.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)


def weight(*dims: wf.Dim, dtype: str = "float32") -> wf.Tensor:
    return wf.parameter(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)


# A language model: its layers scanned or unrolled, its residual stream under its own name, its embedding tied or not.


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    scanned: bool = True
    remat: bool = True
    tied: bool = False
    stream: bool = False
    microbatches: int = 1
    dtype: str = "float32"

    def args(self) -> tuple[Any, ...]:
        if self.scanned:
            layers: Any = {name: weight(L, *dims) for name, dims in LAYER.items()}
        else:
            layers = [{name: weight(*dims) for name, dims in LAYER.items()} for _ in range(2)]
        params = {"embedding": weight(V, D), "layers": layers, "norm": weight(D)}
        if not self.tied:
            params["softmax"] = weight(V, D)
        words = shape(B, T, dtype="int32")
        return params, {"inputs": words, "targets": words}

    def __call__(self, p: Any, batch: Any, key: Any = None) -> Any:
        if self.microbatches == 1:
            total, count = self.summed(p, batch)
            return total / count
        return wf.accumulate(self.summed, p, batch, over="batch", count=self.microbatches)

    def summed(self, p: Any, batch: Any) -> tuple[Any, Any]:
        x = wf.cast(wf.take(p["embedding"], batch["inputs"], over=V), self.dtype)
        x = x.rename(length=S) if self.stream else x
        x = self.decoder(x, p["layers"])
        x = self.norm(x, p["norm"])
        x = x.rename(stream=T) if self.stream else x
        table = p["embedding"] if self.tied else p["softmax"]
        logits = wf.einsum(x, wf.cast(table, x.dtype), over=D, dtype="float32")
        target = wf.sum(logits * wf.one_hot(batch["targets"], V), over=V)
        nll = wf.logsumexp(logits, over=V) - target
        return wf.sum(nll, over="batch length"), math.prod(dim.size for dim in nll.dims)

    def decoder(self, x: Any, layers: Any) -> Any:
        layer = wf.remat(self.layer) if self.remat else self.layer
        if self.scanned:
            return wf.scan(lambda x, p: (layer(x, p), None), x, layers, over=L)[0]
        for p in layers:
            x = layer(x, p)
        return x

    def layer(self, x: Any, p: Any) -> Any:
        w = {name: wf.cast(weight, x.dtype) for name, weight in p.items()}
        to_stream = {"length": S} if self.stream else None
        h = self.norm(x, p["norm_1"])
        h = h.rename(stream=T) if self.stream else h
        q, k, v = (wf.einsum(h, w[name], over=D) for name in "qkv")
        k, v = k.rename(length=M), v.rename(length=M)
        seen = wf.arange(M, like=k) <= wf.arange(T, like=q)
        scores = wf.where(seen, wf.cast(wf.einsum(q, k, over=K), "float32"), -1e9)
        mixed = wf.einsum(wf.cast(wf.softmax(scores, over=M), x.dtype), v, over=M)
        x = x + wf.einsum(mixed, w["o"], over=[H, K], rename=to_stream)
        h = self.norm(x, p["norm_2"])
        h = h.rename(stream=T) if self.stream else h
        h = wf.relu(wf.einsum(h, w["w_1"], over=D))
        return x + wf.einsum(h, w["w_2"], over=F, rename=to_stream)

    def norm(self, x: Any, scale: Any) -> Any:
        wide = wf.cast(x, "float32")
        return wf.cast(wide * wf.rsqrt(wf.mean(wide * wide, over=D) + 1e-6) * scale, x.dtype)


# Single ideas.


def two_layers(params: Any, x: Any) -> Any:
    y = wf.einsum(wf.relu(wf.einsum(x, params["w_1"], over=D)), params["w_2"], over=F)
    return wf.mean(wf.square(y - x), over=[B, D])


def look_up(table: Any, ids: Any) -> Any:
    return wf.sum(wf.square(wf.take(table, ids, over=V)), over="batch length d_model")


def cross_entropy(logits: Any, targets: Any) -> Any:
    target = wf.sum(logits * wf.one_hot(targets, V), over=V)
    return wf.mean(wf.logsumexp(logits, over=V) - target, over="batch length")


def attend(q: Any, k: Any) -> Any:
    share = wf.softmax(wf.einsum(q, k, over=K), over=M)
    return wf.sum(wf.einsum(share, k, over=M) * q, over="batch length d_kv")


def chosen(is_long: Any, x: Any, w: Any) -> Any:
    def long_way(x: Any) -> Any:
        return wf.einsum(wf.relu(wf.einsum(x, w, over=D)), w, over=F)

    def short_way(x: Any) -> Any:
        return x * wf.mean(x * x, over=B)

    return wf.sum(wf.square(wf.cond(is_long, long_way, short_way, x)), over="batch d_model")


def turned(x: Any) -> Any:
    """Axes that move between dims, and a gather."""
    y = wf.tanh(x).rename(d_model="d_out", d_ff="d_in")
    return wf.tanh(y).rename(d_out="d_whole")


def looped(x: Any, w: Any) -> Any:
    def turn(i: Any, x: Any) -> Any:
        return wf.tanh(wf.einsum(wf.relu(wf.einsum(x, w, over=D)), w, over=F)) + i

    return wf.fori_loop(0, 5, turn, x)


def repeated(x: Any) -> Any:
    return wf.sum(x, over=B) * wf.tanh(wf.sum(x, over=B))


def unneeded(x: Any) -> Any:
    wf.sum(x, over=B)
    return wf.mean(x, over=D)


def extremes(x: Any) -> Any:
    is_positive = x > 0
    some = wf.where(wf.any(is_positive, over=B), wf.max(x, over=B), wf.prod(x, over=B))
    return wf.where(wf.all(is_positive, over=[B, D]), wf.var(x, over=[B, D]), some + wf.min(x, over=D))


def grown(x: Any) -> Any:
    """A loop whose number of turns is not known; one is counted."""
    return wf.while_loop(lambda x: wf.sum(x, over=[B, D]) < 100, lambda x: x * (1 + wf.mean(x, over=D)), x)


def mapped(x: Any) -> Any:
    return wf.vmap(lambda row: row / wf.sum(row * row, over=D), over=B)(x)


ADAM = optax.adam(1e-3)
ADAFACTOR = optax.adafactor(1e-3, min_dim_size_to_factor=4)
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
ROWS_COLS = "rows=2,cols=4"
XYZ = "x=2,y=2,z=2"
HOSTS, PODS = "hosts=2|x=4", "pods=2|hosts=2|x=2"
Made = dict[str, Case]


def cases(dtype: str = "float32") -> Made:
    """All of them by name, computing in a dtype."""
    return single_ideas(dtype) | rest_of_the_language(dtype) | language_models(dtype) | train_steps(dtype)


def rest_of_the_language(dtype: str) -> Made:
    return {name: Case(*case) for name, case in whole_language(dtype).items()}


def single_ideas(dtype: str) -> Made:
    x, ids = shape(B, D, dtype=dtype), shape(B, T, dtype="int32")
    w = weight(D, F, dtype=dtype)

    def net(mesh: str, layout: str) -> Case:
        params = {"w_1": w, "w_2": weight(F, D, dtype=dtype)}
        return Case(wf.value_and_grad(two_layers, argnums=(0, 1)), (params, x), mesh, layout)

    def idea(fn: Any, *args: Any, mesh: str = ROWS_COLS, layout: str) -> Case:
        return Case(fn, args, mesh, layout)

    q_and_k = shape(B, T, K, dtype=dtype), shape(B, M, K, dtype=dtype)
    choice = jax.ShapeDtypeStruct((), bool), x, w
    cube = shape(B, D, F, dtype=dtype)
    return {
        "two layers, data parallel": net("all=8", "batch:all"),
        "two layers, model parallel": net("all=8", "d_ff:all"),
        "two layers, 2-D": net(ROWS_COLS, "batch:rows,d_ff:cols"),
        "two layers, 3-D": net(XYZ, "batch:x,d_ff:y,d_model:z"),
        "two layers, a dim over two axes": net(XYZ, "batch:x+y,d_ff:z"),
        "two layers, fully sharded": net("all=8", "batch:all,params.d_model:all"),
        "two layers, over two hosts": net(HOSTS, "batch:hosts+x"),
        "two layers, over two pods": net(PODS, "batch:pods+hosts+x"),
        "two layers, fully sharded over two hosts": net(HOSTS, "batch:hosts+x,params.d_model:hosts+x"),
        "two layers, model parallel over two hosts": net(HOSTS, "d_ff:x+hosts"),
        "renames over two hosts": idea(
            wf.grad(lambda x: wf.sum(turned(x), over="batch d_whole d_in")),
            cube,
            mesh=HOSTS,
            layout="d_model:hosts+x,d_in:hosts+x",
        ),
        "take": idea(wf.value_and_grad(look_up), weight(V, D, dtype=dtype), ids, layout="batch:rows,vocab:cols"),
        "cross-entropy": idea(
            wf.value_and_grad(cross_entropy), shape(B, T, V, dtype=dtype), ids, layout="batch:rows,vocab:cols"
        ),
        "softmax over a split dim": idea(
            wf.value_and_grad(attend, argnums=(0, 1)), *q_and_k, layout="batch:rows,memory_length:cols"
        ),
        "branches": idea(chosen, *choice, layout="batch:rows,d_ff:cols"),
        "branches, backward": idea(wf.value_and_grad(chosen, argnums=(1, 2)), *choice, layout="batch:rows,d_ff:cols"),
        "renames": idea(turned, cube, layout="batch:rows,d_model:cols,d_in:cols"),
        "renames, gathered": idea(turned, cube, mesh=XYZ, layout="batch:x,d_model:y,d_out:y,d_ff:z"),
        "loop": idea(looped, x, w, layout="batch:rows,d_ff:cols"),
        "loop, fully sharded": idea(looped, x, w, layout="batch:rows,d_ff:cols,params.d_model:rows"),
        "loop of unknown length": idea(grown, x, layout="batch:rows,d_model:cols"),
        "mapped": idea(mapped, x, layout="batch:rows,d_model:cols"),
        "extremes": idea(extremes, x, layout="batch:rows,d_model:cols"),
        "the same sum twice": idea(repeated, x, layout="batch:rows,d_model:cols"),
        "a sum nobody needs": idea(unneeded, x, layout="batch:rows,d_model:cols"),
        "gradients alone": idea(wf.grad(look_up), weight(V, D, dtype=dtype), ids, layout="batch:rows,vocab:cols"),
    }


def language_models(dtype: str) -> Made:
    def lm(mesh: str, layout: str, **how: Any) -> Case:
        model = LanguageModel(**how, dtype=dtype)
        return Case(wf.value_and_grad(model), model.args(), mesh, layout)

    stored = f"{PAPERS},params.d_model:rows"
    return {
        "unrolled, data parallel": lm("all=8", "batch:all", scanned=False, remat=False),
        "unrolled, the paper's": lm(ROWS_COLS, PAPERS, scanned=False, remat=False),
        "unrolled, recomputed": lm(ROWS_COLS, PAPERS, scanned=False),
        "unrolled, fully sharded": lm(ROWS_COLS, "batch:rows+cols,params.d_model:rows", scanned=False, remat=False),
        "scanned, data parallel": lm("all=8", "batch:all", remat=False),
        "scanned, the paper's": lm(ROWS_COLS, PAPERS, remat=False),
        "scanned, recomputed": lm(ROWS_COLS, PAPERS),
        "scanned, fully sharded": lm(ROWS_COLS, "batch:rows,params.d_model:rows"),
        "scanned, fully sharded and model parallel": lm(ROWS_COLS, stored),
        "scanned, fully sharded, not recomputed": lm(ROWS_COLS, stored, remat=False),
        "scanned, 3-D": lm(XYZ, "batch:x,heads:y,d_ff:y,vocab:y,params.d_model:z"),
        "scanned, model width split": lm(XYZ, "batch:x,heads:y,d_ff:y,vocab:y,d_model:z"),
        "scanned, over two hosts": lm(HOSTS, "batch:hosts+x"),
        "scanned, over two pods": lm(PODS, "batch:pods+hosts+x", remat=False),
        "scanned, model parallel over two hosts": lm(HOSTS, "heads:x,d_ff:hosts+x,vocab:hosts+x"),
        "sequence parallel": lm(ROWS_COLS, f"{PAPERS},stream:cols", stream=True),
        "sequence parallel, not recomputed": lm(ROWS_COLS, f"{PAPERS},stream:cols", stream=True, remat=False),
        "context parallel": lm(ROWS_COLS, "batch:rows,length:cols"),
        "tied": lm(ROWS_COLS, PAPERS, tied=True),
        "tied, fully sharded": lm(ROWS_COLS, stored, tied=True),
        "microbatches": lm(ROWS_COLS, PAPERS, microbatches=2),
        "microbatches, fully sharded": lm(ROWS_COLS, stored, microbatches=2),
    }


def train_steps(dtype: str) -> Made:
    def lm(optimizer: Any, mesh: str, layout: str, **how: Any) -> Case:
        model = LanguageModel(**how, dtype=dtype)
        return Case(wf.train_step(model, optimizer), model.args(), mesh, layout)

    three = "batch:x,heads:y,d_ff:y,vocab:y,params.d_model:z,optimizer.d_model:x"
    return {
        "Adam": lm(ADAM, ROWS_COLS, PAPERS),
        "Adam, state split further": lm(ADAM, ROWS_COLS, f"{PAPERS},optimizer.d_model:rows"),
        "Adam, fully sharded": lm(ADAM, ROWS_COLS, f"{PAPERS},params.d_model:rows"),
        "AdamW, clipped by the global norm": lm(CLIPPED, ROWS_COLS, PAPERS, tied=True),
        "Adafactor": lm(ADAFACTOR, ROWS_COLS, PAPERS),
        "Adafactor, 3-D": lm(ADAFACTOR, XYZ, three),
        "Adafactor, microbatches": lm(ADAFACTOR, ROWS_COLS, PAPERS, microbatches=2),
    }
