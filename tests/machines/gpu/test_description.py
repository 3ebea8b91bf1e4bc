"""A GPU is read with its units, told of with its faults, and written as it was read."""

from __future__ import annotations

import pytest

from tests.machines.gpu import SMALL, gpu
from tpusim.base.errors import InputError
from tpusim.input.document import parse_document
from tpusim.machines.gpu.description import Gpu, read


def test_what_was_written_is_read_again() -> None:
    machine = gpu("mapping.reuse=cache")
    assert read(parse_document(SMALL, "s.yaml"), {"mapping.reuse": "cache"}) == machine
    assert Gpu.model_validate(machine.to_dict(), context={"from_yaml": True}) == machine
    assert machine.with_overrides(["clock=2 GHz"]).clock_hz == 2 * machine.clock_hz
    assert hash(machine) == hash(gpu("mapping.reuse=cache"))


def test_peaks() -> None:
    machine = gpu()
    assert (machine.pes, machine.hbm_bytes_per_s) == (2048, 900 * 10**9)
    assert machine.sram_bytes == (6 << 20) + 4 * (128 << 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sm.count=0", "0 is out of range; write a whole number, 1 to 65536"),
        ("l2.size=6", "has no unit; write e.g. 256 KiB"),
        ("mapping.tile=128x65", "no tile '128x65'; did you mean 128x64?"),
        ("mapping.order=taps", "allowed"),
        ("sm.cout=1", "no field"),
        ("tiles=3", "3 is no list of tiles"),
        ("l2.bytes_per_cycle=0", "0 is out of range; write a number, 0.001 to 1048576, such as 13.4 or 3/4"),
        ("sm.epilogue_bytes_per_cycle=1e-9", "0.001 to 65536"),
        ("dram.reached=0", "0.001 to 1, such as 0.75"),
        ("sm.shared=129 KiB", "129 KiB is a part of sm.unified, 128 KiB; set that higher, or this lower"),
        (
            "tiles[0].m=1",
            r"tiles is a list, and --set changes single values; copy the machine's file, and change tiles\[0\].m",
        ),
        ("sm.async_copy=3", "3 is neither true nor false"),
    ],
)
def test_faults_are_told_of(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        gpu(change)


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ("m: 64, n: 32, share: 0", r"tiles\[1\].share: 0 is out of range; write a number, 0.001 to 1"),
        (
            "m: 64, n: 32, shre: 0.5",
            r'tiles\[1\].shre: unknown key "shre"; did you mean share\? allowed in tiles\[1\]: m, n',
        ),
        ("m: 64, n: 32, share: 1.5", r"tiles\[1\].share: 1.5 is out of range; write a number, 0.001 to 1"),
        ("m: 64, n: 32, share: 1e-9", r"tiles\[1\].share: \"1e-9\" is out of range"),
        ("m: 128, n: 64, share: 0.5", r"s.yaml:23: tiles\[1\]: 128x64 is tiles\[0\] already; leave one of them out"),
        ("n: 32", r"tiles\[1\].m: required key is missing; add m: 128"),
        ("m: 64, n: 32, products: 3", r"tiles\[1\].products: 3 is neither true nor false"),
    ],
)
def test_faults_of_a_tile_are_told_of(tile: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(parse_document(SMALL.replace("m: 64, n: 32, share: 0.5", tile), "s.yaml"), ())


def test_a_tile_that_is_none_is_told_of() -> None:
    with pytest.raises(
        InputError, match=r"tiles\[1\]: 3 is not a section; write one with the keys m, n, share, products"
    ):
        read(parse_document(SMALL.replace("{m: 64, n: 32, share: 0.5}", "3"), "s.yaml"), ())


def test_a_machine_for_products_alone_is_refused() -> None:
    text = SMALL.replace("n: 64}", "n: 64, products: true}").replace("share: 0.5}", "share: 0.5, products: true}")
    with pytest.raises(InputError, match="no tile for convolutions"):
        read(parse_document(text, "s.yaml"), ())
