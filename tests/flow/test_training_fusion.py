"""Training steps on a machine that fuses: what is made on the way, and that gradients stay what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.network.test_training import BATCH, outside, seen, values
from tpusim import Workload, load_hardware, load_workload, reference, simulate, training_step
from tpusim.flow.jobs import resolve
from tpusim.flow.lowerings import AUTO
from tpusim.flow.training_fusion import on_the_way
from tpusim.network.ops.fused import TALLIES, Fused
from tpusim.network.ops.op import OFMAP
from tpusim.network.training import Training
from tpusim.reference.pointwise import prepared
from tpusim.report.tables.sentences import fusion_notice

BLOCK = """
name: block
training: {batch_norm: [stem, a, b, side]}
layers:
  - {name: stem, op: conv2d, in_channels: 2, in_height: 6, in_width: 6, out_channels: 4, kernel: 3, padding: 1}
  - {name: relu, op: relu}
  - {name: pool, op: pool2d, kind: max, kernel: 2, stride: 1}
  - {name: a, op: conv2d, out_channels: 4, kernel: 3, padding: 1}
  - {name: relu1, op: relu}
  - {name: b, op: conv2d, out_channels: 4, kernel: 1}
  - {name: side, op: conv2d, inputs: [pool], out_channels: 4, kernel: 1}
  - {name: add, op: add, inputs: [b, side]}
  - {name: relu2, op: relu}
  - {name: c, op: conv2d, out_channels: 3, kernel: 1}
  - {name: flat, op: flatten}
  - {name: fc, op: gemm, n: 3}
"""
ESTIMATE = {"mapping.search": "estimate"}
"""Blocks that simulation chooses take most of the time, and are not what these tests are about."""
FUSES = {"sequencer.fusion": "results", **ESTIMATE}
NUMBERS = {"mean_of_total": 0, "variance_of_squares": 1, "centred_total": 1}
"""The number of the tally that the first such op reads; others read the next ones in turn."""


@pytest.fixture
def step(tmp_path: Path) -> Workload:
    path = tmp_path / "block.yaml"
    path.write_text(BLOCK)
    return training_step(load_workload(path, BATCH))


def test_layers_that_become_work_on_the_way_may_have_lowerings_of_their_own(step: Workload) -> None:
    """What the workload says of them goes with them."""
    own = {layer.name: AUTO for layer in step.layers}
    named = resolve(replace(step, lowerings=own), load_hardware("tiny_4x4", FUSES)).work  # type: ignore[arg-type]
    plain = resolve(step, load_hardware("tiny_4x4", FUSES)).work
    assert named.layers == plain.layers
    assert len(plain.layers) < len(step.layers)
    kept = {layer.name for layer in plain.layers}
    assert [each.layer for each in named.lowerings] == [name for name in own if name in kept]


def test_normalised_maps_are_not_stored(step: Workload) -> None:
    texts = {layer.name: layer.text for layer in on_the_way(step).layers}
    assert texts["a"] == "5x5x4>4 3x3 + sum + squares"
    assert texts["b"] == "scale_shift + relu + 5x5x4>4 1x1 + sum + squares"
    assert texts["b.dw"] == "scale_shift + relu + batch_norm_gradient + 5x5x4>4 1x1"
    assert texts["b.dx"] == "batch_norm_gradient + 5x5x4>4 1x1 + masked + sum + products"
    assert texts["relu2"] == "5x5x4 both"
    # Both normalisations ahead of a shortcut get their sums of one gradient.
    assert texts["c.dx"] == "5x5x4>3 1x1 + relu_gradient + weighted_sum + weighted_sum + sum + products + products"
    ops = "scale_shift", "channel_mean"
    assert not [layer.name for layer in on_the_way(step).layers if layer.op in ops]
    # Behind a pooling both sums take one pass, and the filter's gradient masks for itself.
    ops = {layer.name: layer.op for layer in on_the_way(step).layers}
    assert ops["relu.dx"] == "channel_masked_sums"
    assert texts["stem.dw"] == "masked + batch_norm_gradient + 6x6x2>4 3x3"
    assert not {"channel_sum", "channel_products"} & {*ops.values()}


def test_convolutions_of_several_groups_read_maps_that_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "grouped.yaml"
    path.write_text(
        BLOCK.replace("{name: b, op: conv2d, out_channels: 4,", "{name: b, op: conv2d, out_channels: 4, groups: 2,")
    )
    work = on_the_way(training_step(load_workload(path, BATCH)))
    texts = {layer.name: layer.text for layer in work.layers}
    assert not texts["b"].startswith("scale_shift")
    assert not texts["b.dw"].startswith("scale_shift")
    assert all("relu1" in work.inputs()[name] for name in ("b", "b.dw"))


def test_a_map_that_others_read_is_stored(step: Workload) -> None:
    found = {layer.name: layer for layer in on_the_way(step).layers}
    assert found["relu"].op == "scale_shift_relu"
    assert on_the_way(step).inputs()["pool"] == ("relu",)


def test_every_layer_reads_what_is_there_by_then(step: Workload) -> None:
    whole, made = on_the_way(step), {*outside(step)}
    sources, inputs = whole.sources(), whole.inputs()
    for layer in whole.layers:
        assert len(sources[layer.name]) == len(layer.reads(BATCH))
        assert {*inputs[layer.name]} <= made
        made.add(layer.name)


JOINED = (
    """
name: normalised_when_joined
layers:
  - {name: s, op: conv2d, in_channels: 2, in_height: 5, in_width: 5, out_channels: 4, kernel: 1}
  - {name: a, op: conv2d, inputs: [s], out_channels: 4, kernel: 3, padding: 1}
  - {name: cat, op: concat, inputs: [s, a]}
  - {name: n, op: scale_shift}
  - {name: r, op: relu}
  - {name: c, op: conv2d, out_channels: 3, kernel: 1}
  - {name: f, op: flatten}
  - {name: fc, op: gemm, n: 5}
""",
    """
name: joined_when_normalised
training: {batch_norm: [a, b]}
layers:
  - {name: s, op: conv2d, in_channels: 2, in_height: 5, in_width: 5, out_channels: 4, kernel: 1}
  - {name: a, op: conv2d, inputs: [s], out_channels: 4, kernel: 3, padding: 1}
  - {name: b, op: conv2d, inputs: [s], out_channels: 4, kernel: 1}
  - {name: cat, op: concat, inputs: [a, b]}
  - {name: c, op: conv2d, out_channels: 3, kernel: 1}
""",
    """
name: biases_when_joined
layers:
  - {name: s, op: conv2d, in_channels: 2, in_height: 5, in_width: 5, out_channels: 4, kernel: 1}
  - {name: a, op: conv2d, inputs: [s], out_channels: 4, kernel: 3, padding: 1, biases: true}
  - {name: b, op: conv2d, inputs: [s], out_channels: 6, kernel: 1, biases: true}
  - {name: cat, op: concat, inputs: [a, b]}
  - {name: c, op: conv2d, out_channels: 3, kernel: 1}
""",
)
"""Networks whose maps are joined along the channels."""


@pytest.mark.parametrize(
    "text",
    JOINED,
    ids=lambda text: text.split()[1],
)
def test_joined_maps_keep_all_their_channels(text: str, tmp_path: Path) -> None:
    path = tmp_path / "joined.yaml"
    path.write_text(text)
    step = training_step(load_workload(path, BATCH))
    whole = on_the_way(step)
    made = {layer.name: layer.shapes(BATCH)[OFMAP] for layer in whole.layers}
    every = whole.sources()
    for layer in whole.layers:
        for source, shape in zip(every[layer.name], layer.reads(BATCH).values(), strict=True):
            sizes = [prod(made[name]) for name in source.names if name in made]
            if len(sizes) == len(source.names) and (source.direct or len(sizes) > 1):
                assert sum(sizes) == prod(shape), layer.name
            # Sums beside a result are read as it, and are fewer.
            elif len(sizes) == 1 and layer.op not in NUMBERS:
                assert sizes[0] >= prod(shape), layer.name
    everything = {name for sources in every.values() for source in sources for name in source.names}
    assert everything >= {"s", "a"}


@pytest.mark.long
@pytest.mark.parametrize("text", JOINED, ids=lambda text: text.split()[1])
def test_steps_of_joined_maps_are_right_in_both_engines(text: str, tmp_path: Path) -> None:
    path = tmp_path / "joined.yaml"
    path.write_text(text)
    step = training_step(load_workload(path, BATCH))
    assert simulate(step, load_hardware("tiny_4x4", FUSES), engine="both").correct


def test_a_step_on_a_machine_that_fuses_is_right_and_moves_less_and_says_so(step: Workload) -> None:
    machine = load_hardware("tiny_4x4", FUSES)
    result = simulate(step, machine)
    assert result.correct
    work = resolve(step, machine).work
    busy = sum(isinstance(each, Fused) and each.on_the_way for each in work.layers)
    assert busy > 10
    assert fusion_notice(work, result).startswith(f"{busy} layers do the work of others on the way")
    apart = simulate(step, load_hardware("tiny_4x4", ESTIMATE), check=False)
    assert result.total.hbm_read_bytes < 0.9 * apart.total.hbm_read_bytes
    assert result.total.cycles < apart.total.cycles


def test_gradients_are_those_of_the_step_as_it_was(step: Workload) -> None:
    random = np.random.default_rng(4)
    given = {name: random.normal(size=shape) for name, shape in outside(step).items()}
    given["labels"] = np.eye(3)[:, None, None, :BATCH]
    machine = load_hardware("tiny_4x4", FUSES)
    ours, theirs = worked(resolve(step, machine).work, given), values(step, given)
    updates = [layer.name for layer in step.layers if layer.name.endswith(".update")]
    assert len(updates) == 14
    for name in updates:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("keep", ["none", ("relu2",), ("pool", "relu2"), ("side",), ("b", "pool")], ids=str)
def test_what_is_computed_again_is_read_when_it_is_there(keep: Any, step: Workload, tmp_path: Path) -> None:
    """Sums of products with a map that is made again behind a gradient do not ride on that gradient."""
    network = load_workload(tmp_path / "block.yaml", BATCH)
    again = training_step(network, replace(network.training or Training(), keep=keep))
    work = resolve(again, load_hardware("tiny_4x4", FUSES)).work
    random = np.random.default_rng(5)
    given = {name: random.normal(size=shape) for name, shape in outside(step).items()}
    given["labels"] = np.eye(3)[:, None, None, :BATCH]
    ours, theirs = worked(work, given), values(step, given)
    for name in [layer.name for layer in step.layers if layer.name.endswith(".update")]:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)


def worked(step: Workload, given: Mapping[str, Any]) -> dict[str, Any]:
    """All values of a step by the reference in float64, those of fused layers, too."""
    made, tallies, taken = dict(given), dict[str, Any](), Counter[tuple[str, str]]()
    every = step.sources()
    for layer in step.layers:
        operands: dict[str, Any] = {}
        for source, (tensor, shape) in zip(every[layer.name], layer.reads(BATCH).items(), strict=True):
            (name,) = source.names
            if name in tallies and not source.direct and layer.op in NUMBERS and tensor != "total":
                number = NUMBERS[layer.op] + taken[name, layer.op]
                taken[name, layer.op] += 1
                operands[tensor] = tallies[name][:, number].reshape(shape)
                continue
            like = "filter" if tensor.startswith("ahead_filter") else "ifmap" if tensor.startswith("ahead") else tensor
            core = replace(layer.core, name=layer.name)
            a_map = made[name].ndim == 4 and min(made[name].shape[1:3]) > 1
            operands[tensor] = (
                seen(core, like, made[name], shape) if a_map or tensor == "filter" else made[name].reshape(shape)
            )
        if isinstance(layer, Fused):
            operands = prepared(layer, operands)  # type: ignore[assignment]
            if layer.tallies:
                box = range(layer.shapes(BATCH)[OFMAP][0]), range(len(layer.tallies)), range(1), range(1)
                tallies[layer.name] = reference.TENSORS[TALLIES].compute(layer, operands, box)
        made[layer.name] = reference.compute(layer, operands)
        if layer.op == "channel_masked_sums":
            tallies[layer.name] = made[layer.name]
    return made
