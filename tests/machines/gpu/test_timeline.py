"""What a trace of a GPU shows adds up to what its account says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.strategies import conv
from tpusim import load_hardware
from tpusim.machines.gpu.family import FAMILY
from tpusim.machines.gpu.lowering import LOWERINGS
from tpusim.machines.lowered import Slot
from tpusim.network.ops.op import Op


def slots_of(
    layer: Op, lowering: str, changes: tuple[str, ...] = ()
) -> tuple[dict[str, list[Slot]], dict[str, int], int]:
    ready = FAMILY.lowered(layer, 8, load_hardware("v100", changes), lowering)
    timing = ready.timing
    return (
        {name: list(found) for name, found in ready.recorded().slots.items()},
        dict(timing.units["sms"]),
        timing.cycles,
    )


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(
    "layer", [conv(64, 28, 64, 3, padding=1), conv(24, 30, 136, 3, stride=2)], ids=["even", "ragged"]
)
def test_tracks_are_in_order_and_end_with_the_layer(layer: Op, lowering: str) -> None:
    tracks, _, cycles = slots_of(layer, lowering)
    for found in tracks.values():
        assert all(start < stop for start, stop, _ in found)
        assert all(one[1] <= other[0] for one, other in pairwise(found))
    assert tracks["kernel"][0][0] == 0
    assert tracks["kernel"][-1][1] == tracks["sm"][-1][1] == cycles


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_where_all_sms_do_the_same_the_track_is_the_account(lowering: str) -> None:
    """On one SM: every block is its own."""
    tracks, account, _ = slots_of(conv(40, 9, 72, 3, padding=1), lowering, ("sm.count=1",))
    shown = Counter[str]()
    for start, stop, name in tracks["sm"]:
        shown[name] += stop - start
    assert shown == {name: cycles for name, cycles in account.items() if cycles}
