"""What a command simulates, from its options."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.flow.lowerings import check_own
from tpusim.flow.simulation import select_layers
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.network.workload import Workload, load_workload


def load(
    workload: str, hardware: str, batch: int, changes: Sequence[str] | None, layers: str = "*"
) -> tuple[Workload, Hardware]:
    """Return the workload, of its layers those whose name matches `layers`, and the machine.

    Raises:
        InputError: with every problem of the first of them that cannot be used.
    """
    machine = load_hardware(hardware, changes or [])
    work = load_workload(workload, batch=batch)
    check_own(work)
    return select_layers(work, layers), machine
