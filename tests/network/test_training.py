"""Training steps of networks: their layers, what is kept for the way back, and gradients against differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks import ESTIMATE
from tpusim import Training, Workload, load_hardware, load_workload, reference, simulate, training_step
from tpusim.base.errors import InputError
from tpusim.flow.hbm_need import hbm_need
from tpusim.network.formats import ModelOptions
from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.training import ENDS
from tpusim.network.workload_file import open_workload, workload_of

BATCH = 2
SMALL = """
name: small
training: {batch_norm: [first, second]}
layers:
  - {name: first, op: conv2d, in_channels: 2, in_height: 5, in_width: 5, out_channels: 4, kernel: 3, padding: 1}
  - {name: relu1, op: relu}
  - {name: second, op: conv2d, out_channels: 4, kernel: 3, stride: 2, padding: 1, groups: 2}
  - {name: side, op: conv2d, inputs: [relu1], out_channels: 4, kernel: 1, stride: 2}
  - {name: sum, op: add, inputs: [second, side]}
  - {name: leaky, op: leaky_relu, slope: 0.25}
  - {name: pool, op: pool2d, kind: max, kernel: 3, stride: 1, padding: 1}
  - {name: mean, op: pool2d, kind: average, kernel: 2, stride: 1}
  - {name: flat, op: flatten}
  - {name: fc, op: gemm, n: 5}
"""


@pytest.fixture
def network(tmp_path: Path) -> Workload:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return load_workload(path, BATCH)


CHAIN = """
name: chain
training: {batch_norm: [conv]}
layers:
  - {name: conv, op: conv2d, in_channels: 2, in_height: 4, in_width: 4, out_channels: 3, kernel: 2}
  - {name: relu, op: relu}
  - {name: pool, op: pool2d, kind: max, kernel: 2, stride: 1}
  - {name: flat, op: flatten}
  - {name: fc, op: gemm, n: 3}
"""


BLOCK = """
name: block
sizes: {tokens: 3}
layers:
  - {name: embedding, op: embedding, channels: 4, images: 7, rows: batch*tokens}
  - {name: norm, op: layer_norm, epsilon: 0.1}
  - {name: query_key_value, op: gemm, n: 12, biases: true}
  - {name: query, op: view, inputs: [query_key_value], channels: 4, images: batch*tokens}
  - {name: key, op: view, inputs: [query_key_value], channels: 4, images: batch*tokens}
  - {name: value, op: view, inputs: [query_key_value], channels: 4, images: batch*tokens}
  - {name: heads, op: attention, inputs: [query, key, value], heads: 2, head: 2, queries: tokens, causal: true,
     blocks: 1}
  - {name: projection, op: gemm, n: 4, biases: true}
  - {name: attention_sum, op: add, inputs: [projection, embedding]}
  - {name: feed_forward_norm, op: layer_norm, epsilon: 0.1}
  - {name: up, op: gemm, n: 8, biases: true}
  - {name: gelu, op: gelu, approximate: tanh}
  - {name: down, op: gemm, n: 4, biases: true}
  - {name: feed_forward_sum, op: add, inputs: [down, attention_sum]}
  - {name: next_token, op: gemm, n: 5}
"""
"""A language model of one block."""


GATED = """
name: gated
sizes: {tokens: 3}
layers:
  - {name: embedding, op: embedding, channels: 8, images: 7, rows: batch*tokens}
  - {name: sequences, op: view, channels: 8, width: tokens, images: batch}
  - {name: positions, op: add, other: map}
  - {name: rows, op: view, channels: 8, images: batch*tokens}
  - {name: offsets, op: add}
  - {name: norm, op: rms_norm, epsilon: 0.1}
{heads}  - {name: feed_forward_norm, op: rms_norm, epsilon: 0.1}
  - {name: gate, op: gemm, n: 6}
  - {name: up, op: gemm, inputs: [feed_forward_norm], n: 6}
  - {name: swiglu, op: swiglu, inputs: [gate, up]}
  - {name: down, op: gemm, n: 8}
  - {name: feed_forward_sum, op: add, inputs: [down, attention_sum]}
  - {name: other_gate, op: gemm, n: 5}
  - {name: other_up, op: gemm, inputs: [feed_forward_sum], n: 5}
  - {name: geglu, op: geglu, inputs: [other_gate, other_up]}
  - {name: next_token, op: gemm, n: 5}
"""
"""A language model of one block, with what those after GPT have: normalised rows without a mean, and gates; and with
tables of positions of both kinds.
"""
GROUPED = """
  - {name: query, op: gemm, n: 8}
  - {name: key, op: gemm, inputs: [norm], n: 4}
  - {name: value, op: gemm, inputs: [norm], n: 4}
  - {name: query_heads, op: view, inputs: [query], channels: 4, width: tokens, images: 2*batch}
  - {name: query_turned, op: rotary, base: 50, start: 2}
  - {name: key_heads, op: view, inputs: [key], channels: 4, width: tokens, images: batch}
  - {name: key_turned, op: rotary, base: 50, start: 2}
  - {name: heads, op: attention, inputs: [query_turned, key_turned, value], heads: 2, kv_heads: 1, head: 4,
     queries: tokens, blocks: 1}
  - {name: projection, op: gemm, n: 8}
  - {name: attention_sum, op: add, inputs: [projection, offsets]}
"""
"""Heads that share keys, and turn them."""
FLASHED = """
  - {name: query, op: gemm, n: 8}
  - {name: key, op: gemm, inputs: [norm], n: 4}
  - {name: value, op: gemm, inputs: [norm], n: 4}
  - {name: flashed, op: attention, flash: true, inputs: [query, key, value], heads: 2, kv_heads: 1, head: 4,
     queries: tokens}
  - {name: out, op: gemm, n: 8}
  - {name: attention_sum, op: add, inputs: [out, offsets]}
"""
"""Heads that share keys, whose scores stay on chip."""
TURNED = """
  - {name: of_heads, op: view, inputs: [norm], channels: 4, width: tokens, images: 2*batch}
  - {name: heads_turned, op: rotary, base: 50, start: 2}
  - {name: joined, op: view, channels: 8, images: batch*tokens}
  - {name: attention_sum, op: add, inputs: [joined, offsets]}
"""


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        pytest.param(CHAIN, "both", id="chain"),
        pytest.param(BLOCK, "both", id="block", marks=pytest.mark.long),
        pytest.param(GATED.replace("{heads}", GROUPED), "event", id="gated"),
        pytest.param(GATED.replace("{heads}", GROUPED), "both", id="gated, both", marks=pytest.mark.long),
        pytest.param(SMALL, "both", id="small", marks=pytest.mark.long),
    ],
)
def test_every_layer_of_a_step_is_right_and_has_a_phase(tmp_path: Path, text: str, engine: str) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(text)
    result = simulate(training_step(load_workload(path, 2)), load_hardware("tiny_4x4", ESTIMATE), engine=engine)
    assert result.correct
    assert result.checked
    phases = [layer.phase for layer in result.layers]
    assert [*dict.fromkeys(phases)] == ["forward", "backward", "update"]
    assert [*result.to_dict()["by_phase"]] == ["forward", "backward", "update"]


@pytest.mark.long
def test_every_output_of_a_transformers_step_is_right() -> None:
    """Of twelve blocks, whose scores and contexts are a layer for each head and sequence."""
    result = simulate(training_step(load_workload("bert_base", 2, dims={"seq": 8})), load_hardware("tpu_v2"))
    assert result.correct
    assert result.checked


def test_a_network_without_a_step_has_no_phases(network: Workload) -> None:
    result = simulate(network, load_hardware("tiny_4x4", ESTIMATE), check=False)
    assert "by_phase" not in result.to_dict()
    assert not any("phase" in layer for layer in result.to_dict()["layers"])


def test_the_first_layers_input_has_no_gradient(network: Workload) -> None:
    names = [layer.name for layer in training_step(network).layers]
    assert "first.dw" in names
    assert "first.dx" not in names
    assert "second.dx" in names


def test_weights_are_updated_once_each_after_the_way_back(network: Workload) -> None:
    step = training_step(network)
    updates = [name for name, phase in step.phases if phase == "update"]
    assert [name for name in updates if name.endswith(".update")] == [
        "first.filter.update", "first.norm.beta.update", "first.norm.gamma.update",
        "second.filter.update", "second.norm.beta.update", "second.norm.gamma.update",
        "side.filter.update", "fc.filter.update",
    ]  # fmt: skip
    assert [phase for _, phase in step.phases][-len(updates) :] == ["update"] * len(updates)


def test_adam_keeps_two_means(network: Workload) -> None:
    step = training_step(network, replace(network.training or Training(), optimizer="adam"))
    assert {"fc.filter.mean", "fc.filter.squares", "fc.filter.update"} <= {layer.name for layer in step.layers}
    machine = load_hardware("tiny_4x4", ESTIMATE)
    usual = hbm_need(training_step(network), machine)
    assert hbm_need(step, machine).weights * 2 == usual.weights * 3


def test_what_is_not_kept_is_computed_again_from_what_is(network: Workload) -> None:
    asked = network.training or Training()
    kept = training_step(network, replace(asked, keep=("relu1", "leaky")))
    again = [layer.name for layer in kept.layers if layer.name.endswith(".again")]
    assert "sum.again" not in again
    assert {"first.again", "second.again"} <= {*again}
    assert "relu1.again" not in again
    assert kept.inputs()["second.again"][0] == "relu1"
    once = {layer.shape_key for layer in training_step(network).layers}
    assert all(layer.shape_key in once for layer in kept.layers if layer.name in again)
    nothing = training_step(network, replace(asked, keep="none"))
    assert "relu1.again" in [layer.name for layer in nothing.layers]


def test_less_is_in_hbm_where_less_is_kept() -> None:
    network, machine = load_workload("resnet50", 32, ops="all"), load_hardware("tpu_v2_core")
    assert network.training is not None
    every, some = (
        hbm_need(training_step(network, replace(network.training, keep=keep)), machine)
        for keep in ("all", ("maxpool", "*.relu3"))
    )
    assert some.total < 0.6 * every.total


def test_a_layer_that_is_read_twice_has_the_sum_of_both_gradients(network: Workload) -> None:
    assert training_step(network).inputs()["relu1.dy"] == ("side.dx", "second.dx")


def test_what_has_no_gradient_is_named(tmp_path: Path) -> None:
    path = tmp_path / "n.yaml"
    path.write_text(
        "name: n\nlayers:\n  - {name: a, op: conv2d, in_channels: 2, in_height: 4, in_width: 4, out_channels: 2, "
        "kernel: 1}\n  - {name: up, op: upsample}\n  - {name: lrn, op: lrn}\n"
    )
    with pytest.raises(InputError) as caught:
        training_step(load_workload(path))
    assert "1 layer of upsample, such as up, without a known gradient" in str(caught.value)
    assert "1 layer of lrn, such as lrn" in str(caught.value)


def test_what_is_read_in_part_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "n.yaml"
    path.write_text(BLOCK.replace("blocks: 1", "blocks: 3"))
    with pytest.raises(
        InputError, match=r"layer query_key_value: .* read 120 elements in all, and it has 72; gradients"
    ):
        training_step(load_workload(path, BATCH))
    path.write_text(BLOCK + "  - {name: last, op: view, channels: 5}\n  - {name: end, op: relu}\n")
    with pytest.raises(InputError, match=r"layer next_token: .* read 10 elements in all, and it has 30; gradients"):
        training_step(load_workload(path, BATCH))


def test_a_model_of_tokens_is_trained_in_a_phase_of_its_own() -> None:
    """All tokens of a sequence learn, and their scores are one block with its mask."""
    asked = ModelOptions(dims={"context": 6}, training={}, ops="all")
    network = workload_of(open_workload("gpt2_small", asked), BATCH, "all")
    assert network.phases == ()
    step = training_step(network)
    shapes = {layer.name: layer.shapes(BATCH) for layer in step.layers}
    assert shapes["next_token"]["ofmap"] == (50257, 1, 1, 6 * BATCH)
    assert shapes["attention_1.softmax.dx"]["ofmap"] == (6, 1, 1, 6 * 12 * BATCH)
    assert {"embedding.ifmap.update", "positions.other.update"} <= {*shapes}


def test_a_softmax_at_the_end_is_that_of_the_loss(tmp_path: Path) -> None:
    path = tmp_path / "n.yaml"
    ends = "name: n\nlayers:\n  - {name: labels, op: gemm, m: 4, k: 6, n: 5}\n  - {name: s, op: softmax}\n"
    path.write_text(f"{ends}  - {{name: b, op: gemm, n: 3}}\n")
    with pytest.raises(InputError) as caught:
        training_step(load_workload(path))
    assert "layer labels has the name of an input of the training step; name the layer otherwise" in str(caught.value)
    path.write_text(path.read_text().replace("labels", "a"))
    assert training_step(load_workload(path)).inputs()["s.dx"] == ("b.dx", "s")
    path.write_text(ends.replace("labels", "a"))
    assert dict(training_step(load_workload(path)).edges)["a.dw"][1].names == ("s.loss.dx",)


@pytest.mark.parametrize(("key", "value"), [("batch_norm", ("frist",)), ("keep", ("frist",))])
def test_patterns_that_fit_no_layer_are_refused(network: Workload, key: str, value: tuple[str, ...]) -> None:
    asked = Training(**{key: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf'training.{key}: no layer.* is named "frist"; did you mean first'):
        training_step(network, asked)


def test_a_batch_normalisation_comes_behind_a_map(network: Workload) -> None:
    with pytest.raises(InputError, match='no layer of the array that makes maps is named "fc"'):
        training_step(network, Training(batch_norm=("fc",)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("field", "given", "says"),
    [
        *(("rate", given, "is not above zero") for given in (-1, 0, "1e7")),
        *(("epsilon", given, "is not above zero") for given in (-1e-5, 0)),
        *((field, given, "is no share") for field in ("momentum", "second") for given in (-0.5, 1, 2)),
        *((field, given, "is not a number") for field in ("rate", "second") for given in (".nan", ".inf", "true", "a")),
        ("optimizer", "[sgd, adam]", "is not allowed; write sgd or adam"),
        ("keep", "[]", "keeps nothing that is known"),
        ("batch_norm", "conv", "is no list of names"),
    ],
)
def test_what_no_step_can_have_is_refused_at_its_line(
    tmp_path: Path, optimizer: str, field: str, given: object, says: str
) -> None:
    asked = {"optimizer": optimizer, field: given}
    path = tmp_path / "n.yaml"
    path.write_text(SMALL.replace("{batch_norm: [first, second]}", str(asked).replace("'", "")))
    with pytest.raises(InputError) as caught:
        load_workload(path, BATCH)
    (problem,) = caught.value.problems
    assert str(problem.where) == f"{path}:3: training.{field}"
    assert says in problem.message


def test_names_of_no_layer_are_told_at_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "n.yaml"
    asked = "\n  batch_norm:\n    - first\n    - fc\n  keep: [relu*, poll]"
    path.write_text(SMALL.replace(" {batch_norm: [first, second]}", asked))
    with pytest.raises(InputError) as caught:
        load_workload(path, BATCH)
    assert [str(each.where) for each in caught.value.problems] == [
        f"{path}:6: training.batch_norm[1]", f"{path}:7: training.keep[1]",
    ]  # fmt: skip
    assert "did you mean pool?" in str(caught.value)


def test_layers_called_like_those_of_a_step_stay_apart(tmp_path: Path) -> None:
    """A network may have a `conv.norm` of its own, and read an input that is called like weights."""
    path = tmp_path / "n.yaml"
    names = {"first": "a", "relu1": "a.norm", "second": "a.norm.dx", "side": "a_norm", "leaky": "a.filter"}
    text = SMALL
    for name, other in names.items():
        text = text.replace(f"name: {name},", f"name: {other},").replace(f"[{name}]", f"[{other}]")
    path.write_text(text.replace("[first, second]", "[a, 'a.norm.*']").replace("[second, side]", "[a.norm.dx, a_norm]"))
    network = load_workload(path, BATCH)
    step = training_step(network, replace(network.training or Training(), keep=("a.norm",)))
    names_now = {layer.name for layer in step.layers}
    assert {"a", "a.norm", "a_norm_", "a_norm_dx", "a_norm_dx.norm.dx", "a_filter", "a.dw"} <= names_now
    assert "a_norm_.again" not in names_now
    assert step.inputs()["a.filter.update"][0] == "a.filter"
    # Each layer reads as much as it has operands, whatever the names are.
    sources = step.sources()
    assert all(len(sources[layer.name]) == len(layer.reads(BATCH)) for layer in step.layers)
    path.write_text(SMALL)
    alike = load_workload(path, BATCH)
    plain = training_step(alike, replace(alike.training or Training(), keep=("relu1",)))
    assert Counter(layer.shape_key for layer in step.layers) == Counter(layer.shape_key for layer in plain.layers)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    "name", ["resnet18", *(pytest.param(each, marks=pytest.mark.long) for each in ("googlenet", "densenet121"))]
)
def test_every_end_of_a_name_in_a_step_is_known(name: str, optimizer: str) -> None:
    network = load_workload(name, BATCH, ops="all")
    step = training_step(network, replace(network.training or Training(), optimizer=optimizer, keep="none"))
    ends = ENDS | {tensor for layer in network.layers for tensor in layer.reads(BATCH)}
    own = [layer.name for layer in network.layers]
    for added in {*step.inputs(), *outside(step)} - {*own, "labels", "image", "input"}:
        owner = max((name for name in own if added.startswith(f"{name}.")), key=len)
        assert added[len(owner) + 1 :].partition(".")[0].rstrip("0123456789") in ends


# ---- the values of a step, by the reference in float64: each layer reads what those before it have made


def test_its_gradients_are_those_of_the_loss(network: Workload) -> None:
    """The loss changes by the sum of weights' changes times their gradients, for small changes in any direction."""
    step, random = training_step(network), np.random.default_rng(3)
    given = {name: random.normal(size=shape) for name, shape in outside(step).items()}
    given["labels"] = np.eye(5)[:, None, None, :BATCH]
    given |= {name: each + 1.5 for name, each in given.items() if name.endswith("gamma")}
    assert_gradients(step, given, random)


@pytest.mark.parametrize(
    "text",
    [BLOCK, GATED.replace("{heads}", TURNED), GATED.replace("{heads}", FLASHED)],
    ids=["block", "gated", "flashed"],
)
def test_gradients_of_a_transformer_are_those_of_the_loss(tmp_path: Path, text: str) -> None:
    """Of queries, keys and values side by side, heads with a mask, normalised rows, and rows of a table."""
    path = tmp_path / "block.yaml"
    path.write_text(text)
    step, random = training_step(load_workload(path, BATCH)), np.random.default_rng(4)
    given = {name: random.normal(size=shape) for name, shape in outside(step).items()}
    given["labels"] = np.eye(5)[:, random.integers(0, 5, 6)][:, None, None]
    given |= {name: np.ones_like(each) for name, each in given.items() if name.endswith(".ones")}
    given |= {name: np.zeros_like(each) for name, each in given.items() if name.endswith(".zeros")}
    (table,) = (layer for layer in step.layers if layer.op == "embedding")
    given["embedding.taken"] = np.eye(7)[[*table.words]][:, None, None]  # type: ignore[attr-defined]
    assert_gradients(step, given, random)


def assert_gradients(step: Workload, given: Mapping[str, Any], random: np.random.Generator) -> None:
    made, inputs = values(step, given), step.inputs()
    for layer in (each for each in step.layers if each.name.endswith(".update")):
        weights, (velocity,) = layer.name.removesuffix(".update"), inputs[layer.name][1:]
        gradient = made[inputs[velocity][1]].reshape(given[weights].shape)
        change = random.normal(size=gradient.shape)
        tiny = 1e-6
        ahead, behind = (loss(step, {**given, weights: given[weights] + by * change}) for by in (tiny, -tiny))
        assert (ahead - behind) / (2 * tiny) == pytest.approx(np.sum(gradient * change), rel=2e-4, abs=2e-6), weights


def loss(step: Workload, given: Mapping[str, Any]) -> float:
    phases = dict(step.phases)
    forward = replace(step, layers=tuple(each for each in step.layers if phases[each.name] == "forward"))
    made = values(forward, given)
    return float(np.mean(next(value for name, value in made.items() if name.endswith(".loss"))))


def outside(step: Workload) -> dict[str, tuple[int, ...]]:
    """What no layer makes, with its shape."""
    names, found = {layer.name for layer in step.layers}, dict[str, tuple[int, ...]]()
    every = step.sources()
    for layer in step.layers:
        for source, shape in zip(every[layer.name], layer.reads(BATCH).values(), strict=True):
            found |= {name: shape for name in source.names if name not in names and name not in found}
    return found


def values(step: Workload, given: Mapping[str, Any]) -> dict[str, Any]:
    made, every = dict(given), step.sources()
    for layer in step.layers:
        sources = zip(every[layer.name], layer.reads(BATCH).items(), strict=True)
        operands = {tensor: read(layer, tensor, source.names, made, shape) for source, (tensor, shape) in sources}
        operands |= {tensor: make(BATCH) for tensor, make in layer.fixed.items()}
        found = reference.compute(layer, operands)
        bias = given.get(f"{layer.name}.bias", 0.0)
        made[layer.name] = found + bias
    return made


def read(layer: Op, tensor: str, names: Sequence[str], made: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    if (layer.name, tensor) in APART:
        return APART[layer.name, tensor](made).reshape(shape)
    if len(names) > 1:
        return joined(made)
    return seen(layer, tensor, made[names[0]], shape)


HEADS, HEAD, TOKENS = 2, 2, 3


def split(made: Mapping[str, Any], part: int) -> Any:
    """The queries, keys or values of each head of each image: [image, head, channel, token]."""
    return made["query_key_value"].reshape(3, HEADS, HEAD, BATCH, TOKENS)[part].transpose(2, 0, 1, 3)


def of_each(value: Any, rows: int) -> Any:
    """What products of heads made: [image, head, row of the transposed product, column]."""
    return value.reshape(BATCH, HEADS, rows, -1)


def shares(value: Any) -> Any:
    """Rows of scores, [key, image, head, query], as [image, head, query, key]."""
    return value.reshape(TOKENS, BATCH, HEADS, TOKENS).transpose(1, 2, 3, 0)


def turned(value: Any) -> Any:
    return value.swapaxes(2, 3)


def as_rows(value: Any) -> Any:
    """Scores [image, head, key, query] as rows of keys."""
    return value.transpose(2, 0, 1, 3)


def by_image(value: Any) -> Any:
    """Channels of all heads of tokens, as [image, head, channel, token]."""
    return value.reshape(HEADS, HEAD, BATCH, TOKENS).transpose(2, 0, 1, 3)


def joined(made: Mapping[str, Any]) -> Any:
    """The gradient of queries, keys and values side by side."""
    keys = turned(of_each(made["heads.scores.dw"], TOKENS))
    parts = of_each(made["heads.scores.dx"], HEAD), keys, of_each(made["heads.values.dw"], HEAD)
    return np.stack(parts).transpose(0, 2, 3, 1, 4).reshape(3 * HEADS * HEAD, 1, 1, BATCH * TOKENS)


APART: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Any]] = {
    ("embedding.dw", "ifmap"): lambda made: made["embedding.taken"],
    ("heads.scores", "ifmap"): lambda made: split(made, 0),
    ("heads.scores", "filter"): lambda made: turned(split(made, 1)),
    ("heads.softmax", "ifmap"): lambda made: as_rows(of_each(made["heads.scores"], TOKENS)),
    ("heads.values", "ifmap"): lambda made: turned(shares(made["heads.softmax"])),
    ("heads.values", "filter"): lambda made: split(made, 2),
    ("projection", "ifmap"): lambda made: of_each(made["heads.values"], HEAD).transpose(1, 2, 0, 3),
    ("projection.dw", "ifmap"): lambda made: of_each(made["heads.values"], HEAD).transpose(0, 3, 1, 2),
    ("heads.values.dw", "ifmap"): lambda made: shares(made["heads.softmax"]),
    ("heads.values.dw", "filter"): lambda made: by_image(made["projection.dx"]),
    ("heads.values.dx", "ifmap"): lambda made: by_image(made["projection.dx"]),
    ("heads.values.dx", "filter"): lambda made: turned(split(made, 2)),
    ("heads.softmax.dx", "ifmap"): lambda made: as_rows(of_each(made["heads.values.dx"], TOKENS)),
    ("heads.scores.dw", "ifmap"): lambda made: turned(split(made, 0)),
    ("heads.scores.dw", "filter"): lambda made: turned(shares(made["heads.softmax.dx"])),
    ("heads.scores.dx", "ifmap"): lambda made: turned(shares(made["heads.softmax.dx"])),
    ("heads.scores.dx", "filter"): lambda made: split(made, 1),
    **{
        (f"{name}.{end}", tensor): lambda made, part=part: made["flashed.flash.dx"][part]
        for name, part in (("query", slice(8)), ("key", slice(8, 12)), ("value", slice(12, 16)))
        for end, tensor in (("dw", "filter"), ("dx", "ifmap"))
    },
}
"""What layers of heads read, by layer and tensor: the channels of all heads lie side by side, image behind image. The
gradient of a table reads which rows were taken.
"""


def seen(layer: Op, tensor: str, value: Any, shape: tuple[int, ...]) -> Any:
    """A value as a layer of a step reads it."""
    if isinstance(layer, Conv2dInputGradient) and tensor == "filter":
        grouped = value.reshape(layer.groups, -1, *value.shape[1:])
        return np.moveaxis(np.moveaxis(grouped, -1, 1), 2, -1).reshape(shape)
    if isinstance(layer, Conv2dFilterGradient) and tensor == "ifmap":
        apart = value.reshape(layer.groups, -1, *value.shape[1:])
        if layer.is_a_product:
            down, across = layer.stride
            touched = apart[:, :, ::down, ::across][:, :, : layer.out_height, : layer.out_width]
            return touched.transpose(0, 2, 3, 4, 1).reshape(shape)
        rows, cols = layer.used
        return apart[:, :, :rows, :cols].transpose(0, 4, 2, 3, 1).reshape(shape)
    if layer.op == "gemm" and layer.name.endswith(".dw") and tensor == "ifmap":
        return value.reshape(shape[3], shape[0]).T.reshape(shape)
    if layer.op == "gemm" and layer.name.endswith(".dx") and tensor == "filter":
        return value[:, 0, 0].T.reshape(shape)
    assert prod(value.shape) == prod(shape), (layer.name, tensor)
    return value.reshape(shape)


def test_shapes_of_a_step_fit_those_of_what_they_read() -> None:
    """Of a network that joins maps: parts of a gradient go to those that made them."""
    step = training_step(load_workload("googlenet", 2, ops="all"), Training())
    shapes = {layer.name: layer.shapes(2)[OFMAP] for layer in step.layers}
    parts = step.inputs()["inception3a.branch1.relu.dy"]
    assert all(part.startswith("inception3b") or part == "inception3a.branch1.relu.dy3" for part in parts)
    assert shapes["inception3a.branch1.relu.dx"] == shapes["inception3a.branch1.relu"]


def test_a_step_has_the_blocks_of_its_network(tmp_path: Path) -> None:
    """Forward and in updates, where they come in the order of the network; normalisations that it adds are theirs."""
    (tmp_path / "net.yaml").write_text("""
name: net
training: {batch_norm: [conv_*]}
layers:
  - {name: stem, op: conv2d, in_channels: 2, in_height: 4, in_width: 4, out_channels: 2, kernel: 3, padding: 1}
  - block: body
    count: 3
    layers:
      - {name: conv, op: conv2d, out_channels: 2, kernel: 3, padding: 1}
      - {name: relu, op: relu}
  - {name: last, op: conv2d, out_channels: 2, kernel: 3}
""")
    step = training_step(load_workload(tmp_path / "net.yaml", batch=2))
    place = {layer.name: at for at, layer in enumerate(step.layers)}
    forward, update = step.blocks
    for block, own in ((forward, ["conv_2.norm", "relu_2"]), (update, ["conv_2.filter.update"])):
        places = [place[name] for copy in block.copies for name in copy]
        assert places == [*range(places[0], places[0] + len(places))], "copies stand one behind the other"
        assert len(block.copies) == 3
        assert {*own} <= {*block.copies[1]}
        for name, other in zip(block.copies[0], block.copies[2], strict=True):
            assert step.layers[place[name]].shape_key == step.layers[place[other]].shape_key


@pytest.mark.parametrize(("kernel", "terms", "most"), [(1, "67,108,864", "16,384"), (3, "65,536", "4,096")])
def test_a_batch_of_more_images_than_are_summed_is_named(
    kernel: int, terms: str, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images, or pixels of all images, are channels of the convolution that the gradient by a filter is."""
    if kernel == 3:
        monkeypatch.setattr("tpusim.network.ops.gradients.MOST_CHANNELS", 4096)
    layer = Conv2dFilterGradient("conv.dw", 4, 32, 32, 8, kernel, padding=kernel // 2)
    with pytest.raises(InputError) as caught:
        layer.tensors(65_536)
    said = f"layer conv.dw: its sum is over {terms} terms at batch 65,536, and "
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(f"take a smaller batch, at most {most} for this layer")
    assert layer.tensors(int(most.replace(",", "")))


def test_a_pool_of_the_smallest_has_no_gradient() -> None:
    with pytest.raises(InputError, match="1 layer of pool2d of kind min, such as pool, without a known gradient"):
        training_step(Workload("net", 2, (Pool2d("pool", "min", 3, 6, 6, 2),)))
