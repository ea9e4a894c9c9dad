// Interactive charts of a report, drawn by uPlot. Each `.chart` holds its data as JSON (`Chart` in document.py).
// Dragging zooms, the legend shows the values under the cursor, and its buttons show and hide entries in all charts.

const NONE = "–";
const HEIGHT = 280;
const LABEL = 38; // pixels that a label of the horizontal axis needs
const DIGIT = 7; // pixels that a digit of a label takes at most
const NINES = [1, 2, 4, 10, 20, 100, 200, 1000, 2000, 1e4, 1e5, 1e6];
const HELP = "Drag, or press + and −, to zoom; 0 shows all; arrow keys read values.";
const dark = matchMedia("(prefers-color-scheme: dark)");
const hidden = new Set(); // labels of entries
const charts = [];

const number = (value) => Number(value.toPrecision(4)).toString();
const percent = (place) => `${Number((100 * (1 - 1 / place)).toPrecision(6))}`;
const FORMATS = {
  seconds: (value) => `${number(value)} s`,
  ms: (value) => `${number(value)} ms`,
  rate: (value) => `${number(value)}/s`,
  percent: (value) => `${number(value)} %`,
  percentile: (place) => `p${percent(place)}`,
};
const RANGES = {
  rate: (_, low, high) => [0, high > 0 ? high * 1.1 : 1],
  percent: () => [0, 101],
  ms: (_, low, high) => (low > 0 ? [low / 1.1, high * 1.1] : [1, 10]),
};

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Ticks of a logarithmic axis: 1, 2 and 5 times the powers of ten, or even steps where there are few of them.
function logTicks(low, high) {
  const powers = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) powers.push(power);
  const ticks = powers.flatMap((power) => [power, 2 * power, 5 * power]);
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  if (inside.length > 2) return inside;
  const power = 10 ** Math.floor(Math.log10(high - low));
  const step = [power / 5, power / 2, power, 2 * power].find((one) => (high - low) / one <= 6);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => (first + index) * step);
}

// Labels of a horizontal axis; one that would touch the label before it is left out.
const spaced = (format) => (plot, ticks) => {
  let free = -Infinity;
  return ticks.map((tick) => {
    const left = plot.valToPos(tick, "x");
    if (left < free) return "";
    free = left + LABEL;
    return format(tick);
  });
};

class ReportChart {
  constructor(element) {
    this.data = JSON.parse(element.querySelector("script").textContent);
    this.where = make("output");
    this.box = make("div", { class: "plot", tabindex: 0, role: "application", "aria-label": `${this.data.title}. ${HELP}`, title: HELP });
    this.legend = make("div", { class: "entries", role: "group", "aria-label": "Entries" });
    this.toggleAll = this.button("Hide all", () => this.showOrHideAll());
    const tools = [
      this.button("+", () => this.zoom(0.5), "Zoom in"),
      this.button("−", () => this.zoom(2), "Zoom out"),
      this.button("Reset", () => this.reset(), "Show the whole range"),
    ];
    const head = make("div", { class: "chart-head" }, make("strong", {}, this.data.title), this.where, ...tools);
    element.append(head, this.box, this.legend);
    this.entries = this.data.lines.map((line) => this.entry(line));
    if (this.entries.length > 1) this.legend.append(this.toggleAll);
    this.plot = new uPlot(this.options(), [this.data.places, ...this.data.lines.map((line) => line.values)], this.box);
    this.box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  button(text, act, label = text) {
    const button = make("button", { type: "button", "aria-label": label, title: label }, text);
    button.addEventListener("click", act);
    return button;
  }

  entry(line) {
    const value = make("b");
    const swatch = make("i", { "aria-hidden": "true" });
    swatch.style.borderTopStyle = line.dash.length ? "dashed" : "solid";
    const button = make("button", { type: "button", "aria-pressed": "true" }, swatch, line.label, value);
    button.addEventListener("click", () => show([line.label], hidden.has(line.label)));
    this.legend.append(button);
    return { line, button, swatch, value };
  }

  options() {
    const { x, y, lines } = this.data;
    const axis = { stroke: () => style("--soft"), font: "12px system-ui", filter: (_, ticks) => ticks };
    axis.grid = axis.ticks = { stroke: () => style("--line"), width: 1 };
    const inside = (_, index, low, high) => NINES.filter((place) => place >= low && place <= high);
    const logarithmic = { splits: (_, index, low, high) => logTicks(low, high) };
    const along = {
      seconds: { values: spaced(FORMATS.seconds) },
      ms: { ...logarithmic, values: spaced(number) },
      percentile: { splits: inside, values: spaced(percent) },
    };
    return {
      width: this.box.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, sync: { key: x } },
      scales: {
        x: { time: false, distr: x === "seconds" ? 1 : 3, range: (_, low, high) => [low, high] },
        y: { distr: y === "ms" ? 3 : 1, range: RANGES[y] },
      },
      axes: [
        { ...axis, size: 32, space: 60, ...along[x] },
        { ...axis, size: (_, labels) => Math.max(56, 20 + DIGIT * Math.max(...(labels ?? [""]).map((text) => text.length))), space: 32, ...(y === "ms" ? logarithmic : {}), values: (_, ticks) => ticks.map(number) },
      ],
      series: [{}, ...lines.map((line) => this.series(line))],
      hooks: { drawClear: [(plot) => this.shade(plot)], setCursor: [() => this.showValues()], ready: [(plot) => this.colour(plot)] },
    };
  }

  series(line) {
    const stroke = () => (dark.matches ? line.dark : line.light);
    return { label: line.label, stroke, width: 1.75, dash: line.dash, points: { show: false } };
  }

  // Events of the scenario, behind the lines.
  shade(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui`;
    this.data.events.forEach(([begin, end, name], index) => {
      const left = plot.valToPos(begin, "x", true);
      const right = plot.valToPos(end ?? plot.scales.x.max, "x", true);
      ctx.fillStyle = style("--shade");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.fillStyle = style("--soft");
      ctx.fillText(name, left + 4 * ratio, bbox.top + (14 + 13 * (index % 3)) * ratio);
    });
    ctx.restore();
  }

  colour() {
    for (const { line, swatch } of this.entries) swatch.style.color = dark.matches ? line.dark : line.light;
  }

  showValues() {
    const index = this.plot?.cursor.idx ?? null;
    const { x, y, places } = this.data;
    this.where.textContent = index === null ? "" : FORMATS[x](places[index]);
    for (const { line, value } of this.entries) {
      const shown = line.values[index ?? -1] ?? null;
      value.textContent = index === null ? "" : shown === null ? NONE : FORMATS[y](shown);
    }
  }

  // The range grows by `factor` around the cursor, else around the middle; charts with the same axis follow.
  zoom(factor) {
    const width = this.plot.bbox.width / devicePixelRatio;
    const centre = this.plot.cursor.left >= 0 ? this.plot.cursor.left : width / 2;
    const low = this.plot.posToVal(centre - centre * factor, "x");
    const high = this.plot.posToVal(centre + (width - centre) * factor, "x");
    for (const chart of charts) if (chart.data.x === this.data.x) chart.showRange(low, high);
  }

  reset() {
    for (const chart of charts) if (chart.data.x === this.data.x) chart.showRange(-Infinity, Infinity);
  }

  // As much of it as there are points.
  showRange(low, high) {
    const min = Math.max(low, this.data.places[0]);
    const max = Math.min(high, this.data.places.at(-1));
    if (min < max) this.plot.setScale("x", { min, max });
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    const zooms = { "+": 0.5, "-": 2 };
    if (event.key === "0") this.reset();
    else if (event.key in zooms) this.zoom(zooms[event.key]);
    else if (event.key in moves) this.move(moves[event.key]);
    else return;
    event.preventDefault();
  }

  // To the next point of the visible range.
  move(step) {
    const { min, max } = this.plot.scales.x;
    const { places } = this.data;
    const now = this.plot.cursor.idx ?? places.findIndex((place) => place >= min) - step;
    const next = places[now + step];
    if (next >= min && next <= max) this.plot.setCursor({ left: this.plot.valToPos(next, "x"), top: 1 });
  }

  showOrHideAll() {
    const labels = this.data.lines.map((line) => line.label);
    show(labels, labels.every((label) => hidden.has(label)));
  }

  update() {
    this.entries.forEach(({ line, button }, index) => {
      const isShown = !hidden.has(line.label);
      button.setAttribute("aria-pressed", isShown);
      if (this.plot.series[index + 1].show !== isShown) this.plot.setSeries(index + 1, { show: isShown });
    });
    const text = this.entries.every(({ line }) => hidden.has(line.label)) ? "Show all" : "Hide all";
    this.toggleAll.textContent = text;
    this.toggleAll.title = text;
    this.toggleAll.setAttribute("aria-label", text);
  }

  resize() {
    const width = this.box.clientWidth;
    if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }
}

function show(labels, isShown) {
  for (const label of labels) if (isShown) hidden.delete(label); else hidden.add(label);
  for (const chart of charts) chart.update();
}

document.documentElement.classList.add("interactive");
for (const element of document.querySelectorAll(".chart")) charts.push(new ReportChart(element));
dark.addEventListener("change", () => {
  for (const chart of charts) {
    chart.colour();
    chart.plot.redraw(false, true);
  }
});
