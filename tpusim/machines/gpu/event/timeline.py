"""When what happens on a GPU: its kernels, their waves of blocks, and what one of the SMs with the most blocks does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tpusim.machines.family import Slot
from tpusim.machines.gpu.definition import dram_cycles, moves_cycles, pace_of, waves
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.event.account import Interval
from tpusim.machines.gpu.event.resident import recorded, resident
from tpusim.machines.gpu.program.kernels import Moves, Products, Program
from tpusim.machines.gpu.state import State

KERNEL, WAVE, SM = "kernel", "wave", "sm"
"""The tracks."""


def timeline(program: Program, gpu: Gpu) -> dict[str, list[Slot]]:
    """Slots in order of time, track by track; together they last as long as `sequence.run` says."""
    tracks: dict[str, list[Slot]] = {KERNEL: [], WAVE: [], SM: []}
    at = 0
    for kernel in program.kernels:
        if launch := gpu.cycles_of(gpu.launch.kernel_ps) if isinstance(kernel, Products) or kernel.launched else 0:
            tracks[SM].append((at, at + launch, "launch"))
        begin = at + launch
        slots = {SM: [(0, moves_cycles(kernel, gpu), "move")]} if isinstance(kernel, Moves) else _products(kernel, gpu)
        end = max(stop for _, stop, _ in slots[SM]) + begin
        for track, found in slots.items():
            tracks[track] += [(begin + start, begin + stop, name) for start, stop, name in found]
        tracks[KERNEL].append((at, end, "products" if isinstance(kernel, Products) else kernel.what))
        at = end
    return tracks


def _products(products: Products, gpu: Gpu) -> dict[str, list[Slot]]:
    """From the first wave on."""
    tracks: dict[str, list[Slot]] = {WAVE: [], SM: []}
    known: dict[tuple[tuple[int, int], ...], tuple[int, list[Slot]]] = {}
    at = 0
    for wave in waves(products, gpu):
        kind = tuple(wave.items())
        if kind not in known:
            pace, most = pace_of(products, gpu, sum(wave.values())), max(wave)
            cycles = max(resident(pace, blocks).cycles for blocks in wave)
            known[kind] = cycles, [*_states(recorded(pace, most))]
        cycles, states = known[kind]
        blocks = sum(each * sms for each, sms in wave.items())
        tracks[WAVE].append((at, at + cycles, f"{blocks} blocks"))
        tracks[SM] += [(at + start, at + stop, name) for start, stop, name in states]
        at += cycles
    if (needed := dram_cycles(products, gpu)) > at:
        tracks[SM].append((at, needed, "dram_wait"))
    return tracks


def _states(intervals: list[Interval]) -> Iterator[Slot]:
    """What counts in each cycle of all that blocks do; where none does anything, operands are on their way."""
    edges = sorted(
        (when, change, state)
        for start, stop, state in intervals
        for when, change in ((start, 1), (stop, -1))
        if start < stop
    )
    under_way = dict.fromkeys((State.BUSY, State.STAGE, State.EPILOGUE), 0)
    begin, doing, last = 0, State.LOAD_WAIT, (edges[-1][0] + 1, 0, State.BUSY)
    for (when, change, state), (then, *_) in pairwise([*edges, last]):
        under_way[state] += change
        if then == when:
            continue
        now = next((each for each, count in under_way.items() if count), State.LOAD_WAIT)
        if now != doing:
            if begin < when:
                yield begin, when, doing.name.lower()
            begin, doing = when, now
