// Charts: drawn again at their real width and in the viewer's zone, updated with each sample, with a cursor that all charts
// of a page share, and a brush that sets the time they show. That time is in the URL, in UTC.
"use strict";

const Charts = (() => {
  const HEIGHT = 128, LEAST_LEFT = 44, RIGHT = 6, TOP = 8, BOTTOM = 18;
  const STYLES = ["solid", "dashed", "dotted"];  // of lines
  const LETTER = 6, GAP = 5;  // the largest width of a digit beside the axis, and the distance of these numbers from it
  const HATCH = 5, NEAR = 6, LEAST_BRUSH = 6;  // pixels: between strokes of a band, to an event, and of a drag that is no click
  const TEXT = 64;  // pixels for a time below the axis
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];
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
  const axisText = (text) => text.replace(/\.(\d*?)0+(?!\d)/g, (_, digits) => (digits ? `.${digits}` : ""));

  // A point between gaps is a dot.
  const path = (points) => {
    let text = "", run = 0;
    for (const [x, y] of [...points, [0, null]]) {
      if (y !== null) { text += `${run ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`; run += 1; }
      else { if (run === 1) text += "h0"; run = 0; }
    }
    return text;
  };

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

  // The strokes of a band between two heights.
  const hatching = (points) => {
    let text = "", before = null;
    for (const [x, low, high] of points) {
      if (low === null || high === null) { before = null; continue; }
      if (!before) text += `M${x.toFixed(0)} ${low.toFixed(0)}V${high.toFixed(0)}`;
      else for (let at = Math.ceil((before[0] + 0.01) / HATCH) * HATCH; at <= x; at += HATCH) {
        const share = (at - before[0]) / (x - before[0]);
        text += `M${at} ${(before[1] + share * (low - before[1])).toFixed(0)}V${(before[2] + share * (high - before[2])).toFixed(0)}`;
      }
      before = [x, low, high];
    }
    return text;
  };

  // Round times in the viewer's zone, each with its text. Days are counted by the calendar, because some have 23 hours.
  const two = (number) => String(number).padStart(2, "0");
  const textAt = (at, step) => {
    const date = new Date(at * 1000), clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
    if (date.getHours() + date.getMinutes() + date.getSeconds() === 0) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    return step < 60 ? `${clock}:${two(date.getSeconds())}` : clock;
  };
  const ticks = (begin, end, most) => {
    const step = STEPS.find((step) => (end - begin) / step <= most) ?? STEPS.at(-1), found = [];
    const offset = -60 * new Date(begin * 1000).getTimezoneOffset();
    const day = new Date(begin * 1000);
    day.setHours(24, 0, 0, 0);
    for (let at = step < 86400 ? Math.ceil((begin + offset) / step) * step - offset : day / 1000; at <= end;) {
      found.push([at, textAt(at, step)]);
      if (step < 86400) at += step; else { day.setDate(day.getDate() + step / 86400); at = day / 1000; }
    }
    return found;
  };
  const utc = (at) => new Date(Math.round(at) * 1000).toISOString().replace(".000", "");
  const spell = (at) => new Date(at * 1000).toLocaleTimeString([], { hourCycle: "h23" });

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.svg = figure.querySelector("svg.plot");
      this.svg.setAttribute("tabindex", "0");
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.hidden = true;
      figure.append(this.tip);
      this.take(figure);
      this.svg.addEventListener("pointermove", (event) => { if (this.brushed) this.brush(this.timeAt(event.clientX)); point(this.timeAt(event.clientX), this); });
      this.svg.addEventListener("pointerleave", () => { if (!this.brushed) point(null); });
      this.svg.addEventListener("blur", () => { this.endBrush(); point(null); });
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.button || !range()) return;
        this.svg.setPointerCapture(event.pointerId);
        this.brushed = { from: this.timeAt(event.clientX), x: event.clientX };
      });
      this.svg.addEventListener("pointerup", (event) => {
        const began = this.brushed;
        if (began?.to !== undefined && Math.abs(event.clientX - began.x) >= LEAST_BRUSH) this.zoom();
        this.endBrush();
      });
      this.svg.addEventListener("pointercancel", () => this.endBrush());
      new ResizeObserver(() => this.draw()).observe(this.svg);
    }

    // Takes the data of a figure: this one, or the same one of a page that was fetched again.
    take(figure) {
      this.data = JSON.parse(figure.dataset.chart);
      this.events = JSON.parse(figure.parentElement.dataset.events ?? "[]");
      for (const line of this.data.lines) {
        line.now = line.values.findLast((value) => value !== null);
        line.old ??= [];
      }
      this.data.lower ??= [];
      const length = Math.max(0, ...this.data.lines.map((line) => line.values.length));
      this.times = Array.from({ length }, (_, at) => this.data.last - (length - 1 - at) * this.data.step);
      if (figure !== this.figure) for (const key of [".key.hatched", "svg.plot"]) this.copy(figure, key);
      this.draw();
    }

    copy(figure, which) {
      const [old, fresh] = [this.figure.querySelector(which), figure.querySelector(which)];
      if (which === "svg.plot") old.setAttribute("aria-label", fresh.getAttribute("aria-label"));
      else { old.hidden = fresh.hidden; old.innerHTML = fresh.innerHTML; }
    }

    // Adds a sample. A value that is not among the cells has not changed. What silent nodes last reported does not change.
    append(time, cells) {
      if (!this.data.live || !this.data.lines.some((line) => line.key)) return;
      if (time <= this.data.last || !this.times.length || time - this.data.last < this.data.step * 0.5) return;
      this.data.begin += time - this.data.end;
      this.data.end = this.data.last = time;
      this.times.push(time);
      this.data.lower.push(this.data.partial ? 1 : 0);
      for (const line of this.data.lines) {
        if (line.key in cells) line.now = cells[line.key];
        line.values.push(line.now ?? null);
        if (line.old.length) line.old.push(this.data.partial ? line.old.at(-1) : 0);
      }
      while (this.times[0] < this.data.begin) {
        this.times.shift();
        this.data.lower.shift();
        for (const line of this.data.lines) { line.values.shift(); line.old.shift(); }
      }
      this.draw();
      this.words();
    }

    // Writes the numbers above the chart, and its label for screen readers.
    words() {
      const texts = this.data.lines.map((line) => Numbers[this.data.form](line.values.at(-1) ?? null));
      this.figure.querySelectorAll(".key:not(.hatched) b").forEach((number, at) => { number.textContent = texts[at]; number.title = Numbers.exact(this.data.lines[at].values.at(-1) ?? null); });
      const said = this.data.lines.map((line, at) => `${line.label} ${texts[at]}`), band = this.figure.querySelector(".key.hatched");
      if (!band.hidden) said.push(band.textContent.trim());
      this.svg.setAttribute("aria-label", `${this.figure.querySelector("figcaption b").textContent}: ${said.join(", ")}`);
    }

    get width() { return Math.max(200, this.svg.clientWidth || 480); }
    get length() { return this.data.end - this.data.begin; }
    x(at) { return this.left + ((at - this.data.begin) / this.length) * (this.width - this.left - RIGHT); }
    y(value, top) { const high = HEIGHT - BOTTOM - TOP; return TOP + high - Math.min(1, Math.max(0, value) / top) * high; }

    draw() {
      const { width } = this, write = Numbers[this.data.form], floor = HEIGHT - BOTTOM;
      const values = this.data.lines.flatMap((line) => line.values).filter((value) => value !== null);
      const top = Math.max(niceTop(Math.max(0, ...values)), this.data.form === "count" ? 2 : 0);
      const parts = [], levels = [0, top / 2, top].map((level) => [level, axisText(write(level))]);
      this.left = Math.max(LEAST_LEFT, GAP + LETTER * Math.max(...levels.map(([, text]) => text.length)));
      for (const [level, text] of levels) {
        const y = this.y(level, top);
        parts.push(make("line", { class: "grid", x1: this.left, x2: width - RIGHT, y1: y, y2: y }));
        parts.push(make("text", { x: this.left - GAP, y: y + 3.5, "text-anchor": "end" }, text));
      }
      if (this.length > 1) {
        for (const [at, text] of ticks(this.data.begin, this.data.end, Math.max(2, Math.min(8, Math.floor((width - this.left) / TEXT))))) {
          const x = this.x(at), isFirst = x - this.left < 18, isLast = width - x < 20;
          parts.push(make("line", { class: "grid", x1: x, x2: x, y1: floor, y2: floor + 3 }));
          parts.push(make("text", { x: isFirst ? this.left : isLast ? width - 1 : x, y: HEIGHT - 3, "text-anchor": isFirst ? "start" : isLast ? "end" : "middle" }, text));
        }
      }
      for (const [number, line] of this.data.lines.entries()) {
        const low = (value, at) => (value === null ? null : value - (line.old[at] ?? 0));
        const points = line.values.map((value, at) => [this.x(this.times[at]), value === null ? null : this.y(value, top)]);
        const known = line.values.map((value, at) => [points[at][0], value === null ? null : this.y(low(value, at), top)]);
        // A count has its last known part as a band; a rate may be anything above its lower bound.
        const high = (at) => (line.old[at] > 0 ? points[at][1] : line.kind === "rate" && !number && this.data.lower[at] ? TOP : null);
        const bands = known.map(([x, y], at) => [x, y, high(at)]);
        const group = make("g", { class: `${line.colour} ${STYLES[number] ?? ""}` });
        if (line.filled) group.append(make("path", { class: "area", d: area(known, floor) }));
        group.append(make("path", { class: line.kind === "rate" ? "band more" : "band", d: hatching(bands) }));
        group.append(make("path", { class: "line", d: path(points) }));
        parts.push(group);
      }
      for (const [at] of this.events) {
        const x = this.x(at);
        if (x >= this.left && x <= width) parts.push(make("path", { class: "event", d: `M${x.toFixed(1)} ${TOP}V${floor}l-4 6h8l-4 -6` }));
      }
      if (!values.length) parts.push(make("text", { x: (this.left + width) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, `Unknown: no sample ${this.data.live ? "yet" : "of this time is kept"}`));
      this.cursor = make("line", { class: "cursor", y1: TOP, y2: floor, visibility: "hidden" });
      this.box = make("rect", { class: "brush", y: TOP, height: floor - TOP, visibility: "hidden" });
      parts.push(this.box, this.cursor);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      this.svg.replaceChildren(...parts);
      this.showBrush();
    }

    timeAt(clientX) {
      const share = (clientX - this.svg.getBoundingClientRect().left - this.left) / (this.width - this.left - RIGHT);
      return this.data.begin + Math.min(1, Math.max(0, share)) * this.length;
    }

    // Shows the sample that is nearest to a time, and the events there.
    show(time, isOwner) {
      if (time === null || time < this.data.begin || time > this.data.end) { this.cursor.setAttribute("visibility", "hidden"); this.tip.hidden = true; return; }
      const reach = Math.max(this.data.step, (NEAR * this.length) / this.width);
      let at = 0;
      for (const [number, other] of this.times.entries()) if (Math.abs(other - time) < Math.abs(this.times[at] - time)) at = number;
      const isSample = this.times.length && Math.abs(this.times[at] - time) <= reach;
      const shown = isSample ? this.times[at] : time, x = this.x(shown), write = Numbers[this.data.form];
      for (const [key, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cursor.setAttribute(key, value);
      const near = this.events.filter(([when]) => Math.abs(when - time) <= Math.max(NEAR * this.length / this.width, isSample ? this.data.step / 2 : 0)).map(([, text]) => text);
      const word = (line) => {
        const value = isSample ? line.values[at] ?? null : null, old = line.old[at] ?? 0;
        return `${line.label} ${line.kind === "rate" && this.data.lower[at] && value !== null ? "≥ " : ""}${write(value)}${old && value !== null ? `, ${write(old)} of it last known` : ""}`;
      };
      this.tip.textContent = [spell(shown), ...this.data.lines.map(word), ...near].join(" · ");
      this.tip.hidden = false;
      const room = this.figure.clientWidth - this.tip.offsetWidth - 4;
      this.tip.style.left = `${Math.max(4, Math.min(room, x + (x > this.width / 2 ? -this.tip.offsetWidth - 2 : 22)))}px`;
      this.tip.style.top = `${this.svg.offsetTop + 6}px`;
      if (isOwner) this.tip.setAttribute("role", "status"); else this.tip.removeAttribute("role");
    }

    // The brush: a drag with the pointer, or Shift with the arrows and then Enter.
    brush(time) { this.brushed.to = time; this.showBrush(); }
    showBrush() {
      const { from, to } = this.brushed ?? {};
      if (to === undefined) return this.box.setAttribute("visibility", "hidden");
      const [left, right] = [this.x(from), this.x(to)].sort((a, b) => a - b);
      for (const [key, value] of [["x", left], ["width", right - left], ["visibility", "visible"]]) this.box.setAttribute(key, value);
    }
    endBrush() { this.brushed = null; this.showBrush(); }
    zoom() { choose(Math.min(this.brushed.from, this.brushed.to), Math.max(this.brushed.from, this.brushed.to)); }

    key(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape" && this.brushed) this.endBrush();
      else if (event.key === "Enter" && this.brushed?.to !== undefined) { this.zoom(); this.endBrush(); }
      else if (by && this.times.length) {
        const now = pointed ?? this.times.at(-1), moved = this.times.findLastIndex((time) => time <= now + 0.01) + by;
        const time = this.times[Math.min(this.times.length - 1, Math.max(0, moved))];
        if (event.shiftKey && range()) { this.brushed ??= { from: now }; this.brush(time); } else this.endBrush();
        point(time, this);
      } else return;
      event.preventDefault();
    }
  }

  let pointed = null;
  const point = (time, owner) => { pointed = time; all.forEach((chart) => chart.show(time, chart === owner)); };

  // The time that all charts show

  const range = () => document.querySelector("[data-range]");
  async function go(url) {
    history.pushState(null, "", url);
    await renew();
  }
  let shown = location.search;
  async function renew() {
    if (location.search === shown) return; // only the place on the page has changed
    shown = location.search;
    if (!await Page.refresh({ waits: true })) location.reload();
    Page.announce(`Charts show ${range().querySelector(".chip")?.innerText ?? range().querySelector("[aria-current]")?.innerText ?? ""}`);
  }
  function choose(from, to) {
    const url = new URL(location.href);
    for (const name of ["span", "fresh"]) url.searchParams.delete(name);
    url.searchParams.set("from", utc(from));
    url.searchParams.set("to", utc(Math.max(to, from + 10)));
    go(url.href.replaceAll("%3A", ":"));
  }
  const isHere = (link) => { const url = new URL(link.href); return url.origin === location.origin && url.pathname === location.pathname; };
  const zone = () => new Date().toLocaleTimeString("en-GB", { timeZoneName: "short" }).split(" ").slice(1).join(" ");

  // Turns the times of a range into those of the viewer's zone.
  function dress(part) {
    const here = part.matches?.("[data-range]") ? part : part.querySelector("[data-range]");
    if (!here) return;
    here.querySelector(".zone").textContent = `Times in ${zone()}`;
    for (const input of here.querySelectorAll("[data-times] input")) {
      const at = new Date(`${input.value}Z`);
      input.value = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
    }
  }

  function start() {
    document.querySelectorAll("[data-chart]").forEach((figure) => all.push(new Chart(figure)));
    if (!range()) return;
    addEventListener("popstate", renew);
    document.addEventListener("submit", (event) => {
      if (!event.target.matches("[data-times]")) return;
      event.preventDefault();
      const [from, to] = ["from", "to"].map((name) => new Date(event.target.elements[name].value) / 1000).sort((a, b) => a - b);
      event.target.closest("details").open = false;
      document.activeElement?.blur();
      choose(from, to);
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.("[data-range] a");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button || !isHere(link)) return;
      event.preventDefault();
      link.blur();
      const url = new URL(location.href);
      for (const name of ["span", "from", "to"]) url.searchParams.delete(name);
      for (const [name, value] of new URL(link.href).searchParams) url.searchParams.set(name, value);
      go(url.href);
    });
  }

  return {
    start, dress, ticks, axisText,
    append: (time, cells) => all.forEach((chart) => chart.append(time, cells)),
    // Takes the data of the same charts from a page that was fetched again.
    retake: (page) => {
      const fresh = page.querySelectorAll("[data-chart]");
      all.forEach((chart, at) => { if (fresh[at]) { chart.take(fresh[at]); chart.words(); } });
    },
  };
})();
