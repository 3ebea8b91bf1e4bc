// Many axes: for each a small chart of the metric at each of its values, all points and their medians.

const SMALL = 300;

function effects(width) {
  const items = chosen();
  if (!items.length) return nothingToShow();
  const across = Math.max(1, Math.min(varying.length, Math.floor(width / SMALL)));
  const [wide, high] = [width / across, 240];
  const column = figureOf(state.metric);
  const values = items.map((i) => scaled(column, points[column.key][i]));
  const [y, round, label] = valueAxis(values, high - 58, 26);
  const at = new Map(items.map((i, k) => [i, y(values[k])]));
  return {
    height: high * Math.ceil(varying.length / across),
    items: [],
    marks: varying.map((axis, n) => svg("g", { transform: `translate(${(n % across) * wide},${Math.floor(n / across) * high})` },
      effect(axis, items, at, { wide, bottom: high - 58, y, round, label, title: nameWithUnit(column) }))),
  };
}

function effect(axis, items, at, { wide, bottom, y, round, label, title }) {
  const [left, right] = [leftOf(round, label), wide - 18];
  const [x] = placesOf(axis, left, right);
  const groups = grouped(items, (i) => points[axis.key][i]);
  const medians = axis.values.filter((value) => groups.has(value))
    .map((value) => [x(value), median(groups.get(value).map((i) => at.get(i)))]);
  return [
    yAxis(left, right, y, round, label, title),
    xAxis(bottom, x, axis.values, (value) => shortened(value, 14), axis.key, right),
    crosses(axis, x, bottom, false),
    items.map((i) => rectangle(x(points[axis.key][i]) - 7, at.get(i) - 1.5, 14, 3, { class: "dash", "data-item": i })),
    svg("path", { d: path(medians), class: "median" }),
    medians.map(([px, py]) => shape("diamond", px, py, 4, { class: "point on-front" })),
  ];
}

function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
