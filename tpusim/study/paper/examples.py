"""Fig. 10 and 11: a tile, and two tiles together, on an array of 4 x 4."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.observation.timeline import ACCESSES
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.workload_file import load_workload
from tpusim.study.paper.claim import COUNTED, Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.memory_contents import EMPTY, Numbers, contents, most_lanes, place
from tpusim.study.paper.views import Cell, Grid

_BATCH = 2
_READ, _WRITE = "R", "W"
_CLIENTS: Mapping[str, tuple[str, int]] = {"ifmap": (_READ, 1), "result": (_WRITE, 2)}
"""Letter and tone of what the figures show of a port; the DMA's words come before and after."""
_SHOWN = 24
"""Cycles from the first read on."""
_ONE_TILE = "mapping.multi_tile=1"


def asked() -> Asked:
    """The layer of Fig. 11 with its two tiles together, and one at a time."""
    machine, layers = load_hardware("tiny_4x4"), {each.name: each for each in load_workload("tiny", _BATCH).layers}
    one = load_hardware("tiny_4x4", [_ONE_TILE])
    return {
        "fig10": point_of("fig10", [layers["fig10"]], machine, _BATCH),
        "fig11": point_of("fig11", [layers["fig11"]], machine, _BATCH),
        "one tile": point_of("fig11", [layers["fig11"]], one, _BATCH),
    }


def make_single(found: Found) -> Shown:
    """Fig. 10: what stands where, and how reads and writes take turns."""
    run = _Run.of("fig10")
    stalls = float(found["fig10"].figures["port_stall_cycles"])
    findings = [Finding("the tile of the figure, cycles stalled at ports", stalls)]
    turns = [Finding("reads of a lane, cycles apart", run.apart("ifmap")), Finding("its writes", run.apart("result"))]
    return Shown(run.views(), {"interleaved": findings, "every_second": turns})


def make_double(found: Found) -> Shown:
    """Fig. 11: the same with two tiles at a time."""
    run = _Run.of("fig11")
    used = {key: float(found[key].figures["mapping_efficiency"]) for key in ("fig11", "one tile")}
    memory = contents(run.program, run.layer, _BATCH, run.hardware)
    return Shown(
        run.views(),
        {
            "two_tiles": [Finding("PEs in use, two tiles over one", used["fig11"] / used["one tile"])],
            "duplication": [Finding("lanes that hold an element", most_lanes(memory), COUNTED)],
        },
    )


class _Run:
    """A layer of the shipped workload `tiny` on the machine of these figures, looked at."""

    def __init__(self, layer: ArrayOp, program: Program, hardware: Hardware) -> None:
        self.layer, self.program, self.hardware = layer, program, hardware
        track = event.record(program, hardware).timeline().tracks["port"]
        self.owners = {cycle: each.name for each in track for cycle in range(each.start, each.end)}

    @classmethod
    def of(cls, name: str) -> _Run:
        hardware = load_hardware("tiny_4x4")
        layer = next(each for each in load_workload("tiny", _BATCH).layers if each.name == name)
        assert isinstance(layer, ArrayOp), "these are convolutions"
        program, _ = lowered(layer, _BATCH, hardware, "channel_first")
        return cls(layer, program, hardware)

    def apart(self, client: str) -> float:
        """Cycles between two accesses of lane 0, at least."""
        return float(np.diff([cycle for cycle, name in self.owners.items() if name == client]).min())

    def views(self) -> list[Grid]:
        """What stands in the vector memories, and who has their ports."""
        return [self._memories(), self._ports()]

    def _memories(self) -> Grid:
        memory = contents(self.program, self.layer, _BATCH, self.hardware)
        used = memory[:, (memory != EMPTY).any(axis=(0, 2))]
        shape = self.layer.tensors(_BATCH).ifmap
        cells = [[Cell(_word(word, shape), lane % shape[0] + 1) for word in words] for lane, words in enumerate(used)]
        tones = {channel + 1: f"channel {channel + 1}" for channel in range(shape[0])}
        rows = [f"lane {lane + 1}" for lane in range(len(used))]
        title = "words of the vector memories: (row, column, channel, image)"
        return Grid(title, cells, rows, tones=tones)

    def _ports(self) -> Grid:
        """Every lane runs the schedule of lane 0 a cycle after its neighbour."""
        first = min(cycle for cycle, name in self.owners.items() if name == "ifmap")
        cycles = range(first, first + _SHOWN)
        cells = [[self._access(cycle - lane) for cycle in cycles] for lane in range(self.hardware.lanes)]
        tones = {tone: f"{letter} {ACCESSES[letter].meaning}" for letter, tone in _CLIENTS.values()}
        names = [f"lane {lane + 1}" for lane in range(self.hardware.lanes)]
        return Grid("ports, cycle by cycle", cells, names, [str(cycle) for cycle in cycles], tones)

    def _access(self, cycle: int) -> Cell:
        return Cell(*_CLIENTS.get(self.owners.get(cycle, ""), ("", 0)))


def _word(word: Numbers, shape: tuple[int, int, int, int]) -> str:
    """The elements of a word, a line each."""
    places = (place(each, shape) for each in word)
    return "\n".join(f"({row + 1},{col + 1},{channel + 1},{image + 1})" for channel, row, col, image in places)
