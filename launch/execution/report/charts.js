// Draws the charts again at the size of the window and adds what a drawing cannot do: values at the pointer and the keys,
// zoom of all charts at once, curves that hide, a logarithmic scale.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { CHARACTER, TICK_HEIGHT, DOT_GAP, TOP, BOTTOM } = drawing;
  const { clamp, format, valueRange, chooseTicks, chooseLogTicks, find, nearest, write, thin } = drawing;
  const full = data[0].steps;
  const view = { first: full[0], last: full[1] }; // the steps that all charts show
  let pointed = null; // the step at the pointer, which may be between two whole numbers

  const count = (step) => step.toLocaleString("en");
  // The part of a curve that the view shows, with its places where it crosses the view's ends.
  function cut({ steps, heights }) {
    const from = find(steps, view.first), to = find(steps, view.last + 1);
    const inside = heights.slice(from, to);
    const crossing = (after, step) => {
      if (after === 0 || after === steps.length || steps[after] === step) return [];
      const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
      return [[step, heights[after - 1] * (1 - share) + heights[after] * share]];
    };
    const points = inside.map((height, at) => [steps[from + at], height]);
    const isAtEnd = to > 0 && steps[to - 1] === view.last;
    const all = [...crossing(from, view.first), ...points, ...(isAtEnd ? [] : crossing(to, view.last))];
    return { from, to, all, heights: inside.some(Number.isFinite) ? inside : all.map(([, height]) => height) };
  }

  class Chart {
    constructor(figure, { lines, unit, marks = [] }) {
      this.figure = figure;
      this.marks = marks;
      this.unit = unit ? ` ${unit.split(" ")[0]}` : "";
      this.isLog = false;
      this.step = null; // the step that the readout shows
      this.plot = figure.querySelector(".plot");
      this.svg = this.plot.querySelector("svg");
      this.area = figure.querySelector(".area");
      this.canvas = figure.querySelector(".curves");
      this.readout = figure.querySelector(".readout");
      this.over = this.plot.appendChild(document.createElement("div"));
      this.over.className = "over";
      this.over.setAttribute("aria-hidden", "true");
      this.cursor = this.addMark("cursor");
      this.selection = this.addMark("selection");
      const groups = [...this.canvas.children];
      this.lines = lines.map((line, at) => {
        const [curve, dots] = groups[at].children;
        const point = this.addMark(`point ${groups[at].classList[0]}`);
        return { ...line, group: groups[at], curve, dots, point, isShown: true };
      });
      this.measure();
      this.transform();
    }

    addMark(name) {
      const mark = this.over.appendChild(document.createElement("i"));
      mark.className = name;
      mark.hidden = true;
      return mark;
    }

    measure() {
      this.width = this.plot.clientWidth;
      this.height = this.plot.clientHeight - TOP - BOTTOM; // the height of the curves' area
    }

    // The heights on the axis: the values or their logarithms, NaN where there is none.
    transform() {
      for (const line of this.lines) {
        line.heights = line.values.map((value) => {
          const number = typeof value === "number" ? value : NaN;
          const height = this.isLog ? Math.log10(number) : number;
          return Number.isFinite(height) ? height : NaN;
        });
      }
    }

    get steps() {
      return [view.first, view.last];
    }

    get shown() {
      return this.lines.filter((line) => line.isShown && line.steps.length);
    }

    toLeft(step) {
      return (step - view.first) / (view.last - view.first) * this.areaWidth;
    }

    toTop(height) {
      const [low, high] = this.range;
      return clamp((1 - (height / 2 - low / 2) / (high / 2 - low / 2)) * this.height, -1e5, 1e5);
    }

    draw() {
      const cuts = new Map(this.shown.map((line) => [line, cut(line)]));
      let low = Infinity, high = -Infinity;
      for (const { heights } of cuts.values()) {
        for (const height of heights) {
          if (height < low) low = height;
          if (height > high) high = height;
        }
      }
      this.range = low > high ? [0, 1] : valueRange(low, high, this.isLog);
      this.drawAxes();
      this.canvas.setAttribute("viewBox", `0 0 ${this.areaWidth} ${this.height}`);
      const isFull = view.first === full[0] && view.last === full[1];
      this.canvas.setAttribute("overflow", isFull ? "visible" : "hidden");
      for (const line of this.lines) {
        line.group.style.display = line.isShown ? "" : "none";
        if (cuts.has(line)) this.drawLine(line, cuts.get(line));
      }
    }

    drawAxes() {
      const most = Math.max(2, Math.floor(this.height / TICK_HEIGHT));
      const values = this.isLog ? chooseLogTicks(...this.range, most) : chooseTicks(...this.range, most, false);
      const stepLabel = count(full[1]).length * CHARACTER;
      const right = Math.max(12, Math.ceil(stepLabel / 2));
      const longest = Math.max(0, ...values.map(([, text]) => text.length));
      const left = Math.max(30, right, Math.ceil(longest * CHARACTER) + 10);
      this.areaWidth = Math.max(1, this.width - left - right);
      const space = Math.max(36, stepLabel + 14, this.areaWidth / 16);
      const steps = chooseTicks(view.first, view.last, Math.max(2, Math.floor(this.areaWidth / space)), true);

      const place = { left: `${left}px`, top: `${TOP}px`, width: `${this.areaWidth}px`, height: `${this.height}px` };
      Object.assign(this.over.style, place);
      this.area.setAttribute("x", left);
      this.area.setAttribute("height", this.height);
      this.svg.style.setProperty("--margin", `${left + right}px`);
      const tops = values.map(([value]) => this.toTop(this.isLog ? Math.log10(value) : value).toFixed(1));
      this.fill(".grid", tops.map((top) => ["line", { x2: "100%", y1: top, y2: top }]));
      this.fill(".value-labels", values.map(([, text], at) => ["text", { x: -6, y: tops[at], dy: ".35em" }, text]));
      this.fill(".step-labels", steps.map(([step, text]) => (
        ["text", { x: `${100 * this.toLeft(step) / this.areaWidth}%`, y: this.height + 18 }, text]
      )));
      const marks = this.marks.filter(([step]) => step >= view.first && step <= view.last);
      this.fill(".marks", marks.flatMap(([step, text]) => {
        const x = `${100 * this.toLeft(step) / this.areaWidth}%`;
        return [["line", { x1: x, x2: x, y2: this.height }], ["text", { x, dx: 4, dy: "1em" }, text]];
      }));
      for (const end of ["y1", "y2"]) this.area.querySelector(".base").setAttribute(end, this.height);
    }

    fill(selector, parts) {
      const elements = parts.map(([name, attributes, text = ""]) => {
        const element = document.createElementNS(this.svg.namespaceURI, name);
        for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
        element.textContent = text;
        return element;
      });
      this.area.querySelector(selector).replaceChildren(...elements);
    }

    drawLine(line, { from, to, all }) {
      const places = all.map(([step, height]) => [this.toLeft(step), this.toTop(height)]);
      const parts = [[]];
      for (const place of places) {
        if (Number.isFinite(place[1])) parts[parts.length - 1].push(place);
        else parts.push([]);
      }
      const lines = parts.filter((part) => part.length > 1);
      line.curve.setAttribute("d", lines.map((part) => `M${write(thin(part))}`).join(""));

      const inside = [];
      for (let at = from; at < to; at += 1) if (Number.isFinite(line.heights[at])) inside.push(at);
      const span = this.toLeft(line.steps[inside[inside.length - 1]]) - this.toLeft(line.steps[inside[0]]);
      const isAlone = (at) => !Number.isFinite(line.heights[at - 1]) && !Number.isFinite(line.heights[at + 1]);
      const dots = inside.length < 2 || span / (inside.length - 1) > DOT_GAP ? inside : inside.filter(isAlone);
      const dot = (at) => `M${write([[this.toLeft(line.steps[at]), this.toTop(line.heights[at])]])}h0`;
      line.dots.setAttribute("d", dots.map(dot).join(""));
    }

    // Shows each curve's value at the step that is nearest to the pointer.
    point() {
      this.cursor.hidden = pointed === null;
      const read = pointed === null ? [] : this.shown.map((line) => ({ line, at: nearest(line.steps, pointed) }));
      for (const line of this.lines) line.point.hidden = true;
      if (!read.length) return; // the pointer has left, and the last values stay
      this.cursor.style.left = `${this.toLeft(pointed)}px`;
      for (const { line, at } of read) {
        const step = line.steps[at];
        line.point.hidden = !Number.isFinite(line.heights[at]) || step < view.first || step > view.last;
        Object.assign(line.point.style, { left: `${this.toLeft(step)}px`, top: `${this.toTop(line.heights[at])}px` });
      }
      const steps = read.map(({ line, at }) => line.steps[at]);
      this.step = steps.reduce((best, step) => Math.abs(step - pointed) < Math.abs(best - pointed) ? step : best);
      const parts = read.map(({ line, at }, index) => {
        const own = steps[index] === this.step ? "" : ` (step ${count(steps[index])})`;
        return `${line.label} ${format(line.values[at])}${this.unit}${own}`;
      });
      this.readout.textContent = `step ${count(this.step)}: ${parts.join(", ")}`;
    }

    redraw() {
      this.draw();
      this.point();
    }
  }

  // ------------------------------------------------------------ all charts

  const charts = [...document.querySelectorAll(".chart")].map((figure, at) => new Chart(figure, data[at]));

  function zoom(from, to) {
    const [start, end] = full;
    const width = clamp(Math.round(to) - Math.round(from), 1, end - start);
    view.first = clamp(Math.round(from), start, end - width);
    view.last = view.first + width;
    for (const chart of charts) {
      const reset = chart.figure.querySelector(".reset");
      reset.hidden = width === end - start;
      reset.textContent = `steps ${count(view.first)} to ${count(view.last)}: show all`;
    }
    for (const chart of charts) chart.redraw();
  }

  function pointAt(step) {
    pointed = step;
    for (const chart of charts) chart.point();
  }

  // -------------------------------------------------- pointer and keyboard

  function followPointer(chart) {
    const { over, selection } = chart;
    let start = null; // pixels from the left, while a button or a finger is down
    const leftOf = (event) => clamp(event.clientX - over.getBoundingClientRect().left, 0, chart.areaWidth);
    const stepAt = (left) => view.first + left / chart.areaWidth * (view.last - view.first);
    const end = () => {
      start = null;
      selection.hidden = true;
    };
    over.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = leftOf(event);
      over.setPointerCapture(event.pointerId);
      pointAt(stepAt(start));
    });
    over.addEventListener("pointermove", (event) => {
      const left = leftOf(event);
      pointAt(stepAt(left));
      selection.hidden = start === null;
      Object.assign(selection.style, { left: `${Math.min(start, left)}px`, width: `${Math.abs(left - start)}px` });
    });
    over.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [from, to] = [start, leftOf(event)].sort((a, b) => a - b);
      end();
      if (to - from > 5) zoom(stepAt(from), stepAt(to));
    });
    over.addEventListener("pointercancel", end);
    over.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") pointAt(null); });
    over.addEventListener("dblclick", () => zoom(...full));
  }

  function setLog(chart, isLog) {
    const button = chart.figure.querySelector(".log");
    if (button.disabled) return;
    chart.isLog = isLog;
    button.setAttribute("aria-pressed", String(isLog));
    const isPartial = isLog && chart.lines.some((line) => line.values.some((value) => value <= 0));
    button.textContent = isPartial ? "log scale, without values at or below 0" : "log scale";
    chart.transform();
    chart.redraw();
  }

  function followKeys(chart) {
    const { figure, readout } = chart;
    figure.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
    figure.addEventListener("blur", () => readout.removeAttribute("aria-live"));
    figure.addEventListener("keydown", (event) => {
      if (event.target !== figure || event.ctrlKey || event.metaKey || event.altKey) return;
      const isInView = (step) => step >= view.first && step <= view.last;
      const steps = [...new Set(chart.shown.flatMap((line) => line.steps))].filter(isInView).sort((a, b) => a - b);
      const at = steps.indexOf(chart.step);
      const moveTo = (index) => { if (steps.length) pointAt(steps[clamp(index, 0, steps.length - 1)]); };
      const zoomBy = (factor) => {
        const middle = at < 0 ? (view.first + view.last) / 2 : steps[at];
        const half = factor * (view.last - view.first) / 2;
        if (at >= 0) pointed = middle;
        zoom(middle - half, middle + half);
      };
      const actions = {
        ArrowLeft: () => moveTo(at - 1),
        ArrowRight: () => moveTo(at + 1),
        Home: () => moveTo(0),
        End: () => moveTo(steps.length - 1),
        "+": () => zoomBy(0.5),
        "-": () => zoomBy(2),
        l: () => setLog(chart, !chart.isLog),
        Escape: () => zoom(...full),
      };
      const key = event.key === "L" ? "l" : event.key;
      if (!Object.hasOwn(actions, key)) return;
      event.preventDefault();
      actions[key]();
    });
  }

  function followButtons(chart) {
    const { figure, lines } = chart;
    figure.querySelector(".reset").addEventListener("click", () => {
      zoom(...full);
      figure.focus();
    });
    figure.querySelectorAll(".legend button").forEach((button, at) => {
      button.addEventListener("click", () => {
        lines[at].isShown = !lines[at].isShown;
        button.setAttribute("aria-pressed", String(lines[at].isShown));
        chart.redraw();
      });
    });
    const log = figure.querySelector(".log");
    const values = lines.flatMap((line) => line.values);
    log.disabled = !values.some((value) => value > 0);
    if (log.disabled) log.title = "no value is above 0";
    log.addEventListener("click", () => setLog(chart, !chart.isLog));
    log.hidden = false;
  }

  for (const follow of [followPointer, followKeys, followButtons]) charts.forEach(follow);
  for (const chart of charts) {
    chart.draw();
    chart.figure.chart = chart; // for scripts
  }
  document.querySelector(".hint").hidden = false;
  new ResizeObserver(() => {
    const changed = charts.filter((chart) => chart.plot.clientWidth !== chart.width);
    for (const chart of changed) chart.measure();
    for (const chart of changed) chart.redraw();
  }).observe(document.querySelector(".charts"));
})();
