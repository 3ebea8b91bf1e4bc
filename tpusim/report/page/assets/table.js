// A table that sorts by a click on its head, filters as one types, and is walked with the arrow keys.

class DataTable {
  // rows: [{item, values: {column key: value}, wrong}]; choices: checkboxes beside the filter, {label, keep(item)}.
  constructor({ caption, what, columns, rows, choices = [] }) {
    Object.assign(this, { what, columns, rows, sorted: null, down: false });
    this.full = fullBars(columns, rows);
    this.lines = rows.map((row) => this.line(row));
    this.texts = rows.map((row) => textOf(columns, row));
    this.body = html("tbody", { onkeydown: (event) => this.pressed(event) }, this.lines);
    this.heads = columns.map((column) => sortHead(column, () => this.sort(column)));
    this.filter = html("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => this.refresh() });
    this.choices = choices.map((choice) => ({ ...choice, box: checkbox(() => this.refresh()) }));
    this.count = html("span", { class: "count", role: "status" });
    this.element = this.assembled(caption);
    this.refresh();
  }

  assembled(caption) {
    const boxes = this.choices.map(({ label, box }) => html("label", { class: "check" }, box, label));
    return html("div", { class: "table" },
      html("div", { class: "controls" },
        html("label", { class: "choice" }, html("span", {}, "Filter"), this.filter), boxes, this.count),
      html("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": `${caption} Scrolls sideways.` },
        html("table", {}, html("caption", {}, html("span", {}, caption)), html("thead", {}, html("tr", {}, this.heads)), this.body)));
  }

  line(row) {
    const cells = this.columns.map((column, i) => this.cell(column, row.values[column.key], i === 0));
    return html("tr", { "data-item": row.item, class: row.wrong ? "wrong" : null }, cells);
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
    const order = this.rows.map((_, i) => i);
    order.sort((a, b) => compared(this.rows[a].values[column.key], this.rows[b].values[column.key], this.down) || a - b);
    this.body.append(...order.map((i) => this.lines[i]));
    this.heads.forEach((head, i) => markSorted(head, this.columns[i] === column, this.down));
    this.stop(this.visible()[0]);
  }

  // Shows what the filter and the choices keep.
  refresh() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = this.choices.filter(({ box }) => box.checked);
    this.rows.forEach((row, i) => {
      const kept = words.every((word) => this.texts[i].includes(word)) && chosen.every(({ keep }) => keep(row.item));
      this.lines[i].hidden = !kept;
    });
    const seen = this.visible();
    this.count.textContent = `${whole(seen.length)} of ${whole(this.rows.length)} ${this.what}`;
    this.stop(seen[0]);
  }

  visible() {
    return [...this.body.children].filter((line) => !line.hidden);
  }

  // The tab key stops at one row; arrows lead to the others.
  stop(at) {
    this.lines.forEach((line) => { line.tabIndex = -1; });
    if (at) at.tabIndex = 0;
  }

  pressed(event) {
    const line = event.target.closest("tr");
    if (event.key === "Enter" || event.key === " ") pick(Number(line.dataset.item));
    else if (["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) this.walk(line, event.key);
    else return;
    event.preventDefault();
  }

  walk(line, key) {
    const seen = this.visible();
    const at = seen.indexOf(line);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: seen.length - 1 }[key];
    const next = seen[Math.max(0, Math.min(seen.length - 1, to))];
    this.stop(next);
    next.focus();
  }

  // Brings the row of an item into sight, whatever the filter hides.
  reveal(item) {
    const line = this.lines[this.rows.findIndex((row) => row.item === item)];
    if (!line) return;
    if (line.hidden) this.showAll();
    this.stop(line);
    line.focus({ preventScroll: true });
    line.scrollIntoView({ block: "center", behavior: calm.matches ? "auto" : "smooth" });
  }

  showAll() {
    this.filter.value = "";
    this.choices.forEach(({ box }) => { box.checked = false; });
    this.refresh();
  }
}

function sortHead(column, sort) {
  const label = [html("span", { class: column.label.length > 18 ? "long" : null }, breakable(column.label)), column.unit ? html("small", {}, column.unit) : null];
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
