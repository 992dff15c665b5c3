"""The page: what stands in its HTML, and how it behaves in a headless Chromium, where this machine has one."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import weft as wf
from tests.plan.browser import browser, why_not
from weft import models, notebook
from weft.plan import Plan
from weft.plan.page import page
from weft.plan.page.sources import AROUND
from weft.plan.page.turns import _grid, _PipelineGrid
from weft.schedule import PipelineSchedule
from weft.text import size_text

BATCH, D_IO, HIDDEN = wf.dims(batch=16, d_io=8, hidden=32)
HOSTILE = "</script><script>hacked=1</script><!--<b onclick='hacked=2'>&amp;"


def shape(*dims):
    return wf.tensor(jax.ShapeDtypeStruct(tuple(dim.size for dim in dims), "float32"), dims)


def net(x, w, v):
    h = wf.relu(wf.einsum(x, w, out=[BATCH, HIDDEN]))
    y = wf.einsum(h, v, out=[BATCH, D_IO])
    return y


def traced(layout="batch:rows,hidden:cols", mesh="rows=4,cols=2"):
    return wf.trace(net, shape(BATCH, D_IO), shape(D_IO, HIDDEN), shape(HIDDEN, D_IO), mesh=mesh, layout=layout)


def hostile(given):
    return wf.relu(given[HOSTILE]) * len("</script><b>hi</b>")  # a </script> in a comment


def lm(layout, mesh="rows=4,cols=2", **sizes):
    config = dataclasses.replace(models.preset("tiny-lm"), **sizes)
    dims = wf.dims(batch=config.batch, length=config.length)
    ids = wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), dims)
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adam(1e-3))
    key = jax.eval_shape(lambda: jax.random.key(0))
    given = (step.init(models.shapes(config)), {"inputs": ids, "targets": ids}, key)
    return wf.trace(step, *given, mesh=mesh, layout=layout)


@pytest.fixture(scope="module")
def small():
    return lm("batch:rows,vocab:cols,d_ff:cols,heads:cols", layers=2)


@pytest.fixture(scope="module")
def stored():
    return lm("batch:rows,vocab:cols,params.d_model:rows", layers=2)


# What stands in the HTML.


class Read(HTMLParser):
    """The elements of a page, the text that a reader sees, and the content of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.hidden, self._open = [], "", {}, ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag):
        self._open = ""
        self.text += "" if tag in ("i", "b", "bdi") else " "

    def handle_data(self, data):
        if self._open in ("script", "style"):
            self.hidden.setdefault(self._open, []).append(data)
        else:
            self.text += data


def told(text):
    return json.loads(Read(text).hidden["script"][1])


def flat(lines):
    for line in lines:
        yield line
        yield from flat(line.lines)


def test_every_line_of_the_program_stands_in_the_page_as_text(small):
    text = Read(page(small)).text
    words = {word for line in flat(small.lines) for word in (line.name, line.text, line.source, line.reason) if word}
    types = {line.type.removeprefix(">> ") for line in flat(small.lines)}
    assert [word for word in words | types if word not in text] == []


def test_the_names_of_dims_and_axes_stand_in_the_page_as_text():
    text = Read(page(traced())).text
    assert {"batch/rows", "hidden/cols", "rows=4,cols=2", "batch:rows,hidden:cols"} <= set(re.split(r"[\[\]\s]+", text))


def test_the_page_asks_for_nothing_from_anywhere(small):
    read = Read(page(small, against=traced()))
    asked = [attrs[key] for _, attrs in read.tags for key in ("src", "href", "action", "data") if key in attrs]
    assert all(link.startswith("#") or link == "data:," for link in asked)
    assert "default-src 'none'" in next(a["content"] for tag, a in read.tags if a.get("http-equiv"))
    assert not re.search(r"@import|url\(", "".join(read.hidden["style"]))


def test_every_link_to_source_has_its_lines(small):
    read = Read(page(small))
    links = {attrs["href"][1:] for tag, attrs in read.tags if tag == "a" and "source" in attrs.get("class", "")}
    held = {attrs["id"] for tag, attrs in read.tags if tag == "code" and "id" in attrs}
    assert links and links <= held
    assert {pick["source"] for pick in told(page(small))["picks"]} - {""} <= held


def test_source_lines_are_those_of_the_file():
    text = page(traced())
    line = next(line for line in flat(traced().lines) if line.text == "einsum(h, v)")
    at = int(line.source.split(":")[1])
    lines = Path(__file__).read_text().splitlines()
    assert all(lines[i - 1].strip() in Read(text).text for i in range(at - AROUND, at + AROUND))
    assert "def test_source_lines" not in Read(text).text


def test_text_of_the_users_cannot_leave_its_place():
    program = wf.trace(hostile, {HOSTILE: shape(BATCH)}, mesh="rows=2", layout="batch:rows")
    program.name = HOSTILE
    read = Read(text := page(program, against=program))
    assert [tag for tag, _ in read.tags].count("script") == 3
    assert not any(key.startswith("on") for _, attrs in read.tags for key in attrs)
    assert HOSTILE in read.text  # what a reader sees is what was written
    assert "# a </script> in a comment" in read.text
    assert any(
        HOSTILE in label for pick in told(text)["picks"] for part in pick["parts"] for label, _ in part["tensors"]
    )


def test_a_program_without_source_has_a_page_without_it():
    namespace = {"wf": wf}
    exec("def typed(x):\n    return wf.relu(x)", namespace)
    text = page(wf.trace(namespace["typed"], shape(BATCH), mesh="rows=2", layout="batch:rows"))
    assert "f32[batch/rows]" in Read(text).text
    assert all(pick["source"] == "" for pick in told(text)["picks"])


def test_a_program_that_sends_and_does_nothing_has_a_page():
    text = Read(page(wf.trace(lambda x: x, shape(BATCH), mesh="rows=2", layout="batch:rows"))).text
    assert "nothing is sent" in text


def test_bytes_per_axis_are_the_ledgers(small):
    text = Read(page(small)).text
    for axis in ("rows", "cols"):
        assert f"{size_text(small.ledger.bytes(axis))} in {small.ledger.count(axis):,} calls" in text


def test_what_is_alive_at_the_peak_is_listed_with_its_bytes(small):
    text = page(small)
    shown = Read(text).text
    missing = [each for each in small.memory.alive if f"{size_text(each.bytes)} {each.name}" not in shown]
    assert missing == []
    course = told(text)["sides"][0]["course"]
    assert max(moment[0] for moment in course) == max(moment.bytes for moment in small.memory.course)


def test_ops_written_in_one_line_have_their_own_tensors_each():
    def both(x, weights):
        return [wf.einsum(x, w, over=D_IO) for w in weights.values()]

    weights = {"first": shape(D_IO, HIDDEN), "second": shape(D_IO, HIDDEN)}
    program = wf.trace(both, shape(BATCH, D_IO), weights, mesh="rows=2", layout="batch:rows")
    found = told(page(program, Plan(program, "h100")))
    drawn = [name for pick in found["picks"] for part in pick["parts"] for name, _ in part["tensors"][2:]]
    assert sorted(drawn) == 2 * ["weights.first"] + 2 * ["weights.second"]  # for the line of each, and for its time


def test_a_plan_gives_the_page_its_times(small):
    text = Read(page(small, Plan(small, "h100"))).text
    assert "a step on h100" in text and Plan(small, "h100").ops[0].label in text
    assert "a step on" not in Read(page(small)).text


@pytest.fixture(scope="module")
def staged():
    return lm("stage:cols,batch:rows", mesh="rows=2,cols=2", layers=2, stages=2, batch=8)


@pytest.fixture(scope="module")
def ring():
    return lm("length:cols,memory_length:cols", mesh="rows=1,cols=2", layers=1)


@pytest.mark.slow
def test_a_pipeline_and_a_ring_have_their_pages(staged, ring):
    text = Read(page(staged, Plan(staged, "h100"), ring, Plan(ring, "h100"))).text
    assert "bubble, 1/3 of its stages' work" in text and "ring_attention" in text and "permute over cols" in text


def titles_of(read, start):
    found = [attrs["title"] for tag, attrs in read.tags if tag == "td" and "title" in attrs]
    return [title for title in found if title.startswith(start)]


def test_a_pipeline_is_drawn_tick_by_tick(staged, small):
    read = Read(page(staged))
    assert titles_of(read, "tick") == [
        "tick 0, processor 0: microbatch 0 in stage 0",
        "tick 1, processor 0: microbatch 1 in stage 0",
        "tick 2, processor 0: no work (bubble)",
        "tick 0, processor 1: no work (bubble)",
        "tick 1, processor 1: microbatch 0 in stage 1",
        "tick 2, processor 1: microbatch 1 in stage 1",
    ]
    assert "2 microbatches through 2 stages on 2 processors: 3 ticks" in read.text
    assert "turns" not in {attrs.get("id") for _, attrs in Read(page(small)).tags}


def test_a_ring_is_drawn_turn_by_turn_with_the_blocks_that_are_seen(ring):
    read = Read(page(ring))
    assert titles_of(read, "turn 1") == [
        "turn 1, processor 0 has the keys of 1: piece 0 does not see 1, piece 0 does not see 2, "
        "piece 3 sees 1, piece 3 sees 2",
        "turn 1, processor 1 has the keys of 0: piece 1 sees 0, piece 1 does not see 3, "
        "piece 2 sees 0, piece 2 does not see 3",
    ]


def test_of_many_ticks_and_processors_the_first_and_the_last_are_drawn():
    grid = _grid(schedule := PipelineSchedule(("p",), 64, 2, 512, 2), _PipelineGrid(schedule))
    assert len(grid) < 300_000 and grid.count("<tr>") < 40
    assert "tick 1086, processor 63: microbatch 511 in stages 254–255 of round 1" in grid


def test_two_programs_stand_side_by_side_with_their_changes_marked(small, stored):
    read = Read(page(small, against=stored))
    rows = [attrs["class"].split()[1] for _, attrs in read.tags if attrs.get("class", "").startswith("row ")]
    diff = small.diff(stored)
    assert rows.count("only-a") == sum(change.after is None for change in diff)
    assert rows.count("only-b") == sum(change.before is None for change in diff)
    assert rows.count("changed") == sum(change.before is not None and change.after is not None for change in diff)
    assert f"{len(diff)} of {len(diff.lines)} lines differ" in read.text


def test_a_program_against_itself_differs_in_nothing(small):
    assert "no line differs" in Read(page(small, against=small)).text


@pytest.mark.slow
def test_the_page_of_24_unrolled_layers_is_small_and_opens(tmp_path, window):
    text = page(lm("batch:rows,vocab:cols,d_ff:cols,heads:cols", layers=24, scanned=False))
    assert len(text.encode()) < 5_000_000
    (tmp_path / "page.html").write_text(text)
    window.open(tmp_path / "page.html")
    assert window.run("return document.body.offsetHeight") > 1000
    assert window.complaints() == []


# What it does in a browser.


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with browser(tmp_path_factory.mktemp("browser")) as found:
        found.size(1366, 768)  # a laptop's
        yield found


@pytest.fixture
def opened(window, tmp_path):
    """Opens a page in the browser; at the end nothing may stand in its console, nor have been asked for."""

    def show(*given, **more):
        (tmp_path / "page.html").write_text(page(*given, **more))
        window.open(tmp_path / "page.html")
        return window

    yield show
    assert window.complaints() == []
    assert window.run("return performance.getEntriesByType('resource').length") == 0


def click_row(window, text, view="program"):
    """Clicks the first line in sight that holds some text."""
    script = """const [rows, text] = arguments;
        for (const row of document.querySelectorAll("[data-wanted]")) delete row.dataset.wanted;
        [...document.querySelectorAll(rows)].find(row => row.textContent.includes(text)).dataset.wanted = 1;"""
    window.run(script, f"#{view} .row:not([hidden])", text)
    window.click("[data-wanted]")


def cells(window, side=0):
    script = """return [...document.querySelectorAll(`.mesh[data-side="${arguments[0]}"] .cell`)].map(
        cell => [cell.dataset.slice, cell.querySelector("rect").style.fill])"""
    return window.run(script, side)


def slices(mesh, spec, sizes):
    """The index ranges that JAX gives each processor, in the order of the mesh."""
    found = NamedSharding(wf.Mesh(mesh).jax_mesh(), PartitionSpec(*spec)).devices_indices_map(sizes)
    return [
        tuple(
            (part.start or 0, size if part.stop is None else part.stop)
            for part, size in zip(found[device], sizes, strict=True)
        )
        for device in wf.Mesh(mesh).jax_mesh().devices.flat
    ]


PLACED = {
    "x=8": ("batch:x", [("x",), ()]),
    "rows=4,cols=2": ("batch:rows,hidden:cols", [("rows",), ("cols",)]),
    "rows=2,cols=4": ("hidden:cols+rows", [(), ("cols", "rows")]),
    "a=2,b=2,c=2": ("batch:a+c,hidden:b", [("a", "c"), ("b",)]),
}


@pytest.mark.parametrize("mesh", PLACED)
def test_a_picked_tensor_is_coloured_as_jax_slices_it(opened, mesh):
    layout, spec = PLACED[mesh]
    window = opened(traced(layout, mesh))
    click_row(window, "relu(...)")
    expected, shown = slices(mesh, spec, (BATCH.size, HIDDEN.size)), cells(window)
    assert len(shown) == len(expected) == 8
    for i in range(8):
        for j in range(8):
            same = expected[i] == expected[j]
            assert (shown[i][0] == shown[j][0]) == same
            assert (shown[i][1] == shown[j][1]) == same
    held = np.zeros((BATCH.size, HIDDEN.size), int)
    for processor in (0, 3, 6, 7):
        window.click(f'.mesh .cell[data-p="{processor}"]')
        said = window.text(".processor")
        ranges = [(0, dim.size) if f"{dim.name} all" in said else between(said, dim.name) for dim in (BATCH, HIDDEN)]
        assert tuple(ranges) == expected[processor]
        held[tuple(slice(*each) for each in ranges)] += 1
    assert held.sum() == sum(np.prod([b - a for a, b in expected[i]]) for i in (0, 3, 6, 7))


def between(said, dim):
    first, last = re.search(rf"{dim} (\d+)–(\d+)", said).groups()
    return int(first), int(last) + 1


def test_copies_are_named_and_share_a_colour(opened):
    window = opened(traced())
    click_row(window, "einsum(h, v)")  # y is split over rows alone
    assert "4 slices of 128 B, each held 2 times: copies along cols." in window.text(".how")
    window.click('.cell[data-p="2"]')
    assert window.text(".processor") == "Processor 2 (rows=1 cols=0) holds batch 4–7, d_io all 8 (128 B); 1 copy."
    assert window.run("return [...document.querySelectorAll('.cell.same')].map(cell => cell.dataset.p)") == ["2", "3"]


def test_an_op_shows_its_operands_too(opened):
    window = opened(traced())
    click_row(window, "einsum(h, v)")
    assert window.run("return [...document.querySelectorAll('.chips button')].map(chip => chip.textContent)") == [
        "y",
        "h",
        "v",
    ]
    window.click(".chips button:nth-child(2)")
    assert window.text(".mesh .type").startswith("f32[batch=16/rows hidden=32/cols]")
    assert len({fill for _, fill in cells(window)}) == 8


def test_a_collective_shows_who_sends_to_whom_and_its_source(opened):
    window = opened(traced())
    window.click("#program .row.collective")
    assert [slice for slice, _ in cells(window)] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert window.text(".how") == "4 groups of 2: a colour is one group."
    assert "because hidden is summed and split over cols" in window.text("#note")
    assert window.text("#shown-source .meant").strip() == "y = wf.einsum(h, v, out=[BATCH, D_IO])"


def test_a_link_to_source_shows_the_text_and_stays_on_the_page(opened):
    window = opened(traced())
    window.click("#program .row.collective a.source")
    assert "wf.einsum(h, v" in window.text("#shown-source .meant")
    assert window.run("return location.hash") == ""


def test_the_keyboard_walks_picks_filters_and_goes_back(opened, small):
    window = opened(small)
    window.click("#tab-program")
    window.press("Tab")
    for _ in range(12):  # past the tools, to the lines
        if window.run("return document.activeElement.classList.contains('row')"):
            break
        window.press("Tab")
    focused = "return document.activeElement.textContent"
    window.press("Home", "Down", "Down")
    assert window.run("return document.activeElement.getAttribute('aria-selected')") == "true"
    before = window.run(focused)
    window.press("n")
    assert window.run("return document.activeElement.classList.contains('collective')")
    window.press("Enter")
    assert "groups" in window.text(".how")
    window.press("/")
    for letter in "gradient take":
        window.press(letter)
    lines = "document.querySelectorAll('#program .row[data-pick]:not([hidden])')"
    shown = f"return [...{lines}].map(row => row.textContent)"
    assert [text for text in window.run(shown) if "gradient of take" not in text] == []
    assert re.fullmatch(r"\d+ of \d+", window.text("#matches"))
    window.press("Escape")
    assert before in window.run(shown) and window.text("#matches") == ""
    assert window.run("return document.activeElement.classList.contains('row')")


def test_a_loop_closes_and_opens(opened, small):
    window = opened(small)
    count = "return document.querySelectorAll('#program .row:not([hidden])').length"
    all_lines = window.run(count)
    click_row(window, "scan over layers x2")
    assert window.run(count) < all_lines - 20
    window.press("Right")
    assert window.run(count) == all_lines


def test_the_mesh_is_walked_with_the_arrow_keys(opened):
    window = opened(traced())
    window.press("m", "Right", "Down")
    assert window.text(".processor").startswith("Processor 3 (rows=1 cols=1)")
    window.press("Escape")
    assert window.run("return document.querySelectorAll('.cell.here').length") == 0


def test_two_layouts_colour_two_meshes(opened, small, stored):
    window = opened(small, against=stored)
    click_row(window, "take(table, ids", "compare")
    assert window.run("return document.querySelectorAll('.mesh').length") == 2
    click_row(window, "cast(self.table, dtype)", "compare")
    assert len({fill for _, fill in cells(window, 0)}) == 2  # vocab over cols
    assert len({fill for _, fill in cells(window, 1)}) == 8  # and d_model over rows
    window.press("n")
    assert window.run("return document.activeElement.matches('.changed, .only-a, .only-b')")


def test_lines_alike_open_where_they_were_folded(opened, small, stored):
    window = opened(small, against=stored)
    count = "return document.querySelectorAll('#compare .row.same:not([hidden])').length"
    before = window.run(count)
    window.click("#compare .row.fold")
    assert window.run(count) > before


def test_the_course_of_memory_is_walked_and_what_is_alive_is_drawn(opened, small):
    window = opened(small)
    window.click("#tab-memory")
    course = told(page(small))["sides"][0]["course"]
    window.run("document.querySelector('.course').focus()")
    window.press("Home", "Right")
    assert window.text(".readout") == course[1][1]
    click_row(window, "decoder.layers.feed_forward.w_in", "memory")
    assert len({fill for _, fill in cells(window)}) == 2


def test_light_and_dark_follow_the_system_until_the_switch_is_used(opened):
    window, paper = opened(traced()), "return getComputedStyle(document.body).backgroundColor"
    window.scheme("light")
    light = window.run(paper)
    window.scheme("dark")
    dark = window.run(paper)
    assert light != dark
    window.click("#theme")
    assert window.run(paper) == light
    window.run("localStorage.clear()")
    window.scheme("light")


@pytest.fixture(scope="module")
def found():
    batch, d_io, hidden = wf.dims(batch=2**16, d_io=2**12, hidden=2**14)

    def large(x, w, v):
        return wf.einsum(wf.relu(wf.einsum(x, w, over=d_io)), v, over=hidden)

    args = shape(batch, d_io), shape(d_io, hidden), shape(hidden, d_io)
    return wf.search(large, *args, processors=8, hardware="h100", dims=["batch", "hidden", "d_io"], memory=20 * 10**8)


def test_a_search_has_a_page_with_its_front_and_the_best_marked(found):
    read = Read(found.page())
    dots = [attrs for tag, attrs in read.tags if tag == "circle" and "data-row" in attrs]
    assert len(dots) >= len(found.plans)
    assert [dot["class"].split()[1:] for dot in dots if "best" in dot["class"]] == [["best", "on-front"]]
    assert sum("on-front" in dot["class"] for dot in dots) == len(found.front) and found.front[0] == found.best
    assert sum("unfit" in dot["class"] for dot in dots) >= sum(not plan.fits for plan in found.plans) > 0
    assert all(str(plan.layout) in read.text for plan in (*found.plans, *found.front))


def test_the_chart_of_a_search_is_walked_and_read_and_fits_a_phone(window, tmp_path, found):
    window.open(found.page().save(tmp_path / "search.html"))
    window.run("document.querySelector('.chart').focus()")
    window.press("Right")
    assert window.text(".readout").startswith(f"{found.best.mesh} under {found.best.layout}: ")
    assert window.run("return document.querySelectorAll('.plans tr.here').length") == 1
    for scheme in ("dark", "light"):
        window.scheme(scheme)
        assert window.run(CONTRAST)[0] >= 4.5
    window.size(390, 844)
    wide = window.run("return document.documentElement.scrollWidth - innerWidth")
    window.size(1366, 768)
    assert wide <= 0 and window.complaints() == []


def test_a_notebook_shows_a_program_a_plan_and_a_search_in_a_frame(window, tmp_path, found):
    program = traced()
    plan = Plan(program, "h100")
    assert program.page() == page(program) and plan.page(plan) == page(program, plan, program, plan)
    for shown in (program, plan, found):
        read = Read(shown._repr_html_())
        ((tag, attrs),) = read.tags
        assert tag == "iframe" and attrs["srcdoc"] == shown.page() and attrs["sandbox"] == "allow-scripts"
    (tmp_path / "cell.html").write_text(f"<p>In [1]:</p>{plan._repr_html_()}")
    window.open(tmp_path / "cell.html")
    window.do("POST", "frame", id=0)
    click_row(window, "einsum(h, v)")
    assert "4 slices of 128 B" in window.text(".how")
    window.do("POST", "frame", id=None)
    assert window.complaints() == []


def test_a_page_is_saved_and_opened(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(notebook.webbrowser, "open", opened.append)
    text = traced().page()
    path = text.open()
    assert opened == [path.as_uri()] and path.read_text() == text
    path.unlink()
    with pytest.raises(wf.WeftError, match="cannot be written: No such file") as error:
        text.save(tmp_path / "not" / "there.html")
    assert error.value.fix == "name a file in a folder that is there"


VIEWS = ["compare", "program", "sent", "memory", "time", "turns"]

# The least contrast of any text in sight, by the WCAG's formula, and what has it. What lies behind a letter is painted
# layer by layer into one pixel, so that every way of writing a colour is read as the browser reads it.
CONTRAST = """
const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const paint = (layers, over) => {
  pixel.globalAlpha = 1;
  pixel.fillStyle = "#fff";
  pixel.fillRect(0, 0, 1, 1);
  for (const [colour, alpha] of [...layers, ...over]) {
    pixel.globalAlpha = alpha;
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
  }
  const [r, g, b] = [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
let worst = [99, ""];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; node = walker.nextNode();) {
  const element = node.parentElement;
  if (!node.data.trim() || !element.checkVisibility() || element.closest("svg, script, style, .unseen")) continue;
  const layers = [];
  let opacity = 1;
  for (let each = element; each; each = each.parentElement) {
    const style = getComputedStyle(each);
    layers.unshift([style.backgroundColor, 1]);
    opacity *= Number(style.opacity);
  }
  const behind = paint(layers, []), letter = paint(layers, [[getComputedStyle(element).color, opacity]]);
  const ratio = (Math.max(behind, letter) + 0.05) / (Math.min(behind, letter) + 0.05);
  if (ratio < worst[0]) worst = [ratio, `${element.className}: ${node.data.slice(0, 40)}`];
}
return worst;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(opened, staged, ring, scheme):
    window = opened(staged, Plan(staged, "h100"), ring, Plan(ring, "h100"))
    window.scheme(scheme)
    least = {}
    for view in VIEWS:
        window.click(f"#tab-{view}")
        least[view] = window.run(CONTRAST)
    window.scheme("light")
    assert {view: found for view, found in least.items() if found[0] < 4.5} == {}


@pytest.mark.parametrize("width", [390, 768])
def test_the_page_is_no_wider_than_a_phone(opened, staged, ring, width):
    window = opened(staged, Plan(staged, "h100"), ring, Plan(ring, "h100"))
    window.size(width, 844)
    try:
        wide = {}
        for view in VIEWS:
            window.click(f"#tab-{view}")
            wide[view] = window.run("return document.documentElement.scrollWidth - innerWidth")
    finally:
        window.size(1366, 768)
    assert {view: more for view, more in wide.items() if more > 0} == {}


def test_the_turns_are_walked_with_the_arrow_keys(opened, staged):
    window = opened(staged)
    window.click("#tab-turns")
    window.run("document.querySelector('.turns').focus()")
    window.press("Right", "Right", "Down")
    assert window.text("#turns .readout") == "tick 1, processor 1: microbatch 0 in stage 1"


def test_nothing_hostile_runs(opened):
    program = wf.trace(hostile, {HOSTILE: shape(BATCH)}, mesh="rows=2", layout="batch:rows")
    program.name = HOSTILE
    window = opened(program, against=program)
    window.click("#tab-program")
    click_row(window, "relu(")
    assert window.run("return typeof hacked") == "undefined"
    assert window.text("h1") == HOSTILE
    assert "</script><b>hi</b>" in window.text("#shown-source")


@pytest.mark.quick("rows=16,cols=32")
@pytest.mark.parametrize("mesh", ["rows=16,cols=32", "x=8,y=8,z=8", pytest.param("x=512", marks=pytest.mark.slow)])
def test_every_processor_of_a_large_mesh_is_in_sight(opened, mesh):
    axis = wf.Mesh(mesh).axes
    window = opened(traced(f"batch:{next(iter(axis))}" if len(axis) > 1 else "", mesh))
    boxes = window.run(
        """const all = document.querySelector(".grid").getBoundingClientRect();
        return [...document.querySelectorAll(".cell rect")].map(cell => cell.getBoundingClientRect()).map(({
            width, left, right, top, bottom
        }) => [width, left - all.left, all.right - right, top - all.top, all.bottom - bottom])"""
    )
    assert len(boxes) == 512
    assert min(box[0] for box in boxes) > 4 and min(min(box[1:]) for box in boxes) > -1
