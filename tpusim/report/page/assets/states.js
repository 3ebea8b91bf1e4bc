// Fills that differ in tone and hatch, so that grey paper and every eye can tell them apart. Both come with the data.

// Patterns are found by id in the whole document: one hidden picture holds them all.
function hatches() {
  return svg("svg", { width: 0, height: 0, class: "hatches", "aria-hidden": "true" }, svg("defs", {},
    Object.entries(data.hatches).map(([key, [name, d]]) => svg("pattern", {
      id: `hatch-${key}`, width: 6, height: 6, patternUnits: "userSpaceOnUse",
    }, rectangle(0, 0, 6, 6, { fill: `var(--${key})` }), svg("path", { d, class: `hatch ${name}` })))));
}

const fillOf = (key) => ({ fill: key in data.hatches ? `url(#hatch-${key})` : `var(--${key}, var(--unused))` });

const swatch = (key) => svg("svg", { width: 18, height: 12, class: "swatch", "aria-hidden": "true" },
  rectangle(0.5, 0.5, 17, 11, fillOf(key)), rectangle(0.5, 0.5, 17, 11, { class: "frame" }));

const legend = (entries) => html("ul", { class: "legend" },
  entries.map(([key, label]) => html("li", {}, swatch(key), label)));

// Parts [key, amount] side by side or on top of one another from `start` over `length` pixels.
function stack(parts, start, length, whole_, box) {
  let at = start;
  return parts.filter(([, amount]) => amount > 0).map(([key, amount]) => {
    const size = (amount / whole_) * length;
    at += size;
    return box(Math.min(at - size, at), Math.abs(size), fillOf(key), key);
  });
}
