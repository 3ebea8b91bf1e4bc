// Fills that differ in tone and hatch, so that grey paper and every eye can tell them apart.

const HATCHES = {
  unused: "M0,3H6",
  starved: "M-1,7L7,-1M-1,1L1,-1M5,7L7,5",
  blocked: "M2,3a1,1 0 1,0 2,0a1,1 0 1,0 -2,0",
  waiting_weights: "M-1,-1L7,7M-1,5L1,7M5,-1L7,1",
  port_stall: "M0,0L6,6M0,6L6,0",
  psum: "M-1,7L7,-1M-1,1L1,-1M5,7L7,5",
  result: "M3,0V6",
  weight: "M-1,-1L7,7M-1,5L1,7M5,-1L7,1",
  dma: "M2,3a1,1 0 1,0 2,0a1,1 0 1,0 -2,0",
};

// Patterns are found by id in the whole document: one hidden picture holds them all.
function hatches() {
  return svg("svg", { width: 0, height: 0, class: "hatches", "aria-hidden": "true" }, svg("defs", {},
    Object.entries(HATCHES).map(([key, d]) => svg("pattern", {
      id: `hatch-${key}`, width: 6, height: 6, patternUnits: "userSpaceOnUse",
    }, rectangle(0, 0, 6, 6, { class: `tone ${key}` }), svg("path", { d, class: `hatch ${key}` })))));
}

const fillOf = (key) => (key in HATCHES ? { fill: `url(#hatch-${key})` } : { class: `tone ${key}` });

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
