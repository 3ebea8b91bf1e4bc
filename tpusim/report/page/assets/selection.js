// Which item is looked at (hot) or picked: a table row and all marks of one item are one thing.

const selection = { hot: null, picked: null, describe: () => [], onpick: [] };
const tip = document.getElementById("tip");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const marksOf = (item) => page.querySelectorAll(`[data-item="${item}"]`);

function paint() {
  for (const [state, item] of [["hot", selection.hot], ["picked", selection.picked]]) {
    page.querySelectorAll(`.${state}`).forEach((mark) => mark.classList.remove(state));
    if (item !== null) marksOf(item).forEach((mark) => mark.classList.add(state));
  }
  page.querySelectorAll("[aria-current]").forEach((row) => row.removeAttribute("aria-current"));
  page.querySelectorAll("tr.picked").forEach((row) => row.setAttribute("aria-current", "true"));
}

function look(item) {
  if (item === selection.hot) return;
  selection.hot = item;
  paint();
}

function pick(item) {
  selection.picked = item;
  paint();
  selection.onpick.forEach((told) => told(item));
}

function showTip(item, x, y) {
  const [title, ...lines] = selection.describe(item);
  tip.replaceChildren(html("strong", {}, title), ...lines.map((line) => html("span", {}, line)));
  tip.hidden = false;
  const room = document.documentElement;
  const left = Math.min(x + 14, room.clientWidth - tip.offsetWidth - 8);
  const below = y + 18 + tip.offsetHeight < room.clientHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? y + 18 : Math.max(8, y - tip.offsetHeight - 12)}px`;
}

const hideTip = () => { tip.hidden = true; };
const itemOf = (event) => event.target.closest?.("[data-item]") ?? null;

page.addEventListener("pointermove", (event) => {
  const mark = itemOf(event);
  look(mark ? Number(mark.dataset.item) : null);
  if (mark?.ownerSVGElement) showTip(selection.hot, event.clientX, event.clientY);
  else hideTip();
});
page.addEventListener("pointerleave", () => { look(null); hideTip(); });
page.addEventListener("focusin", (event) => {
  const row = itemOf(event);
  if (row) look(Number(row.dataset.item));
});
page.addEventListener("focusout", () => { look(null); hideTip(); });
page.addEventListener("click", (event) => {
  const mark = itemOf(event);
  if (mark) pick(Number(mark.dataset.item));
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") { look(null); hideTip(); } });

// Arrow keys walk over the marks of a focused chart, Enter picks.
function walkable(picture, items) {
  const step = (by) => {
    const at = items.indexOf(selection.hot);
    const next = items[Math.max(0, Math.min(items.length - 1, at < 0 ? 0 : at + by))];
    look(next);
    const box = picture.querySelector(`[data-item="${next}"]`).getBoundingClientRect();
    showTip(next, box.right, box.top);
  };
  const keys = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  picture.addEventListener("keydown", (event) => {
    if (event.key in keys && items.length) step(keys[event.key]);
    else if (event.key === "Enter" && selection.hot !== null) pick(selection.hot);
    else return;
    event.preventDefault();
  });
}
