// The points of a sweep: what they measure, and which of them charts show.

const points = data.points;
const failed = new Set(data.failed);
const finished = points.workload.map((_, i) => i).filter((i) => !failed.has(i));
const workloads = [...new Set(finished.map((i) => points.workload[i]))];
data.axes.forEach((axis) => { axis.places = new Map(axis.values.map((value, place) => [value, place])); });
const varying = data.axes.filter((axis) => axis.values.length > 1);
const axisOf = (key) => data.axes.find((axis) => axis.key === key);
const figureOf = (key) => data.figures.find((figure) => figure.key === key);
const ownFront = new Set(data.front);
// Of figures that are the same for all there is nothing to see.
const charted = data.figures.filter(({ key }) => new Set(finished.map((i) => points[key][i])).size > 1);
if (!charted.length) charted.push(...data.figures.slice(0, 1));
const state = { metric: charted[0]?.key, workload: workloads[0], log: false };

const ofWorkload = () => finished.filter((i) => points.workload[i] === state.workload);
const withFigure = (items) => items.filter((i) => points[state.metric][i] !== null);
const chosen = () => withFigure(ofWorkload());
const settings = (i) => data.axes.map(({ key }) => `${key} = ${points[key][i]}`).join(", ");

// The number behind a point's axis or figure; null when there is none.
function measured(key, i) {
  const axis = axisOf(key);
  return axis ? axis.measures?.[axis.places.get(points[key][i])] ?? null : points[key][i];
}

// An axis as a column: its numbers are shown as they were written.
const asColumn = (key) => figureOf(key) ?? { key, label: key, style: "text", unit: "", divide: 1, better: -1 };
const written = (key, i) => withUnit(asColumn(key), points[key][i]);

// The best of some points by the metric that is looked at.
function best(items) {
  const { key, better } = figureOf(state.metric);
  return items.reduce((found, i) => ((points[key][i] - points[key][found]) * (better || -1) > 0 ? i : found));
}

function grouped(items, key) {
  const groups = new Map();
  for (const i of items) {
    if (!groups.has(key(i))) groups.set(key(i), []);
    groups.get(key(i)).push(i);
  }
  return groups;
}

// From lowest to highest of a metric, as 0 to 1.
function toneScale(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) return () => 0.5;
  return state.log && low > 0 ? logarithmic(low, high, 0, 1) : linear(low, high, 0, 1);
}

const spread = (values) => Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 10;

selection.describe = (i) => [points.workload[i], ...data.axes.map(({ key }) => `${key} = ${points[key][i]}`),
  ...data.figures.slice(0, 4).map(({ key, label }) => `${label}: ${written(key, i)}`)];

const nothingToShow = (why = "No point has these figures.") => ({ height: 30, marks: [text(0, 18, why, {})] });

// Crosses at the foot of a chart, at the values of an axis where points failed.
const crosses = (axis, x, bottom, all = true) => axis.values
  .filter((value) => [...failed].some((i) => points[axis.key][i] === value && (all || points.workload[i] === state.workload)))
  .map((value) => shape("cross", x(value), bottom - 6, 4, { class: "lost" }));
