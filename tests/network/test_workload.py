import time
from dataclasses import FrozenInstanceError, asdict
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import cases, paddings
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.input.source import shipped
from tpusim.machines.tpu import event
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.workload import Workload
from tpusim.result.load import parse_result
from tpusim.result.vocabulary.runs import left_out

SMALL = st.integers(1, 12)
PAIRS = st.tuples(SMALL, SMALL)


@st.composite
def convolutions(draw, name="conv"):
    groups = draw(st.integers(1, 4))
    kernel, dilation = draw(PAIRS), draw(PAIRS)
    padding = draw(paddings(5))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    added = reach if isinstance(padding, str) else np.add(padding[:2], padding[-2:])
    least = [max(1, r - int(p)) for r, p in zip(reach, added, strict=True)]
    return Conv2d(
        name=name,
        in_channels=groups * draw(SMALL),
        in_height=draw(st.integers(least[0], least[0] + 20)),
        in_width=draw(st.integers(least[1], least[1] + 20)),
        out_channels=groups * draw(SMALL),
        kernel=kernel,
        stride=draw(PAIRS),
        padding=padding,
        dilation=dilation,
        groups=groups,
    )


def write(path, name, layers, **more):
    entries = [{"op": layer.op, **asdict(layer)} for layer in layers]
    data = yaml.safe_dump({"name": name, "layers": [as_yaml(entry) for entry in entries], **more})
    path.write_text(data, encoding="utf-8")
    return path


def as_yaml(entry):
    return {key: list(value) if isinstance(value, tuple) else value for key, value in entry.items()}


@settings(max_examples=cases(1 / 2), deadline=None)
@given(convs=st.lists(convolutions(), max_size=4), m=SMALL, n=SMALL, k=SMALL, batch=SMALL)
def test_a_file_loads_back_equal(tmp_path_factory, convs, m, n, k, batch):
    renamed = [Conv2d(**{**asdict(conv), "name": f"conv{i}"}) for i, conv in enumerate(convs)]
    layers = (*renamed, Gemm("fc", m, n, k))
    path = write(tmp_path_factory.getbasetemp() / "round_trip.yaml", "mine", layers, source="here")
    assert load_workload(path, batch) == Workload("mine", batch, layers, "here")


@settings(deadline=None, max_examples=cases(usual=40))
@given(convolutions(), SMALL)
def test_output_size_counts_the_kernel_positions(conv, batch):
    for axis, (size, out) in enumerate([(conv.in_height, conv.out_height), (conv.in_width, conv.out_width)]):
        reach = conv.dilation[axis] * (conv.kernel[axis] - 1) + 1
        padded = size + sum(conv.pads[axis])
        assert out == len(range(0, padded - reach + 1, conv.stride[axis])) >= 1
    assert conv.outputs(batch) == batch * conv.out_channels * conv.out_height * conv.out_width
    assert conv.macs(batch) * conv.groups == conv.outputs(batch) * conv.in_channels * conv.kernel[0] * conv.kernel[1]


def test_an_int_stands_for_both_of_a_pair_and_defaults_hold(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text(
        "name: n\nlayers:\n"
        "- {name: a, op: conv2d, in_channels: 3, in_height: 9, in_width: 8, out_channels: 2, kernel: 3}\n"
        "- {name: b, op: conv2d, in_channels: 3, in_height: 9, in_width: 8, out_channels: 2, kernel: [3, 2],"
        " stride: 2, padding: [1, 0], dilation: [1, 2]}\n",
        encoding="utf-8",
    )
    first, second = load_workload(path).layers
    assert first == Conv2d("a", 3, 9, 8, 2, (3, 3), (1, 1), (0, 0), (1, 1), 1)
    assert second == Conv2d("b", 3, 9, 8, 2, (3, 2), (2, 2), (1, 0), (1, 2), 1)


def test_m_batch_is_the_batch(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text("name: n\nlayers: [{name: fc, op: gemm, m: batch, n: 10, k: 20}]\n", encoding="utf-8")
    assert load_workload(path).layers == (Gemm("fc", 8, 10, 20),)
    assert load_workload(path, batch=3).layers[0].macs(3) == 3 * 10 * 20


def test_merge_keys_fill_in_what_a_layer_leaves_out(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text(
        "name: n\nlayers:\n"
        "- &a {name: a, op: conv2d, in_channels: 3, in_height: 9, in_width: 8, out_channels: 2, kernel: 3}\n"
        "- {<<: *a, name: b, kernel: 5}\n",
        encoding="utf-8",
    )
    first, second = load_workload(path).layers
    assert second == Conv2d(**{**asdict(first), "name": "b", "kernel": (5, 5)})


@pytest.mark.parametrize("name", shipped("workloads"))
def test_shipped_workloads_load(name):
    workload = load_workload(name, batch=4)
    assert (workload.name, workload.batch) == (name, 4)
    assert all(layer.macs(4) > 0 for layer in workload.layers if layer.unit == "array")
    assert isinstance(hash(workload), int)


@pytest.mark.parametrize("name", ["tiny", "resnet18", "gpt2_small"])
def test_equal_workloads_have_one_hash(name):
    assert hash(load_workload(name, batch=4)) == hash(load_workload(name, batch=4))


def test_layers_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Gemm("fc", 1, 2, 3).m = 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Gemm("fc", 0, 1, 1), "m: 0 is out of range"),
        (lambda: Gemm("", 1, 1, 1), "name: .*write some text"),
        (lambda: Gemm("fc", 1, 1), "k: required key is missing; add k:"),
        (lambda: Gemm("fc", 1, 1, 1, bias=True), 'bias: unknown key "bias"; allowed: name, m, n, k'),
        (lambda: Gemm("fc", "batch", 1, 1), 'm: "batch" is not a number'),
        (lambda: Conv2d("c", 1, 1, 1, 1, (3, 1)), "kernel: .*spans 3 in height"),
        (lambda: Conv2d("c", 1, 1, 1, 1, 3), "kernel: the kernel spans 3 in height"),
        (lambda: Conv2d("c", 1, 1, 1, 1, 3.0), "kernel: 3.0 is not a size"),
        (lambda: Conv2d("c", 1, 1, 1, 1, True), "kernel: true is a truth value"),
        (lambda: Gemm("fc", True, 1, 1), "m: true is a truth value"),
        (lambda: Gemm("fc", np.True_, 1, 1), "m: .* is not a number"),
        (lambda: Gemm("fc", np.float64(4), 1, 1), "m: 4.0 is not a whole number; write 4"),
        (lambda: Gemm("fc", np.int64(0), 1, 1), "m: 0 is out of range"),
        (lambda: Gemm("fc", np.array([1, 2]), 1, 1), "m: .* is not a number"),
        (lambda: Workload("n", 1, ()), r"layers: no layers; give at least one, e.g. \[Gemm\("),
        (lambda: Workload("n", 1, Gemm("fc", 1, 1, 1)), "layers: .* is not a sequence of layers; give a list or a tu"),
        (lambda: Workload("n", 0, (Gemm("fc", 1, 1, 1),)), "batch: 0 is out of range"),
        (lambda: Workload("n", 1, (Gemm("fc", 1, 1, 1),) * 2), r'layers\[1\].name: the name "fc" is taken'),
    ],
)
def test_python_construction_is_validated(build, words):
    with pytest.raises(InputError, match=words):
        build()


def test_python_takes_integers_of_every_type_and_one_for_both_axes():
    work = Workload("n", np.int32(2), [Gemm("fc", np.int64(4), np.uint8(1), 1), Conv2d("c", 3, 8, 8, 4, np.int64(3))])
    assert work == Workload("n", 2, (Gemm("fc", 4, 1, 1), Conv2d("c", 3, 8, 8, 4, (3, 3))))
    assert {type(size) for layer in work.layers for size in vars_of(layer) if size != "computed"} == {int}
    assert Conv2d("c", 3, 8, 8, 4, 3, stride=2) == Conv2d("c", 3, 8, 8, 4, (3, 3), stride=(2, 2))
    assert load_workload("resnet18", np.int64(2)) == load_workload("resnet18", 2)


def vars_of(layer):
    sizes = [value for key, value in asdict(layer).items() if key != "name"]
    return chain.from_iterable(size if isinstance(size, tuple) else (size,) for size in sizes)


def test_loading_160_layers_and_a_machine_costs_few_times_what_parsing_does(tmp_path):
    """Both are timed in turn, so that a busy machine slows both."""
    layers = [Conv2d(f"layer{i}", 64, 56, 56, 64, (3, 3), padding=(1, 1)) for i in range(160)]
    path = write(tmp_path / "deep.yaml", "deep", layers)
    text = path.read_text()
    ratios = []
    for _ in range(3):
        start = time.process_time()
        for _ in yaml.parse(text, Loader=yaml.CSafeLoader):
            pass
        parsed = time.process_time()
        load_workload(path)
        load_hardware("tpu_v2")
        ratios.append((time.process_time() - parsed) / (parsed - start))
    assert min(ratios) < 12


# ---- layers that come several times, and sizes worked out


def network(tmp_path, layers):
    path = tmp_path / "net.yaml"
    path.write_text(f"name: net\nlayers:\n{layers}", encoding="utf-8")
    return path


def test_a_count_makes_as_many_layers(tmp_path):
    path = network(
        tmp_path, "- {name: a, op: gemm, m: 2, n: 3, k: 4, count: 3}\n- {name: b, op: gemm, m: 1, n: 1, k: 1}\n"
    )
    assert load_workload(path).layers == (
        *(Gemm(f"a_{number}", 2, 3, 4) for number in (1, 2, 3)),
        Gemm("b", 1, 1, 1),
    )
    once = network(tmp_path, "- {name: a, op: gemm, m: 2, n: 3, k: 4, count: 1}\n")
    assert load_workload(once).layers == (Gemm("a", 2, 3, 4),)


def test_a_counted_layer_is_simulated_once_and_counts_in_the_total(tmp_path, monkeypatch):
    path = network(tmp_path, "- {name: a, op: gemm, m: 2, n: 3, k: 4, count: batch * 2}\n")
    sound, ran = event.run, []
    monkeypatch.setattr(event, "run", lambda *arguments: ran.append(1) or sound(*arguments))
    hardware = load_hardware("tiny_4x4", {"mapping.search": "estimate"})
    result = simulate(load_workload(path, batch=3), hardware, check=False)
    assert len(ran) == 1
    assert len(result.layers) == 6
    assert result.total.cycles == 6 * result.layers[0].cycles
    assert result.total.macs == 6 * 2 * 3 * 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch*197", 788),
        ("2 * (batch + 3) - 1", 13),
        ("197//batch", 49),
        ("batch", 4),
        ("-batch + 6", 2),
        ("7", 7),
        ('"-(-7//2)"', 4),
        ('"-(-batch)"', 4),
        ('"(100)"', 100),
        ("(" * 99 + "1" + ")" * 99, 1),
        ("1_000*2", 2000),
    ],
)
def test_sizes_are_worked_out(text, value, tmp_path):
    path = network(tmp_path, f"- {{name: fc, op: gemm, m: {text}, n: 1, k: 1}}\n")
    assert load_workload(path, batch=4).layers == (Gemm("fc", value, 1, 1),)


def test_sizes_of_pairs_are_worked_out(tmp_path):
    sizes = "in_channels: 2*3, in_height: 9, in_width: 9, out_channels: 1, kernel: [1+2, 4//2], padding: 1*1"
    (conv,) = load_workload(network(tmp_path, f"- {{name: c, op: conv2d, {sizes}}}\n")).layers
    assert conv == Conv2d("c", 6, 9, 9, 1, (3, 2), padding=(1, 1))


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("m", "bach*197", """m: layer "fc": "bach*197": no size is called 'bach'; did you mean batch?"""),
        ("m", "batch/2", '"batch/2": / is not allowed, // divides whole numbers'),
        ("m", "batch**9", '"batch**9": it is no sum of whole numbers; write whole numbers, batch, + - *'),
        ("m", "batch*", '"batch*": it is no sum'),
        ("m", "batch x 2", '"batch x 2": it is no sum'),
        ("m", "batch(2)", '"batch(2)": it is no sum'),
        ("m", "2.5*batch", '"2.5*batch": it is no sum'),
        ("m", "batch//0", '"batch//0" divides by zero'),
        ("m", "batch - 8", '"batch - 8": 0 is out of range; write a whole number, 1 to'),
        ("m", "9" * 30 + "*batch", "999992 is out of range"),
        ("m", "+".join(["batch"] * 60), "at most 200 characters; this has 359"),
        ("m", "__import__('os')", "is not a number"),
        ("m", "'7'", "is text because it is in quotes; write 7 without them"),
        ("m", "'-7'", "is text because it is in quotes; write -7 without them"),
        ("m", "' 7 '", "is not a number"),
        ("m", "'-(7)'", '"-(7)": -7 is out of range; write a whole number, 1 to'),
        ("m", "'(0)'", '"(0)": 0 is out of range; write a whole number, 1 to'),
        ("m", "-" * 198 + "0", "0 is out of range"),
        ("m", "0x10", '"0x10" is not a number'),
        ("m", "0x10*2", '"0x10*2": it is no sum of whole numbers; write whole numbers, batch, + - *'),
        ("m", "1e3*2", '"1e3*2": it is no sum of whole numbers'),
        ("m", "(2.5)", '"(2.5)": it is no sum of whole numbers'),
        ("m", "not batch", '"not batch": it is no sum of whole numbers; write whole numbers, batch, + - *'),
        ("m", "a" * 60 + "!", "is not a number"),
        ("count", "0", 'count: layer "fc": 0 is out of range; write a whole number, 1 to 100000'),
        ("count", "many", "count: "),
    ],
)
def test_what_cannot_be_worked_out_is_told_with_its_line(key, text, says, tmp_path):
    sizes = {"m": "1", "n": "1", "k": "1", key: text}
    entry = ", ".join(f"{name}: {value}" for name, value in sizes.items())
    path = network(tmp_path, f"- {{name: fc, op: gemm, {entry}}}\n")
    with pytest.raises(InputError) as error:
        load_workload(path)
    assert f"net.yaml:3: layers[0].{key}: " in str(error.value)
    assert says in str(error.value)


def test_a_wrong_count_is_told_beside_a_wrong_size(tmp_path):
    with pytest.raises(InputError) as error:
        load_workload(network(tmp_path, "- {name: fc, op: gemm, m: many, n: 1, k: 1, count: 0}\n"))
    assert [str(each.where).partition("layers[0].")[2] for each in error.value.problems] == ["m", "count"]


def test_counted_names_must_differ_and_layers_end_somewhere(tmp_path):
    fc = "- {name: %s, op: gemm, m: 1, n: 1, k: 1, count: %d}\n"
    with pytest.raises(InputError, match=r'net.yaml:4: layers\[1\].name: the name "a_2" is taken by layers\[0\]'):
        load_workload(network(tmp_path, fc % ("a", 3) + fc % ("a_2", 1)))
    with pytest.raises(InputError, match=r"net.yaml:2: layers: over 100,000 layers, counts included"):
        load_workload(network(tmp_path, fc % ("a", 100_000) + fc % ("b", 1)))


# ---- ops that take no time


def test_a_file_says_which_ops_of_the_network_are_no_layers(tmp_path):
    path = tmp_path / "net.yaml"
    layers = "layers: [{name: fc, op: gemm, m: 2, n: 3, k: 4}]\n"
    path.write_text(f"name: n\nnot_timed: {{Relu: 49, Add: 2}}\nnot_known: {{LSTM: 1}}\n{layers}")
    work = load_workload(path)
    assert (work.not_timed, work.not_known) == ((("Relu", 49), ("Add", 2)), (("LSTM", 1),))
    result = simulate(work, load_hardware("tiny_4x4"))
    assert (result.not_timed, result.not_known) == ({"Relu": 49, "Add": 2}, {"LSTM": 1})
    assert parse_result(result.to_json()) == result
    assert "not timed: Relu 49, Add 2" in result._repr_html_()
    assert left_out(work.not_timed, work.not_known) == (
        "51 ops of the network not timed: Relu 49, Add 2. 1 op not known, whose work is missing, even if they are "
        "convolutions or products: LSTM 1."
    )
    assert left_out({"Concat": 2, "Log": 1, "Reshape": 1}.items(), ()) == (
        "1 op of the network not timed: Log 1. 3 ops of no time, as layers read their results where the operands lie: "
        "Concat 2, Reshape 1."
    )
    assert not {"not_timed", "not_known"} & simulate(load_workload("tiny"), load_hardware("tiny_4x4")).to_dict().keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not_timed: 49", "2: not_timed: 49 is no list of ops; write how often each comes, such as {Relu: 49}"),
        ("not_timed: Relu", "2: not_timed: "),
        ("not_timed: {Relu: many}", '2: not_timed.Relu: "many" is not a number'),
        ("not_timed: {Relu: 0}", "2: not_timed.Relu: 0 is out of range"),
        ("not_known: [Relu]", '2: not_known: ["Relu"] is no list of ops'),
    ],
)
def test_what_is_no_count_of_ops_is_told(tmp_path, text, says):
    path = tmp_path / "net.yaml"
    path.write_text(f"name: n\n{text}\nlayers: [{{name: fc, op: gemm, m: 2, n: 3, k: 4}}]\n")
    with pytest.raises(InputError) as error:
        load_workload(path)
    assert says in str(error.value)


def test_ops_of_the_array_alone(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    relu = "{name: relu, op: relu, channels: 3, count: 2}"
    path.write_text(f"name: net\nnot_timed: {{Softmax: 1}}\nlayers: [{{name: fc, op: gemm, m: 1, n: 1, k: 1}}, {relu}]")
    work = load_workload(path, ops="array")
    assert [layer.name for layer in work.layers] == ["fc"]
    assert dict(work.not_timed) == {"Softmax": 1, "relu": 2}
    assert len(load_workload(path).layers) == 3
    path.write_text(f"name: net\nlayers: [{relu}]")
    with pytest.raises(InputError, match="net has no layer of the array; give ops all"):
        load_workload(path, ops="array")


def test_a_file_says_which_ops_are_timed_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    layers = "[{name: fc, op: gemm, m: 1, n: 1, k: 1}, {name: r, op: relu, channels: 1}]"
    path.write_text(f"name: net\nops: array\nlayers: {layers}")
    assert len(load_workload(path).layers) == len(load_workload(path, ops="array").layers) == 1
    assert len(load_workload(path, ops="all").layers) == 2
    path.write_text(f"name: net\nops: vector\nlayers: {layers}")
    with pytest.raises(InputError, match=r"net.yaml:2: ops: unknown ops 'vector'; there is all, or array"):
        load_workload(path)
