"""Channel-last implicit im2col (Lym et al., as paper section II-C tells it): K in the order C_I, H_F, W_F.

Without a crossbar, a lane can only feed its own array row: neighbouring rows have neighbouring taps of one channel, so
a channel stands in as many lanes as it has taps, and the ifmap comes in copies. From banks, through a crossbar, every
row gets its words where they stand.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.lowering.convolution import convolved
from tpusim.machines.tpu.lowering.dense import IGNORED, Dense
from tpusim.machines.tpu.lowering.drafts import Lowering

CHANNEL_LAST = Lowering(
    "channel_last",
    "implicit im2col whose passes go through the taps of a channel, then of the next",
    partial(convolved, partial(Dense, k_order="taps_fastest")),
    banks=True,
    ignores=IGNORED | {"k_order"},
)
