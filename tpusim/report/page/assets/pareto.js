// Two columns against each other, and the points than which none is better in both.

const pareto = { x: "", y: "", front: new Set() };

// What may be wanted: the sweep's own goals, then other figures that differ from point to point, and axes of numbers.
function wishes() {
  const own = data.goals.map(({ key, better }) => `${better} ${key}`);
  const figures = data.wishes.map((key) => `${figureOf(key).better} ${key}`);
  const axes = varying.filter((axis) => axis.measures).flatMap(({ key }) => [`-1 ${key}`, `1 ${key}`]);
  const told = (code) => `${wishOf(code).better < 0 ? "lower" : "higher"} ${nameWithUnit(asColumn(wishOf(code).key))}`;
  return [...(own.length ? [] : [["", "choose"]]), ...[...new Set([...own, ...figures, ...axes])].map((code) => [code, told(code)])];
}

const wishOf = (code) => ({ better: Number(code.split(" ")[0]), key: code.slice(code.indexOf(" ") + 1) });

// The goals that the sweep set; without any, the reader chooses.
function firstWishes() {
  [pareto.x, pareto.y] = [0, 1].map((n) => (data.goals[n] ? `${data.goals[n].better} ${data.goals[n].key}` : ""));
}

function frontOf(items) {
  const [x, y] = [wishOf(pareto.x), wishOf(pareto.y)];
  const cost = (wish, i) => -wish.better * measured(wish.key, i);
  const order = [...items].sort((a, b) => cost(x, a) - cost(x, b) || cost(y, a) - cost(y, b));
  let lowest = Infinity;
  let last = null;
  return order.filter((i) => {
    const same = last !== null && cost(x, i) === cost(x, last) && cost(y, i) === cost(y, last);
    if (cost(y, i) >= lowest && !same) return false;
    [lowest, last] = [cost(y, i), i];
    return true;
  });
}

// A scale over a column: to scale, logarithmic where values differ much.
function pointScale(key, items, start, end, count) {
  const column = asColumn(key);
  const values = items.map((i) => (axisOf(key) ? measured(key, i) : scaled(column, points[key][i])));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  if (spread(values)) {
    const scale = logarithmic(low / 1.2, high * 1.2, start, end);
    return { values, scale, round: logTicks(low / 1.2, high * 1.2, count), label: logText, note: ", logarithmic" };
  }
  const { step, values: round } = ticks(low - pad, high + pad, count);
  return { values, scale: linear(low - pad, high + pad, start, end), round, label: (value) => tickText(value, step), note: "" };
}

// The values of an axis are ticks themselves: "256 KiB" rather than 262144.
function axisTicks(key, made) {
  const axis = axisOf(key);
  if (!axis || axis.values.length > MOST_PLACES) return made;
  return { ...made, round: axis.measures, label: (value) => axis.values[axis.measures.indexOf(value)] };
}

function paretoChart(width) {
  pareto.front = new Set();
  if (!pareto.x || !pareto.y) return nothingToShow("The sweep set no goals: choose two columns.");
  const items = ofWorkload().filter((i) => [pareto.x, pareto.y].every((code) => measured(wishOf(code).key, i) !== null));
  if (!items.length) return nothingToShow();
  const [x, y] = [wishOf(pareto.x), wishOf(pareto.y)];
  const [right, top, bottom] = [width - 16, 26, width > 700 ? 400 : 300];
  const up = axisTicks(y.key, pointScale(y.key, items, bottom - 10, top + 10, 8));
  const left = leftOf(up.round, up.label);
  const across = axisTicks(x.key, pointScale(x.key, items, left + 10, right - 10, width / 90));
  const at = new Map(items.map((i, k) => [i, [across.scale(across.values[k]), up.scale(up.values[k])]]));
  const front = frontOf(items);
  pareto.front = new Set(front);
  const diamond = (i) => pareto.front.has(i) || ownFront.has(i);
  const mark = (i) => shape(diamond(i) ? "diamond" : "circle", ...at.get(i), diamond(i) ? 5 : 3.5, {
    class: `point ${pareto.front.has(i) ? "on-front" : "behind"}`, "data-item": i,
  });
  return {
    height: bottom + 46,
    items: front,
    marks: [
      yAxis(left, right, up.scale, up.round, up.label, nameWithUnit(asColumn(y.key)) + up.note),
      xAxis(bottom, across.scale, across.round, across.label, nameWithUnit(asColumn(x.key)) + across.note, right),
      svg("path", { d: steps(front.map((i) => at.get(i))), class: "front" }),
      items.filter((i) => !pareto.front.has(i)).map(mark), front.map(mark),
    ],
  };
}

// From one point of the front to the next: what can be had with certainty, at a right angle.
const steps = (places) => path(places.flatMap(([x, y], k) => (k ? [[x, places[k - 1][1]], [x, y]] : [[x, y]])));
