// A metric over one axis, a line for each workload or for each value of another axis.

const MOST_LINES = 12;
const MOST_PLACES = 24;
const curve = { x: varying[0]?.key, by: workloads.length > 1 ? "workload" : secondAxis() };

function secondAxis() {
  return varying.slice(1).find((axis) => axis.values.length <= MOST_LINES)?.key ?? "workload";
}

function linesOf() {
  const items = curve.by === "workload" ? withFigure(finished) : chosen();
  const names = curve.by === "workload" ? workloads : axisOf(curve.by).values;
  const groups = grouped(items, (i) => points[curve.by][i]);
  return names.filter((name) => groups.has(name)).map((name) => {
    const places = grouped(groups.get(name), (i) => points[curve.x][i]);
    return [name, axisOf(curve.x).values.filter((value) => places.has(value)).map((value) => best(places.get(value)))];
  });
}

// Values side by side, or to scale when there are many.
function placesOf(axis, left, right) {
  const ends = [axis.values[0], axis.values.at(-1)].map((value) => textWidth(shortened(value, 16), FONT) / 2);
  const pad = Math.min(60, Math.max(14, ...ends));
  if (axis.values.length <= MOST_PLACES || !axis.measures) {
    const scale = linear(0, Math.max(1, axis.values.length - 1), left + pad, right - pad);
    return [(value) => scale(axis.places.get(value)), axis.values];
  }
  const scale = linear(axis.measures[0], axis.measures.at(-1), left + pad, right - pad);
  return [(value) => scale(axis.measures[axis.places.get(value)]), axis.values];
}

function valueAxis(values, bottom, top) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (state.log && low > 0) {
    const scale = logarithmic(low / 1.3, high * 1.3, bottom, top);
    return [scale, logTicks(low / 1.3, high * 1.3, 9), logText];
  }
  const { step, values: round } = ticks(0, high * 1.05 || 1, 5);
  return [linear(0, high * 1.05 || 1, bottom, top), round, (value) => tickText(value, step)];
}

const scaled = (column, value) => value / column.divide;

function curves(width) {
  const column = figureOf(state.metric);
  const [right, top, bottom] = [width - 12, 26, width > 700 ? 340 : 260];
  const lines = linesOf();
  if (!lines.length) return nothingToShow();
  const values = lines.flatMap(([, items]) => items).map((i) => scaled(column, points[column.key][i]));
  const [y, round, label] = valueAxis(values, bottom, top);
  const left = leftOf(round, label);
  const axis = axisOf(curve.x);
  const [x, names] = placesOf(axis, left, right);
  return {
    height: bottom + 46,
    items: lines.flatMap(([, items]) => items),
    marks: [
      yAxis(left, right, y, round, label, nameWithUnit(column)),
      xAxis(bottom, x, names, (name) => shortened(name, 16), curve.x, right),
      crosses(axis, x, bottom, curve.by === "workload"),
      lines.map(([, items], n) => {
        const at = items.map((i) => [x(points[curve.x][i]), y(scaled(column, points[column.key][i]))]);
        return [
          svg("path", { d: path(at), class: `curve line-${n % 6}` }),
          at.map(([px, py], k) => shape(SHAPE_NAMES[n % 6], px, py, 5, { class: `point line-${n % 6}`, "data-item": items[k] })),
        ];
      }),
    ],
  };
}

const curveLegend = () => html("ul", { class: "legend" }, linesOf().map(([name], n) => html("li", {},
  svg("svg", { width: 34, height: 14, class: "swatch", "aria-hidden": "true" },
    line(0, 7, 34, 7, `curve line-${n % 6}`), shape(SHAPE_NAMES[n % 6], 17, 7, 4.5, { class: `point line-${n % 6}` })),
  curve.by === "workload" ? name : `${curve.by} = ${name}`)));
