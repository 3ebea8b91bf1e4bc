"""What the log adds up to: every unit's cycles by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tpusim.machines.tpu.definition import BIAS_CYCLES
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.calendar import Ports
from tpusim.machines.tpu.event.log import Loads, Log, Move, Passes
from tpusim.machines.tpu.observation.timing import Timing, port_accounts, unit_accounts
from tpusim.machines.tpu.program.passes import Stream, bias_words_of
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import HBM, SCRATCH
from tpusim.machines.tpu.program.vector import Vector


def timing_of(log: Log, port: Ports, program: Program, hardware: Hardware) -> Timing:
    """Close the accounts."""
    arrays = [
        (
            array_use(mine, program),
            _preload_use(mine.loads, program, hardware),
            vector_unit_use(mine, program, hardware),
        )
        for _, mine in log.of_arrays(program, hardware)
    ]
    buses = {HBM: _bus_use(log.moves), **({SCRATCH: _bus_use(log.scratch)} if hardware.scratch_memory else {})}
    accounts = unit_accounts(arrays, buses, log.cycles)
    accounts |= port_accounts(port.owned, log.cycles, program.ports(hardware))
    use = program.use
    return Timing(log.cycles, accounts, bus_use(log.moves, program), use.port_reads, use.port_writes, log.hbm)


def array_use(log: Log, program: Program) -> Counter[str]:
    """What the array does, and what it waits for, in all that `log` tells of."""
    use: Counter[str] = Counter()
    frames = 0
    for each in log.passes:
        times = len(each.steps)
        frames += times * log.frame.frames(_stream(each, program).words)
        use["starved"] += times * (each.filled - each.ended)
        use["waiting_weights"] += times * (each.loaded - each.filled)
        use["blocked"] += times * (each.cleared - each.loaded)
        use["bank_conflict"] += times * each.lost * log.frame.period
        use[each.cause] += times * (each.start - 1 - each.cleared)
    for work in log.works:
        use["starved"] += work.filled - work.ended
        use["waiting_weights"] += work.loaded - work.filled
        use["blocked"] += work.issued - work.loaded
        use["vector_work"] += work.done - work.issued
    use["busy"] += frames * log.frame.elements
    use["port_stall"] += frames * log.frame.port_stall
    use["blocked"] += frames * log.frame.blocked
    return use


def vector_unit_use(log: Log, program: Program, hardware: Hardware) -> Counter[str]:
    """What it adds to partial sums, and works by itself, in all that `log` tells of."""
    streams = ((len(each.steps), _stream(each, program)) for each in log.passes if each.steps)
    adding = sum(times * log.frame.frames(stream.words) * log.frame.work(stream.accumulate, bool(stream.finish))
                 for times, stream in streams)  # fmt: skip
    steps = (program.steps[each.step] for each in log.works)
    working = sum(
        step.words * step.beat(program.word_fill, hardware).work for step in steps if isinstance(step, Vector)
    )
    return Counter(busy=adding + working)


def _stream(each: Passes, program: Program) -> Stream:
    """The first of them; the others are like it."""
    step = program.steps[each.steps[0]]
    assert isinstance(step, Stream)
    return step


def _preload_use(loads: Iterable[Loads], program: Program, hardware: Hardware) -> Counter[str]:
    use: Counter[str] = Counter()
    for each in loads:
        times, biases = len(each.steps), bias_words_of(program.steps[each.steps[0]])
        cycles = hardware.preload_cycles + BIAS_CYCLES * biases
        use["busy"] += times * cycles
        use["starved"] += times * max(each.filled - each.ready, 0)
        use["blocked"] += times * (each.ready - each.free + each.start - max(each.ready, each.filled))
        use["port_stall"] += times * (each.last - each.start - cycles)
    return use


def bus_use(moves: Iterable[Move], program: Program) -> dict[str, int]:
    """Cycles of HBM by the label of the transfer that they go to."""
    held: Counter[str] = Counter()
    for each in moves:
        held[program.steps[each.step].label] += each.ended - each.free
    return dict(held)


def _bus_use(moves: Iterable[Move]) -> Counter[str]:
    use: Counter[str] = Counter()
    for each in moves:
        use["busy"] += each.busy
        use["blocked"] += each.ready - each.free
        use["port_stall"] += each.start - each.ready + each.ended - each.start - each.busy
    return use
