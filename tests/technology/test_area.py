"""Areas: against the paper's Fig. 16b, against what was laid out, and that parts add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import ROOT
from tpusim.base.errors import InputError
from tpusim.cli.app import app
from tpusim.machines.tpu.cost import area_of, parts_of
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.technology.constants import chip_of, load_technology

PLAIN = (ROOT / "configs" / "technology" / "45nm.yaml").read_text()


@pytest.mark.parametrize("path", ["technology/45nm.yaml", "chips/tpu_v2.yaml", "chips/tpu_v3.yaml"])
def test_every_shipped_number_has_its_source_on_the_line(path: str) -> None:
    for line in (ROOT / "configs" / path).read_text().splitlines():
        value = line.split("#")[0].split(":", 1)[-1].strip()
        assert not value or line.startswith(("name:", "feature: 45")) or line.startswith("  words") or "# " in line, (
            line
        )


def test_the_order_of_the_papers_fig_16b() -> None:
    """256 KB: one-element words about 5 times the least, 4-byte words 3.2 times 32-byte ones."""
    size = {sram.elements: sram.pitch_mm2 for sram in area_of(load_hardware("tpu_v2")).words}
    assert sorted(size.values(), reverse=True) == [*size.values()]
    assert size[1] / min(size.values()) == pytest.approx(5, rel=0.1)
    assert size[1] / size[8] == pytest.approx(3.2, rel=0.1)
    # The paper calls it close to the least; by the pitch of cells it is a third above.
    assert size[8] / min(size.values()) == pytest.approx(1.35, abs=0.01)


def test_compiled_macros_are_what_the_file_says() -> None:
    """At the widths of the file and between them, and in proportion to the capacity."""
    usual = load_technology()
    assert usual.macro.area(8192, 256) == pytest.approx(0.876577)
    assert usual.macro.area(4096, 256) == pytest.approx(0.876577 / 2)
    assert 0.876577 < usual.macro.area(256 * 1024 // 48, 384) < 1.07416
    assert usual.macro.area(1024, 2048) == pytest.approx(0.776452)


def test_a_crossbar_grows_with_the_square_of_its_ports() -> None:
    usual = load_technology()
    laid_out = usual.crossbar.area(128, 128, 32, usual.feature_nm)
    assert laid_out == pytest.approx(6.6 / 4)
    assert usual.crossbar.area(256, 256, 32, usual.feature_nm) == pytest.approx(4 * laid_out)
    assert usual.crossbar.area(128, 128, 256, usual.feature_nm) == pytest.approx(8 * laid_out)


@pytest.mark.parametrize("name", ["tpu_v2", "tpu_v2_banked", "tpu_v3_core", "tiny_4x4"])
def test_parts_add_up(name: str) -> None:
    done = CliRunner().invoke(app, ["area", "--hardware", name, "--json", "-"])
    found = json.loads(done.stdout)
    assert sum(part["mm2"] for part in found["parts"]) == pytest.approx(found["total_mm2"])
    assert {part["basis"] for part in found["parts"]} == {"model", "published"}
    assert found["total_mm2"] == area_of(load_hardware(name)).total_mm2
    assert found["technology"]["name"] == "45nm"


def test_two_elements_a_cycle_take_a_second_multiplier_and_its_registers() -> None:
    """Weights are held once, and a wavefront over two PEs a cycle is told to need as many registers."""
    once, twice = (
        {part.key: part.mm2 for part in area_of(load_hardware("tpu_v2", change)).parts}
        for change in ("array.pes_per_cycle=2", "array.elements_per_cycle=2")
    )
    assert once == {part.key: part.mm2 for part in area_of(load_hardware("tpu_v2")).parts}
    assert twice["array"] == pytest.approx(2 * once["array"])
    assert twice["pe_registers"] == pytest.approx(once["pe_registers"] * (16 * 3 + 2 * 48) / (16 * 3 + 48))
    assert {key for key in once if twice[key] != once[key]} == {"array", "pe_registers"}


def test_a_banked_machine_has_a_crossbar_more() -> None:
    lanes, banked = (
        {part.key: part.mm2 for part in parts_of(load_hardware(each))} for each in ("tpu_v2", "tpu_v2_banked")
    )
    assert {*banked} - {*lanes} == {"banks", "crossbar"}
    assert banked["crossbar"] == pytest.approx(8 * 6.6 / 4)
    assert banked["vector_memories"] + banked["banks"] == pytest.approx(lanes["vector_memories"])


def test_the_published_chip_stands_beside() -> None:
    text = " ".join(CliRunner().invoke(app, ["area"]).stdout.split())
    assert "TPU v2, published: less than 611 mm2 and 280 W in 16 nm, for 2 cores" in text
    assert "None is measured." in text
    found = area_of(load_hardware("tpu_v2"))
    others = sum(part.mm2 for part in found.parts if part.key != "vector_memories")
    with_macros = others + found.macros_mm2
    assert f"With vector memories by CACTI's macros (a model): {with_macros:.0f} mm2 instead of" in text
    assert chip_of("tpu_v2_core_hbm") == chip_of("tpu_v2") != chip_of("tpu_v3_core")
    assert chip_of("tiny_4x4") is None
    assert "published:" not in CliRunner().invoke(app, ["area", "--hardware", "tiny_4x4"]).stdout.partition("HBM")[2]


def test_narrow_words_take_more() -> None:
    wide, thin = (load_hardware("tpu_v2", [f"vector_memory.word_elements={n}"]) for n in (8, 1))
    assert area_of(thin).total_mm2 > 2 * area_of(wide).total_mm2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("feature: 45 nm", "feature: 45", "write e.g. 45 nm"),
        ("fp32_add: 0.9 pJ", "fp32_add: 0.9 mm2", "arithmetic.fp32_add: unknown unit 'mm2' for a energy"),
        ("fp32_add: 0.9 pJ", "fp32_ad: 0.9 pJ", "did you mean fp32_add?"),
        ("words: [2 B, 4 B,", "words: [4 B, 2 B,", "macro.words: words must grow"),
        ("words: [2 B, 4 B,", "words: [4 B, 4 B,", "macro.words: words must grow"),
        ("words: [2 B, 4 B,", "words: [4 B,", "macro.area: 7 values for 6 words"),
        ("read: [17.0226 pJ,", "read: [17.0226,", "macro.read: 17.0226 has no unit"),
        ("width: 32 ", "width: wide ", "crossbar.width: "),
    ],
)
def test_bad_technologies(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in PLAIN
    path = tmp_path / "mine.yaml"
    path.write_text(PLAIN.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_technology(path)
    assert says in str(caught.value)
    assert f"{path}:" in str(caught.value)


def test_an_unknown_technology_is_told_once_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text((ROOT / "configs" / "tpu_v2.yaml").read_text() + "technology: 46nm\n")
    with pytest.raises(InputError) as caught:
        load_hardware(path)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{path}:")
    assert "did you mean 45nm?" in str(problem)


def test_a_technology_of_ones_own_travels_with_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PLAIN.replace("name: 45nm", "name: mine").replace("periphery: 96 um", "periphery: 85 um"))
    machine = load_hardware("tpu_v2", [f"technology={path}"])
    written = machine.to_dict()
    assert written["technology"]["pitch"]["periphery"] == "85 um"
    assert Hardware.model_validate(written) == machine
    assert load_hardware("tpu_v2", ["technology=45nm"]).to_dict()["technology"] == "45nm"
    assert area_of(machine).total_mm2 < area_of(load_hardware("tpu_v2")).total_mm2
