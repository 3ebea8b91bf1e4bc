"""Which layers ride on the results of others, and that a run, a sweep and a message say so."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.flow.lowered_once import lowered_once
from tests.strategies import machine
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError, InputError
from tpusim.flow.jobs import names_picked, resolve
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d, Gemm
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.elementwise import Add, Clip, HardSwish, LeakyRelu, Relu
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.workload import OwnLowering, Workload
from tpusim.report.tables.sentences import fusion_notice


def conv(name: str) -> Conv2d:
    return Conv2d(name, 8, 6, 6, 8, (3, 3), padding=(1, 1))


def relu(name: str) -> Relu:
    return Relu(name, 8, 6, 6)


def add(name: str, **more: str) -> Add:
    return Add(name, 8, 6, 6, **more)  # type: ignore[arg-type]


def network(
    edges: dict[str, list[str]], *layers: Op, own: tuple[OwnLowering, ...] = (), biases: tuple[str, ...] = ()
) -> Workload:
    return Workload("n", 2, layers, lowerings=own, edges=edges, biases=biases)  # type: ignore[arg-type]


ESTIMATE = "mapping.search=estimate"
"""Blocks that simulation chooses take most of the time, and are not what these tests are about."""


def on(fusion: str = "results", **more: int) -> Hardware:
    return machine(4, 4, **{"alus": 16, **more}).with_overrides([f"sequencer.fusion={fusion}", ESTIMATE])


POOL = Pool2d("p", "max", 8, 6, 6, (1, 1))
RESIDUAL = network(
    {"a_relu": ["a"], "b": ["a_relu"], "sum": ["b", "a_relu"], "relu": ["sum"], "c": ["relu"]},
    conv("a"), relu("a_relu"), conv("b"), add("sum"), relu("relu"), conv("c"),
)  # fmt: skip


def fused(work: Workload, hardware: Hardware, lowering: str | None = None) -> Workload:
    """The workload as it runs."""
    return resolve(work, hardware, lowering).work


def texts(work: Workload) -> list[str]:
    return [f"{layer.name}: {' '.join(layer.text.split(' + ')[1:])}".rstrip() for layer in work.layers]


def test_a_block_with_a_residual_becomes_its_convolutions() -> None:
    found = fused(RESIDUAL, on())
    assert texts(found) == ["a: relu", "b: add relu", "c:"]
    assert found.inputs() == {"b": ("a",), "c": ("b",)}
    (_, residual) = found.sources()["b"]
    assert residual.names == ("a",)


def test_layers_that_ride_may_have_lowerings_of_their_own() -> None:
    """What the workload says of them goes with them."""
    own = {layer.name: ("channel_first" if layer.unit == "array" else "vector_ops") for layer in RESIDUAL.layers}
    work = replace(RESIDUAL, lowerings=own)  # type: ignore[arg-type]
    found = fused(work, on())
    assert found.layers == fused(RESIDUAL, on()).layers
    assert {each.layer: each.lowering for each in found.lowerings} == {name: own[name] for name in ("a", "b", "c")}
    assert simulate(work, on()).correct


def test_a_layer_that_rides_is_known_by_what_bears_it() -> None:
    """Whoever asks for it alone is told why it is not there."""
    found = fused(RESIDUAL, on())
    assert found.riders == (("a", ("a_relu",)), ("b", ("sum", "relu")))
    with pytest.raises(InputError, match=r"no layer of n matches 'sum': sum rides on the results of b; name that, or"):
        names_picked(found, "sum")
    with pytest.raises(InputError, match=r"a_relu rides on the results of a, and 1 more do so on those of others;"):
        names_picked(found, "*relu")
    with pytest.raises(InputError, match=r"it has a, a_relu, b, sum, relu, c$"):
        names_picked(fused(RESIDUAL, on("none")), "nobody")


def test_twice_is_once() -> None:
    once = fused(RESIDUAL, on())
    assert fused(once, on()) == once


def test_nothing_where_nobody_asks() -> None:
    assert fused(RESIDUAL, on("none")) == RESIDUAL


@pytest.mark.parametrize(
    ("work", "kept"),
    [
        (network({"r": ["a"], "b": ["a"]}, conv("a"), relu("r"), conv("b")), ["a:", "r:", "b:"]),
        (network({"b": ["a"], "sum": ["b", "a"]}, conv("a"), conv("b"), add("sum")), ["a:", "b: add"]),
        (network({"b": ["a"], "sum": ["a", "b"]}, conv("a"), conv("b"), add("sum")), ["a:", "b: add"]),
        (network({"sum": ["a"]}, conv("a"), add("sum", other="map")), ["a:", "sum:"]),
        (network({"h": ["a"]}, conv("a"), HardSwish("h", 8, 6, 6)), ["a:", "h:"]),
        (network({"p": ["a"], "r": ["p"]}, conv("a"), POOL, relu("r")), ["a:", "p:", "r:"]),
        (network({"r": ["a"]}, conv("a"), Relu("r", 8, 3, 12)), ["a:", "r:"]),
        (network({"r": ["a"], "sum": ["r", "b"]}, conv("b"), conv("a"), relu("r"), add("sum")),
         ["b:", "a: relu", "sum:"]),
        (network({}, conv("a"), relu("r")), ["a:", "r:"]),
        (network({"r": ["a"]}, conv("a"), relu("r"), own=(OwnLowering("a", "winograd_2"),)), ["a:", "r:"]),
        (network({"r": ["g"]}, Gemm("g", 4, 5, 6), Relu("r", 5, images=4)), ["g: relu"]),
    ],
    ids=[
        "somebody else reads it", "on the later of two", "in either order", "a map for all images",
        "no activation of that kind", "pooling carries nothing", "another shape", "no addition behind an activation",
        "no edges", "tiles by name", "product",
    ],
)  # fmt: skip
def test_what_rides_and_what_does_not(work: Workload, kept: list[str]) -> None:
    assert texts(fused(work, on())) == kept


def test_as_much_as_the_vector_unit_does_in_time() -> None:
    """An addition of partial sums, and one, two or three operations more."""
    layers = conv("a"), relu("r"), Clip("clip", 8, 6, 6, max=6.0)
    work = network({"r": ["a"], "clip": ["r"]}, *layers)
    assert texts(fused(work, on(alus=4))) == ["a:", "r:", "clip:"]
    assert texts(fused(work, on(alus=8))) == ["a: relu", "clip:"]
    assert texts(fused(work, on(alus=16))) == ["a: relu clip"]
    leaky = network({"l": ["a"]}, conv("a"), LeakyRelu("l", 8, 6, 6))
    assert texts(fused(leaky, on(alus=8))) == ["a:", "l:"]


@pytest.mark.parametrize(
    ("work", "kept", "outside"),
    [
        (network({"r": ["a"]}, conv("a"), relu("r"), biases=("a",)), ["a: bias relu"], ()),
        (network({"sum": ["a"], "r": ["sum"]}, conv("a"), add("sum", other="channel"), relu("r")), ["a: bias relu"],
         ()),
        (network({"b": ["a"], "sum": ["b", "a"], "c": ["sum"]}, conv("a"), conv("b"), add("sum"),
                 add("c", other="channel")), ["a:", "b: bias add"], ()),
        (network({"r": ["a"], "c": ["r"]}, conv("a"), relu("r"), add("c", other="channel")), ["a: relu", "c:"], ()),
        (network({"c": ["a", "b"]}, conv("b"), conv("a"), add("c", other="channel")), ["b:", "a:", "c:"], ()),
        (network({"c": ["a"]}, conv("a"), add("c", other="channel"), biases=("a",)), ["a: bias", "c:"], ()),
        (network({"r": ["a"]}, conv("a"), relu("r"), biases=("a",), own=(OwnLowering("a", "winograd_2"),)),
         ["a:", "r:"], ("a",)),
        (network({}, conv("a"), conv("b"), biases=("b",)), ["a:", "b: bias"], ()),
    ],
    ids=[
        "of the layer", "added behind it", "behind a sum of maps", "behind an activation", "made by a layer",
        "one alone", "tiles by name", "no edges",
    ],
)  # fmt: skip
def test_biases_ride_where_they_can(work: Workload, kept: list[str], outside: tuple[str, ...]) -> None:
    found = fused(work, on())
    assert (texts(found), found.biases) == (kept, outside)
    assert fused(found, on()) == found


def test_a_file_says_which_layers_have_biases(tmp_path: Path) -> None:
    entry = "{name: %s, op: gemm, m: 2, n: 3, k: 4%s}"
    file = tmp_path / "w.yaml"
    layers = entry % ("a", ", biases: true, count: 2"), entry % ("b", ", biases: false"), entry % ("c", "")
    file.write_text("name: w\nlayers:\n" + "".join(f"  - {each}\n" for each in layers))
    work = load_workload(file)
    assert work.biases == ("a_1", "a_2")
    assert work.layers[0].text == "2x4>3"
    assert resolve(work, on()).picked("b").work.biases == ()
    file.write_text("name: w\nlayers:\n  - {name: r, op: relu, channels: 3, biases: true}\n")
    with pytest.raises(
        InputError, match=r"w.yaml:3: layers\[0\].biases: layer \"r\": relu has no biases; leave it out"
    ):
        load_workload(file)
    with pytest.raises(InputError, match=r"biases: there is no layer \"d\""):
        Workload("n", 2, work.layers, biases=("d",))


def test_a_bias_without_room_is_added_outside_the_machine() -> None:
    """The least memory of the layer alone has no word to spare; what else rides takes none."""
    small = Conv2d("a", 4, 4, 4, 4, (3, 3), padding=(1, 1)), Relu("r", 4, 4, 4)
    work = network({"r": ["a"]}, *small, biases=("a",))
    least = 1 + bisect_left(range(1, 400), True, key=lambda words: fits(work, words))
    found = fused(work, on(capacity_words=least))
    assert (texts(found), found.biases) == (["a: relu"], ("a",))
    result = simulate(found, on(capacity_words=least), check=False)
    told = fusion_notice(found, result)
    assert (
        told
        == "1 layer rides on the results of 1 (+ in their shapes). The biases of 1 layer are added outside the machine."
    )
    enough = fused(work, on(capacity_words=least + 2))
    assert texts(enough) == ["a: bias relu"]
    result = simulate(enough, on(capacity_words=least + 2), engine="both")
    assert result.correct
    assert (
        fusion_notice(enough, result)
        == "1 layer rides on the results of 1 (+ in their shapes). The sums of 1 layer begin at biases."
    )


def fits(work: Workload, words: int) -> bool:
    try:
        lowered(work.layers[0], work.batch, on(capacity_words=words), "channel_first")
    except CapacityError:
        return False
    return True


def test_a_run_is_shorter_and_right() -> None:
    """Both engines, every output; results name the op by which the layer is known."""
    apart = simulate(RESIDUAL, on("none"), check=False)
    together = simulate(RESIDUAL, on(), engine="both")
    assert together.total.cycles < apart.total.cycles
    assert together.total.hbm_write_bytes * 2 == apart.total.hbm_write_bytes
    assert together.correct
    assert [layer.op for layer in together.layers] == ["conv2d"] * 3
    assert together.layers[1].inputs == ("a",)
    assert isinstance(fused(RESIDUAL, on()).layers[0], Fused)


def test_nothing_rides_where_a_run_names_tiles() -> None:
    assert fused(RESIDUAL, on(), "winograd_2") == RESIDUAL
    assert simulate(RESIDUAL, on(), lowering="winograd_2").correct


@pytest.mark.parametrize(
    ("layer", "own"),
    [
        (ConvTranspose2d("a", 8, 3, 3, 8, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1), ()),
        (DeformConv2d("a", 8, 6, 6, 8, (3, 3), (1, 1), (1, 1)), ()),
        (Conv2d("a", 8, 6, 6, 8, (3, 3), padding=(1, 1), groups=8), (OwnLowering("a", "vector"),)),
    ],
)
def test_whatever_the_lowering_results_carry_what_follows(layer: Op, own: tuple[OwnLowering, ...]) -> None:
    work = network({"r": ["a"]}, layer, relu("r"), own=own)
    (whole,) = fused(work, on()).layers
    assert whole.text.endswith("+ relu")
    run = simulate(fused(work, on()), on(), engine="event")
    assert run.correct
    assert run.total.cycles < simulate(work, on("none"), check=False).total.cycles


def test_what_a_layer_left_out_reads_carries_nothing() -> None:
    """A run of some layers is that of them in the whole network."""
    work = network({"r": ["a"], "b": ["a"]}, conv("a"), relu("r"), conv("b"))
    some = resolve(work, on()).picked("[ar]").work
    assert texts(fused(some, on())) == ["a:", "r:"]
    assert [layer.op for layer in simulate(some, on(), check=False).layers] == ["conv2d", "relu"]


def test_a_run_says_what_rides_or_why_nothing_does() -> None:
    def told(work: Workload, hardware: Hardware) -> str:
        whole = fused(work, hardware)
        return fusion_notice(whole, simulate(whole, hardware, check=False))

    assert told(RESIDUAL, on()) == "3 layers ride on the results of 2 (+ in their shapes)."
    assert told(RESIDUAL, on("none")) == ""
    assert told(RESIDUAL.with_ops("array"), on()).endswith("are left out; --ops all has them.")
    assert told(network({}, conv("a"), relu("r")), on()).endswith("does not say what its layers read (inputs:).")
    assert told(network({"p": ["a"]}, conv("a"), POOL), on()).endswith("in a way that allows it.")


def test_a_layer_that_is_left_out_is_not_there() -> None:
    with pytest.raises(InputError, match=r"no layer of n matches 'sum'; it has a, b, c; layers that .* ops all has"):
        names_picked(RESIDUAL.with_ops("array"), "sum")


def test_auto_times_those_that_are_asked_for() -> None:
    """Also what they add: it decides whether that is there in time."""
    seen: list[str] = []

    def asked(glob: str) -> list[str]:
        seen.clear()
        resolve(RESIDUAL, on(), "auto", layers=glob, watch=lambda layer, _: seen.append(layer))
        return seen

    assert asked("a") == ["a"]
    assert asked("a_relu") == ["a"]
    assert asked("relu") == ["a", "b"]
    assert asked("c") == []


def test_auto_fuses_only_what_takes_fewer_cycles_so() -> None:
    """Winograd's tiles and a ReLU behind them are sooner done than a fused layer of many channels; a 1x1 is not."""
    machine = load_hardware("tpu_v2", ["sequencer.fusion=results", "mapping.search=estimate"])
    deep = Conv2d("deep", 256, 14, 14, 256, (3, 3), padding=(1, 1))
    thin = Conv2d("thin", 256, 14, 14, 64, (1, 1))
    edges = {"r": ["deep"], "thin": ["r"], "s": ["thin"]}
    work = Workload("n", 8, (deep, Relu("r", 256, 14, 14), thin, Relu("s", 64, 14, 14)), edges=edges)  # type: ignore[arg-type]
    with lowered_once():
        assert texts(fused(work, machine)) == ["deep: relu", "thin: relu"]
        chosen = fused(work, machine, "auto")
        assert texts(chosen) == ["deep:", "r:", "thin: relu"]
        cycles = [simulate(work, each, lowering="auto", check=False).total.cycles
                  for each in (machine, load_hardware("tpu_v2", ["mapping.search=estimate"]))]  # fmt: skip
        assert cycles[0] < cycles[1]


AS_COMPILED = (
    "tpu_v2_core", "tpu_v3", "tpu_v3_core", "tpu_v4", "tpu_v4_core", "tpu_v5e", "tpu_v5p", "tpu_v5p_core", "tpu_v6e",
    "tpu_v7x", "tpu_v7x_core",
)  # fmt: skip
"""Machines that stand for a TPU as Google's compiler uses it."""


@cache
def resnet18(ops: str | None = None) -> Workload:
    return load_workload("resnet18", batch=2, ops=ops)


@pytest.mark.parametrize("name", ["tpu_v2", "tpu_v2_estimator", "tpu_v2_core_hbm", *AS_COMPILED])
def test_a_machine_that_fuses_runs_what_the_file_leaves_out(name: str) -> None:
    network, machine = resnet18(), load_hardware(name)
    work = resolve(network, machine).work
    names = {each.name for each in work.layers}
    carried = {each for _, riders in work.riders for each in riders}
    every = {each.name for each in resnet18("all").layers}
    if name in AS_COMPILED:
        assert machine.sequencer.fusion == "results"
        assert names | carried == every
        assert len(carried) > 20
    else:
        assert machine.sequencer.fusion == "none"
        assert names == {each.name for each in network.layers}
    # What somebody asks for holds on every machine.
    asked = resnet18("array")
    assert {each.name for each in resolve(asked, machine).work.layers} == {each.name for each in network.layers}
    unfused = machine.with_overrides({"sequencer.fusion": "none"})
    assert {each.name for each in resolve(network, unfused).work.layers} == {each.name for each in network.layers}
    picked = network.with_layers(lambda layer: layer.name == network.layers[0].name)
    assert len(resolve(picked, machine).work.layers) == 1
