"""Convolutions in tiles: exact at every level, to the cycle in both engines, and no wait missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import fitted_by, suppose
from tests.agreement.test_hazards import hazards
from tests.rules import rule
from tests.strategies import cases, conv, machine, machines_of_all_kinds, paddings
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Lowering
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.sections import Slots
from tpusim.machines.tpu.tiles.fft import tiles_of
from tpusim.machines.tpu.tiles.tile_algorithm import Recipe
from tpusim.machines.tpu.tiles.tile_lowering import in_tiles
from tpusim.machines.tpu.tiles.winograd import WINOGRAD_2, WINOGRAD_4
from tpusim.network.ops.array_op import Conv2d

SHORT = 3000
"""Cycles of a case; transforms take many steps even of one tile."""

WAYS: Mapping[str, Lowering] = {
    "winograd_2": WINOGRAD_2,
    "winograd_4": WINOGRAD_4,
    **{name: in_tiles(name, "", partial(tiles_of, size)) for name, size in (("fft_4", 4), ("fft_8", 8))},
}
"""Of Fourier's, tiles that are small enough for a register engine; `fft` has the same of 16 x 16."""


@st.composite
def for_tiles(draw: st.DrawFn, name: str) -> Conv2d:
    """Stride 1, any padding; 3 x 3 taps, or any that are smaller than a tile."""
    padding = draw(paddings(4))
    sizes = st.integers(1, 3 if name == "fft_4" else 5)
    kernel = (draw(sizes), draw(sizes)) if name.startswith("fft") else (3, 3)
    kernel = (2, 1) if max(kernel) == 1 else kernel
    added = (9, 9) if isinstance(padding, str) else tuple(map(int, np.add(padding[:2], padding[-2:])))
    high, wide = (max(1, k - more) + draw(st.integers(0, 4)) for k, more in zip(kernel, added, strict=True))
    return Conv2d("conv", draw(st.integers(1, 6)), high, wide, draw(st.integers(1, 6)), kernel, padding=padding)


@rule("T102", "T107")
@settings(max_examples=cases(1 / 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    drawn=st.sampled_from([*WAYS]).flatmap(lambda name: st.tuples(st.just(name), for_tiles(name))),
    batch=st.integers(1, 4),
    hardware=machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])),
)
@example(drawn=("winograd_4", conv(5, 5, 3, 3, padding=1)), batch=1, hardware=machine(4, 4))
@example(drawn=("winograd_2", conv(1, 1, 1, 3, padding=4)), batch=1, hardware=machine(1, 1, word_elements=1))
@example(drawn=("fft_8", conv(1, 1, 1, 3, padding=3)), batch=1, hardware=machine(1, 1, word_elements=1))
@example(drawn=("fft_4", conv(5, 5, 3, 2)), batch=1, hardware=machine(3, 8, alus=64))
# A register of all lanes that few take part in.
@example(
    drawn=("winograd_2", conv(3, 3, 1, 3)),
    batch=1,
    hardware=machine(
        1,
        5,
        word_elements=1,
        alus=1,
        vector_unit={"slots": Slots(loads=1, stores=1, lanes=1, register_bytes=4, registers=1, latency=0)},
    ),
)
def test_random_layers(drawn: tuple[str, Conv2d], batch: int, hardware: Hardware) -> None:
    """Values at both levels, the engines to the cycle, no wait missing, steps told ahead, never below the least."""
    suppose(not hardware.banked)
    name, layer = drawn
    lowering = WAYS[name]
    assert lowering.least
    # Many steps take longer to make than to time.
    suppose(lowering.least(layer, batch, hardware) < SHORT)
    program, hardware = fitted_by(lowering, layer, batch, hardware)
    timing = event.run(program, hardware)
    suppose(timing.cycles < SHORT)
    timing = agreed_timing(program, hardware, timing)
    assert lowering.least(layer, batch, hardware) <= timing.cycles
    assert not [*hazards(program, hardware)]
    planned = lowering.drafts(layer, batch, hardware)[0].planned
    assert planned.passes == len(program.streams)
    assert planned.transfers >= sum(not isinstance(step, Stream | Preload) for step in program.rows)
    agree(layer, batch, program, hardware, seed=5, timing=timing)


@cache
def tight(name: str) -> tuple[Program, Hardware]:
    layer = conv(6, 6, 9, 3, padding=1)
    return fitted_by(WAYS[name], layer, 4, machine(4, 4, word_elements=4, capacity_words=120))


TIGHT = pytest.mark.parametrize("name", ["winograd_2", pytest.param("fft_4", marks=pytest.mark.long)])


@TIGHT
def test_steps_wait_for_all_that_they_need(name: str) -> None:
    assert not [*hazards(*tight(name))]


@pytest.mark.parametrize("kind", [Fill, Preload, Stream, Vector, Spill])
@TIGHT
def test_no_kind_of_step_could_do_without_its_waits(name: str, kind: type[Step]) -> None:
    program, hardware = tight(name)
    steps = tuple(replace(step, after=()) if isinstance(step, kind) else step for step in program.rows)
    assert any(hazards(replace(program, rows=steps), hardware))


def worked_out(recipe: Recipe, inputs: int) -> np.ndarray:
    """The matrix of what a recipe makes, line by line."""
    known = {f"x{number}": row for number, row in enumerate(np.eye(inputs))}
    for made, factors in recipe:
        known[made] = sum(factor * known[name] for name, factor in factors.items())
    outputs = sum(name.startswith("y") for name in known)
    return np.array([known[f"y{number}"] for number in range(outputs)])
