"use strict";

// The mesh as a picture: a cell a processor, coloured by the slice it holds or by the group it talks with.

const SVG = "http://www.w3.org/2000/svg";

function made(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const key in attributes) found.setAttribute(key, attributes[key]);
  found.append(...children);
  return found;
}

function drawn(name, attributes = {}, text = "") {
  const found = document.createElementNS(SVG, name);
  for (const key in attributes) found.setAttribute(key, attributes[key]);
  if (text) found.textContent = text;
  return found;
}

const product = numbers => numbers.reduce((all, each) => all * each, 1);

// Where a processor stands on each axis; the last axis counts fastest.
function coordinates(axes, processor) {
  const found = [];
  for (let i = axes.length - 1; i >= 0; i--) {
    found[i] = processor % axes[i][1];
    processor = Math.floor(processor / axes[i][1]);
  }
  return found;
}

// Where a number counted over several axes stands, the first of them counting slowest.
function counted(axes, names, at) {
  let found = 0;
  for (const name of names) {
    const i = axes.findIndex(axis => axis[0] === name);
    found = found * axes[i][1] + at[i];
  }
  return found;
}

const waysOf = (axes, names) => product(names.map(name => axes.find(axis => axis[0] === name)[1]));

// Where each cell lies: the last two axes make a grid, those before them a panel for each of their places.
function arranged(axes, wide, most) {
  const long = axes.map(([name, size], i) => ({ name, size, i })).filter(axis => axis.size > 1);
  let across = long.at(-1) ?? { name: axes[0][0], size: 1, i: 0 }, down = long.at(-2);
  const panels = long.slice(0, -2);
  if (down && down.size > 8 && down.size > 2 * across.size) [down, across] = [across, down];
  let widest = across.size <= 256 ? 16 : 32;
  if (down) widest = across.size > 32 && down.size * Math.ceil(across.size / 32) <= 32 ? 32 : 64;
  const columns = Math.min(across.size, widest), bands = Math.ceil(across.size / columns);
  const rows = (down?.size ?? 1) * bands, count = product(panels.map(axis => axis.size));
  const beside = panelsBeside(count, columns, rows);
  const left = down ? 40 : 4, top = 34, apart = panels.length ? 10 : 0, title = panels.length ? 15 : 0;
  const stacked = Math.ceil(count / beside);
  const free = wide - left - 4 - apart * (beside - 1);
  const w = Math.min(200, free / (columns * beside));
  const tall = most / (rows * stacked);
  const h = Math.max(4, Math.min(w < 30 ? w : Math.min(46, Math.max(30, w)), tall));
  const band = bands > 1 && down ? 20 : 0;
  const panelWide = columns * w + apart, panelTall = rows * h + band * (bands - 1) + title + (panels.length ? 8 : 0);
  const cells = [], total = product(axes.map(axis => axis[1]));
  for (let processor = 0; processor < total; processor++) {
    const at = coordinates(axes, processor);
    const panel = panels.reduce((all, axis) => all * axis.size + at[axis.i], 0);
    const part = Math.floor(at[across.i] / columns);
    cells.push({
      x: left + panel % beside * panelWide + at[across.i] % columns * w,
      y: top + title + Math.floor(panel / beside) * panelTall + part * band
        + (part * (down?.size ?? 1) + (down ? at[down.i] : 0)) * h,
      at,
    });
  }
  const heads = [];
  for (let panel = 0; panel < count && panels.length; panel++) {
    const at = coordinates(panels.map(axis => [axis.name, axis.size]), panel);
    const text = panels.map((axis, i) => `${axis.name}=${at[i]}`).join(" ");
    heads.push({ text, x: left + panel % beside * panelWide, y: top + 10 + Math.floor(panel / beside) * panelTall });
  }
  return {
    cells, heads, across, down, w, h, left, top: top + title, columns, bands, band,
    width: left + beside * panelWide - apart + 4, height: top + stacked * panelTall + 4,
  };
}

// How many panels stand beside each other: a divisor that makes the whole about as wide as the room for it.
function panelsBeside(count, columns, rows) {
  let best = 1, least = Infinity;
  for (let beside = 1; beside <= count; beside++) {
    if (count % beside) continue;
    const shape = Math.abs(Math.log(beside * columns / (count / beside * rows) / 1.7));
    if (shape < least) [best, least] = [beside, shape];
  }
  return best;
}

// A colour for a place among several: lightness rises with it, so that it reads without hues too. The first number
// turns the hue, the others the lightness.
function colour(places) {
  const split = places.filter(([, n]) => n > 1);
  if (!split.length) return { fill: "var(--whole)", ink: "var(--ink)" };
  const share = ([i, n]) => i / (n - 1), [first, ...rest] = split;
  let light = 0.46 + 0.42 * share(first);
  if (rest.length) {
    const n = product(rest.map(each => each[1])), i = rest.reduce((all, each) => all * each[1] + each[0], 0);
    light = 0.44 + 0.44 * i / (n - 1);
  }
  const hue = 265 - 175 * share(first);
  const strong = 0.125 - 0.16 * Math.abs(light - 0.58);
  return { fill: `oklch(${light.toFixed(3)} ${strong.toFixed(3)} ${hue.toFixed(1)})`, ink: light > 0.64 ? "#14171c" : "#ffffff" };
}

// What a processor holds of a tensor: the place of its slice along each split dim, and its range along every dim.
function sliceOf(tensor, axes, at) {
  const places = [], ranges = [];
  for (const { name, size, axes: over } of tensor.dims) {
    const ways = waysOf(axes, over), i = counted(axes, over, at);
    if (over.length) places.push([i, ways]);
    if (size === null) ranges.push({ name, split: ways > 1, text: ways > 1 ? `part ${i + 1} of ${ways}` : "all" });
    else ranges.push({ name, split: ways > 1, text: ways > 1 ? range(i * size / ways, (i + 1) * size / ways) : `all ${size}` });
  }
  return { key: places.map(place => place[0]).join(","), places, ranges };
}

const range = (from, to) => to - from === 1 ? `${from}` : `${from}–${to - 1}`;

// Who takes part in one call of a collective with a processor: those that stand elsewhere on its axes alone.
function groupOf(over, axes, at) {
  const others = axes.map((axis, i) => [axis, i]).filter(([axis]) => !over.includes(axis[0]));
  const places = others.map(([axis, i]) => [at[i], axis[1]]);
  return { key: places.map(place => place[0]).join(","), places, ranges: [] };
}

// One mesh on the page.
class MeshPicture {
  constructor(side, colours, most, hint) {
    Object.assign(this, { axes: side.mesh, slow: side.slow, colours, hint });
    this.shape = arranged(side.mesh, 404, most);
    this.svg = drawn("svg", { class: "grid", tabindex: 0, role: "group", viewBox: `0 0 ${this.shape.width} ${this.shape.height}` });
    this.svg.style.maxWidth = `${this.shape.width}px`;
    this.links = drawn("g", { class: "links" });
    this.cells = this.shape.cells.map((cell, processor) => this.cell(cell, processor));
    this.svg.append(...this.cells.map(cell => cell.group), ...this.names(), this.links);
    this.told = made("p", { class: "processor", "aria-live": "polite" });
    this.how = made("p", { class: "how" });
    this.leave();
    this.svg.addEventListener("pointerover", event => this.point(event.target.closest("[data-p]"), false));
    this.svg.addEventListener("pointerleave", () => { if (!this.kept) this.leave(); });
    this.svg.addEventListener("click", event => this.point(event.target.closest("[data-p]"), true));
    this.svg.addEventListener("keydown", event => this.key(event));
    this.svg.addEventListener("focus", () => { if (this.at === null && this.svg.matches(":focus-visible")) this.go(0, true); });
  }

  cell({ x, y }, processor) {
    const { w, h } = this.shape, gap = Math.min(w, h) > 12 ? 2 : 1;
    const group = drawn("g", { "data-p": processor, class: "cell" });
    const rect = drawn("rect", { x, y, width: w - gap, height: h - gap, rx: Math.min(4, w / 5) });
    group.append(rect);
    return { group, rect, x: x + (w - gap) / 2, y: y + (h - gap) / 2, words: [] };
  }

  // The names of the axes, and the numbers along them where there is room.
  names() {
    const { across, down, w, h, left, top, columns, heads, bands, band } = this.shape, found = [];
    const name = (axis, x, y, mark) => {
      const slow = this.slow.includes(axis.name) ? " (host to host)" : "";
      const text = drawn("text", { x, y, class: `axis-name a${this.colours[axis.name]}` }, `${axis.name}${slow}${mark}`);
      found.push(text);
      return text;
    };
    name(across, left, 12, " →");
    if (down) name(down, 0, 0, " →").setAttribute("transform", `translate(10 ${top}) rotate(90)`);
    for (const { text, x, y } of heads) found.push(drawn("text", { x, y, class: "tick" }, text));
    if (heads.length) return found;
    const every = size => [1, 2, 4, 8, 16, 32, 64, 128].find(step => step * size >= 22) ?? 256;
    for (let i = 0; i < across.size && across.size > 1 && (bands === 1 || down); i += every(w)) {
      const y = top - 6 + Math.floor(i / columns) * ((down?.size ?? 1) * h + band);
      found.push(drawn("text", { x: left + (i % columns + 0.5) * w - 1, y, class: "tick middle" }, String(i)));
    }
    for (let part = 0; down && part < bands; part++)
      for (let i = 0; i < down.size; i += every(h * 1.4)) {
        const y = top + part * (down.size * h + band) + (i + 0.5) * h + 3;
        found.push(drawn("text", { x: left - 7, y, class: "tick end" }, String(i)));
      }
    return found;
  }

  // Colours the cells by what each holds of a tensor.
  showTensor(tensor) {
    this.show(at => sliceOf(tensor, this.axes, at), this.howHeld(tensor));
    this.links.replaceChildren();
    this.say = found => `holds ${tensor.dims.length ? found.ranges.map(each => `${each.name} ${each.text}`).join(", ") : "the one value"}`
      + (tensor.local ? ` (${tensor.local})` : "");
    this.alike = ["copy", "copies"];
    this.svg.setAttribute("aria-label", `the mesh: which processor holds which slice of ${tensor.type}`);
    this.go(this.at, this.kept);
  }

  howHeld(tensor) {
    const total = this.cells.length, slices = product(tensor.dims.map(dim => waysOf(this.axes, dim.axes)));
    const size = tensor.local ? ` of ${tensor.local}` : "", copies = total / slices;
    if (total === 1) return `All of it on the one processor${tensor.local ? `: ${tensor.local}` : ""}.`;
    if (slices === 1) return `Whole on every processor: ${total} copies${size}.`;
    if (copies === 1) return `${slices} slices${size}, each on one processor: no copies.`;
    const used = tensor.dims.flatMap(dim => dim.axes);
    const along = this.axes.filter(axis => axis[1] > 1 && !used.includes(axis[0])).map(axis => axis[0]).join(" and ");
    return `${slices} slices${size}, each held ${copies} times: copies along ${along}.`;
  }

  // Colours the cells by who talks with whom in a collective.
  showGroups(over) {
    const ways = waysOf(this.axes, over), groups = this.cells.length / ways;
    const text = groups === 1 ? `All ${ways} processors take part in each call.` : `${groups} groups of ${ways}: a colour is one group.`;
    this.show(at => groupOf(over, this.axes, at), text);
    this.link();
    this.say = () => `sends within its group, over ${over.join("+")}`;
    this.alike = ["other of its group", "others of its group"];
    this.svg.setAttribute("aria-label", `the mesh: which processors send to each other over ${over.join("+")}`);
    this.go(this.at, this.kept);
  }

  show(found, how) {
    this.found = this.shape.cells.map(cell => found(cell.at));
    this.how.textContent = how;
    this.cells.forEach((cell, processor) => {
      const { key, places, ranges } = this.found[processor], { fill, ink } = colour(places);
      cell.group.dataset.slice = key;
      cell.rect.style.fill = fill;
      for (const word of cell.words) word.remove();
      cell.words = this.words(cell, places, ranges, ink);
      cell.group.append(...cell.words);
    });
  }

  // What stands in a cell: its ranges where there is room, else the number of its slice.
  words(cell, places, ranges, ink) {
    const { w, h } = this.shape, split = ranges.filter(each => each.split);
    const lines = split.map(each => `${each.name} ${each.text}`), longest = Math.max(0, ...lines.map(line => line.length));
    const fits = lines.length && w > longest * 6 + 8 && h > lines.length * 13 + 2;
    const short = places.filter(place => place[1] > 1).map(place => place[0]).join(",");
    const shown = fits ? lines : short && w > short.length * 7 + 6 && h > 15 ? [short] : [];
    return shown.map((line, i) => {
      const word = drawn("text", { x: cell.x, y: cell.y + 3.5 + (i - (shown.length - 1) / 2) * 13, class: "word" }, line);
      word.style.fill = ink;
      return word;
    });
  }

  // Lines between the members of each group, where the mesh is small.
  link() {
    this.links.replaceChildren();
    if (this.cells.length > 64) return;
    const groups = Map.groupBy ? Map.groupBy(this.cells, cell => cell.group.dataset.slice) : new Map();
    for (const members of groups.values()) {
      const path = members.map((cell, i) => `${i ? "L" : "M"}${cell.x} ${cell.y}`).join("");
      this.links.append(drawn("path", { d: path }), ...members.map(cell => drawn("circle", { cx: cell.x, cy: cell.y, r: 4 })));
    }
  }

  point(cell, keep) {
    if (!cell || (this.kept && !keep)) return;
    const processor = Number(cell.dataset.p);
    if (keep && this.kept && this.at === processor) return this.leave();
    this.go(processor, keep);
  }

  go(processor, keep) {
    this.at = processor;
    this.kept = keep;
    if (processor === null) return this.leave();
    const { key } = this.found[processor], same = this.found.filter(each => each.key === key).length - 1;
    this.svg.classList.add("pointed");
    this.cells.forEach(({ group }, i) => {
      group.classList.toggle("here", i === processor);
      group.classList.toggle("same", this.found[i].key === key);
    });
    const at = this.shape.cells[processor].at.map((i, axis) => `${this.axes[axis][0]}=${i}`).join(" ");
    const others = `; ${same || "no"} ${this.alike[same === 1 ? 0 : 1]}`;
    this.told.textContent = `Processor ${processor} (${at}) ${this.say(this.found[processor])}${others}.`;
  }

  leave() {
    this.at = null;
    this.kept = false;
    this.svg.classList.remove("pointed");
    for (const { group } of this.cells) group.classList.remove("here", "same");
    this.told.textContent = this.cells.length > 1 ? this.hint : "";
  }

  key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    this.go(this.at === null ? 0 : this.next(way), true);
  }

  // The nearest cell in a direction.
  next([dx, dy]) {
    const from = this.cells[this.at];
    let best = this.at, least = Infinity;
    this.cells.forEach((cell, i) => {
      const along = (cell.x - from.x) * dx + (cell.y - from.y) * dy;
      const aside = Math.abs((cell.x - from.x) * dy) + Math.abs((cell.y - from.y) * dx);
      if (along > 1 && along + 4 * aside < least) [best, least] = [i, along + 4 * aside];
    });
    return best;
  }
}
