"""Goldens: readable text files that a run must reproduce; `--update-golden` writes them anew. And what tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tpusim.study.validation.comparison import Comparison, Validation, compare
from tpusim.study.validation.sets import number_sets

GOLDEN = Path(__file__).parent / "golden"

# The same commit gets the same cases, so that a verdict is the change's and not the dice's; proofs by hand draw anew.
settings.register_profile("repeatable", derandomize="TPUSIM_CASES" not in os.environ)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; read the diff")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests come first: a process that began one last would keep all others waiting at the end."""
    items.sort(key=lambda item: item.path.name != "test_published_figures.py")


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay to the end: the collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Call with a file's name and the text it must hold."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert text == path.read_text(), f"{path} differs; if that is right, run with --update-golden"

    return check


@pytest.fixture(scope="session")
def comparisons() -> dict[str, Comparison]:
    """Every set of numbers compared with us, once: what uses it is marked to run in one process."""
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        return {each.numbers.name: each for each in compare(Validation(number_sets().values()), lambda *_: None)}


def in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Compare without processes of its own: to start them takes longer than most sets, and tests run side by side."""
    patch.setattr("tpusim.study.processes.cpu_count", lambda: 1)
