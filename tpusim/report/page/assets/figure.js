// A chart that is drawn anew whenever its place gets wider or narrower, for paper too.

const PAPER = 680;
const figures = [];

// draw(width) gives {height, marks, items}: SVG elements, and the items that arrow keys walk over.
// `paper` is the width to draw for print, from where the page scales it.
function figure(title, explain, draw, { below = null, paper = PAPER } = {}) {
  const place = html("div", { class: "plot" });
  const id = freshId("figure");
  const redraw = (width) => {
    const { height, marks, items } = draw(width);
    const walks = items && items.length > 0;
    const picture = svg("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-labelledby": id,
      tabindex: walks ? "0" : null,
    }, svg("desc", {}, `${explain} ${walks ? "Arrow keys move from mark to mark, Enter picks one." : ""}`), marks);
    if (walks) walkable(picture, items);
    place.replaceChildren(picture);
  };
  figures.push({ place, redraw, paper, width: 0 });
  return html("figure", {},
    html("figcaption", {}, html("h3", { id }, title), html("p", {}, explain)), place, below);
}

function drawAll(force, onPaper) {
  for (const each of figures) {
    const wanted = onPaper ? each.paper : Math.floor(each.place.clientWidth);
    if (wanted < 40 || (!force && wanted === each.width)) continue;
    each.width = wanted;
    each.redraw(wanted);
  }
  paint();
}

function startFigures() {
  drawAll(true);
  new ResizeObserver(() => drawAll(false)).observe(page);
  addEventListener("beforeprint", () => drawAll(true, true));
  addEventListener("afterprint", () => drawAll(true));
}
