"""A timeline as traces show it: meanings of tracks, facts of steps, and bandwidth and shares over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.lowered import Drawing
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import Cycles, Timeline, Track, unit_name, words_in_use
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step
from tpusim.machines.tpu.sections import MOST_ARRAYS
from tpusim.result.vocabulary.states import CLIENTS

MOST_CHANNELS = 64
"""Most channels of a DRAM that are drawn."""

_TRANSFERS = "Transfers from their start to their last word on the chip or off it; two may be under way at once."
OF_AN_ARRAY = {
    "preload": "Weights on their way into the array (busy), or why they are not.",
    "stream": "Each pass from its first ifmap read to its last.",
    "systolic_array": "The array takes elements in (busy), or why it does not.",
    "drain": "Each pass from its first result write to its last.",
    "vector_unit": "Busy adding results to partial sums, or with words of its own steps.",
}
"""Tracks that every array with weights of its own has."""

TRACKS = {
    "hbm": "The HBM bus: busy with transfers, blocked by steps they wait for, or kept back by a port that was taken.",
    **{
        f"hbm_channel_{number}": f"Channel {number} of the DRAM: of each transfer, from the first burst accepted "
        "to the last one done."
        for number in range(MOST_CHANNELS)
    },
    "scratch_memory": "The bus between the scratch memory and the lanes, likewise.",
    "dma_0": _TRANSFERS,
    "dma_1": _TRANSFERS,
    "queue": "What keeps the oldest transfer from being done, to which units book waiting for a fill: steps that it "
    "waits for (blocked), HBM (starved), its conversion, the port.",
    **{
        unit_name(name, array): f"{about} Of array {array}, which has weights of its own." if array else about
        for array in range(MOST_ARRAYS)
        for name, about in OF_AN_ARRAY.items()
    },
    "vector": "Each step of the vector unit by itself, from its first operand read to its last result write.",
    "port": "Who owns each cycle of the memory port of lane 0, slots that padding leaves unused included.",
    **{f"port_{key}": f"The port of lane 0 for {each.label} alone." for key, each in CLIENTS.items() if key != "idle"},
}
"""Meaning of each track, in the order shown; a machine has either `port` or the tracks of single ports."""


# ---- counters: bandwidth and shares, as means over windows of cycles


_Means = NDArray[np.float64]

_DECIMALS = 6
"""Decimals of a mean that are kept; further ones are rounding noise of the sums."""

_MEAN = "mean over windows of {window:,} cycles."
COUNTERS = {
    "HBM bandwidth": ("GB/s", f"Bytes across the bus, a transfer's spread evenly; {_MEAN}"),
    "PE occupancy": ("%", f"PEs in rows and columns that the pass uses, while busy; {_MEAN}"),
    "port occupancy": ("%", f"Owned cycles of lane 0's port or ports; {_MEAN}"),
    "words in use": ("words", "Words of a lane's vector memory that hold what is still needed, or are kept for it."),
}
"""Unit and meaning of each counter."""


def windows(first: int, stop: int, length: int) -> Cycles:
    """Starts of windows of `length` cycles in [first, stop), and `stop`."""
    return np.append(np.arange(first, stop, length), stop)


@dataclass(frozen=True)
class TimelineDrawing(Drawing):
    """A drawing of a Program's timeline, of `cycles` cycles in all."""

    cycles: int
    program: Program
    timeline: Timeline
    hardware: Hardware

    seen: ClassVar[str] = ", seen from lane 0"
    about_layers: ClassVar[str] = (
        "Layers, one after another. A layer that overlaps with the layer before is counted from when the array has "
        "ended that layer."
    )
    about: ClassVar[Mapping[str, str]] = TRACKS
    counted: ClassVar[Mapping[str, tuple[str, str]]] = COUNTERS

    @property
    def names(self) -> Collection[str]:
        """Names of the tracks."""
        return self.timeline.tracks.keys()

    def tracks(self, first: int, stop: int) -> Mapping[str, Track]:
        """Tracks cut to cycles [first, stop)."""
        return {name: track.clipped(first, stop) for name, track in self.timeline.tracks.items()}

    def slices(self, first: int, stop: int) -> int:
        """Number of slices in cycles [first, stop)."""
        return sum(map(len, self.tracks(first, stop).values()))

    def arguments(self, layers: Sequence[str]) -> Sequence[Mapping[str, int | str]]:
        """Facts of each step; passes are numbered from 0, and steps of several layers name their layer."""
        program = self.program
        numbers = {index: {"pass": number} for index, number in program.numbers_of_passes.items()}
        whose = [{"layer": layers[number]} for number in program.layers] or [{} for _ in program.rows]
        told = enumerate(zip(program.rows, whose, strict=True))
        return [{**layer, **numbers.get(index, {}), **step.facts} for index, (step, layer) in told]

    def counters(self, edges: Cycles) -> dict[str, tuple[Cycles, _Means]]:
        """(cycles, values) of each of COUNTERS: a value holds until the next cycle, the last until edges[-1].

        Values are means between neighbouring `edges` (ascending, at least two); only words in use have cycles of their
        own.
        """
        hbm, program, hardware = self.timeline.tracks["hbm"], self.program, self.hardware
        arrays = [track for name, track in self.timeline.tracks.items() if name.startswith("systolic_array")]
        ports = [track for name, track in self.timeline.tracks.items() if name.startswith("port")]
        owned = sum((_means(port, np.ones(len(port)), edges) for port in ports), np.zeros(len(edges) - 1))
        # The bytes of a step are spread evenly over the cycles in which the bus is busy with it.
        sizes = [step.use.hbm_read_bytes + step.use.hbm_write_bytes for step in program.rows]
        busy = _called(hbm, "busy")
        cycles = np.bincount(hbm.steps[busy], (hbm.ends - hbm.starts)[busy], len(sizes))
        moved = np.where(busy, np.array(sizes, float)[hbm.steps] / np.maximum(cycles[hbm.steps], 1), 0.0)
        shares = np.array([_share(step, hardware) for step in program.rows])
        occupied = sum(
            (_means(array, shares[array.steps] * _called(array, "busy"), edges) for array in arrays),
            np.zeros(len(edges) - 1),
        )
        return {
            "HBM bandwidth": (edges[:-1], hardware.clock_hz / 1e9 * _means(hbm, moved, edges)),
            "PE occupancy": (edges[:-1], 100 * occupied),
            "port occupancy": (edges[:-1], 100 / len(ports) * owned),
            "words in use": _within(*words_in_use(program, self.timeline), int(edges[0]), int(edges[-1])),
        }


def _means(track: Track, weights: _Means, edges: Cycles) -> _Means:
    """Mean over time, between neighbouring edges, of a weight of `weights[k]` a cycle during slice k."""
    bounds = np.stack([track.starts, track.ends], axis=1).ravel()
    steps = np.stack([np.zeros(len(track)), (track.ends - track.starts) * weights], axis=1).ravel()
    # Interpolating the running sum splits slices at the edges.
    until = np.interp(edges, [-1, *bounds.tolist()], [0.0, *np.cumsum(steps).tolist()])
    means: _Means = np.round(np.diff(until) / np.diff(edges), _DECIMALS)
    return means


def _called(track: Track, name: str) -> NDArray[np.bool_]:
    kinds = [kind for kind, each in enumerate(track.names) if each == name]
    return np.isin(track.kinds, kinds)


def _share(step: Step, hardware: Hardware) -> float:
    """The share of all PEs that multiply while a pass is busy; in its last frame arrays may be without a word."""
    frames = -(-step.use.words_streamed // hardware.array.together)
    return step.use.pe_words / (frames * hardware.pes) if frames else 0.0


def _within(cycles: Cycles, values: Cycles, first: int, stop: int) -> tuple[Cycles, _Means]:
    """Values that hold in [first, stop), the first of them from `first` on."""
    at, end = np.searchsorted(cycles, first, "right") - 1, np.searchsorted(cycles, stop, "left")
    return np.maximum(cycles[at:end], first), values[at:end].astype(float)
