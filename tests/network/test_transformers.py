"""The shipped transformers against published counts, and sizes that a workload file names."""

from __future__ import annotations

import json
from itertools import takewhile
from math import prod
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpusim import load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload
from tpusim.study.sweep.points import Sweep, load_sweep

WIDTH, BLOCKS = 768, 12
NORMS = 2 * 2 * WIDTH
"""Scales and shifts of the two normalisations of a block."""
ATTENTION = ("scores", "context")


def filters(name: str) -> int:
    """Weights and biases; the products of an attention have neither."""
    products = load_workload(name, 1, ops="array").layers
    layers = [layer for layer in products if not layer.name.startswith(ATTENTION)]
    return sum(prod(layer.tensors(1).filter) + layer.tensors(1).filter[0] for layer in layers)


def test_parameters_are_those_published() -> None:
    """Those of bert-base-uncased as Hugging Face counts them, ViT-B/16 as torchvision does."""
    tokens, positions, segments, pooler = 30_522, 512, 2, WIDTH * WIDTH + WIDTH
    embeddings = (tokens + positions + segments) * WIDTH + 2 * WIDTH
    assert filters("bert_base") + BLOCKS * NORMS + embeddings + pooler == 109_482_240
    assert filters("vit_b16") + BLOCKS * NORMS + 2 * WIDTH + (1 + 197) * WIDTH == 86_567_656


def gmacs(name: str, **dims: int) -> float:
    return sum(layer.macs(1) for layer in load_workload(name, 1, dims=dims).layers) / 1e9


def test_multiplications_are_those_published() -> None:
    """ViT-B/16 as torchvision counts it (17.56); scores grow with the square of the sequence, products in step."""
    assert round(gmacs("vit_b16"), 2) == 17.56
    once, twice, fourfold = (Attention("bert_base", seq) for seq in (128, 256, 512))
    assert [twice.attention / once.attention, fourfold.attention / twice.attention] == [4, 4]
    assert [twice.others / once.others, fourfold.others / twice.others] == pytest.approx([2, 2], rel=0.02)


class Attention:
    """The multiplications of a network at a length."""

    def __init__(self, name: str, seq: int) -> None:
        layers = load_workload(name, 4, dims={"seq": seq}).layers
        macs = {True: 0, False: 0}
        for layer in layers:
            macs[layer.name.startswith(ATTENTION)] += layer.macs(4)
        self.attention, self.others = macs[True], macs[False]


@pytest.mark.parametrize(("name", "size"), [("bert_base", {"seq": 6}), ("vit_b16", {"side": 48})])
def test_blocks_read_one_another_whatever_the_length(name: str, size: dict[str, int]) -> None:
    work = load_workload(name, 2, dims=size)
    reads = work.inputs()
    heads = 12 * 2
    assert reads["scores_3_24"] == ("query_key_value_3",)
    assert reads["softmax_3"] == tuple(f"scores_3_{head}" for head in range(1, heads + 1))
    assert reads["context_3_1"] == ("softmax_3", "query_key_value_3")
    assert reads["projection_3"] == tuple(f"context_3_{head}" for head in range(1, heads + 1))
    into = {"bert_base": "feed_forward_norm_2", "vit_b16": "mlp_sum_2"}[name]
    assert reads["attention_sum_3"] == ("projection_3", into)
    assert reads["query_key_value_3"] == (into if name == "bert_base" else "attention_norm_3",)
    # All that is made is read, but for what the network hands on.
    read = {each for names in reads.values() for each in names}
    assert [layer.name for layer in work.layers if layer.name not in read] == [work.layers[-1].name]


def test_a_transformer_runs_with_layers_that_overlap_and_that_ride_on_results() -> None:
    work = load_workload("bert_base", 1, dims={"seq": 4})
    block = {layer.name for layer in takewhile(lambda layer: layer.name != "query_key_value_2", work.layers)}
    work = work.with_layers(lambda layer: layer.name in block)
    apart, overlap, riding = (
        simulate(
            work,
            load_hardware("tpu_v2", ["mapping.search=estimate", *changes]),
            check=False,
        )
        for changes in ([], ["sequencer.between_layers=overlap"], ["sequencer.fusion=results"])
    )
    assert overlap.total.cycles < apart.total.cycles
    assert {layer.name for layer in apart.layers} - {layer.name for layer in riding.layers} == {
        "attention_sum_1", "feed_forward_sum_1",
    }  # fmt: skip
    assert {each.name: each.inputs for each in riding.layers}["feed_forward_2_1"] == ("gelu_1", "attention_norm_1")


def layers_of(tmp_path: Path, text: str, **dims: int) -> tuple[Op, ...]:
    return read(tmp_path, text, **dims).layers


def read(tmp_path: Path, text: str, **dims: int) -> Workload:
    path = tmp_path / "w.yaml"
    path.write_text(f"name: w\n{text}")
    return load_workload(path, 3, dims=dims)


SIZED = """\
sizes: {side: 32, tokens: (side//16)*(side//16) + 1, of_all: batch*tokens}
layers: [{name: a, op: gemm, m: of_all, n: 7, k: side}]
"""


def test_sizes_are_worked_out_from_those_before_them_and_may_be_set(tmp_path: Path) -> None:
    assert read(tmp_path, SIZED).sizes == (("side", 32), ("tokens", 5), ("of_all", 15))
    (layer,) = layers_of(tmp_path, SIZED)
    assert layer.text == "15x32>7"
    (layer,) = layers_of(tmp_path, SIZED, side=64)
    assert layer.text == "51x64>7"
    (layer,) = layers_of(tmp_path, SIZED, tokens=9)
    assert layer.text == "27x32>7"


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ("{batch: 3}", r"w.yaml:2: sizes.batch: batch is what a run says; name"),
        ("{seq: many}", r"w.yaml:2: sizes.seq: \"many\" is not a number"),
        ("{2x: 4}", r"\"2x\" cannot be used in a sum; name a size by a word"),
        ("{seq: 0}", r"sizes.seq: 0 is out of range"),
        ("{tall: wide, wide: 3}", r"sizes.tall: \"wide\" is not a number"),
        ("[1]", r"w.yaml:2: sizes: \[1\] names no sizes; write each with its usual value, such as \{seq: 128\}"),
    ],
)
def test_wrong_sizes_are_told_where_they_stand(tmp_path: Path, sizes: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        read(tmp_path, f"sizes: {sizes}\nlayers: [{{name: a, op: gemm, m: batch, n: 7, k: 3}}]\n")
    assert len(raised.value.problems) == 1


def test_a_size_that_is_not_named_cannot_be_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--dim sidee=3: .*: the workload has no size .sidee.; did you mean side"):
        read(tmp_path, SIZED, sidee=3)


SWEEP = """\
name: lengths
workloads: [vit_b16]
hardware: tpu_v2
batch: 2
axes: {sizes.side: [32, 64], layers.patches.out_channels: [64, 128]}
"""


def swept(tmp_path: Path, axes: str | None = None) -> Sweep:
    (tmp_path / "s.yaml").write_text(SWEEP if axes is None else SWEEP.replace("sizes.side: [32, 64]", axes))
    return load_sweep(tmp_path / "s.yaml")


def test_a_size_is_an_axis_of_sweeps_beside_fields_of_layers(tmp_path: Path) -> None:
    points = swept(tmp_path).points
    assert [dict(point.jobs.work.sizes) for point in points[::2]] == [
        {"side": 32, "tokens": 5},
        {"side": 64, "tokens": 17},
    ]
    texts = [{layer.name: layer.text for layer in point.jobs.work.layers} for point in points]
    first = [(each["patches"], each["query_key_value_1"]) for each in texts]
    assert first == [
        ("32x32x3>64 16x16/16", "10x768>2304"), ("32x32x3>128 16x16/16", "10x768>2304"),
        ("64x64x3>64 16x16/16", "34x768>2304"), ("64x64x3>128 16x16/16", "34x768>2304"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        (
            "sizes.sides: [32]",
            's.yaml:5: axes.sizes.sides: vit_b16 has no size "sides"; did you mean side.* it has side, tokens',
        ),
        ("sizes.side: [32, many]", 's.yaml:5: axes.sizes.side: "many" is not a number'),
    ],
)
def test_wrong_axes_of_sizes(tmp_path: Path, axes: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        swept(tmp_path, axes)


def test_a_run_says_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["run", "bert_base", "--dim", "seq=16", "--layers", "scores_1_1", "--json", "run.json"]
    shown = CliRunner().invoke(cli.app, asked)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("bert_base, batch 8, seq 16, on tpu_v2:")
    assert json.loads(Path("run.json").read_text())["sizes"] == {"seq": 16}
