"""What the control's units are to do, as tables of numbers: passes, vector steps, preloads, transfers, Keeps, ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil

import numpy as np

from tpusim.machines.tpu.definition import DMA, IFMAP, NEVER, POINTER, PSUM, RESULT, VECTOR, WEIGHT, Frame
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import PickedWords
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.tensors import HBM
from tpusim.machines.tpu.program.transfers import BankFill, Keep, LaneTransfer, Prefetch, Spill, Transfer
from tpusim.machines.tpu.register.banks import Settings
from tpusim.machines.tpu.register.board import BOOKED, STARVED
from tpusim.machines.tpu.register.hbm import BankedMemory, BankWords, HbmWords
from tpusim.machines.tpu.register.preloads import PRELOAD, PRELOADING, Preloads
from tpusim.machines.tpu.register.streams import ALONE, FRAME, ISSUE, QUEUE, STREAM, WORD, Streams
from tpusim.machines.tpu.register.transfers import BANK_FILL, FILL, PREFETCH, SPILL, TRANSFER, Transfers
from tpusim.machines.tpu.register.wires import IDLE, NOWHERE, ORDER, Counts, Records, order_of


class WaitTable:
    """Steps that others wait for, one list behind the other."""

    def __init__(self, program: Program) -> None:
        self.steps = list[int]()
        self.starves = [BOOKED.index(step.cause) == STARVED for step in program.rows]

    def add(self, steps: Iterable[int]) -> tuple[int, int]:
        """Add a list; return where it begins, and where it ends."""
        first = len(self.steps)
        self.steps += steps
        return first, len(self.steps)


def records(kind: np.dtype[np.void], rows: Sequence[dict[str, int]]) -> Records:
    """Records with the given fields, all others 0."""
    found = np.zeros(len(rows), kind)
    for record, row in zip(found, rows, strict=True):
        for name, value in row.items():
            record[name] = value
    return found


# ---- passes and vector steps


def streams_of(
    program: Program, settings: Settings, hardware: Hardware, waits: WaitTable, registers: int, slots: int
) -> Streams:
    """Passes of every array and all vector steps, in order; preloads take the array's weight buffers in turn.

    Of vector steps, a lane has `registers` for results of a turn, and `slots` beyond the first for accesses.
    """
    array = hardware.array
    issues, reads, units = list[dict[str, int]](), list[Records](), list[dict[str, int]]()
    ends, words = list[list[int]](), [0] * array.count
    for queue in range(array.queues):
        first = len(issues)
        issues += _issues(program, settings, hardware, waits, reads, queue)
        arrays = range(queue, queue + array.together)
        fresh = {"pointer_step": -1, "pointers_at": -1, "cause": STARVED, "current": -1}
        units.append({"next": first, "past": len(issues), "first": arrays.start, "arrays": len(arrays), **fresh})
        taken = [each["step"] for each in issues[first:]]
        ends.append([sum(step <= last for step in taken) for last in program.last_passes[:-1]])
        streamed = sum(each["words"] for each in issues[first:] if "vector" not in each)
        for each in arrays:
            words[each] = streamed
    through = np.array(ends, np.int64).T.reshape(-1, array.queues)
    return Streams(
        frames(program.frames(hardware)), records(ISSUE, issues),
        np.concatenate([*reads, IDLE]).astype(ORDER), records(STREAM, units),
        np.tile(IDLE, array.queues).astype(ORDER), np.zeros((array.count, max(words)), WORD),
        np.zeros(array.count, QUEUE), np.arange(array.queues), np.ascontiguousarray(through), registers, slots,
        hardware.lanes,
    )  # fmt: skip


def frames(known: Sequence[Frame]) -> Records:
    """Frames as records."""
    rows = [
        {
            "period": frame.period, "issue_cycles": frame.issue_cycles, "port_stall": frame.port_stall,
            "add_cycles": frame.add_cycles, "finish_cycles": frame.finish_cycles, "accumulates": frame.accumulates,
            "psum_delay": frame.psum_delay, "result_delay": frame.result_delay, "together": frame.together,
            "pointer": frame.pointer_slots.start, "past_pointer": frame.pointer_slots.stop,
            "psum_slot": ALONE if frame.psum_slot is None else frame.psum_slot,
            "result_slot": ALONE if frame.result_slot is None else frame.result_slot,
        }
        for frame in known
    ]  # fmt: skip
    return records(FRAME, rows)


def _issues(
    program: Program, settings: Settings, hardware: Hardware, waits: WaitTable, reads: list[Records], array: int
) -> list[dict[str, int]]:
    """Passes of an array and all vector steps, in order.

    A pass also waits for the last vector step ahead of it. A vector step also waits for the last preload and stream of
    each array ahead of it, and for the last vector step.
    """
    starves, number, issues = waits.starves, settings.number, list[dict[str, int]]()
    buffer: dict[int, int] = {}
    weights: dict[int, int] = {}
    ahead: dict[int, int] = {}
    worked: tuple[int, ...] = ()

    def issue(data: Sequence[int], weights: Iterable[int], others: Iterable[int], **fields: int) -> None:
        (first, second), (_, third), (_, fourth) = (waits.add(each) for each in (data, weights, others))
        own = {"step": index, "data": first, "weights": second, "others": third, "past_others": fourth}
        issues.append({**own, "cause": BOOKED.index(step.cause), **fields})

    for index, step in enumerate(program.rows):
        data, others = ([each for each in step.after if starves[each] == brings] for brings in (True, False))
        if isinstance(step, Preload):
            weights[step.array] = index
            if step.array == array:
                buffer[index] = len(buffer) % hardware.array.weight_buffers
        elif isinstance(step, Stream):
            ahead[program.arrays[index]] = index
            if step.preload in buffer:
                data += [each for each in program.rows[step.preload].after if starves[each]]
                table = step.reads.table
                pointers = {} if table is None else {
                    "table": 1, "table_base": table.base, "per_word": table.per_word, "repeat": table.repeat,
                    "together": table.together,
                }  # fmt: skip
                issue(
                    data, (step.preload,), (*others, *worked), words=step.words, lanes=step.cols,
                    frame=program.numbers_of_paces[index], elements=program.fill_of(index),
                    generator=number[step.reads], buffer=buffer[step.preload], base=step.result_base,
                    accumulate=step.accumulate, finishes=bool(step.finish), **pointers,
                )  # fmt: skip
        elif isinstance(step, Vector):
            beat, first = step.beat(program.fill_of(index), hardware), sum(map(len, reads))
            reads.append(_reads(index, step, settings))
            issue(
                data, weights.values(), (*others, *ahead.values()), vector=1, words=step.words, lanes=step.lanes,
                delay=step.delay + beat.body, scalars=step.scalars.words, scalar_base=step.scalars.base,
                period=beat.period, loads=beat.loads, stores=beat.stores, operands=beat.operands,
                side_by_side=beat.together, result_delay=beat.result_delay, work=beat.work, writes=number[step.writes],
                word_words=step.picks.word_words if step.picks else 0, sources=len(step.operands), read=first,
            )  # fmt: skip
            # The vector step waited for every stream so far, so later ones need to wait for it alone.
            ahead, worked = {0: index}, (index,)
    return issues


def _reads(index: int, step: Vector, settings: Settings) -> Records:
    """Reads for a result word, in order."""
    lanes, orders = step.lanes, list[Records]()
    if table := step.picks:
        orders += [order_of(VECTOR, index, 1, table.base + at, points=1, register=at) for at in range(table.word_words)]
    for number, feed in enumerate(step.operands):
        read = order_of(VECTOR, index, lanes, generator=settings.number[feed], register=step.scalars.words + number)
        if feed.picks is None:
            orders.append(read)
            continue
        operand = next(group.pattern.operand for group in feed.groups if isinstance(group.pattern, PickedWords))
        for element in range(feed.picks.elements):
            picked = read.copy()
            picked["element"], picked["together"] = element, feed.picks.together
            picked["pointer"] = feed.picks.first(operand, element)
            orders.append(picked)
    orders[-1]["works"] = 1
    return np.concatenate(orders)


# ---- preloads


def preloads_of(program: Program, hardware: Hardware, waits: WaitTable) -> Preloads:
    """Preloads of every queue, each with the fills that it waits for, the number of its array's streams and vector
    steps ahead of it, and the cycles that it leaves to others.
    """
    array, frames = hardware.array, program.frames(hardware)
    rows, units, left = list[dict[str, int]](), list[dict[str, int]](), list[int]()
    for queue in range(array.queues):
        first, ahead = len(rows), 0
        places = list[tuple[int, int]]()
        for frame in frames:
            places.append((len(left), frame.period))
            left += frame.weight_waits(queue)
        for index, step in enumerate(program.rows):
            if isinstance(step, Preload) and step.array == queue:
                wait, past_wait = waits.add(step.after)
                fill, past_fill = waits.add(other for other in step.after if waits.starves[other])
                place, period = places[program.numbers_of_paces[index]]
                rows.append({
                    "step": index, "base": step.base, "rows": step.rows, "cols": step.cols, "delay": step.delay,
                    "bias": NOWHERE if step.bias is None else step.bias, "wait": wait, "past_wait": past_wait,
                    "fill": fill, "past_fill": past_fill, "ahead": ahead, "left": place, "period": period,
                })  # fmt: skip
            ahead += isinstance(step, Vector) or (isinstance(step, Stream) and program.arrays[index] == queue)
        units.append({"next": first, "past": len(rows), "row": array.rows})
    return Preloads(
        records(PRELOAD, rows), records(PRELOADING, units), np.array(left), array.rows, array.weight_buffers,
        array.weights_per_cycle, hardware.vector_memory.word_elements,
    )  # fmt: skip


# ---- transfers


def transfers_of(
    program: Program, hardware: Hardware, settings: Settings, waits: WaitTable, hbm: HbmWords, banks: BankWords,
    memory: BankedMemory | None,
) -> Transfers:  # fmt: skip
    """Transfers of the one queue, in order; `memory` is the DRAM, if there is one."""
    numbered = [*program.rows.steps(Transfer)]
    number = {index: at for at, (index, _) in enumerate(numbered)}
    pipes, buses = hardware.pipes, [*hardware.pipes]
    rows, sources, fed, addresses = list[dict[str, int]](), list[int](), list[tuple[int, int]](), list[Counts]()
    accesses = list[tuple[int, ...]]()
    for index, step in numbered:
        pipe, banked = pipes[step.bus], bool(memory and step.bus == HBM.bus)
        moving, conversion = max(1, ceil(step.hbm_bytes / pipe.bytes_per_cycle)), step.conversion_cycles(hardware)
        wait, past_wait = waits.add(step.after)
        other, past_other = waits.add(each for each in step.after if not waits.starves[each])
        source, access, mine = len(sources), len(accesses), -1
        sources += [number[each] for each in program.sources(step)]
        kind = next((kind for of, kind in _KINDS.items() if isinstance(step, of)), FILL)
        if isinstance(step, LaneTransfer):
            accesses += step.accesses
            if any(part.feed for part in step.parts):
                mine = len(fed)
                parts = ((settings.number[part.feed] if part.feed else 0, part.words) for part in step.parts)
                fed += [(setting, word) for setting, words in parts for word in range(words)]
        past_access, bank_word = len(accesses), banks.first.get(index, 0)
        if kind == BANK_FILL:
            past_access = access = bank_word + step.lane_words
        rows.append({
            "step": index, "kind": kind, "bus": buses.index(step.bus), "following": -1,
            "words": step.words, "lanes": step.lanes if isinstance(step, LaneTransfer) else 0,
            "first": hbm.first.get(index, 0), "place": sum(map(len, addresses)), "wait": wait,
            "past_wait": past_wait, "other": other, "past_other": past_other, "source": source,
            "past_source": len(sources), "access": access, "past_access": past_access, "fed": mine,
            "bank_word": bank_word, "moving": moving,
            "total": max(conversion, 1 if banked and kind != SPILL else moving), "latency": pipe.latency,
            "conversion": conversion, "delay": -(-conversion // step.words), "banked": banked,
            "bursts": len(memory.moves.bursts(step)) if memory and banked else 0, "turn": access, "free_at": NEVER,
            "ready_at": NEVER if kind == SPILL else 0, "stored": NEVER, "row": -1, "last_accepted": -1,
        })  # fmt: skip
        addresses.append(hbm.addresses.get(index, np.full(step.words, NOWHERE)))
    upcoming = [-1] * len(buses)
    for row in reversed(rows):
        row["following"], upcoming[row["bus"]] = upcoming[row["bus"]], number[row["step"]]
    total, (storing, fetching) = sum(row["words"] for row in rows), np.zeros((2, max(1, len(rows))), np.int64)
    bursts = [*accumulate((row["bursts"] for row in rows), initial=0)]
    return Transfers(
        np.array([0, -1, -1, 0, 0]), records(TRANSFER, rows), np.array(sources, np.int64),
        np.array(accesses, np.int64).reshape(-1, 4), np.array(fed, np.int64).reshape(-1, 2),
        np.concatenate([*addresses, np.zeros(0, np.int64)]), np.full(total, -1), np.array(bursts), np.array(upcoming),
        np.full(len(buses), -1), storing, fetching, hardware.sequencer.launch_cycles, hardware.skew,
    )  # fmt: skip


_KINDS = {Spill: SPILL, BankFill: BANK_FILL, Prefetch: PREFETCH}


def keeps_of(program: Program, waits: WaitTable) -> Counts:
    """Keeps in order, each with the steps that it waits for."""
    keeps = ((index, *waits.add(step.after)) for index, step in program.rows.steps(Keep))
    return np.array([*keeps], np.int64).reshape(-1, 3)


def ports_of(program: Program, hardware: Hardware) -> Counts:
    """Clients that are asked for each port, in order: the stream's owners, then WEIGHT, then DMA."""
    queues = range(hardware.array.queues)
    owners = {IFMAP: queues, POINTER: queues[:1], PSUM: queues, RESULT: queues, VECTOR: queues[:1]}
    # WEIGHT comes before DMA: a late preload would stop the whole array.
    others = {WEIGHT: queues, DMA: queues[:1]}
    found = [
        (at, client, queue, owns)
        for at, port in enumerate(program.ports(hardware))
        for clients, owns in ((owners, True), (others, False))
        for client in port
        for queue in clients.get(client, ())
    ]
    return np.array(found, np.int64)
