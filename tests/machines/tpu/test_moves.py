"""Runs of the transfers of Programs, against the elements of their parts, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.test_agreement import IN_LANES, fitted, suppose
from tests.agreement.test_second_lowering import Reversed
from tests.rules import rule
from tests.strategies import (
    cases,
    conv,
    lowerings_of,
    machine,
    machines_of_all_kinds,
    small_layers,
    transposed_convs,
    with_resident_taps,
)
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.moves import TransferRuns, regions_of
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill, Transfer
from tpusim.memory.hbm_layout import AS_READ, FILTERS, Layouts, axes_of
from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d, Gemm

Layer = Conv2d | Gemm
Element = tuple[int, ...]


def transfers(program: Program) -> list[Transfer]:
    return [step for step in program.rows if isinstance(step, Transfer)]


def elements(step: Transfer) -> set[Element]:
    """Those of its parts that are in the tensor, by counting."""
    found = set()
    for part in step.parts:
        lanes = [[(each.axis, each.coordinates[lane]) for each in part.lane] for lane in range(part.lanes)]
        items = product(*([(each.axis, at) for at in each.coordinates] for each in part.items))
        for held, item in product(lanes, [*items]):
            at = [0] * len(step.tensor.shape)
            for axis, coordinate in (*held, *item):
                at[axis] += coordinate
            found.add(tuple(at))
    return {*inside(step.tensor, found)}


def inside(tensor: Tensor, found: Iterable[Element]) -> Iterator[Element]:
    return (at for at in found if all(0 <= x < extent for x, extent in zip(at, tensor.shape, strict=True)))


def in_regions(step: Transfer) -> set[Element]:
    return {*inside(step.tensor, (at for region in regions_of(step) for at in product(*region)))}


def address(at: Element, tensor: Tensor, base: int, hardware: Hardware) -> int:
    """Where an element stands of a tensor that lies by its axes."""
    name = hardware.hbm.layout.of(tensor.name)
    order = axes_of(name) if len(at) == 4 else FILTERS.get(name) or range(len(at))
    place = 0
    for axis in order:
        place = place * (tensor.padded or tensor.shape)[axis] + at[axis]
    return base + int(place * number_bytes(tensor, hardware))


def number_bytes(tensor: Tensor, hardware: Hardware) -> Fraction:
    """Of a number in HBM, which may have weights in fewer bits than the machine works with."""
    if tensor.packed:
        return Fraction(tensor.packed.bytes)
    return Fraction(tensor.number_bytes or hardware.vector_memory.element_bytes)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, Hardware]:
    """By every lowering on machines of all kinds, of a layer whose elements can be counted one by one."""
    layer, batch = draw(st.one_of(small_layers(), small_layers(), transposed_convs())), draw(st.integers(1, 5))
    hardware = draw(machines_of_all_kinds(16))
    if isinstance(layer, ConvTranspose2d):
        hardware = with_resident_taps(hardware)
    suppose(layer.macs(batch) < 20_000)
    names = lowerings_of(layer) - (IN_LANES if hardware.banked else set())
    suppose(bool(names))
    name = draw(st.sampled_from(sorted(names)))
    program, hardware = fitted(layer, batch, hardware, name)
    suppose(sum(step.lane_words for step in transfers(program)) < 20_000)
    return program, hardware


@settings(max_examples=cases(0.06), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_runs_of_all_transfers(case: tuple[Program, Hardware]) -> None:
    program, hardware = case
    moves = TransferRuns(program, hardware)
    assert_one_after_another(moves)
    for step in transfers(program):
        held = elements(step)
        assert_bytes_follow(step, moves, hardware)
        # What follows from parts alone is no more and no less than they are; a lowering may name more.
        assert held == in_regions(replace(step, regions=None))
        assert held <= in_regions(step)
        if moves.order(step.tensor.name) != AS_READ:
            base, burst = moves.bases[step.tensor.name], hardware.hbm.burst_bytes
            wanted = {address(at, step.tensor, base, hardware) // burst * burst for at in held}
            assert wanted <= {*moves.bursts(step).tolist()}
    assert_read_in_one_run(program, hardware)


def assert_bytes_follow(step: Transfer, moves: TransferRuns, hardware: Hardware) -> None:
    """From the runs; where nothing else than HWCN is asked for, nobody but the lowering has written them."""
    runs, burst = moves.runs(step), hardware.hbm.burst_bytes
    assert step.hbm_bytes == moves.bytes(step) == sum(-(-each.size // burst) * burst * each.number for each in runs)
    assert moves.wanted(step) <= step.hbm_bytes
    touched = len({*moves.bursts(step).tolist()}) * burst
    assert touched <= step.hbm_bytes + burst * sum(each.number for each in runs)


def assert_one_after_another(moves: TransferRuns) -> None:
    """Tensors have addresses of their own."""
    bases = [*moves.bases.values()]
    assert [*moves.bases] == [each.name for each in moves.program.tensors]
    assert all(base % moves.hardware.hbm.alignment_bytes == 0 for base in bases)
    ends = dict(zip(moves.bases, [*bases[1:], 2**62], strict=True))
    for step in transfers(moves.program):
        name = step.tensor.name
        for each in moves.runs(step):
            assert moves.bases[name] <= each.starts.min() <= each.starts.max() + each.size <= ends[name]


def assert_read_in_one_run(program: Program, hardware: Hardware) -> None:
    """A filter that lies as it is read: each part at one place, whichever fill brings it, and no two at one."""
    hardware = hardware.model_copy(update={"hbm": hardware.hbm.model_copy(update={"layout": Layouts()})})
    moves = TransferRuns(program, hardware)
    places: dict[tuple[tuple[Along, ...], ...], tuple[int, int]] = {}
    for step in transfers(program):
        size = number_bytes(step.tensor, hardware)
        # A part that begins within a byte begins at no address.
        if step.tensor.name == "filter" and size.denominator == 1:
            runs = moves.runs(step)
            start = at = runs[0].base if runs else 0
            for part in step.parts:
                # Zeros between groups, or where a phase has no tap, stand nowhere.
                there = len(elements(replace(step, parts=(part,)))) * size.numerator
                assert not there or places.setdefault((part.lane, part.items), (at, there)) == (at, there)
                at += there
            assert [each.size for each in runs] == [at - start] * (at > start)
    assert all(at + there == after for (at, there), (after, _) in pairwise(sorted(places.values())))


def test_a_lowering_that_says_nothing_has_runs_all_the_same() -> None:
    """One that the package has never seen, and which counts bytes of its own."""
    layer, hardware = conv(5, 6, 7, 3, padding=1), machine(8, 4, word_elements=4, hbm={"layout": "CHW"})
    program = Reversed(layer, 3, hardware).lowered()[0]
    moves = TransferRuns(program, hardware)
    fill, spill = (next(step for step in program.rows if isinstance(step, kind)) for kind in (Fill, Spill))
    assert fill.regions is None
    # Eight rows hold channel 0 seven times, or channel 0 and one tap of no other: each channel comes once.
    channels = sorted({*fill.parts[0].lane[0].coordinates})
    assert moves.wanted(fill) == len(channels) * 6 * 6 * 3 * 4
    assert [run.levels for run in moves.runs(spill)] == [((3, 7 * 36 * 4),)]
    assert moves.runs(spill)[0].size == 4 * 36 * 4


@rule("T122")
def test_rows_of_a_block_by_hand() -> None:
    """Rows 2 and 3 of 4 channels in 2 images of a map of 6 x 8: two runs HWC, rows of a channel CHW."""
    tensor = Tensor("ifmap", (4, 6, 8, 2))
    items = (Along(1, range(2, 4)), Along(2, range(8)), Along(3, range(2)))
    step = Fill((), tensor, (Part(0, (0, 4), (Along(0, range(4)),), items, 2),), 0)
    runs = {}
    for order in ("HWCN", "HWC", "CHW"):
        hardware = machine(hbm={"layout": order})
        runs[order] = TransferRuns(Program((tensor,), (), (step,), 2), hardware).runs(step)
    assert [(each.base, each.levels, each.size) for each in runs["HWCN"]] == [(512, (), 512)]
    assert [(each.base, each.levels, each.size) for each in runs["HWC"]] == [(256, ((2, 768),), 256)]
    assert [(each.base, each.levels, each.size) for each in runs["CHW"]] == [(64, ((2, 768), (4, 192)), 64)]


@pytest.mark.parametrize("kernel", [1, 3])
def test_only_chw_pays_for_a_stride(kernel: int) -> None:
    """Paper, section III-A: of a row of a channel, tap by tap, every other element is wanted."""
    moved = {}
    for order in ("HWCN", "HWC", "CHW"):
        hardware = machine(128, 128, word_elements=8, hbm={"layout": order}).with_overrides(
            {"mapping.fetch": "per_tap"}
        )
        program, told = lowered(conv(64, 56, 64, kernel, stride=2), 8, hardware, "channel_first")
        moved[order] = sum(step.hbm_bytes for step in program.rows if step.label == "ifmap fill")
        assert order in told.aspects["layout"]
    assert moved["HWCN"] == moved["HWC"]
    assert moved["CHW"] > 2 * moved["HWC"]


def test_a_layout_is_no_excuse_for_what_does_not_fit() -> None:
    with pytest.raises(CapacityError):
        lowered(conv(64, 28, 64, 3), 8, machine(capacity_words=2, hbm={"layout": "CHW"}), "channel_first")
