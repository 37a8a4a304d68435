"use strict";
// The page of `penstock report`: what data.py made, drawn. Everything that can be clicked on has a link, which is a
// kernel (or -1) and the names that it comes from; `choose` selects one, and each part shows what has the same.

const page = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const HIT = 2, NEAR = 1;

let program; // The one that is shown.
let chosen = null; // { kernel, names, line, text }, or nothing.
let axis = "cycles";
let parts = []; // A function for each part, which shows what is chosen.

const count = (number) => (number === null || number === undefined ? "-" : Math.round(number).toLocaleString("en"));
const share = (number) => (number === null || number === undefined ? "-" : (100 * number).toFixed(1) + " %");
const ratio = (number) => (number === null || number === undefined || !isFinite(number) ? "-" : number.toFixed(3));
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const hue = (number, light) => `hsl(${((number * 137.508) % 360).toFixed(1)},60%,${light}%)`;

function element(tag, attributes, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

// What is chosen.

function nodesOf(link) {
  return program.links[link][1].map((name) => program.names[name]);
}

function choose(link, { line = -1, text = "" } = {}) {
  const [kernel, names] = program.links[link];
  chosen = { kernel, names: new Set(names), line, text };
  // What is not in a kernel is in those that it became, and what is in one may say no name.
  const rows = program.kernels.filter((row) => (kernel < 0 ? meets(program.links[row.link][1]) : numberOf(row) === kernel));
  chosen.kernels = new Set(rows.map(numberOf));
  chosen.around = new Set(kernel < 0 ? [] : rows.flatMap((row) => program.links[row.link][1]));
  show();
}

const numberOf = (row) => program.kernel_names.indexOf(row.name);
const meets = (names) => names.some((name) => chosen.names.has(name));

// How much a link has of what is chosen.
function agreement(link) {
  if (chosen === null) return 0;
  const [kernel, names] = program.links[link];
  if (kernel >= 0 && chosen.kernel >= 0 && kernel !== chosen.kernel) return 0;
  if (meets(names)) return HIT;
  if (kernel >= 0) return chosen.kernels.has(kernel) ? NEAR : 0;
  return names.some((name) => chosen.around.has(name)) ? NEAR : 0;
}

function show() {
  parts.forEach((part) => part());
  if (chosen === null) return void ($("selected").textContent = "Nothing is chosen.");
  const kernels = [...chosen.kernels].slice(0, 6).map((number) => "@" + program.kernel_names[number]);
  const names = [...chosen.names].slice(0, 8).map((name) => program.names[name]);
  const words = [kernels.length && `<b>${kernels.join(" ")}</b>`, names.length && `from <b>${escaped(names.join(", "))}</b>`, chosen.text];
  $("selected").innerHTML = words.filter(Boolean).join(" &middot; ");
}

// The kernels.

const COLUMNS = [
  ["kernel", (row) => "@" + row.name, (row) => row.name],
  ["from", (row) => nodesOf(row.link).join(", "), (row) => nodesOf(row.link).join(", ")],
  ["runs", (row) => count(row.runs), (row) => row.runs],
  ["cycles", (row) => count(row.cycles), (row) => row.cycles ?? -1, "of one run"],
  ["of all", (row) => share(part(row)), (row) => part(row) ?? -1, "the share of all runs in the cycles of the program"],
  ["T / T*", (row) => ratio(row.cycles / row.ideal), (row) => row.cycles / row.ideal || 0, "cycles over those of the busiest unit or bus"],
  ["limit", (row) => row.limit ?? "the host", (row) => row.limit ?? "", "the busiest unit or bus"],
  ["of peak", (row) => share(row.peak), (row) => row.peak ?? -1, "useful multiply-accumulates over what the machine could do"],
  ["redundant", (row) => share(row.redundant), (row) => row.redundant ?? -1, "multiply-accumulates done again where tiles overlap, over the same"],
  ["padded", (row) => share(row.padded), (row) => row.padded ?? -1, "those on padding and on idle lanes, over the same"],
  ["bytes", (row) => count(row.bytes), (row) => row.bytes ?? -1, "off chip, in one run"],
  ["of bound", (row) => ratio(row.bytes / row.least), (row) => row.bytes / row.least || 0, "bytes over what no schedule goes below"],
  ["energy, nJ", (row) => nanojoules(row.energy), (row) => row.energy ?? -1, "of one run"],
  ["most of it", (row) => takesMost(row), (row) => takesMost(row), "what takes most of the energy"],
  ["waits most for", (row) => waitsFor(row), (row) => waitsFor(row)],
];

const part = (row) => (row.cycles === undefined || !program.total ? null : (row.runs * row.cycles) / program.total.cycles);

const nanojoules = (energy) => (energy === null || energy === undefined ? "-" : count(Math.round(energy / 1000)));

function takesMost(row) {
  const most = [...(row.energy_levels ?? [])].sort((a, b) => b[1] - a[1])[0];
  return most && row.energy ? `${most[0]} ${share(most[1] / row.energy)}` : "-";
}

function waitsFor(row) {
  const all = Object.entries(row.units ?? {}).flatMap(([unit, causes]) =>
    Object.entries(causes).filter(([cause]) => cause !== "busy" && cause !== "done").map(([cause, cycles]) => [cycles, unit, cause]));
  const most = all.sort((a, b) => b[0] - a[0])[0];
  return most ? `${most[1]}: ${most[2]} ${share(most[0] / row.cycles)}` : "-";
}

function drawKernels() {
  const rows = [...program.kernels];
  const head = element("tr", {}, ...COLUMNS.map(([name, , key, about]) => element("th", { textContent: name, title: about ?? "", onclick: () => {
    const before = rows.map(key).join();
    const order = (a, b) => (key(a) < key(b) ? 1 : key(a) > key(b) ? -1 : 0);
    rows.sort(order);
    if (rows.map(key).join() === before) rows.reverse();
    fill();
  } })));
  const body = element("tbody", {});
  const fill = () => { body.replaceChildren(...rows.map((row) => row.element)); };
  for (const row of rows) {
    row.element = element("tr", { title: [row.remark, row.tiling, row.pipelining].filter(Boolean).join("\n") }, ...COLUMNS.map(([, text]) => element("td", { textContent: text(row) })));
    row.element.onclick = () => choose(row.link, { text: escaped([row.tiling, row.pipelining, row.remark].filter(Boolean).join("; ")) });
  }
  fill();
  $("table").replaceChildren(element("thead", {}, head), body);
  parts.push(() => rows.forEach((row) => mark(row.element, chosen !== null && chosen.kernels.has(numberOf(row)) ? HIT : 0)));
}

function mark(line, strength, exact = false) {
  line.classList.toggle("exact", exact);
  line.classList.toggle("hit", !exact && strength === HIT);
  line.classList.toggle("near", !exact && strength === NEAR);
}

// The text of each level, and the remarks.

function coloured(text) {
  return escaped(text).replace(/("[^"]*")|(%[\w.$-]+)|(@[\w.$-]+)|\b((?:graph|func|linalg|tensor|scf|arith|math|affine|memref|mem|accel|cf|vector)\.[a-z_.]+)/g, (all, string, value, symbol, op) =>
    string ? all : `<span class="${value ? "value" : symbol ? "symbol" : "op"}">${all}</span>`);
}

function drawLevels() {
  const hidden = new Set(program.levels.length > 4 ? [0] : []);
  const panes = program.levels.map((level, number) => {
    level.lines = level.text.split("\n");
    const isLast = number === program.levels.length - 1;
    const lines = level.lines.map((text, line) => element("div", { className: "line", innerHTML: coloured(text) || " ", onclick: () => choose(level.links[line], { line: isLast ? line : -1, text: `<code>${escaped(text.trim().slice(0, 300))}</code>` }) }));
    const code = element("div", { className: "code" }, element("div", { className: "lines" }, ...lines));
    const pane = element("div", { className: "level", hidden: hidden.has(number) }, element("h3", { textContent: level.title }), code);
    pane.style.display = hidden.has(number) ? "none" : "";
    parts.push(() => {
      // Shown is the line itself, else the first in the kernel that is chosen, else the first of all.
      let first = null, best = 0;
      lines.forEach((line, place) => {
        const strength = agreement(level.links[place]), exact = isLast && chosen !== null && chosen.line === place;
        mark(line, strength, exact);
        const rank = exact ? 3 : strength !== HIT ? 0 : program.links[level.links[place]][0] >= 0 ? 2 : 1;
        if (rank > best) [first, best] = [line, rank];
      });
      if (first !== null && !code.matches(":hover")) code.scrollTop = first.offsetTop - code.offsetTop - code.clientHeight / 3;
    });
    return pane;
  });
  $("levels").replaceChildren(...panes);
  $("shown").replaceChildren(...program.levels.map((level, number) => element("button", { textContent: level.title, className: hidden.has(number) ? "" : "on", onclick: (event) => {
    panes[number].style.display = panes[number].style.display ? "" : "none";
    event.target.classList.toggle("on");
  } })));
}

function drawRemarks() {
  const lines = program.remarks.map((remark) => element("div", { className: "remark", textContent: remark.text, onclick: () => {
    const row = program.kernels.find((each) => numberOf(each) === remark.kernel);
    if (row) choose(row.link, { text: escaped(remark.text) });
  } }));
  $("remarks").replaceChildren(...lines);
  parts.push(() => lines.forEach((line, number) => mark(line, chosen !== null && chosen.kernels.has(program.remarks[number].kernel) ? HIT : 0)));
}

// The head of the page, and the whole.

function drawHead() {
  $("title").textContent = program.title;
  const total = program.total, figures = total ? [
    ["cycles", count(total.cycles)], ["time", (total.cycles / program.machine.mhz / 1000).toFixed(3) + " ms"], ["T / T*", ratio(total.cycles / total.ideal)],
    ["of peak", share(total.peak)], ["bytes off chip", count(total.bytes)], ["of bound", ratio(total.bytes / total.least)],
    ...(total.energy === null ? [] : [["energy", nanojoules(total.energy) + " nJ"], ...total.energy_levels.map(([level, energy]) => ["energy of " + level, share(energy / total.energy)])])] : [["kernels", count(program.kernels.length)]];
  for (const scope of program.scopes) figures.push([scope.name, count(scope.peak) + (scope.capacity ? ` of ${count(scope.capacity)}` : "") + " bytes"]);
  $("figures").innerHTML = figures.map(([name, value]) => `<span>${name} <b>${value}</b></span>`).join("");
  const several = page.programs.length > 1 ? page.programs : [];
  $("programs").replaceChildren(...several.map((each, number) => element("button", { textContent: `${"AB"[number]}: ${each.title}`, className: each === program ? "on" : "", onclick: () => open(number) })));
  $("known").replaceChildren(...[...program.names, ...program.kernel_names.map((name) => "@" + name)].map((value) => element("option", { value })));
}

function drawCompared() {
  if (page.programs.length < 2) return;
  const [a, b] = page.programs;
  const rows = [["", "A: " + a.title, "B: " + b.title, "B / A"]];
  const add = (name, first, second) => rows.push([name, count(first), count(second), first && second ? ratio(second / first) : "-"]);
  if (a.total && b.total) for (const key of ["cycles", "ideal", "commands", "bytes", "least", ...(a.total.energy && b.total.energy ? ["energy"] : [])]) add({ ideal: "T*", bytes: "bytes off chip", least: "their bound", energy: "energy, pJ" }[key] ?? key, a.total[key], b.total[key]);
  const peaks = (each) => new Map(each.scopes.map((scope) => [scope.name, scope.peak]));
  for (const name of new Set([...peaks(a).keys(), ...peaks(b).keys()])) add(`peak of ${name}`, peaks(a).get(name), peaks(b).get(name));
  const cycles = (each) => each.kernels.reduce((sums, row) => sums.set(row.name, (sums.get(row.name) ?? 0) + row.runs * row.cycles), new Map());
  for (const name of new Set([...cycles(a).keys(), ...cycles(b).keys()])) if (cycles(a).get(name) || cycles(b).get(name)) add(`cycles of @${name}`, cycles(a).get(name), cycles(b).get(name));
  const cell = (text, place) => element("td", { textContent: text, className: place === 3 && text !== "-" ? (text < "1" ? "better" : text > "1.000" ? "worse" : "") : "" });
  $("differences").replaceChildren(element("table", {}, ...rows.map((row, number) => element("tr", {}, ...row.map((text, place) => (number ? cell(text, place) : element("th", { textContent: text })))))));
  $("compared").hidden = false;
}

function redraw() {
  parts = [];
  drawHead();
  drawLevels();
  drawKernels();
  drawBounds();
  drawTime();
  drawRemarks();
  show();
}

function open(number) {
  program = page.programs[number];
  chosen = null;
  redraw();
}

function find(text) {
  const kernel = program.kernels.find((row) => "@" + row.name === text), name = program.names.indexOf(text);
  if (kernel) choose(kernel.link);
  else if (name >= 0) {
    const link = program.links.findIndex(([of, names]) => of < 0 && names.length === 1 && names[0] === name);
    choose(link >= 0 ? link : program.links.findIndex(([, names]) => names.includes(name)));
  }
}

$("find").addEventListener("change", (event) => find(event.target.value.trim()));
document.addEventListener("keydown", (event) => { if (event.key === "Escape") { chosen = null; show(); } });
drawCompared();
open(0);
