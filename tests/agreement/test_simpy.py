"""The event engine's loop and the rules in SimPy, without the engine that takes time for every cycle: longer cases, and
many more of them.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.chains import Chain, chains
from tests.agreement.engines import agreed_timing, assert_alike
from tests.agreement.test_agreement import suppose
from tests.agreement.test_residence import with_room
from tests.agreement.test_scratch import scratch_memories
from tests.rules import rule
from tests.strategies import (
    among,
    cases,
    channel_ops,
    conv_gradients,
    convs,
    deform_convs,
    depthwise,
    gemms,
    grouped_convs,
    lowerings_of,
    machines_of_all_kinds,
    row_ops,
    sequences,
    transposed_convs,
    vector_ops,
    with_resident_taps,
)
from tests.test_structure import imported
from tpusim.base.errors import InputError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event import engine, processes, state
from tpusim.machines.tpu.event.engine import PlainRun
from tpusim.machines.tpu.lowering.registry import meant
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.machines.tpu.schedule.joined import linked
from tpusim.machines.tpu.schedule.residence import in_scratch, residence
from tpusim.network.ops.op import Op

MOST_STEPS = 600
"""Of a case: few have more, and they take most of the time."""
relaxed = settings(max_examples=cases(usual=4), deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def programs(draw: st.DrawFn, layers: st.SearchStrategy[Op]) -> tuple[Program, Hardware]:
    """Layers on machines of every kind, some with a scratch memory or weights of their own, by every lowering."""
    hardware = draw(machines_of_all_kinds(16)).having("mapping", search="estimate")
    if hardware.array.count > 1:
        hardware = hardware.having("array", weights=draw(among("shared", "own", "either")))
    if draw(among(True, False, False, False)):
        hardware = draw(scratch_memories(hardware))
    layer, batch = draw(layers), draw(st.integers(1, 9))
    if layer.unit == "vector":
        name = meant(layer, "")
    else:
        hardware = with_resident_taps(hardware) if getattr(layer, "scatter", False) else hardware
        name = draw(among(*sorted(lowerings_of(layer))))
    suppose(layer.macs(batch) / hardware.pes < 5_000)
    try:
        ready = prepared(layer, batch, hardware, name)
    except InputError:
        # It does not fit, or is not of this lowering.
        suppose(False)
    suppose(len(ready.program.rows) < MOST_STEPS)
    return ready.program, ready.running


CONVOLUTIONS = st.one_of(convs(), sequences(), gemms(), depthwise(), grouped_convs(6))
KINDS = {
    "convolutions": CONVOLUTIONS,
    "others of the array": st.one_of(transposed_convs(), conv_gradients(), deform_convs()),
    "of the vector unit": st.one_of(vector_ops(), row_ops(), channel_ops()),
}


@rule("T72", "T120")
@pytest.mark.parametrize("kind", KINDS)
@relaxed
@given(data=st.data())
def test_random_layers_to_the_cycle(kind: str, data: st.DataObject) -> None:
    program, hardware = data.draw(programs(KINDS[kind]))
    timing = agreed_timing(program, hardware)
    for unit, account in timing.units.items():
        assert min(account.values()) >= 0, unit
        assert sum(account.values()) == timing.cycles, unit


@relaxed
@given(data=st.data())
def test_room_for_cycles_grows_as_it_is_needed(data: st.DataObject) -> None:
    """From a few cycles on, whether those are kept or forgotten that nobody can ask for again. As Python, where a cycle
    beyond the room is an error.
    """
    program, hardware = data.draw(programs(data.draw(st.sampled_from([*KINDS.values()]))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_WIDTH", 16)
        patch.setattr(engine, "_fast_enough", lambda _: PlainRun)
        kept, forgotten = engine.timed(program, hardware, keep=True), engine.timed(program, hardware)
    simpy = processes.timed(program, hardware)
    assert_alike(kept, simpy)
    assert (forgotten.cycles, forgotten.owned) == (simpy.cycles, simpy.owned)


@relaxed
@given(chain=chains(), data=st.data())
def test_random_chains_to_the_cycle(chain: Chain, data: st.DataObject) -> None:
    """Layers that overlap, with a scratch memory or without."""
    hardware, layers = chain.hardware, chain.program
    if data.draw(st.booleans()):
        hardware = data.draw(scratch_memories(hardware))
        layers = linked(in_scratch(chain.joints, hardware), hardware)
    agreed_timing(layers, hardware)


@relaxed
@given(chain=with_room(), leaves=st.booleans())
def test_random_chains_that_stay_on_chip_to_the_cycle(chain: Chain, leaves: bool) -> None:
    found = residence([each._replace(leaves=leaves) for each in chain.joints], chain.hardware)
    agreed_timing(linked(found.layers, chain.hardware), chain.hardware)


def test_neither_has_a_rule_of_the_other() -> None:
    """They share what the machine is, the columns of a Program and the tables of a log."""
    loop = {"loop", "native", "engine", "state"}
    names = {f"machines.tpu.event.{each}" for each in loop}
    assert not imported("machines.tpu.event.processes") & names
    assert not [name for name in names if "machines.tpu.event.processes" in imported(name)]
