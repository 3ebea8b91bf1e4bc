// Charts with a bar for each layer, all over one axis: the run's time, or a place of equal width a layer.

const LEFT = 56;
const RIGHT = 18;
const TOP = 26;
const NAMES = 118;
const NAME_LETTERS = 20;
const strip = { byTime: true };

// Where each layer lies: [x, width] in pixels.
function spans(width) {
  const room = width - LEFT - RIGHT;
  const sizes = data.layers.map((layer) => (strip.byTime ? layer.time_us : 1));
  const all = sizes.reduce((sum, size) => sum + size, 0);
  let at = LEFT;
  return sizes.map((size) => {
    const span = [at, (size / all) * room];
    at += span[1];
    return span;
  });
}

// Upright names under the bars, the widest first, as many as stand beside one another.
function layerNames(places, bottom) {
  const taken = [];
  const order = places.map((_, i) => i).sort((a, b) => places[b][1] - places[a][1] || a - b);
  return order.flatMap((i) => {
    const x = places[i][0] + places[i][1] / 2;
    if (taken.some((other) => Math.abs(other - x) < FONT + 2) || x < LEFT + 5) return [];
    taken.push(x);
    const name = shortened(data.layers[i].name, NAME_LETTERS);
    return svg("text", {
      transform: `translate(${(x + 4).toFixed(1)},${bottom + 8}) rotate(-90)`, "text-anchor": "end", "data-item": i,
      class: "name", ...(textWidth(name, FONT) > NAMES - 10 ? { textLength: NAMES - 10, lengthAdjust: "spacingAndGlyphs" } : {}),
    }, name);
  });
}

function namesHeight() {
  const widths = data.layers.map((layer) => textWidth(shortened(layer.name, NAME_LETTERS), FONT));
  return Math.min(NAMES, 16 + Math.max(...widths));
}

function timeAxis(width, bottom) {
  if (!strip.byTime) {
    return text(width - RIGHT, bottom + 18, "layers in network order", { class: "axis-title", "text-anchor": "end" });
  }
  const all = data.total.time_us;
  const column = data.total.time;
  const { step, values } = ticks(0, all / column.divide, width / 110);
  const scale = linear(0, all / column.divide, LEFT, width - RIGHT);
  return xAxis(bottom, scale, values, (value) => tickText(value, step), `time (${column.unit})`, width - RIGHT);
}

// A chart of `inner` pixels of height; bars(i, x, width, y) draws a layer, y(value) gives pixels.
function stripChart({ inner, high, label, title, bars, over = () => [], named = true }) {
  return (width) => {
    const bottom = TOP + inner;
    const y = linear(0, high(), bottom, TOP);
    const { step, values } = ticks(0, high(), 5);
    const places = spans(width);
    const names = named ? namesHeight() : 0;
    const hits = places.map(([x, w], i) =>
      svg("g", { "data-item": i, class: "mark" }, bars(i, x, w, y), rectangle(x, TOP, w, inner, { class: "hit" })));
    return {
      height: bottom + names + 44,
      items: data.layers.map((_, i) => i),
      marks: [
        yAxis(LEFT, width - RIGHT, y, values, (value) => label(value, step), title), hits,
        over(places, y, width), named ? layerNames(places, bottom) : [], timeAxis(width, bottom + names),
      ],
    };
  };
}

const gap = (width) => (width > 4 ? 1 : 0);

function utilisation() {
  return stripChart({
    inner: 170, high: () => Math.max(1, ...data.layers.map((layer) => layer.pe_utilization)), title: "PE utilisation (%)", label: (value) => whole(100 * value),
    bars: (i, x, w, y) => {
      const { pe_utilization: used, mapping_efficiency: mapped, wrong } = data.layers[i];
      return [
        rectangle(x, y(used), w - gap(w), y(0) - y(used), fillOf("useful")),
        mapped === null ? [] : line(x, y(mapped), x + w - gap(w), y(mapped), "mapped"),
        wrong ? shape("cross", x + w / 2, TOP - 6, 4, { class: "wrong-mark" }) : [],
      ];
    },
    over: (places, y, width) => line(LEFT, y(data.total.pe_utilization), width - RIGHT, y(data.total.pe_utilization), "mean"),
  });
}

function breakdown() {
  const keys = data.states.map((state) => state.key);
  const most = Math.max(...data.layers.map((layer) => layer.cycles));
  return (width) => stripChart({
    inner: 190, high: () => (strip.byTime ? 1 : most),
    title: strip.byTime ? "share of the layer's cycles (%)" : "cycles of the layer",
    label: (value) => (strip.byTime ? whole(100 * value) : compact(value)),
    bars: (i, x, w, y) => {
      const { states, cycles } = data.layers[i];
      const high = strip.byTime ? 1 : cycles;
      return stack(keys.map((key, k) => [key, states[k]]), y(0), y(high) - y(0), cycles,
        (top, height, filled) => rectangle(x, top, w - gap(w), height, filled));
    },
  })(width);
}

function compact(value) {
  if (value >= 1e6) return `${three(value / 1e6)} M`.replace(/\.0+ /, " ");
  return value >= 1e3 ? `${whole(value / 1e3)} k` : whole(value);
}

// Allocated vector memory as steps over the run; all of it, and the ifmap's part.
function memory() {
  const MIB = 2 ** 20;
  const peak = Math.max(...data.layers.map((layer) => layer.peak_bytes)) / MIB;
  const capacity = data.peaks.memory_bytes / MIB;
  const inSight = capacity <= 4 * peak;
  const limit = `capacity ${three(capacity)} MiB${inSight ? "" : ", above this chart"}`;
  const steps = (key, places, y) => path(places.flatMap(([x, w], i) => {
    const level = y(data.layers[i][key] / MIB);
    return [[x, level], [x + w, level]];
  }));
  return stripChart({
    inner: 150, high: () => (inSight ? capacity * 1.08 : peak * 1.15), title: "vector memory allocated (MiB)",
    label: (value, step) => tickText(value, step), named: false,
    bars: (i, x, w, y) => {
      const { peak_bytes: all, ifmap_bytes: ifmap } = data.layers[i];
      return [
        rectangle(x, y(all / MIB), w, y(0) - y(all / MIB), fillOf("memory")),
        rectangle(x, y(ifmap / MIB), w, y(0) - y(ifmap / MIB), fillOf("ifmap")),
      ];
    },
    over: (places, y, width) => [
      svg("path", { d: steps("peak_bytes", places, y), class: "step" }),
      inSight ? line(LEFT, y(capacity), width - RIGHT, y(capacity), "limit") : [],
      text(LEFT + 6, inSight ? y(capacity) - 5 : TOP + 12, limit, { class: "halo" }),
    ],
  });
}
