// Below each page that a search finds, the line where its words stand. The texts of all pages are in `TEXTS`, a script
// beside this one: from a disk, browsers give a page no other page to quote from.

const AROUND = 120;
const words = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);

// The part of a text with most of the words, from the beginning of a word to the end of one.
function lineOf(text) {
  const small = text.toLowerCase();
  const count = (start) => {
    const part = small.slice(start, start + 2 * AROUND);
    return words.filter((word) => part.includes(word)).length;
  };
  let [best, most] = [-1, 0];
  for (const word of words) {
    for (let at = small.indexOf(word); at >= 0; at = small.indexOf(word, at + word.length)) {
      const start = Math.max(0, at - AROUND / 2);
      const found = count(start);
      if (found > most) [best, most] = [start, found];
    }
  }
  if (best < 0) return `${text.slice(0, 2 * AROUND).replace(/\s\S*$/, "")} …`;
  const part = text.slice(best, best + 2 * AROUND);
  return `${best ? "… " : ""}${(best ? part.replace(/^\S*\s/, "") : part).replace(/\s\S*$/, "")} …`;
}

function addLines() {
  for (const found of document.querySelectorAll("#search-results ul.search > li:not([data-line])")) {
    found.dataset.line = "";
    const name = found.querySelector("a")?.getAttribute("href").replace(/#.*$/, "").replace(/\.html$/, "");
    if (!TEXTS[name]) continue;
    const line = document.createElement("p");
    line.className = "search-line";
    line.textContent = lineOf(TEXTS[name]);
    found.append(line);
  }
}

new MutationObserver(addLines).observe(document.getElementById("search-results"), { childList: true, subtree: true });
addLines();
