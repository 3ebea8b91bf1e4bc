"""The thumbnails of docs/gallery.md, and what tells that one is stale.

A section of the page names commands and pictures. `scripts/gallery` runs the commands in a folder of their own, makes
thumbnails of what they draw, and keeps a digest of what they say: of figures and not of pixels, which change with each
version of a library.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.cells import said

DOCS = Path(__file__).parent
PAGE, FOLDER = DOCS / "gallery.md", DOCS / "gallery"
DIGESTS = FOLDER / "digests.json"
WIDE, TONES = 480, 48
"""Dots across a thumbnail, and colours in it."""

_TIMES = re.compile(r"simulated in .*|, in [\d,.]+ s.*|-?\b0\.0+\b")
"""What commands say of this computer; and zeros, whose sign is nothing."""


@dataclass(frozen=True)
class Section:
    """A section of the page: its title, the commands that it tells to type, and the names of its pictures."""

    title: str
    commands: tuple[str, ...]
    pictures: tuple[str, ...]

    @property
    def kept(self) -> tuple[Path, ...]:
        """Pictures of other pages, of commands that take too long: thumbnails are made of them as they are."""
        return tuple(file for name in self.pictures if (file := DOCS / f"{name}.png").exists())

    def digest(self, folder: Path) -> str:
        """Return a digest of what the commands say and write, run in `folder`; or of the pictures that are kept."""
        if self.kept:
            told = [file.read_bytes() for file in self.kept]
        else:
            with contextlib.chdir(folder):
                told = [_TIMES.sub("", said(command)).encode() for command in self.commands]
            files = sorted([*folder.rglob("points.csv"), *folder.rglob("*.txt")])
            told += [_TIMES.sub("", file.read_text(encoding="utf-8")).encode() for file in files]
        return hashlib.sha256(b"\0".join(told)).hexdigest()[:16]


def sections() -> Iterator[Section]:
    """Yield the sections of the page, in order."""
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        blocks = re.findall(r"^```\n(.*?)^```", part, re.M | re.S)
        commands = tuple(line for block in blocks for line in block.splitlines())
        yield Section(
            part.partition("\n")[0], commands, tuple(re.findall(r"^:img-top: gallery/(\S+)\.png$", part, re.M))
        )


def _small(drawn: bytes) -> bytes:
    from PIL import Image

    picture = Image.open(io.BytesIO(drawn)).convert("RGB")
    picture = picture.resize((WIDE, round(picture.height * WIDE / picture.width)), Image.Resampling.LANCZOS)
    found = io.BytesIO()
    picture.quantize(TONES, dither=Image.Dither.NONE).save(found, "png", optimize=True)
    return found.getvalue()


def _photographed(page: Path) -> bytes:
    """Return the top of a page as a browser shows it."""
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as running, running.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as open_:
        shown = open_.new_page(viewport={"width": 1100, "height": 900})
        shown.goto(page.as_uri())
        shown.wait_for_timeout(500)
        return shown.screenshot()


def make(section: Section) -> str:
    """Run the commands of a section, write its thumbnails, and return its digest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = section.digest(folder)
        for picture in section.pictures:
            drawn = DOCS / f"{picture}.png"
            if not drawn.exists():
                (drawn, *_) = [*folder.rglob(f"{picture}.png"), *folder.rglob(f"{picture}.html")]
            contents = _photographed(drawn) if drawn.suffix == ".html" else drawn.read_bytes()
            (FOLDER / f"{picture}.png").write_bytes(_small(contents))
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    digests = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    for each in sections():
        if not sys.argv[1:] or each.title in sys.argv[1:]:
            digests[each.title] = make(each)
            print(each.title)
    digests = {each.title: digests[each.title] for each in sections()}
    DIGESTS.write_text(json.dumps(digests, indent=2) + "\n")
