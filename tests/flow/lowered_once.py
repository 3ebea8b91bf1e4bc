"""Layers of a kind, lowered once for all runs of a module on a machine, as they are for all layers of one run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import pytest

from tpusim.flow import fusion, lowerings, need, simulation
from tpusim.flow.jobs import Job
from tpusim.flow.need import AskedJob, Need
from tpusim.machines.family import Machine
from tpusim.machines.lowered import ReadyLayer, unheard
from tpusim.network.ops.op import Op


@contextmanager
def lowered_once() -> Iterator[None]:
    """Keep Programs, and what they need, from one run to the next."""
    programs: dict[Hashable, ReadyLayer] = {}
    needs: dict[Hashable, Need] = {}
    estimate = need.need_of

    def prepared(
        layer: Op,
        batch: int,
        machine: Machine,
        lowering: str,
        doing: Callable[[str], None] = unheard,
        bounded: bool = False,
    ) -> ReadyLayer:
        key = Job(layer, batch, lowering).kind, batch, machine, bounded
        if key not in programs:
            programs[key] = lowerings.prepared(layer, batch, machine, lowering, doing, bounded)
        return programs[key]

    def need_of(asked: AskedJob, free: int) -> Need:
        key = asked.job.kind, asked.job.batch, *asked[1:]
        if key not in needs:
            needs[key] = estimate(asked, free)
        return needs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "prepared", prepared)
        patch.setattr(fusion, "prepared", prepared)
        patch.setattr(need, "need_of", need_of)
        yield
