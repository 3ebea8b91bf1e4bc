"""Channel-last implicit im2col (Lym et al., as paper section II-C tells it): K in the order C_I, H_F, W_F.

Without a crossbar, a lane can only feed its own array row: neighbouring rows have neighbouring taps of one channel, so
a channel stands in as many lanes as it has taps, and the ifmap comes in copies. From banks, through a crossbar, every
row gets its words where they stand.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.banked import lowered_from_banks, planned_from_banks
from tpusim.machines.tpu.lowering.dense import Dense
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.tiled import lowered_by, planned_by
from tpusim.machines.tpu.program.explanation import Lowered, Planned
from tpusim.network.ops import Op


def _cut(shape: ConvShape, hardware: Hardware) -> Dense:
    return Dense(shape, hardware, "channel_last")


def lower(layer: Op, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        CapacityError: when no tiling fits the memories; or the machine has banks, and each tap is to be fetched by
            itself.
    """
    return (lowered_from_banks if hardware.banked else partial(lowered_by, _cut))(layer, batch, hardware)


def planned(layer: Op, batch: int, hardware: Hardware) -> Planned:
    """How many steps `lower` would write down. Raises as it does."""
    return (planned_from_banks if hardware.banked else partial(planned_by, _cut))(layer, batch, hardware)
