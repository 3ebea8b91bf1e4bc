"""What comes from other tools, or belongs elsewhere: what to write or to do instead, in one message."""

import pytest

from tests.input.test_errors_in_files import HARDWARE, WORKLOAD, assert_says, refused
from tpusim import load_hardware, load_workload
from tpusim.base.errors import InputError


@pytest.mark.parametrize(
    ("op", "words"),
    [
        *((op, "write {name: fc, op: gemm, m: batch, n: 1000, k: 512}: m rows of input, n outputs, k inputs; ops: ")
          for op in ("matmul", "MatMul", "linear", "nn.Linear", "dense", "fc", "aten::linear", "fully_connected")),
        *((op, "write op: conv2d, with in_channels") for op in ("conv", "Conv", "pointwise_conv")),
        *((op, "write a group a channel: {name: dw, op: conv2d, ... groups: 32}; ops: ")
          for op in ("depthwise", "DepthwiseConv2D", "dwconv", "depthwise_conv")),
        *((op, "leave this layer out; it takes no time in this version; ops: ")
          for op in ("LogSoftmax", "Concat", "nn.Tanhshrink", "LogSigmoid", "GroupNorm")),
        *((op, "write op: pool2d, with kind: max or average") for op in ("maxpool", "nn.MaxPool2d", "GlobalAvgPool")),
        *((op, "write op: scale_shift, with channels") for op in ("BatchNormalization", "bn")),
        *((op, "write op: add, with channels") for op in ("residual", "Eltwise")),
        *((op, "write op: cross_entropy, with channels") for op in ("SoftmaxCrossEntropyLoss", "nn.CrossEntropyLoss")),
        *((op, "write op: pool2d_gradient, with kind") for op in ("MaxPoolGrad", "select_and_scatter")),
        ("LayerNormBackward", "write op: layer_norm_gradient, with channels"),
        ("relu6", "write op: clip, with channels, height, width, min and max"),
        ("nn.ReLU", "write op: relu, with channels"),
        ("nn.Hardswish", "write op: hard_swish, with channels"),
        ("nn.Softmax", "write op: softmax, with channels"),
        ("torch.topk", "write op: top_k, with channels"),
        ("causal_softmax", "write op: softmax, with channels (keys), images (the rows) and queries"),
        ("LayerNorm", "write op: layer_norm, with channels"),
        *((op, "write op: rms_norm, with channels") for op in ("nn.RMSNorm", "RMSNormalization", "t5_norm_rms")),
        *((op, "write op: swiglu, with channels") for op in ("SwiGLUActivation", "silu_and_mul")),
        *((op, "write op: geglu, with channels") for op in ("GeGLU_v2", "gelu_tanh_and_mul")),
        ("logits_soft_capping", "write op: soft_cap, with channels"),
        *((op, "write op: rotary, with channels") for op in ("RotaryEmbedding", "apply_rotary_pos_emb", "rope")),
        ("nn.GELU", "write op: gelu, with channels"),
        ("Swish", "write op: silu, with channels"),
        ("torch.tanh", "write op: tanh"),
        ("nn.Sigmoid", "write op: sigmoid"),
        ("torch.divide", "write op: div"),
        *((op, "write op: embedding, with channels") for op in ("nn.Embedding", "EmbeddingBag")),
        ("torch.permute", "write op: transpose, with channels"),
        ("nn.ZeroPad2d", "write op: pad, with channels"),
        ("Relu", "did you mean relu?"),
        ("nn.Conv1d", "write op: conv1d, with in_channels, in_length"),
        *((op, "write op: conv_transpose2d, with in") for op in ("nn.ConvTranspose2d", "deconv", "ConvTranspose")),
        ("nn.ConvTranspose3d", "write the product it is: op: gemm"),
        ("conv3d", "write the product it is: op: gemm"),
        ("self_attention", "write op: attention, with inputs: [queries, keys, values]"),
        ("LSTM", "write its gates as a product: op: gemm"),
        ("GEMM", "did you mean gemm? ops: conv2d, conv1d, conv_transpose2d, deform_conv2d, gemm"),
        ("gem", "did you mean gemm? ops: conv2d, conv1d, conv_transpose2d, deform_conv2d, gemm"),
        ("xyzzy", 'unknown op "xyzzy"; ops: conv2d, conv1d, conv_transpose2d, deform_conv2d, gemm'),
    ],
)  # fmt: skip
def test_operations_of_other_tools(tmp_path, op, words):
    path = tmp_path / "net.yaml"
    problem, *_ = refused(load_workload, path, WORKLOAD.replace("op: gemm", f"op: {op}")).problems
    assert_says(problem, f"{path}:11: layers[1].op", words)


def example_in(text: str, start: str) -> str:
    """The flow of YAML that begins with `start`, to its last brace."""
    found = text[text.index(start) :]
    ends = (end for end in range(1, len(found) + 1) if found.count("{", 0, end) == found.count("}", 0, end))
    return found[: next(ends)]


@pytest.mark.parametrize("op", ["matmul", "depthwise"])
def test_what_is_to_be_written_instead_of_an_operation_can_be_read(tmp_path, op):
    path = tmp_path / "net.yaml"
    (problem,) = refused(load_workload, path, f"name: a\nlayers: [{{name: b, op: {op}}}]").problems
    path.write_text(f"name: a\nlayers: [{example_in(problem.message, '{name')}]")
    assert len(load_workload(str(path)).layers) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("net.PT", "models of other tools are not read; write its convolutions and matrix products as YAML"),
        ("net.py", "models of other tools are not read"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_files_of_other_tools(tmp_path, name, words, there):
    path = tmp_path / name
    if there:
        path.write_bytes(b"\x08\x07 pytorch, 1, 2, 3\n")
    for load in (load_workload, load_hardware):
        with pytest.raises(InputError) as caught:
            load(str(path))
        (problem,) = caught.value.problems
        assert_says(problem, str(path), words)


@pytest.mark.parametrize("name", ["model.onnx", "topology.csv"])
def test_networks_of_other_tools_are_no_machines(name):
    with pytest.raises(InputError, match=f"{name}: .* is a network; tpusim run takes it, and tpusim import makes"):
        load_hardware(name)


def test_what_is_to_be_written_instead_of_a_file_can_be_read(tmp_path):
    with pytest.raises(InputError) as caught:
        load_workload("net.pt")
    path = tmp_path / "net.yaml"
    path.write_text(example_in(str(caught.value), "{name"))
    assert len(load_workload(str(path)).layers) == 2


@pytest.mark.parametrize(
    ("load", "name", "words"),
    [
        (load_workload, "mobilenet_v3", "shipped: alexnet ... write your own, beginning with a copy of"),
        (load_workload, "ResNet-50", "did you mean resnet50"),
        (load_workload, "tpu_v2", "tpu_v2 is hardware: tpusim run WORKLOAD --hardware tpu_v2"),
        (load_workload, "array_size", "array_size is a sweep: tpusim sweep array_size"),
        (load_hardware, "tpu", "did you mean tpu_v2 or tpu_v2_banked or tpu_v2_core? shipped: a100"),
        (load_hardware, "rtx4090", "each has a TPU's matrix unit or a GPU's tensor cores; change a field of one, "
         "such as --hardware tpu_v2 --set array.size=256, or write your own, beginning with a copy of"),
        (load_hardware, "resnet18", "resnet18 is a workload: tpusim run resnet18"),
    ],
)  # fmt: skip
def test_names_that_are_not_shipped(load, name, words):
    with pytest.raises(InputError) as caught:
        load(name)
    assert_says(caught.value.problems[0], name, words)
    if "copy of" in words:
        assert load(str(caught.value).rpartition(" ")[2])


def test_files_that_belong_elsewhere(tmp_path):
    path = tmp_path / "file.yaml"
    for load, text, words in (
        (load_hardware, WORKLOAD, "is a workload, not hardware; use it with tpusim run "),
        (load_workload, HARDWARE, "is hardware, not a workload; use it with tpusim run WORKLOAD --hardware "),
        (
            load_workload,
            "workloads: [vgg16]\naxes: {batch: [1]}",
            "is a sweep, not a workload; use it with tpusim",
        ),
        (
            load_workload,
            '{"tpusim": "1", "total": {}, "layers": []}',
            "is the result of a run; tpusim report, plot",
        ),
    ):
        (problem,) = refused(load, path, text).problems
        assert_says(problem, str(path), words)
