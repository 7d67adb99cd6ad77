"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const COLORS = 7; // then grey: more hues than these can't be told apart
const tip = document.getElementById("tip");
const hidden = new Set();

const color = run => `var(--c${run < COLORS ? run : COLORS})`;
const name = run => data.runs[run].name;
const number = text => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
const short = value => {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e4) return `${+(value / 1000).toPrecision(3)}k`;
  return size < 1e-3 ? value.toExponential().replace("e-", "e−") : `${+value.toPrecision(4)}`;
};
const exact = value => value.toPrecision(4).replace("-", "−");

function element(tag, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "path", "line", "circle", "text", "rect"].includes(tag);
  const made = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/* A scale maps a value to pixels and knows its ticks. */
function linear(low, high, from, to, count = 6) {
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const raw = (high - low) / count, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(it => it * size).find(it => it >= raw);
  const ticks = [];
  for (let it = Math.ceil(low / step - 1e-9) * step; it <= high + step * 1e-6; it += step) ticks.push(+it.toPrecision(12));
  return { at: value => from + ((value - low) / (high - low)) * (to - from), ticks };
}
function logarithmic(values, from, to) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log);
  return { at: value => from + ((Math.log(value) - low) / (high - low)) * (to - from), ticks: distinct(values) };
}
function categories(values, from, to) {
  const names = [...new Set(values)];
  return { at: value => from + ((names.indexOf(value) + 0.5) / names.length) * (to - from), ticks: names };
}
const distinct = values => [...new Set(values)].sort((a, b) => a - b);

/* One chart: axes, and room for what is drawn in them. */
function frame(figure, width, height, x, y, title, note, xName) {
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${note}` });
  for (const tick of y.ticks) {
    svg.append(element("line", { class: "grid", x1: 44, x2: width - 10, y1: y.at(tick), y2: y.at(tick) }));
    svg.append(element("text", { x: 38, y: y.at(tick) + 4, "text-anchor": "end" }, y.text ? y.text(tick) : short(tick)));
  }
  svg.append(element("line", { class: "axis", x1: 44, x2: width - 10, y1: height - 34, y2: height - 34 }));
  let free = -Infinity; // ticks that would touch the one before them go without words
  for (const tick of x.ticks) {
    const label = x.text ? x.text(tick) : typeof tick === "number" ? short(tick) : tick, at = x.at(tick), half = label.length * 3.4;
    svg.append(element("line", { class: "axis", x1: at, x2: at, y1: height - 34, y2: height - 30 }));
    if (at - half < free) continue;
    svg.append(element("text", { x: at, y: height - 17, "text-anchor": "middle" }, label));
    free = at + half + 6;
  }
  svg.append(element("text", { x: width - 10, y: height - 2, "text-anchor": "end" }, xName));
  figure.append(element("figcaption", {}, title, element("small", {}, note)), svg);
  return svg;
}

function show(event, title, lines) {
  tip.replaceChildren(element("strong", {}, title));
  for (const [label, value, run, near] of lines) {
    const key = run === undefined ? "" : element("i", { class: "key", style: `--color:${color(run)}` });
    tip.append(element("div", near ? { class: "near" } : {}, element("span", {}, key, label), element("span", {}, value)));
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), beside = event.clientX + 16;
  tip.style.left = `${beside + box.width > innerWidth - 8 ? Math.max(8, event.clientX - box.width - 16) : beside}px`;
  tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - box.height - 8))}px`;
}

function highlight(run) {
  for (const svg of document.querySelectorAll("svg"))
    svg.classList.toggle("dimmed", run !== null && svg.querySelector(`[data-run="${run}"]`) !== null);
  for (const it of document.querySelectorAll("[data-run]")) it.classList.toggle("hot", it.dataset.run === String(run));
}

/* Lines over a common x. series: [{run, points: [[x, y], ...]}] */
function lines(figure, series, { title, note, xName, xTick, yText, zero, markers, height = 260 }) {
  const width = Math.max(280, figure.clientWidth);
  const xs = series.flatMap(it => it.points.map(point => point[0])), ys = series.flatMap(it => it.points.map(point => point[1]));
  const right = width - 18;
  const x = xTick ? { ...linear(Math.min(...xs), Math.max(...xs), 56, right), ticks: xTick } : linear(Math.min(...xs), Math.max(...xs), 46, right, 6);
  const y = { ...linear(zero ? 0 : Math.min(...ys), Math.max(...ys), height - 38, 12), text: yText };
  const svg = frame(figure, width, height, x, y, title, note, xName);
  const cursor = element("line", { class: "at", y1: 10, y2: height - 34, visibility: "hidden" });
  svg.append(cursor);
  for (const { run, points } of [...series].reverse()) { // the best on top
    const path = points.map(([px, py], index) => `${index ? "L" : "M"}${x.at(px).toFixed(1)} ${y.at(py).toFixed(1)}`).join("");
    const group = element("g", { "data-run": run, style: `--color:${color(run)}` }, element("path", { class: "line", d: path }));
    if (markers || points.length === 1)
      for (const [px, py] of points) group.append(element("circle", { class: "dot", cx: x.at(px), cy: y.at(py), r: 4 }));
    svg.append(group);
  }
  const all = distinct(xs);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), scale = width / box.width;
    const [mouseX, mouseY] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const here = all.reduce((a, b) => (Math.abs(x.at(b) - mouseX) < Math.abs(x.at(a) - mouseX) ? b : a));
    const found = series
      .map(({ run, points }) => [run, points.reduce((a, b) => (Math.abs(b[0] - here) < Math.abs(a[0] - here) ? b : a))])
      .sort((a, b) => b[1][1] - a[1][1]);
    const near = found.reduce((a, b) => (Math.abs(y.at(b[1][1]) - mouseY) < Math.abs(y.at(a[1][1]) - mouseY) ? b : a))[0];
    cursor.setAttribute("x1", x.at(here));
    cursor.setAttribute("x2", x.at(here));
    cursor.setAttribute("visibility", "visible");
    highlight(near);
    const listed = found.length > 10 ? found.filter(([run], index) => run === near || index < 9) : found;
    const text = value => (yText ? `${(100 * value).toFixed(1)} %` : exact(value));
    show(event, `${xName} ${short(here)}`, listed.map(([run, [at, value]]) => [`${name(run)}${at === here ? "" : ` (${xName} ${short(at)})`}`, text(value), run, run === near]));
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); highlight(null); });
}

/* tau against one varied key; runs that differ in nothing else are joined. */
function against(figure, table, index, height = 260) {
  const width = Math.max(280, figure.clientWidth);
  const key = table.keys[index], texts = table.rows.map(row => row.varied[index]), numbers = texts.map(number);
  const isNumber = numbers.every(it => it !== null), values = isNumber ? numbers : texts;
  const few = isNumber && distinct(values).length <= 8;
  const isLog = isNumber && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) >= 5;
  const [from, to] = [76, width - 40];
  const x = isLog ? logarithmic(values, from, to) : isNumber ? linear(Math.min(...values), Math.max(...values), from, to) : categories(values, 44, width - 10);
  if (few) Object.assign(x, { ticks: distinct(values), text: tick => texts[numbers.indexOf(tick)] });
  const ends = table.rows.flatMap(row => row.interval || [row.tau]);
  const y = linear(Math.min(...ends), Math.max(...ends), height - 38, 12);
  const note = `${table.measure}${table.rows.some(row => row.interval) ? ", with 95 % CI over prompts" : ""}${isLog ? "; logarithmic" : ""}`;
  const svg = frame(figure, width, height, x, y, `Against ${key}`, note, key);
  const others = row => JSON.stringify(row.varied.filter((_, other) => other !== index));
  const alike = Map.groupBy ? Map.groupBy(table.rows, others) : new Map();
  for (const rows of isNumber ? alike.values() : []) {
    const path = rows.map(row => [x.at(number(row.varied[index])), y.at(row.tau)]).sort((a, b) => a[0] - b[0]);
    svg.append(element("path", { class: "link", d: path.map(([px, py], place) => `${place ? "L" : "M"}${px} ${py}`).join("") }));
  }
  const seen = {};
  for (const row of [...table.rows].reverse()) {
    const place = row.varied[index], spread = ((seen[place] = (seen[place] ?? -1) + 1) % 7) * 5; // equal values side by side
    const at = x.at(isNumber ? number(place) : place) + spread, group = element("g", { "data-run": row.run, style: `--color:${color(row.run)}` });
    if (row.interval) group.append(element("line", { class: "whisker", x1: at, x2: at, y1: y.at(row.interval[0]), y2: y.at(row.interval[1]) }));
    group.append(element("circle", { class: "dot", cx: at, cy: y.at(row.tau), r: 5 }), element("circle", { cx: at, cy: y.at(row.tau), r: 12, fill: "transparent" }));
    group.addEventListener("pointermove", event => {
      highlight(row.run);
      const interval = row.interval ? [["95 % CI", row.interval.map(it => it.toFixed(2)).join(" to ")]] : [];
      show(event, name(row.run), [[table.measure, row.tau.toFixed(3)], ...interval, ...table.keys.map((it, other) => [it, row.varied[other]])]);
    });
    group.addEventListener("pointerleave", () => { tip.hidden = true; highlight(null); });
    svg.append(group);
  }
}

function chartsOf(table, place) {
  const percent = value => `${+(100 * value).toFixed(1)}%`;
  place.replaceChildren();
  const series = table.rows.map(row => ({ run: row.run, points: row.acceptance.map((share, index) => [index + 1, share]) }));
  const longest = Math.max(...series.map(it => it.points.length));
  if (longest > 1) {
    const figure = place.appendChild(element("figure"));
    const note = table.measure === "tau" ? "share of forwards, joint, measured" : "share of positions, joint, teacher-forced";
    const xTick = Array.from({ length: longest }, (_, index) => index + 1);
    lines(figure, series, { title: "Accepted at position", note, xName: "position", xTick, yText: percent, zero: true, markers: true });
  }
  table.keys.forEach((_, index) => against(place.appendChild(element("figure")), table, index));
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  for (const head of heads.filter(it => it.querySelector("button"))) {
    head.querySelector("button").addEventListener("click", () => {
      const column = heads.indexOf(head), isNumber = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const down = before === "none" ? isNumber && column > 0 : before === "ascending";
      for (const it of heads) if (it.hasAttribute("aria-sort")) it.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => row.cells[column].dataset.value ?? "";
      const compared = (a, b) => (isNumber ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true }));
      const rows = [...body.rows].sort((a, b) => {
        if (value(a) === "" || value(b) === "") return (value(a) === "") - (value(b) === ""); // what isn't known, at the end
        return compared(value(a), value(b)) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  }
  for (const row of body.rows) {
    row.addEventListener("pointerenter", () => highlight(Number(row.dataset.run)));
    row.addEventListener("pointerleave", () => highlight(null));
  }
}

const CURVES = { "val/tau_sim": "tau_sim, held out (teacher-forced)", "val/loss": "loss per target, held out", "train/loss": "loss per target, training" };
const curveName = key => CURVES[key] ?? `acceptance at position ${Number(key.split("_").pop()) + 1}, held out (joint)`;

function drawCurves() {
  const place = document.getElementById("curves"), key = document.getElementById("curve").value;
  const series = data.runs.map((run, index) => ({ run: index, points: run.curves[key] ?? [] })).filter(it => it.points.length && !hidden.has(it.run));
  const figure = element("figure");
  place.replaceChildren(figure);
  if (series.length) lines(figure, series, { title: curveName(key), note: "by optimizer step", xName: "step", height: 340 });
}

function curves() {
  const select = document.getElementById("curve");
  if (!select) return;
  const keys = [...new Set(data.runs.flatMap(run => Object.keys(run.curves)))];
  const order = [...Object.keys(CURVES).filter(key => keys.includes(key)), ...keys.filter(key => !(key in CURVES)).sort()];
  select.append(...order.map(key => element("option", { value: key }, curveName(key))));
  select.addEventListener("change", drawCurves);
  data.runs.forEach((run, index) => {
    if (!Object.keys(run.curves).length) return;
    const chip = element("button", { "data-run": index, "aria-pressed": "true", type: "button" }, element("i", { class: "key", style: `--color:${color(index)}` }), run.name);
    chip.addEventListener("pointerenter", () => highlight(index));
    chip.addEventListener("pointerleave", () => highlight(null));
    chip.addEventListener("click", () => {
      if (!hidden.delete(index)) hidden.add(index);
      chip.setAttribute("aria-pressed", String(!hidden.has(index)));
      drawCurves();
    });
    document.getElementById("chips").append(chip);
  });
}

function differences() {
  const [one, other] = ["one", "other"].map(id => Number(document.getElementById(id).value));
  const everything = document.getElementById("everything").checked;
  document.getElementById("one-name").textContent = name(one);
  document.getElementById("other-name").textContent = name(other);
  const of = run => ({ ...data.shared, ...data.own[run] });
  const [a, b] = [of(one), of(other)], text = value => (value === undefined || value === "-" ? "–" : value), noise = new Set(data.noise);
  const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter(key => everything || text(a[key]) !== text(b[key]));
  keys.sort((left, right) => noise.has(left) - noise.has(right)); // a stable sort: else the configuration's order
  const rows = keys.map(key => {
    const row = element("tr", { class: text(a[key]) === text(b[key]) ? "same" : noise.has(key) ? "noise" : "" });
    const parts = key.split(/(?<=[._])/).flatMap(part => [part, element("wbr")]);
    row.append(element("th", { scope: "row" }, ...parts), element("td", {}, text(a[key])), element("td", {}, text(b[key])));
    return row;
  });
  if (!rows.length) rows.push(element("tr", {}, element("td", { colspan: 3 }, "Nothing that is recorded differs.")));
  document.querySelector("#differences tbody").replaceChildren(...rows);
}

for (const it of document.querySelectorAll("[data-key]")) it.style.setProperty("--color", color(Number(it.dataset.key)));
function drawAll() {
  for (const place of document.querySelectorAll(".charts")) chartsOf(data.tables[place.dataset.table], place);
  if (document.getElementById("curve")) drawCurves();
}
for (const table of document.querySelectorAll("table.ranked")) sortable(table);
curves();
drawAll();
let drawnAt = innerWidth; // charts are drawn as wide as they are shown, so that words keep their size
addEventListener("resize", () => {
  if (innerWidth === drawnAt) return;
  drawnAt = innerWidth;
  requestAnimationFrame(drawAll);
});
if (document.getElementById("one")) {
  for (const id of ["one", "other", "everything"]) document.getElementById(id).addEventListener("change", differences);
  differences();
}
