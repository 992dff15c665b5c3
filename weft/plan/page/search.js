"use strict";

// The chart of a search: the point that is pointed at or walked to says what it is, and its row is marked.

const chart = document.querySelector(".chart"), readout = document.querySelector(".readout");
const dots = [...chart.querySelectorAll(".dot")].sort((a, b) => a.dataset.row - b.dataset.row);
const rows = [...document.querySelectorAll(".plans tbody tr")];
let at = -1;

function show(i, isWalked) {
  if (i < 0 || i >= dots.length) return;
  for (const each of [...dots, ...rows]) each.classList.remove("here");
  at = i;
  dots[at].classList.add("here");
  rows[at].classList.add("here");
  readout.textContent = dots[at].querySelector("title").textContent;
  if (isWalked) rows[at].scrollIntoView({ block: "nearest" });
}

for (const dot of dots) dot.addEventListener("pointerenter", () => show(Number(dot.dataset.row), false));
for (const [i, row] of rows.entries()) row.addEventListener("pointerenter", () => show(i, false));
chart.addEventListener("keydown", event => {
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: dots.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  show(Math.max(0, Math.min(next, dots.length - 1)), true);
});
