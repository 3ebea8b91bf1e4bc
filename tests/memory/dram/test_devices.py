"""What is refused of devices and mappings, and where."""

from __future__ import annotations

import numpy as np
import pytest

from tests import ROOT
from tpusim.base.errors import InputError
from tpusim.input.source import shipped
from tpusim.memory.dram.device import load_device
from tpusim.memory.dram.rules import places

PLAIN = (ROOT / "configs" / "dram" / "hbm2_1ch.yaml").read_text()


def test_shipped() -> None:
    assert [*shipped("configs/dram")] == ["hbm2_16ch", "hbm2_16ch_700", "hbm2_1ch", "hbm2_8ch_300", "hbm2_stack"]


@pytest.mark.parametrize("name", shipped("configs/dram"))
def test_every_shipped_number_has_its_source_on_the_line(name: str) -> None:
    for line in (ROOT / "configs" / "dram" / f"{name}.yaml").read_text().splitlines():
        value = line.split("#")[0].split(":", 1)[-1].strip()
        assert not value or line.startswith("name:") or "# " in line, line
    assert load_device(name).with_overrides([]) == load_device(name)


@pytest.mark.parametrize(
    ("old", "new", "where", "says"),
    [
        ("tRAS: 34 ns", "tRAS: 60 ns\n  tRC: 48 ns", "tRC", "tRC is 48 cycles, but a row is open for tRAS of it"),
        ("tRAS: 34 ns", "tRAS: 34 ns\n  tRC: 20 ns", "tRC", "closes for tRP, 48; write at least tRAS + tRP, or leave"),
        ("tRCDWR: 14 ns", "tRCDWR: 4 us", "tRCDWR", "until it can be written; write tRAS of at least tRCDWR"),
        ("tREFI: 3.9 us", "tREFI: 0", "tREFI", "0 cycles are no time; write at least 1"),
        ("tFAW: 30 ns", "tFAW: 3 ns", "tFAW", "the window of four activates holds more than one"),
        ("tCCD_L: 2", "tCCD_L: 0", "tCCD_L", "tCCD_S is 1 cycles and tCCD_L 0"),
        ("tREFI: 3.9 us", "tREFI: 300 ns", "tREFI", "write a longer tREFI, or refresh: none"),
        ("refresh: all_banks", "refresh: per_bank", "timing", "refresh: per_bank needs tRFC_bank"),
        ("refresh: all_banks", "refresh: often", "refresh", "write all_banks or per_bank or none"),
        ("rows: 32768", "rows: 30000", "rows", "30000 is no power of two, and addresses are cut into bits; write"),
        ("mapping: rorabgbachco", "mapping: rorabgchco", "mapping", "bank has 2 bits, given 0"),
        ("mapping: rorabgbachco", "mapping: rorabgbachcx", "mapping", 'no field "cx"'),
        ("mapping: rorabgbachco", "mapping: row:bnk:column:channel", "mapping", "did you mean bank?"),
        ("mapping: rorabgbachco", "mapping: row:bank:column3:channel", "mapping", "column has 5 bits, given 3"),
        ("mapping: rorabgbachco", "mapping: row:bank:column:column:channel", "mapping", "say how many bits"),
        ("tCL: 14 ns", "tCL: 14 GB", "tCL", "unknown unit 'GB' for a time"),
        ("tCL: 14 ns", "tCL: 14 ns\n  tCAS: 14 ns", "tCAS", "did you mean tRAS?"),
    ],
)  # fmt: skip
def test_bad_devices(tmp_path, old: str, new: str, where: str, says: str) -> None:
    assert old in PLAIN
    text = PLAIN.replace(old, new)
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_device(path)
    message = str(caught.value)
    assert says in message
    assert f"{path}:" in message
    assert where in message
    assert len(caught.value.problems) == 1


def test_every_problem_is_told_at_once(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PLAIN.replace("rows: 32768", "rows: 3").replace("tFAW: 30 ns", "tFAW: 1 ns"))
    with pytest.raises(InputError) as caught:
        load_device(path)
    assert len(caught.value.problems) == 2


def test_mappings_by_letters_and_words() -> None:
    addresses = np.arange(0, 2**30, 2**20 + 64)
    for letters, words in (("rorabgbachco", "row:group:bank:channel:column"),
                           ("rorababgcoch", "row:bank:column:channel"),
                           ("rorababgcoch", "row:bank:group:column2:column3:channel")):  # fmt: skip
        one, other = (places(load_device("hbm2_16ch", [f"mapping={text}"]).addresses(), addresses)
                      for text in (letters, words))  # fmt: skip
        np.testing.assert_array_equal(one, other)


def test_a_mapping_takes_every_burst_to_a_place_of_its_own() -> None:
    small = ["organisation.rows=4", "organisation.channels=2", "organisation.columns=4", "timing.tREFI=3900"]
    for hash_ in ("none", "row"):
        device = load_device("hbm2_16ch", [*small, f"hash={hash_}", "mapping=row:column2:bank:channel"])
        found = places(device.addresses(), np.arange(0, device.capacity_bytes, 64))
        rows = np.stack([found.channel, found.bank, found.row], axis=1)
        seen, counts = np.unique(rows, axis=0, return_counts=True)
        assert len(seen) == device.channels * device.banks * 4
        assert set(counts.tolist()) == {4}
