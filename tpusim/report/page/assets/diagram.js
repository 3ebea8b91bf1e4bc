// The machine as blocks: each with its parameters and the shares of the run's cycles; arrows are the data's ways.

const LINE = 17;
const PAD = 10;
const NARROW = 1060;

// Where blocks lie, for a picture of some width: [left, width, middle, least height].
function wideLayout(width) {
  const unit = width / 1060;
  const at = (left, span, middle, least = 0) => [left * unit, span * unit, middle, least];
  return {
    height: 420,
    places: {
      hbm: at(0, 160, 210, 150), dma: at(210, 150, 210), memory: at(410, 200, 210, 400),
      preload: at(645, 160, 75), serializer: at(645, 160, 205), vector_unit: at(645, 160, 345),
      array: at(850, 210, 135, 260), deserializer: at(850, 210, 345),
    },
    arrows: [
      ["hbm", "dma", "both"], ["dma", "memory", "both"], ["memory", "preload"], ["preload", "array"],
      ["memory", "serializer"], ["serializer", "array"], ["array", "deserializer"],
      ["deserializer", "vector_unit"], ["vector_unit", "memory", "both"],
    ],
  };
}

function tallLayout(width) {
  const order = [["hbm"], ["dma"], ["memory"], ["preload", "serializer"], ["array"], ["deserializer"], ["vector_unit"]];
  const room = Math.min(width, 460) - 26;
  const places = {};
  let top = 2;
  for (const row of order) {
    const high = Math.max(...row.map((key) => blockHeight(data.diagram[key])));
    const span = (room - 12 * (row.length - 1)) / row.length;
    row.forEach((key, i) => { places[key] = [i * (span + 12) + 1, span, top + high / 2, high]; });
    top += high + 26;
  }
  return {
    height: top, places, back: true,
    arrows: [
      ["hbm", "dma", "both"], ["dma", "memory", "both"], ["memory", "preload"], ["memory", "serializer"],
      ["preload", "array"], ["serializer", "array"], ["array", "deserializer"], ["deserializer", "vector_unit"],
    ],
  };
}

const blockHeight = ({ lines, parts }) =>
  2 * PAD + LINE * (1 + lines.length + parts.length) + (parts.length ? 26 : 0);

function diagram(width) {
  const layout = width < NARROW ? tallLayout(width) : wideLayout(width);
  const boxes = Object.fromEntries(Object.entries(layout.places).map(([key, place]) => [key, boxOf(key, place)]));
  return {
    height: layout.height,
    marks: [
      svg("defs", {}, svg("marker", {
        id: "tip-of-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse",
      }, svg("path", { d: "M0,0L8,4L0,8z", class: "arrow-head" }))),
      layout.arrows.map(([from, to, both]) => arrow(boxes[from], boxes[to], both)),
      layout.back ? wayBack(boxes.vector_unit, boxes.memory) : [],
      Object.entries(boxes).map(([key, box]) => block(data.diagram[key], box)),
    ],
  };
}

function boxOf(key, [left, width, middle, least]) {
  const height = Math.max(least, blockHeight(data.diagram[key]));
  return { left, top: middle - height / 2, width, height, right: left + width, bottom: middle + height / 2 };
}

// Straight, in the middle of the narrower of the two blocks' sides.
function arrow(from, to, both) {
  const middle = (a, b, start, end) => (Math.max(a[start], b[start]) + Math.min(a[end], b[end])) / 2;
  const beside = from.right <= to.left || to.right <= from.left;
  const [x1, x2] = from.right <= to.left ? [from.right, to.left] : [from.left, to.right];
  const ends = beside
    ? [x1, middle(from, to, "top", "bottom"), x2, middle(from, to, "top", "bottom")]
    : [middle(from, to, "left", "right"), from.bottom, middle(from, to, "left", "right"), to.top];
  const head = "url(#tip-of-arrow)";
  return svg("path", {
    d: `M${ends[0]},${ends[1]}L${ends[2]},${ends[3]}`, class: "arrow", "marker-end": head, "marker-start": both ? head : null,
  });
}

// Results go back to the vector memories, around the other blocks.
function wayBack(from, to) {
  const [x, y1, y2] = [to.right + 18, (from.top + from.bottom) / 2, (to.top + to.bottom) / 2];
  return svg("path", {
    d: `M${from.right},${y1}H${x}V${y2}H${to.right}`, class: "arrow",
    "marker-end": "url(#tip-of-arrow)", "marker-start": "url(#tip-of-arrow)",
  });
}

function block({ name, lines, parts }, { left, top, width, height }) {
  const x = left + PAD;
  const inner = width - 2 * PAD;
  const below = top + PAD + LINE * (1 + lines.length) + 8;
  return svg("g", {},
    rectangle(left, top, width, height, { class: "block", rx: 6 }),
    text(x, top + PAD + 12, name, { class: "block-name" }),
    lines.map((content, i) => text(x, top + PAD + 12 + LINE * (i + 1), content)),
    parts.length ? shareBar(parts, x, below, inner) : []);
}

function shareBar(parts, x, top, width) {
  const single = parts.length === 1;
  return [
    stack(parts.map(([key, , share]) => [key, share]), x, width, 1,
      (left, size, filled) => rectangle(left, top, size, 12, filled)),
    rectangle(x, top, width, 12, { class: "frame" }),
    parts.map(([key, label, share], i) => {
      const y = top + 18 + LINE * i;
      return [
        single ? [] : [rectangle(x, y + 1, 12, 10, fillOf(key)), rectangle(x, y + 1, 12, 10, { class: "frame" })],
        text(single ? x : x + 18, y + 11, single ? `${label} ${percent(share)} %` : label),
        single ? [] : text(x + width, y + 11, `${percent(share)} %`, { "text-anchor": "end" }),
      ];
    }),
  ];
}

const diagramTable = () => html("details", {}, html("summary", {}, "The diagram as a table"),
  html("div", { class: "scroller" }, pairs("Units, their parameters and their shares of the run's cycles",
    Object.values(data.diagram).map(({ name, lines, parts }) =>
      [name, [...lines, ...parts.map(([, label, share]) => `${label} ${percent(share)} %`)].join("; ")]))));
