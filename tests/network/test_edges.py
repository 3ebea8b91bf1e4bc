"""Files whose layers say what they read: edges, sizes that follow from them, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tpusim import load_workload
from tpusim.base.errors import InputError
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.elementwise import Relu
from tpusim.network.workload import Source, Workload

NET = """
  - {name: conv1, op: conv2d, in_channels: 3, in_height: 16, in_width: 16, out_channels: 8, kernel: 3, padding: 1}
  - {name: relu1, op: relu}
  - {name: a, op: conv2d, out_channels: 8, kernel: 1}
  - {name: b, op: conv2d, inputs: [relu1], out_channels: 4, kernel: 3, padding: 1}
  - {name: ab, op: concat, inputs: [a, b]}
  - {name: c, op: conv2d, out_channels: 8, kernel: 3, padding: 1}
  - {name: sum, op: add, inputs: [c, relu1]}
  - {name: pool, op: pool2d, kind: average, kernel: 4, stride: 4}
  - {name: flat, op: flatten}
  - {name: fc, op: gemm, n: 10}
  - {name: act, op: relu}
"""
CONV = "{name: conv1, op: conv2d, in_channels: 8, in_height: 16, in_width: 16, out_channels: 8, kernel: 3, padding: 1}"


def graph(folder: Path, entries: str, batch: int = 2, more: str = "") -> Workload:
    path = folder / "net.yaml"
    path.write_text(f"name: net\n{more}layers:{entries}")
    return load_workload(path, batch)


def refused(folder: Path, *entries: str, more: str = "") -> str:
    with pytest.raises(InputError) as caught:
        graph(folder, "".join(f"\n  - {each}" for each in entries), more=more)
    return str(caught.value).replace(f"{folder}/net.yaml:", "")


def test_layers_read_what_they_name_or_the_one_before(tmp_path: Path) -> None:
    work = graph(tmp_path, NET)
    assert work.sources() == {
        "conv1": (Source(("input",)),), "relu1": (Source(("conv1",)),), "a": (Source(("relu1",)),),
        "b": (Source(("relu1",)),), "c": (Source(("a", "b")),), "sum": (Source(("c",)), Source(("relu1",))),
        "pool": (Source(("sum",)),), "fc": (Source(("pool",), direct=False),), "act": (Source(("fc",)),),
    }  # fmt: skip
    assert work.inputs()["sum"] == ("c", "relu1")


def test_sizes_follow_from_what_is_read(tmp_path: Path) -> None:
    layers = {layer.name: layer for layer in graph(tmp_path, NET).layers}
    shapes = {name: layer.sources(2)["ifmap"] for name, layer in layers.items()}
    assert shapes == {
        "conv1": (3, 16, 16, 2), "relu1": (8, 16, 16, 2), "a": (8, 16, 16, 2), "b": (8, 16, 16, 2),
        "c": (12, 16, 16, 2), "sum": (8, 16, 16, 2), "pool": (8, 16, 16, 2), "fc": (128, 1, 1, 2), "act": (10, 1, 1, 2),
    }  # fmt: skip
    assert layers["act"].text == "1x1x10"


def test_a_list_tells_no_edges(tmp_path: Path) -> None:
    work = graph(tmp_path, f"\n  - {CONV}\n  - {{name: r, op: relu, channels: 5}}")
    assert (work.edges, work.sources(), work.inputs()) == ((), {}, {})


def test_layers_of_the_array_alone_read_through_the_others(tmp_path: Path) -> None:
    work = graph(tmp_path, NET).with_ops("array")
    assert work.sources() == {
        "conv1": (Source(("input",)),), "a": (Source(("conv1",), direct=False, placed=True),),
        "b": (Source(("conv1",), direct=False, placed=True),), "c": (Source(("a", "b")),),
        "fc": (Source(("c", "conv1"), direct=False),),
    }  # fmt: skip


def test_some_of_the_layers_read_what_they_did(tmp_path: Path) -> None:
    work = graph(tmp_path, NET).with_layers(lambda layer: layer.name in ("c", "fc"))
    assert {layer.name: work.inputs()[layer.name] for layer in work.layers} == {"c": ("a", "b"), "fc": ("pool",)}
    # That others read them, too, is still known.
    assert work.neighbours("c") == (("a", "b"), ("sum",))


def test_a_view_is_of_any_size_and_not_direct(tmp_path: Path) -> None:
    entries = (
        f"\n  - {CONV}\n  - {{name: turned, op: view, inputs: [conv1], channels: 32, height: 8, width: 8}}"
        "\n  - {name: r, op: relu}"
    )
    work = graph(tmp_path, entries)
    assert work.layers[1] == Relu("r", 32, 8, 8)
    assert work.sources()["r"] == (Source(("conv1",), direct=False),)


def test_an_entry_that_comes_several_times_hands_on_all_of_them(tmp_path: Path) -> None:
    product = "{name: head, op: gemm, inputs: [conv1], m: 16, n: 4, k: 8, count: 3}"
    work = graph(tmp_path, f"\n  - {CONV}\n  - {product}\n  - {{name: r, op: relu, channels: 4, images: 48}}")
    assert work.inputs() == {
        "conv1": ("input",), **{f"head_{i}": ("conv1",) for i in (1, 2, 3)}, "r": ("head_1", "head_2", "head_3"),
    }  # fmt: skip
    assert not any(source.direct for name in ("head_1", "r") for source in work.sources()[name])


def test_a_network_of_several_inputs_names_them(tmp_path: Path) -> None:
    entries = f"\n  - {CONV}\n  - {{name: s, op: add, inputs: [conv1, right]}}"
    work = graph(tmp_path, entries, more="inputs: [left, right]\n")
    assert work.inputs() == {"conv1": ("left",), "s": ("conv1", "right")}


def test_offsets_of_a_deformable_convolution_are_read_too(tmp_path: Path) -> None:
    offsets = "{name: o, op: conv2d, inputs: [conv1], out_channels: 18, kernel: 3, padding: 1}"
    deformed = "{name: d, op: deform_conv2d, inputs: [conv1, o], out_channels: 4, kernel: 3, padding: 1}"
    work = graph(tmp_path, f"\n  - {CONV}\n  - {offsets}\n  - {deformed}")
    assert work.inputs()["d"] == ("conv1", "o")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{name: r, op: relu, inputs: [conv2]}", 'there is no layer "conv2" to read; did you mean conv1?'),
        ("{name: r, op: relu, inputs: [r]}", "reads itself; a network has no cycles: name a layer before it, or input"),
        ("{name: r, op: relu, inputs: [last]}", 'reads "last", which comes after it; layers stand behind'),
        ("{name: r, op: relu, inputs: 3}", "3 names no layers; write those that are read, such as [conv1], or input"),
        ("{name: r, op: relu, inputs: []}", "[] names no layers"),
        ("{name: r, op: relu, inputs: [conv1], channels: 9}", "reads 8x16x16 (channels x rows x columns) from conv1, "
         "where its own sizes make that 9x16x16; leave channels out, or change what it reads"),
        ("{name: r, op: relu, inputs: [conv1, conv1]}", "reads 2 maps, where relu has 1: ifmap; join maps by a concat"),
        ("{name: r, op: add, inputs: [conv1, conv1], other: channel}", "where its own sizes make that 8x1x1 n1"),
        ("{name: r, op: gemm, inputs: [conv1], n: 10}", "reads a map of 8x16x16 (channels x rows x columns) from "
         "conv1, where gemm takes rows; put {name: flat, op: flatten} before it, which makes rows of 2,048"),
        ("{name: r, op: gemm, inputs: [conv1], n: 10, k: 8}", "rows of 2,048, and leave k out"),
        ("{name: r, op: relu, inputs: [input], channels: 9}", "reads 8x16x16 (channels x rows x columns) from input, "
         "as conv1 does, where its own sizes make that 9x16x16; leave channels out, or change what it reads"),
        ("{name: r, op: add, inputs: [conv1, input], other: channel}", "from input, as conv1 does, where its own"),
        ("{name: r, op: relu, inputs: [conv1], count: 2}", "add channels: 64 (of layers that come several times"),
        ("{name: input, op: relu, inputs: [conv1]}", 'the name "input" is that of the network\'s input'),
        ("{name: r, op: concat, inputs: [conv1, small]}", "joins maps of 8x16x16, 8x8x8 (channels x rows x columns)"),
        ("{name: r, op: flatten, inputs: [conv1, small]}", "reads 2 maps; name one, or join them by a concat before"),
        ("{name: r, op: concat, inputs: [conv1], count: 2}", 'unknown key "count"; allowed for concat: name, op'),
        ("{name: r, op: [relu], inputs: [conv1]}", 'unknown op ["relu"]; write op: relu, with'),
        ("{name: r, op: concta, inputs: [conv1]}", 'unknown op "concta"; did you mean concat?'),
        ("{name: conv1, op: concat, inputs: [conv1]}", 'the name "conv1" is taken by layers[0]; names must differ'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_its_line(tmp_path: Path, entry: str, told: str) -> None:
    last = "{name: last, op: relu, inputs: [conv1]}"
    said = refused(tmp_path, CONV, "{name: small, op: pool2d, kind: max, kernel: 2, stride: 2}", entry, last)
    assert said.startswith("5: layers[2]")
    assert told in said
    assert len(said.splitlines()) == 1


def test_one_of_the_layers_of_an_entry_cannot_be_read_alone(tmp_path: Path) -> None:
    """They are named in results, so that people try it."""
    several = "{name: r, op: relu, channels: 8, height: 16, width: 16, count: 3, inputs: [conv1]}"
    said = refused(tmp_path, CONV, several, "{name: s, op: relu, channels: 8, height: 16, width: 16, inputs: [r_3]}")
    assert 'reads "r_3" alone, one layer of several; read all of them, as r' in said


def test_what_follows_from_an_error_is_not_told(tmp_path: Path) -> None:
    said = refused(
        tmp_path, CONV.replace("padding: 1", "padding: -1"), "{name: r, op: relu, inputs: [conv1], channels: 2}"
    )
    assert said.startswith("3: layers[0].padding")
    assert len(said.splitlines()) == 1


BEHIND = ("{name: r, op: relu}", "{name: p, op: pool2d, kind: max, kernel: 2}", "{name: c, op: concat, inputs: [p, r]}",
          "{name: f, op: flatten}", "{name: fc, op: gemm, n: 10}")  # fmt: skip


@pytest.mark.parametrize(
    "cause",
    [
        "{name: j, op: concat, inputs: [conv1, small]}",
        "{name: j, op: relu, inputs: [fc]}",
        "{name: j, op: relu, inputs: [conv1], count: 3}",
        "{name: j, op: view, inputs: [conv1], channels: many}",
        "{op: relu, inputs: [conv1]}",
        "3",
    ],
)
def test_layers_behind_an_error_tell_nothing_of_sizes(tmp_path: Path, cause: str) -> None:
    said = refused(tmp_path, CONV, "{name: small, op: pool2d, kind: max, kernel: 2, stride: 2}", cause, *BEHIND)
    assert said.startswith("5: layers[2]")
    assert len(said.splitlines()) == 1


def test_layers_behind_an_error_tell_what_else_is_wrong(tmp_path: Path) -> None:
    wrong = "{name: s, op: pool2d, kind: most, kernel: 2}"
    said = refused(tmp_path, CONV, "{name: r, op: relu, inputs: [r]}", wrong, "{name: t, op: relu, chanels: 3}")
    assert [line.partition(":")[0] for line in said.splitlines()] == ["4", "5", "6"]
    assert "layers[2].kind" in said
    assert "layers[3].chanels" in said


def test_what_follows_from_several_layers_is_nothing(tmp_path: Path) -> None:
    several = "{name: head, op: gemm, inputs: [conv1], m: 16, n: 4, k: 8, count: 3}"
    said = refused(tmp_path, CONV, several, "{name: r, op: relu, inputs: [head]}", "{name: s, op: relu}")
    assert said.endswith("add channels: 64 (it reads 3 layers side by side, which have no one size)")


def test_a_wrong_size_is_told_without_the_layers_that_follow_from_it(tmp_path: Path) -> None:
    layers = "{name: a, op: gemm, m: batch*12, n: 8, k: 4}", "{name: b, op: softmax, inputs: [a], images: batch*seq}"
    assert refused(tmp_path, *layers, more="sizes: {seq: x}\n").startswith("2: sizes.seq:")
    assert len(refused(tmp_path, *layers, more="sizes: {seq: x}\n").splitlines()) == 1


def test_wrong_inputs_are_told_without_the_layers_that_read_them(tmp_path: Path) -> None:
    said = refused(tmp_path, CONV[:-1] + ", inputs: [left]}", "{name: r, op: relu}", more="inputs: [left, 3]\n")
    assert said.startswith('2: inputs: ["left", 3] names no inputs')
    assert len(said.splitlines()) == 1


def test_the_first_reader_of_the_input_says_its_size(tmp_path: Path) -> None:
    work = graph(tmp_path, f"\n  - {CONV}\n  - {{name: r, op: relu, inputs: [input]}}")
    assert work.layers[1] == Relu("r", 8, 16, 16)


def test_layers_may_read_parts_of_the_input_by_views(tmp_path: Path) -> None:
    view = "{name: half, op: view, inputs: [input], channels: 8, height: 8, width: 16}"
    work = graph(tmp_path, f"\n  - {CONV}\n  - {view}\n  - {{name: r, op: relu}}")
    assert work.inputs()["r"] == ("input",)


def test_inputs_of_a_network_are_names(tmp_path: Path) -> None:
    said = refused(tmp_path, CONV, "{name: r, op: relu, inputs: [conv1]}", more="inputs: 3\n")
    assert said == "2: inputs: 3 names no inputs; write a list of names, such as [image, mask]"


def test_there_is_a_layer(tmp_path: Path) -> None:
    said = refused(tmp_path, "{name: v, op: view, inputs: [input], channels: 3}")
    assert said == "2: layers: no layers but entries that take no time; write at least one"


def test_in_python_edges_are_names() -> None:
    layers = (Gemm("one", 2, 3, 4), Gemm("two", 2, 4, 3))
    assert Workload("w", 2, layers, edges={"two": ["one"]}).sources() == {"two": (Source(("one",)),)}
    with pytest.raises(InputError, match='layer "one" reads "two", which is not before it'):
        Workload("w", 2, layers, edges={"one": ["two"]})


def test_layers_may_be_replaced() -> None:
    work = load_workload("resnet18")
    assert replace(work, layers=work.layers[:2]).inputs()["layer1.0.conv1"] == ("conv1",)


def test_a_list_has_sizes_that_follow_too(tmp_path: Path) -> None:
    """Where a layer lacks some; of one that lacks none, what is left out is one, as ever."""
    file = tmp_path / "net.yaml"
    conv = "{name: conv1, op: conv2d, in_channels: 3, in_height: 16, in_width: 16, out_channels: 8, kernel: 3}"
    rest = "{name: conv2, op: conv2d, out_channels: 4, kernel: 3}", "{name: r, op: relu}"
    file.write_text("name: net\nlayers:\n" + "".join(f"  - {each}\n" for each in (conv, *rest)))
    work = load_workload(file, 2)
    assert [each.shapes(2)["ofmap"] for each in work.layers] == [(8, 14, 14, 2), (4, 12, 12, 2), (4, 12, 12, 2)]
    assert work.edges == ()
    file.write_text(f"name: net\nlayers:\n  - {conv}\n  - {{name: r, op: relu, channels: 8}}\n")
    assert load_workload(file, 2).layers[1].shapes(2)["ofmap"] == (8, 1, 1, 2)


def test_what_is_missing_once_is_told_once(tmp_path: Path) -> None:
    """Sizes of the layers behind follow from it, and a product takes rows, which no map is."""
    file = tmp_path / "net.yaml"
    rest = "".join(f"  - {{name: c{each}, op: conv2d, out_channels: 4, kernel: 3}}\n" for each in range(4))
    first = "{name: first, op: conv2d, in_height: 16, in_width: 16, out_channels: 8, kernel: 3}"
    file.write_text(f"name: net\nlayers:\n  - {first}\n{rest}")
    with pytest.raises(InputError) as error:
        load_workload(file, 2)
    (problem,) = error.value.problems
    assert "required key is missing; add in_channels:" in problem.message
    whole = first.replace("in_height", "in_channels: 3, in_height")
    file.write_text(f"name: net\nlayers:\n  - {whole}\n  - {{name: fc, op: gemm, n: 10}}\n")
    with pytest.raises(InputError, match=r"where gemm takes rows; put \{name: flat, op: flatten\} before it"):
        load_workload(file, 2)
