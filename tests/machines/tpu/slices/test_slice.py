"""Slices and meshes: what files say, what a generation can have, and which chips an axis of a mesh takes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tpusim.base.errors import InputError
from tpusim.input.source import shipped
from tpusim.machines.tpu.slices.exchange import rates_of
from tpusim.machines.tpu.slices.mesh_placement import placed, plain_mesh
from tpusim.machines.tpu.slices.slice import FOLDER, INTERCONNECTS, ChipSlice, load_interconnect, load_slice
from tpusim.machines.tpu.slices.torus import Span

KINDS = ("published", "read", "measured", "inferred", "ours", "fitted", "the same")


@pytest.mark.parametrize("name", shipped(FOLDER))
def test_shipped_slices_are_sound(name: str) -> None:
    """They come back from what they write, and their names say their sides."""
    made = load_slice(name)
    assert ChipSlice.model_validate(made.to_dict(), context={"from_yaml": True}) == made
    assert made.chip.chip_cores == 1, "a whole chip"
    if name != "v6e_8":
        assert name.partition("_")[2] == "x".join(map(str, made.torus))


@pytest.mark.parametrize("name", shipped(INTERCONNECTS))
def test_every_number_says_where_it_is_from(name: str) -> None:
    lines = shipped(INTERCONNECTS)[name].read_text().splitlines()
    numbers = [line for line in lines if re.search(r":\s+[\d.]+", line.partition("#")[0])]
    assert len(numbers) >= 9
    assert not [line for line in numbers if not line.partition("# ")[2].startswith(KINDS)]


def test_only_one_number_of_a_generation_is_fitted() -> None:
    for path in shipped(INTERCONNECTS).values():
        assert len(re.findall(r"# fitted", path.read_text())) <= 1, path


@pytest.mark.parametrize(("name", "wraps"), [
    ("v5e_16x16", (True, True)), ("v5e_8x16", (False, True)), ("v6e_8x8", (False, False)), ("v6e_16x8", (True, False)),
    ("v4_4x4x8", (True, True, True)), ("v5p_2x2x4", (False,) * 3), ("v7x_4x4x12", (True,) * 3), 
    ("v3_4x4", (False,) * 2),    ("v3_32x32", (True, True)),
])  # fmt: skip
def test_axes_wrap_as_a_generation_has_it(name: str, wraps: tuple[bool, ...]) -> None:
    assert load_slice(name).wraps == wraps


@pytest.mark.parametrize("name", [
    "v5e_32x32", "v5e_3x4", "v6e_4x4x4", "v6e_16x16x1", "v4_4x4", "v5p_16x16x36", "v7x_6x8x8", "v5e_0x4", "v9_4x4",
    "v6",    "v6e_", "v3_64x64", "v5p_28x28x28",
])  # fmt: skip
def test_a_slice_that_there_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"such as|shipped|write"):
        load_slice(name)


@pytest.mark.parametrize(("text", "says"), [
    ("{interconnect: v6e, torus: [2, 3]}", "1, 2 or a multiple of 4"),
    ("{interconnect: v6e}", "torus"),
    ("{interconnect: v66e, torus: [2, 4]}", "v6e"),
    ("{interconnect: v6e, torus: [2, 4], slices: 0}", "1 to 4096"),
    ("{interconnect: v3, torus: [4, 4], slices: 2}", "no network between slices"),
    ("{interconnect: v6e, torus: [2, 4], hop: 1 us}", "unknown key"),
    ("{interconnect: v6e, torus: 8}", "list"),
    ("{interconnect: {name: a}, torus: [4]}", "missing"),
])  # fmt: skip
def test_mistakes_of_files_are_told(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        load_slice(tmp_path / "mine.yaml")
    assert "mine.yaml:1" in str(caught.value)


def test_a_file_of_ones_own_may_write_its_links_out(tmp_path: Path) -> None:
    links = yaml.safe_load((ROOT / "configs/interconnects/v6e.yaml").read_text())
    links["sides"]["dimensions"] = 1
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"interconnect": links, "torus": [4]}))
    assert load_slice(tmp_path / "mine.yaml").chips == 4


def test_what_is_set_is_told() -> None:
    made = load_slice("v5e_4x4", ["slices=2", "interconnect.link.hop=2 us"])
    assert (made.chips, made.interconnect.link.hop_ps) == (32, 2_000_000)
    assert made.label == "v5e_4x4 with interconnect.link.hop=2 us, slices=2"
    assert load_interconnect("v5e").link.hop_ps != 2_000_000
    for wrong in ("hop=1 us", "interconnect.hop=1 us", "interconnect.link.hop=1", "slices"):
        with pytest.raises(InputError, match="--set"):
            load_slice("v5e_4x4", [wrong])


@pytest.mark.parametrize(("name", "asked", "spans"), [
    ("v6e_2x4", "data=2,tensor=4", {"data": (Span(0, 1, 2),), "tensor": (Span(1, 1, 4),)}),
    ("v5e_16x16", "data=16,tensor=16", {"data": (Span(1, 1, 16),), "tensor": (Span(0, 1, 16),)}),
    ("v5e_4x4", "data=2,tensor=8", {"data": (Span(1, 2, 2),), "tensor": (Span(0, 1, 4), Span(1, 1, 2))}),
    ("v5e_4x4", "all=16", {"all": (Span(0, 1, 4), Span(1, 1, 4))}),
    ("v5e_4x4", "data=1,tensor=16", {"data": (), "tensor": (Span(0, 1, 4), Span(1, 1, 4))}),
])  # fmt: skip
def test_axes_of_a_mesh_take_axes_of_the_slice(name: str, asked: str, spans: dict[str, tuple[Span, ...]]) -> None:
    assert placed(load_slice(name), asked).axes == spans


def test_the_network_between_slices_is_taken_last() -> None:
    axes = placed(load_slice("v5e_2x2", ["slices=2"]), "data=2,tensor=4").axes
    assert axes == {"data": (Span(2, 1, 2),), "tensor": (Span(0, 1, 2), Span(1, 1, 2))}


@pytest.mark.parametrize(("name", "element_bytes", "link", "adds"), [
    ("v5e_2x2", 4, 46.65 * 0.93 / 1.5, 4096), ("v5e_2x2", 2, 46.65 * 0.93 / 1.5, 4096 / 3.5), 
    ("v7x_2x2x1", 2, 93.35 * 0.965 / 1.9, 256),
])  # fmt: skip
def test_rates_are_those_of_the_files(name: str, element_bytes: int, link: float, adds: float) -> None:
    """Bytes and cycles at the chip's clock: all engines take these from one place, so that none would see a mistake.

    A number of bf16 is widened twice, of what has come and of what stands there, and the sum is narrowed: 3.5 in all.
    """
    made = load_slice(name, ["slices=2"])
    found, clock = rates_of(made, element_bytes), made.chip.clock_hz
    axes = len(made.torus)
    assert [float(each) for each in found.link[:axes]] == [pytest.approx(link)] * axes
    assert found.hop[:axes] == (clock // 2_000_000,) * axes
    assert float(found.link[axes]) * clock == pytest.approx(dcn_rate(made))
    assert found.hop[axes] == clock // 100_000
    assert float(found.adds) == pytest.approx(adds)
    assert float(found.memory) * clock == pytest.approx(made.chip.hbm_bytes_per_s)
    assert found.launch == made.interconnect.collectives.launch_ps * (clock // 10**6) // 10**6


def dcn_rate(made: ChipSlice) -> int:
    assert made.interconnect.dcn is not None
    return made.interconnect.dcn.bandwidth_bytes_per_s


@pytest.mark.parametrize("asked", ["data=2,tensor=2,pipe=4", "data=4,tensor=4", "a=16", "a=2,b=8", "a=2,b=2,c=2,d=2"])
def test_every_chip_stands_once_in_a_mesh(asked: str) -> None:
    mesh = placed(load_slice("v5e_4x4"), asked)
    group = mesh.group([*mesh.axes])
    assert group.size == 16
    assert {group.rank(place) for place in mesh.torus.places} == {*range(16)}
    # Along an axis of the mesh the chips of a group are as many as it says.
    for name in mesh.axes:
        assert mesh.group([name]).size == int(re.findall(rf"{name}=(\d+)", asked)[0])


def test_an_axis_takes_the_chips_that_others_leave() -> None:
    place = load_slice("v5e_4x4")
    assert placed(place, "tensor=4,data=*").axes == placed(place, "tensor=4,data=4").axes


@pytest.mark.parametrize(("asked", "says"), [
    ("data=2,tensor=4", "16"), ("data=32", "16"), ("data=3,tensor=5", "16"), ("data", "NAME=N"), ("data=x", "NAME=N"),
    ("data=2,data=8", "'data' is named twice"), ("data=0", "NAME=N"), ("", "NAME=N"), ("data=-1,b=2", "NAME=N"),
    ("data=3,tensor=*", "do not part the 16"), ("data=*,tensor=*", "cannot both"),
])  # fmt: skip
def test_a_mesh_that_does_not_fit_is_refused(asked: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        placed(load_slice("v5e_4x4"), asked)


def test_an_axis_that_there_is_not_is_refused() -> None:
    mesh = plain_mesh(load_slice("v5e_4x4"))
    for names in (["z"], ["x", "x"]):
        with pytest.raises(InputError, match="--axes"):
            mesh.group(names)


@pytest.mark.parametrize(("name", "rate"), [("v5e", 16), ("v6e", 32)])
def test_bytes_to_the_host_take_their_part_of_pcie_rounded_up(name: str, rate: int) -> None:
    links = load_interconnect(name)
    clock = links.chip.clock_hz
    for moved in (1, 1000, 2**30 + 1):
        assert links.host_cycles(moved, clock) == math.ceil(Fraction(moved * clock, rate * 10**9))
    late = load_interconnect(name, ["host.latency=2 us"])
    assert late.host_cycles(2**30, clock) == links.host_cycles(2**30, clock) + math.ceil(clock * 2e-6)
    assert load_interconnect(name, ["host.bandwidth=1 GB/s"]).host_cycles(10**9, clock) == clock


@pytest.mark.parametrize("name", ["v3", "v7x"])
def test_a_generation_without_a_known_way_to_its_host_refuses(name: str) -> None:
    links = load_interconnect(name)
    assert "host" not in links.to_dict()
    with pytest.raises(InputError, match=r"--offload: no way of TPU .* to its host is known; offload nothing"):
        links.host_cycles(1, 10**9)


def test_which_collectives_stand_alone() -> None:
    """Those that the compiler's code has no start and done of: `asynchronous` of the table of compiled collectives."""
    for name in ("v3_4x4", "v4_4x4x4", "v5e_2x4", "v5p_4x4x4", "v6e_2x4"):
        assert {*load_slice(name).interconnect.overlap.alone} == {"all_reduce", "reduce_scatter", "all_to_all"}
    assert load_slice("v7x_2x2x1").interconnect.overlap.alone == ("all_to_all",)
    told = {"none": (), "all_reduce": ("all_reduce",)}
    for word, found in told.items():
        assert load_slice("v6e_2x4", [f"interconnect.overlap.alone={word}"]).interconnect.overlap.alone == found
    with pytest.raises(InputError, match="are no collectives; write none, or a list of"):
        load_slice("v6e_2x4", ["interconnect.overlap.alone=broadcast"])
