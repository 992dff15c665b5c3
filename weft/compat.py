"""What Weft needs of JAX that JAX does not promise, each with its reason.

It stands here, and nowhere else. A release of JAX that renames one of these is met in this file.
"""

import contextlib
import functools
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import jax
from jax._src import config as _config  # holds `_check_vma`
from jax._src import core as _core  # holds `trace_state_clean`
from jax.extend import source_info_util
from jax.interpreters import partial_eval

JAX_FOLDER = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
FILTERING_NOTE = "JAX_TRACEBACK_FILTERING"
"""What stands in the note that JAX adds to an error whose frames it removed; the note has no name of its own."""


# Types inside a region: which mesh axes a value varies over.


def without_variation() -> contextlib.AbstractContextManager[Any]:
    """While values are traced without JAX's types of what varies over the mesh."""
    return _config._check_vma(False)  # shard_map has it for a whole body; there is no public way for a part of one


def varying(value: Any) -> frozenset[str]:
    """The mesh axes over which JAX types an array, or an abstract value, as varying."""
    aval = value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)
    return aval.manual_axis_type.varying  # called `vma` in older releases; no function of JAX gives it


def with_variation_of(aval: Any, like: Any, sharding: Any) -> Any:
    """An abstract value of that sharding, varying over the axes that `like` does."""
    return aval.update(sharding=sharding, manual_axis_type=like.manual_axis_type)


def with_more_varying(aval: Any, axes: Iterable[str]) -> Any:
    """An abstract value inside a region, varying over these axes too."""
    varies = aval.manual_axis_type.update(varying=varying(aval) | frozenset(axes))  # as JAX's own cast does it
    return aval.update(sharding=aval.sharding.update(mesh=jax.sharding.get_abstract_mesh()), manual_axis_type=varies)


def trace_of(tracer: jax.core.Tracer) -> Any:
    """The trace that a value was made in, to work in it again."""
    return tracer._trace  # set_current_trace is public; what to give it is not


def is_differentiated(array: Any) -> bool:
    """Whether a gradient is being taken through this value."""
    # Only the first of the classes has a public name, and neither says what it is for.
    return type(array).__name__ in ("JVPTracer", "LinearizeTracer")


# The memory of the host, beside that of the processors. JAX types a value with the memory it lies in.

PINNED = "pinned_host"
"""The kind of memory that stored values lie in on the host: a processor's link reads and writes it by itself."""


def is_on_host(value: Any) -> bool:
    """Whether an array, or an abstract value, lies in the memory of the host."""
    if not isinstance(value, jax.Array | jax.core.ShapedArray):
        return False
    aval = value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)
    return getattr(aval, "memory_space", None) == jax.memory.Space.Host  # the field is in no documentation


def to_host(array: Any) -> Any:
    """The array in the memory of the host."""
    return array if is_on_host(array) else jax.device_put(array, jax.memory.Space.Host)


def to_device(array: Any) -> Any:
    """The array in the memory of the processors."""
    return jax.device_put(array, jax.memory.Space.Device) if is_on_host(array) else array


def has_host_memory(mesh: Any) -> bool:
    """Whether a mesh has pinned memory beside its own; one without devices has."""
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return True
    device = mesh.devices.flat[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    return PINNED in kinds if kinds else device.platform != "cpu"  # one that is only compiled for says nothing


# Who asks a tensor for `__jax_array__`. JAX does not say, and the answer differs.


def is_operator_of_array(frame: FrameType) -> bool:
    """Whether an operator of a JAX array calls, which lets the other operand's run."""
    name = frame.f_code.co_name
    return name == "deferring_binary_op" or name.startswith("_operator_")


def is_check_of_scalar(frame: FrameType | None) -> bool:
    """Whether the caller is `jax.grad`, which checks that a function gave a number."""
    return frame is not None and frame.f_code.co_name == "_check_scalar"


def is_nothing_traced() -> bool:
    """Whether JAX evaluates at once: no function is being traced around the caller."""
    return _core.trace_state_clean()  # what is public compares states, and has no name for this one


def without_dead_code(jaxpr: Any) -> Any:
    """A jaxpr less the equations that no result needs (DCE), with all its arguments."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]  # in no public module


def scopes_of(eqn: Any) -> str:
    """The scopes an equation was traced in, as JAX writes them: `a/transpose(b)`."""
    return str(eqn.source_info.name_stack)  # which a printed jaxpr shows, and no function gives


# What JAX's transformations write into the scopes. No documentation has these names, and no parameter of an equation
# says the same: a transposed equation is like any other.
_TRANSPOSED = "transpose("  # around the scopes of what a backward pass does, once for each differentiation
_REMATTED = "rematted_computation"  # inside that, what `jax.checkpoint` makes again


def recomputing() -> contextlib.AbstractContextManager[Any]:
    """While what the forward pass made is made again, in the scope JAX has for that."""
    return jax.named_scope(_REMATTED)


def backward_depth(scopes: str) -> int:
    """How many differentiations these scopes are in the backward pass of.

    >>> backward_depth("transpose(jvp(wf3_scan))/wf12_einsum"), backward_depth("jvp(wf3_scan)")
    (1, 0)
    """
    return scopes.count(_TRANSPOSED)


def phase_in(scopes: str) -> str:
    """`backward` or `recompute`, of the innermost differentiation; else empty.

    >>> phase_in("transpose(a)/rematted_computation/b"), phase_in("transpose(a)"), phase_in("a")
    ('recompute', 'backward', '')
    """
    at = scopes.rfind(_TRANSPOSED)
    if at < 0:
        return ""
    return "recompute" if _REMATTED in scopes[at:] else "backward"


def is_function_of_jax(jaxpr: Any) -> bool:
    """Whether a jaxpr was traced from a function of JAX's own files."""
    return JAX_FOLDER in (getattr(jaxpr.debug_info, "func_src_info", None) or "")


class Frame(NamedTuple):
    """A line of source that an equation was traced at."""

    file: str
    line: int
    function: str


_FRAME = re.compile(r"(?P<file>.*?):(?P<line>\d+)(:\d+)? \((?P<function>.*)\)$")


def frames_of(eqn: Any) -> Iterator[Frame]:
    """The lines of source that an equation was traced at, innermost first."""
    # The frames themselves have no public reader; `summarize` gives them as text, outermost first.
    for line in reversed(source_info_util.summarize(eqn.source_info, num_frames=100).splitlines()):
        if found := _FRAME.match(line):
            yield Frame(found["file"], int(found["line"]), found["function"])


# What JAX's errors say in words alone: their classes are of many errors.


def is_out_of_memory(error: BaseException) -> bool:
    """Whether XLA found no room on a device."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def wait_for(array: Any) -> None:
    """Waits until an array is computed.

    One whose buffers were deleted or donated, wholly or in part and perhaps under another array, is done.
    """
    try:
        if not array.is_deleted() and not array.is_ready():
            array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        if "deleted or donated" not in str(error):
            raise


def is_gradient_of_while(error: ValueError) -> bool:
    """Whether a gradient was asked for through a `while_loop`."""
    return "while_loop" in str(error)


def is_wrong_call(error: Exception) -> bool:
    """Whether a function was given more or fewer arguments than it takes."""
    return "argument" in str(error) and "dtype" not in str(error)  # JAX wraps it, and says of dtypes which argument


def is_refusal_of(error: TypeError, kind: type) -> bool:
    """Whether JAX refused a value for its class."""
    return f"{kind.__module__}.{kind.__qualname__}" in str(error)


# What JAX says while it starts.


def expect_no_driver() -> None:
    """Leaves out what JAX logs of a CUDA driver that is not there; all else is said.

    A program that only compiles for GPUs needs the plugin, and no driver.
    """
    logging.getLogger("jax._src.xla_bridge").addFilter(_is_not_of_driver)  # the logger has no public name


def _is_not_of_driver(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return "Unable to load CUDA" not in str(error)


# Pallas on a GPU by way of Triton, which JAX means to remove.


@functools.cache
def has_pallas_triton() -> bool:
    """Whether JAX has it; asked of its files, as importing Pallas takes long."""
    return os.path.exists(os.path.join(JAX_FOLDER, "experimental", "pallas", "triton.py"))


# cuDNN's attention, forward with the logarithm of each query's sum and backward given one. jax.nn.dot_product_attention
# gives that logarithm only rounded to the dtype of the values, and has no gradient of a part of the keys.


class AttentionKernel(NamedTuple):
    """cuDNN's fused attention of arrays [batch heads length channel].

    With `is_heads_first=False`, of arrays [batch length heads channel].
    """

    module: Any
    scale: float
    is_heads_first: bool = True

    def forward(
        self, q: Any, k: Any, v: Any, *, causal: bool, bias: Any = None, window: int | None = None
    ) -> tuple[Any, Any]:
        """The result, and f32[batch heads length]: the log of the sum of exp(scores)."""
        bind = self.module._dot_product_attention_fwd_p_wrapper.bind
        how = self._how(causal, window, bias is not None, has_bias_gradient=False)
        result, log_sum = bind(q, k, v, *self._rest(q, bias), **how, is_training=True)
        return result, log_sum

    def backward(
        self, q: Any, k: Any, v: Any, log_sum: Any, result: Any, gradient: Any, *,
        causal: bool, bias: Any = None, window: int | None = None, has_bias_gradient: bool = False,
    ) -> Any:  # fmt: skip
        """The gradients of q, k, v (and bias), whose share of all keys `log_sum` says."""
        bind = self.module._dot_product_attention_bwd_p_wrapper.bind
        how = self._how(causal, window, bias is not None, has_bias_gradient=has_bias_gradient)
        return bind(q, k, v, *self._rest(q, bias), log_sum, result, gradient, **how)

    def _rest(self, q: Any, bias: Any) -> list[Any]:
        absent = jax.numpy.zeros(0, q.dtype)  # lengths, offsets and page tables
        return [absent if bias is None else bias, *[absent] * 6]

    def _how(self, causal: bool, window: int | None, has_bias: bool, *, has_bias_gradient: bool) -> dict[str, Any]:
        mask = self.module.MaskType.CAUSAL if causal else self.module.MaskType.NO_MASK
        layout = self.module.AttentionLayout.BNTH if self.is_heads_first else self.module.AttentionLayout.BTNH
        return {
            "scale": self.scale,
            "seed": 42,
            "dropout_rate": 0.0,
            "variadic_args": (has_bias, has_bias_gradient),
            "mask_type": mask,
            "layout": layout.value,
            "sliding_window_length": window,
        }


def attention_kernel(scale: float, *, is_heads_first: bool = True) -> AttentionKernel | None:
    """cuDNN's fused attention, where there is cuDNN and JAX has it as expected."""
    try:
        from jax._src.cudnn import fused_attention_stablehlo as module  # the public function rounds the log-sum

        module.check_cudnn_version()  # raises where there is no cuDNN; nothing public asks for it
        needed = ("_dot_product_attention_fwd_p_wrapper", "_dot_product_attention_bwd_p_wrapper", "AttentionLayout")
        has_all = all(hasattr(module, name) for name in needed)
        return AttentionKernel(module, scale, is_heads_first) if has_all else None
    except (ImportError, RuntimeError):
        return None


@contextlib.contextmanager
def reading_profile() -> Iterator[None]:
    """While the events of a profile are read.

    JAX 0.12 warns there that a type of its own has no module; as an error that warning ends the process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
