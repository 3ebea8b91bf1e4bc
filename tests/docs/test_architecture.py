"""The pages for maintainers: every path on them exists, and names stand in the files of their row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = ("architecture", "programs", "extending")
INSIDE = ROOT / "tpusim" / "machines" / "tpu"
PATH = re.compile(r"\w+(?:/\w+)+(?:\.\w+)?/?|\w+\.(?:py|md|yaml)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")


def spans(line: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", line)


def found(name: str) -> Path | None:
    """The file or folder of a path below the package or the repository, or below `machines/tpu` with its suffix."""
    below = (ROOT / "tpusim", ROOT, *([INSIDE] if name.endswith(".py") else []))
    return next((folder / name for folder in below if (folder / name).exists()), None)


def sentences(page: str) -> list[str]:
    """The lines of a page outside blocks of code."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    folder, lost = ROOT, []
    for name in (span for line in sentences(page) for span in spans(line) if PATH.fullmatch(span)):
        path = found(name) or (folder / name if (folder / name).exists() else None)
        if path is None:
            lost.append(name)
        else:
            folder = path if path.is_dir() else path.parent
    assert lost == []


def test_names_stand_in_the_files_of_their_row() -> None:
    lost = []
    for row in (line for line in TEXT.partition("## Where is ...")[2].splitlines() if line.startswith("| ")):
        answer = spans(row.split(" | ", 1)[1])
        files = [path for span in answer if PATH.fullmatch(span) and (path := found(span)) and path.is_file()]
        held = "".join(path.read_text(encoding="utf-8") for path in files)
        names = [span for span in answer if NAME.fullmatch(span) and not PATH.fullmatch(span) and not found(span)]
        lost += [name for name in names for word in name.split(".") if not re.search(rf"\b{word}\b", held)]
    assert lost == []


def test_a_lost_path_is_seen() -> None:
    assert None not in (found("flow/lowerings.py"), found("docs/memory.md"), found("lowering/vector.py"))
    assert found("flow/lowering.py") is found("lowering/vector") is None
