"""Topologies of SCALE-Sim: what is made of a line, what is told of it, and what is refused with its line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import permutations
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.strategies import cases
from tpusim import Conv2d, Gemm, load_workload
from tpusim.base.errors import InputError
from tpusim.cli.app import app
from tpusim.network.formats import Names
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.workload_file import open_workload, workload_of, yaml_of
from tpusim.study.sweep.points import load_sweep

CONV = "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,\n"
GEMM = "Layer,M,N,K,\n"


def topology(folder: Path, lines: str, header: str = CONV) -> Path:
    path = folder / "net.csv"
    path.write_text(header + lines)
    return path


def notes(path: Path) -> str:
    return "\n".join(open_workload(path).notes)


@pytest.mark.parametrize(
    ("line", "layer"),
    [
        ("a, 56, 28, 3, 1, 64, 128, 1,", Conv2d("a", 64, 56, 28, 128, (3, 1))),
        ("\ta,57,57,3,3,64,128,2, ", Conv2d("a", 64, 57, 57, 128, (3, 3), (2, 2))),
        ("a,57,57,3,3,64,128,2", Conv2d("a", 64, 57, 57, 128, (3, 3), (2, 2))),
        ("a,57,57,3,3,64,128,2,2", Conv2d("a", 64, 57, 57, 128, (3, 3), (2, 2))),
        ("a,56,57,3,3,64,128,2,", Conv2d("a", 64, 56, 57, 128, (3, 3), (2, 2), (0, 0, 1, 0))),
        ("a_DP,16,16,3,3,8,2,1,", Conv2d("a_DP", 8, 16, 16, 16, (3, 3), groups=8)),
        ("fc,8,512,1,512,1,1000,1,", Gemm("fc", 2 * 8, 1000, 512)),
        ("fc,1,1,1,1,512,1000,1,", Conv2d("fc", 512, 1, 1, 1000, (1, 1))),
    ],
)
def test_a_line_becomes_a_layer(tmp_path: Path, line: str, layer: Conv2d | Gemm | Pool2d) -> None:
    work = load_workload(topology(tmp_path, f"\n{line}\n\n"), batch=2)
    assert (work.name, work.layers) == ("net", (layer,))


def test_a_product_stays_as_it_is_whatever_the_batch(tmp_path: Path) -> None:
    path = topology(tmp_path, "a,8,1000,512,\n b , 1, 2, 3\n", GEMM)
    assert load_workload(path, batch=4).layers == (Gemm("a", 8, 1000, 512), Gemm("b", 1, 2, 3))
    assert "M is as written" in notes(path)


@settings(deadline=None, max_examples=cases(usual=20))
@given(
    side=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    kernel=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    channels=st.integers(2, 9),
    filters=st.integers(1, 9),
    stride=st.integers(1, 13),
)
def test_macs_are_those_that_scale_sim_counts(tmp_path_factory, side, kernel, channels, filters, stride) -> None:
    """Its sums: positions rounded up, `ceil((side - kernel + stride) / stride)`; it refuses a kernel beyond the map."""
    kernel = tuple(map(min, kernel, side))
    sizes = ",".join(map(str, (*side, *kernel, channels, filters, stride)))
    path = topology(tmp_path_factory.getbasetemp(), f"a,{sizes},\n")
    (layer,) = load_workload(path, batch=1).layers
    rows, cols = (ceil((s - k + stride) / stride) for s, k in zip(side, kernel, strict=True))
    assert layer.macs(1) == rows * cols * kernel[0] * kernel[1] * channels * filters


def test_its_habits_are_told(tmp_path: Path) -> None:
    lines = (
        "Conv1,224,224,7,7,3,64,2, NPU\nConv2_dw,28,28,3,3,1,1,1,#dw\nc_DP,28,28,3,3,4,1,1,\nfc,8,512,1,512,1,10,1,\n"
        "s,28,28,3,3,4,4,1,2:4,\nd,28,28,3,3,4,4,1,1:1,\ns,28,28,3,3,4,4,1,\n"
    )
    path = topology(tmp_path, lines)
    assert open_workload(path).notes == (
        f"7 layers read, convolutions, from the columns {CONV.strip()[:-1]}",
        "a topology is of one image, whose maps hold their padding already; each convolution is run for a batch",
        "1 layer (Conv1): the kernel's last step leaves the map; SCALE-Sim counts it, so zeros follow the map here",
        "1 layer (c_DP): DP in the name; each channel is convolved by itself, as a group",
        "1 layer (Conv2_dw): depthwise or pooling by the name, but written as a plain convolution; taken as written",
        "1 layer (fc): a product written as a convolution; taken as op: gemm",
        "1 layer (s): the sparsity is not read; every weight is multiplied",
        "2 layers (Conv1, Conv2_dw): what stands behind the columns is not read",
        "1 layer (s_2): a name that could not stay as it was, as names must differ",
    )


@pytest.mark.parametrize(
    ("header", "lines", "says"),
    [
        (CONV, "a,5,5,3,3,2\n", ":2: 6 values of 8; write a name, IFMAP Height, IFMAP Width, Filter Height"),
        (CONV, "\na,5,x,3,3,2,0,1\n", ':3: IFMAP Width: "x" is not a number; write a whole number, 1 to'),
        (CONV, "\na,5,x,3,3,2,0,1\n", ":3: Num Filter: 0 is out of range"),
        (CONV, "a,5,-5,3,3,2,2,1\n", ":2: IFMAP Width: -5 is out of range"),
        (CONV, "a,5,5.0,3,3,2,2,1\n", ':2: IFMAP Width: "5.0" is not a plain number to YAML; write 5'),
        (CONV, "a,5,5,7,3,2,2,1\n", ':2: layers[0].kernel: layer "a": the kernel spans 7 in height'),
        (CONV, "a,9999999,5,3,3,2,2,1\n", ":2: layers[0].in_height: "),
        (CONV, "", "no layers; write a line for each below the header"),
        ("", "a,5,5,3,3,2,2,1,\n", ":1: sizes stand where SCALE-Sim skips a header; begin the file with"),
        ("time,address,bytes,rw\n", "0,0,64,r\n", ":1: this is no header of a topology of SCALE-Sim"),
        ("", "", ":1: this is no header of a topology of SCALE-Sim"),
        (
            CONV,
            "a,57,57,3,3,64,128,2,1,\n",
            ":2: 1 stands behind the last column, Strides; name its column in the header",
        ),
        (GEMM, "a,1,2,3,8\n", ":2: 8 stands behind the last column, K; name its column in the header, such as Stride"),
        (GEMM, "a,1,2,\n", ":2: 3 values of 4; write a name, M, N, K"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, header: str, lines: str, says: str) -> None:
    path = topology(tmp_path, lines, header)
    with pytest.raises(InputError) as error:
        load_workload(path)
    assert says in str(error.value)
    assert all(str(each).startswith(str(path)) for each in error.value.problems)


SIZES = CONV.strip().rstrip(",").split(", ")
"""Columns of a convolution, as SCALE-Sim writes them."""
VALUES = dict(zip(SIZES, ("a", 57, 29, 3, 2, 64, 128, 2), strict=True))


def written(columns: Sequence[str], values: Mapping[str, object]) -> str:
    """A topology of one layer."""
    return f"{', '.join(columns)},\n{', '.join(str(values[each]) for each in columns)},\n"


@settings(deadline=None, max_examples=cases(usual=25))
@given(data=st.data())
def test_columns_may_stand_in_any_order_and_be_spelt_otherwise(tmp_path_factory, data: st.DataObject) -> None:
    """The layer is that of the usual header, whatever neutral columns stand among the sizes."""
    path = tmp_path_factory.getbasetemp() / "net.csv"
    strides: dict[str, object] = {"Stride Width": 3, "Stride Height": 2} if data.draw(st.booleans()) else {"Strides": 2}
    neutral = {"Padding": 0, "Dilation": 1, "Groups": 1, "Sparsity": "1:1", "Type": "Conv", "IFMAP Base Addr": -1}
    more = data.draw(st.sets(st.sampled_from([*neutral])))
    values = {**{each: VALUES[each] for each in SIZES[:-1]}, **strides, **{each: neutral[each] for each in more}}
    order = data.draw(st.permutations([*values]))
    style = data.draw(st.sampled_from([str, str.upper, str.lower, lambda word: word.replace(" ", "_")]))
    spelt = {style(column): value for column, value in values.items()}
    path.write_text(written([style(each) for each in order], spelt))
    across = 3 if "Stride Width" in strides else 2
    kernel = {"padding": (0, 0, 0, (2 - 29) % across)}
    assert load_workload(path, 1).layers == (Conv2d("a", 64, 57, 29, 128, (3, 2), (2, across), **kernel),)
    assert " read, convolutions, from the columns " in notes(path)


@pytest.mark.parametrize("order", [*permutations(("Layer", "M", "N", "K"))], ids=",".join)
def test_sizes_of_a_product_may_stand_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    path = topology(tmp_path, "", written(order, {"Layer": "a", "M": 8, "N": 10, "K": 12}))
    assert load_workload(path).layers == (Gemm("a", 8, 10, 12),)
    by_place = [each for each in order if each != "Layer"] == ["M", "N", "K"]
    assert ("SCALE-Sim would read M, N, K by their place" in notes(path)) is not by_place


@pytest.mark.parametrize(
    ("columns", "line", "layer"),
    [
        ("Dilation", "3", Conv2d("a", 64, 57, 29, 128, (3, 2), (2, 2), (0, 0, 0, 1), dilation=(3, 3))),
        ("Groups", "4", Conv2d("a", 64, 57, 29, 128, (3, 2), (2, 2), (0, 0, 0, 1), groups=4)),
        ("Batch", "8", Conv2d("a", 64, 57, 29, 128, (3, 2), (2, 2), (0, 0, 0, 1))),
        ("Batch Size", "8", Conv2d("a", 64, 57, 29, 128, (3, 2), (2, 2), (0, 0, 0, 1))),
        ("Sparsity", "2:4", Conv2d("a", 64, 57, 29, 128, (3, 2), (2, 2), (0, 0, 0, 1))),
        ("Notes", "", Conv2d("a", 64, 57, 29, 128, (3, 2), (2, 2), (0, 0, 0, 1))),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["ahead", "behind"])
def test_no_column_is_taken_for_another(tmp_path: Path, columns: str, line: str, layer: Conv2d, first: bool) -> None:
    usual = ", ".join(map(str, VALUES.values()))
    header = f"{columns}, {CONV}" if first else CONV.replace(",\n", f", {columns},\n")
    path = topology(tmp_path, f"{line}, {usual},\n" if first else f"{usual}, {line},\n", header)
    assert load_workload(path, 8).layers == (layer,)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("Padding", "1", ":2: Padding 1: the maps of a topology hold their padding already; add it to both sides of"),
        ("Dilations", "x", ':2: Dilations: "x" is not a number'),
        ("Batch", "0", ":2: Batch: 0 is out of range"),
        ("Sparsity", "half", ':2: Sparsity: "half" is no ratio; write N:M, such as 2:4'),
        ("Batch Sizes", "8", ':1: unknown column "Batch Sizes"; did you mean Batch? known: Layer name, IFMAP Height,'),
        ("Precision", "8", ':1: unknown column "Precision"; known: Layer name, IFMAP Height, IFMAP Width'),
        (
            "",
            "8",
            ":2: 8 stands behind the last column, Strides; name its column in the header, such as Stride Width or",
        ),
        ("Num Filters", "8", ":1: two columns are Num Filter: Num Filter and Num Filters; leave one of them out"),
        ("Stride Width", "2", ":1: strides are there twice: Strides, Stride Width; name Strides, or Stride Height and"),
        (
            "M",
            "2",
            ":1: sizes of products, M, N and K, beside those of convolutions (IFMAP Height, IFMAP Width, Filter",
        ),
        ("Type", "LSTM", ":2: Type LSTM (1 layer, the first of them a): not known here, only Conv, Im2col_conv, Gemm"),
        ("Type", "", ":2: Type no type (1 layer, the first of them a): not known here"),
        ("Type", "Gemm", ":2: Gemm: a product has as many filter rows as its map has columns, and 1 in all columns"),
    ],
)
def test_a_column_that_is_not_sure_is_refused_by_its_name(tmp_path: Path, column: str, value: str, says: str) -> None:
    usual = ", ".join(map(str, VALUES.values()))
    path = topology(tmp_path, f"{usual}, {value},\n", CONV.replace(",\n", f", {column},\n"))
    with pytest.raises(InputError) as error:
        load_workload(path)
    assert str(error.value).startswith(f"{path}{says}")


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        ("Num Filter", "there is no column Num Filter; a header is"),
        ("Strides", "there is no column Strides; a header is"),
        ("Filter Width", "there is no column Filter Width; a header is"),
    ],
)
def test_a_column_that_is_missing_is_named(tmp_path: Path, left_out: str, says: str) -> None:
    path = topology(tmp_path, "", written([each for each in SIZES if each != left_out], VALUES))
    with pytest.raises(InputError, match=f"net.csv:1: {says}"):
        load_workload(path)


MNPUSIM = CONV.replace(",\n", ", Type, IFMAP Base Addr, Filter Base Addr, Ofmap Base Addr,\n")


@pytest.mark.parametrize(
    ("line", "layer"),
    [
        ("a,512,256,256,128,1,1,1,Gemm", Gemm("a", 512, 128, 256)),
        ("a,512,256,256,1,1,1,1,Gemv", Gemm("a", 512, 1, 256)),
        ("a,6,4,4,5,1,1,1,Dir_Gemm", Gemm("a", 6, 5, 4)),
        ("a,6,4,1,4,1,7,1,gemm", Gemm("a", 6, 7, 4)),
        ("a,6,1,1,5,1,1,1,GEMM", Gemm("a", 6, 5, 1)),
        ("a,5,5,3,3,3,4,1,Im2col_conv", Conv2d("a", 3, 5, 5, 4, (3, 3))),
        ("a,5,5,3,3,3,4,1,Conv", Conv2d("a", 3, 5, 5, 4, (3, 3))),
        ("a,6,6,2,2,3,3,2,Pool", Pool2d("a", "max", 3, 6, 6, (2, 2), (2, 2))),
        ("a,7,6,2,3,3,1,2,pool", Pool2d("a", "max", 3, 7, 6, (2, 3), (2, 2), (0, 0, 1, 1))),
    ],
)
def test_a_type_says_what_a_line_is(tmp_path: Path, line: str, layer: Conv2d | Gemm | Pool2d) -> None:
    path = topology(tmp_path, f"{line},-1,-1,-1,\n", MNPUSIM)
    assert load_workload(path, 2).layers == (layer,)
    assert "not read: IFMAP Base Addr, Filter Base Addr, Ofmap Base Addr" in notes(path)


def test_layers_of_a_type_that_nobody_knows_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    lines = (
        "a,512,256,256,128,1,1,1,Gemm,-1,-2,-1,\nb,24,117,1,1,1,1,40,Sort,-1,-2,-1,\nc,9,1,1,1,1,1,2,Sort,-1,-2,-1,\n"
    )
    path = topology(tmp_path, lines, MNPUSIM)
    with pytest.raises(InputError, match=r"net.csv:3: Type Sort \(2 layers, the first of them b\): not known here"):
        load_workload(path)
    work = load_workload(path, skip_unknown=True)
    assert (work.layers, dict(work.not_known)) == ((Gemm("a", 512, 128, 256),), {"Sort": 2})


def test_ops_that_a_file_only_calls_other_take_no_time_and_are_told(tmp_path: Path) -> None:
    """As mNPUsim ships them: normalizations, activations and poolings between products, Strides their operations."""
    others = "BN,49,16,1,1,1,1,128,Other,-1,-2,-1,\nrelu,49,16,1,1,1,1,30,Other,-1,-2,-1,\n"
    lines = f"conv,49,27,27,16,1,1,1,Dir_Gemm,-1,-1,-1,\n{others}"
    work = load_workload(path := topology(tmp_path, lines, MNPUSIM))
    assert (work.layers, dict(work.not_timed)) == ((Gemm("conv", 49, 16, 27),), {"Other": 2})
    assert "2 layers (BN, relu): of type Other, whose op the file does not tell; takes no time" in notes(path)
    done = CliRunner().invoke(app, ["run", str(path), "--hardware", "tiny_4x4", "--no-check"])
    assert done.exit_code == 0, done.stderr
    assert "2 ops of the network not timed: Other 2" in done.stdout


def test_cells_may_stand_in_quotes(tmp_path: Path) -> None:
    """As spreadsheets write them; a comma in quotes is a part of the name."""
    sizes = "9,8,3,2,4,5,1"
    plain = load_workload(topology(tmp_path, f"a,{sizes},\n", CONV)).layers
    quoted = CONV.replace(",\n", "").split(",")
    header = ",".join(f'"{each.strip()}"' for each in quoted) + ",\n"
    for line in (
        f'"a",{sizes},',
        '"a", "9", "8", "3", "2", "4", "5", "1"',
        f"a ,{sizes.replace('9', chr(34) + '9' + chr(34))}",
    ):
        assert load_workload(topology(tmp_path, f"{line}\n", header)).layers == plain
    (layer,) = load_workload(topology(tmp_path, f'"a, or b",{sizes},\n', header)).layers
    assert layer.name == "a, or b"
    with pytest.raises(InputError, match=r"net\.csv:2: 2 values of 8"):
        load_workload(topology(tmp_path, f'a,"{sizes},\n', header))


def test_a_pooling_makes_the_channels_that_it_reads(tmp_path: Path) -> None:
    assert "a pooling, of which the file does not say the kind" in notes(
        topology(tmp_path, "a,6,6,2,2,3,3,2,Pool,-1,-1,-1,\n", MNPUSIM)
    )
    with pytest.raises(InputError, match="Num Filter 4: a pooling makes as many channels as it reads, 3; write that"):
        load_workload(topology(tmp_path, "a,6,6,2,2,3,4,2,Pool,-1,-1,-1,\n", MNPUSIM))


def test_columns_in_another_order_are_told_of_convolutions_too(tmp_path: Path) -> None:
    assert "by their place" not in notes(topology(tmp_path, "a,9,8,3,2,4,5,1,\n", CONV))
    shuffled = "Strides,Num Filter,Channels,Filter Width,Filter Height,IFMAP Width,IFMAP Height,Layer name,\n"
    path = topology(tmp_path, "1,5,4,2,3,8,9,a,\n", shuffled)
    assert load_workload(path, 2).layers == load_workload(topology(tmp_path, "a,9,8,3,2,4,5,1,\n", CONV), 2).layers
    path = topology(tmp_path, "1,5,4,2,3,8,9,a,\n", shuffled)
    assert "SCALE-Sim would read IFMAP Height, IFMAP Width, Filter Height, " in notes(path)


def test_a_column_of_images_is_the_batch(tmp_path: Path) -> None:
    header = CONV.replace(",\n", ", Batch Size,\n")
    path = topology(tmp_path, "a,34,34,3,3,64,64,1,4,\nfc,8,512,1,512,1,10,1,4\n", header)
    document = open_workload(path)
    assert document.images == 4
    assert "Batch Size says 4 images, for which the layers are run" in document.notes[1]
    assert load_workload(path, batch=4).layers[1] == Gemm("fc", 4 * 8, 10, 512)
    assert load_workload(path).batch == 4
    with pytest.raises(InputError, match=r"net.csv: its layers are for 4 images; give that batch, not 8"):
        load_workload(path, batch=8)
    with pytest.raises(InputError) as error:
        load_workload(topology(tmp_path, "a,5,5,3,3,2,2,1,4\nb,5,5,3,3,2,2,1,2\nc,5,5,3,3,2,2,1,4\n", header), 4)
    assert "net.csv:3: Batch Size: 2 here and 4 in line 2; a run has one batch" in str(error.value)


@pytest.mark.parametrize("asked", [(), ("--batch", "4")], ids=["unasked", "asked"])
def test_every_command_runs_the_batch_of_the_file(tmp_path: Path, asked: tuple[str, ...]) -> None:
    path = topology(tmp_path, "a,5,5,3,3,2,2,1,4,\n", CONV.replace(",\n", ", Batch,\n"))
    done = CliRunner().invoke(app, ["run", str(path), *asked, "--hardware", "tiny_4x4", "--json", "-"])
    assert json.loads(done.stdout)["batch"] == 4
    assert "Note: 1 layer read, convolutions, from the columns " in done.stderr
    done = CliRunner().invoke(app, ["import", str(path), *asked])
    assert "net: 1 layer (conv2d 1), 1.30 kMAC at batch 4" in done.stderr
    refused = CliRunner().invoke(app, ["run", str(path), "--batch", "2"])
    assert (refused.exit_code, "the layers are for 4 images; leave --batch out" in refused.stderr) == (2, True)


def test_a_sweep_of_another_batch_than_the_file_says_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    topology(tmp_path, "a,5,5,3,3,2,2,1,4,\n", CONV.replace(",\n", ", Batch,\n"))
    sweep = "workloads: [net.csv]\nhardware: tiny_4x4\naxes: {array.rows: [4, 8]}\n"
    Path("s.yaml").write_text(sweep + "batch: 8\n")
    with pytest.raises(InputError, match=r"net.csv: its layers are for 4 images; give that batch, not 8"):
        load_sweep("s.yaml")
    for batch in ("", "batch: 4\n"):
        Path("s.yaml").write_text(sweep + batch)
        assert len(load_sweep("s.yaml").points) == 2


def test_all_lines_that_are_wrong_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_workload(topology(tmp_path, "a,5,5,3,3,2\nb,5,5,3,3,2,2,1\nc,5,5,x,3,2,2,1\n"))
    assert [str(each.where).rpartition(":")[2] for each in error.value.problems] == ["2", "4"]


@pytest.mark.parametrize("content", [b"\xff\xfe,1,2\n", b"\x00"])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"net.csv:1: "):
        load_workload(path)


def test_a_folder_and_a_dimension_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"folder.csv: is a directory; give a file"):
        load_workload(tmp_path / "folder.csv")
    with pytest.raises(InputError, match=r"--dim seq=3: a topology leaves no dimension open; leave --dim out"):
        load_workload(topology(tmp_path, "a,5,5,3,3,2,2,1\n"), dims={"seq": 3})


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    lines = (
        "Conv1,224,220,7,3,3,64,2,\n- odd: {name}, 28,28,3,3,4,1,1,\nc_DP,28,28,3,3,4,1,1,\nfc,8,512,1,512,1,10,1,\n"
    )
    document = open_workload(topology(tmp_path, lines))
    written = tmp_path / "net.yaml"
    written.write_text(yaml_of(document))
    for batch in (1, 3):
        assert load_workload(written, batch) == workload_of(document, batch)


def test_names_differ_also_from_those_that_a_count_makes() -> None:
    names = Names()
    wanted = [("a", True), ("a_1", False), ("b_7", False), ("b", True), ("b_7", False), ("", False), ("x\ny", False)]
    assert [names.take(*each) for each in wanted] == ["a", "a_1_2", "b_7", "b_2", "b_7_2", "layer", "x?y"]
    assert names.changed == ["a_1_2", "b_2", "b_7_2", "layer", "x?y"]
    assert len({names.take("z" * 300) for _ in range(3)}) == 3


def test_a_name_may_have_a_count_several_times() -> None:
    """A number behind an underscore would be that of a layer of the first, so that no name was ever found."""
    names = Names()
    assert [names.take("a", counted=True) for _ in range(3)] == ["a", "a.2", "a.3"]


def test_a_written_topology_keeps_its_batch(tmp_path: Path) -> None:
    path = topology(tmp_path, "a,5,5,3,3,2,2,1,4,\n", CONV.replace(",\n", ", Batch,\n"))
    written = tmp_path / "written.yaml"
    written.write_text(yaml_of(open_workload(path)))
    assert load_workload(written).batch == 4
    with pytest.raises(InputError, match=r"written.yaml: its layers are for 4 images; give that batch, not 8"):
        load_workload(written, batch=8)
