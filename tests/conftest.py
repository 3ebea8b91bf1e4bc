"""Goldens: readable text files that a run must reproduce; `--update-golden` writes them anew. And what tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import settings

from tests.draws import BACKEND
from tests.rules import rules
from tpusim.study.validation.cases import Case, NumberSet
from tpusim.study.validation.comparison import Comparison, Validation, compare
from tpusim.study.validation.sets import number_sets

GOLDEN = Path(__file__).parent / "golden"

# The same commit gets the same cases, so that a verdict is the change's and not the dice's; proofs by hand draw anew.
settings.register_profile("repeatable", derandomize="TPUSIM_CASES" not in os.environ, backend=BACKEND)
settings.load_profile("repeatable")

# nohup and shells' background jobs ignore signals that tests send; commands under test would inherit that.
for ignored, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, handler)


# Hundreds of tests invoke the command in their own process; Typer would build it from its functions for each.
typer.testing._get_command = cache(typer.testing._get_command)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; read the diff")
    parser.addoption("--rule", metavar="T12", help="only tests that hold this rule of docs/timing.md")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest tests come first: a process that began one last would keep all others waiting at the end."""
    if number := config.getoption("--rule"):
        if number not in rules():
            raise pytest.UsageError(f"--rule {number}: docs/timing.md has rules T1 to {rules()[-1]}")
        held = [item for item in items if any(number in mark.args for mark in item.iter_markers("rule"))]
        config.hook.pytest_deselected(items=[item for item in items if item not in held])
        items[:] = held
    items.sort(key=lambda item: item.path.name != "test_golden_figures.py")


# Tests and all that they import stay to the end, and Programs go when nobody has them any more. What is left to the
# collector, some hundred megabytes, costs less than looking for it.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file run in one process, which makes what they share once; those of a group in one, too.

    They run in the order of `pytest_collection_modifyitems`: otherwise files of many tests would come first.
    """
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if scope == nodeid else scope

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_finish() -> None:
    """Whoever collects in a test looks at what that test has made alone."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """A process of xdist has told all by now; it would take seconds to free what thousands of tests have left."""
    if hasattr(config, "workerinput"):
        os._exit(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Call with a file's name and the text it must hold."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert text == path.read_text(), f"{path} differs; if that is right, run with --update-golden"

    return check


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_nothing(monkeypatch)


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Files of pictures hold their captions: drawing takes longer than a small sweep, and is held in tests/report."""
    # Imported here, because Matplotlib takes longer to import than most single tests take.
    from tpusim.report.plots.figure import FORMATS, Picture

    def files(picture: Picture, kinds: Sequence[str] = FORMATS) -> Iterator[tuple[str, bytes]]:
        return ((f"{picture.name}.{kind}", f"{kind}: {picture.caption}".encode()) for kind in kinds)

    patch.setattr(Picture, "files", files)


@pytest.fixture(scope="session")
def comparisons() -> dict[str, Comparison]:
    """Every set of numbers compared with us, once: what uses it is long, and marked to run in one process."""
    return compared(number_sets().values())


QUICK_SETS = (
    "vgg16", "micro", "thin", "scheduled_1x1", "depthwise",
    "dilated", "grouped", "transposed", "gradients_input", "scheduled_gradients", "network_resnet18",
    "network_resnet50", "scheduled_resnet50",
    "scheduled_pooling", "v3_estimated", "v3_scheduled", "v3", "v3_odd",
)  # fmt: skip
"""Sets whose simulation takes less than a second, some of each word, kind and machine."""


@pytest.fixture(scope="session")
def quick_comparisons() -> dict[str, Comparison]:
    """The quick sets compared with us, and the smallest products: what uses them is marked to run in one process."""
    sets = number_sets()
    products = replace(sets["gemm"], cases=tuple(sorted(sets["gemm"].cases, key=macs_of)[:8]))
    return compared([products, *(sets[name] for name in QUICK_SETS)])


def macs_of(case: Case) -> int:
    """Multiplications of a case."""
    return sum(layer.macs(case.batch) for layer in case.layers)


def compared(sets: Iterable[NumberSet]) -> dict[str, Comparison]:
    """Sets of numbers compared with us, by name."""
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        return {each.numbers.name: each for each in compare(Validation(sets), lambda *_: None)}


def in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Compare without processes of its own: to start them takes longer than most sets, and tests run side by side."""
    patch.setattr("tpusim.study.worker_processes.cpu_count", lambda: 1)
