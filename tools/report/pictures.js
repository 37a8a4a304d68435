"use strict";
// The pictures of the page, drawn with plotly.js; page.js has the rest, and what is chosen.

const PIXELS = 1400; // Of the picture of the units, from left to right.
const FONT = { family: "system-ui, DejaVu Sans, sans-serif", size: 11, color: "#1d2733" };
const CONFIG = { displaylogo: false, responsive: true, scrollZoom: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

// The figures that have points and bars.

function drawBounds() {
  const rows = program.kernels.filter((row) => row.cycles !== undefined);
  $("bounds").hidden = rows.length === 0;
  if (rows.length === 0) return;
  const { peak, rate } = program.machine;
  const points = rows.filter((row) => row.macs && row.bytes);
  const intensity = points.map((row) => row.macs / row.bytes);
  const knee = rate ? peak / rate : null;
  const ends = [Math.min(...intensity, knee ?? Infinity) / 2, Math.max(...intensity, knee ?? 0) * 4];
  const roof = rate ? { x: [ends[0], knee, ends[1]], y: [ends[0] * rate, peak, peak] } : { x: ends, y: [peak, peak] };
  const text = (row) => `<b>@${row.name}</b> ${row.runs > 1 ? "x " + row.runs : ""}<br>${nodesOf(row.link).slice(0, 4).join(", ")}<br>`;
  Plotly.newPlot("roofline", [
    { ...roof, mode: "lines+text", line: { color: "#5f6b7a", width: 1.5 }, hoverinfo: "skip", textfont: { color: "#5f6b7a" },
      text: rate ? ["", `${peak} MAC/cycle`, ""] : [`${peak} MAC/cycle`, ""], textposition: "top right" },
    { x: rate ? [Math.sqrt(ends[0] * knee)] : [], y: rate ? [Math.sqrt(ends[0] * knee) * rate] : [], mode: "text", text: [`${rate} bytes/cycle `], textposition: "top left", textfont: { color: "#5f6b7a" }, hoverinfo: "skip" },
    { x: intensity, y: points.map((row) => row.macs / row.cycles), mode: "markers+text", customdata: points.map((row) => row.link),
      text: points.map((row) => (points.length <= 12 ? "@" + row.name : "")), textposition: "bottom center", textfont: { size: 10 },
      marker: { size: points.map((row) => 8 + 26 * Math.sqrt(part(row))), color: "#3b7dd8", opacity: 0.75, line: { width: 0 } },
      hovertext: points.map((row) => `${text(row)}${(row.macs / row.bytes).toFixed(2)} MAC/byte, ${(row.macs / row.cycles).toFixed(2)} MAC/cycle, ${share(row.peak)} of peak`), hoverinfo: "text" },
  ], layout({ height: 330, xaxis: { type: "log", title: { text: "useful MAC per byte off chip" }, dtick: 1 }, yaxis: { type: "log", title: { text: "useful MAC per cycle" }, dtick: "D2" },
  }), CONFIG);
  const names = rows.map((row, number) => (rows.some((other, place) => place < number && other.name === row.name) ? `@${row.name} (${number})` : "@" + row.name));
  const bar = (name, key, color) => ({ type: "bar", name, x: names, y: rows.map((row) => row[key]), customdata: rows.map((row) => row.link), marker: { color }, hovertemplate: `%{x}<br>${name}: %{y:,} bytes<extra></extra>` });
  Plotly.newPlot("traffic", [bar("moved", "bytes", "#3b7dd8"), bar("best tiling", "best_tiling", "#9ec1ee"), bar("bound", "least", "#5f6b7a")].filter((trace) => trace.y.some(Boolean)),
    layout({ height: 330, barmode: "group", bargap: 0.25, showlegend: true, legend: { orientation: "h", y: 1.12, x: 0 }, yaxis: { type: "log", dtick: "D2", title: { text: "bytes of one run" }, exponentformat: "SI" }, xaxis: { type: "category", tickangle: -40 } }), CONFIG);
  for (const id of ["roofline", "traffic"]) $(id).on("plotly_click", ({ points: [point] }) => point.customdata !== undefined && choose(point.customdata));
  const fade = (row) => (chosen === null || chosen.kernels.has(numberOf(row)) ? 1 : 0.25);
  parts.push(() => {
    Plotly.restyle("roofline", { "marker.opacity": [points.map((row) => 0.75 * fade(row))] }, [2]);
    Plotly.restyle("traffic", { "marker.opacity": [rows.map(fade)] });
  });
}

const layout = (more) => ({ margin: { l: 62, r: 16, t: 14, b: 60 }, font: FONT, plot_bgcolor: "#fff", paper_bgcolor: "#fff", hovermode: "closest", showlegend: false, uirevision: 1, ...more });

// What runs when, and what lies where.

// Each call and each life of a buffer, from and to on the axis that is shown.
function callSpans() {
  return program.calls.map((call, number) => ({ call, number, from: call[axis][0], to: call[axis][1] })).filter((each) => each.to > each.from);
}

function lifeSpans() {
  const found = [];
  program.lives.forEach((life, number) => {
    const add = (spans, start) => (spans ?? []).forEach(([from, to]) => found.push({ life, number, from: start + from, to: start + to }));
    if (life.kernel < 0) return add(life[axis], 0);
    for (const call of program.calls) {
      if (call.kernel !== life.kernel) continue;
      if (axis === "steps") add(life.steps, call.steps[0] + 1);
      else if (call.run >= 0) add(life.cycles[call.run], call.cycles[0]);
    }
  });
  return found.sort((a, b) => a.from - b.from);
}

function drawTime() {
  const hasCycles = program.total !== null;
  if (!hasCycles) axis = "steps";
  $("axis").replaceChildren(...(hasCycles ? ["cycles", "steps"] : []).map((each) => element("button", { textContent: each === "steps" ? "operations" : each, className: each === axis ? "on" : "", onclick: () => { axis = each; redraw(); } })));
  const calls = callSpans(), lives = lifeSpans();
  const scopes = program.scopes.filter((scope) => lives.some((each) => each.life.scope === scope.name));
  const rows = axis === "cycles" ? [...new Set(program.runs.flatMap((run) => run.rows.map((row) => row[0])))] : [];
  const last = Math.max(1, ...calls.map((each) => each.to), ...lives.map((each) => each.to));
  // From the top: the kernels, the units, then each scope.
  const heights = [26, rows.length * 22, ...scopes.map(() => 170)].map((height) => height + (height ? 26 : 0));
  const total = heights.reduce((sum, height) => sum + height, 0);
  let top = 1;
  const domains = heights.map((height) => { const to = top; top -= height / total; return [Math.max(0, top + 24 / total), to]; });
  const shape = { height: total + (axis === "cycles" ? 88 : 152), margin: { l: 92, r: 16, t: 26, b: axis === "cycles" ? 46 : 110 }, bargap: 0, uniformtext: { mode: "hide", minsize: 9 }, annotations: [], dragmode: "pan",
    xaxis: { range: [0, last], title: { text: axis === "cycles" ? "cycles" : "operations, in the order of the text", standoff: axis === "cycles" ? 6 : 70 }, anchor: "free", position: 0, showgrid: true, gridcolor: "#eef1f4", zeroline: false, tickformat: ",d" },
    yaxis: { domain: domains[0], range: [0, 1], tickvals: [0.5], ticktext: ["kernels"], fixedrange: true, zeroline: false, showgrid: false } };
  const traces = [bars(calls, "y", (each) => ({ base: 0, height: 1, colour: hue(each.call.kernel, 80), text: "@" + program.kernel_names[each.call.kernel], link: each.call.link,
    about: `<b>@${program.kernel_names[each.call.kernel]}</b> ${nodesOf(each.call.link).slice(0, 5).join(", ")}<br>${count(each.to - each.from)} ${axis}` }))];
  if (rows.length) {
    shape.yaxis2 = { domain: domains[1], range: [rows.length - 0.5, -0.5], fixedrange: true, tickvals: rows.map((_, number) => number), ticktext: rows, zeroline: false, showgrid: false };
    const kinds = page.kinds.map((kind) => kind.colour), shades = [...kinds, ...kinds.map(faded)];
    const scale = shades.flatMap((colour, number) => [[number / shades.length, colour], [(number + 1) / shades.length, colour]]);
    traces.push({ type: "heatmap", yaxis: "y2", z: [], x0: 0, dx: 1, y0: 0, dy: 1, colorscale: scale, zmin: -0.5, zmax: shades.length - 0.5, showscale: false, ygap: 4, hoverongaps: false, hovertemplate: "%{text}<extra></extra>" });
  }
  scopes.forEach((scope, place) => {
    const mine = lives.filter((each) => each.life.scope === scope.name), y = "y" + (place + 3);
    shape["yaxis" + (place + 3)] = { domain: domains[place + 2], range: [0, scope.peak * 1.06], fixedrange: true, zeroline: false, gridcolor: "#eef1f4", tickformat: ",d", nticks: 5, title: { text: scope.name, standoff: 4 } };
    const room = scope.capacity ? ` of ${count(scope.capacity)}` : "";
    shape.annotations.push({ xref: "paper", yref: "paper", x: 0, y: domains[place + 2][1], yanchor: "bottom", xanchor: "left", showarrow: false, font: { ...FONT, color: "#5f6b7a" },
      text: `<b>${scope.name}</b>: peak ${count(scope.peak)}${room} bytes${scope.function ? " in @" + scope.function : ""}, lower bound ${count(scope.bound)}; the line is what is alive` });
    traces.push(bars(mine, y, (each) => ({ base: each.life.offset, height: each.life.size, colour: hue(each.number, 76), text: each.life.name, link: each.life.link, line: each.life.line,
      about: `<b>${escaped(each.life.name)}</b> ${escaped(each.life.type)}<br>${count(each.life.size)} bytes at ${count(each.life.offset)}<br>alive ${count(each.from)} to ${count(each.to)} ${axis}<br>${nodesOf(each.life.link).slice(0, 5).join(", ")}` })));
    traces.push({ ...occupancy(mine), yaxis: y, mode: "lines", line: { color: "#1d2733", width: 1.2, shape: "hv" }, hovertemplate: "%{y:,} bytes alive<extra></extra>" });
  });
  Plotly.newPlot("time", traces, layout(shape), CONFIG);
  $("legend").innerHTML = rows.length ? page.kinds.filter((kind) => kind.kind !== "done").map((kind) => `<i style="background:${kind.colour}"></i>${kind.means}`).join("") : "";
  const refresh = () => rows.length && Plotly.restyle("time", raster(rows, ...$("time").layout.xaxis.range), [1]);
  const refine = () => { refresh(); if (axis === "steps") labelSteps(); };
  $("time").on("plotly_relayout", (change) => Object.keys(change).some((key) => key.startsWith("xaxis.range") || key === "xaxis.autorange") && refine());
  $("time").on("plotly_click", ({ points }) => {
    const point = points.find((each) => each.data.type !== "scatter");
    if (point && point.data.type === "heatmap") chooseCommand(rows[point.pointIndex[0]], point.x);
    else if (point) choose(point.customdata[0], { line: point.customdata[1], text: point.customdata[2] });
  });
  parts.push(() => {
    refresh();
    traces.forEach((trace, number) => trace.type === "bar" && Plotly.restyle("time", { "marker.opacity": [trace.customdata.map(([link, line]) => (chosen === null || agreement(link) === HIT || (line >= 0 && line === chosen.line) ? 1 : agreement(link) === NEAR ? 0.6 : 0.18))] }, [number]));
  });
  refine();
}

const faded = (colour) => "#" + [1, 3, 5].map((at) => Math.round(255 - 0.22 * (255 - parseInt(colour.slice(at, at + 2), 16))).toString(16).padStart(2, "0")).join("");

function bars(spans, yaxis, describe) {
  const made = spans.map(describe);
  return { type: "bar", yaxis, x: spans.map((each) => each.from), width: spans.map((each) => each.to - each.from), offset: 0, base: made.map((each) => each.base), y: made.map((each) => each.height),
    text: made.map((each) => each.text), textposition: "inside", insidetextanchor: "middle", textangle: 0, textfont: { color: "#1d2733" }, hovertext: made.map((each) => each.about), hoverinfo: "text",
    customdata: made.map((each) => [each.link, each.line ?? -1, each.about.replaceAll("<br>", " &middot; ")]), marker: { color: made.map((each) => each.colour), line: { color: "#fff", width: 0.5 } } };
}

function occupancy(spans) {
  const changes = new Map();
  const change = (at, by) => changes.set(at, (changes.get(at) ?? 0) + by);
  spans.forEach((each) => { change(each.from, each.life.size); change(each.to, -each.life.size); });
  const x = [...changes.keys()].sort((a, b) => a - b);
  let alive = 0;
  return { x, y: x.map((at) => (alive += changes.get(at))) };
}

// For each pixel what each row does there most of the time, faded where that is not chosen.
function raster(rows, from, to) {
  const kindOf = new Map(page.kinds.map((kind, number) => [kind.kind, number]));
  const step = (to - from) / PIXELS;
  const z = rows.map(() => new Array(PIXELS).fill(null)), text = rows.map(() => new Array(PIXELS).fill(""));
  for (const call of program.calls) {
    if (call.run < 0 || call.cycles[1] <= from || call.cycles[0] >= to) continue;
    const run = program.runs[call.run], start = call.cycles[0];
    const first = Math.max(0, Math.floor((start - from) / step)), past = Math.min(PIXELS, Math.ceil((call.cycles[1] - from) / step));
    run.rows.forEach(([name, names, ends, which], place) => {
      const row = rows.indexOf(name);
      let piece = lowerBound(ends, from + first * step - start);
      for (let pixel = first; pixel < past; pixel++) {
        const low = from + pixel * step - start, high = low + step, spent = new Map();
        for (let at = Math.max(low, piece ? ends[piece - 1] : 0); piece < ends.length && at < high; ) {
          const end = Math.min(high, ends[piece]);
          spent.set(which[piece], (spent.get(which[piece]) ?? 0) + end - at);
          at = end;
          if (ends[piece] <= high) piece++; else break;
        }
        if (!spent.size) continue;
        const most = [...spent].sort((a, b) => b[1] - a[1])[0][0];
        const command = place < program.machine.units.length ? commandAt(run, place, low + step / 2) : -1;
        const isChosen = chosen === null || (command >= 0 ? run.line[command] === chosen.line || agreement(linkOf(run, command, call)) === HIT : agreement(call.link) > 0);
        z[row][pixel] = kindOf.get(names[most].split(" ")[0]) + (isChosen ? 0 : page.kinds.length);
        text[row][pixel] = `<b>${name}</b> ${names[most]} at ${count(start + low + step / 2)}<br>@${program.kernel_names[call.kernel]}` + (command >= 0 ? `<br>${aboutCommand(run, command)}` : "");
      }
    });
  }
  return { z: [z], text: [text], x0: from + step / 2, dx: step };
}

function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= value) low = middle + 1; else high = middle; }
  return low;
}

// The command that a unit performs in a cycle of a run, or waits to start.
function commandAt(run, unit, cycle) {
  run.streams ??= program.machine.units.map((_, each) => run.unit.map((_, number) => number).filter((number) => run.unit[number] === each));
  run.starts ??= run.streams.map((stream) => stream.map((number) => run.start[number]));
  const stream = run.streams[unit], place = lowerBound(run.starts[unit], cycle) - 1;
  if (place >= 0 && run.start[stream[place]] + run.length[stream[place]] > cycle) return stream[place];
  return place + 1 < stream.length ? stream[place + 1] : -1;
}

function linkOf(run, command, call) {
  const level = program.levels.at(-1);
  return run.line[command] >= 0 ? level.links[run.line[command]] : call.link;
}

function aboutCommand(run, command) {
  const start = run.start[command], cause = run.causes[run.cause[command]];
  const bytes = run.bytes[command] ? `, ${count(run.bytes[command])} bytes` : "";
  const link = run.line[command] >= 0 ? nodesOf(program.levels.at(-1).links[run.line[command]]).slice(0, 3).join(", ") : "";
  return `command ${command}: <b>${run.names[run.name[command]]}</b>${bytes}, cycles ${count(start)} to ${count(start + run.length[command])} of the kernel` + (cause ? `, waited for ${cause}` : "") + (link ? `<br>${link}` : "");
}

function chooseCommand(row, cycle) {
  const call = program.calls.find((each) => each.run >= 0 && each.cycles[0] <= cycle && cycle < each.cycles[1]);
  if (!call) return;
  const unit = program.machine.units.indexOf(row), run = program.runs[call.run];
  const command = unit < 0 ? -1 : commandAt(run, unit, cycle - call.cycles[0]);
  if (command < 0) choose(call.link);
  else choose(linkOf(run, command, call), { line: run.line[command], text: aboutCommand(run, command).replaceAll("<br>", " &middot; ") });
}

// On the axis of operations: the names of the ops, where there is room for them.
function labelSteps() {
  const [from, to] = $("time").layout.xaxis.range;
  const vals = [], words = [], level = program.levels.at(-1);
  for (const call of to - from <= 60 ? program.calls : []) {
    (program.steps[program.kernel_names[call.kernel]] ?? []).forEach((line, step) => {
      const at = call.steps[0] + 1 + step;
      if (at < from || at > to || line < 0) return;
      vals.push(at);
      words.push((/\b([a-z]+\.[a-z_.]+)/.exec(level.lines[line].replace(/"[^"]*"/g, "")) ?? ["", ""])[1]);
    });
  }
  const names = vals.length ? { "xaxis.tickvals": vals, "xaxis.ticktext": words, "xaxis.tickangle": -60 } : { "xaxis.tickvals": null, "xaxis.ticktext": null, "xaxis.tickangle": 0 };
  Plotly.relayout("time", names);
}
