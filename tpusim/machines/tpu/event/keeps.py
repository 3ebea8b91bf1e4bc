"""When what stays on chip is there, in the event engine."""

from __future__ import annotations

from tpusim.machines.tpu.event.board import Board, Process
from tpusim.machines.tpu.program.keep import Keep
from tpusim.machines.tpu.program.program import Program


def process(program: Program, board: Board) -> Process:
    """Keeps in their order, each done with the last that it waits for, and not before the one ahead of it."""
    done = 0
    for index, step in enumerate(program.steps):
        if isinstance(step, Keep):
            yield from board.wait(step.after)
            done = max(done, board.latest(step.after))
            board.finish(index, done)
