// The rules of drawing.py for a chart that is drawn again: the range and the labels of an axis, the path of a curve.
"use strict";
const drawing = (() => {
  const CHARACTER = 6.6, TICK_HEIGHT = 28, DOT_GAP = 12, LEAST_SPAN = 1e-305, TOP = 8, BOTTOM = 26; // as in drawing.py

  const clamp = (value, low, high) => Math.max(low, Math.min(value, high));
  const format = (value) => {
    if (typeof value !== "number") return value;
    const size = Math.abs(value);
    if (size && (size < 1e-4 || size >= 1e9)) return Number(value.toPrecision(7)).toExponential();
    return value.toLocaleString("en", { maximumSignificantDigits: 7 });
  };

  function valueRange(low, high, isLog) {
    const span = high / 2 - low / 2;
    let margin = span > LEAST_SPAN ? span / 10 : Math.abs(high) / 20;
    if (isLog) margin = span > LEAST_SPAN ? span / 10 : 0.1;
    if (margin <= LEAST_SPAN) margin = 1;
    return [Math.max(-Number.MAX_VALUE, low - margin), Math.min(Number.MAX_VALUE, high + margin)];
  }

  function label(value, power, isScientific) {
    if (!value) return "0";
    const digits = Math.max(0, -power);
    if (!isScientific) {
      return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    }
    const size = Number(value.toExponential(6).split("e")[1]);
    const [mantissa, exponent] = value.toExponential(clamp(size - power, 0, 20)).split("e").map(Number);
    return `${mantissa}e${exponent}`;
  }

  // The multiples of `factor` x 10^`power` from `low` to `high`.
  function multiples(low, high, factor, power) {
    const step = Number(`${factor}e${power}`), values = [];
    for (let index = Math.ceil(low / step - 1e-9); index <= Math.floor(high / step + 1e-9); index += 1) {
      values.push(Number(`${index * factor}e${power}`));
    }
    return values;
  }

  // Up to about `most` round values from `low` to `high`, with the label of each.
  function chooseTicks(low, high, most, isWhole) {
    const [mantissa, exponent] = ((high / 2 - low / 2) / most * 2).toExponential(6).split("e").map(Number);
    let factor = [1, 2, 5, 10].find((each) => each >= mantissa);
    let power = exponent;
    if (factor === 10) {
      factor = 1;
      power += 1;
    }
    if (isWhole && power < 0) {
      factor = 1;
      power = 0;
    }
    let values = multiples(low, high, factor, power);
    if (!values.length) { // the axis is between two of them
      [factor, power] = { 1: [5, power - 1], 2: [1, power], 5: [2, power] }[factor];
      values = multiples(low, high, factor, power);
    }
    const size = Math.max(0, ...values.map(Math.abs));
    const isScientific = !isWhole && (size >= 1e7 || size < 1e-3);
    return values.map((value) => [value, label(value, power, isScientific)]);
  }

  // The same for a logarithmic axis, whose ends are powers of ten.
  function chooseLogTicks(low, high, most) {
    const powers = [];
    for (let power = Math.floor(low); power <= high; power += 1) powers.push(power);
    const every = Math.ceil(powers.length / most);
    const factors = powers.length <= 3 ? [1, 2, 5] : [1];
    const isInside = (value) => Math.log10(value) >= low && Math.log10(value) <= high;
    const values = powers.filter((power) => power % every === 0)
      .flatMap((power) => factors.map((factor) => Number(`${factor}e${power}`))).filter(isInside);
    if (values.length > 2) return values.map((value) => [value, format(value).replace("+", "")]);
    return chooseTicks(10 ** low, Math.min(10 ** high, Number.MAX_VALUE), most, false);
  }

  // The first position whose step is at least `step`.
  function find(steps, step) {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low;
  }

  function nearest(steps, step) {
    const after = find(steps, step);
    if (after === 0 || after === steps.length) return Math.max(0, after - 1);
    return steps[after] - step < step - steps[after - 1] ? after : after - 1;
  }

  const writePlace = (place) => place.map((pixels) => Math.round(pixels * 10) / 10).join(" ");
  const write = (places) => places.map(writePlace).join(" ");

  // A curve with at most four places in each column of pixels: the first, the ends, and the last.
  function thin(places) {
    const kept = [];
    for (let from = 0, to; from < places.length; from = to) {
      const column = Math.floor(places[from][0]);
      let low = from, high = from;
      for (to = from; to < places.length && Math.floor(places[to][0]) === column; to += 1) {
        if (places[to][1] < places[low][1]) low = to;
        if (places[to][1] > places[high][1]) high = to;
      }
      const ends = low < high ? [low, high] : [high, low];
      [from, ...ends, to - 1].forEach((at, index, all) => { if (at !== all[index - 1]) kept.push(places[at]); });
    }
    return kept;
  }

  return {
    CHARACTER, TICK_HEIGHT, DOT_GAP, TOP, BOTTOM,
    clamp, format, valueRange, chooseTicks, chooseLogTicks, find, nearest, write, thin,
  };
})();
