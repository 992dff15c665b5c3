"""A profile as times of a step: every instant is someone's, by rules that are checked on timelines made by hand."""

import pytest

from weft.program.compiled import CompiledProgram, HloInstruction, alternatives
from weft.program.lines import Doer
from weft.program.step_times import MeasureError, StepTimes, _Event, read_step_times


def instruction(name, opcode="fusion", scopes="", **more):
    return HloInstruction(name, opcode, scopes, "", more.pop("work", 1.0), **more)


def program(*instructions, name="jit_f", loops=()):
    known = {each.name: each for each in (*instructions, *loops)}
    return CompiledProgram(name, known, frozenset(each.name for each in instructions), (), key=f"{name}(1)")


A, B = instruction("a", scopes="jit(f)/wf0_einsum/dot"), instruction("b", scopes="jit(f)/wf1_relu/max")
SUM = instruction("sum", "all-reduce", "jit(f)/wf0_einsum/psum")
LOOP = instruction("loop", "while", "jit(f)/wf2_scan/while")


def times(events, *instructions, is_shared=False):
    made = [_Event(processor, "jit_f(1)", name, float(begin), float(end)) for processor, name, begin, end in events]
    return StepTimes(made, [program(*instructions)], is_shared=is_shared, state="made by hand")


def taken(found):
    return {each.name: (each.seconds, each.hidden, each.count) for each in found.taken}


def test_a_step_goes_from_the_start_of_one_run_to_the_start_of_the_next():
    found = times([(0, "a", 0, 2), (0, "b", 3, 4), (0, "a", 10, 12), (0, "b", 13, 14)], A, B)
    assert (found.steps, found.seconds, found.processors) == (2, 10.0, 1)
    assert taken(found) == {"a": (2.0, 0.0, 1.0), "b": (1.0, 0.0, 1.0)}
    assert (found.idle_within, found.idle_between) == (1.0, 6.0)


def test_one_run_alone_ends_with_its_last_kernel():
    found = times([(0, "a", 1, 2), (0, "b", 4, 5)], A, B)
    assert (found.steps, found.seconds, found.idle_within, found.idle_between) == (1, 4.0, 2.0, 0.0)


def test_a_collective_is_hidden_while_something_computes_and_waited_for_else():
    found = times([(0, "a", 0, 4), (0, "sum", 2, 9), (0, "b", 8, 10)], A, B, SUM)
    assert taken(found) == {"a": (4.0, 0.0, 1.0), "sum": (4.0, 3.0, 1.0), "b": (2.0, 0.0, 1.0)}
    assert found.seconds == 10.0


def test_kernels_that_run_at_once_share_the_time():
    found = times([(0, "a", 0, 4), (0, "b", 2, 6)], A, B)
    assert taken(found)["a"][0] == 3.0 and taken(found)["b"][0] == 3.0


def test_a_loop_has_only_what_its_body_leaves():
    found = times([(0, "loop", 0, 10), (0, "a", 1, 4), (0, "b", 4, 8)], A, B, LOOP)
    assert {name: each[0] for name, each in taken(found).items()} == {"loop": 3.0, "a": 3.0, "b": 4.0}


def test_of_several_processors_it_is_the_mean():
    events = [(0, "a", 0, 4), (0, "b", 4, 6), (1, "a", 0, 2), (1, "b", 2, 6)]
    assert {name: each[0] for name, each in taken(times(events, A, B)).items()} == {"a": 3.0, "b": 3.0}


def test_virtual_processors_wait_for_nothing_while_another_computes():
    events = [(0, "a", 0, 2), (0, "sum", 2, 6), (1, "a", 2, 5), (1, "sum", 5, 6)]
    shared, alone = times(events, A, SUM, is_shared=True), times(events, A, SUM)
    assert taken(shared) == {"a": (5.0, 0.0, 1.0), "sum": (1.0, 1.5, 1.0)}
    assert taken(alone)["sum"][0] == pytest.approx((4 + 1) / 2)
    assert alone.seconds == (6 + 4) / 2  # each processor's own, from its own first kernel


@pytest.mark.parametrize("is_shared", [False, True])
def test_all_of_it_together_is_the_step(is_shared):
    events = [
        (p, name, begin + step * 20 + p / 7, begin + step * 20 + p / 5 + long)
        for step in range(3)
        for p in range(4)
        for name, begin, long in (("a", 0, 3), ("sum", 2, 4), ("b", 5, 2), ("loop", 0, 9))
    ]
    found = times(sorted(events, key=lambda event: event[2]), A, B, SUM, LOOP, is_shared=is_shared)
    rows = sum(each.seconds for each in found.taken) + found.idle_within + found.idle_between
    assert rows == pytest.approx(found.seconds, rel=1e-12) and found.steps == 3


def test_a_fused_kernel_is_shared_out_by_the_work_of_its_parts():
    parts = (
        instruction("p", "multiply", "jit(f)/jvp(wf3_multiply)/mul", work=30.0),
        instruction("q", "add", "jit(f)/transpose(jvp(wf4_add))/add", work=10.0),
        instruction("r", "bitcast", "jit(f)/wf5_rename/bitcast", work=0.0),
    )
    assert instruction("fused", parts=parts).doers == {Doer(3, "forward"): 0.75, Doer(4, "backward"): 0.25}


def test_collectives_that_xla_joined_are_those_of_all_their_ops():
    joined = instruction("sum", "all-reduce", "jit(f)/(wf1_einsum/of1/psum:transpose(jvp(wf2_einsum))/of0/psum)")
    assert joined.doers == {
        Doer(1, "forward", "all_reduce", 1): 0.5,
        Doer(2, "backward", "all_reduce", 0): 0.5,
    }
    assert alternatives("x/(a/(b:c)/d:e)/f") == ["x/a/b/d/f", "x/a/c/d/f", "x/e/f"]


def test_what_xla_adds_to_a_loop_inside_an_op_is_the_ops():
    inside = instruction("copy", "copy", around="jit(f)/jvp(wf3_dropout)/while")
    assert inside.doers == {Doer(3, "forward"): 1.0}
    assert instruction("copy", "copy").doers == {}


def test_what_xla_joined_or_cut_without_a_scope_works_for_what_made_its_operands():
    behind = (("jit(f)/transpose(jvp(wf3_einsum))/dot", 30.0), ("jit(f)/transpose(jvp(wf4_einsum))/dot", 10.0))
    shares = {3: 0.75, 4: 0.25}
    joined = instruction("sum", "all-reduce-start", behind=behind)
    assert joined.doers == {Doer(op, "backward", "all_reduce"): share for op, share in shares.items()}
    cut = instruction("reduce", "fusion", parts=(instruction("r", "reduce"),), behind=behind)
    assert cut.doers == {Doer(op, "backward"): share for op, share in shares.items()}
    assert instruction("copy", "copy", behind=behind).doers == {}


def test_a_profile_without_ops_of_ours_is_refused():
    with pytest.raises(MeasureError, match="holds no program with ops of Weft's") as error:
        times([(0, "x", 0, 1)], instruction("x", scopes="jit(g)/dot"))
    assert "wf.spmd" in error.value.fix and "made by hand" in error.value.state


# A profile as a GPU's, written by hand: the fields of XSpace and HloModuleProto by their numbers.


def message(**fields):
    """A protobuf message; `f3=...` is field 3, of numbers, texts, messages, or lists of these."""
    found = b""
    for name, values in fields.items():
        number = int(name[1:])
        for value in values if isinstance(values, list) else [values]:
            value = value.encode() if isinstance(value, str) else value
            found += varint(number << 3) + varint(value) if isinstance(value, int) else b""
            found += varint(number << 3 | 2) + varint(len(value)) + value if isinstance(value, bytes) else b""
    return found


def varint(value):
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


STATS = {"hlo_op": 1, "hlo_module": 2, "program_id": 3, "hlo_proto": 4}


def gpu_plane(number, streams):
    """A GPU with kernels (name, instruction, begin, end) on its streams, in microseconds."""
    names = sorted({kernel[0] for kernels in streams.values() for kernel in kernels})
    known = {name: i + 1 for i, name in enumerate(names)}

    def event(name, op, begin, end):
        said = {"f1": STATS["hlo_op"], "f5": op}, {"f1": STATS["hlo_module"], "f5": "jit_f"}
        stats = [message(**each) for each in (*said, {"f1": STATS["program_id"], "f3": 7})] if op else []
        return message(f1=known[name], f2=begin * 10**6, f3=(end - begin) * 10**6, f4=stats)

    lines = [message(f2=name, f4=[event(*kernel) for kernel in kernels]) for name, kernels in streams.items()]
    kinds = [message(f1=i, f2=message(f1=i, f2=name)) for name, i in known.items()]
    stats = [message(f1=i, f2=message(f1=i, f2=name)) for name, i in STATS.items()]
    return message(f2=f"/device:GPU:{number}", f3=lines, f4=kinds, f5=stats)


def metadata_plane(*instructions):
    """The plane with a compiled program of instructions (name, opcode, scopes)."""
    made = [
        message(f1=name, f2=opcode, f7=message(f2=scopes), f35=i + 1)
        for i, (name, opcode, scopes) in enumerate(instructions)
    ]
    module = message(f1="jit_f", f3=message(f1="main", f2=made, f5=9), f6=9)
    held = message(f1=1, f2="jit_f(7)", f5=message(f1=STATS["hlo_proto"], f6=message(f1=module)))
    return message(f2="/host:metadata", f4=message(f1=1, f2=held))


def test_kernels_of_a_gpu_are_read_with_collectives_beside_them(tmp_path):
    compiled = metadata_plane(
        ("dot.1", "custom-call", "jit(f)/wf0_einsum/dot_general"),
        ("all-reduce-start.1", "all-reduce-start", "jit(f)/wf0_einsum/psum"),
        ("fusion.2", "fusion", "jit(f)/wf1_relu/max"),
    )
    streams = {
        "Stream #13(Compute)": [
            ("gemm", "dot.1", 0, 40), ("loop", "fusion.2", 40, 60), ("Memset", "", 60, 61),
            ("gemm", "dot.1", 100, 140), ("loop", "fusion.2", 140, 160),
        ],
        "Stream #14(Collective)": [("nccl", "all-reduce-start.1", 30, 80), ("nccl", "all-reduce-start.1", 130, 180)],
        "XLA Ops": [("gemm", "dot.1", 0, 40)],
    }  # fmt: skip
    folder = tmp_path / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    planes = [gpu_plane(number, streams) for number in range(2)]
    (folder / "host.xplane.pb").write_bytes(message(f1=[*planes, compiled]))
    found = read_step_times(tmp_path)
    assert (found.steps, found.processors, found.is_shared) == (2, 2, False)
    took = {each.name: (round(1e6 * each.seconds), round(1e6 * each.hidden)) for each in found.taken}
    assert took == {"dot.1": (40, 0), "fusion.2": (20, 0), "Memset": (1, 0), "all-reduce-start.1": (19, 31)}
    assert round(1e6 * found.seconds) == 100 and round(1e6 * (found.idle_within + found.idle_between)) == 20
    assert found.main.instructions["all-reduce-start.1"].doers == {Doer(0, "forward", "all_reduce"): 1.0}


def test_a_folder_without_a_profile_is_refused(tmp_path):
    with pytest.raises(MeasureError, match="there is no profile in") as error:
        read_step_times(tmp_path)
    assert "jax.profiler.trace" in error.value.fix
