"""What bounds a layer: named from first principles here, found by simulation there."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.agreement.test_held_fills import ONE_STRIP
from tests.checks import TWO_ARRAYS
from tests.strategies import conv, machine
from tests.study.relaxed import explained_by, trying
from tpusim import load_hardware, load_workload, simulate
from tpusim.cli import app as cli
from tpusim.machines.tpu import event
from tpusim.machines.tpu.observation.timeline import HOLDERS
from tpusim.machines.tpu.runs.prepared import PreparedLayer
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.workload import Workload
from tpusim.report.plots import layer as layer_plots
from tpusim.report.shown import Listing, Sentences
from tpusim.report.tables import explain
from tpusim.result.records import STALL_CAUSES
from tpusim.study.explain.bottleneck import LEAST_GAIN, Alternative, Bottleneck, explain_layer
from tpusim.study.explain.relaxation import LARGER, Setup

CHANGES = {
    "twice the arrays": ["array.count=2"],
    "twice the HBM bandwidth": ["hbm.bandwidth={2 * hbm} GB/s"],
    "HBM latency of one cycle": ["hbm.latency=1 ns"],
    "a port for every client": ["vector_memory.ports=separate"],
    "words twice as long": ["vector_memory.word_elements={2 * word}"],
    "weights enter twice as fast": ["array.weights_per_cycle=2"],
    "twice the vector memory": ["vector_memory.capacity=512 KiB"],
    "a vector unit twice as fast": ["vector_unit.alus=512"],
    "whole filter rows stacked": ["mapping.multi_tile=rows"],
}
"""What each relaxation of tpu_v2 must come to, as a user would type it."""


ESTIMATE = "mapping.search=estimate"
"""Blocks that simulation chooses take most of the time, and have no say in some of what is told."""


def said(words: Sentences) -> str:
    """The sentences in one line."""
    return " ".join(words.lines)


@cache
def explained(layer: Conv2d | Gemm, batch: int, *changes: str, hardware: str = "tpu_v2") -> Bottleneck:
    setup = Setup(layer, batch, load_hardware(hardware, [ESTIMATE, *changes]))
    return explain_layer(setup, lambda done, name: None)


@cache
def of_resnet50(name: str) -> Conv2d | Gemm:
    return next(layer for layer in resnet50().layers if layer.name == name)


@cache
def resnet50() -> Workload:
    return load_workload("resnet50", batch=8)


def cycles(layer: Conv2d | Gemm, batch: int, *changes: str) -> int:
    work = Workload("one", batch, (layer,))
    return simulate(work, load_hardware("tpu_v2", [ESTIMATE, *changes]), check=False).total.cycles


PIXELS = 8 * 56 * 56
LIMITS = [
    # One pass streams 8 * 112 * 112 elements: 7 passes of 3 x 7 rows and 64 columns where all 128 x 128 would
    # need 49 * 3 * 64 / 128 / 128 of one.
    ("conv1", [], "mapping", {"array": 49 * 3 * 64 / 128**2 * 8 * 112**2, "mapping": 7 * 8 * 112**2,
                              "hbm": 4 * 8 * (224**2 * 3 + 112**2 * 64) / 1000}),
    # 256 channels are two full passes of 128 x 128; HBM brings a kB a cycle ...
    pytest.param("layer2.0.conv1", [], "array", {"array": 2 * PIXELS, "hbm": 4 * PIXELS * (256 + 128) / 1000},
                 marks=pytest.mark.long),
    # ... or 214 B of it.
    ("layer2.0.conv1", ["hbm.bandwidth=150 GB/s"], "hbm",
     {"array": 2 * PIXELS, "hbm": 4 * PIXELS * (256 + 128) / (150 / 0.7)}),
    # 4 x 4 folds, 9 taps, 8 * 49 elements each: longer than the 128 cycles of the next preload.
    pytest.param("layer4.1.conv2", [], "array", {"array": 16 * 9 * 8 * 49, "weights": 16 * 9 * 128,
                                                 "hbm": 4 * (9 * 512**2 + 2 * 8 * 49 * 512) / 1000},
                 marks=pytest.mark.long),
    # 16 x 8 folds: 128 cycles to load each, 8 rows of input to use it on.
    ("fc", [], "weights", {"array": 128 * 8, "weights": 128 * 128, "hbm": 4 * (2048 * 1000) / 1000}),
    # The same weights, of which HBM brings 71 B a cycle: they are long in coming, not in loading.
    pytest.param("fc", ["hbm.bandwidth=50 GB/s"], "hbm",
                 {"array": 128 * 8, "weights": 128 * 128, "hbm": 4 * (2048 * 1000) / (50 / 0.7)},
                 marks=pytest.mark.long),
    # A fold of 9 taps, but for each element the port moves an ifmap word, a partial sum and a result.
    ("layer2.1.conv2", ["vector_memory.word_elements=1"], "ports",
     {"array": 9 * 8 * 28**2, "ports": 3 * 9 * 8 * 28**2, "weights": 9 * 128}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "limit", "least_cycles"), LIMITS)
def test_the_bottleneck_is_the_one_of_first_principles(
    name: str, changes: list[str], limit: str, least_cycles: dict[str, float]
) -> None:
    """`least_cycles` is what each resource alone would need; the one that needs the most is the bottleneck."""
    found = explained(of_resnet50(name), 8, *changes)
    assert max(least_cycles, key=lambda each: least_cycles[each]) == limit
    assert found.limit == limit
    assert found.agrees
    assert found.layer.cycles >= max(least_cycles.values())
    # Nothing else comes near it: each resource is the bottleneck by a margin.
    assert found.layer.cycles < 1.4 * max(least_cycles.values())
    relaxing_it_gains_the_most(of_resnet50(name), found, changes)


def relaxing_it_gains_the_most(layer: Conv2d | Gemm, found: Bottleneck, changes: list[str]) -> None:
    """A user who makes a change gets its `run_cycles`, and no other gain is as large."""
    machine_ = load_hardware("tpu_v2", changes)
    numbers = {
        "{2 * hbm}": str(2 * machine_.hbm.bandwidth_bytes_per_s // 10**9),
        "{2 * word}": str(2 * machine_.vector_memory.word_elements),
    }
    before = cycles(layer, 8, *changes)
    ours: dict[str, float] = {}
    for relaxed, texts in CHANGES.items():
        for place, number in numbers.items():
            texts = [text.replace(place, number) for text in texts]
        ours[relaxed] = before / cycles(layer, 8, *changes, *texts)
    theirs = {gain.relaxation.name: gain for gain in found.gains}
    for relaxed, gain in ours.items():
        if relaxed in theirs:
            assert found.layer.cycles / theirs[relaxed].run_cycles == pytest.approx(gain)
            assert theirs[relaxed].gain == pytest.approx(max(gain, theirs[relaxed].alone or 0))
        else:
            assert gain == 1, f"{relaxed} was left out"
    twice = replace(layer, m=16) if isinstance(layer, Gemm) else layer
    batch = theirs["twice the rows of input" if isinstance(layer, Gemm) else "twice the batch"]
    assert batch.gain == pytest.approx(2 * before / cycles(twice, 8 if isinstance(layer, Gemm) else 16, *changes))
    assert found.most is not None
    assert found.most.relaxation.limit == found.limit
    # Twice the rows use each weight twice: of a product that waits for its weights, that is the same in other words.
    others = [gain.gain for gain in found.gains if gain.relaxation.limit not in (found.limit, "input")]
    assert found.most.gain > 1.1 * max([*others, *(1.0,)])


def test_every_pe_filled_is_counted_by_the_mac() -> None:
    """3 channels in, 5 out on 4 x 4: 9 of 12 rows' worth of channels, 5 of 8 columns."""
    quick = machine(4, 4, mapping={"search": "estimate"})
    setup = Setup(conv(3, 18, 5, 1), 2, quick)
    found = explained_by(setup, "every PE filled")
    (filled,) = (gain for gain in found.gains if gain.relaxation.per == "MAC")
    work = Workload("filled", 2, (conv(4, 18, 8, 1),))
    after = simulate(work, quick, check=False).total
    assert (filled.how, filled.cycles) == ("in_channels=4 out_channels=8", after.cycles)
    assert filled.gain == pytest.approx(found.layer.cycles / after.cycles * (4 * 8) / (3 * 5))
    # Passes of 3 rows, of 4 columns and of one.
    assert filled.alone == pytest.approx(16 / ((12 + 3) / 2))


def test_what_another_plan_gives_is_told_apart() -> None:
    """A pass of conv1 fills 33 x 64 PEs, of which no plan makes more than 7.76; nor does a port for every client gain
    as much with the present passes and fills as with other blocks. Blocks are those of an estimate.
    """
    layer, machine_ = next(iter(load_workload("alexnet", batch=3).layers)), load_hardware("tpu_v2", [ESTIMATE])
    setup = Setup(layer, 3, machine_)
    names = "every PE filled", "whole filter rows stacked", "a port for every client"
    found = explained_by(setup, *names, "words twice as long")
    gains = {gain.relaxation.name: gain for gain in found.gains}
    filled, stacked, ports = (gains[name] for name in names)
    assert filled.alone == pytest.approx(128 * 128 / (33 * 64))
    assert filled.gain > filled.alone + 0.1
    assert stacked.alone == 1
    assert gains["words twice as long"].alone is None
    separate = machine_.with_overrides(["vector_memory.ports=separate"])
    assert ports.alone == found.layer.cycles / event.run(found.program, separate).cycles
    told = said(explain.verdict(found))
    assert "times as fast, 7.76 times with the present plan, the rest with another. Of what can be set, " in told
    assert re.search(r"best is whole filter rows stacked: 1\.\d\d times as fast, all of it with another plan\.", told)


def test_no_gain_is_below_that_of_the_same_plan() -> None:
    """Where HBM answers at once, the search chooses other blocks, which take longer than the present ones would."""
    machine_ = machine(8, 8, capacity_words=150, bytes_per_cycle=16, latency_cycles=20)
    setup = Setup(conv(7, 5, 16, 2, 2, 1), 3, machine_)
    found = explained_by(setup, "HBM latency of one cycle", "a port for every client", "twice the vector memory")
    shown = explain.explained(found, Workload("one", 3, (setup.layer,)), None, (), ())
    latency = next(each for each in shown.data["gains"] if each["with"] == "HBM latency of one cycle")
    at_once = machine_.with_overrides(["hbm.latency=1 ps"])
    same = event.run(found.program, at_once).cycles
    chosen = simulate(Workload("one", 3, (setup.layer,)), at_once, check=False).total.cycles
    assert same < chosen
    assert latency["gain"] == latency["same_plan"] == found.layer.cycles / same
    assert (latency["cycles"], latency["run_cycles"]) == (same, chosen)
    assert all(gain.alone is None or gain.alone <= gain.gain for gain in found.gains)


def test_what_the_present_plan_could_not_gain_is_not_told() -> None:
    """The present passes fill 18 of 64 PEs; but more channels keep HBM so long that no plan gains 3.56."""
    setup = Setup(conv(3, 3, 4, 3), 4, machine(8, 8, word_elements=1, capacity_words=200, bytes_per_cycle=16))
    (filled,) = explained_by(setup, "every PE filled").gains
    assert filled.alone is None
    assert filled.cycles == filled.run_cycles


def test_an_array_too_full_for_its_ports_is_still_the_array() -> None:
    """Words of four: 4 cycles in the array, 3 slots of the port; a second array would ask for 6."""
    found = explained(of_resnet50("layer4.1.conv2"), 8, "vector_memory.word_elements=4")
    assert found.most is not None
    assert found.most.relaxation is LARGER
    assert found.most.how == "array.rows=256 array.cols=256 vector_unit.alus=512"
    assert found.limit == "array"
    assert all(gain.gain < LEAST_GAIN for gain in found.gains if gain.relaxation is not LARGER)


def test_more_input_is_not_taken_for_the_weights() -> None:
    """One pass: twice the batch shares the start and the end; the weights of 4 rows are loaded in no time."""
    found = explained(Conv2d("one", 4, 3, 3, 4, (1, 1)), 2, "mapping.search=auto", hardware="tiny_4x4")
    assert found.most is not None
    assert found.most.relaxation.name == "twice the batch"
    gains = {gain.relaxation.name: gain.gain for gain in found.gains}
    assert gains["weights enter twice as fast"] == 1 < LEAST_GAIN < gains["HBM latency of one cycle"]
    assert (found.limit, found.agrees) == ("latency", True)


def test_what_no_resource_alone_accounts_for_is_too_little_input() -> None:
    """HBM brings the weights of a pass in 154 cycles, 128 load them: twice as much of either leaves the other."""
    layer = Gemm("fc", 8, 1024, 4096)
    found = explained(layer, 8, hardware=TWO_ARRAYS)
    assert (found.limit, found.main_state, found.agrees) == ("input", "waiting_weights", True)
    text = said(explain.verdict(found))
    assert "Bound by too little input: weights take 128 cycles to load for a pass that computes for 8;" in text


def test_a_layer_without_passes_has_no_weights_to_wait_for() -> None:
    layer = Pool2d("pool", "max", 64, 14, 14, (3, 3), stride=(2, 2), padding=(1, 1))
    found = explain_layer(Setup(layer, 1, load_hardware("tpu_v2"), "vector_ops"), lambda done, name: None)
    words = said(explain.verdict(found))
    assert "Bound by too little input: the vector unit, which does it all, works in" in words
    assert "weights" not in words
    assert found.explanation.aspects["layout"] == "feature maps lie HWCN in HBM"


def test_what_its_lowering_is_not_made_for_is_no_relaxed_layer() -> None:
    """The vector unit takes one channel a group, so that no array can be filled."""
    layer = Conv2d("depthwise", 128, 4, 4, 128, (3, 3), (1, 1), (1, 1), groups=128)
    found = explain_layer(Setup(layer, 1, load_hardware("tpu_v2"), "vector"), lambda done, name: None)
    assert found.untried == ()


def test_a_full_array_is_named_though_more_input_gains_a_little() -> None:
    found = explained(of_resnet50("layer4.1.conv2"), 8, hardware=TWO_ARRAYS)
    assert (found.limit, found.main_state, found.agrees) == ("array", "busy", True)
    assert found.most is not None
    assert found.most.relaxation is LARGER


def test_an_array_that_is_mostly_busy_agrees_with_what_it_is_busy_with() -> None:
    """In 71 % of the cycles: less than MOSTLY, yet by far the most."""
    found = explained(Gemm("g", 512, 512, 512), 8, "mapping.loads=pieces", hardware="tpu_v2_core")
    assert (found.limit, found.main_state, found.agrees) == ("array", "busy", True)


def test_gains_beyond_all_measure_can_be_read() -> None:
    found = explained(Conv2d("one", 1, 1, 1, 1, (1, 1)), 1)
    text = said(explain.verdict(found))
    assert "it takes < 1 cycles for as many MACs: 14,320 times as" in " ".join(text.split())


def test_what_gains_nothing_is_named_and_has_no_row() -> None:
    found = explained(of_resnet50("conv1"), 8)
    changing, same = explain._by_effect(found.gains)
    assert len(changing) + len(same) == len(found.gains)
    assert {each.cycles == found.layer.cycles for each in changing} == {False}
    assert all(abs(each.gain - 1) < 0.005 for each in same)
    assert same
    figure = layer_plots.explained(found, "resnet50").draw()
    taller = layer_plots.explained(found, "resnet50", [Alternative(found.layer, 0)] * 3).draw()
    assert taller.get_figheight() > figure.get_figheight() + 3 * 0.2


def test_what_the_machine_has_already_is_not_offered() -> None:
    changes = ["array.weight_buffers=1", "sequencer.between_blocks=drain", "sequencer.launch_cycles=90"]
    some = {"a second weight buffer", "blocks that overlap", "no launch", "a port for every client"}
    for given, offered in (
        ([], {"a port for every client"}),
        (changes, some),
        (["vector_memory.ports=separate"], set()),
    ):
        setup = Setup(of_resnet50("layer4.1.conv2"), 8, load_hardware("tpu_v2", [ESTIMATE, *given]))
        found = explained_by(setup, *some)
        assert {gain.relaxation.name for gain in found.gains} & some == offered


def gain(found: Bottleneck, name: str) -> float:
    return next(each.gain for each in found.gains if each.relaxation.name == name)


def test_what_a_block_takes_beyond_its_steps_may_bound_a_layer() -> None:
    dear = ["sequencer.block_cycles=100000", "sequencer.between_blocks=drain"]
    found = explained(of_resnet50("layer2.1.conv2"), 8, *dear)
    assert gain(found, "blocks that take nothing beyond their steps") > 1.2
    assert found.limit == "sequencer"
    assert "a block 100000 beyond its steps" in said(explain.verdict(found))


def test_laying_out_an_ifmap_anew_may_bound_a_layer() -> None:
    told = ["vector_unit.relayout_cycles=100", "sequencer.between_blocks=drain", "mapping.entry=relaid"]
    setup = Setup(of_resnet50("layer1.0.conv1"), 8, load_hardware("tpu_v2", [ESTIMATE, *told]))
    found = explained_by(setup, "a vector unit twice as fast")
    faster = next(each for each in found.gains if each.relaxation.name == "a vector unit twice as fast")
    assert faster.gain > 1.1
    assert "vector_unit.relayout_cycles=50" in faster.how
    assert "a word of an ifmap in another layout takes 100 cycles of loads; " in explain._a_word(found)
    assert "arrives in another layout" in found.explanation.aspects["words"]


def test_a_vector_unit_with_slots_is_faster_with_twice_the_slots() -> None:
    """Nothing is said of stacked taps, as the op has no passes."""
    pool = Pool2d("pool", "max", 128, 28, 28, (3, 3), stride=(2, 2))
    setup = Setup(
        pool, 8, load_hardware("tpu_v4_core", ["hbm.bandwidth=100 TB/s", "sequencer.launch_cycles=0"]), "vector_ops"
    )
    found = explained_by(setup, "a vector unit twice as fast")
    faster = next(each for each in found.gains if each.relaxation.name == "a vector unit twice as fast")
    assert faster.gain > 1.3
    assert "vector_unit.slots.loads=2 vector_unit.slots.stores=2" in faster.how
    assert not [*explain._a_word(found)]


def test_a_block_that_is_given_may_bound_a_layer() -> None:
    """And an ifmap that arrives in another layout is tried as it would be ready."""
    found = explained(conv(128, 6, 128, 3), 8, "mapping.block.rows=1", "mapping.block.cols=1", "mapping.entry=relaid")
    assert (found.limit, found.gains[0].how) == ("block", "mapping.block.rows=auto mapping.block.cols=auto")
    told = said(explain.verdict(found))
    assert "Bound by the block that is given: with rows 1, cols 1, the layer reads 1.60 times" in told
    assert "an ifmap whose words are ready" in {each.relaxation.name for each in found.gains}


def test_a_tiling_has_a_rank_among_all_that_fit() -> None:
    """A block that is given is held against those that a search might take; what it names as the first is faster."""
    layer = of_resnet50("layer3.0.conv2")

    def ready(*changes: str) -> PreparedLayer:
        return Setup(layer, 8, load_hardware("tpu_v2", [ESTIMATE, *changes])).ready

    free, given = ready(), ready("mapping.block.rows=1", "mapping.block.cols=1")
    rank, own = given.standing, free.standing
    first = ready(*(f"mapping.block.{name}={getattr(rank.first, name)}" for name in ("rows", "cols")))
    assert 0 < rank.faster < rank.tilings
    assert rank.least < rank.estimate
    assert first.timing.cycles < given.timing.cycles
    # Whatever block is given, all that fit are the same.
    assert (own.tilings, own.least) == (rank.tilings, rank.least)
    assert own.faster < rank.faster
    assert own.estimate == pytest.approx(free.timing.cycles, rel=0.05)


@pytest.mark.parametrize(
    "changes", [(), ("--set", "mapping.block.cols=1", "--set", "mapping.block.rows=1")], ids=["best", "given"]
)
def test_the_rank_is_told_in_words(changes: tuple[str, ...]) -> None:
    asked = "tiny", "--layer", "fig11", "--hardware", "tiny_4x4", "--batch", "2", "--set", ESTIMATE, *changes
    with trying("twice the HBM bandwidth"):
        done = tpusim(*asked, "--json", "-")
    assert done.exit_code == 0, done.output
    rank, words = json.loads(done.stdout)["rank"], " ".join(done.stderr.split())
    assert (rank["faster"] > 0) == bool(changes)
    if changes:
        assert f"of {rank['tilings']:,} tilings that fit, {rank['faster']:,} are expected to be faster" in words
        assert f"in blocks of {rank['first']['rows']} x {rank['first']['cols']} outputs" in words
    else:
        assert f"tilings that fit, none is expected to be faster than this one, of {rank['estimate']:,.0f}" in words


@pytest.mark.parametrize(
    ("layer", "batch", "changes", "says"),
    [
        (Gemm("product", 300, 500, 700), 1, ["mapping.block.images=20"], r"in blocks of [\d,]+ words? of rows$"),
        (conv(16, 14, 32, 3, padding=1), 1, ["mapping.block.rows=1"],
         r"in blocks of \d+ x \d+ outputs in each of \d strips and 1 word of images$"),
    ],
    ids=["product", "strips"],
)  # fmt: skip
def test_a_rank_counts_what_words_hold(layer: Conv2d | Gemm, batch: int, changes: list[str], says: str) -> None:
    """Words of a product hold rows, which are no outputs of a map; those of few images hold strips of it."""
    setup = Setup(layer, batch, load_hardware("tpu_v2", [ESTIMATE, *changes]))
    found = explained_by(setup, "twice the HBM bandwidth")
    shown = explain.explained(found, Workload("one", batch, (layer,)), None, (), ())
    words = {key: text for part in shown.paragraphs for each in part if isinstance(each, Listing) for key, text in
             each.texts.items()}["rank"]  # fmt: skip
    assert re.search(says, words), words


def test_what_stacked_words_take_may_bound_a_layer() -> None:
    """Half of a fraction is another."""
    changes = ["vector_unit.stack_cycles=30.5", "sequencer.between_blocks=drain", ESTIMATE]
    setup = Setup(of_resnet50("conv1"), 1, load_hardware("tpu_v2", changes))
    found = explained_by(setup, "a vector unit twice as fast", "words twice as long")
    faster = next(each for each in found.gains if each.relaxation.name == "a vector unit twice as fast")
    assert faster.gain > 1.1
    assert "vector_unit.stack_cycles=15.25" in faster.how
    longer = next(each for each in found.gains if each.relaxation.name == "words twice as long")
    assert "vector_unit.stack_cycles=61" in longer.how
    facts = "".join(explain._a_word(found))
    assert facts == "a word of stacked taps takes 30.5 for each copy beyond the first 2; "


def test_what_cannot_be_simulated_is_said() -> None:
    found = explained(Gemm("one", 4, 4, 4), 1, "vector_memory.word_elements=4096", "vector_memory.capacity=16 GiB")
    reasons = {each.name: each.reason for each in found.untried}
    assert set(reasons) == {"words twice as long", "twice the vector memory"}
    assert "8192" in reasons["words twice as long"]
    text = said(explain.no_gain([], found.untried))
    assert f"Not tried: words twice as long ({reasons['words twice as long']})." in text


def test_a_layer_of_the_vector_unit_is_bound_by_it() -> None:
    layer = conv(128, 14, 128, 3, padding=1, groups=128)
    found = explain_layer(Setup(layer, 8, load_hardware("tpu_v2"), "vector"), lambda done, name: None)
    assert (found.limit, found.main_state, found.agrees) == ("vector_unit", "vector_work", True)
    # No reduction is cut, so there is no search to rank it in.
    assert found.standing is None
    assert found.phases.first_fill > 0
    assert sum(asdict(found.phases).values()) == found.layer.cycles
    words = said(explain.verdict(found))
    assert re.search(r"Bound by the vector unit: it works by itself in 9\d(\.\d)? % of the cycles", words)


def test_the_phases_of_the_pass_worked_by_hand() -> None:
    """docs/timing.md, section 7: read from 14 on, results written by 24, in HBM at 32, three lanes to go."""
    setup = Setup(Gemm("gemm", 4, 4, 4), 1, machine(4, 4))
    phases = asdict(explained_by(setup, "twice the HBM bandwidth").phases)
    waited = dict.fromkeys(STALL_CAUSES, 0)
    assert phases == {**waited, "first_fill": 13, "busy": 4, "drain": 24 - 17, "spill": 32 - 24, "skew": 3}


@pytest.mark.parametrize("name", ["conv1", "layer4.1.conv2", "fc"])
@pytest.mark.parametrize("hardware", ["tpu_v2", "tpu_v2_core", pytest.param("tpu_v3_core", marks=pytest.mark.long)])
def test_phases_add_up(name: str, hardware: str) -> None:
    layer, machine_ = of_resnet50(name), load_hardware(hardware)
    (run,) = simulate(Workload("one", 8, (layer,)), machine_, check=False).layers
    array = run.units["systolic_array"]
    phases = asdict(Setup(layer, 8, machine_).ready.phases(array))
    assert min(phases.values()) >= 0
    assert sum(phases.values()) == run.cycles
    assert phases["first_fill"] == sum(array[cause] - phases[cause] for cause in HOLDERS)
    assert phases["drain"] + phases["spill"] + phases["skew"] == array["idle"]
    assert phases["first_fill"] > 0


def test_a_disagreement_is_said() -> None:
    """Conversion is by the word, in all lanes at once: filled lanes share it, though the array waits for it."""
    found = explained(of_resnet50("layer1.0.conv1"), 8, "vector_unit.unpack_cycles=10", hardware="tpu_v2_estimator")
    assert (found.limit, found.main_state, found.agrees) == ("mapping", "conversion", False)
    assert "points elsewhere: it is waiting for fills to be converted" in said(explain.verdict(found))


def test_fills_that_wait_for_the_port_may_be_the_blocks() -> None:
    """Of one that is given, maps come again and again, in words of which 3 of 8 elements are used."""
    layer = next(layer for layer in load_workload("alexnet", batch=3).layers if layer.name == "conv1")
    found = explained(layer, 3, *ONE_STRIP)
    assert (found.limit, found.main_state, found.agrees) == ("block", "port_stall", True)
    assert "agrees: it is waiting for the port of the vector memories in 82.1 %" in said(explain.verdict(found))


def test_no_bottleneck_is_said() -> None:
    found = replace(explained(Gemm("one", 8, 8, 8), 1), gains=())
    assert found.limit is None
    assert found.agrees
    assert said(explain.verdict(found)).startswith("No single thing bounds this layer")


# ---- the command


def tpusim(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["explain", *arguments])


def test_the_words() -> None:
    with trying("every PE filled", "whole filter rows stacked", "twice the HBM bandwidth", "twice the batch"):
        done = tpusim("resnet50", "--layer", "conv1", "--set", ESTIMATE)
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "Bound by the mapping: 8.2 % of the PEs are in use; a pass fills 21 of 128 rows and 64 of 128" in text
    assert "7 x 7 = 49, each a 1 x 1 convolution over 3 channels; 7 stacked" in text
    assert "12.22 x" in text
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("layer", ["fc", pytest.param("layer3.1.conv2", marks=pytest.mark.long)])
def test_every_aspect_has_words(layer: str, tmp_path: Path) -> None:
    asked = "resnet50", "--layer", layer, "--batch", "1", "--hardware", "tpu_v2_core", "--set", ESTIMATE
    with trying("weights enter twice as fast", "twice the HBM bandwidth", "twice the vector memory", "no launch"):
        done = tpusim(*asked, "--out", str(tmp_path / "a.svg"))
    assert done.exit_code == 0
    for word in ("Bound by", "folds", "passes", "block", "order", "words", "memory", "busy", "No difference"):
        assert word in done.stdout
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_the_json() -> None:
    done = tpusim("resnet50", "--layer", "fc", "--set", ESTIMATE, "--json", "-")
    data = json.loads(done.stdout)
    assert data["bound_by"] == "weights"
    assert (data["layer"]["name"], data["read_by"]) == ("fc", [])
    # Through additions that are not timed.
    assert data["layer"]["inputs"] == [f"layer4.{each}" for each in ("2.conv3", "1.conv3", "0.conv3", "0.downsample")]
    assert [gain["gain"] for gain in data["gains"]] == sorted((gain["gain"] for gain in data["gains"]), reverse=True)
    same = {gain["with"]: gain["same_plan"] for gain in data["gains"]}
    assert same["weights enter twice as fast"] > 1
    assert same["words twice as long"] is None
    assert "Bound by" in done.stderr


def test_what_a_layer_reads_and_who_reads_it_is_said() -> None:
    with trying("twice the HBM bandwidth"):
        done = tpusim("resnet18", "--ops", "all", "--layer", "layer2.0.add", "--set", ESTIMATE)
        alone = tpusim("tiny", "--hardware", "tiny_4x4", "--set", ESTIMATE, "--layer", "fig10")
    assert alone.exit_code == 0
    said = " ".join(done.stdout.split())
    assert "It reads layer2.0.conv2, layer2.0.downsample; its output is read by layer2.0.relu2." in said
    assert re.search(r"\(sequencer.between_layers=overlap\): all of them take [\d,]+ cycles fewer together", said)
    assert "It reads" not in alone.stdout


GRAPH = """
name: graph
layers:
  - {name: one, op: conv2d, in_channels: 4, in_height: 6, in_width: 6, out_channels: 4, kernel: 3, padding: 1}
  - {name: pool, op: pool2d, kind: max, kernel: 2, stride: 2, inputs: [one]}
  - {name: two, op: conv2d, out_channels: 4, kernel: 1}
  - {name: relu, op: relu}
"""
TINY = ("--hardware", "tiny_4x4", "--batch", "2")


def test_a_layer_of_the_vector_unit_overlaps_too(tmp_path: Path) -> None:
    """Its neighbours are lowered by what they are asked for; that there is one way to do it needs no table."""
    file = tmp_path / "graph.yaml"
    file.write_text(GRAPH)
    with trying("twice the HBM bandwidth"):
        done = tpusim(str(file), *TINY, "--set", ESTIMATE, "--layer", "pool")
    said = " ".join(done.stdout.split())
    assert "(sequencer.between_layers=overlap): all of them take as long as one by one" in said
    assert "What it costs by each lowering" not in said
    assert "Layers overlap on this machine" not in said


def test_a_layer_is_explained_as_it_rides_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(GRAPH)
    both = ("--set", "sequencer.fusion=results", "--set", "sequencer.between_layers=stay")
    asked = (str(file), *TINY, *both, "--set", "vector_unit.alus=16", "--set", ESTIMATE, "--layer", "two")
    with trying("twice the HBM bandwidth"):
        done, other = tpusim(*asked), tpusim(*asked, "--json", "-")
    said = " ".join(done.stdout.split())
    assert "It reads pool. On its results rides relu. Layers overlap on this machine. " in said
    assert "g groups, + what rides on results)" in said
    found = re.search(r"\(sequencer.between_layers=stay\): it takes ([\d,]+) of the cycles, and all of them", said)
    assert found
    data = json.loads(other.stdout)
    assert data["layer"]["riders"] == ["relu"]
    told = {key: data["overlapping"][key] for key in ("layers", "how", "asked", "own_cycles")}
    assert told == {"layers": ["pool", "two"], "how": "stay", "asked": True, "own_cycles": int(found[1])}


def test_a_workload_of_one_layer_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("{name: one, layers: [{name: '*', op: gemm, m: batch, n: 4, k: 4}]}")
    with trying("twice the HBM bandwidth"):
        for named in ((), ("--layer", "*")):
            assert tpusim(str(file), "--hardware", "tiny_4x4", "--set", ESTIMATE, *named).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet50", "--out", "a.png"], "--out: a picture is of one layer; name it with --layer, or write FILE.html"),
        (["resnet50", "--layer", "conf1"], "did you mean conv1"),
        (["resnet50", "--layer", "layer1.0.*"], "--layer layer1.0.* matches 4 of them: layer1.0.conv1, layer1.0.conv2"),
        (["resnet50", "--layer", "conv1", "--lowering", "channel_frist"], "did you mean channel_first"),
        (["resnet50", "--layer", "conv1", "--out", "a.pdfx"], "it is written as .png, .svg, .pdf, .html, not as .pdfx"),
        (["resnet50", "--layer", "conv1", "--out", "missing/a.png"], "missing/a.png: cannot be written"),
        (["resnet50", "--layer", "conv1", "--json", "."], "cannot be written"),
        (["resnet50", "--layer", "conv1", "--set", "array.size=0"], "array.size"),
        (["resnet50", "--layer", "conv1", "--set", "vector_memory.capacity=32 B"], "layer conv1: the smallest tiling"),
        (["resnet5", "--layer", "conv1"], "did you mean resnet50"),
    ],
)  # fmt: skip
def test_bad_input(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = tpusim(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
