"""Table II, Fig. 14a and 16, and the chip: the machine, and its behaviour along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tpusim.input.source import read_text, shipped
from tpusim.machines.family import ChipArea, family_of, load_hardware
from tpusim.network.workload_file import load_workload
from tpusim.study.paper.claims import COUNTED, MODELLED, Finding
from tpusim.study.paper.exhibit import AskedPoints, Curves, ExhibitFigures, Making, TextTable, point_of
from tpusim.study.paper.layers import square
from tpusim.study.validation.cases import rows
from tpusim.technology import constants

_MIB = 2**20
_TABLE_2 = "tpu_v2"
_NETWORK, _BATCH = "vgg16", 8


def _vgg16(*changes: str) -> AskedPoints:
    """VGG16 on the machine of Table II with each change, by the change."""
    layers = load_workload(_NETWORK, _BATCH).layers
    machines = {each: load_hardware(_TABLE_2, [each] if each else []) for each in changes}
    return {each: point_of(_NETWORK, layers, machine, _BATCH) for each, machine in machines.items()}


# ---- Table II

_STATED = {
    "array rows": 128, "array columns": 128, "clock (MHz)": 700, "vector ALUs": 256, "vector registers": 256,
    "bytes of a register": 32, "on-chip memory (MiB)": 32, "SRAMs": 128, "bytes of a word": 32, "HBM (GB/s)": 700,
}  # fmt: skip
"""Values of Table II, line by line."""


def configuration() -> Making:
    """Table II: our machine beside the table, and beside a core as published."""
    yield {}
    ours, core = (dict(zip(_STATED, _figures(load_hardware(each)), strict=True)) for each in (_TABLE_2, "tpu_v2_core"))
    lines = [(name, *(f"{each:g}" for each in (stated, ours[name], core[name]))) for name, stated in _STATED.items()]
    same = [Finding(name, ours[name] / stated, COUNTED) for name, stated in _STATED.items()]
    # The core's words are compared in bytes as bfloat16, the type of the estimates that it is held against.
    chip = [Finding(name, each / core[name], COUNTED) for name, each in _STATED.items() if "bytes" not in name]
    head = ("", "the paper", "tpu_v2", "a core of TPU v2 as published, or read off (tpu_v2_core)")
    return ExhibitFigures([TextTable(head, lines)], {"table_2": same, "as_tpu_v2": chip})


def _area(name: str) -> ChipArea:
    """Area of a shipped machine."""
    machine = load_hardware(name)
    area = family_of(machine).area(machine)
    assert area is not None
    return area


def _figures(machine: Any) -> tuple[float, ...]:
    registers = machine.lanes * machine.vector_unit.scalar_words
    array, word = machine.array, machine.word_bytes
    return (
        array.rows, array.cols, float(machine.clock_hz) / 1e6, machine.vector_unit.alus, registers, word,
        machine.sram_bytes / _MIB, machine.lanes, word, machine.hbm.bandwidth_bytes_per_s / 1e9,
    )  # fmt: skip


# ---- the chip

_MM2_OF_NM2 = 1e-12
_W_OF_PW = 1e-12


def whole_chip() -> Making:
    """Area and power of two cores beside those of the chip; nothing is tuned to them. Watts are those of VGG16."""
    found = yield _vgg16("")
    chip = constants.chip_of(_TABLE_2)
    assert chip is not None, "it is shipped"
    ours = _area(_TABLE_2)
    scale = chip.cores * constants.shrink(ours.silicon.feature_nm, chip.feature_nm)
    pitch = ours.total_mm2
    memories = sum(part.mm2 for part in ours.parts if part.key == "vector_memories")
    areas = {
        "vector memories by the pitch of cells": scale * pitch,
        "vector memories by CACTI's macros": scale * (pitch - memories + ours.macros_mm2),
    }
    watts = chip.cores * found[""].figure("energy") / found[""].figure("time_us") * 1e-6
    area, power = chip.area_nm2 * _MM2_OF_NM2, chip.power_pw * _W_OF_PW
    lines = [(f"area, {when}", f"{each:.0f} mm2", f"less than {area:.0f} mm2") for when, each in areas.items()]
    lines.append(("power, VGG16 at batch 8", f"{watts:.0f} W, in 45 nm", f"{power:.0f} W at most, in 16 nm"))
    head = ("", f"{chip.cores} of tpu_v2, modelled", f"{chip.name}, published")
    return ExhibitFigures(
        [TextTable(head, lines)],
        {
            "chip_area": [Finding(when, each / area, MODELLED) for when, each in areas.items()],
            "chip_power": [Finding("VGG16 at batch 8", watts / power, MODELLED)],
        },
    )


_SIGNS = {
    "not verified": "quoted from memory of a publication, and not held against it",
    "second hand": "quoted alike by others, and not held against the publication either",
}
"""Marks, in the comment on a constant's line, that areas and energies rest on, and their meanings."""


def unverified() -> tuple[str, ...]:
    """Sentences about unverified constants, each with the text of its file."""
    folders = constants.FOLDER, constants.CHIPS
    files = ((f"{folder}/{name}.yaml", path) for folder in folders for name, path in shipped(folder).items())
    # The mark of an unverified constant stands in the comment of its line.
    lines = [(place, line.partition("#")) for place, path in files for line in read_text(path).splitlines()]
    said = ["Areas, energies and figures of whole chips come from constants in configs/technology and configs/chips."]
    for sign, meaning in _SIGNS.items():
        marked = [
            f"{place}, {constant.strip()} ({comment.strip()})"
            for place, (constant, _, comment) in lines
            if sign in comment and constant.strip()
        ]
        if marked:
            said += [f"{len(marked)} of them are {meaning}:", *marked]
    return *said, "Verdicts on cycles stand on none of them."


# ---- Fig. 14a


def number_of_tiles() -> Making:
    """Fig. 14a: TFLOPS and workspace of a layer over the taps that a pass stacks.

    Beyond three (W_F), more tiles are whole filter rows, which the paper does not mention.
    """
    # The kernel is 3x3: up to W_F = 3 taps of a row are stacked, beyond that whole rows.
    tiles, beyond = (1, 2, 3, 4, 6, 9), 3
    layer, machines = square((128, 8, 128, 3)), (_TABLE_2, "tpu_v2_estimator")
    found = yield {
        (name, each): point_of("fig_14a", [layer], load_hardware(name, [f"mapping.multi_tile={each}"]))
        for name in machines
        for each in tiles
    }
    tflops = {name: [found[name, each].figure("tflops") for each in tiles] for name in machines}
    space = [found[_TABLE_2, each].figure("peak_bytes") / _MIB for each in tiles]
    curves = Curves(
        "128x128x8 > 128, 3x3, batch 8", tiles, "tiles", tflops, "TFLOPS", {"workspace": space}, "workspace (MiB)"
    )
    first, second, *_ = space
    linear = [
        Finding(f"{each} tiles", (used - first) / (each - 1) / (second - first))
        for each, used in zip(tiles[2:], space[2:], strict=True)
    ]

    def saved(name: str, before: int, after: int) -> float:
        """Cycles saved for each tile."""
        return (found[name, before].cycles - found[name, after].cycles) / (after - before)

    less = [
        Finding(f"{after} tiles, {name}", saved(name, middle, after) / saved(name, before, middle))
        for name in machines
        for before, middle, after in ((1, 2, beyond), (1, beyond, tiles[-1]))
    ]
    return ExhibitFigures([curves], {"workspace_linear": linear, "diminishing_return": less})


# ---- Fig. 16


def size_of_array() -> Making:
    """Fig. 16a: TFLOPS and utilisation of VGG16 over the size of the array."""
    sides = 32, 64, 128, 256, 512
    changes = [f"array.size={side}" for side in sides]
    found = yield _vgg16(*changes)
    tflops = [found[each].figure("tflops") for each in changes]
    used = [100 * found[each].figure("pe_utilization") for each in changes]
    curves = Curves(
        "VGG16 over the size of the array", sides, "array size (PEs a side)", {"TFLOPS": tflops}, "TFLOPS",
        {"PE utilisation": used}, "PE utilisation (%)", doubling=True,
    )  # fmt: skip
    faster = min(after / before for before, after in pairwise(tflops))
    emptier = min(before / after for before, after in pairwise(used))
    return ExhibitFigures(
        [curves],
        {
            "size_performance": [Finding("TFLOPS", faster), Finding("utilisation", emptier)],
            "size_utilisation": [Finding("VGG16", used[sides.index(256)] / used[sides.index(128)])],
        },
    )


def width_of_word() -> Making:
    """Fig. 16b: idle ports of VGG16 and area over the width of a word; the paper's area of words of one element."""
    widths, stated = (1, 2, 4, 8, 16, 32), 5.0
    changes = [f"vector_memory.word_elements={word}" for word in widths]
    found = yield _vgg16(*changes)
    idle = [100 * found[each].figure("port_idle_ratio") for each in changes]
    srams = _area(_TABLE_2).words
    pitch = _normalised(widths, {each.elements: float(each.pitch_mm2) for each in srams})
    macro = _normalised(widths, {each.elements: float(each.macro_mm2) for each in srams})
    curves = Curves(
        "VGG16 over the width of a word", widths, "word (elements of 4 bytes)",
        {"area by pitch": [*pitch.values()], "area by CACTI": [*macro.values()]}, "area over the least",
        {"ports unused": idle}, "ports unused (%)", {f"the paper's words of 1: {stated:g}": stated}, doubling=True,
    )  # fmt: skip

    def both(word: int, other: int | None = None) -> list[Finding]:
        ways = (("by the pitch of cells", pitch), ("by CACTI's macros", macro))
        return [Finding(how, area[word] / (area[other] if other else 1), MODELLED) for how, area in ways]

    # The whole curve is compared with a table of it.
    column = "openram_pitch_model_oh96um_norm"
    known = {int(row["word_elems_4B"]): float(row[column]) for row in rows("sram_area_vs_word")}
    order = [Finding(f"words of {word}", pitch[word] / known[word], MODELLED) for word in widths]
    areas = {"word_one": both(1), "word_narrow": both(1, 8), "word_eight": both(8)}
    used = [Finding("VGG16", 100 - idle[widths.index(8)])]
    return ExhibitFigures([curves], {**areas, "word_order": order, "word_bandwidth": used})


def _normalised(widths: Sequence[int], areas: dict[int, float]) -> dict[int, float]:
    """Areas of words of these widths, relative to the smallest."""
    least = min(areas.values())
    return {word: areas[word] / least for word in widths}
