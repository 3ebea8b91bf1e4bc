"""What a layer would cost by each lowering, found by running it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tpusim.base.errors import InputError, UnsuitableError, failures_named
from tpusim.flow.account import layer_result
from tpusim.flow.choice import prepared
from tpusim.flow.engines import UNCHECKED, Prepared
from tpusim.flow.lowerings import AUTO, candidates
from tpusim.flow.need import room_for
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, told
from tpusim.study.explain.relaxation import Setup


@dataclass(frozen=True)
class Alternative:
    """A layer by one lowering; `workspace_bytes`: of its tensors in HBM that are neither operand nor result."""

    layer: LayerResult
    workspace_bytes: int

    @property
    def lowering(self) -> str:
        """Its name."""
        return self.layer.lowering

    @property
    def hbm_bytes(self) -> int:
        """Read and written."""
        return self.layer.hbm_read_bytes + self.layer.hbm_write_bytes

    @property
    def accesses(self) -> int:
        """Words through the ports of all lanes together."""
        memory = told(self.layer.vector_memory)
        return memory.reads + memory.writes


@dataclass(frozen=True)
class Unfit:
    """A lowering by which this layer cannot run on this machine, and why."""

    lowering: str
    reason: str


Watch = Callable[[int, str], None]
"""Told how many lowerings have been tried, and which comes next."""


def tried() -> Sequence[str]:
    """The lowerings that are."""
    return candidates(AUTO)


def alternatives(setup: Setup, watch: Watch) -> tuple[tuple[Alternative, ...], tuple[Unfit, ...]]:
    """The layer by every lowering there is for it, the fastest first; and those that do not fit."""
    fit: list[Alternative] = []
    unfit: list[Unfit] = []
    for number, name in enumerate(tried()):
        watch(number, f"by {name}")
        try:
            fit.append(_measured(setup, name))
        except UnsuitableError:
            continue
        except InputError as error:
            unfit.append(Unfit(name, error.problems[0].message))
    return tuple(sorted(fit, key=lambda each: each.layer.cycles)), tuple(unfit)


def _measured(setup: Setup, lowering: str) -> Alternative:
    layer, batch, hardware = setup.layer, setup.batch, setup.hardware
    room_for(Workload("explained", batch, (layer,)), hardware, lowering, "event", check=False)
    ready = prepared(layer, batch, hardware, lowering)
    with failures_named(layer):
        result = layer_result(layer, batch, ready, ready.timing, UNCHECKED)
    return Alternative(result, _workspace(ready, layer.shapes(batch)))


def _workspace(ready: Prepared, own: Collection[str]) -> int:
    element_bytes = ready.hardware.vector_memory.element_bytes
    more = (tensor for tensor in ready.program.tensors if tensor.name not in own)
    return sum(tensor.bytes(element_bytes) for tensor in more)
