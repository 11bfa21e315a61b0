"use strict";
// Values under the pointer, and the planner. Every text comes ready from the page; nothing is formatted here,
// and everything is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}

function valuesOf(host) {
  return JSON.parse(host.querySelector("script[type='application/json']").textContent);
}

// --- charts ------------------------------------------------------------------------------------------------

function axisOf(svg) {
  const read = (name) => Number(svg.dataset[name]);
  const warp = "log" in svg.dataset ? Math.log : (value) => value;
  const low = warp(read("low")), high = warp(read("high"));
  return (value) => read("start") + (read("end") - read("start")) * (warp(value) - low) / (high - low);
}

function follow(figure) {
  const data = valuesOf(figure), plot = figure.querySelector(".plot");
  const panel = figure.querySelector(".values"), said = figure.querySelector("[aria-live]");
  let at = -1;

  const visible = () => [...plot.querySelectorAll("svg")].find((svg) => svg.getBoundingClientRect().width > 0);

  function show(index, speak) {
    at = Math.max(0, Math.min(data.xs.length - 1, index));
    const svg = visible(), axis = axisOf(svg), box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width, x = axis(data.xs[at]);
    const probe = svg.querySelector(".probe");
    probe.replaceChildren();
    make("line", { x1: x, x2: x, y1: svg.dataset.top, y2: svg.dataset.bottom }, probe);
    panel.replaceChildren(...lines());
    panel.hidden = false;
    const left = x * scale + 14, width = panel.offsetWidth;
    panel.style.left = `${left + width > box.width ? Math.max(0, x * scale - width - 14) : left}px`;
    if (speak) said.textContent = panel.innerText;
  }

  function lines() {
    const title = document.createElement("strong");
    title.textContent = data.names[at];
    const rows = data.series.filter((series) => series.texts[at]).map((series) => {
      const row = document.createElement("div"), dot = document.createElement("i");
      const name = document.createElement("span"), value = document.createElement("b");
      dot.className = `swatch ${series.kind} tone-${series.tone}`;
      name.textContent = series.label;
      value.textContent = series.texts[at];
      row.append(dot, name, value);
      return row;
    });
    return [title, ...rows];
  }

  function hide() {
    panel.hidden = true;
    for (const probe of plot.querySelectorAll(".probe")) probe.replaceChildren();
  }

  plot.addEventListener("pointermove", (event) => {
    const svg = visible(), axis = axisOf(svg), box = svg.getBoundingClientRect();
    const here = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const distances = data.xs.map((x) => Math.abs(axis(x) - here));
    show(distances.indexOf(Math.min(...distances)), false);
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: data.xs.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (step === undefined) return;
    event.preventDefault();
    show(step, true);
  });
}

// --- planner -----------------------------------------------------------------------------------------------

function plan(host) {
  const data = valuesOf(host), names = ["noise", "probability", "rounds"];
  const inputs = names.map((name) => host.querySelector(`#plan-${name}`));
  const wanted = host.querySelector("#plan-k");
  const text = (size) => size >= data.most ? `${size} or more` : String(size);

  function update() {
    const [noise, probability, rounds] = inputs.map((input) => Number(input.value));
    const size = data.sizes[noise][probability][rounds], k = Number(wanted.value);
    names.forEach((name, index) => {
      const shown = data[name][Number(inputs[index].value)];
      inputs[index].setAttribute("aria-valuetext", shown);
      host.querySelector(`output[for=plan-${name}]`).textContent = shown;
    });
    host.querySelector("output[for=plan-k]").textContent = String(k);
    host.querySelector("#plan-size").textContent = text(size);
    const along = data.sizes.map((plane) => plane[probability][rounds]);
    host.querySelector("#plan-verdict").textContent = verdict(size, k, along);
    draw(host.querySelector("#plan-plot"), along, noise, k);
  }

  function verdict(size, k, along) {
    if (size >= k) return `k = ${k} is certified.`;
    const enough = along.findIndex((other) => other >= k);
    return enough < 0 ? `k = ${k} is not certified, nor with more of the noise shown here.`
      : `k = ${k} is not certified; noise ${data.noise[enough]} would do.`;
  }

  function draw(place, along, noise, k) {
    const width = 400, height = 190, left = 34, bottom = 42, right = 10, top = 14;
    const values = data.noiseValues, [, , rounds] = inputs.map((input) => Number(input.value));
    const lines = data.probability.map((_, index) => data.sizes.map((plane) => plane[index][rounds]));
    const highest = Math.max(...lines.flat(), k, 1);
    const x = (value) => left + (width - left - right) * Math.log(value / values[0]) / Math.log(values.at(-1) / values[0]);
    const y = (size) => height - bottom - (height - bottom - top) * size / highest;
    place.replaceChildren();
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img" }, place);
    svg.setAttribute("aria-label", `Certified size against noise: ${values.map((v, i) => `${data.noise[i]}: ${text(along[i])}`).join(", ")}`);
    const label = (string, attributes) => { make("text", attributes, svg).textContent = string; };
    for (const size of [0, highest]) {
      make("line", { x1: left, x2: width - right, y1: y(size), y2: y(size), class: "grid" }, svg);
      label(String(size), { x: left - 8, y: y(size), class: "tick y" });
    }
    values.forEach((value, i) => label(data.noise[i], { x: x(value), y: height - bottom + 18, class: "tick x" }));
    label("noise multiplier (grey: other chances to be drawn)", { x: (left + width - right) / 2, y: height - 5, class: "title" });
    const path = (sizes) => "M" + values.map((value, i) => `${x(value)} ${y(sizes[i])}`).join("L");
    for (const line of lines) make("path", { d: path(line), class: "line faint" }, svg);
    make("line", { x1: left, x2: width - right, y1: y(k), y2: y(k), class: "line dashed tone-vermillion" }, svg);
    label(`k = ${k}`, { x: left + 6, y: y(k) - 9, class: "name tone-vermillion" });
    make("path", { d: path(along), class: "line tone-blue strong" }, svg);
    make("circle", { cx: x(values[noise]), cy: y(along[noise]), r: 6.5, class: "point tone-blue" }, svg);
  }

  for (const input of [...inputs, wanted]) input.addEventListener("input", update);
  host.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  update();
}

for (const figure of document.querySelectorAll("figure[data-figure]")) follow(figure);
for (const host of document.querySelectorAll(".planner")) plan(host);
