"""The site builds without a warning, in a minute; its links lead somewhere, and it asks the network for nothing."""

from __future__ import annotations

import re
import resource
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests import ROOT
from tests.browser import chromium

MOST_SECONDS = 60
"""Of the processor: on a computer that others use, too, the clock on the wall measures the others."""


class Page(HTMLParser):
    """What a page links to, what it loads, and the names of its places."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = {""}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "author"):
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


def _processor_seconds() -> float:
    """The time that commands ended so far have had, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, made anew by the script that its readers use. What it needs is installed before time is taken."""
    subprocess.run(["scripts/quickstart", "--install", ".venv-site", "docs"], cwd=ROOT, check=True, timeout=1200)
    subprocess.run(["rm", "-rf", "site"], cwd=ROOT, check=True)
    before = _processor_seconds()
    done = subprocess.run(["scripts/site"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert _processor_seconds() - before < MOST_SECONDS
    (index,) = re.findall(r"^Site: (\S+)", done.stdout, re.M)
    return Path(index).parent


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in site.rglob("*.html")}


pytestmark = [pytest.mark.long, pytest.mark.xdist_group("site")]


def test_every_page_is_there(site: Path, pages: dict[Path, Page]) -> None:
    for source in (ROOT / "docs").glob("*.md"):
        assert (site / source.name).with_suffix(".html") in pages
    assert len([file for file in pages if file.parent.name == "reference"]) >= 9


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    broken, followed = [], 0
    for file, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            followed += 1
            place = unquote(parts.fragment)
            if not target.exists() or (target in pages and place not in pages[target].places):
                broken.append(f"{file.name}: {link}")
    assert broken == []
    assert followed > 1000


def test_nothing_comes_from_the_network(site: Path, pages: dict[Path, Page]) -> None:
    assert not [link for page in pages.values() for link in page.loaded if urlsplit(link).netloc]
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_search_finds_a_field_on_a_page_from_the_disk(site: Path) -> None:
    with chromium() as browser:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.goto((site / "index.html").as_uri())
        page.fill("input.sidebar-search", "word_elements")
        page.press("input.sidebar-search", "Enter")
        page.wait_for_selector("ul.search li a")
        assert page.locator("ul.search li a").first.inner_text() == "Machine files"
        assert complaints == []
        page.close()


@pytest.mark.parametrize("asked", ["gqa", "tensor parallel", "kv cache", "MoE", "flash attention", "roofline"])
def test_what_is_found_has_a_line_of_the_page(site: Path, asked: str) -> None:
    """Of words that readers of other tools look for; a line has one of them at least."""
    with chromium() as browser:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{(site / 'search.html').as_uri()}?q={asked.replace(' ', '+')}")
        page.wait_for_selector("ul.search li .search-line")
        # What is found, and the line of each, comes one by one.
        every, told = "ul.search > li", "ul.search > li > .search-line"
        count = "each => document.querySelectorAll(each).length"
        page.wait_for_function(f"([every, told]) => ({count})(every) === ({count})(told)", arg=[every, told])
        lines = page.locator(told).all_inner_texts()
        assert any(word in lines[0].lower() for word in asked.lower().split())
        assert max(map(len, lines)) < 300
        assert complaints == []
        page.close()
