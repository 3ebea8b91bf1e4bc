// The page of a run.

const mapsPes = data.layers[0].mapping_efficiency !== null;
const anyWrong = data.layers.some((layer) => layer.wrong);
const rows = data.layers.map((layer, item) => ({ item, wrong: layer.wrong, values: { ...layer, number: item + 1 } }));
const place = { key: "number", label: "#", style: "count", divide: 1, unit: "", ascending: true, title: "place in the network" };
const [nameColumn, ...otherColumns] = data.columns;
const layersTable = new DataTable({
  caption: `The ${data.layers.length === 1 ? "layer" : `${data.layers.length} layers`} of the run, sortable by every column.`,
  what: data.layers.length === 1 ? "layer" : "layers", columns: [nameColumn, place, ...otherColumns], rows,
  choices: anyWrong ? [{ label: "only wrong layers", keep: (i) => data.layers[i].wrong }] : [],
});
const details = html("div", { class: "details", "aria-live": "polite" });
const columnOf = (key) => data.columns.find((column) => column.key === key);

const timeAndShare = (layer) => `${withUnit(columnOf("time_us"), layer.time_us)}, ${percent(layer.share)} %`;

const sentence = (parts) => html("li", {}, parts.map((part) => (typeof part === "string" ? part : layerLink(part.layer))));

const layerLink = (item) => html("a", { href: "#layers", "data-item": item, onclick: (event) => event.preventDefault() },
  data.layers[item].name);

const tiles = () => html("dl", { class: "tiles" }, data.tiles.map(({ label, value, note }) =>
  html("div", {}, html("dt", {}, label), html("dd", {}, html("b", {}, value), html("span", {}, note)))));

selection.describe = (item) => {
  const layer = data.layers[item];
  const parts = data.states.map((state, k) => [state.label, layer.states[k] / layer.cycles]);
  const largest = parts.slice(1).sort((a, b) => b[1] - a[1])[0];
  return [layer.name,
    `${timeAndShare(layer)} of the run`,
    `${whole(layer.cycles)} cycles; ${three(layer.tflops)} TFLOPS`,
    `PE utilisation ${percent(layer.pe_utilization)} %${layer.mapping_efficiency === null ? "" : `, mapped ${percent(layer.mapping_efficiency)} %`}`,
    largest[1] > 0 ? `largest loss: ${largest[0]}, ${percent(largest[1])} %` : "no loss"];
};

function showDetails(item) {
  const layer = data.layers[item];
  const busy = layer.units.map(([unit, share]) => `${unit} ${percent(share)} %`).join(", ");
  details.replaceChildren(
    html("h3", {}, layer.name),
    partBar(data.states, layer.states, layer.cycles, `Where the cycles of ${layer.name} went`),
    html("dl", {}, [
      ["time", `${whole(layer.cycles)} cycles, ${timeAndShare(layer)} of the run`],
      [data.unit.name, data.states.map((state, k) => `${state.label} ${percent(layer.states[k] / layer.cycles)} %`).join(", ")],
      ["busy", busy],
      ...[["reads", layer.reads], ["carries", layer.riders], ["overlap", layer.overlap]].filter(([, words]) => words),
      ["mapping", layer.mapping],
      ["check", checkOf(layer)],
    ].map(([term, words]) => [html("dt", {}, term), html("dd", {}, words)])));
}

function checkOf({ check, mismatch }) {
  if (check === "-") return "not checked";
  return mismatch ? `${check}; the first: ${mismatch}` : check;
}

function partBar(parts, amounts, all, label) {
  const width = 1000;
  return svg("svg", {
    viewBox: `0 0 ${width} 24`, preserveAspectRatio: "none", class: "state-bar", role: "img", "aria-label": label,
  }, stack(parts.map((part, k) => [part.key, amounts[k]]), 0, width, all,
      (left, size, filled) => rectangle(left, 0, size, 24, filled)));
}

function partsTable(parts, amounts, all, caption, unit, written) {
  return html("div", { class: "scroller" }, html("table", { class: "states" },
    html("caption", {}, html("span", {}, caption)),
    html("thead", {}, html("tr", {}, ["part", "share", unit].map((name, i) =>
      html("th", { scope: "col", class: i ? "number" : null }, name)))),
    html("tbody", {}, parts.map((part, k) => html("tr", {},
      html("th", { scope: "row" }, swatch(part.key), part.label, html("small", {}, part.meaning)),
      html("td", { class: "number" }, `${percent(amounts[k] / all)} %`),
      html("td", { class: "number" }, written(amounts[k])))))));
}

function energySection() {
  const { parts, amounts, whole: all, column, said } = data.energy;
  return section("Where the energy went",
    html("p", { class: "note" }, `${said} Nothing of it is measured.`),
    partBar(parts, amounts, all, "Energy of the run, as in the table below"),
    partsTable(parts, amounts, all, "Energy by what is counted", column.unit, (amount) => three(amount / column.divide)));
}

// The layers that take longest, as bars whose length is their time.
function costliest(width) {
  const items = data.layers.map((_, i) => i).sort((a, b) => data.layers[b].cycles - data.layers[a].cycles || a - b).slice(0, 10);
  const longest = data.layers[items[0]].cycles;
  const letters = width > 700 ? 36 : 20;
  const names = items.map((i) => shortened(data.layers[i].name, letters));
  const left = Math.min(width * 0.45, 10 + Math.max(...names.map((name) => textWidth(name, FONT))));
  const room = width - left - 112;
  return {
    height: items.length * 24 + 2,
    items,
    marks: items.map((i, row) => {
      const { states, cycles } = data.layers[i];
      const top = row * 24 + 2;
      const fits = textWidth(names[row], FONT) <= left - 10;
      return svg("g", { "data-item": i, class: "mark" },
        rectangle(0, top - 1, width, 22, { class: "hit" }),
        text(left - 8, top + 14, names[row], {
          "text-anchor": "end", ...(fits ? {} : { textLength: left - 10, lengthAdjust: "spacingAndGlyphs" }),
        }),
        stack(data.states.map((state, k) => [state.key, states[k]]), left, (cycles / longest) * room, cycles,
          (x, size, filled) => rectangle(x, top, size, 19, filled)),
        text(left + (cycles / longest) * room + 6, top + 14, timeAndShare(data.layers[i])));
    }),
  };
}

function widthChoice() {
  const name = freshId("width");
  const choice = (label, byTime) => html("label", { class: "check" }, html("input", {
    type: "radio", name, checked: byTime === strip.byTime ? "" : null,
    onchange: () => { strip.byTime = byTime; drawAll(true); },
  }), label);
  return html("fieldset", { class: "controls" }, html("legend", {}, "Width of a layer"),
    choice("its time", true), choice("the same for all", false));
}

function byLayer() {
  return section("Layer by layer", widthChoice(),
    figure("PE utilisation",
      `Bars: MACs over those at the peak.${mapsPes ? " Lines across: PEs that hold a weight." : ""} Dashed: the whole run.`
        + (anyWrong ? " Crosses: wrong outputs." : ""), utilisation()),
    figure("Where each layer's cycles went", "The parts are those of the table above.", breakdown(),
      { below: legend(data.states.map((state) => [state.key, state.label])) }),
    data.layers[0].peak_bytes === null ? "" : figure("Vector memory over the run", "Allocated for each layer, for as long as it runs; not what is in use at a moment.",
      memory(),
      { below: legend([["memory", "everything: ifmap, filters, results, double buffers"], ["ifmap", "ifmap alone"]]) }),
    html("p", { class: "note" }, "Every figure of these charts is in the table of layers below."));
}

function rooflineSection() {
  const left = data.layers.filter((layer) => !layer.macs || !layer.flop_per_byte).length;
  return section("Roofline", figure("Speed against operations a byte",
    "Circles are convolutions, squares matrix products; the larger, the longer the layer takes."
      + (left ? ` ${left} without MACs or traffic left out.` : ""), roofline));
}

const pictured = ({ source, caption }, head) => html("figure", {},
  html("figcaption", {}, head ? html("h3", {}, head) : "", html("p", {}, caption)),
  html("div", { class: "scroller" }, html("img", { class: "picture", src: source, alt: caption })));

const pictureSection = (title, head, picture) => section(title, pictured(picture, head));

// The step of several chips: pictures, and the collectives as the command line has them.
function stepSection({ pictures, heads, rows, legend }) {
  const line = (cells, tag, scope) => html("tr", {}, cells.map((cell, i) =>
    html(tag, { scope, class: heads[i][1] ? "number" : "words" }, cell)));
  return section("The step of all chips", pictures.map((each) => pictured(each)),
    heads.length === 0 ? "" : html("div", { class: "scroller" }, html("table", {},
      html("caption", {}, html("span", {}, "What chips exchange in the step")),
      html("thead", {}, line(heads.map(([head]) => head), "th", "col")),
      html("tbody", {}, rows.map((cells) => line(cells, "td"))))),
    html("p", { class: "note" }, legend));
}

const units = () => section("The machine at work",
  figure("Units and their busy shares of the run's cycles",
    "Shares of unit cycles over the whole run; of the ports, by who owns them. Serializers keep no account of their own.",
    diagram, { paper: NARROW }), diagramTable());

selection.onpick.push((item) => { showDetails(item); layersTable.reveal(item); });

page.append(
  hatches(),
  banner(data),
  tiles(),
  section("In short", html("ul", { class: "sentences" }, data.sentences.map(sentence))),
  data.step ? stepSection(data.step) : "",
  section(`Where the ${data.unit.name}'s cycles went`,
    partBar(data.states, data.total.states, data.total.cycles, `Cycles of the ${data.unit.title} over the run, as in the table below`),
    partsTable(data.states, data.total.states, data.total.cycles, `Cycles of the ${data.unit.title}, and what each part means`,
      "cycles", whole)),
  data.energy ? energySection() : "",
  data.layers.length > 1 ? section("The costliest layers",
    figure(`Time of the ${Math.min(10, data.layers.length)} costliest layers`,
      "Length is time, split as above; at the end the layer's time and its share of the run.", costliest)) : "",
  byLayer(),
  rooflineSection(),
  data.held ? pictureSection("What stays on chip", "Vector memory over time", data.held) : "",
  data.network ? pictureSection("The network", "What each layer reads, and its time", data.network) : "",
  data.diagram ? html("div", { id: "units" }, units()) : "",
  html("div", { id: "layers" }, section("Layers",
    html("p", { class: "note" }, "Pick a row for its details. Arrow keys walk, Enter picks; heads sort."),
    details, layersTable.element)),
  section("Machine and mapping", html("div", { class: "columns" },
    pairs("The machine, every field", data.machine), pairs("The run", data.inputs))));

showDetails(data.layers.reduce((best, layer, i) => (layer.cycles > data.layers[best].cycles ? i : best), 0));
startFigures();
