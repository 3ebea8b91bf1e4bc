"""The check of a collective: it counts wrong elements, and refuses engines that do not agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu.slices import checked, processes, register
from tpusim.machines.tpu.slices.exchange import ExchangeLog
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.machines.tpu.slices.summary import CollectiveTime, Question, timed_collective
from tpusim.reference.collectives import expected

ENGINES = ("simpy", "register")


@pytest.fixture
def made() -> CollectiveTime:
    return timed_collective(Question(load_slice("v5e_2x2"), "all_reduce", 512))


def test_elements_are_all_compared(made: CollectiveTime) -> None:
    found = checked.check(made, ENGINES)
    assert found
    assert (found.elements, found.wrong) == (4 * 256, 0)


def test_one_wrong_element_of_a_chip_is_counted(made: CollectiveTime, monkeypatch: pytest.MonkeyPatch) -> None:
    right = expected

    def wrong(op: str, operands: Sequence[Any]) -> list[Any]:
        found = [each.copy() for each in right(op, operands)]
        found[2][7] -= 1
        return found

    monkeypatch.setattr(checked, "expected", wrong)
    for engines in ((), ENGINES):
        found = checked.check(made, engines)
        assert found
        assert found.wrong == 1


@pytest.mark.parametrize(("engine", "module"), [("simpy", processes), ("register", register)])
def test_engines_that_differ_by_a_cycle_are_told(
    made: CollectiveTime, engine: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = module.run

    def late(*given: Any) -> ExchangeLog:
        log: ExchangeLog = run(*given)
        return ExchangeLog(log.starts, [end + 1 for end in log.ends])

    monkeypatch.setattr(module, "run", late)
    with pytest.raises(CheckFailed, match=f"{engine} {made.cycles + 1:,}"):
        checked.check(made, ENGINES)


def test_one_chip_of_each_kind_has_to_agree(made: CollectiveTime) -> None:
    log = made.timing.log
    late = replace(made, timing=replace(made.timing, log=ExchangeLog(log.starts, [end + 1 for end in log.ends])))
    with pytest.raises(CheckFailed, match="one chip of each kind"):
        checked.check(late)
