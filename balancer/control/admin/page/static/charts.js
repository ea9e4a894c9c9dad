// Charts of the last five minutes. The points come from the balancer, so that a page opened later shows them too.

const SPAN = 300;
const REGION_LIMIT = 8;
const CHART_HEIGHT = 150;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Chart {
  // `series`: [{ label, colour, of: point -> value }], or a function of the points that returns them.
  constructor(title, series, format, range) {
    Object.assign(this, { title, series, format, range, plot: null, labels: "" });
    this.legend = make("ul", { class: "legend" });
    this.box = make("div", { class: "plot", "aria-hidden": "true" });
    const name = make("h2", {}, title);
    this.element = make("figure", { class: "card" }, make("figcaption", {}, name, this.legend), this.box);
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  resize() {
    const width = this.box.clientWidth;
    if (this.plot && width && Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: CHART_HEIGHT });
  }

  draw(points, times) {
    const series = typeof this.series === "function" ? this.series(points) : this.series;
    const data = [times, ...series.map((one) => points.map((point) => (point ? one.of(point) ?? null : null)))];
    const labels = series.map((one) => one.label).join("\n");
    if (!this.plot || labels !== this.labels) this.renew(series, data);
    this.labels = labels;
    const end = times.at(-1);
    this.plot.batch(() => {
      this.plot.setData(data, false);
      this.plot.setScale("x", { min: end - SPAN, max: end });
    });
    this.showValues(null);
  }

  renew(series, data) {
    this.plot?.destroy();
    this.legend.replaceChildren();
    this.values = series.map((one) => {
      const value = make("b", {}, NONE);
      const chip = make("i", { "aria-hidden": "true" });
      chip.style.background = colour(one.colour);
      this.legend.append(make("li", {}, chip, `${one.label} `, value));
      return value;
    });
    const axis = {
      stroke: colour("--muted"),
      font: "11px system-ui",
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { show: false },
    };
    const options = {
      width: this.box.clientWidth || 300,
      height: CHART_HEIGHT,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "charts" } },
      scales: { x: { time: true }, y: { range: this.range } },
      axes: [
        { ...axis, space: 70, size: 24, values: (_, times) => times.map((time) => clock(new Date(time * 1000)).slice(0, 5)), incrs: [60, 120] },
        { ...axis, size: 52, space: 32, values: (_, values) => values.map(this.format) },
      ],
      series: [{}, ...series.map((one) => ({ label: one.label, stroke: colour(one.colour), width: 1.75, points: { show: false } }))],
      hooks: { setCursor: [(plot) => this.showValues(plot.cursor.idx)] },
    };
    this.plot = new uPlot(options, data, this.box);
  }

  // Values under the cursor, else the latest.
  showValues(index) {
    this.plot.data.slice(1).forEach((column, number) => {
      const value = column[index ?? column.length - 1];
      setText(this.values[number], value === null || value === undefined ? NONE : this.format(value));
    });
  }
}

const upFromZero = (_, low, high) => [0, high > 0 ? high * 1.1 : 1];

function regionsIn(points) {
  const names = [...new Set(points.flatMap((point) => (point ? Object.keys(point.shares) : [])))];
  return names.slice(0, REGION_LIMIT).map((name, number) => ({
    label: name,
    colour: `--series-${number + 1}`,
    of: (point) => point.shares[name],
  }));
}

class Charts {
  constructor(parent) {
    this.points = [];
    this.charts = [
      new Chart("Requests per second", [{ label: "requests", colour: "--series-1", of: (p) => p.rate }], rate, upFromZero),
      new Chart(
        "Latency",
        [
          { label: "p50", colour: "--series-1", of: (p) => p.p50 },
          { label: "p99", colour: "--series-2", of: (p) => p.p99 },
        ],
        duration,
        upFromZero,
      ),
      new Chart(
        "Failures per second",
        [
          { label: "failed attempts", colour: "--series-2", of: (p) => p.failed },
          { label: "error responses", colour: "--series-4", of: (p) => p.errors },
        ],
        rate,
        upFromZero,
      ),
      new Chart("Share of requests by region", regionsIn, percent, () => [0, 1]),
    ];
    parent.append(...this.charts.map((chart) => chart.element));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  // After an interruption the balancer's points replace those of the same time.
  replace(points) {
    const first = points.length ? points[0].at : Infinity;
    const last = points.length ? points.at(-1).at : -Infinity;
    this.points = [...this.points.filter((point) => point.at < first && point.at <= last), ...points];
  }

  add(point, period) {
    this.period = period;
    if (this.points.length && this.points.at(-1).at >= point.at) return;
    this.points.push(point);
    while (this.points[0].at < point.at - SPAN) this.points.shift();
    this.draw();
  }

  draw() {
    if (!this.points.length) return;
    const end = this.points.at(-1).at;
    const shown = [];
    let previous = null;
    for (const point of this.points) {
      if (previous !== null && point.at - previous > 2.5 * this.period) shown.push([previous + this.period, null]);
      shown.push([point.at, point]);
      previous = point.at;
    }
    const now = Date.now() / 1000; // the balancer's clock counts from its own zero
    const times = shown.map(([at]) => now - (end - at));
    for (const chart of this.charts) chart.draw(shown.map(([, point]) => point), times);
  }

  recolour() {
    for (const chart of this.charts) chart.labels = null;
    this.draw();
  }
}
