// What each layer reaches against what the machine allows at its operations a byte; both axes logarithmic.

function roofline(width) {
  const { tflops: peak, hbm_bytes_per_s: bandwidth } = data.peaks;
  const slope = bandwidth / 1e12;
  const points = data.layers.map((layer, item) => ({ ...layer, item })).filter((layer) => layer.macs && layer.flop_per_byte);
  const across = points.map((point) => point.flop_per_byte);
  const reached = points.map((point) => point.tflops);
  const [low, high] = [Math.min(peak / slope, ...across) / 2, Math.max(peak / slope, ...across) * 2];
  const [floor, roof] = [Math.min(low * slope * 2, ...reached) / 2, Math.max(peak, ...reached) * 1.8];
  const [left, right, top, bottom] = [56, width - 12, 26, width > 700 ? 420 : 320];
  const x = logarithmic(low, high, left, right);
  const y = logarithmic(floor, roof, bottom, top);
  const start = Math.max(low, floor / slope);
  const bend = [x(peak / slope), y(peak)];
  const places = points.map((point) => ({
    ...point, x: x(point.flop_per_byte), y: y(point.tflops), r: 3.5 + 14 * Math.sqrt(point.share),
  }));
  const costly = alike(places).sort((a, b) => b.time - a.time).slice(0, width > 700 ? 10 : 5);
  const roofs = [`peak ${three(peak)} TFLOPS`, `HBM ${three(bandwidth / 1e9)} GB/s`];
  const along = Math.atan2(bend[1] - y(start * slope), bend[0] - x(start)) * (180 / Math.PI);
  return {
    height: bottom + 46,
    items: places.map((place) => place.item),
    marks: [
      yAxis(left, right, y, logTicks(floor, roof, 8), logText, "TFLOPS"),
      xAxis(bottom, x, logTicks(low, high, width / 70), logText, "operations a byte of HBM traffic (FLOP/byte)", right),
      svg("path", { d: path([[x(start), y(start * slope)], bend, [right, y(peak)]]), class: "roof" }),
      text(right, bend[1] - 7, roofs[0], { "text-anchor": "end", class: "halo" }),
      svg("text", {
        transform: `translate(${x(start) + 8},${y(start * slope) - 6}) rotate(${along.toFixed(1)})`, dx: 8, class: "halo slanted",
      }, roofs[1]),
      places.map((place) => shape(place.op === "gemm" ? "square" : "circle", place.x, place.y, place.r, {
        class: `dot ${place.wrong ? "wrong" : ""}`, "data-item": place.item,
      })),
      labelled(costly, left, right, bottom, [
        ...places.map((place) => [place.x - place.r, place.y - place.r, 2 * place.r, 2 * place.r]),
        [right - textWidth(roofs[0], FONT), bend[1] - 20, textWidth(roofs[0], FONT), 18],
        [bend[0], bend[1] - 2, right - bend[0], 4],
      ]),
    ],
  };
}

// Layers that lie on one another share a name: "conv2 and 2 more".
function alike(places) {
  const groups = [];
  for (const place of places) {
    const near = groups.find((group) => Math.hypot(group.x - place.x, group.y - place.y) < 4);
    if (near) Object.assign(near, { more: near.more + 1, time: near.time + place.time_us, r: Math.max(near.r, place.r) });
    else groups.push({ ...place, more: 0, time: place.time_us });
  }
  return groups.map((group) => ({
    ...group, name: shortened(group.name, 22) + (group.more ? ` and ${group.more} more` : ""),
  }));
}
