"""Programs compiled for machines that are not there: what is refused and why, and what XLA says beside Weft.

What needs a compiler runs where one is installed: weft's extras `cuda` and `tpu`.
"""

import dataclasses
import importlib.util
import logging

import optax
import pytest

import weft as wf
from tests.program.cases import B, D, F, shape, weight
from weft import compat
from weft.plan import Proof, Sent, compile, compile_child, compiled_for
from weft.plan.merged import merged_rows
from weft.plan.sent import read_collectives
from weft.plan.targets import read_target

MESH, LAYOUT = "rows=2,cols=4", "batch:rows,d_ff:cols"
ARGS = (shape(B, D), weight(D, F), weight(F, D))

CUDA = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="the CUDA plugin of JAX is not installed"
)
TPU = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def layers(x, w, v):
    return wf.einsum(wf.relu(wf.einsum(x, w, over=D)), v, over=F)


# ---- the machine


@pytest.mark.parametrize(
    ("text", "kind", "processors"),
    [("h100:1x64x8", "gpu", 512), ("a100:1x1x8", "gpu", 8), ("v5p:8x8x8", "tpu", 512), ("v5e:4x4", "tpu", 16)]
    + [("v3:4x4", "tpu", 32), ("v4:2x2x4", "tpu", 16), ("b200:2x4x8", "gpu", 64), ("v6e:16x16", "tpu", 256)],
)
def test_a_target_names_a_machine_and_its_processors(text, kind, processors):
    target = read_target(text)
    assert (target.kind, target.processors) == (kind, processors)


@pytest.mark.parametrize(
    ("text", "fact", "fix"),
    [
        ("h10:1x1x8", "`h10:1x1x8` names no machine", "did you mean `h100`?"),
        ("abacus", "`abacus` names no machine", "use one of: `a100`"),
        ("h100", "does not say how many processors", "h100:1x64x8"),
        ("h100:1x0x8", "does not say how many processors", "h100:1x64x8"),
        ("v5p:8xx8", "does not say how many processors", "v5p:8x8x8"),
        ("h100:8", "has 1 sizes; h100 has 3", "h100:1x64x8"),
        ("v5p:4x4", "has 2 sizes; v5p has 3", "v5p:8x8x8"),
        ("v5e:32x16", "more than one slice of v5e", "v5e:16x16"),
    ],
)
def test_a_machine_that_is_not_known_is_refused(text, fact, fix):
    with pytest.raises(wf.WeftError) as error:
        compiled_for(layers, ARGS, MESH, LAYOUT, text)
    assert fact in error.value.fact
    assert fix in error.value.fix


def test_a_machine_of_another_size_than_the_mesh_is_refused():
    with pytest.raises(wf.WeftError, match="`v5p:4x4x4` has 64 processors and the mesh has 8"):
        compiled_for(layers, ARGS, MESH, LAYOUT, "v5p:4x4x4")


@pytest.mark.parametrize(("target", "extra"), [("h100:1x1x8", "jax[cuda12-local]=="), ("v5p:2x2x2", "jax[tpu]==")])
def test_a_compiler_that_is_missing_is_named_with_its_install_line(target, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(wf.WeftError, match="is not installed") as error:
        compiled_for(layers, ARGS, MESH, LAYOUT, target)
    assert error.value.fix.startswith(f"pip install '{extra}")


# ---- the process that compiles


def child(monkeypatch, script):
    """Lets a few lines of Python stand for the process that compiles."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    run = compile.subprocess.run
    monkeypatch.setattr(
        compile.subprocess, "run", lambda command, **how: run([command[0], "-c", script, command[-1]], **how)
    )


SAYS = {"argument_bytes": 10, "peak_bytes": 30, "output_bytes": 5, "alias_bytes": 5, "temporary_bytes": 20}


def test_what_the_process_says_becomes_a_proof(monkeypatch):
    sent = {"collective": "all_reduce", "axes": ["cols"], "group": 4, "bytes": 8, "count": 6}
    child(monkeypatch, f"import json; print(json.dumps({SAYS | {'seconds': 1.0, 'collectives': [sent]}!r}))")
    proof = compiled_for(layers, ARGS, MESH, LAYOUT, "h100:1x1x8")
    assert (proof.peak_bytes, proof.argument_bytes, proof.sent_bytes) == (30, 10, {"cols": 48})
    assert proof.collectives == (Sent("all_reduce", ("cols",), 4, 8, 6),)
    assert proof.to_dict()["collectives"][0]["count"] == 6


def test_a_process_that_is_ended_ends_nothing_else(monkeypatch):
    child(monkeypatch, "import os, sys; print('F0000 no such torus', file=sys.stderr, flush=True); os.abort()")
    with pytest.raises(wf.WeftError, match="was ended by signal 6: F0000 no such torus") as error:
        compiled_for(layers, ARGS, MESH, LAYOUT, "v5p:2x2x2")
    assert error.value.fix.startswith("none is known")


def refused(monkeypatch, said, during="program"):
    child(monkeypatch, f"import json; print(json.dumps({dict(refused=said, during=during)!r}))")
    with pytest.raises(wf.WeftError) as error:
        compiled_for(layers, ARGS, MESH, LAYOUT, "v5p:2x2x2")
    return error.value


def test_a_program_that_does_not_fit_says_so(monkeypatch):
    told = "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\nUsed 20.1G of 15.7G hbm."
    error = refused(monkeypatch, told)
    assert error.fact.endswith("does not fit: Ran out of memory in memory space hbm.\nUsed 20.1G of 15.7G hbm.")
    assert "split what is largest" in error.fix


def test_a_compilers_message_comes_through_whole(monkeypatch):
    told = "JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel: bad tile\n\nat loc(here)\n"
    told += "Suspected Python Code Location:\nnet.py:3\n[... truncated to 50 lines ...]"
    error = refused(monkeypatch, told)
    assert error.fact == f"compiling for v5p:2x2x2 failed: {told}"
    assert "another shape" not in error.fix and error.fix.startswith("none is known")


def test_a_message_too_long_for_a_screen_is_whole_in_a_file(monkeypatch, tmp_path):
    monkeypatch.setattr(compile.tempfile, "tempdir", str(tmp_path))
    told = "JaxRuntimeError: INTERNAL: first line\n" + "\n".join(f"line {i}" for i in range(900))
    fact = refused(monkeypatch, told).fact
    assert "failed: JaxRuntimeError: INTERNAL: first line\nline 0\n" in fact and len(fact.splitlines()) < 20
    (path,) = tmp_path.glob("weft-v5p-*.txt")
    assert f"(all 901 lines of it: {path})" in fact and path.read_text() == told


@pytest.mark.parametrize("during", ["machine", "program"])
def test_the_process_that_compiles_says_during_what_it_was_refused(during, monkeypatch):
    def refuse(*args):
        raise RuntimeError("INTERNAL: no")

    monkeypatch.setattr(compile_child, "devices_of", refuse if during == "machine" else lambda target: [])
    monkeypatch.setattr(compile_child, "compile_request", refuse)
    said = compile_child.answer({"target": read_target("v5p:2x2x2")})
    assert said == {"refused": "RuntimeError: INTERNAL: no", "during": during}


def test_a_machine_that_xla_does_not_know_is_xlas_own_refusal(monkeypatch):
    error = refused(monkeypatch, "JaxRuntimeError: UNKNOWN: no such topology", during="machine")
    assert error.fact == "XLA knows no machine v5p:2x2x2: JaxRuntimeError: UNKNOWN: no such topology"
    assert error.fix == "compile for another shape of the machine; not every shape exists"


def test_a_process_that_takes_too_long_is_stopped(monkeypatch):
    child(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(wf.WeftError, match=r"took more than 0\.5 s"):
        compiled_for(layers, ARGS, MESH, LAYOUT, "v5p:2x2x2", timeout=0.5)


def test_a_program_that_calls_back_to_python_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    def checked(x):
        wf.print("x {}", x)
        return x

    with pytest.raises(wf.WeftError, match="cannot be compiled in a process of its own") as error:
        compiled_for(checked, (shape(B, D),), MESH, "batch:rows", "h100:1x1x8")
    assert error.value.fix.startswith("leave out what calls back to Python")


# ---- what is read off the compiled code


LOOP = """
HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %p = (s32[], f32[8,16]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,16] get-tuple-element(%p), index=1
  %sum = f32[8,16] all-reduce(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %out = (s32[], f32[8,16]) tuple(%i, %sum)
}

%until (q: (s32[], f32[8,16])) -> pred[] {
  %q = (s32[], f32[8,16]) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (a: f32[8,16]) -> f32[32,16] {
  %a = f32[8,16] parameter(0)
  %i0 = s32[] constant(0)
  %start = (s32[], f32[8,16]) tuple(%i0, %a)
  %loop = (s32[], f32[8,16]) while(%start), condition=%until, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %x1 = f32[8,16] get-tuple-element(%loop), index=1
  ROOT %all = f32[16,16] all-gather(%x1), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
}
"""


def test_collectives_are_read_with_their_axes_groups_and_turns():
    found = read_collectives(LOOP, {"rows": 2, "cols": 4})
    assert found == [Sent("all_reduce", ("cols",), 4, 512, 5), Sent("all_gather", ("rows",), 2, 1024, 1)]


# As the TPU's compiler prints it: no count of turns, layouts with tiles, permutes as pairs that start and are done.
TPU_RING = """
HloModule jit_run, is_scheduled=true

%wide.test (wide.p: (s32[], bf16[2,4,8], s32[])) -> pred[] {
  %bound = s32[]{:T(128)} constant(9), metadata={op_name="jit(run)/while/cond/lt"}
  %wide.p = (s32[]{:T(128)}, bf16[2,4,8]{2,1,0:T(8,128)(2,1)}, s32[]{:T(128)}) parameter(0)
  %counter = s32[]{:T(128)} get-tuple-element(%wide.p), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%counter, %bound), direction=LT, backend_config={"flag_configs":[]}
}

%wide.turn (wide.q: (s32[], bf16[2,4,8], s32[])) -> (s32[], bf16[2,4,8], s32[]) {
  %wide.q = (s32[]{:T(128)}, bf16[2,4,8]{2,1,0:T(8,128)(2,1)}, s32[]{:T(128)}) parameter(0)
  %one = s32[]{:T(128)} get-tuple-element(%wide.q), index=2
  %i = s32[]{:T(128)} get-tuple-element(%wide.q), index=0
  %kv = bf16[2,4,8]{2,1,0:T(8,128)(2,1)} get-tuple-element(%wide.q), index=1
  %next = s32[]{:T(128)} add(%i, %one)
  %go = (bf16[2,4,8]{2,1,0:T(8,128)(2,1)S(1)}, bf16[2,4,8]{2,1,0:T(8,128)(2,1)}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%kv), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}
  %gone = bf16[2,4,8]{2,1,0:T(8,128)(2,1)} collective-permute-done(%go)
  ROOT %out = (s32[]{:T(128)}, bf16[2,4,8]{2,1,0:T(8,128)(2,1)}, s32[]{:T(128)}) tuple(%next, %gone, %one)
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%async (d: f32[16], e: f32[4,4]) -> (f32[16], f32[4,4]) {
  %d = f32[16]{0:T(128)} parameter(0)
  %e = f32[4,4]{1,0:T(4,128)} parameter(1)
  ROOT %both = (f32[16]{0:T(128)}, f32[4,4]{1,0:T(4,128)}) all-reduce(%d, %e), channel_id=2, replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%sum
}

ENTRY %main (kv0: bf16[2,4,8], g: f32[16], h: f32[4,4]) -> f32[16] {
  %kv0 = bf16[2,4,8]{2,1,0:T(8,128)(2,1)} parameter(0)
  %g = f32[16]{0:T(128)} parameter(1)
  %h = f32[4,4]{1,0:T(4,128)} parameter(2)
  %two = s32[]{:T(128)} constant(2)
  %copied = s32[]{:T(128)} copy(%two)
  %start = (s32[]{:T(128)}, bf16[2,4,8]{2,1,0:T(8,128)(2,1)}, s32[]{:T(128)}) tuple(%copied, %kv0, %two)
  %loop = (s32[]{:T(128)}, bf16[2,4,8]{2,1,0:T(8,128)(2,1)}, s32[]{:T(128)}) while(%start), condition=%wide.test, body=%wide.turn
  %begun = ((f32[16], f32[4,4]), (f32[16], f32[4,4]), u32[]) async-start(%g, %h), calls=%async
  %ended = (f32[16], f32[4,4]) async-done(%begun)
  ROOT %r = f32[16]{0:T(128)} get-tuple-element(%ended), index=0
}
"""  # noqa: E501


def test_a_loop_whose_turns_the_compiler_does_not_say_is_counted_by_its_test():
    found = read_collectives(TPU_RING, {"rows": 2, "x": 4})
    assert found == [Sent("permute", ("x",), 2, 128, 7), Sent("all_reduce", ("rows",), 2, 128, 1)]


def test_a_loop_that_may_take_any_number_of_turns_counts_one():
    text = TPU_RING.replace("constant(9)", "get-tuple-element(%wide.p), index=2")
    assert read_collectives(text, {"rows": 2, "x": 4})[0].count == 1


# ---- beside what Weft says


def gathered_twice(x, w):
    return wf.einsum(wf.einsum(x, w, over=D), w, over=F)


def proof_of(program, less=0, narrow=False, target="h100:1x1x8"):
    """As if XLA sent what the ledger has, but for some bytes."""
    rows = [
        Sent(row.collective, row.axes, row.ways, row.bytes // (2 if narrow else 1), row.count) for row in program.ledger
    ]
    rows[0] = dataclasses.replace(rows[0], bytes=rows[0].bytes - less)
    return Proof(target, *SAYS.values(), collectives=tuple(rows), seconds=1.0)


def test_what_xla_gathers_once_is_named_with_its_pass_and_its_bytes():
    args = shape(B, D), weight(D, F)
    program = wf.trace(gathered_twice, *args, mesh="rows=8", layout="batch:rows,params.d_model:rows")
    first, second = (row for row in program.ledger if row.collective == "all_gather")
    assert merged_rows(program) == [second] and first.bytes == second.bytes
    text = proof_of(program, less=second.bytes).beside(program)
    assert "XLA sends it once (its pass `cse`): all that differs" in text
    assert "in 1 call is of what its body sent before" in text
    assert "cse" not in proof_of(program).beside(program)


def test_gathers_in_a_recomputation_or_a_loop_are_not_those_before_it():
    def recomputed(x, w):
        return wf.sum(wf.square(wf.remat(gathered_twice)(x, w)), over=[B, D])

    args = shape(B, D), weight(D, F)
    how = dict(mesh="rows=8", layout="batch:rows,params.d_model:rows")
    program = wf.trace(wf.grad(recomputed, argnums=1), *args, **how)
    gathers = [row for row in program.ledger if row.collective == "all_gather"]
    merged = merged_rows(program)
    assert [row.phase for row in merged] == ["forward", "recompute"] and len(gathers) == 4


def test_bytes_that_differ_for_another_reason_are_said_to():
    program = wf.trace(layers, *ARGS, mesh=MESH, layout=LAYOUT)
    text = proof_of(program, less=8).beside(program)
    assert text.splitlines()[-1] == "over cols: XLA sends 8 B fewer than the ledger, for a reason not known"
    assert len(proof_of(program).beside(program).splitlines()) == 4


def test_a_scattered_sum_that_xla_makes_whole_is_named():
    def loss(x, w, v):
        return wf.sum(layers(x, w, v), over=[B, D])

    program = wf.trace(wf.grad(loss, argnums=1), *ARGS, mesh="rows=8", layout="batch:rows,params.d_model:rows")
    proof = proof_of(program)
    whole = tuple(
        dataclasses.replace(sent, collective=sent.collective.replace("reduce_scatter", "all_reduce"))
        for sent in proof.collectives
    )
    assert "reduce_scatter" not in proof.beside(program)
    text = dataclasses.replace(proof, collectives=whole).beside(program)
    assert text.splitlines()[-1].endswith("of reduce_scatter is an all_reduce and a slice in XLA's program")


def test_a_tpu_that_rounds_before_it_sends_is_named():
    program = wf.trace(layers, *ARGS, mesh="rows=8", layout="batch:rows,params.d_model:rows")
    text = proof_of(program, narrow=True, target="v5p:2x2x2").beside(program)
    assert "the TPU's compiler sends in bfloat16" in text


def test_xlas_figures_stand_beside_wefts():
    program = wf.trace(layers, *ARGS, mesh=MESH, layout=LAYOUT)
    sent = (Sent("all_reduce", ("cols",), 4, program.ledger.rows[0].bytes, 1),)
    proof = Proof("h100:1x1x8", *SAYS.values(), collectives=sent, seconds=1.0)
    lines = proof.beside(program).splitlines()
    assert lines[0].split() == ["Weft", "XLA", "for", "h100:1x1x8"]
    assert [line.split("  ")[0] for line in lines[1:]] == ["arguments", "peak", "sent over cols"]


# ---- with the compilers


def adam_step():
    def loss(params, x, key):
        return wf.mean(wf.square(layers(x, params["w"], params["v"])), over=[B, D])

    step = wf.train_step(loss, optax.adam(1e-3))
    return step, (step.init({"w": weight(D, F), "v": weight(F, D)}), shape(B, D))


@CUDA
@pytest.mark.slow
def test_a_train_step_is_compiled_for_gpus_that_are_not_there():
    step, args = adam_step()
    proof = compiled_for(step, args, MESH, LAYOUT, "h100:1x1x8")
    program = wf.trace(step, *args, mesh=MESH, layout=LAYOUT)
    assert proof.argument_bytes == program.memory.arguments
    assert proof.alias_bytes >= program.memory.donated
    assert proof.peak_bytes <= program.memory.range[1]
    assert proof.sent_bytes["cols"] == sum(row.bytes * row.count for row in program.ledger if row.axes == ("cols",))


@CUDA
@pytest.mark.slow
@pytest.mark.parametrize("target", ["a100:1x1x8", "h200:1x1x8", "b200:1x2x4"])
def test_a_function_is_compiled_for_every_kind_of_gpu(target):
    proof = compiled_for(layers, ARGS, MESH, LAYOUT, target)
    program = wf.trace(layers, *ARGS, mesh=MESH, layout=LAYOUT)
    assert proof.argument_bytes == program.memory.arguments
    assert proof.peak_bytes <= program.memory.range[1]


@TPU
@pytest.mark.slow
def test_a_train_step_is_compiled_for_tpus_that_are_not_there():
    step, args = adam_step()
    proof = compiled_for(step, args, MESH, LAYOUT, "v5p:2x2x2")
    memory = wf.trace(step, *args, mesh=MESH, layout=LAYOUT).memory_on("tpu")
    assert proof.argument_bytes == memory.arguments
    assert proof.peak_bytes <= memory.range[1]


@TPU
@pytest.mark.slow
def test_a_shape_that_does_not_exist_is_xlas_own_refusal():
    with pytest.raises(wf.WeftError, match="XLA knows no machine v5p:1x2x4"):
        compiled_for(layers, ARGS, MESH, LAYOUT, "v5p:1x2x4")


def test_a_driver_that_is_not_there_is_no_news_and_any_other_error_is(caplog):
    logger = logging.getLogger("jax._src.xla_bridge")
    compat.expect_no_driver()
    try:
        for message in ("Unable to load CUDA. Is it installed?", "cuSPARSE is too old"):
            try:
                raise RuntimeError(message)
            except RuntimeError:
                logger.exception("Exception when calling jax_plugins.xla_cuda12.initialize()")
        logger.warning("no GPU was found")
    finally:
        logger.removeFilter(compat._is_not_of_driver)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["cuSPARSE is too old"]
    assert "no GPU was found" in caplog.text
