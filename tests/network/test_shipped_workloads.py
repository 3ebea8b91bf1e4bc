"""The shipped workloads against published figures: arithmetic, weights, feature-map sizes, wiring."""

import itertools
from collections import Counter
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import onnx
import pytest

from tpusim.network import workload_file
from tpusim.network.workload import Source

# convolutions, fully-connected layers (or GEMMs)
LAYER_COUNTS = {
    "alexnet": (5, 3),
    "zfnet": (5, 3),
    "vgg16": (13, 3),
    "googlenet": (57, 1),
    "resnet18": (20, 1),
    "resnet50": (53, 1),
    "densenet121": (120, 1),
    "mobilenet_v2": (52, 1),
    "resnext50_32x4d": (53, 1),
    "yolov2": (23, 0),
    "gemm_suite": (0, 16),
    "tiny": (2, 1),
    "dcgan": (4, 1),
    "unet": (23, 0),
}
NETWORKS = [name for name in LAYER_COUNTS if name not in ("gemm_suite", "tiny")]

# 10^9 multiply-accumulates of one image, to the digits published (torchvision's "GFLOPS" counts a
# multiply-accumulate once).
PUBLISHED_GMACS = {
    "alexnet": "0.71",  # torchvision AlexNet_Weights.IMAGENET1K_V1, GFLOPS
    "vgg16": "15.47",  # torchvision VGG16_Weights.IMAGENET1K_V1
    "googlenet": "1.50",  # torchvision GoogLeNet_Weights.IMAGENET1K_V1
    "resnet18": "1.81",  # torchvision ResNet18_Weights.IMAGENET1K_V1
    "resnet50": "4.09",  # torchvision ResNet50_Weights.IMAGENET1K_V1; the stride-in-the-1x1 network has 3.86
    "densenet121": "2.83",  # torchvision DenseNet121_Weights.IMAGENET1K_V1
    "mobilenet_v2": "0.30",  # torchvision MobileNet_V2_Weights.IMAGENET1K_V1
    "resnext50_32x4d": "4.23",  # torchvision ResNeXt50_32X4D_Weights.IMAGENET1K_V1
}

# All parameters. Beside the weights of convolutions and fully-connected layers that is a bias per output,
# or scale and shift per normalised channel.
PUBLISHED_PARAMETERS = {
    "alexnet": 61_100_840,  # torchvision AlexNet_Weights.IMAGENET1K_V1, num_params
    "vgg16": 138_357_544,  # torchvision VGG16_Weights.IMAGENET1K_V1
    "googlenet": 6_624_904,  # torchvision GoogLeNet_Weights.IMAGENET1K_V1
    "resnet18": 11_689_512,  # torchvision ResNet18_Weights.IMAGENET1K_V1
    "resnet50": 25_557_032,  # torchvision ResNet50_Weights.IMAGENET1K_V1
    "densenet121": 7_978_856,  # torchvision DenseNet121_Weights.IMAGENET1K_V1
    "mobilenet_v2": 3_504_872,  # torchvision MobileNet_V2_Weights.IMAGENET1K_V1
    "resnext50_32x4d": 25_028_904,  # torchvision ResNeXt50_32X4D_Weights.IMAGENET1K_V1
    "unet": 7_763_041,  # PyTorch Hub mateuszbuda/brain-segmentation-pytorch, counted by PyTorch 2.13
}

# Exact totals for one image, so that no layer changes unnoticed; further tests tie them to published figures.
EXACT = {  # multiply-accumulates, weights
    "alexnet": (714_188_480, 61_090_496),
    "zfnet": (1_168_032_896, 62_347_040),
    "vgg16": (15_470_264_320, 138_344_128),
    "googlenet": (1_498_376_192, 6_609_344),
    "resnet18": (1_814_073_344, 11_678_912),
    "resnet50": (4_089_184_256, 25_502_912),
    "densenet121": (2_834_161_664, 7_894_208),
    "mobilenet_v2": (300_774_272, 3_469_760),
    "resnext50_32x4d": (4_230_479_872, 24_959_680),
    "yolov2": (14_732_084_224, 50_941_792),
    "dcgan": (640_614_400, 18_851_200),  # the same modules in PyTorch 2.13: weights, and elements times weights
    "unet": (12_071_206_912, 7_756_672),  # likewise
}

# Groups of the 3x3 convolutions, by their channels.
GROUPED = {
    "mobilenet_v2": {width: width for width in (32, 96, 144, 192, 384, 576, 960)},
    "resnext50_32x4d": dict.fromkeys((128, 256, 512, 1024), 32),
}

MIB = 2**20

load_workload = cache(workload_file.load_workload)
"""What is loaded is frozen, and many tests look at the same."""


def convolutions(name):
    return [layer for layer in load_workload(name, batch=1).layers if layer.op.startswith("conv")]


def matmuls(name):
    return [layer for layer in load_workload(name, batch=1).layers if layer.op == "gemm"]


def by_name(name):
    return {layer.name: layer for layer in load_workload(name, batch=1).layers}


def weights(layer):
    if layer.op == "gemm":
        return layer.n * layer.k
    return layer.out_channels * layer.in_channels // layer.groups * prod(layer.kernel)


def total_macs(name, batch=1):
    return sum(layer.macs(batch) for layer in load_workload(name, batch=batch).layers)


def total_weights(name):
    return sum(weights(layer) for layer in load_workload(name, batch=1).layers)


def ifmap_bytes(conv):
    return conv.in_height * conv.in_width * conv.in_channels * 4


def lowered_bytes(conv):
    return conv.out_height * conv.out_width * prod(conv.kernel) * conv.in_channels * 4


def in_shape(conv):
    return conv.in_channels, conv.in_height, conv.in_width


def out_shape(conv):
    return conv.out_channels, conv.out_height, conv.out_width


@pytest.mark.parametrize("name", LAYER_COUNTS)
def test_loads_with_the_right_number_of_layers(name):
    workload = load_workload(name, batch=8)
    assert (workload.name, workload.batch) == (name, 8)
    assert len({layer.name for layer in workload.layers}) == len(workload.layers)
    ops = [layer.op for layer in workload.layers]
    assert (sum(op.startswith("conv") for op in ops), ops.count("gemm")) == LAYER_COUNTS[name]
    assert len(ops) == sum(LAYER_COUNTS[name])


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_totals(name):
    assert (total_macs(name), total_weights(name)) == EXACT[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_work_grows_with_the_batch_and_every_layer_follows_it(name):
    assert total_macs(name, batch=8) == 8 * total_macs(name)
    assert all(layer.m == 8 for layer in load_workload(name, batch=8).layers if layer.op == "gemm")


@pytest.mark.parametrize("name", PUBLISHED_GMACS)
def test_macs_are_the_published_ones(name):
    assert f"{total_macs(name) / 1e9:.2f}" == PUBLISHED_GMACS[name]


def test_parameters_of_the_networks_with_biases_are_the_published_ones():
    for name in ("alexnet", "vgg16"):
        biases = sum(c.out_channels for c in convolutions(name)) + sum(f.n for f in matmuls(name))
        assert total_weights(name) + biases == PUBLISHED_PARAMETERS[name]


def test_parameters_of_the_networks_with_batch_normalisation_are_the_published_ones():
    # A normalisation after every convolution, and a bias in fc.
    for name in ("googlenet", "resnet18", "resnet50", "mobilenet_v2", "resnext50_32x4d"):
        others = 2 * sum(c.out_channels for c in convolutions(name)) + 1000
        assert total_weights(name) + others == PUBLISHED_PARAMETERS[name]

    # The transposed convolutions of the U-Net and its last one have biases instead.
    biased = [c for c in convolutions("unet") if c.name.startswith("upconv") or c.name == "conv"]
    others = sum((1 if c in biased else 2) * c.out_channels for c in convolutions("unet"))
    assert total_weights("unet") + others == PUBLISHED_PARAMETERS["unet"]

    # DenseNet normalises before a convolution, but for conv0, and once more at the end.
    first, *rest = convolutions("densenet121")
    normalised = first.out_channels + sum(c.in_channels for c in rest) + 1024
    assert total_weights("densenet121") + 2 * normalised + 1000 == PUBLISHED_PARAMETERS["densenet121"]


def test_yolov2_is_the_released_network():
    # The released yolov2.weights has 203,934,260 bytes: a header of four 4-byte numbers, then in fp32 the
    # weights and four numbers per normalised channel (every convolution but the last, which has a bias).
    *normalised, last = convolutions("yolov2")
    numbers = total_weights("yolov2") + 4 * sum(c.out_channels for c in normalised) + last.out_channels
    assert 4 * numbers + 16 == 203_934_260
    # darknet's site: 62.94 billion operations (two per multiply-accumulate) at 608x608. Work follows the
    # area; 608 = 19 * 32 and 416 = 13 * 32.
    assert 2 * total_macs("yolov2") * (19 / 13) ** 2 / 1e9 == pytest.approx(62.94, abs=0.01)


def test_zfnet_has_the_sizes_of_the_papers_figure_3():
    assert [(c.in_height, c.out_height, c.out_channels) for c in convolutions("zfnet")] == [
        (224, 110, 96),
        (55, 26, 256),
        (13, 13, 384),
        (13, 13, 384),
        (13, 13, 256),
    ]


def test_table_1_memory_of_vgg16():
    # Zhou et al., IISWC 2021, Table I: fp32 feature maps of one image in MiB, over all 13 convolutions. It
    # says 34.65; the shapes give 34.6445, which becomes 34.65 when rounded to three decimals first.
    convs = convolutions("vgg16")
    ifmaps = sum(map(ifmap_bytes, convs))
    assert ifmaps == 36_327_424
    assert ifmaps / MIB == pytest.approx(34.65, abs=0.006)
    assert f"{sum(map(lowered_bytes, convs)) / MIB:.2f}" == "311.80"


def test_table_1_memory_of_resnet50():
    # The same table: every convolution but the projection shortcuts counts (the 7x7 too; a 1x1 is lowered
    # to as much as it reads), and the stride is in the 3x3 (in the 1x1 it would be 32.54 and 77.09).
    convs = [c for c in convolutions("resnet50") if not c.name.endswith(".downsample")]
    assert len(convs) == 49
    assert f"{sum(map(ifmap_bytes, convs)) / MIB:.2f}" == "34.55"
    assert f"{sum(map(lowered_bytes, convs)) / MIB:.2f}" == "81.11"


def test_gemm_suite_is_three_sweeps_that_share_one_point():
    sizes = [256, 512, 1024, 2048, 4096, 8192]
    grid = {point for v in sizes for point in ((v, 1024, 1024), (1024, v, 1024), (1024, 1024, v))}
    for batch in (1, 8):  # the sizes are fixed, whatever the batch
        gemms = load_workload("gemm_suite", batch=batch).layers
        assert len(gemms) == 16
        assert {(g.m, g.n, g.k) for g in gemms} == grid
        assert all(g.name == f"m{g.m}_n{g.n}_k{g.k}" for g in gemms)
        assert sum(g.macs(batch) for g in gemms) == sum(prod(point) for point in grid)


@pytest.mark.parametrize("name", NETWORKS)
def test_images_are_square_rgb_and_nothing_is_dilated_or_grouped_that_should_not_be(name):
    convs, grouped = convolutions(name), GROUPED.get(name, {})
    size = {"yolov2": 416, "unet": 256}.get(name, 224)
    # A generator makes its image.
    assert in_shape(convs[0]) == (3, size, size) or (name, out_shape(convs[-1])) == ("dcgan", (3, 64, 64))
    for conv in convs:
        assert (conv.in_height, conv.out_height) == (conv.in_width, conv.out_width)
        assert conv.dilation == (1, 1)
        assert conv.groups == (grouped.get(conv.in_channels, 1) if conv.kernel == (3, 3) else 1)


@pytest.mark.parametrize("name", ["alexnet", "zfnet", "vgg16"])
def test_chains_feed_each_layer_from_the_one_before(name):
    convs = convolutions(name)
    for before, after in itertools.pairwise(convs):
        assert before.out_channels == after.in_channels
        assert after.in_height in (before.out_height, pooled(name, before.out_height))
    last = convs[-1]
    fully_connected = matmuls(name)
    assert fully_connected[0].k == last.out_channels * pooled(name, last.out_height, last=True) ** 2
    assert all(before.n == after.k for before, after in itertools.pairwise(fully_connected))


def pooled(name, size, last=False):
    if name == "vgg16":
        return size // 2
    round_up = name == "zfnet" and not last
    return (size - 3 + round_up) // 2 + 1


def test_vgg16_pools_between_blocks_only():
    for before, after in itertools.pairwise(convolutions("vgg16")):
        same_block = before.name[:5] == after.name[:5]
        assert after.in_height == (before.out_height if same_block else before.out_height // 2)


@pytest.mark.parametrize(
    ("name", "stages"),
    [("resnet18", [2, 2, 2, 2]), ("resnet50", [3, 4, 6, 3]), ("resnext50_32x4d", [3, 4, 6, 3])],
)
def test_resnet_blocks_chain_and_their_shortcuts_fit(name, stages):
    depth = 2 if name == "resnet18" else 3
    layers = by_name(name)
    assert out_shape(layers["conv1"]) == (64, 112, 112)
    current, seen = (64, 56, 56), {"conv1", "fc"}  # after the max-pool
    for stage, blocks in enumerate(stages, 1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            block_in = current
            for i in range(1, depth + 1):
                conv = layers[f"{prefix}.conv{i}"]
                assert in_shape(conv) == current
                # The first 3x3 of a block strides.
                strided = stage > 1 and block == 0 and i == depth - 1
                assert tuple(conv.stride) == ((2, 2) if strided else (1, 1))
                current = out_shape(conv)
                seen.add(conv.name)
            shortcut = layers.get(f"{prefix}.downsample")
            assert (shortcut is None) == (block_in == current)
            if shortcut is not None:
                assert (in_shape(shortcut), out_shape(shortcut)) == (block_in, current)
                seen.add(shortcut.name)
    assert current == (layers["fc"].k, 7, 7)
    assert seen == set(layers)


def test_googlenet_modules_concatenate_into_the_next():
    layers = by_name("googlenet")
    channels, size = layers["conv3"].out_channels, 28
    assert [layers[c].out_channels for c in ("conv1", "conv2", "conv3")] == [64, 64, 192]
    for module in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        prefix = f"inception{module}"
        size = {"3": 28, "4": 14, "5": 7}[module[0]]
        for branch in ("branch1", "branch2.0", "branch3.0", "branch4.1"):
            assert in_shape(layers[f"{prefix}.{branch}"]) == (channels, size, size)
        for branch in ("branch2", "branch3"):
            assert in_shape(layers[f"{prefix}.{branch}.1"]) == out_shape(layers[f"{prefix}.{branch}.0"])
            assert tuple(layers[f"{prefix}.{branch}.1"].kernel) == (3, 3)
        ends = [layers[f"{prefix}.{end}"] for end in ("branch1", "branch2.1", "branch3.1", "branch4.1")]
        assert {out_shape(end)[1:] for end in ends} == {(size, size)}
        channels = sum(end.out_channels for end in ends)
    assert channels == layers["fc"].k == 1024


def test_densenet121_grows_by_32_and_halves_at_transitions():
    layers = by_name("densenet121")
    channels, size = 64, 56
    for block, count in enumerate([6, 12, 24, 16], 1):
        for i in range(1, count + 1):
            bottleneck, growth = (layers[f"features.denseblock{block}.denselayer{i}.conv{j}"] for j in (1, 2))
            assert in_shape(bottleneck) == (channels, size, size)
            assert out_shape(bottleneck) == in_shape(growth) == (128, size, size)
            assert out_shape(growth) == (32, size, size)
            channels += 32
        if block < 4:
            transition = layers[f"features.transition{block}.conv"]
            assert in_shape(transition) == (channels, size, size)
            assert out_shape(transition) == (channels // 2, size, size)
            channels, size = channels // 2, size // 2
    assert layers["classifier"].k == channels == 1024


def test_yolov2_backbone_chains_and_the_passthrough_joins():
    layers = by_name("yolov2")
    backbone = [layers[f"conv{i}"] for i in range(1, 21)]
    for before, after in itertools.pairwise(backbone):
        assert before.out_channels == after.in_channels
        assert after.in_height in (before.out_height, before.out_height // 2)
    assert in_shape(layers["passthrough"]) == out_shape(layers["conv13"]) == (512, 26, 26)
    assert layers["passthrough"].out_channels == 64
    assert in_shape(layers["conv21"]) == (64 * 4 + layers["conv20"].out_channels, 13, 13) == (1280, 13, 13)
    assert in_shape(layers["detection"]) == out_shape(layers["conv21"])
    assert out_shape(layers["detection"]) == (5 * (5 + 80), 13, 13)


def test_mobilenet_v2_blocks_expand_filter_and_project():
    """Table 2 of the paper: expansion, output channels, blocks and the stride of the first."""
    layers = by_name("mobilenet_v2")
    current, number = out_shape(layers.pop("features.0.0")), 1
    for factor, channels, blocks, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            convs = [layers.pop(key) for key in [*layers] if key.startswith(f"features.{number}.")]
            *expand, depthwise, project = convs
            assert len(expand) == (factor > 1)
            for conv in convs:
                assert in_shape(conv) == current
                current = out_shape(conv)
            inside = factor * convs[0].in_channels
            assert depthwise.groups == depthwise.in_channels == depthwise.out_channels == inside
            assert depthwise.stride == ((stride, stride) if block == 0 else (1, 1))
            assert {prod(conv.kernel) for conv in (*expand, project)} == {1}
            number += 1
        assert current[0] == channels
    assert in_shape(layers["features.18.0"]) == current == (320, 7, 7)
    assert layers["classifier.1"].k == layers["features.18.0"].out_channels == 1280
    assert {*layers} == {"features.18.0", "classifier.1"}


def test_the_generator_doubles_a_map_four_times_and_halves_its_channels():
    layers = [layer for layer in load_workload("dcgan", batch=8).layers if layer.op == "conv_transpose2d"]
    project = by_name("dcgan")["project"]
    assert (project.k, project.n) == (100, 4 * 4 * 1024)
    assert in_shape(layers[0]) == (1024, 4, 4)
    assert [out_shape(layer) for layer in layers] == [(512, 8, 8), (256, 16, 16), (128, 32, 32), (3, 64, 64)]
    assert all(in_shape(after) == out_shape(before) for before, after in itertools.pairwise(layers))


def test_the_deformable_stage_has_offsets_for_every_tap_and_group():
    layers = by_name("dcn_res5")
    assert len(layers) == 13
    # Those of layer4 of ResNet-101, as resnet50 has it but for its maps, and of the convolutions for offsets.
    stage = sum(weights(layer) for name, layer in by_name("resnet50").items() if name.startswith("layer4."))
    assert total_weights("dcn_res5") == stage + 3 * 512 * 72 * 9
    current = in_shape(layers["res5a_branch2a"])
    assert current == (1024, 38, 63) == in_shape(layers["res5a_branch1"])
    for block in "abc":
        chain = [layers[f"res5{block}_branch2{part}"] for part in "abc"]
        for layer in chain:
            assert in_shape(layer) == current
            current = out_shape(layer)
        offset, (_, sampled, _) = layers[f"res5{block}_branch2b_offset"], chain
        assert sampled.op == "deform_conv2d"
        assert out_shape(offset) == (2 * 9 * sampled.offset_groups, sampled.out_height, sampled.out_width)
        assert in_shape(offset) == in_shape(sampled)
    assert current == (2048, 38, 63) == out_shape(layers["res5a_branch1"])


def test_the_u_net_goes_down_and_up_and_joins_maps_of_one_size():
    layers = by_name("unet")
    assert in_shape(layers["enc1conv1"]) == (3, 256, 256)
    assert out_shape(layers["conv"]) == (1, 256, 256)
    below = layers["bottleneckconv2"]
    for level in (4, 3, 2, 1):
        down, up, joined = (layers[name] for name in (f"enc{level}conv2", f"upconv{level}", f"dec{level}conv1"))
        assert in_shape(up) == out_shape(below)
        assert out_shape(up) == out_shape(down)
        assert in_shape(joined) == (2 * down.out_channels, down.out_height, down.out_width)
        below = layers[f"dec{level}conv2"]
        assert in_shape(below) == out_shape(joined)
    assert in_shape(layers["conv"]) == out_shape(below)


# ---- as graphs

GRAPHS = [name for name in NETWORKS if name in EXACT]

# Layers of the vector unit, by hand: of torchvision's modules and of the papers' figures.
VECTOR_LAYERS = {
    "alexnet": {"relu": 7, "pool2d": 3},
    "zfnet": {"relu": 7, "pool2d": 3},
    "vgg16": {"relu": 15, "pool2d": 5},
    "googlenet": {"relu": 57, "pool2d": 4 + 9 + 1},
    "resnet18": {"relu": 1 + 2 * 8, "add": 8, "pool2d": 2},
    "resnet50": {"relu": 1 + 3 * 16, "add": 16, "pool2d": 2},
    "resnext50_32x4d": {"relu": 1 + 3 * 16, "add": 16, "pool2d": 2},
    "densenet121": {"relu": 1 + 2 * 58 + 3 + 1, "scale_shift": 58 + 3 + 1, "pool2d": 1 + 3 + 1},
    "mobilenet_v2": {"clip": 2 * 17 - 1 + 2, "add": 10, "pool2d": 1},
    "yolov2": {"leaky_relu": 22, "pool2d": 5},
    "dcgan": {"relu": 4, "tanh": 1},
    "unet": {"relu": 18, "pool2d": 4, "sigmoid": 1},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_array_alone_is_timed_unless_all_is_asked_for_or_the_machine_fuses(name):
    usual, whole = load_workload(name), load_workload(name, ops="all")
    vector = Counter(layer.op for layer in whole.layers if layer.unit == "vector")
    assert vector == VECTOR_LAYERS[name]
    assert whole.with_asked(None, "array") == usual
    assert usual.entire == whole
    assert whole.with_ops("array") == replace(usual, entire=None) == load_workload(name, ops="array")
    assert dict(usual.not_timed) == {**dict(whole.not_timed), **vector}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_layer_but_the_last_is_read(name):
    whole = load_workload(name, ops="all")
    read = {name for inputs in whole.inputs().values() for name in inputs}
    assert read == {"input", *(layer.name for layer in whole.layers[:-1])}
    assert whole.inputs()[whole.layers[0].name] == ("input",)


def test_additions_and_concatenations_of_graphs():
    resnet, dense = (load_workload(name, ops="all").inputs() for name in ("resnet50", "densenet121"))
    assert resnet["layer2.0.add"] == ("layer2.0.conv3", "layer2.0.downsample")
    assert resnet["layer2.0.downsample"] == ("layer1.2.relu3",)
    assert resnet["layer2.1.add"] == ("layer2.1.conv3", "layer2.0.relu3")
    joined = [f"features.denseblock1.denselayer{i}.conv2" for i in range(1, 4)]
    assert dense["features.denseblock1.denselayer4.norm1"] == ("features.pool0", *joined)
    yolo = load_workload("yolov2", ops="all").sources()["conv21"]
    assert yolo == (Source(("leaky_passthrough", "leaky20"), direct=False),)


def test_resnet50_is_the_graph_of_the_onnx_model():
    """The onnx package's has its stride in the same place, other names, and a softmax; so shapes tell of edges."""
    model = load_workload(Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx")
    shipped = load_workload("resnet50", ops="all")

    def edges(work):
        shapes = {"input": None, "gpu_0/data_0": None, **{layer.name: layer.shape_key for layer in work.layers}}
        left = {layer.name for layer in work.layers if layer.op != "softmax"}
        return Counter(
            (shapes[name], tuple(sorted(str(shapes[each]) for each in read)))
            for name, read in work.inputs().items()
            if name in left
        )

    assert edges(model) == edges(shipped)
