"""Every example runs as a user runs it, in a fresh interpreter, and prints what it promises.

How it fails is seen in this one.
"""

import gzip
import re
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from tests.environment import of_a_user

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name, *arguments, status=0):
    """What an example prints, and what it says on stderr; it must end with this status."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=of_a_user())
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """How an example fails, run in this process with these arguments and this text in place of another."""

    def run(name, *arguments, replace=("", ""), raises=SystemExit):
        source = (ROOT / "examples" / name).read_text()
        spoiled = source.replace(*replace)
        assert spoiled != source or replace == ("", "")
        (tmp_path / name).write_text(spoiled)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(raises) as caught:
            runpy.run_path(str(tmp_path / name), run_name="__main__")
        return caught.value

    return run


def test_two_layer_net_prints_placed_types_what_it_sends_and_the_answer():
    printed, _ = run("01_two_layer_net.py")
    for line in [
        "x  f32[batch/rows d_io]            local shape (128, 1024)",
        "w  f32[d_io hidden/cols]           local shape (1024, 2048)",
        "h  f32[batch/rows hidden/cols]     local shape (128, 2048)",
        "y  f32[batch/rows d_io]            local shape (128, 1024)",
        ">> all_reduce over cols      512 KiB x1",
        "because hidden is summed and split over cols",
        "The result is f32[batch d_io]",
    ]:
        assert line in printed
    assert printed.count("all_reduce") == 1
    assert float(re.search(r"from one processor: (\S+)", printed)[1]) < 1e-5


# From the sizes, batch=64, d_io=128, hidden=512, on 4 x 2 processors: two weight gradients of d_io x hidden, summed
# where batch is split, and one output of batch x d_io, summed where hidden is; float32, bytes on each processor.
SENT = {
    "data parallel": [("all_reduce x2", "rows+cols", 2 * 128 * 512 * 4)],
    "model parallel": [("all_reduce x1", "rows+cols", 64 * 128 * 4)],
    "both": [("all_reduce x1", "cols", 64 // 4 * 128 * 4), ("all_reduce x2", "rows", 2 * 128 * 512 // 2 * 4)],
}


def test_same_answer_prints_one_loss_and_what_each_layout_sends():
    printed, _ = run("02_same_answer.py")
    table = printed.split("\n\n")[1].splitlines()
    assert len(set(re.findall(r"\b\d\.\d{6}\b", printed))) == 1
    differences = [float(found) for found in re.findall(r"\d\.\d{6}   (\S+e-\d+)", printed)]
    assert len(differences) == 4
    assert max(differences) < 3e-6
    for name, rows in SENT.items():
        at = next(i for i, line in enumerate(table) if line.startswith(name))
        for line, (what, axes, size) in zip(table[at:], rows, strict=False):
            assert line.split()[-4:] == [*what.split(), axes, f"{size:,}"]
    sharded = table[-2] + table[-1]
    assert "fully sharded" in sharded
    assert "all_gather x3" in sharded
    assert f"reduce_scatter x2  rows+cols   {2 * 128 * 512 * 4:,}" in sharded
    assert max(map(len, printed.splitlines())) <= 105


def test_same_answer_fails_when_an_answer_differs(failing):
    ended = failing("02_same_answer.py", replace=("TOLERANCE = ", "TOLERANCE = 0 * "))
    assert "FAILED: the answer differs under data parallel" in ended.code


def test_your_own_op_agrees_with_one_processor_and_shows_the_error_and_its_mend():
    printed, _ = run("03_your_own_op.py")
    assert re.search(r"Pallas kernel\n  length:rows, heads:cols: differs .* by \S+, sends nothing", printed)
    assert re.search(
        r"gradient .*\n  length:rows, heads:cols: differs .* by \S+, sends all_reduce over rows\n", printed
    )
    assert "local needs `memory_length` whole, and it is split over `rows`" in printed
    assert "fix: rename it to an unsplit dim first: `x.rename(memory_length='memory_length_whole')`" in printed
    assert printed.rstrip().endswith("sends all_gather over rows, all_gather over rows")
    assert max(map(float, re.findall(r"one processor by (\S+),", printed))) < 1e-5


def accuracy(printed):
    return float(re.search(r"test accuracy (\S+)% of", printed)[1])


def losses(printed):
    return [float(loss) for loss in re.findall(r"loss (\S+)", printed)]


@pytest.mark.slow
def test_mnist_learns_digits_it_draws():
    printed, _ = run("04_mnist.py", "--steps", 100)
    found = losses(printed)
    assert len(found) == 11
    assert found[-1] < found[0] / 5
    assert accuracy(printed) > 93


@pytest.mark.slow
def test_mnist_prints_the_same_losses_under_every_layout():
    alone, _ = run("04_mnist.py", "--steps", 10, "--mesh", "all=1", "--layout", "batch:all")
    for mesh, layout in [("all=8", "batch:all"), ("rows=4,cols=2", "batch:rows, hidden:cols, params.height:rows")]:
        printed, _ = run("04_mnist.py", "--steps", 10, "--mesh", mesh, "--layout", layout)
        np.testing.assert_allclose(losses(printed), losses(alone), atol=2e-4)  # four digits are printed


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    return header + array.astype("uint8").tobytes()


@pytest.mark.slow
def test_mnist_reads_idx_files_gzipped_or_not(tmp_path):
    labels = np.arange(512) % 10
    images = np.zeros([512, 28, 28])
    images[np.arange(512), labels * 2] = 255  # the label says which row is lit
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    printed, _ = run("04_mnist.py", "--data", tmp_path, "--steps", 20)
    assert "test accuracy 100.00% of 512 images" in printed


def test_mnist_names_the_file_that_is_missing(tmp_path):
    printed, said = run("04_mnist.py", "--data", tmp_path / "nowhere", status=1)
    assert printed == ""
    assert f"there is no {tmp_path / 'nowhere'}" in said
    assert "--data takes the directory of the MNIST files" in said
    assert "Traceback" not in said


def test_mnist_names_a_file_that_holds_something_else(failing, tmp_path):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / name).write_text("a page that says: not found")
    assert "train-images-idx3-ubyte is no idx file" in failing("04_mnist.py", "--data", tmp_path).code


def test_mnist_names_the_rule_that_is_wrong(failing):
    error = failing("04_mnist.py", "--layout", "bacth:rows, hidden:cols", raises=wf.LayoutError)
    assert "rule `bacth:rows` matches nothing" in error.fact
    assert "did you mean `batch`?" in error.fix


def test_read_the_program_prints_it_for_512_processors_and_what_another_layout_changes():
    printed, _ = run("05_read_the_program.py")
    program, changes, duplicated = (
        printed.split("\nThe same with")[0],
        *printed.split("\n\n- loss on")[1].split("\nAnd where"),
    )
    layer = 512 // 16 * 256 * 1024 * 4 // 2**20  # MiB of [batch/rows length d_model] on one processor
    assert re.search(rf">> all_reduce over cols +{layer} MiB x12 .*because d_ff is summed and split over cols", program)
    assert re.search(
        r"d params.out .*\n +>> all_reduce over rows +1 MiB x12 .*because params.out is whole over rows", program
    )
    assert [program.index(f"\n{phase}\n") for phase in ("forward", "backward")]
    assert "no work is done twice" in program
    assert re.search(r"\+ >> all_gather over rows  1 MiB x12 .*because params.in is stored split over rows", changes)
    assert re.search(r"- >> all_reduce over rows  1 MiB x12 .*because params.in is whole over rows", changes)
    assert "100 % of the work is done 32 times: axis cols splits nothing in `feed_forward`" in duplicated


def test_the_tests_on_a_ledger_pass_and_fail_where_a_program_sends_more(failing):
    printed, _ = run("06_test_the_ledger.py")
    assert printed.count("passed:") == 4
    second_fan_out = 'x, w["v"], over=d_model)', 'x * 2, w["v"], over=d_model)'
    failing("06_test_the_ledger.py", replace=second_fan_out, raises=AssertionError)


@pytest.mark.slow
def test_split_image_prints_the_halos_of_tiles_and_strips():
    printed, _ = run("07_split_image.py")
    place, deep = 3 * 4, 8 * 4  # bytes of one place of the image, and of what the first layer makes
    rows, cols, corners = 64 // 2, 32 // 4, 2
    for axis, size in [("rows", rows * place), ("cols", (cols + corners) * place)]:
        assert re.search(rf">> permute over {axis} +{size} B x2 .*because conv goes over", printed)
    forward = 2 * (rows + cols + corners) * place + (rows + cols + 1) * deep  # the stride looks ahead only
    backward = (rows + cols + 1) * deep  # the image needs no gradient
    assert re.search(rf"height:rows, width:cols +halos +{forward + backward:,} bytes", printed)
    assert max(map(float, re.findall(r"difference (\S+)", printed))) < 1e-5
    strips, tiles = 2 * 2048 * (place + deep), 2 * (128 + 130) * place + 2 * (128 + 129) * deep
    assert re.search(rf"height:rows\+cols +halos +{strips:,} bytes\n +\S+ \S+ +halos +{tiles:,} bytes", printed)


@pytest.mark.slow
def test_transformer_lm_prints_the_same_losses_and_what_each_layout_holds_and_sends():
    printed, _ = run("08_transformer_lm.py")
    trained, small, large = printed.split("\n\n")
    rows = [tuple(map(float, line.split()[-4:])) for line in trained.splitlines()[1:]]
    assert len(rows) == 3
    np.testing.assert_allclose(rows, [rows[0]] * 3, atol=2e-4)  # four digits are printed
    assert rows[0][-1] < rows[0][0] - 0.5
    norms = 13 * 1024  # their scales are whole everywhere
    matrices = 6 * (4 * 1024 * 256 * 256 + 2 * 1024 * 262144) + 2 * 32768 * 1024
    held = re.findall(r"^  (.+?) +m0=\S+ +holds +(\S+) parameters", large, re.MULTILINE)
    ways = {"data parallel": 1, "model parallel": 256, "both": 32}
    assert held == [(name, f"{matrices // each + norms:,}") for name, each in ways.items()]
    data_parallel = re.search(r"m0=512 .*sends (\S+) MiB over m0", large)
    assert abs(float(data_parallel[1]) - 2 * matrices / 2**20) < 1  # each gradient once, in bfloat16
    both = re.search(r"m0=16,m1=32 .*sends (\S+) MiB over m0 and (\S+) MiB over m1", large)
    activations = 512 // 16 * 256 * 1024 * 2 / 2**20  # [batch/m0 length d_model] in bfloat16
    assert abs(float(both[1]) - 2 * matrices / 32 / 2**20) < 1
    assert abs(float(both[2]) - (6 * 5 + 2) * activations) < 1  # five in a layer, one of them again, and both tables
    assert re.search(r"m0=8 +holds +131,392 parameters", small)


@pytest.mark.slow
def test_translate_learns_and_beam_search_ranks_what_it_never_saw():
    printed, _ = run("09_translate.py")
    found = losses(printed)
    assert found[0] > 3
    assert found[-1] < 0.02
    assert float(re.search(r"exactly right: (\S+)% of 512", printed)[1]) > 98
    ranked = printed.split("\n\n")[1:4]
    for block in ranked:
        scores = [float(line.split()[0]) for line in block.splitlines()[1:]]
        assert len(scores) == 4
        assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_experts_send_tokens_there_and_back_and_drop_the_same_ones():
    printed, _ = run("10_experts.py")
    stays, travels = printed.split("\n\n")[1:3]
    steps = re.compile(r"step +(\d+)  loss (\S+)  dropped +(\d+) of 1024")
    assert len(steps.findall(stays)) == 4
    assert [found[2] for found in steps.findall(stays)] == [found[2] for found in steps.findall(travels)]
    np.testing.assert_allclose(losses(stays), losses(travels), atol=2e-4)  # four digits are printed
    assert losses(stays)[-1] < losses(stays)[0] - 0.5
    assert all(0 < int(dropped) < 1024 for _, _, dropped in steps.findall(stays))
    assert "all_to_all" not in stays
    slots = 5  # 32 tokens for 8 experts, a quarter more than their share
    size = 16 // 8 * 8 * slots * 32 * 4  # [batch/x router slots d_model] in float32
    moved = re.findall(r"(forward|backward) +all_to_all of (\S+) bytes x(\d)", travels)
    assert moved == [(phase, f"{size:,}", "2") for phase in ("forward", "forward", "backward", "backward")]
    experts = 2 * 8 * 2 * 32 * 256 * 4  # bytes of the gradients of all experts: two layers, two matrices each
    sent = [int(re.search(r"backward +all_reduce +(\S+) bytes", part)[1].replace(",", "")) for part in (stays, travels)]
    assert sent[0] - sent[1] == experts
    assert "The same losses, and the same tokens dropped." in printed


@pytest.mark.slow
def test_stages_of_a_pipeline_learn_the_same_and_idle_by_formula():
    printed, _ = run("15_pipeline.py")
    assert len(set(re.findall(r"loss \S+ -> \S+", printed))) == 1 and "the losses agree" in printed
    assert re.findall(r"by formula (\S+)%", printed) == ["0.0", "0.0", "27.3", "5.9"]
    microbatch = 16 // 8 // 2 * 16 * 32 * 4  # [batch/x stream d_model] in float32
    sent = [int(size.replace(",", "")) for size in re.findall(r"permutes (\S+) bytes", printed)]
    assert sent == [4 * ticks * microbatch for ticks in (0, 0, 8 + 4 - 1, 16 + 2 - 1)]  # two each way


@pytest.mark.slow
def test_dropless_experts_drop_nothing_and_send_tokens_once_each_way():
    printed, _ = run("16_dropless.py")
    stays, travels = printed.split("\n\n")[1:3]
    losses = [re.search(r"loss (\S+) to (\S+), 0 tokens dropped", part).groups() for part in (stays, travels)]
    assert losses[0] == losses[1] and float(losses[0][1]) < float(losses[0][0]) - 0.5
    size = 16 * 32 // 2 * 32 * 4  # [batch/y length d_model] in float32
    assert "all_gather" not in stays
    for collective in ("all_gather", "reduce_scatter"):
        assert re.search(rf"{collective} +over x +{size:,} bytes", travels)
    assert 0 < int(re.search(r"(\d+) of 512 would be dropped", printed)[1]) < 512


@pytest.mark.slow
def test_a_model_is_planned_on_hardware_that_is_not_here():
    printed, _ = run("11_plan_before_you_run.py")
    assert "NVIDIA H100" in printed and "Google TPU v5p" in printed and printed.count(": it fits") == 2
    assert "memory on each processor (gpu): peak" in printed and "decoder.layers.feed_forward.w_in" in printed
    assert re.search(r"it needs \d+ GiB of 56: fits = True\n\d+ ms a step: .*waiting for cols", printed)


@pytest.mark.slow
def test_layouts_are_searched_and_memory_changes_the_best():
    printed, _ = run("12_search_layouts.py")
    free, scarce = re.findall(r"best: (\S+) under (\S+):", printed)
    assert free == ("x=2,y=4", "batch:x,hidden:y")
    assert scarce[1] != free[1] and "do not fit" in printed


def test_two_layouts_are_compared_on_a_page(tmp_path):
    printed, _ = run("13_compare_layouts.py", tmp_path / "page.html")
    assert "over cols: 2 MiB -> 512 KiB" in printed and f"open {tmp_path / 'page.html'}" in printed
    assert "hidden/cols" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_a_unet_learns_what_it_then_finds_in_the_part_held_out():
    printed, _ = run("17_unet.py")
    assert "(28, 44, 14) padded to [32, 48, 16]; depth:x, height:y on x=2,y=2" in printed
    assert losses(printed)[-1] < losses(printed)[0] / 2
    found = re.search(r"held out, Dice: other (\S+)  grey (\S+)  white (\S+)", printed)
    assert min(map(float, found.groups())) > 0.8


@pytest.mark.slow
def test_a_long_sequence_has_one_loss_and_is_held_in_ever_smaller_parts():
    printed, _ = run("14_long_context.py", 1024)
    assert len(re.findall(r"loss (\d\.\d{6})", printed)) == 3
    assert re.search(r"1,024 tokens on 8 processors: loss \d\.\d{4}", printed)
    held = [float(found) for found in re.findall(r"x=\d+ +(\S+) MiB", printed)]
    assert held[0] > held[1] > held[2]
    assert "train_step on x=64 under length:x,memory_length:x,params.d_model:x" in printed and ": it fits" in printed


def table_of(printed):
    """What stands on the lines of each layout: the losses printed."""
    return [re.findall(r"(?<=[ s])\d+\.\d{4}", line.partition("loss")[2]) for line in printed.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layouts", "falls_to"), [("18_vit.py", 3, 0.9), ("20_graph_net.py", 4, 0.1), ("21_state_space.py", 3, 0.5)]
)
def test_a_model_of_ones_own_learns_the_same_under_every_layout(name, layouts, falls_to):
    printed, _ = run(name)
    found = [[float(loss) for loss in losses] for losses in table_of(printed)]
    assert len(found) == layouts
    for losses in found:
        assert losses == pytest.approx(found[0], abs=2e-3) and losses[-1] < falls_to * losses[0]
    if name == "20_graph_net.py":
        sent = [int(each.replace(",", "")) for each in re.findall(r"([\d,]+) bytes a step", printed)]
        assert sent[0] == 0 and min(sent[1:]) > 0


@pytest.mark.slow
def test_a_vit_reads_mnist(tmp_path):
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (40, 28, 28), dtype="uint8"), draw.integers(0, 10, 40, dtype="uint8")
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    printed, _ = run("18_vit.py", "--data", tmp_path)
    assert len(table_of(printed)) == 3


@pytest.mark.slow
def test_an_lstm_in_the_trainer_goes_on_with_the_same_bits():
    printed, _ = run("19_lstm.py")
    assert len(set(re.findall(r"loss .*", printed))) == 1 and len(re.findall(r"loss ", printed)) == 3
    assert "the same bits at the end: True" in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_listed(path):
    assert len(path.read_text().splitlines()) < 80
    assert f"({path.name})" in (ROOT / "examples" / "README.md").read_text()
