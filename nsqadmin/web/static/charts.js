// Charts: drawn again at their real width, updated with each sample, with a cursor that all charts of a page share.
"use strict";

const Charts = (() => {
  const HEIGHT = 128, LEAST_LEFT = 44, RIGHT = 6, TOP = 8, BOTTOM = 18;
  const STYLES = ["solid", "dashed", "dotted"], LABEL = 12;  // of lines; the pixels that a label at a line needs
  const LETTER = 6, GAP = 5;  // the largest width of a digit beside the axis, and the distance of these numbers from it
  const SVG = "http://www.w3.org/2000/svg";
  const all = [];

  const make = (name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // The top of an axis: a round number whose half is round as well.
  const niceTop = (highest) => {
    if (!(highest > 0)) return 1;
    const magnitude = 10 ** Math.floor(Math.log10(highest));
    return [1, 2, 4, 6, 8, 10].map((digit) => digit * magnitude).find((top) => top >= highest * 0.999);
  };

  // A point between gaps is a dot.
  const path = (points) => {
    let text = "", run = 0;
    for (const [x, y] of [...points, [0, null]]) {
      if (y !== null) { text += `${run ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`; run += 1; }
      else { if (run === 1) text += "h0"; run = 0; }
    }
    return text;
  };

  // Where the labels of lines go that end at these heights: above each line, and not above each other.
  const labelPlaces = (ends) => {
    const places = ends.map(() => null);
    let lowest = Infinity;
    for (const at of ends.map((_, at) => at).filter((at) => ends[at] !== null).sort((a, b) => ends[b] - ends[a])) places[at] = lowest = Math.min(ends[at] - 4, lowest - LABEL);
    const down = Math.max(0, TOP + 2 - Math.min(...places.filter((place) => place !== null)));
    return places.map((place) => (place === null ? null : place + down));
  };

  // Samples come a little late, and 12 minutes are not to read as 12m 3s.
  const roundSpan = (seconds) => (seconds >= 600 ? 60 * Math.floor(seconds / 60 + 0.5) : seconds >= 60 ? 10 * Math.floor(seconds / 10 + 0.5) : seconds);

  const area = (points, floor) => {
    let text = "", run = [];
    for (const [x, y] of [...points, [0, null]]) {
      if (y !== null) run.push([x, y]);
      else if (run.length) {
        const inside = run.map(([a, b]) => `L${a.toFixed(1)} ${b.toFixed(1)}`).join("");
        text += `M${run[0][0].toFixed(1)} ${floor}${inside}L${run.at(-1)[0].toFixed(1)} ${floor}Z`;
        run = [];
      }
    }
    return text;
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.svg = figure.querySelector("svg.plot");
      this.svg.setAttribute("tabindex", "0");
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.hidden = true;
      figure.append(this.tip);
      this.take(figure.dataset.chart);
      this.svg.addEventListener("pointermove", (event) => point(this.at(event.clientX), this));
      this.svg.addEventListener("pointerleave", () => point(null));
      this.svg.addEventListener("blur", () => point(null));
      this.svg.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.draw()).observe(this.svg);
    }

    take(json) {
      this.data = JSON.parse(json);
      for (const line of this.data.lines) line.now = line.values.findLast((value) => value !== null);
      this.hasTimes = Math.max(0, ...this.data.lines.map((line) => line.values.length)) > 1;
      this.length = Math.max(this.data.points ?? 0, ...this.data.lines.map((line) => line.values.length));
      for (const line of this.data.lines) line.values = [...Array(this.length - line.values.length).fill(null), ...line.values];
      this.draw();
    }

    // Adds a sample. A value that is not among the cells has not changed.
    append(time, cells) {
      if (!this.data.lines.some((line) => line.key)) return; // a pipeline's chart changes with its file only
      if (time <= this.data.end || !this.length || time - this.data.end < this.data.step * 0.5) return;
      this.data.end = time;
      for (const line of this.data.lines) {
        if (line.key in cells) line.now = cells[line.key];
        const isGap = this.data.partial && line.count; // a sum with old numbers in it
        line.values.push(isGap ? null : line.now ?? null);
        line.values.shift();
      }
      this.draw();
      this.words();
    }

    // Writes the numbers above the chart, and its label for screen readers.
    words() {
      const texts = this.data.lines.map((line) => Numbers[this.data.form](line.values.at(-1) ?? null));
      this.figure.querySelectorAll(".key b").forEach((number, at) => { number.textContent = texts[at]; number.title = Numbers.exact(this.data.lines[at].values.at(-1) ?? null); });
      const said = this.data.lines.map((line, at) => `${line.label} ${texts[at]}`).join(", ");
      this.svg.setAttribute("aria-label", `${this.figure.querySelector("figcaption b").textContent}: ${said}`);
    }

    get width() { return Math.max(200, this.svg.clientWidth || 480); }
    x(at) { return this.left + (at * (this.width - this.left - RIGHT)) / Math.max(1, this.length - 1); }
    y(value, top) { const high = HEIGHT - BOTTOM - TOP; return TOP + high - Math.min(1, Math.max(0, value) / top) * high; }

    draw() {
      const { width } = this, write = Numbers[this.data.form], floor = HEIGHT - BOTTOM;
      const values = this.data.lines.flatMap((line) => line.values).filter((value) => value !== null);
      const top = Math.max(niceTop(Math.max(0, ...values)), this.data.form === "count" ? 2 : 0);
      const parts = [], levels = [0, top / 2, top];
      this.left = Math.max(LEAST_LEFT, GAP + LETTER * Math.max(...levels.map((level) => write(level).length)));
      for (const level of levels) {
        const y = this.y(level, top);
        parts.push(make("line", { class: "grid", x1: this.left, x2: width - RIGHT, y1: y, y2: y }));
        parts.push(make("text", { x: this.left - GAP, y: y + 3.5, "text-anchor": "end" }, write(level)));
      }
      const span = roundSpan(this.length * this.data.step);
      if (this.hasTimes) {
        parts.push(make("text", { x: this.left, y: HEIGHT - 3 }, `−${Numbers.duration(span)}`));
        parts.push(make("text", { x: (this.left + width - RIGHT) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, `−${Numbers.duration(span / 2)}`));
        parts.push(make("text", { x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
      }
      const isSeveral = this.data.lines.length > 1;
      const ends = labelPlaces(this.data.lines.map((line) => (line.values.length && line.values.at(-1) !== null ? this.y(line.values.at(-1), top) : null)));
      for (const [number, line] of this.data.lines.entries()) {
        const points = line.values.map((value, at) => [this.x(at), value === null ? null : this.y(value, top)]);
        const group = make("g", { class: `${line.colour} ${STYLES[number] ?? ""}` });
        if (line.filled) group.append(make("path", { class: "area", d: area(points, floor) }));
        group.append(make("path", { class: "line", d: path(points) }));
        parts.push(group);
        if (isSeveral && ends[number] !== null) parts.push(make("text", { class: `at-line ${line.colour}`, x: width - RIGHT - 3, y: ends[number], "text-anchor": "end" }, line.label));
      }
      if (!values.length) parts.push(make("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no samples yet"));
      this.cursor = make("line", { class: "cursor", y1: TOP, y2: floor, visibility: "hidden" });
      parts.push(this.cursor);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      this.svg.replaceChildren(...parts);
    }

    at(clientX) {
      const x = clientX - this.svg.getBoundingClientRect().left;
      const at = Math.round(((x - this.left) * (this.length - 1)) / (this.width - this.left - RIGHT));
      return this.length ? Math.min(this.length - 1, Math.max(0, at)) : null;
    }

    show(at, isOwner) {
      if (at === null || at >= this.length) { this.cursor.setAttribute("visibility", "hidden"); this.tip.hidden = true; this.shown = null; return; }
      this.shown = at;
      const x = this.x(at), back = (this.length - 1 - at) * this.data.step;
      this.cursor.setAttribute("x1", x);
      this.cursor.setAttribute("x2", x);
      this.cursor.setAttribute("visibility", "visible");
      const time = new Date((this.data.end - back) * 1000).toLocaleTimeString([], { hourCycle: "h23" });
      const write = Numbers[this.data.form];
      this.tip.textContent = `${time} · ${this.data.lines.map((line) => `${line.label} ${write(line.values[at] ?? null)}`).join(" · ")}`;
      this.tip.hidden = false;
      const room = this.figure.clientWidth - this.tip.offsetWidth - 4;
      this.tip.style.left = `${Math.max(4, Math.min(room, x + (x > this.width / 2 ? -this.tip.offsetWidth - 2 : 22)))}px`;
      this.tip.style.top = `${this.svg.offsetTop + 6}px`;
      if (isOwner) this.tip.setAttribute("role", "status"); else this.tip.removeAttribute("role");
    }

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      if (!step || !this.length) return;
      event.preventDefault();
      point(Math.min(this.length - 1, Math.max(0, (this.shown ?? this.length - 1) + step)), this);
    }
  }

  const point = (at, owner) => all.forEach((chart) => chart.show(at, chart === owner));

  return {
    start: () => document.querySelectorAll("[data-chart]").forEach((figure) => all.push(new Chart(figure))),
    append: (time, cells) => all.forEach((chart) => chart.append(time, cells)),
    // Takes the data of the same charts from a page that was fetched again.
    retake: (page) => {
      const fresh = page.querySelectorAll("[data-chart]");
      all.forEach((chart, at) => { if (fresh[at]) { chart.take(fresh[at].dataset.chart); chart.words(); } });
    },
  };
})();
