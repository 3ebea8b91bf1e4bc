"""tpusim: a cycle-level simulator of the matrix unit of Google's TPU v2."""

from tpusim.hardware import load_hardware
from tpusim.result import Result
from tpusim.simulate import simulate
from tpusim.version import __version__
from tpusim.workload import load_workload

__all__ = ["Result", "__version__", "load_hardware", "load_workload", "simulate"]
