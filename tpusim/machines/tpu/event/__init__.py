"""The event engine: how long a Program takes. It uses SimPy, with an event for a transfer and none for a cycle.

Processes run side by side: an *issue unit* for each array issues its preloads and streams in order, another one issues
the vector steps, and the *DMA* carries out transfers in order. They meet where a step waits for others (`after`). All
times are lane 0's; the lanes' skew is added once, at the end. Rules and a hand-worked pass: docs/timing.md.

Issue units look ahead. Once the times of all that a stream waits for are known, so is the stream's time, and its port
slots are reserved in the future, because no other client may own them. The DMA has the lowest priority and is settled
only in the past, so it takes only cycles that nobody else wanted. Each unit logs the times of its steps; accounts and
timelines are drawn from that log.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from traceback import clear_frames

import simpy

from tpusim.base.memory import at_rest
from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording, shares, timing_of
from tpusim.machines.tpu.event.board import Board, Log, Overdue, keeps
from tpusim.machines.tpu.event.calendar import Calendar, KeptCalendar, Ports
from tpusim.machines.tpu.event.dma import Dma
from tpusim.machines.tpu.event.issue import IssueUnit, vector_steps
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program


def run(program: Program, hardware: Hardware) -> Timing:
    """Time one Program.

    Raises:
        DeadlockError: when steps wait for one another for ever; names who waits for whom.
    """
    timing = run_within(program, hardware, NEVER)
    assert timing
    return timing


def run_within(program: Program, hardware: Hardware, limit: int) -> Timing | None:
    """Time one Program; None as soon as it is known to take `limit` cycles or more. Raises DeadlockError."""
    port = Ports(program.ports(hardware), KeptCalendar if program.layers else Calendar)
    with at_rest():
        try:
            log = logged(program, hardware, port, limit=limit)
        except Overdue as overdue:
            # Frames of SimPy refer to the exception, and would hold the Program until the garbage collector comes.
            for each in (overdue, overdue.__cause__):
                clear_frames(each.__traceback__ if each else None)
            return None
        whole = timing_of(log, port, program, hardware)
        if not program.layers:
            return whole
        return replace(whole, layers=shares(Recording(log, port.owners(), program, hardware), whole))


def record(program: Program, hardware: Hardware) -> Recording:
    """Time one Program, and keep all that a timeline needs. Raises DeadlockError."""
    ports = Ports(program.ports(hardware), KeptCalendar)
    return Recording(logged(program, hardware, ports, keep=True), ports.owners(), program, hardware)


def logged(
    program: Program, hardware: Hardware, port: Ports | None = None, keep: bool = False, limit: int = NEVER
) -> Log:
    """The log of a Program, step by step. A given `port` is left with its owned cycles.

    With `keep`, the log tells of each channel of the DRAM. Raises DeadlockError; Overdue as soon as the Program is
    known to take `limit` cycles or more.
    """
    env, port = simpy.Environment(), port or Ports(program.ports(hardware), Calendar)
    board = Board(program, env, limit - hardware.skew if limit < NEVER else NEVER)
    arrays = [IssueUnit(program, hardware, board, port, array) for array in range(hardware.array.queues)]
    vector, dma = vector_steps(program, hardware, board, port, arrays), Dma(program, hardware, board, port, keep)
    processes = (*(array.process() for array in arrays), vector, dma.process(), keeps(program, board))
    for process in processes:
        env.process(process)
    try:
        env.run()
    finally:
        # A process that still waits would hold the Program until the garbage collector comes.
        for process in processes:
            process.close()
    board.check_finished()
    # Lane i runs lane 0's schedule i cycles late, so the skew is added once, at the end.
    return Log(
        cycles=board.end + hardware.skew,
        frames=program.frames(hardware),
        loads=tuple(chain.from_iterable(array.loads for array in arrays)),
        passes=tuple(chain.from_iterable(array.passes for array in arrays)),
        works=tuple(chain.from_iterable(array.works for array in arrays)),
        buses={bus: tuple(moves) for bus, moves in dma.moves.items()},
        queue=tuple(dma.queue),
        hbm=dma.hbm.use,
        spans=tuple(dma.hbm.spans),
    )
