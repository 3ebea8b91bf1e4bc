"""Layers that overlap in a run: what is told of it, and that both engines agree on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.covering import covering, few
from tests.rules import rule
from tests.strategies import conv, dram, machine
from tpusim import load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.flow.jobs import resolve
from tpusim.flow.recordings import recordings, trace
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.machines.tpu.runs.chains import MOST_LAYERS
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.elementwise import Add, Relu
from tpusim.network.workload import LayerBlock, Workload
from tpusim.report.tables.sentences import overlap_notice
from tpusim.result.load import parse_result

DRAIN = machine(
    8,
    8,
    word_elements=4,
    capacity_words=200,
    latency_cycles=40,
    sequencer={"launch_cycles": 30},
    mapping={"search": "estimate"},
)
OVERLAP = DRAIN.with_overrides(["sequencer.between_layers=overlap"])
FIRST, SECOND = (replace(conv(6, 6, 6, 3, padding=1), name=name) for name in ("first", "second"))
BLOCK = Workload(
    "block", 4, (FIRST, Relu("relu", 6, 6, 6), SECOND, Add("add", 6, 6, 6)),
    edges={"relu": ["first"], "second": ["relu"], "add": ["second", "first"]},
)  # fmt: skip


@rule("T144")
def test_a_run_is_shorter_and_right_and_the_engines_agree() -> None:
    apart, together = simulate(BLOCK, DRAIN, check=False), simulate(BLOCK, OVERLAP, engine="both")
    assert together.correct
    assert [each.outputs_checked for each in together.layers] == [each.outputs for each in apart.layers]
    assert together.total.hidden_cycles == apart.total.cycles - together.total.cycles > 30
    for alone, layer in zip(apart.layers, together.layers, strict=True):
        assert layer.hidden_cycles == alone.cycles - layer.cycles
        assert (layer.hbm_read_bytes, layer.vector_memory.reads) == (alone.hbm_read_bytes, alone.vector_memory.reads)
        assert all(sum(account.values()) == layer.cycles for account in layer.units.values())
    assert parse_result(together.to_json()) == together
    share = f"{100 * together.total.hidden_cycles / apart.total.cycles:.1f} %"
    assert overlap_notice(together) == (
        f"Layers overlap: {together.total.hidden_cycles:,} cycles fewer than one by one, {share}."
    )
    assert overlap_notice(apart) == ""


@pytest.mark.parametrize(
    ("weights", "changes"),
    few(
        2,
        [
            ("own", {}),
            ("shared", {}),
            ("own", {"loads": "windows"}),
            ("shared", {"loads": "windows"}),
            ("either", {}),
            ("either", {"loads": "windows"}),
        ],
    ),
)
def test_layers_of_several_arrays_overlap(weights: str, changes: dict[str, str]) -> None:
    """Whatever number of elements their words hold."""
    drain = machine(
        8,
        8,
        word_elements=4,
        capacity_words=400,
        latency_cycles=40,
        sequencer={"launch_cycles": 30, "between_blocks": "drain"},
        array={"count": 2, "weights": weights},
    ).having("mapping", **changes)
    few = Gemm("few", m=2, n=16, k=24)
    block = replace(BLOCK, layers=(*BLOCK.layers, few), edges={**dict(BLOCK.edges), "few": ["input"]})
    apart = simulate(block, drain, check=False)
    engine = "both" if weights == "own" else "event"
    together = simulate(block, drain.with_overrides(["sequencer.between_layers=overlap"]), engine=engine)
    assert together.correct
    assert not any(each.apart for each in together.layers)
    # Alone, a layer may leave an array out.
    assert together.total.hidden_cycles >= apart.total.cycles - together.total.cycles > 4 * 30
    for layer in together.layers:
        assert all(sum(account.values()) == layer.cycles for account in layer.units.values())


@rule("T143")
def test_weights_come_past_small_layers() -> None:
    """HBM has time for them while small layers wait for one another."""
    products = Gemm("first", m=4, n=64, k=32), Gemm("second", m=4, n=64, k=64)
    small = tuple(Relu(f"relu{at}", 64, 1, 1) for at in range(5))
    work = Workload("row", 4, (products[0], *small, products[1]))
    several = machine(8, 8, word_elements=4, bytes_per_cycle=16, array={"count": 2, "weights": "own"})
    (stretch,) = recordings(resolve(work, several.with_overrides(["sequencer.between_layers=overlap"])))
    moved = [step for step in stretch.recording.program.rows if isinstance(step, Transfer)]
    behind = next(at for at, step in enumerate(moved) if step.tensor.name == "second.filter")
    small_ones = [at for at, step in enumerate(moved) if step.tensor.name == "relu0.ofmap"]
    assert behind < small_ones[0]


@rule("T142")
def test_a_layer_that_is_faster_otherwise_follows_its_neighbours_for_a_launch() -> None:
    """Of few channels, it would split the arrays; if that saves more than a launch, it stays alone."""
    channels = [32, 32, 16, 32]
    layers = tuple(Gemm(f"product{at}", m=64, n=n, k=32) for at, n in enumerate(channels))
    work = Workload("row", 64, layers, edges={each.name: ["input"] for each in layers})
    for launch, apart in ((2000, 0), (0, 1)):
        several = machine(
            32, 32, word_elements=8, sequencer={"launch_cycles": launch}, array={"count": 2, "weights": "either"}
        )
        either = several.having("array", split=2).with_overrides(["sequencer.between_layers=overlap"])
        result = simulate(work, either, engine="event" if launch else "both")
        assert result.correct
        assert sum(each.apart != "" for each in result.layers) >= apart
        assert (launch == 0) == any(each.apart == "it uses the arrays in another way" for each in result.layers)


SCRATCH = ["scratch_memory.capacity=64 KiB", "scratch_memory.bandwidth=1 TB/s", "scratch_memory.latency=2 ns"]


@rule("T153")
def test_what_layers_make_for_one_another_lies_in_the_scratch_memory() -> None:
    """Of the block only what it begins with, the filters and what it ends with go through HBM."""
    without = OVERLAP.with_overrides(["hbm.bandwidth=8 GB/s"])
    plain, near = simulate(BLOCK, without, check=False), simulate(BLOCK, without.with_overrides(SCRATCH), engine="both")
    assert near.correct
    assert near.total.cycles < 0.9 * plain.total.cycles
    assert [each.hbm_write_bytes for each in near.layers] == [0, 0, 0, plain.layers[3].hbm_write_bytes]
    assert near.total.hbm_saved_bytes > plain.total.hbm_saved_bytes
    written, read = (
        sum(each.own.get(key, 0) for each in near.layers) for key in ("scratch_write_bytes", "scratch_read_bytes")
    )
    assert read > written > 0
    assert all(not each.own for each in plain.layers)
    for layer in near.layers:
        assert sum(layer.units["scratch_memory"].values()) == layer.cycles
    assert parse_result(near.to_json()) == near


@rule("T154")
def test_a_layer_alone_has_what_it_reads_again_in_the_scratch_memory() -> None:
    """Where that is faster: the lowered matrix, and what several blocks fill."""
    slow = DRAIN.with_overrides(["hbm.bandwidth=8 GB/s", "vector_memory.capacity=1 KiB"])
    near = slow.with_overrides(SCRATCH)
    for lowering in ("explicit", "channel_first"):
        plain = simulate(BLOCK, slow, lowering=lowering, check=False)
        fast = simulate(BLOCK, near, lowering=lowering, engine="both" if lowering == "explicit" else "event")
        assert fast.correct
        assert fast.total.cycles < plain.total.cycles
        assert fast.total.hbm_read_bytes < plain.total.hbm_read_bytes
        if lowering == "explicit":
            assert any(each.lowered_bytes for each in plain.layers)
            assert not any(each.lowered_bytes for each in fast.layers)


@rule("T146")
def test_what_is_chosen_for_layers_alone_is_said_to_be() -> None:
    together = simulate(BLOCK, OVERLAP, check=False)
    by_auto = replace(together, lowering="auto")
    assert overlap_notice(by_auto).endswith(
        " Each has the lowering that is fastest for it alone, but perhaps not for all together."
    )
    searched = OVERLAP.with_overrides(["mapping.search=simulate"]).to_dict()
    assert "Each has the lowering and the block that" in overlap_notice(replace(by_auto, hardware=searched))


STAY = DRAIN.with_overrides(["sequencer.between_layers=stay"])


@rule("T151", "T152")
@pytest.mark.parametrize(("fusion", "dtype"), covering(1, ["none", "results"], ["integers", "bf16"]))
def test_what_stays_saves_hbm_and_is_right_and_the_engines_agree(fusion: str, dtype: str) -> None:
    machine = STAY.with_overrides([f"sequencer.fusion={fusion}", "vector_memory.capacity=64 KiB"])
    apart = simulate(BLOCK, machine.with_overrides(["sequencer.between_layers=drain"]), dtype=dtype, check=False)
    together = simulate(BLOCK, machine, engine="both", dtype=dtype)
    assert together.correct
    assert [each.outputs_checked for each in together.layers] == [each.outputs for each in apart.layers]
    moved = [each.total.hbm_read_bytes + each.total.hbm_write_bytes for each in (apart, together)]
    assert together.total.hbm_saved_bytes == moved[0] - moved[1] > 0
    assert together.total.hidden_cycles == apart.total.cycles - together.total.cycles
    first = together.layers[0].residency
    assert first is not None
    assert first.outcome is not None
    assert first.readers[0] == "relu"
    assert parse_result(together.to_json()) == together
    stay = sum(bool(each.residency and each.residency.outcome) for each in together.layers)
    assert f"Outputs of {stay} of {len(together.layers)} layers stay on chip: " in overlap_notice(together)


@pytest.mark.parametrize("engine", [pytest.param("event", marks=pytest.mark.long), "simpy", "both"])
def test_one_that_reads_an_outcome_twice_is_right(engine: str) -> None:
    """Its operands are drawn for each of its tensors."""
    twice = replace(BLOCK, edges={**dict(BLOCK.edges), "add": ["second", "second"]})
    together = simulate(twice, STAY.with_overrides(["vector_memory.capacity=64 KiB"]), engine=engine)
    assert together.correct
    second = together.layers[2].residency
    assert second is not None
    assert (second.readers, second.spilled) == (("add",), True)


def test_what_takes_anothers_place_counts_once() -> None:
    machine = STAY.with_overrides(["vector_memory.capacity=4 KiB"])
    total = simulate(BLOCK, machine, check=False).total
    assert total.hbm_saved_bytes > 0
    assert total.vector_memory is not None
    assert total.vector_memory.peak_bytes <= machine.sram_bytes


def test_what_is_added_on_the_way_is_waited_for() -> None:
    """An addition that rides on results reads what it adds when its maker has spilled it."""
    machine = OVERLAP.with_overrides(["sequencer.fusion=results"])
    work = resolve(BLOCK, machine).work
    *_, second = work.layers
    read = zip(second.reads(work.batch), dict(work.edges)["second"], strict=False)
    assert {tensor: source.names for tensor, source in read} == {"ifmap": ("relu",), "other": ("first",)}


@rule("T137")
def test_a_layer_alone_is_as_ever() -> None:
    alone = [simulate(Workload("one", 4, (FIRST,)), each).layers[0] for each in (DRAIN, OVERLAP)]
    assert alone[0] == alone[1]


def test_what_is_read_is_waited_for() -> None:
    """Of memory that is far away; layers that do not read one another hide more of it."""
    far = OVERLAP.with_overrides(["hbm.latency=150 ns"])
    reads, free = (
        simulate(Workload("pair", 4, (FIRST, SECOND), edges={"second": [name]}), far, check=False)
        for name in ("first", "input")
    )
    assert 0 < reads.total.hidden_cycles < free.total.hidden_cycles
    unsaid = simulate(Workload("pair", 4, (FIRST, SECOND)), far, check=False)
    assert unsaid.total.cycles == reads.total.cycles


APART = {
    "HBM is modelled with its banks": OVERLAP.model_copy(
        update={"hbm": OVERLAP.hbm.model_copy(update={"model": "banks", "device": dram()})}
    ),
    "words hold another number of elements": OVERLAP,
}


@rule("T139", "T141")
@pytest.mark.parametrize("why", APART)
def test_what_does_not_fit_begins_on_an_empty_machine(why: str) -> None:
    second = SECOND if "banks" in why else Gemm("second", m=1, n=5, k=7)
    work = Workload("pair", 4, (FIRST, second))
    result = simulate(work, APART[why], check=False)
    assert [layer.apart for layer in result.layers] == ["", why]
    assert result.total.hidden_cycles == 0
    assert f"Begun on an empty machine: 1 layer, as {why}." in overlap_notice(result)


@rule("T141", "T150")
@pytest.mark.parametrize("why", ["the ifmap lies in banks", "passes read through pointers"])
def test_what_must_stand_where_it_does_runs_as_it_is(why: str) -> None:
    banked = "banks" in why
    drain = load_hardware("tpu_v2_banked") if banked else DRAIN
    stay = drain.with_overrides(["sequencer.between_layers=stay"])  # type: ignore[union-attr]
    work = Workload("pair", 4, (FIRST, replace(FIRST, name="next")), edges={"next": ["first"]})
    asked = {"lowering": "channel_first" if banked else "indirect", "check": False}
    alone, together = (simulate(work, each, **asked) for each in (drain, stay))  # type: ignore[arg-type]
    assert [layer.apart for layer in together.layers] == ["", why]
    assert together.total.cycles == alone.total.cycles
    assert {stretch.cuts for stretch in recordings(resolve(work, stay, str(asked["lowering"])))} == {
        (0, layer.cycles) for layer in alone.layers
    }


@rule("T150")
def test_nothing_stays_for_what_is_picked_through_pointers() -> None:
    """It does not overlap with others, which do."""
    hardware = load_hardware("tiny_4x4", ["sequencer.between_layers=stay"])
    sizes = {"in_height": 4, "in_width": 4, "out_channels": 4, "kernel": (1, 1)}
    before, behind = (Conv2d(name, 4, **sizes) for name in ("before", "behind"))  # type: ignore[arg-type]
    offsets = DeformConv2d("picked", 4, **sizes)  # type: ignore[arg-type]
    result = simulate(Workload("three", 2, (before, offsets, behind)), hardware)
    assert [layer.apart for layer in result.layers] == ["", *["elements are picked through pointers"] * 2]
    assert result.correct


@pytest.mark.parametrize("hardware", [OVERLAP, STAY, DRAIN])
def test_what_is_recorded_is_what_a_run_says(hardware: Hardware) -> None:
    """Layer by layer, though those that overlap are recorded as one."""
    found = [(stretch, span) for stretch in recordings(resolve(BLOCK, hardware)) for span in pairwise(stretch.cuts)]
    layers = [layer for stretch in recordings(resolve(BLOCK, hardware)) for layer in stretch.layers]
    cycles = {layer.name: stop - first for layer, (_, (first, stop)) in zip(layers, found, strict=True)}
    assert cycles == {layer.name: layer.cycles for layer in simulate(BLOCK, hardware, check=False).layers}
    together = {len(stretch.layers) for stretch, _ in found}
    assert together == ({1} if hardware is DRAIN else {len(BLOCK.layers)})


def test_a_layer_by_itself_is_traced_whatever_is_asked_of_several() -> None:
    one = Workload("one", 4, (FIRST,))
    assert trace(resolve(one, OVERLAP))[0] == trace(resolve(one, DRAIN))[0]
    with pytest.raises(InputError, match="a trace of lanes shows one layer"):
        trace(resolve(BLOCK, OVERLAP))
    many = Workload("many", 4, tuple(Relu(f"relu{at}", 4, 4, 8) for at in range(9)))
    with pytest.raises(InputError, match=r"not 9 of many: relu0, .*relu7, \.\.\.; .* a \.perfetto-trace"):
        trace(resolve(many, DRAIN))


@pytest.mark.parametrize(("size", "copies"), few(2, [(5, 15), (30, 4), (70, 2), (64, 3), (5, 30)]))
def test_a_full_chain_ends_with_a_block_that_is_said(size: int, copies: int) -> None:
    """Without what is said, and where no chain holds a block, it is as long as may be."""
    names = [[f"relu_{copy}_{at}" for at in range(size)] for copy in range(copies)]
    first = Relu("first", 8, 1, 1)
    layers = (first, *(Relu(name, 8, 1, 1) for copy in names for name in copy))
    plain = Workload("row", 4, layers)
    said = replace(plain, blocks=(LayerBlock(tuple(map(tuple, names))),))
    ends: list[list[str]] = []
    for work in (plain, said):
        found = recordings(resolve(work, OVERLAP))
        stretches = [each.layers for each in found]
        assert [layer.name for some in stretches for layer in some] == [layer.name for layer in layers]
        ends.append([some[-1].name for some in stretches[:-1]])
    assert ends[0] == [layers[at].name for at in range(MOST_LAYERS - 1, len(layers) - 1, MOST_LAYERS)]
    if size <= MOST_LAYERS:
        assert {*ends[1]} <= {"first", *(copy[-1] for copy in names)}
    else:
        assert ends[1] == ends[0]
