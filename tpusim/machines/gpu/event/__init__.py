"""The event engine: from event to event, and rounds that are alike left out."""

from tpusim.machines.family import Timing
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.event.resident import resident
from tpusim.machines.gpu.program.kernels import Program
from tpusim.machines.gpu.sequence import run as run_with


def run(program: Program, gpu: Gpu) -> Timing:
    """How long a layer takes, launches included."""
    return run_with(program, gpu, resident)
