// Charts by uPlot: values at the pointer or the arrow keys, zoom of all charts at once, curves that hide. Times in the
// reader's zone.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const figures = [...document.querySelectorAll(".chart")];
  const plots = [];
  const [first, last] = data.length ? data[0].steps : [0, 1];
  const full = first < last ? [first, last] : [first - 1, last + 1];
  const dashes = [[], [7, 4], [2, 4], [9, 4, 2, 4]];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const font = "11px " + getComputedStyle(document.body).fontFamily;
  const wholeNumbers = [...Array(15).keys()].flatMap((power) => [1, 2, 5].map((factor) => factor * 10 ** power));

  const finite = (value) => typeof value === "number";
  const count = (step) => step.toLocaleString("en");
  const format = (value) => {
    if (!finite(value)) return value;
    const size = Math.abs(value);
    if (size && (size < 1e-4 || size >= 1e9)) return Number(value.toPrecision(7)).toExponential();
    return value.toLocaleString("en", { maximumSignificantDigits: 7 });
  };

  // the position of a curve's value that is nearest to a position; in joined data undefined is a step without a value
  function nearest(values, at) {
    for (let away = 0; away < values.length; away += 1) {
      if (values[at - away] !== undefined) return at - away;
      if (values[at + away] !== undefined) return at + away;
    }
    return at;
  }

  function valueRange(low, high) {
    if (low === null) return [0, 1];
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    return Number.isFinite(margin) ? [low - margin, high + margin] : [low / 2, high / 2];
  }

  function zoom(from, to) {
    const width = Math.max(1, Math.round(to) - Math.round(from));
    const start = Math.max(full[0], Math.min(Math.round(from), full[1] - width));
    const isFull = width >= full[1] - full[0];
    const [min, max] = isFull ? full : [start, start + width];
    figures.forEach((figure, index) => {
      plots[index].setScale("x", { min, max });
      const reset = figure.querySelector(".reset");
      reset.hidden = isFull;
      reset.textContent = `steps ${count(min)} to ${count(max)}: show all`;
    });
  }

  function show(figure, chart, plot) {
    const { left, idx } = plot.cursor;
    if (left < 0 || idx === null) return; // the pointer has left: what it read stays
    const shown = chart.lines.flatMap((line, index) => (plot.series[index + 1].show && line.steps.length
      ? [{ line, step: plot.data[0][plot.cursor.idxs[index + 1]] }] : []));
    if (!shown.length) return;
    const away = ({ step }) => Math.abs(step - plot.posToVal(left, "x"));
    chart.step = shown.reduce((a, b) => (away(b) < away(a) ? b : a)).step;
    const unit = chart.unit ? ` ${chart.unit.split(" ")[0]}` : "";
    const parts = shown.map(({ line, step }) => {
      const own = step === chart.step ? "" : ` (step ${count(step)})`;
      return `${line.label} ${format(line.values[line.steps.indexOf(step)])}${unit}${own}`;
    });
    figure.querySelector(".readout").textContent = `step ${count(chart.step)}: ${parts.join(", ")}`;
  }

  function draw(figure, chart) {
    const host = figure.querySelector(".plot");
    const joined = uPlot.join(chart.lines.map((line) => [line.steps, line.values.map((value) => finite(value) ? value : null)]));
    const isAlone = (values, at) => finite(values[at]) && !finite(values[at - 1]) && !finite(values[at + 1]);
    const series = chart.lines.map((line) => {
      const stroke = () => colour(`--c${line.colour}`);
      const alone = line.steps.filter((_, at) => isAlone(line.values, at)).map((step) => joined[0].indexOf(step));
      return {
        stroke,
        width: 1.7,
        dash: dashes[line.dash],
        points: {
          size: 5,
          fill: stroke,
          show: (plot) => {
            const { min, max } = plot.scales.x;
            const shown = line.steps.filter((step) => step >= min && step <= max);
            const width = plot.valToPos(shown[shown.length - 1], "x") - plot.valToPos(shown[0], "x");
            return shown.length === 1 || width / (shown.length - 1) > 12; // there is room for a dot each
          },
          filter: (plot, _, isShown) => (isShown ? null : alone), // between two gaps there is no line to see
        },
      };
    });
    const axis = (options) => ({ font, stroke: () => colour("--soft"), ticks: { show: false }, ...options });
    const grid = { stroke: () => colour("--edge"), width: 1 };
    const label = 6.5 * count(joined[0][joined[0].length - 1] ?? 0).length; // width of the longest step's
    const plot = new uPlot({
      width: host.clientWidth,
      height: host.clientHeight,
      padding: [8, Math.max(12, label / 2), 0, 0],
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => valueRange(low, high) } },
      axes: [
        axis({
          size: 26, gap: 6, space: Math.max(50, label + 12), grid: { show: false }, incrs: wholeNumbers,
          values: (_, steps) => steps.map(count),
        }),
        axis({ size: 62, gap: 6, grid, values: (_, ticks) => ticks.map((tick) => format(Number(tick.toPrecision(4)))) }),
      ],
      series: [{}, ...series],
      cursor: {
        y: false,
        points: { size: 7 },
        drag: { setScale: false },
        sync: { key: "steps", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: { dblclick: () => () => zoom(...full) },
        dataIdx: (u, index, at) => nearest(u.data[index], at),
      },
      hooks: {
        setCursor: [(u) => show(figure, chart, u)],
        setSelect: [(u) => {
          const { left, width } = u.select;
          u.setSelect({ left: 0, width: 0, height: 0 }, false);
          if (width > 5) zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
        }],
      },
    }, joined, host);
    figure.uPlot = plot; // for scripts
    return plot;
  }

  function listen(figure, chart, plot) {
    const readout = figure.querySelector(".readout");
    figure.querySelector(".reset").addEventListener("click", () => { zoom(...full); figure.focus(); });
    figure.querySelectorAll(".legend button").forEach((button, line) => {
      button.addEventListener("click", () => {
        const isShown = !plot.series[line + 1].show;
        plot.setSeries(line + 1, { show: isShown });
        button.setAttribute("aria-pressed", String(isShown));
      });
    });
    figure.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
    figure.addEventListener("blur", () => readout.removeAttribute("aria-live"));
    figure.addEventListener("keydown", (event) => {
      if (event.target !== figure || event.ctrlKey || event.metaKey || event.altKey) return;
      const { min, max } = plot.scales.x;
      const hasValue = (at) => plot.series.some((each, index) => index && each.show && plot.data[index][at] !== undefined);
      const steps = plot.data[0].filter((step, at) => step >= min && step <= max && hasValue(at));
      if (!steps.length) return;
      const at = steps.indexOf(chart.step);
      const moveTo = (step) => plot.setCursor({ left: plot.valToPos(step, "x"), top: 0 });
      const moveBy = (count) => moveTo(steps[Math.max(0, Math.min(steps.length - 1, at + count))]);
      const zoomBy = (factor) => {
        const middle = at < 0 ? (min + max) / 2 : steps[at], half = factor * (max - min) / 2;
        zoom(middle - half, middle + half);
        if (at >= 0) queueMicrotask(() => moveTo(middle)); // after uPlot has set the new scale
      };
      const actions = {
        ArrowLeft: () => moveBy(-1),
        ArrowRight: () => moveBy(1),
        Home: () => moveTo(steps[0]),
        End: () => moveTo(steps[steps.length - 1]),
        "+": () => zoomBy(0.5),
        "-": () => zoomBy(2),
        Escape: () => zoom(...full),
      };
      if (!(event.key in actions)) return;
      event.preventDefault();
      actions[event.key]();
    });
    // uPlot listens to a mouse; a finger that moves sideways is one
    const mouse = { pointerdown: "mousedown", pointermove: "mousemove", pointerup: "mouseup" };
    for (const [type, name] of Object.entries(mouse)) {
      plot.over.addEventListener(type, (event) => {
        if (event.pointerType !== "touch") return;
        if (type === "pointerdown") plot.over.dispatchEvent(new MouseEvent("mouseenter"));
        const { clientX, clientY } = event;
        plot.over.dispatchEvent(new MouseEvent(name, { bubbles: true, clientX, clientY }));
      });
    }
  }

  if (figures.length && window.uPlot) {
    figures.forEach((figure, index) => plots.push(draw(figure, data[index])));
    figures.forEach((figure, index) => listen(figure, data[index], plots[index]));
    zoom(...full);
    const resize = () => figures.forEach((figure, index) => {
      plots[index].setSize({ width: figure.querySelector(".plot").clientWidth, height: plots[index].height });
    });
    new ResizeObserver(resize).observe(document.querySelector(".charts"));
    for (const media of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(media).addEventListener("change", resize); // draws them again, in the colours of now
    }
  }

  for (const time of document.querySelectorAll("time")) {
    const date = new Date(time.dateTime);
    if (!Number.isNaN(date.getTime())) {
      time.title = time.textContent;
      time.textContent = date.toLocaleString([], { dateStyle: "medium", timeStyle: "long" });
    }
  }
})();
