"""The unit of work of a sweep: layers of different shapes on one machine."""

from __future__ import annotations

from dataclasses import dataclass

from tpusim.base.errors import TpusimError
from tpusim.flow.simulation import simulate
from tpusim.machines.tpu.description import Hardware
from tpusim.network.ops import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult

Finding = LayerResult | str
"""A layer's result, or why it cannot be simulated."""


@dataclass(frozen=True)
class Job:
    """Complete in itself, so that any process on any computer can do it."""

    hardware: Hardware
    batch: int
    layers: tuple[Op, ...]


def simulated(job: Job) -> tuple[Finding, ...]:
    """Timing alone, one finding a layer."""
    return tuple(_one(layer, job) for layer in job.layers)


def _one(layer: Op, job: Job) -> Finding:
    try:
        return simulate(Workload("job", job.batch, (layer,)), job.hardware, check=False).layers[0]
    except Exception as error:
        # Also what nobody foresaw: one point must not end a sweep of thousands.
        text = str(error).removeprefix(f"layer {layer.name}: ")
        return text if isinstance(error, TpusimError) else f"{type(error).__name__}: {text}"
