"""Channel-first implicit im2col (paper sections III-IV): a convolution layer becomes a `Program`.

Every tap of the filter is a 1x1 convolution; its passes read the ifmap where it lies, at shifted addresses.
The lowered matrix never exists.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.lowering.banked import lowered_by, planned_by
from tpusim.machines.tpu.lowering.tap_groups import TapGroups

lower = partial(lowered_by, TapGroups)
planned = partial(planned_by, TapGroups)
