// A metric over two axes: the stronger the tone, the higher.

const MOST_CELLS = 64;
const mapped = varying.filter((axis) => axis.values.length <= MOST_CELLS);
const heat = { x: mapped[0]?.key, y: mapped[1]?.key };

function cellsOf(items) {
  const cells = grouped(items, (i) => JSON.stringify([points[heat.x][i], points[heat.y][i]]));
  return (across, down) => cells.get(JSON.stringify([across, down]));
}

function heatMap(width) {
  if (!chosen().length) return nothingToShow();
  const [across, down] = [axisOf(heat.x), axisOf(heat.y)];
  const left = Math.min(110, 14 + Math.max(...down.values.map((value) => textWidth(shortened(value, 14), FONT))));
  const [top, right] = [26, width - 2];
  const high = Math.max(22, Math.min(48, 420 / down.values.length));
  const wide = (right - left) / across.values.length;
  const bottom = top + high * down.values.length;
  const at = (value, axis) => axis.places.get(value);
  const cells = cellCandidates();
  return {
    height: bottom + 46,
    items: cells.map((cell) => cell.item).filter((item) => item !== null),
    marks: [
      text(0, 12, heat.y, { class: "axis-title" }),
      down.values.map((value, k) =>
        text(left - 8, bottom - high * (k + 0.5) + 4, shortened(value, 14), { "text-anchor": "end" })),
      xAxis(bottom, (value) => left + wide * (at(value, across) + 0.5), across.values,
        (value) => shortened(value, 14), heat.x, right),
      cells.map((cell) =>
        heatCell(cell, left + wide * at(cell.across, across), bottom - high * (at(cell.down, down) + 1), wide, high)),
    ],
  };
}

function cellCandidates() {
  const found = cellsOf(chosen());
  const lost = cellsOf([...failed].filter((i) => points.workload[i] === state.workload));
  const cells = axisOf(heat.y).values.flatMap((down) => axisOf(heat.x).values.map((across) => {
    const items = found(across, down);
    return { across, down, item: items ? best(items) : null, failed: !items && lost(across, down) !== undefined };
  }));
  const values = cells.filter((cell) => cell.item !== null).map((cell) => points[state.metric][cell.item]);
  const tone = toneScale(values);
  return cells.map((cell) => ({ ...cell, tone: cell.item === null ? 0 : tone(points[state.metric][cell.item]) }));
}

function heatCell({ item, tone, failed: lost }, x, y, wide, high) {
  const middle = { "text-anchor": "middle" };
  if (item === null) {
    const word = textWidth("failed", FONT) < wide - 4 ? "failed" : "×";
    return lost ? text(x + wide / 2, y + high / 2 + 4, word, { ...middle, class: "axis-title" }) : [];
  }
  const value = shown(figureOf(state.metric), points[state.metric][item]);
  return svg("g", { "data-item": item, class: "mark" },
    rectangle(x + 0.5, y + 0.5, wide - 1, high - 1, { fill: "var(--useful)", "fill-opacity": (0.06 + 0.94 * tone).toFixed(3) }),
    textWidth(value, FONT) < wide - 4
      ? text(x + wide / 2, y + high / 2 + 4, value, { ...middle, class: tone > 0.6 ? "on-dark" : null }) : [],
    rectangle(x + 0.5, y + 0.5, wide - 1, high - 1, { class: "hit" }));
}
