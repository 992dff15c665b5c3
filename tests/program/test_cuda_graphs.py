"""Kernels of CUDA graphs are found by name and by order, as a profile of a train step on a GPU has them."""

import pytest

from weft.program.compiled import CompiledProgram, HloInstruction
from weft.program.cuda_graphs import name_launches

MATMUL, ATTENTION = "__cublas$lt$matmul", "__cudnn$fmhaSoftmaxBackward"


def program(*names, alike=None, target=None):
    """A program of fusions in this order; those with a target are calls of libraries."""
    alike, target = alike or {}, target or {}
    made = {
        name: HloInstruction(
            name,
            "custom-call" if name in target else "fusion",
            "",
            "",
            1.0,
            kernel=alike.get(name, name),
            target=target.get(name, ""),
        )
        for name in names
    }
    return CompiledProgram("jit_f", made, frozenset(names), (), order=(names,))


def test_a_kernel_of_xla_is_called_by_its_instruction():
    assert (
        name_launches(program("loop_add.1", "wrapped-slice"), ["loop_add_1", "wrapped_slice"] * 2)
        == [
            "loop_add.1",
            "wrapped-slice",
        ]
        * 2
    )


def test_alike_instructions_share_a_kernel_and_run_in_the_order_of_the_program():
    names, kernel = ("slice.17", "add", "slice.16", "slice.15"), "slice_16"
    one = program(*names, alike=dict.fromkeys(["slice.15", "slice.16", "slice.17"], "slice.15"))
    assert name_launches(one, [kernel, "add", kernel, kernel] * 2) == [*names] * 2


def test_instructions_after_which_no_kernel_is_called_run_by_that_of_another():
    one = program("concat", "add", "concat.1", "mul")
    assert name_launches(one, ["concat", "add", "concat", "mul"] * 3) == ["concat", "add", "concat.1", "mul"] * 3


def test_products_and_attention_lie_between_the_kernels_around_them():
    target = {"dot.1": MATMUL, "dot.2": MATMUL, "bwd": ATTENTION, "dot.3": MATMUL}
    one = program("add", "dot.1", "dot.2", "bwd", "dot.3", "mul", target=target)
    ran = [
        ("add", "add"),
        ("Memset 0", "dot.1"), ("nvjet_sm90_a", "dot.1"),
        ("nvjet_sm90_b", "dot.2"), ("splitKreduce_kernel", "dot.2"),
        ("Memset 0", "bwd"), ("void cudnn::fusion::compute_dot_do_o", "bwd"), ("cudnn_generated_bprop", "bwd"),
        ("void cudnn::fusion::convert_dq_to_16bits", "bwd"),
        ("nvjet_sm90_c", "dot.3"),
        ("mul", "mul"),
    ]  # fmt: skip
    kernels, names = zip(*(ran * 2), strict=True)
    assert name_launches(one, kernels) == list(names)


@pytest.mark.parametrize("first", ["", "dot.1"])
def test_a_graph_may_begin_and_end_with_a_product(first):
    one = program(*filter(None, [first]), "add", "dot.2", target={"dot.1": MATMUL, "dot.2": MATMUL})
    kernels = [*(["gemm"] if first else []), "add", "gemm"]
    names = [*filter(None, [first]), "add", "dot.2"]
    assert name_launches(one, kernels * 2) == names * 2


def test_a_kernel_of_no_instruction_has_no_name():
    assert name_launches(program("add", "mul"), ["add", "somebody's", "mul"]) == ["add", "", "mul"]
