"""The rules of docs/timing.md: `@rule("T12")` stands over each test that holds rule T12."""

from __future__ import annotations

import re

import pytest

from tests import ROOT

TIMING = (ROOT / "docs" / "timing.md").read_text()


def rule(*numbers: str) -> pytest.MarkDecorator:
    """Mark a test as one that holds these rules."""
    return pytest.mark.rule(*numbers)


def rules() -> list[str]:
    """The numbers of all rules, in the order of the page."""
    return re.findall(r"^(?:\* |\d\. )?\*\*(T\d+)\.", TIMING, re.MULTILINE)
