"""Channel-last implicit im2col (Lym et al., as paper section II-C tells it): K in the order C_I, H_F, W_F.

Without a crossbar, a lane can only feed its own array row: neighbouring rows have neighbouring taps of one channel, so
a channel stands in as many lanes as it has taps, and the ifmap comes in copies. From banks, through a crossbar, every
row gets its words where they stand.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import convolved
from tpusim.machines.tpu.lowering.dense import IGNORED, Dense, dense
from tpusim.machines.tpu.lowering.drafts import Lowering
from tpusim.machines.tpu.lowering.geometry import ConvShape


def _cut(shape: ConvShape, hardware: Hardware) -> Dense:
    return dense(shape, hardware, "taps_fastest")


CHANNEL_LAST = Lowering(
    "channel_last",
    "implicit im2col whose passes go through the taps of a channel, then of the next",
    partial(convolved, _cut),
    banks=True,
    ignores=IGNORED | {"k_order"},
)
