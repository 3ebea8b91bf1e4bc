// Axes, grid lines and text in charts.

const FONT = 12;

const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
const rectangle = (x, y, width, height, attributes) =>
  svg("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), ...attributes });
const text = (x, y, content, attributes) => svg("text", { x, y, ...attributes }, content);

// Where a chart begins, so that the numbers beside it have room.
const leftOf = (values, label) => Math.max(64, 12 + Math.max(...values.map((value) => textWidth(label(value), FONT))));

// Horizontal grid lines with their values at the left of `left`.
function yAxis(left, right, scale, values, label, title) {
  return [
    values.map((value) => [
      line(left, scale(value), right, scale(value), "grid"),
      text(left - 6, scale(value) + 4, label(value), { "text-anchor": "end" }),
    ]),
    title ? text(0, 12, title, { class: "axis-title" }) : [],
  ];
}

// Values below `bottom`; those that would run into one another or out of the picture are left out.
function xAxis(bottom, scale, values, label, title, right) {
  let free = 0;
  const labels = values.map((value) => {
    const [x, content] = [scale(value), label(value)];
    const half = textWidth(content, FONT) / 2;
    if (x - half < free || x + half > right + 14) return line(x, bottom, x, bottom + 4, "tick");
    free = x + half + 8;
    return [line(x, bottom, x, bottom + 4, "tick"), text(x, bottom + 17, content, { "text-anchor": "middle" })];
  });
  return [labels, title ? text(right, bottom + 36, title, { class: "axis-title", "text-anchor": "end" }) : []];
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

// Shapes that differ without colour.
const SHAPES = {
  circle: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
  square: (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  triangle: (r) => `M0,${-1.2 * r}L${1.1 * r},${0.8 * r}H${-1.1 * r}z`,
  diamond: (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0z`,
  cross: (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
  down: (r) => `M0,${1.2 * r}L${1.1 * r},${-0.8 * r}H${-1.1 * r}z`,
};
const SHAPE_NAMES = Object.keys(SHAPES);

const shape = (name, x, y, r, attributes) =>
  svg("path", { d: SHAPES[name](r), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`, ...attributes });

// Names beside points, each where it hides no other; what finds no place is left out. Boxes are [x, y, width, height].
function labelled(points, left, right, bottom, taken = []) {
  const overlaps = ([x, y, w, h]) => taken.some(([a, b, c, d]) => x < a + c && a < x + w && y < b + d && b < y + h);
  return points.map(({ x, y, r, name, item }) => {
    const width = textWidth(name, FONT);
    const spots = [[x + r + 4, y - 7], [x - r - 4 - width, y - 7], [x - width / 2, y - r - 18], [x - width / 2, y + r + 3]];
    const free = spots.find(([a, b]) =>
      a > left && a + width < right && b > 0 && b + 14 < bottom && !overlaps([a, b, width, 14]));
    if (!free) return [];
    taken.push([...free, width, 14]);
    return text(free[0], free[1] + 11, name, { class: "halo", "data-item": item });
  });
}
