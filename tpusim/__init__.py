"""tpusim: a cycle-level simulator of Google's TPUs, v2 to 7x, that checks every output."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tpusim.base.version import __version__ as __version__

if TYPE_CHECKING:
    from tpusim.api.answer import Answer as Answer
    from tpusim.api.explain import explain as explain
    from tpusim.api.generate import generate as generate
    from tpusim.api.results import compare as compare
    from tpusim.api.results import report as report
    from tpusim.api.scale import scale as scale
    from tpusim.api.sweep import sweep as sweep
    from tpusim.api.trace import trace as trace
    from tpusim.flow.simulation import simulate as simulate
    from tpusim.flow.values import journey as journey
    from tpusim.machines.family import load_hardware as load_hardware
    from tpusim.machines.tpu.description import Hardware as Hardware
    from tpusim.network.formats import from_jax as from_jax
    from tpusim.network.ops.array_op import Conv1d as Conv1d
    from tpusim.network.ops.array_op import Conv2d as Conv2d
    from tpusim.network.ops.array_op import ConvTranspose2d as ConvTranspose2d
    from tpusim.network.ops.array_op import Gemm as Gemm
    from tpusim.network.ops.deform_conv2d import DeformConv2d as DeformConv2d
    from tpusim.network.ops.gradients import Conv2dFilterGradient as Conv2dFilterGradient
    from tpusim.network.ops.gradients import Conv2dInputGradient as Conv2dInputGradient
    from tpusim.network.training import training_step as training_step
    from tpusim.network.workload import Training as Training
    from tpusim.network.workload import Workload as Workload
    from tpusim.network.workload_file import load_workload as load_workload
    from tpusim.result.records import Result as Result

_MODULES = {
    "Answer": "api.answer",
    "Conv1d": "network.ops.array_op",
    "Conv2d": "network.ops.array_op",
    "Conv2dFilterGradient": "network.ops.gradients",
    "Conv2dInputGradient": "network.ops.gradients",
    "ConvTranspose2d": "network.ops.array_op",
    "DeformConv2d": "network.ops.deform_conv2d",
    "Gemm": "network.ops.array_op",
    "Hardware": "machines.tpu.description",
    "Result": "result.records",
    "Training": "network.workload",
    "Workload": "network.workload",
    "compare": "api.results",
    "explain": "api.explain",
    "from_jax": "network.formats",
    "generate": "api.generate",
    "journey": "flow.values",
    "load_hardware": "machines.family",
    "load_workload": "network.workload_file",
    "report": "api.results",
    "scale": "api.scale",
    "simulate": "flow.simulation",
    "sweep": "api.sweep",
    "trace": "api.trace",
    "training_step": "network.training",
}
__all__ = ["__version__", *_MODULES]


class _Face(ModuleType):
    """The package, of which `report` is the function of that name, though there is a room that is called so, too."""

    @property
    def report(self) -> Any:
        """The function; the room is imported by whole paths, such as tpusim.report.shown."""
        return __getattr__("report")

    @report.setter
    def report(self, room: ModuleType) -> None:
        """Leave the name to the function where Python, after it has imported the room, would give it to that."""


sys.modules[__name__].__class__ = _Face


def __getattr__(name: str) -> Any:
    """Imported when first asked for: it takes half a second, in which Ctrl-C should not end in a traceback."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """What a notebook offers after a dot."""
    return sorted(__all__)
