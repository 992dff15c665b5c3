"""Attention by cuDNN, by Weft's flash kernel and plain: the same numbers, and how long each takes.

    python benchmarks/attention_kernels.py                     on a GPU: all rows
    python benchmarks/attention_kernels.py --small             tiny sizes, on anything; kernels step by step on a CPU
    python benchmarks/attention_kernels.py --rows "causal;bias, both ways" --seconds 60 --json out.json

For each row: of every kernel that can do it the largest error of the result and of each gradient against plain
attention in float32, as a share of the largest number there, beside that of plain attention in the row's own dtype; and
milliseconds of forward and backward together, the least of several runs. Exits with 1 if a kernel errs more than three
times as much as the plain one does, and a rounding.
"""

import argparse
import functools
import json
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft as wf
from weft import nn
from weft.kernels.choice import NAMES, Chip, choose, read_chip
from weft.nn.fused import attend_fused, case_of

KERNELS = ("cudnn", "flash", "plain")


@dataclass(frozen=True)
class Row:
    """One kind of attention."""

    batch: int = 16
    length: int = 1024
    heads: int = 16
    width: int = 64
    group: int = 1
    memory: int = 0
    """Keys; as many as queries if 0."""
    dtype: str = "bfloat16"
    causal: bool = True
    window: int | None = None
    tensors: tuple[str, ...] = ()
    is_in_order: bool = True
    bias: str = ""
    """Its dtype, if there is one, of each head."""
    softcap: float | None = None
    dropout: float = 0.0


ROWS = {
    "causal": Row(),
    "4 heads of 256": Row(batch=128, length=256, heads=4, width=256),
    "packed": Row(tensors=("segments", "positions")),
    "bias": Row(bias="float32"),
    "bias in bfloat16": Row(bias="bfloat16"),
    "dropout": Row(dropout=0.1),
    "softcap": Row(softcap=30.0),
    "16 heads of 256": Row(batch=128, length=256, heads=16, width=256),
    "GQA 4096": Row(batch=4, length=4096, heads=32, width=64, group=4),
    "bias, both ways": Row(bias="float32", causal=False),
    "prefix": Row(tensors=("prefix",)),
    "cross, segments": Row(causal=False, memory=512, tensors=("segments",)),
    "window": Row(window=256),
    "window both ways": Row(causal=False, window=256),
    "bias, segments": Row(bias="float32", causal=False, tensors=("segments",)),
    "all": Row(causal=False),
    "packed 8192": Row(batch=2, length=8192, tensors=("segments", "positions")),
    "dropout, packed": Row(dropout=0.1, tensors=("segments", "positions")),
    "width 80": Row(width=80),
    "float16": Row(dtype="float16"),
    "positions": Row(tensors=("segments", "positions"), is_in_order=False),
    "bias, softcap": Row(bias="float32", softcap=30.0),
    "bias, prefix": Row(bias="float32", tensors=("prefix",)),
    "softcap, prefix": Row(softcap=30.0, tensors=("prefix",)),
    "bias, dropout": Row(bias="float32", dropout=0.1),
}


def make_small(row: Row) -> Row:
    """The same with sizes for a try."""
    sizes = {"batch": 2, "length": 64, "heads": 2 * row.group, "width": 16, "memory": 32 if row.memory else 0}
    return replace(row, **sizes, window=None if row.window is None else 16)


@dataclass
class Case:
    """A row's arrays, and what to do with them."""

    row: Row

    def __post_init__(self) -> None:
        row, random = self.row, np.random.default_rng(0)
        memory, keys = row.memory or row.length, row.heads // row.group
        names = {"batch": row.batch, "length": row.length, "heads": keys, "group": row.group, "d_kv": row.width}
        dims = {name: wf.Dim(name, size) for name, size in names.items() if name != "group" or size > 1}
        self.heads = [dims[name] for name in ("heads", "group", "d_kv") if name in dims]
        kept = wf.Dim("memory_length", memory)
        self.q_dims = [dims["batch"], dims["length"], *self.heads]
        self.k_dims = [dims["batch"], kept, dims["heads"], dims["d_kv"]]
        q, k, v, self.gradient = (
            jax.random.normal(jax.random.key(i), [dim.size for dim in own], row.dtype)
            for i, own in enumerate((self.q_dims, self.k_dims, self.k_dims, self.q_dims))
        )
        self.arrays = [q, k, v]
        self.bias_dims = [*self.heads[:-1], dims["length"], kept]
        if row.bias:
            self.arrays.append(jax.random.normal(jax.random.key(4), [dim.size for dim in self.bias_dims], row.bias))
        self.said = self._say(random, memory)

    def _say(self, random: Any, memory: int) -> dict[str, np.ndarray]:
        """The tensors of the mask: documents of 300 tokens in the mean, a prefix of some tokens."""
        row, said = self.row, {}
        if "prefix" in row.tensors:
            said["prefix"] = random.integers(1, row.length // 2, row.batch)
        if "segments" in row.tensors:
            starts = random.random((row.batch, row.length)) < 1 / min(300, row.length / 4)
            starts[:, 0] = True
            said["segments"] = np.cumsum(starts, axis=1)
            place = np.arange(row.length)
            said["positions"] = place - np.maximum.accumulate(np.where(starts, place, 0), axis=1)
            said["memory_segments"] = said["segments"][:, :: row.length // memory]
        return said

    def mask(self, said: dict[str, Any]) -> nn.Mask:
        row, (batch, length, *_) = self.row, self.q_dims
        order = {"causal": row.causal, "window": row.window}
        tensors = {name: wf.tensor(x, [batch] if name == "prefix" else [batch, length]) for name, x in said.items()
                   if not name.startswith("memory_")}  # fmt: skip
        if row.memory:
            there = wf.tensor(said["memory_segments"], [batch, self.k_dims[1]])
            return nn.Mask(**order, segments=tensors["segments"], memory_segments=there)
        if "positions" not in row.tensors:
            tensors.pop("positions", None)
        return nn.Mask.within(**order, **tensors, is_in_order=row.is_in_order and "positions" in row.tensors)

    def attend(self, kernel: str, key: Any, said: dict[str, Any], *arrays: Any) -> Any:
        """By a kernel, or plain, of arrays."""
        row = self.row
        dims = [self.q_dims, self.k_dims, self.k_dims, self.bias_dims]
        q, k, v, *bias = (wf.tensor(x, own) for x, own in zip(arrays, dims, strict=False))
        how = {"mask": self.mask(said), "bias": bias[0] if bias else None, "dropout": row.dropout}
        if kernel == "plain":
            d_model = wf.Dim("d_model", 8)
            group = self.heads[1] if row.group > 1 else None
            layer = nn.Attention(
                d_model,
                self.heads[0],
                self.heads[-1],
                group=group,
                softcap=row.softcap,
                fused=False,
                key=jax.random.key(0),
            )
            return layer.attend(q, k, v, key=key, **how).array
        case = case_of(q, k, self.heads, **how, softcap=row.softcap)
        scale = row.width**-0.5
        return attend_fused(kernel, case, q, k, v, scale=scale, softcap=row.softcap, key=key, **how).array

    def why_not(self, kernel: str, chip: Chip) -> str:
        """Why a kernel does not do it: its own reason, with those before it left out."""
        from weft.kernels import choice

        q, k = (wf.tensor(jax.ShapeDtypeStruct([d.size for d in own], self.row.dtype), own)
                for own in (self.q_dims, self.k_dims))  # fmt: skip
        bias = wf.tensor(jax.ShapeDtypeStruct([d.size for d in self.bias_dims], "float32"), self.bias_dims)
        how = {"mask": self.mask(self.said), "bias": bias if self.row.bias else None, "dropout": self.row.dropout}
        case = case_of(q, k, self.heads, **how, softcap=self.row.softcap)
        if kernel == "plain":
            print(f"  {choose(case, chip)}")
            return ""
        return {"cudnn": choice.why_not_cudnn, "flash": choice.why_not_flash}[kernel](case, chip)


def run_row(name: str, row: Row, kernels: list[str], chip: Chip, *, repeats: int) -> dict[str, Any]:
    """What each kernel gives of a row, and how long it takes."""
    case, key = Case(row), jax.random.key(3)
    said = {name: jnp.asarray(x, "int32") for name, x in case.said.items()}
    found: dict[str, Any] = {"row": name}

    def both(kernel: str, key: Any, said: Any, gradient: Any, *arrays: Any) -> Any:
        result, pull_back = jax.vjp(functools.partial(case.attend, kernel, key, said), *arrays)
        return result, *pull_back(gradient)

    exact = None
    for kernel in ["plain", *(k for k in kernels if k != "plain")]:
        if reason := case.why_not(kernel, chip):
            found[kernel] = {"not": reason}
            print(f"  {kernel:6} {reason}", flush=True)
            continue
        begun = time.perf_counter()
        try:
            step = jax.jit(functools.partial(both, kernel))
            given = key, said, case.gradient, *case.arrays
            results = jax.block_until_ready(step(*given))
            started = time.perf_counter() - begun
            if exact is None:
                wide = [x.astype("float32") for x in (case.gradient, *case.arrays)]
                with jax.default_matmul_precision("highest"):
                    exact = jax.jit(functools.partial(both, "plain"))(key, said, *wide)
            least = min(_milliseconds(step, given, repeats) for _ in range(3))
            errors = [float(f"{_error(x, y):.3g}") for x, y in zip(results, exact, strict=True)]
            found[kernel] = {"ms": round(least, 4), "errors": errors, "compile_s": round(started, 1)}
            print(f"  {kernel:6} {least:8.3f} ms  errors {errors}  compiled in {started:.1f} s", flush=True)
        except Exception as error:  # a kernel that fails is a result of this table
            found[kernel] = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
            print(f"  {kernel:6} FAILED {found[kernel]['failed']}", flush=True)
    return found


def _error(x: Any, y: Any) -> float:
    return float(jnp.abs(x.astype("float32") - y).max() / jnp.abs(y).max())


def _milliseconds(step: Any, given: Any, repeats: int) -> float:
    begun = time.perf_counter()
    for _ in range(repeats):
        results = step(*given)
    jax.block_until_ready(results)
    return (time.perf_counter() - begun) / repeats * 1e3


def main() -> int:
    """Runs the rows asked for, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--rows", help="names of rows, with semicolons between; all if not said")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="those to run, with commas between")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after so long")
    parser.add_argument("--json", help="a file for the results")
    options = parser.parse_args()
    begun, device = time.perf_counter(), jax.devices()[0]
    chip = read_chip(device) if device.platform == "gpu" else Chip("gpu")
    kernels = [k for k in options.kernels.split(",") if k != "cudnn" or device.platform == "gpu"]
    print(f"{device.device_kind}, JAX {jax.__version__}; {', '.join(NAMES.get(k, k) for k in kernels)}")
    names = list(ROWS) if options.rows is None else options.rows.split(";")
    results, is_right = [], True
    for name in names:
        if time.perf_counter() - begun > options.seconds:
            print(f"{name}: no time left")
            continue
        row = make_small(ROWS[name]) if options.small else ROWS[name]
        asked = {k: v for k, v in vars(row).items() if v != getattr(Row, k)}
        print(f"{name}: {asked}", flush=True)
        found = run_row(name, row, kernels, chip, repeats=2 if options.small else 20)
        results.append(found)
        for kernel in kernels:
            errors = found.get(kernel, {}).get("errors")
            bounds = [3 * bound + 2**-8 for bound in found.get("plain", {}).get("errors", [])]
            if errors is not None and any(not x <= bound for x, bound in zip(errors, bounds, strict=False)):
                print(f"  {kernel} IS WRONG: {errors}, and at most {bounds}")
                is_right = False
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"device": device.device_kind, "jax": jax.__version__, "rows": results}, file, indent=1)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
