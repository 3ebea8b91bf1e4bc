"""A headless Chromium for tests of the report page, and what is measured in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = (1280, 390)


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no chromium: apt-get install chromium")
    # The sandbox refuses to start for root, which containers often are.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page with all it complained about and asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)


@contextmanager
def opened(browser: Any, file: Path, width: int = 1280, **options: Any) -> Iterator[Opened]:
    """The file in a window of its own; at the end nothing may have gone wrong, nor left this computer."""
    page = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
    shown = Opened(page)
    page.on("console", lambda message: shown.complaints.append(message.text))
    page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    page.on("request", lambda request: shown.requests.append(request.url))
    page.goto(file.as_uri())
    yield shown
    page.close()
    assert shown.complaints == []
    assert shown.requests == [file.as_uri()]


LAYOUT = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const owner = node.parentElement;
    const unseen = owner.closest("script, noscript, option, .slanted, #tip") || !owner.checkVisibility();
    if (unseen || !node.data.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = owner.ownerSVGElement ? [owner.getBoundingClientRect()] : [...range.getClientRects()];
    const scroller = owner.closest(".scroller");
    for (const box of boxes) {
      if (box.width < 1 || box.height < 1) continue;
      if (scroller && box.right > scroller.getBoundingClientRect().right) continue;
      const { left, right, top, bottom } = box;
      const svg = owner.ownerSVGElement?.getBoundingClientRect() ?? null;
      found.push({ text: node.data.trim().slice(0, 40), left, right, top, bottom, svg });
    }
  }
  const wrong = [];
  const room = document.documentElement.clientWidth;
  const needed = document.documentElement.scrollWidth;
  if (needed > room) wrong.push(`the page scrolls sideways: ${needed}`);
  for (const box of found) {
    const within = box.svg ?? { left: 0, right: room, top: 0, bottom: Infinity };
    if (box.left < within.left - 1 || box.right > within.right + 1 || box.left < 0 || box.right > room)
      wrong.push(`${box.text} is cut: ${box.left} to ${box.right}`);
    if (box.svg && (box.top < box.svg.top - 1 || box.bottom > box.svg.bottom + 1))
      wrong.push(`${box.text} leaves its picture`);
  }
  for (const element of document.querySelectorAll("main *")) {
    if (element.closest("svg") || element.matches(".scroller, select, input") || !element.checkVisibility()) continue;
    if (getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1)
      wrong.push(`${element.tagName} hides ${element.scrollWidth - element.clientWidth} pixels`);
  }
  // Sorted by height, each is compared with those that begin before it ends.
  found.sort((a, b) => a.top - b.top);
  found.forEach((one, i) => {
    for (let k = i + 1; k < found.length && found[k].top < one.bottom - 2; k++) {
      const other = found[k];
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - other.top;
      if (across > 2 && down > 3) wrong.push(`${one.text} | ${other.text} overlap by ${across} x ${down}`);
    }
  });
  return { wrong, texts: found.length };
}"""
"""What is wrong with where text stands: cut off, outside its picture, on top of other text, or beyond the window."""
