// A table that sorts by a click on its head, filters as one types, and is walked with the arrow keys.

const MOST_LINES_AT_ONCE = 500;

class DataTable {
  // rows: [{item, values: {column key: value}, wrong}]; choices: checkboxes beside the filter, {label, keep(item)}.
  constructor({ caption, what, columns, rows, choices = [] }) {
    Object.assign(this, { what, columns, rows, sorted: null, down: false, most: MOST_LINES_AT_ONCE });
    this.full = fullBars(columns, rows);
    this.texts = rows.map((row) => textOf(columns, row));
    this.order = rows.map((_, i) => i);
    this.lines = new Map();
    this.body = html("tbody", { onkeydown: (event) => this.pressed(event) });
    this.heads = columns.map((column) => sortHead(column, () => this.sort(column)));
    this.filter = html("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => this.refresh() });
    this.choices = choices.map((choice) => ({ ...choice, box: checkbox(() => this.refresh()) }));
    this.count = html("span", { class: "count", role: "status" });
    this.more = html("button", { type: "button", class: "more", onclick: () => this.extend(this.most * 2) });
    this.element = this.assembled(caption);
    this.refresh();
  }

  assembled(caption) {
    const id = freshId("filter");
    this.filter.id = id;
    const boxes = this.choices.map(({ label, box }) => html("label", { class: "check" }, box, label));
    const table = html("table", {}, html("caption", {}, html("span", {}, caption)),
      html("thead", {}, html("tr", {}, this.heads)), this.body);
    return html("div", { class: "table" },
      html("div", { class: "controls" },
        html("div", { class: "choice" }, html("label", { for: id }, "Filter"), this.filter), boxes, this.count),
      html("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": `${caption} Scrolls sideways.` }, table),
      this.more);
  }

  // The line of a row, made when it is first shown.
  line(i) {
    if (!this.lines.has(i)) {
      const { item, wrong, values } = this.rows[i];
      const cells = this.columns.map((column, k) => this.cell(column, values[column.key], k === 0));
      this.lines.set(i, html("tr", { "data-item": item, class: wrong ? "wrong" : null, tabindex: "-1" }, cells));
    }
    return this.lines.get(i);
  }

  cell(column, value, isFirst) {
    const made = html(isFirst ? "th" : "td", {
      class: column.style === "text" ? "words" : "number",
      scope: isFirst ? "row" : null, title: isFirst ? String(value) : null,
    }, html("span", {}, shown(column, value)));
    return column.bar ? barred(made, value / (this.full[column.key] || 1)) : made;
  }

  sort(column) {
    this.down = this.sorted === column ? !this.down : column.style !== "text" && !column.ascending;
    this.sorted = column;
    const value = (i) => this.rows[i].values[column.key];
    this.order = this.rows.map((_, i) => i).sort((a, b) => compared(value(a), value(b), this.down) || a - b);
    this.heads.forEach((head, i) => markSorted(head, this.columns[i] === column, this.down));
    this.refresh();
  }

  // The rows that the filter and the choices keep, in order.
  kept() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = this.choices.filter(({ box }) => box.checked);
    return this.order.filter((i) => words.every((word) => this.texts[i].includes(word))
      && chosen.every(({ keep }) => keep(this.rows[i].item)));
  }

  refresh() {
    const kept = this.kept();
    this.body.replaceChildren(...kept.slice(0, this.most).map((i) => this.line(i)));
    this.count.textContent = `${whole(kept.length)} of ${whole(this.rows.length)} ${this.what}`;
    this.more.hidden = kept.length <= this.most;
    this.more.textContent = `The first ${whole(this.most)} of ${whole(kept.length)} are shown. Show more`;
    this.stop(this.body.firstElementChild);
    paint();
  }

  extend(most) {
    this.most = most;
    this.refresh();
  }

  // The tab key stops at one row; arrows lead to the others.
  stop(line) {
    if (this.stopped) this.stopped.tabIndex = -1;
    if (line) line.tabIndex = 0;
    this.stopped = line;
  }

  pressed(event) {
    const line = event.target.closest("tr");
    if (event.key === "Enter" || event.key === " ") pick(Number(line.dataset.item));
    else if (["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) this.walk(line, event.key);
    else return;
    event.preventDefault();
  }

  walk(line, key) {
    const { firstElementChild: first, lastElementChild: last } = this.body;
    const next = {
      ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling, Home: first, End: last,
    }[key] ?? line;
    this.stop(next);
    next.focus();
  }

  // Brings the row of an item into sight, whatever the filter hides.
  reveal(item) {
    const i = this.rows.findIndex((row) => row.item === item);
    if (i < 0) return;
    if (!this.kept().includes(i)) this.dropFilter();
    const place = this.kept().indexOf(i);
    if (place >= this.most) this.extend(place + MOST_LINES_AT_ONCE);
    this.stop(this.line(i));
    this.stopped.focus({ preventScroll: true });
    this.stopped.scrollIntoView({ block: "center", behavior: calm.matches ? "auto" : "smooth" });
  }

  dropFilter() {
    this.filter.value = "";
    this.choices.forEach(({ box }) => { box.checked = false; });
    this.refresh();
  }
}

function sortHead(column, sort) {
  const label = [
    html("span", { class: column.label.length > 18 ? "long" : null }, breakable(column.label)),
    column.unit ? html("small", {}, column.unit) : null,
  ];
  return html("th", { scope: "col", class: column.style === "text" ? "words" : "number" },
    html("button", { type: "button", title: column.title || null, onclick: sort }, label,
      html("span", { class: "arrow", "aria-hidden": "true" })));
}

// Long paths such as vector_memory.word_elements may break after a dot or a bar.
const breakable = (path) => (path.length > 18 ? path.replace(/[._]/g, "$&\u200b") : path);

function markSorted(head, isSorted, down) {
  if (isSorted) head.setAttribute("aria-sort", down ? "descending" : "ascending");
  else head.removeAttribute("aria-sort");
}

const checkbox = (changed) => html("input", { type: "checkbox", onchange: changed });

const textOf = (columns, row) =>
  columns.filter((column) => column.style === "text").map((column) => row.values[column.key]).join(" ").toLowerCase();

const byNature = new Intl.Collator("en", { numeric: true });

// What is missing comes last, in either direction.
function compared(a, b, down) {
  const gone = (value) => value === null || value === undefined || value === "";
  if (gone(a) || gone(b)) return gone(a) - gone(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : byNature.compare(String(a), String(b));
  return down ? -order : order;
}

function barred(cell, share) {
  const bar = html("i", {});
  bar.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  cell.classList.add("barred");
  cell.prepend(bar);
  return cell;
}

// What a full bar stands for in each column that has bars: the widest of all, or the whole.
function fullBars(columns, rows) {
  const most = (key) => rows.reduce((found, row) => Math.max(found, row.values[key] || 0), 0);
  return Object.fromEntries(columns.filter((column) => column.bar)
    .map(({ key, bar }) => [key, bar === "widest" ? most(key) : 1]));
}

// A plain table of pairs.
const pairs = (caption, entries) => html("table", { class: "pairs" }, html("caption", {}, html("span", {}, caption)),
  html("tbody", {}, entries.map(([name, value]) => html("tr", {}, html("th", { scope: "row" }, name), html("td", {}, value)))));
