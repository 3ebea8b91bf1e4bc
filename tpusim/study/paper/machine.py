"""Table II, and what is published of the whole chip."""

from __future__ import annotations

from tpusim.machines.tpu.cost import memories_by_macro, parts_of, total_mm2
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.network.workload_file import load_workload
from tpusim.study.paper.claim import COUNTED, MODELLED, Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.views import Table
from tpusim.technology.area import shrink
from tpusim.technology.chips import chip_of

_MIB, _MHZ, _GB = 2**20, 1e6, 1e9
_STATED = {
    "array rows": 128, "array columns": 128, "clock (MHz)": 700, "vector ALUs": 256, "vector registers": 256,
    "bytes of a register": 32, "on-chip memory (MiB)": 32, "SRAMs": 128, "bytes of a word": 32, "HBM (GB/s)": 700,
}  # fmt: skip
"""Table II, line by line."""
_NETWORK = "vgg16"
_MM2_OF_NM2 = 1e-12
_W_OF_PW = 1e-12


# ---- Table II


def make_configuration(_: Found) -> Shown:
    """Our machine beside the table, and beside a core as published."""
    ours, core = _figures(load_hardware("tpu_v2")), _figures(load_hardware("tpu_v2_core"))
    rows = [(name, *(f"{each:g}" for each in (stated, ours[name], core[name]))) for name, stated in _STATED.items()]
    same = [Finding(name, ours[name] / stated, COUNTED) for name, stated in _STATED.items()]
    # In bytes, words of the core are those of bfloat16, the type of the estimates that it is held against.
    chip = [Finding(name, each / core[name], COUNTED) for name, each in _STATED.items() if "bytes" not in name]
    head = ("", "the paper", "tpu_v2", "a core of TPU v2 as published, or read off (tpu_v2_core)")
    return Shown([Table(head, rows)], {"table_2": same, "as_tpu_v2": chip})


def _figures(machine: Hardware) -> dict[str, float]:
    words = machine.lanes * machine.vector_unit.scalar_words
    return dict(
        zip(
            _STATED,
            (
                machine.array.rows,
                machine.array.cols,
                float(machine.clock_hz) / _MHZ,
                machine.vector_unit.alus,
                words,
                machine.word_bytes,
                machine.sram_bytes / _MIB,
                machine.lanes,
                machine.word_bytes,
                machine.hbm.bandwidth_bytes_per_s / _GB,
            ),
            strict=True,
        )
    )


# ---- the chip


def chip_asked() -> Asked:
    """VGG16, for its watts."""
    return {"power": point_of(_NETWORK, load_workload(_NETWORK, 8).layers, load_hardware("tpu_v2"))}


def make_chip(found: Found) -> Shown:
    """Area and power of two cores beside those of the chip; nothing is tuned to them."""
    machine = load_hardware("tpu_v2")
    chip = chip_of("tpu_v2")
    assert chip is not None, "it is shipped"
    scale = chip.cores * shrink(machine.silicon.feature_nm, chip.feature_nm)
    pitch = total_mm2(machine)
    memories = sum(part.mm2 for part in parts_of(machine) if part.key == "vector_memories")
    areas = {
        "vector memories by the pitch of cells": scale * pitch,
        "vector memories by CACTI's macros": scale * (pitch - memories + memories_by_macro(machine)),
    }
    figures = found["power"].figures
    watts = chip.cores * float(figures["energy"]) / float(figures["time_us"]) * 1e-6
    area, power = chip.area_nm2 * _MM2_OF_NM2, chip.power_pw * _W_OF_PW
    rows = [(f"area, {when}", f"{each:.0f} mm2", f"less than {area:.0f} mm2") for when, each in areas.items()]
    rows.append(("power, VGG16 at batch 8", f"{watts:.0f} W, in 45 nm", f"{power:.0f} W at most, in 16 nm"))
    head = ("", f"{chip.cores} of tpu_v2, modelled", f"{chip.name}, published")
    return Shown(
        [Table(head, rows)],
        {
            "chip_area": [Finding(when, each / area, MODELLED) for when, each in areas.items()],
            "chip_power": [Finding("VGG16 at batch 8", watts / power, MODELLED)],
        },
    )
