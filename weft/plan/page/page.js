
// The page: lines that can be walked and picked, a filter, views, and what is shown for the line that is picked.

const told = JSON.parse(document.getElementById("told").textContent);
const byId = id => document.getElementById(id);
const AROUND = 5;

// What is picked.

const HINT = "Point at a processor, or press m and walk with the arrow keys.";
const pictures = told.sides.map((side, i) => new MeshPicture(side, told.axes, told.sides.length > 1 ? 136 : 360, i ? "" : HINT));

function showPick(pick) {
  byId("inspector").hidden = false;
  byId("picked").textContent = pick.title;
  byId("note").textContent = pick.note;
  const parts = pick.parts.filter(part => part.tensors.length || part.axes.length);
  byId("meshes").replaceChildren(...parts.map(meshOf));
  showSource(pick.source);
}

function meshOf(part) {
  const side = told.sides[part.side], picture = pictures[part.side];
  const type = made("p", { class: "type" }), chips = made("div", { class: "chips", role: "group", "aria-label": "what is drawn" });
  const shown = [];
  const choose = (chip, show, text) => {
    for (const other of shown) other.setAttribute("aria-pressed", String(other === chip));
    type.textContent = text;
    show();
  };
  const add = (label, text, show) => {
    const chip = made("button", { type: "button", "aria-pressed": "false" }, label);
    chip.addEventListener("click", () => choose(chip, show, text));
    shown.push(chip);
    return () => choose(chip, show, text);
  };
  const starts = [];
  if (part.axes.length) starts.push(add("who sends to whom", `over ${part.axes.join("+")}`, () => picture.showGroups(part.axes)));
  for (const [label, number] of part.tensors) {
    const tensor = side.tensors[number];
    starts.push(add(label, sizes(tensor), () => picture.showTensor(tensor)));
  }
  chips.append(...shown);
  const found = made("figure", { class: "mesh", "data-side": part.side });
  if (told.sides.length > 1) {
    const caption = made("figcaption", {}, made("b", { class: "letter" }, "AB"[part.side]), ` ${side.title}`);
    found.append(caption);
  }
  found.append(chips, type, picture.svg, picture.how, picture.told);
  starts[0]();
  return found;
}

// A type with the sizes of its dims.
function sizes(tensor) {
  const dims = tensor.dims.map(({ name, size, axes }) =>
    `${name}${size === null ? "" : `=${size}`}${axes.length ? `/${axes.join("+")}` : ""}`);
  return `${tensor.dtype}[${dims.join(" ")}]${tensor.whole ? `  ${tensor.whole} in all` : ""}`;
}

function showSource(link) {
  const line = link && byId(link), place = byId("shown-source");
  place.replaceChildren();
  if (!line) return;
  const block = line.parentNode, at = Number(line.dataset.n), text = made("pre");
  for (const each of block.querySelectorAll("code")) {
    const n = Number(each.dataset.n);
    if (Math.abs(n - at) > AROUND) continue;
    const shown = made("code", n === at ? { class: "meant", "data-n": n } : { "data-n": n });
    shown.textContent = each.textContent;
    text.append(shown);
  }
  place.append(made("h3", {}, `${block.dataset.file}:${at}`), text);
}

// Lists of lines.

class List {
  constructor(root) {
    this.root = root;
    this.rows = [...root.querySelectorAll(".row")];
    this.words = null;
    this.closed = new Set(this.rows.filter(row => row.classList.contains("fold") || "closed" in row.dataset));
    for (const row of this.rows) row.setAttribute("aria-selected", "false");
    root.addEventListener("click", event => this.click(event));
    root.addEventListener("keydown", event => this.key(event));
    root.addEventListener("focusin", event => this.enter(event.target.closest(".row")));
    this.arrange();
  }

  level(row) { return Number(row.getAttribute("aria-level") ?? 1); }

  get shown() { return this.rows.filter(row => !row.hidden); }

  // Hides what is folded away, or what the filter does not let through; what stands around a match stays.
  arrange(words = "", only = false) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean), filtered = wanted.length > 0 || only;
    let below = Infinity, folded = false, matches = 0;
    const around = [];
    for (const row of this.rows) {
      const level = this.level(row);
      if (filtered) {
        const isHead = row.hasAttribute("aria-expanded");
        around[level] = row;
        around.length = level + 1;
        const text = row.textContent.toLowerCase();
        const fits = wanted.every(word => text.includes(word)) && (!only || row.classList.contains("collective"));
        row.hidden = !fits || row.classList.contains("fold");
        if (row.hidden || isHead && only) continue;
        matches += 1;
        for (const outer of around) if (outer && this.isHead(outer)) outer.hidden = false;
        continue;
      }
      if (level <= below) below = Infinity;
      if (row.classList.contains("fold")) folded = this.closed.has(row);
      row.hidden = level > below || folded && row.classList.contains("alike");
      if (!row.hidden && this.closed.has(row) && !row.classList.contains("fold")) below = level;
    }
    for (const row of this.rows) if (this.isHead(row)) row.setAttribute("aria-expanded", String(filtered || !this.closed.has(row)));
    const shown = this.shown;
    if (!shown.some(row => row.tabIndex === 0)) this.enter(shown[0]);
    return { matches, all: this.rows.filter(row => row.dataset.pick !== undefined).length };
  }

  isHead(row) { return row.hasAttribute("aria-expanded") || row.classList.contains("section"); }

  enter(row) {
    if (!row) return;
    for (const other of this.rows) if (other.tabIndex === 0) other.tabIndex = -1;
    row.tabIndex = 0;
  }

  toggle(row, open = this.closed.has(row)) {
    if (!row.hasAttribute("aria-expanded")) return;
    if (open) this.closed.delete(row); else this.closed.add(row);
    this.arrange();
  }

  pick(row) {
    if (row.dataset.pick === undefined) return;
    for (const other of document.querySelectorAll('.row[aria-selected="true"]')) other.setAttribute("aria-selected", "false");
    row.setAttribute("aria-selected", "true");
    this.enter(row);
    showPick(told.picks[Number(row.dataset.pick)]);
  }

  go(row) {
    if (!row) return;
    row.focus();
    row.scrollIntoView({ block: "nearest" });
    this.pick(row);
  }

  click(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    if (event.target.closest("a.source")) event.preventDefault();
    else if (row.hasAttribute("aria-expanded")) this.toggle(row);
    row.focus();
    this.pick(row);
  }

  key(event) {
    const row = event.target.closest(".row");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const shown = this.shown, at = shown.indexOf(row);
    const step = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 15, PageUp: at - 15, Home: 0, End: shown.length - 1 }[event.key];
    if (step !== undefined) this.go(shown[Math.max(0, Math.min(step, shown.length - 1))]);
    else if (event.key === "Enter" || event.key === " ") {
      this.toggle(row);
      this.pick(row);
    } else if (event.key === "ArrowRight") this.toggle(row, true);
    else if (event.key === "ArrowLeft") {
      if (row.hasAttribute("aria-expanded") && !this.closed.has(row)) this.toggle(row, false);
      else this.go(shown.slice(0, at).reverse().find(other => this.level(other) < this.level(row)));
    } else return;
    event.preventDefault();
  }

  // The next line of some kind, before or after where the focus is.
  jump(kinds, way) {
    const shown = this.shown, at = shown.findIndex(row => row.tabIndex === 0);
    const there = way > 0 ? shown.slice(at + 1) : shown.slice(0, Math.max(at, 0)).reverse();
    this.go(there.find(row => row.matches(kinds)));
  }
}

const lists = new Map([...document.querySelectorAll(".list")].map(root => [root, new List(root)]));

// Views.

const tabs = [...document.querySelectorAll('[role="tab"]')];
let view = "";

function open(name) {
  view = name;
  for (const tab of tabs) {
    const isOpen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(isOpen));
    tab.tabIndex = isOpen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).classList.toggle("open", isOpen);
  }
  byId("collectives").hidden = !byId(name).querySelector(".collective");
  filter();
}

const here = () => [...lists.values()].filter(list => byId(view).contains(list.root));

for (const tab of tabs) {
  tab.addEventListener("click", event => { event.preventDefault(); open(tab.getAttribute("aria-controls")); });
  tab.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1, " ": 0 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    open(next.getAttribute("aria-controls"));
    next.focus();
  });
}

// The filter.

function filter() {
  const words = byId("filter").value, toggle = byId("collectives");
  const only = !toggle.hidden && toggle.getAttribute("aria-pressed") === "true";
  const counts = here().map(list => list.arrange(words, only));
  const sum = key => counts.reduce((all, each) => all + each[key], 0);
  byId("matches").textContent = words.trim() || only ? `${sum("matches")} of ${sum("all")}` : "";
}

byId("filter").addEventListener("input", filter);
byId("filter").addEventListener("keydown", event => {
  if (event.key !== "ArrowDown" && event.key !== "Enter") return;
  event.preventDefault();
  const list = here()[0];
  list?.go(list.shown.find(row => row.dataset.pick !== undefined));
});
byId("collectives").addEventListener("click", () => {
  const button = byId("collectives");
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  filter();
});

// Light and dark.

const remembered = { get() { try { return localStorage.getItem("weft-theme"); } catch { return null; } },
  set(theme) { try { localStorage.setItem("weft-theme", theme); } catch { /* a page from a file may have no storage */ } } };
const dark = matchMedia("(prefers-color-scheme: dark)");

const theme = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");

function paint() { byId("theme").textContent = theme() === "dark" ? "Light" : "Dark"; }

byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
  remembered.set(theme());
  paint();
});
dark.addEventListener("change", paint);
if (["light", "dark"].includes(remembered.get())) document.documentElement.dataset.theme = remembered.get();
paint();

// Memory over the program's course.

for (const chart of document.querySelectorAll(".course")) {
  const { course } = told.sides[Number(chart.dataset.side)];
  const plot = chart.querySelector(".plot"), cursor = chart.querySelector(".cursor"), readout = chart.querySelector(".readout");
  let at = Number(chart.dataset.peak);
  const go = i => {
    at = Math.max(0, Math.min(i, course.length - 1));
    cursor.hidden = false;
    cursor.style.left = `${(at + 0.5) / course.length * 100}%`;
    readout.textContent = course[at][1];
    chart.setAttribute("aria-valuenow", String(at));
    chart.setAttribute("aria-valuetext", course[at][1]);
  };
  const show = () => showPick({ title: course[at][1], note: "a moment of the program's course", parts: [], source: course[at][2] });
  plot.addEventListener("pointermove", event => {
    const { left, width } = plot.getBoundingClientRect();
    go(Math.floor((event.clientX - left) / width * course.length));
  });
  plot.addEventListener("click", show);
  chart.addEventListener("keydown", event => {
    const step = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: course.length - 1 }[event.key];
    if (step !== undefined) go(step);
    else if (event.key === "Enter") show();
    else return;
    event.preventDefault();
  });
}

// Who works on what at which turn: the cell that is pointed at or walked to says so.

for (const grid of document.querySelectorAll(".turns")) {
  const rows = [...grid.querySelectorAll("tbody tr")].map(row => [...row.querySelectorAll("td[title]")]).filter(row => row.length);
  const readout = grid.nextElementSibling;
  let at = null;
  const go = cell => {
    if (!cell) return;
    at?.classList.remove("here");
    at = cell;
    at.classList.add("here");
    at.scrollIntoView({ block: "nearest", inline: "nearest" });
    readout.textContent = at.title;
  };
  grid.addEventListener("pointerover", event => {
    const cell = event.target.closest("td[title]");
    if (cell) readout.textContent = cell.title;
  });
  grid.addEventListener("click", event => go(event.target.closest("td[title]")));
  grid.addEventListener("keydown", event => {
    const [x, y] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] ?? [];
    if (x === undefined) return;
    event.preventDefault();
    const row = Math.max(0, rows.findIndex(row => row.includes(at))), column = Math.max(0, rows[row].indexOf(at));
    go(at ? rows[row + y]?.[column + x] : rows[0][0]);
  });
}

// Keys that work everywhere.

function help(isOpen) {
  byId("keys").hidden = !isOpen;
  byId("help").setAttribute("aria-expanded", String(isOpen));
}

byId("help").addEventListener("click", () => help(byId("keys").hidden));

function escape() {
  const list = here()[0];
  if (!byId("keys").hidden) return help(false);
  if (byId("filter").value || document.activeElement === byId("filter")) {
    byId("filter").value = "";
    filter();
    return list?.rows.find(row => row.tabIndex === 0)?.focus();
  }
  for (const picture of pictures) picture.leave();
}

const KINDS = { compare: ".changed, .only-a, .only-b" };

document.addEventListener("keydown", event => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Escape") { event.preventDefault(); return escape(); }
  if (event.target.matches("input")) return;
  const act = {
    "/": () => byId("filter").focus(),
    "?": () => help(byId("keys").hidden),
    c: () => byId("collectives").click(),
    t: () => byId("theme").click(),
    m: () => byId("meshes").querySelector("svg")?.focus(),
    n: () => here()[0]?.jump(KINDS[view] ?? ".collective, .held, .timed", 1),
    p: () => here()[0]?.jump(KINDS[view] ?? ".collective, .held, .timed", -1),
  }[event.key] ?? (tabs[Number(event.key) - 1] && (() => tabs[Number(event.key) - 1].click()));
  if (!act) return;
  event.preventDefault();
  act();
});

// What the page opens with: a line whose tensor is split, so that the mesh has something to show. On a phone, where what
// is picked lies over the lines, nothing.

open(tabs.some(tab => `#${tab.getAttribute("aria-controls")}` === location.hash) ? location.hash.slice(1) : tabs[0].getAttribute("aria-controls"));
{
  const list = here()[0], wanted = view === "compare" ? KINDS.compare : ".op:not(.argument)";
  const isSplit = row => told.picks[Number(row.dataset.pick)].parts.some(part =>
    part.tensors.slice(0, 1).some(([, number]) => told.sides[part.side].tensors[number].dims.some(dim => dim.axes.length)));
  const rows = list?.shown.filter(row => row.dataset.pick !== undefined && row.matches(wanted)) ?? [];
  const first = rows.find(isSplit) ?? rows[0];
  if (first && !matchMedia("(max-width: 600px)").matches) list.pick(first);
}
