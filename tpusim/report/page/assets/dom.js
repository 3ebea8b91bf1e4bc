// Elements, without ever parsing text as markup: names come from users.

const SVG = "http://www.w3.org/2000/svg";
const page = document.getElementById("page");
const data = JSON.parse(document.getElementById("data").textContent);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

let lastId = 0;
const freshId = (stem) => `${stem}-${++lastId}`;

function select(label, options, chosen, changed) {
  const id = freshId("choice");
  const box = html("select", { id, onchange: () => changed(box.value) },
    options.map(([value, text]) => html("option", { value, selected: value === chosen ? "" : null }, text)));
  return html("div", { class: "choice" }, html("label", { for: id }, label), box);
}

function section(title, ...children) {
  const id = freshId("section");
  return html("section", { "aria-labelledby": id }, html("h2", { id }, title), ...children);
}

function banner(report) {
  const icons = { right: "✓", partly: "✓", wrong: "✗", unchecked: "–" };
  const verdict = report.verdict;
  return html("header", {},
    html("div", { class: "bar" }, html("p", { class: "kicker" }, "tpusim report"), themeButton()),
    html("h1", {}, report.title),
    html("p", { class: "subtitle" }, report.subtitle),
    html("div", { class: `verdict ${verdict.state}`, role: "note", "aria-label": "verdict" },
      html("span", { class: "icon", "aria-hidden": "true" }, icons[verdict.state]),
      html("div", {}, html("strong", {}, verdict.text), verdict.first ? html("p", {}, verdict.first) : null)));
}

function themeButton() {
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => { button.textContent = dark() ? "Light colours" : "Dark colours"; };
  const button = html("button", {
    type: "button", class: "theme",
    onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; show(); },
  });
  system.addEventListener("change", show);
  show();
  return button;
}
