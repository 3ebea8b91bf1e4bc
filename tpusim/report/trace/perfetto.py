"""A timeline in Perfetto's native format, for https://ui.perfetto.dev and the tools of the perfetto package.

A nanosecond of the trace is a cycle, so that every slice is exact and lengths add up to the cycles of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from tpusim.base.version import __version__
from tpusim.machines.family import Slot
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import MOST_CHANNELS
from tpusim.machines.tpu.observation.timeline import Cycles, Timeline, TimeSlice, Track, Watch, unwatched, words_in_use
from tpusim.machines.tpu.observation.timing import unit_name
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step
from tpusim.machines.tpu.sections import MOST_ARRAYS
from tpusim.report.text import frequency
from tpusim.result.vocabulary.states import CLIENTS

_TRANSFERS = "Transfers from their start to their last word on the chip or off it; two may be under way at once."
_LAYERS = (
    "Layers, one after another; of those that overlap each from when the array is done with the one ahead, as their "
    "cycles are counted."
)
OF_AN_ARRAY = {
    "preload": "Weights on their way into the array (busy), or why they are not.",
    "stream": "Each pass from its first ifmap read to its last.",
    "systolic_array": "The array takes elements in (busy), or why it does not.",
    "drain": "Each pass from its first result write to its last.",
    "vector_unit": "Busy adding results to partial sums, or with words of its own steps.",
}
"""The tracks that each array has which has weights of its own."""

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
    **{
        unit_name(name, array): f"{about} Of array {array}, which has weights of its own." if array else about
        for array in range(MOST_ARRAYS)
        for name, about in OF_AN_ARRAY.items()
    },
    "vector": "Each step of the vector unit by itself, from its first operand read to its last result write.",
    "port": "Who owns each cycle of the memory port of lane 0, slots that padding leaves unused included.",
    **{f"port_{key}": f"The port of lane 0 for {each.label} alone." for key, each in CLIENTS.items() if key != "idle"},
}
"""What each track shows, in the order shown; a machine has either `port` or the others."""

_MOST_WINDOWS = 1000


class LayerSpan(NamedTuple):
    """A layer's share of the time: cycles [first, stop) of those of its Program; and what it reads, where known."""

    name: str
    first: int
    stop: int
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A Program on the time axis of a trace, of a layer or of several that overlap: its cycle 0 is cycle `at`."""

    at: int
    program: Program
    timeline: Timeline
    layers: tuple[LayerSpan, ...]

    @property
    def stop(self) -> int:
        """The cycle after its last."""
        return self.at + self.timeline.cycles


def perfetto(
    title: str, placed: Sequence[Placed], hardware: Hardware, first: int, stop: int, watch: Watch = unwatched
) -> bytes:
    """The file's contents: what Programs, one after another, do in cycles [first, stop), which cover part of each.

    `watch` is told how many layers are written.
    """
    packets, root, layer_track = _begun(title, hardware.clock_hz, ", seen from lane 0", _LAYERS)
    known = {name for each in placed for name in each.timeline.tracks}
    tracks = {name: packets.track(name, about, root) for name, about in TRACKS.items() if name in known}
    window = max(1, -(-(stop - first) // _MOST_WINDOWS))
    series = {
        name: packets.track(name, about.format(window=window), root, unit) for name, (unit, about) in COUNTERS.items()
    }
    done = 0
    for each in placed:
        watch(done)
        start, end = max(first, each.at) - each.at, min(stop, each.stop) - each.at
        packets.slices(layer_track, _clipped(each.layers, start, end), [*map(_told, each.layers)], each.at)
        arguments = _arguments(each.program, each.layers)
        for name, track in each.timeline.clipped(start, end).tracks.items():
            packets.slices(tracks[name], track, arguments, each.at)
        edges = windows(start, end, window)
        for name, (cycles, values) in counters(each.program, each.timeline, hardware, edges).items():
            packets.values(series[name], zip((cycles + each.at).tolist(), values.tolist(), strict=True))
        done += len(each.layers)
    for counter in series.values():
        packets.values(counter, [(stop, 0.0)])
    return packets.to_bytes()


def _begun(title: str, clock_hz: int, seen: str, layers: str) -> tuple[Packets, int, int]:
    """A trace with its root, which says what a nanosecond is, and the track of its layers."""
    packets = Packets()
    time = f"1 ns here is 1 cycle ({1e9 / clock_hz:.4g} ns at {frequency(clock_hz)})"
    root = packets.track(f"{title}: {time}", f"tpusim {__version__}{seen}. {time}.")
    return packets, root, packets.track("layer", layers, root)


def _clipped(layers: Sequence[LayerSpan], first: int, stop: int) -> Iterator[TimeSlice]:
    for number, layer in enumerate(layers):
        if layer.first < stop and layer.stop > first:
            yield TimeSlice(max(first, layer.first), min(stop, layer.stop), layer.name, number)


def _told(layer: LayerSpan) -> Arguments:
    """What is told of a layer: its cycles, and what it reads where that is known."""
    reads = {"reads": ", ".join(layer.reads)} if layer.reads else {}
    return {"cycles": layer.stop - layer.first, **reads}


def _arguments(program: Program, layers: Sequence[LayerSpan]) -> list[Arguments]:
    """What is told of each step, passes numbered from 0; of several layers also whose it is."""
    numbers = {index: {"pass": number} for index, number in program.passes.items()}
    whose = [{"layer": layers[number].name} for number in program.layers] or [{} for _ in program.steps]
    told = enumerate(zip(program.steps, whose, strict=True))
    return [{**layer, **numbers.get(index, {}), **step.facts} for index, (step, layer) in told]


# ---- what a timeline amounts to: bandwidth and shares, as means over windows of cycles


Values = NDArray[np.float64]

_DECIMALS = 6
"""Kept of a mean; what comes after them is noise of the sums."""

_MEAN = "mean over windows of {window:,} cycles."
COUNTERS = {
    "HBM bandwidth": ("GB/s", f"Bytes across the bus, a transfer's spread evenly; {_MEAN}"),
    "PE occupancy": ("%", f"PEs in rows and columns that the pass uses, while busy; {_MEAN}"),
    "port occupancy": ("%", f"Owned cycles of lane 0's port or ports; {_MEAN}"),
    "words in use": ("words", "Words of a lane's vector memory that hold what is still needed, or are kept for it."),
}
"""Unit of each counter, and what it is."""


def windows(first: int, stop: int, length: int) -> Cycles:
    """Where windows of `length` cycles begin in [first, stop), and `stop`."""
    return np.append(np.arange(first, stop, length), stop)


def counters(
    program: Program, timeline: Timeline, hardware: Hardware, edges: Cycles
) -> dict[str, tuple[Cycles, Values]]:
    """(cycles, values) of each of COUNTERS: a value holds from its cycle until the next, the last until edges[-1].

    They are means between neighbouring `edges` (ascending, two at least); the words in use change when they change.
    """
    hbm = timeline.tracks["hbm"]
    arrays = [track for name, track in timeline.tracks.items() if name.startswith("systolic_array")]
    ports = [track for name, track in timeline.tracks.items() if name.startswith("port")]
    owned = sum((_means(port, np.ones(len(port)), edges) for port in ports), np.zeros(len(edges) - 1))
    bytes_per_cycle = _per_busy_cycle(
        hbm, [step.use.hbm_read_bytes + step.use.hbm_write_bytes for step in program.steps]
    )
    shares = np.array([_share(step, hardware) for step in program.steps])
    occupied = sum(
        (_means(array, shares[array.steps] * _called(array, "busy"), edges) for array in arrays),
        np.zeros(len(edges) - 1),
    )
    return {
        "HBM bandwidth": (edges[:-1], hardware.clock_hz / 1e9 * _means(hbm, bytes_per_cycle, edges)),
        "PE occupancy": (edges[:-1], 100 * occupied),
        "port occupancy": (edges[:-1], 100 / len(ports) * owned),
        "words in use": _within(*words_in_use(program, timeline), int(edges[0]), int(edges[-1])),
    }


def _means(track: Track, weights: Values, edges: Cycles) -> Values:
    """Mean over time, between neighbouring edges, of what weighs `weights[k]` a cycle during slice k."""
    bounds = np.stack([track.starts, track.ends], axis=1).ravel()
    steps = np.stack([np.zeros(len(track)), (track.ends - track.starts) * weights], axis=1).ravel()
    until = np.interp(edges, [-1, *bounds.tolist()], [0.0, *np.cumsum(steps).tolist()])
    means: Values = np.round(np.diff(until) / np.diff(edges), _DECIMALS)
    return means


def _per_busy_cycle(hbm: Track, sizes: Sequence[int]) -> Values:
    """Bytes that cross the bus in a cycle of each slice: those of its step, evenly over the cycles it is busy."""
    busy = _called(hbm, "busy")
    cycles = np.bincount(hbm.steps[busy], (hbm.ends - hbm.starts)[busy], len(sizes))
    return np.where(busy, np.array(sizes, float)[hbm.steps] / np.maximum(cycles[hbm.steps], 1), 0.0)


def _called(track: Track, name: str) -> NDArray[np.bool_]:
    kinds = [kind for kind, each in enumerate(track.names) if each == name]
    return np.isin(track.kinds, kinds)


def _share(step: Step, hardware: Hardware) -> float:
    """The part of all PEs that multiply while the pass is busy; the last frame may leave arrays without a word."""
    frames = -(-step.use.words_streamed // hardware.array.together)
    return step.use.pe_words / (frames * hardware.pes) if frames else 0.0


def _within(cycles: Cycles, values: Cycles, first: int, stop: int) -> tuple[Cycles, Values]:
    """The values that hold in [first, stop), the first of them from `first` on."""
    at, end = np.searchsorted(cycles, first, "right") - 1, np.searchsorted(cycles, stop, "left")
    return np.maximum(cycles[at:end], first), values[at:end].astype(float)


# ---- a machine of any family


@dataclass(frozen=True, slots=True, eq=False)
class PlacedSlots:
    """A layer on the time axis of a trace: its cycle 0 is cycle `at`."""

    name: str
    at: int
    cycles: int
    slots: Mapping[str, Sequence[Slot]]


def perfetto_slots(title: str, layers: Sequence[PlacedSlots], clock_hz: int, first: int, stop: int) -> bytes:
    """The file's contents: what `layers` do in cycles [first, stop), track by track."""
    packets, root, layer_track = _begun(title, clock_hz, "", "Layers, one after another.")
    known = dict.fromkeys(name for layer in layers for name in layer.slots)
    tracks = {name: packets.track(name, "", root) for name in known}
    for layer in layers:
        start, end = max(first, layer.at), min(stop, layer.at + layer.cycles)
        packets.slices(layer_track, [TimeSlice(start, end, layer.name, 0)], [{"cycles": layer.cycles}], 0)
        for name, slots in layer.slots.items():
            packets.slices(tracks[name], clipped(slots, start - layer.at, end - layer.at), [], layer.at)
    return packets.to_bytes()


def clipped(slots: Sequence[Slot], first: int, stop: int) -> list[TimeSlice]:
    """What lies in cycles [first, stop); what reaches across the edges is cut."""
    cut = ((max(start, first), min(end, stop), name) for start, end, name in slots)
    return [TimeSlice(start, end, name, -1) for start, end, name in cut if start < end]


# ---- packets of a trace: tracks, slices and counters, with every name written once


_SEQUENCE = 1

Arguments = Mapping[str, int | str]


class Packets:
    """Collects a trace; times are nanoseconds. Tracks appear in the order they are added."""

    def __init__(self) -> None:
        first = _trace({"sequence_flags": TracePacket.SEQ_INCREMENTAL_STATE_CLEARED})
        self._data = bytearray(first.SerializeToString())
        self._tracks = 0
        self._events: dict[str, int] = {}
        self._arguments: dict[str, int] = {}

    def track(self, name: str, about: str, parent: int | None = None, unit: str | None = None) -> int:
        """A new track, below `parent` if that is given; with a `unit` it is a counter. Returns its number."""
        self._tracks += 1
        descriptor = TrackDescriptor(
            uuid=self._tracks,
            name=name,
            description=about,
            parent_uuid=parent,
            child_ordering=TrackDescriptor.EXPLICIT,
            sibling_order_rank=self._tracks,
            counter=None if unit is None else {"unit_name": unit},
        )
        self._data += _trace({"track_descriptor": descriptor}).SerializeToString()
        return self._tracks

    def slices(self, track: int, slices: Iterable[TimeSlice], arguments: Sequence[Arguments], at: int) -> None:
        """Slices `at` nanoseconds later than they say, each with the arguments of its step."""
        templates: dict[tuple[str, int], Trace] = {}
        for each in slices:
            key = each.name, each.step
            if key not in templates:
                templates[key] = self._pair(track, each.name, arguments[each.step] if each.step >= 0 else {})
            pair = templates[key]
            pair.packet[0].timestamp, pair.packet[1].timestamp = at + each.start, at + each.end
            self._data += pair.SerializeToString()

    def values(self, track: int, values: Iterable[tuple[int, float]]) -> None:
        """Each value of a counter holds from its time until the next."""
        trace = _trace({"track_event": {"type": TrackEvent.TYPE_COUNTER, "track_uuid": track}})
        (packet,) = trace.packet
        for time, value in values:
            packet.timestamp, packet.track_event.double_counter_value = time, value
            self._data += trace.SerializeToString()

    def to_bytes(self) -> bytes:
        """The whole trace."""
        return bytes(self._data)

    def _pair(self, track: int, name: str, arguments: Arguments) -> Trace:
        """Beginning and end of a slice, but for their times."""
        event = self._interned(self._events, name, "event_names")
        annotations = [
            {
                "name_iid": self._interned(self._arguments, key, "debug_annotation_names"),
                "string_value" if isinstance(value, str) else "int_value": value,
            }
            for key, value in arguments.items()
        ]
        begin = {"type": TrackEvent.TYPE_SLICE_BEGIN, "name_iid": event, "debug_annotations": annotations}
        end = {"type": TrackEvent.TYPE_SLICE_END}
        return _trace(*({"track_event": {**each, "track_uuid": track}} for each in (begin, end)))

    def _interned(self, known: dict[str, int], name: str, field: str) -> int:
        if name not in known:
            known[name] = len(known) + 1
            entry = {"iid": known[name], "name": name}
            self._data += _trace({"interned_data": {field: [entry]}}).SerializeToString()
        return known[name]


def _trace(*packets: Mapping[str, Any]) -> Trace:
    """A trace of these packets alone."""
    usual = {"trusted_packet_sequence_id": _SEQUENCE, "sequence_flags": TracePacket.SEQ_NEEDS_INCREMENTAL_STATE}
    return Trace(packet=[{**usual, **packet} for packet in packets])
