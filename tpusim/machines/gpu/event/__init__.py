"""The event engine: from event to event, and rounds that are alike left out."""

from tpusim.machines.family import Timing
from tpusim.machines.gpu.definition import Pace
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.event.resident import resident
from tpusim.machines.gpu.program.kernels import Program
from tpusim.machines.gpu.sequence import run as run_with
from tpusim.machines.gpu.state import Resident


def to_step(program: Program, gpu: Gpu) -> int:
    """Cycles of all kinds of resident sets: those that stepping does."""
    found: list[int] = []

    def of_set(pace: Pace, blocks: int) -> Resident:
        made = resident(pace, blocks)
        found.append(made.cycles)
        return made

    run_with(program, gpu, of_set)
    return sum(found)


def run(program: Program, gpu: Gpu) -> Timing:
    """How long a layer takes, launches included."""
    return run_with(program, gpu, resident)
