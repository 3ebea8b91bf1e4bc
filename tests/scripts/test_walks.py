"""scripts/walks: how a workload walks from room to room."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest

from tests import ROOT

MOST_STAYS, MOST_ROOMS, MOST_RETURNS = 23, 14, 9
"""Of a run: more, and somebody asks again for what was settled before."""


@pytest.fixture(scope="module")
def walks() -> ModuleType:
    loader = SourceFileLoader("walks", str(ROOT / "scripts" / "walks"))
    spec = spec_from_loader("walks", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "words",
    [
        ("tiny",),
        ("tiny", "--hardware", "tiny_4x4", "--set", "sequencer.fusion=results", "--layers", "fig*"),
        pytest.param(("resnet50", "--batch", "8"), marks=pytest.mark.long),
    ],
)
def test_a_run_goes_one_way(walks: ModuleType, words: tuple[str, ...]) -> None:
    walk = walks.a_run(*words)
    assert {"flow.jobs", "flow.simulation", "flow.engines", "report.tables.run"} <= {*walk.stays}
    # Layers can be picked only when it is known which ones run.
    picked = "--layers" in words
    assert len(walk.stays) <= MOST_STAYS, walk
    assert walk.rooms <= MOST_ROOMS, walk
    assert walk.returns <= MOST_RETURNS + picked, walk
    assert (walk.stays.count("flow.fusion"), walk.stays.count("flow.jobs")) == (1, 1 + picked)


def test_loading_stays_below(walks: ModuleType) -> None:
    """Nothing is fused or timed while a file is read."""
    walk = walks.loading()
    assert walk.stays.count(walks.READER) > 0
    assert walk.above("network") == []


def test_a_generation_reads_its_file_once(walks: ModuleType) -> None:
    """Tokens resize what was read."""
    stays = walks.a_generation().stays
    assert stays.count("study.generation") > 3
    assert walks.READER in stays[: stays.index("flow.need")]
    assert walks.READER not in stays[stays.index("flow.need") :]


def test_what_a_walk_counts(walks: ModuleType) -> None:
    walk = walks.Walk(("flow.jobs", "network.workload", "flow.jobs", "flow.need", "cli.commands", "base.errors"))
    assert (walk.rooms, walk.climbs, walk.returns) == (5, 2, 1)
    assert walk.above("network") == ["flow.jobs", "flow.need", "cli.commands"]
