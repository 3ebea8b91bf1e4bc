"""Topologies of SCALE-Sim: what is made of a line, what is told of it, and what is refused with its line."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpusim import Conv2d, Gemm, load_workload
from tpusim.base.errors import InputError
from tpusim.network.formats import Names
from tpusim.network.workload_file import open_workload, workload_of, yaml_of

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
        ("a,57,57,3,3,64,128,2,1,", Conv2d("a", 64, 57, 57, 128, (3, 3), (2, 1))),
        ("a,56,57,3,3,64,128,2,", Conv2d("a", 64, 56, 57, 128, (3, 3), (2, 2), (0, 0, 1, 0))),
        ("a_DP,16,16,3,3,8,2,1,", Conv2d("a_DP", 8, 16, 16, 16, (3, 3), groups=8)),
        ("fc,8,512,1,512,1,1000,1,", Gemm("fc", 2 * 8, 1000, 512)),
        ("fc,1,1,1,1,512,1000,1,", Conv2d("fc", 512, 1, 1, 1000, (1, 1))),
    ],
)
def test_a_line_becomes_a_layer(tmp_path: Path, line: str, layer: Conv2d | Gemm) -> None:
    work = load_workload(topology(tmp_path, f"\n{line}\n\n"), batch=2)
    assert (work.name, work.layers) == ("net", (layer,))


def test_a_product_stays_as_it_is_whatever_the_batch(tmp_path: Path) -> None:
    path = topology(tmp_path, "a,8,1000,512,\n b , 1, 2, 3\n", GEMM)
    assert load_workload(path, batch=4).layers == (Gemm("a", 8, 1000, 512), Gemm("b", 1, 2, 3))
    assert "M is as written" in notes(path)


@settings(deadline=None, max_examples=40)
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
        "a topology is of one image, whose maps hold their padding already; each convolution is run for a batch",
        "1 layer (Conv1): the kernel's last step leaves the map; SCALE-Sim counts it, so zeros follow the map here",
        "1 layer (c_DP): DP in the name; each channel is convolved by itself, as a group",
        "1 layer (Conv2_dw): depthwise or pooling by the name, but written as a plain convolution; taken as written",
        "1 layer (fc): a product written as a convolution; taken as op: gemm",
        "1 layer (s): the sparsity is not read; every weight is multiplied",
        "2 layers (Conv1, Conv2_dw): what stands behind the sizes is not read",
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
        (CONV, "a,99999,5,3,3,2,2,1\n", ":2: layers[0].in_height: "),
        (CONV, "", "no layers; write a line for each below the header"),
        ("", "a,5,5,3,3,2,2,1,\n", ":1: sizes stand where SCALE-Sim skips a header; begin the file with"),
        ("time,address,bytes,rw\n", "0,0,64,r\n", ":1: this is no header of a topology of SCALE-Sim"),
        ("", "", ":1: this is no header of a topology of SCALE-Sim"),
        ("Layer,M,K,N,\n", "a,1,2,3,\n", ":1: the columns are M, K, N, which SCALE-Sim reads as M, N, K; put them in"),
        (GEMM, "a,1,2,\n", ":2: 3 values of 4; write a name, M, N, K"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, header: str, lines: str, says: str) -> None:
    path = topology(tmp_path, lines, header)
    with pytest.raises(InputError) as error:
        load_workload(path)
    assert says in str(error.value)
    assert all(str(each).startswith(str(path)) for each in error.value.problems)


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
