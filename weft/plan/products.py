"""Products as kernels: dense, ragged, or of a kernel that says its FLOPs."""

import math

from ..kernels import grouped
from ..primitives import groups_of_product, shape_of_product
from ..program.reading import Reading
from .kernel import Kernel
from .values import Node, bytes_of


def product_on(node: Node, reading: Reading, kind: str) -> Kernel:
    """The kernel of a product on a kind of chip.

    A ragged product is dense where nothing knows better: a TPU does, and Weft's kernel for dropless experts on a GPU.
    """
    groups = groups_of_product(node.step.eqn)
    if groups < 2 or kind == "tpu" or (kind == "gpu" and _is_grouped(node, reading)):
        return _share_out(product(node), node, reading)
    return _masked_product(node, groups)


def _is_grouped(node: Node, reading: Reading) -> bool:
    """Whether a GPU does a ragged product by a kernel of Weft's."""
    entry, (rows, second), made = reading.entry(node.step.op), node.step.operands[:2], node.step.results[0]
    matrices = second if len(second.aval.shape) == 3 else made
    return entry is not None and entry.sharing > 0 and not grouped.can_do(rows.aval, matrices.aval)


def _share_out(kernel: Kernel, node: Node, reading: Reading) -> Kernel:
    """A product of those rows alone that this processor works on."""
    if (ways := reading.sharing(node.step)) > 1:
        many, rows, columns, summed = kernel.shape
        kernel.flops /= ways
        kernel.shape = (many, max(rows // ways, 1), columns, summed)
        if len(node.step.results[0].aval.shape) == 3:  # of the matrices: rows are summed over
            kernel.shape = (many, rows, columns, max(summed // ways, 1))
    return kernel


def product(node: Node) -> Kernel:
    """The kernel of a product or a convolution."""
    step, (many, rows, columns, summed) = node.step, shape_of_product(node.step.eqn)
    ways = max((value.ways for value in (*node.ins, *node.outs)), default=1) if step.is_global else 1
    return Kernel(
        "product",
        step.op,
        step.phase,
        bytes=bytes_of({*node.ins, *node.outs}),
        flops=step.flops / ways,
        dtype=str(max((value.aval.dtype for value in step.operands[:2]), key=lambda dtype: dtype.itemsize)),
        shape=(many, max(rows // ways, 1), columns, summed),
    )


def _masked_product(node: Node, groups: int) -> Kernel:
    """A ragged product as a product of all rows with all groups' matrices."""
    one, (many, rows, columns, summed) = product(node), shape_of_product(node.step.eqn)
    given, made = node.step.operands[0].aval.shape, node.step.results[0].aval.shape
    is_gradient = len(made) > len(given)  # of the matrices: rows are summed over
    spread = bytes_of(node.ins[:2]) if is_gradient else node.ins[0].bytes
    one.shape = (many, rows, columns, groups * summed) if is_gradient else (1, groups * rows, columns, groups * summed)
    one.flops, one.bytes = groups * one.flops, one.bytes + 2 * groups * spread  # written with zeros, and read
    return one


def product_of_kernel(node: Node, reading: Reading) -> Kernel:
    """A kernel that says its FLOPs, as the product whose result is as large."""
    step, made = node.step, node.step.results[0].aval
    elements, columns = math.prod(made.shape), made.shape[-1] if made.shape else 1
    kernel = Kernel(
        "product",
        step.op,
        step.phase,
        bytes=bytes_of(node.ins) + bytes_of(node.outs),
        flops=step.flops,
        dtype=str(made.dtype),
        shape=(1, elements // columns, columns, max(step.flops // (2 * elements), 1)),
    )
    return _share_out(kernel, node, reading)
