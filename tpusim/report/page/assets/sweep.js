// The page of a sweep.

const tableColumns = [
  { key: "number", label: "point", style: "count", divide: 1, unit: "", ascending: true },
  ...data.axes.map(({ key }) => ({ key, label: key, style: "text" })),
  { key: "workload", label: "workload", style: "text" },
  ...data.figures,
];
const byTime = [...finished].sort((a, b) => points.time_us[a] - points.time_us[b] || a - b);
const valuesOf = (i) => Object.fromEntries(tableColumns.map(({ key }) => [key, key === "number" ? i + 1 : points[key][i]]));

const controls = [];

// A choice kept in store[key].
function control(label, options, store, key) {
  const made = select(label, options, store[key], (value) => { store[key] = value; refreshCharts(); });
  controls.push(() => { made.lastChild.value = store[key]; });
  return made;
}

const lost = failed.size ? " A cross at the foot: points failed there." : "";

const nameOptions = (axes) => axes.map(({ key }) => [key, key]);

function commonControls() {
  const log = html("input", { type: "checkbox", onchange: () => { state.log = log.checked; refreshCharts(); } });
  log.checked = state.log;
  return html("div", { class: "controls" },
    control("Figure", charted.map((figure) => [figure.key, nameWithUnit(figure)]), state, "metric"),
    workloads.length > 1 ? control("Workload", workloads.map((name) => [name, name]), state, "workload") : null,
    html("label", { class: "check" }, log, "logarithmic"));
}

function curveSection() {
  const lines = [["workload", "workload"], ...nameOptions(varying.filter((axis) => axis.values.length <= MOST_LINES))];
  return [
    varying.length > 1 ? html("div", { class: "controls" },
      control("Across", nameOptions(varying), curve, "x"), control("A line for each", lines, curve, "by")) : null,
    figure("Over one axis", (varying.length > 1 ? "Over an axis that is neither across nor a line for each, the best is taken."
      : "The figure chosen above, for each value of the axis.") + lost, curves), keys,
  ];
}

function heatSection() {
  const options = nameOptions(mapped);
  const rest = varying.length > 2 ? "Over all other axes the best is taken." : "";
  return mapped.length < 2 ? [] : [
    mapped.length > 2 ? html("div", { class: "controls" },
      control("Across", options, heat, "x"), control("Up", options, heat, "y")) : null,
    figure("Over two axes", `The stronger the tone, the higher. Empty: no such point. ${rest}`, heatMap),
  ];
}

function paretoSection() {
  return section("Trade-offs",
    html("div", { class: "controls" }, control("Wanted", wishes(), pareto, "x"), control("and", wishes(), pareto, "y")),
    figure("Pareto front",
      "Diamonds on the line: no other point is better in one and as good in the other. Circles: all the rest."
        + (data.goals.length > 2 ? ` Hollow diamonds: on the front of all ${data.goals.length} goals of the sweep.` : ""),
      paretoChart, { below: frontNote }));
}

function failures() {
  const shownFirst = [...failed].slice(0, 500);
  return section("Failed points", html("div", { class: "scroller" }, pairs(
    failed.size > 500 ? `The first 500 of ${whole(failed.size)}; all are in points.csv`
      : failed.size > 1 ? `${whole(failed.size)} points and their errors` : "1 point and its error",
    shownFirst.map((i) => [`${points.workload[i]}: ${settings(i)}`, points.error[i]]))));
}

const keys = html("div", { class: "keys" });
const frontNote = html("p", { class: "note", role: "status" });
const table = new DataTable({
  caption: "Finished points, the fastest first; sortable by every column.", what: "points", columns: tableColumns,
  rows: byTime.map((i) => ({ item: i, values: valuesOf(i) })),
  choices: [
    { label: "only the Pareto front above", keep: (i) => !pareto.front.size || pareto.front.has(i) },
    ...(ownFront.size ? [{ label: "only the front that the sweep asked for", keep: (i) => ownFront.has(i) }] : []),
  ],
});

function refreshCharts() {
  if (curve.x && curve.by === curve.x) curve.by = "workload";
  if (heat.x === heat.y) heat.y = mapped.find((axis) => axis.key !== heat.x)?.key;
  drawAll(true);
  if (varying.length) keys.replaceChildren(curveLegend());
  const of = `${whole(ofWorkload().length)} finished points of ${state.workload}`;
  frontNote.textContent = pareto.front.size ? `${whole(pareto.front.size)} of ${of} are on the front.` : "";
  table.refresh();
  controls.forEach((show) => show());
}

const sentences = html("ul", { class: "sentences" }, data.sentences.map((words) => html("li", {}, words)));
page.append(banner(data), section("In short", sentences));
if (finished.length) {
  state.log = spread(chosen().map((i) => points[state.metric][i]));
  firstWishes();
  page.append(
    varying.length ? section("Over the axes", commonControls(), curveSection(), heatSection(),
      varying.length > 2 ? figure("Axis by axis", `Dashes: every point at its value of the axis. Diamonds: their medians.${lost}`, effects) : null) : "",
    paretoSection(), html("div", { id: "points" }, section("Points", table.element)));
}
if (failed.size) page.append(failures());
selection.onpick.push((item) => table.reveal(item));
startFigures();
if (finished.length) refreshCharts();
