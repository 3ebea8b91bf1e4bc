"""The reference numbers: what each set holds, under which word, and that a case is what its row says."""

from __future__ import annotations

import re
from itertools import pairwise
from math import ceil, prod
from statistics import fmean

import pytest

from tests import ROOT
from tpusim import load_hardware
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.study.validation import operations
from tpusim.study.validation.cases import WORDS, Case, rows, sizes
from tpusim.study.validation.chips import chip_sets
from tpusim.study.validation.convolutions import uncharged
from tpusim.study.validation.fused import fused_sets
from tpusim.study.validation.generations import generation_sets
from tpusim.study.validation.sets import number_sets
from tpusim.study.validation.tokens import token_sets

COUNTS = {
    "gemm": 111, "resnet50": 52, "vgg16": 12, "yolov2": 19, "micro": 45,
    "first_layers": 38, "fresh": 28, "batch": 15, "1x1": 26, "3x3": 41, "thin": 19, "large_kernels": 107,
    "depthwise": 9, "dilated": 5, "grouped": 11, "transposed": 4,
    "gradients_forward": 19, "gradients_filter": 19, "gradients_input": 15, "gradients_strided": 4,
    "scheduled_gradients": 5, "vector_ops": 42,
    "scheduled_first": 16, "scheduled_1x1": 14, "scheduled_3x3": 32, "scheduled_large": 24,
    "network_resnet18": 22, "network_resnet50": 43, "network_vgg16": 22, "network_yolov2": 29, "network_bert_layer": 29,
    "scheduled_resnet50": 41, "scheduled_vgg16": 16, "scheduled_pooling": 6,
    "v3_estimated": 8, "v3_scheduled": 4, "v3": 7, "v3_odd": 1, "training": 39,
}  # fmt: skip
TRUTH = ROOT / "tpusim" / "study" / "validation" / "truth"


def case_of(name: str, begins: str) -> Case:
    return next(case for case in number_sets()[name].cases if case.name.startswith(begins))


def test_every_set_has_its_cases() -> None:
    assert {name: len(each.cases) for name, each in number_sets().items()} == COUNTS


def test_the_readme_says_how_many_cases_there_are() -> None:
    """Once, and no other page gives a number of its own."""
    sets = number_sets() | generation_sets() | chip_sets() | fused_sets() | token_sets()
    count = f"{sum(len(each.cases) for each in sets.values()):,} cases of TPU"
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    assert [(page.name, said) for page in pages for said in re.findall(r"[\d,]+ cases of TPU", page.read_text())] == [
        ("README.md", count)
    ]


def test_each_word_has_its_sets_and_its_machine() -> None:
    sets = number_sets()
    words = {word: {name for name, each in sets.items() if each.status == word} for word in WORDS}
    assert words["measured"] == {"v3", "v3_odd", "training"}
    assert words["scheduled"] == {name for name in COUNTS if "scheduled" in name}
    assert set.union(*words.values()) == {*COUNTS}
    machines = {name: each.hardware for name, each in sets.items() if not name.startswith("v3")}
    assert {machines[name] for name in machines if name not in words["scheduled"] | {"depthwise"}} == {
        "tpu_v2_estimator"
    }
    assert {machines[name] for name in words["scheduled"] - {"v3_scheduled"} | {"depthwise"}} == {"tpu_v2_core"}
    assert {each.hardware for name, each in sets.items() if name.startswith("v3")} == {"tpu_v3_core"}


def test_every_file_of_numbers_is_told_of() -> None:
    told = (TRUTH / "README.md").read_text()
    files = {path.name for path in TRUTH.glob("*.csv")}
    assert files == {line.split("`")[1] for line in told.splitlines() if line.startswith("| `")}


def test_cases_of_a_set_have_names_of_their_own() -> None:
    """But for layers that a network has several times."""
    for name, each in number_sets().items():
        shapes = {(case.name, tuple(layer.shape_key for layer in case.layers), case.batch) for case in each.cases}
        assert len({case.name for case in each.cases}) == len(shapes), name


def test_every_convolution_of_the_new_tables_is_in_one_set() -> None:
    """Five of the larger table of estimates are in the older one already, with the same figure."""
    sets = [each for each in number_sets().values() if each.kind == "convolutions"]
    new, code = (sum(len(each.cases) for each in sets if each.status == word) for word in ("estimated", "scheduled"))
    assert code == len([*rows("xla_tpu_v2_scheduled")])
    assert new == len([*rows("xla_tpu_v2_conv_more")]) - 5 + 3
    older = {case.name: case.theirs for name in ("micro", "vgg16", "resnet50") for case in number_sets()[name].cases}
    newer = {case.name: case.theirs for each in sets if each.status == "estimated" for case in each.cases}
    assert not older.keys() & newer.keys()
    assert (older["28x28x64>64 5x5/1"], newer["224x224x3>64 3x3/1"]) == (75436.0, 3240597.0)


def test_a_case_is_what_its_row_says() -> None:
    """One row of each file, read by eye."""
    gemm = case_of("gemm", "256x512x1024")
    assert (gemm.layers, gemm.theirs) == ((Gemm("256x512x1024", 256, 512, 1024),), 12_499)
    conv = case_of("vgg16", "112x112x64>128 3x3/1")
    (layer,) = conv.layers
    assert isinstance(layer, Conv2d)
    found = layer.in_channels, layer.out_channels, layer.padding, conv.batch, conv.theirs
    assert found == (64, 128, (1, 1), 8, 618_816)
    v3 = case_of("v3", "conv_64x28x28")
    assert (v3.batch, v3.theirs, v3.layers[0].macs(64)) == (64, 241_935, 64 * 28 * 28 * 128 * 128 * 9)
    assert (v3.estimated, v3.scheduled) == (240_807, 235_060)
    forward, inputs, weights = number_sets()["training"].cases[0].layers
    assert forward.macs(1) == inputs.macs(1) == weights.macs(1)


def test_a_case_of_the_new_tables_is_what_its_row_says() -> None:
    fresh, code = case_of("fresh", "27x27x320>768"), case_of("scheduled_3x3", "27x27x320>768")
    (layer,) = fresh.layers
    assert isinstance(layer, Conv2d)
    assert (layer.kernel, layer.stride, layer.padding, fresh.batch) == ((1, 3), (2, 2), (0, 1), 8)
    assert (fresh.theirs, code.theirs) == (84_092, 82_233)
    assert (fresh.estimated, fresh.scheduled) == (code.estimated, code.scheduled) == (84_092, 82_233)
    assert case_of("batch", "28x28x64>128 3x3/1 batch 128").batch == 128
    assert case_of("scheduled_1x1", "28x28x128>128 1x1/1 batch 1").theirs == 2736


@pytest.mark.parametrize("table", ["xla_tpu_v2_conv_more", "xla_tpu_v2_scheduled"])
def test_maps_have_the_sizes_of_the_table(table: str) -> None:
    """The tables know the ofmap; so kernel, stride and padding are read rightly."""
    known = {
        (float(row["batch"]), row[cycles]): [int(row["ho"]), int(row["wo"])]
        for cycles in ("estimated_cycles_main", "scheduled_with_hbm")
        for row in rows(table)
        if cycles in row
    }
    word = "estimated" if table.endswith("more") else "scheduled"
    cases = [case for each in number_sets().values() if (each.kind, each.status) == ("convolutions", word)
             for case in each.cases]  # fmt: skip
    checked = 0
    for case in cases:
        (layer,) = case.layers
        if size := known.get((case.batch, f"{case.theirs:.0f}")):
            assert [*layer.tensors(case.batch).ofmap[1:3]] == size, case.name
            checked += 1
    assert checked >= len(cases) - 2


def test_taps_that_the_estimator_does_not_charge() -> None:
    """Rows of five and seven taps at 64 channels; not 3 x 3, nor channels that fill the rows, nor thin ones."""
    assert [taps for taps in range(1, 10) if uncharged(64, taps)] == [4, 5, 7, 8]
    assert not any(uncharged(channels, 5) for channels in (8, 48, 128, 256))
    assert case_of("large_kernels", "28x28x80>128 5x5/1").quirk
    assert case_of("micro", "28x28x64>64 5x5/1").quirk
    assert not case_of("large_kernels", "14x14x128>128 5x5/1").quirk
    assert not any(case.quirk for each in number_sets().values() if each.status != "estimated" for case in each.cases)


def test_the_estimates_are_what_the_quirk_says() -> None:
    """Passes x words of eight rows x 8 cycles, with three taps charged at a time, are closer than with all taps."""
    with_quirk, without = [], []
    for row in rows("xla_tpu_v2_conv_more"):
        channels, (high, wide, *_) = int(row["ci"]), sizes(row["kernel_window_bounds"])
        taps = high * wide
        if not uncharged(channels, taps) or row["batch"] != "8" or taps > 9:
            continue
        windows = int(row["kh"]) * int(row["kw"]) / taps
        words = int(row["ho"]) * int(row["wo"]) * ceil(int(row["co"]) / 128)
        charged, all_taps = (taps // 3) * ceil(3 * channels / 128), ceil(taps * channels / 128)
        estimate = int(row["estimated_cycles_main"])
        with_quirk.append(abs(8 * words * windows * charged / estimate - 1))
        without.append(abs(8 * words * windows * all_taps / estimate - 1))
    assert len(with_quirk) > 50
    assert fmean(with_quirk) < fmean(without)


def test_the_layers_of_a_network_follow_from_the_operations() -> None:
    """Each ofmap is what the table says, each convolution reads what the one ahead of it wrote."""
    checked = 0
    for row in rows("xla_tpu_v2_networks"):
        if "convolution{" not in row["conv_window"] or row["network"] == "bert_layer":
            continue
        *_, out = operations._shapes(row["output_shape"])
        layers = operations.layers_of(row)
        if len(out) == 4:
            channels, height, width, batch = layers[-1].tensors(8).ofmap
            assert (batch, height, width, channels) == out, row["name"]
        for one, other in pairwise(layers):
            assert one.tensors(8).ofmap == other.tensors(8).ifmap
        checked += 1
    assert checked == 19 + 40 + 13 + 22


@pytest.mark.parametrize(
    ("network", "convolutions"), [("resnet50", 53), ("vgg16", 13), ("resnet18", 20), ("yolov2", 23)]
)
def test_a_network_has_all_its_macs(network: str, convolutions: int) -> None:
    """Against the published counts, in 10^9 a picture."""
    cases = number_sets()[f"network_{network}"].cases
    layers = [layer for case in cases for layer in case.layers if isinstance(layer, Conv2d)]
    published = {"resnet50": 4.1, "vgg16": 15.5, "resnet18": 1.8, "yolov2": 14.7}[network]
    assert sum(layer.macs(1) for case in cases for layer in case.layers) / 1e9 == pytest.approx(published, rel=0.06)
    assert len(layers) == convolutions


def test_operations_of_two_convolutions_and_products() -> None:
    both = case_of("network_resnet50", "10 ")
    assert [layer.text for layer in both.layers] == ["56x56x256>128 1x1", "56x56x128>128 3x3/2"]
    assert (both.theirs, both.batch) == (134_782, 8)
    feedforward = case_of("network_bert_layer", "16 1024")
    assert [layer.text for layer in feedforward.layers] == ["1024x768>3072", "1024x3072>768"]
    assert case_of("network_vgg16", "19 ").layers[0].text == "8x25088>4096"


def test_operations_that_multiply_nothing() -> None:
    """A copy takes whole tiles of both layouts: 8 images in 128 lanes, 224 columns in 256, 3 channels in 4 sublanes."""
    copy = case_of("network_resnet18", "0 copy 8x224x224x3")
    (layer,) = copy.layers
    assert layer.outputs(copy.batch) == 128 * 256 * 224 * 4
    rearranged = case_of("network_yolov2", "19 copy")
    assert rearranged.layers[0].outputs(rearranged.batch) == 13 * 13 * 8 * 2 * 4 * 128
    pooling = case_of("network_resnet50", "2 ")
    assert (pooling.layers[0].text, pooling.theirs) == ("112x112x64 max 3x3/2 p0x0x1x1", 113_391)
    assert case_of("scheduled_pooling", "2 ").scheduled == pytest.approx(630 + 74_930 + 74_930 / 14)


def test_attention_is_a_product_for_each_image_and_head() -> None:
    scores, sums = case_of("network_bert_layer", "4 96 of 512x64>512"), case_of("network_bert_layer", "9 96 of 64x512")
    for case in (scores, sums):
        (layer,) = case.layers
        assert layer.macs(case.batch) == 8 * 12 * 512 * 512 * 64


def test_what_is_left_out_of_a_network_is_told() -> None:
    """Every row that has a price is compared or left out."""
    for network in ("resnet18", "resnet50", "vgg16", "yolov2", "bert_layer"):
        numbers = number_sets()[f"network_{network}"]
        priced = [float(row["estimated_cycles"]) for row in rows("xla_tpu_v2_networks")
                  if row["network"] == network and row["estimated_cycles"]]  # fmt: skip
        told = [case.theirs for case in numbers.cases] + [each.theirs for each in numbers.left_out]
        assert sorted(told) == sorted(priced)
    bert = number_sets()["network_bert_layer"]
    assert (len(bert.left_out), sum(each.theirs for each in bert.left_out)) == (18, 5101)
    sums = [each.name for each in bert.cases if "sum" in each.name]
    assert sums == [
        "6 sum_exp 12288x128", "12 sum_squares 1024x768", "18 sum_squares 1024x768",
        "6 sum_exp 49152x512", "12 sum_squares 4096x768", "19 sum_squares 4096x768",
    ]  # fmt: skip
    code = [each.name for each in number_sets()["scheduled_vgg16"].left_out]
    assert [name.split()[0] for name in code] == ["0", "3", "6", "10", "14", "18"]


def test_code_of_networks_with_hbm() -> None:
    """What the formula for operations makes of single convolutions is close to what windows say."""
    code = case_of("scheduled_resnet50", "4 56x56x64>256")
    assert code.theirs == pytest.approx(630 + 53_144 + 45_034 / 14)
    errors = []
    for row in rows("xla_tpu_v2_scheduled"):
        loop, moving = float(row["scheduled_cycles"]), float(row["hbm_cycles_of_windows"])
        errors.append(
            abs((630 + max(loop, moving) + moving / int(row["iterations"])) / float(row["scheduled_with_hbm"]) - 1)
        )
    assert f"{100 * fmean(errors):.1f} %" == "0.8 %"
    assert "by 0.8 % on the mean" in (TRUTH / "README.md").read_text()


def test_the_machines_are_what_the_facts_say() -> None:
    facts = {row["item"]: row["value"] for row in rows("tpu_v2_facts")}
    v2, v3, estimator = (load_hardware(name) for name in ("tpu_v2_core", "tpu_v3_core", "tpu_v2_estimator"))
    assert facts["clock v2 / v3"] == f"{v2.clock_hz // 10**6} / {v3.clock_hz // 10**6}"
    assert facts["MXU per core v2 / v3"] == f"{v2.array.count} / {v3.array.count}"
    low, high = facts["per-HLO-op floor in cost model"].lstrip("~").split("-")
    assert int(low) <= estimator.sequencer.launch_cycles <= int(high)
    assert prod((v2.vector_memory.capacity_bytes, v2.lanes)) == 16 * 2**20
