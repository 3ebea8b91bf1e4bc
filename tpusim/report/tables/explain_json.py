"""Why a layer takes as long as it does, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tpusim.network.workload import Workload
from tpusim.report.text import document
from tpusim.study.explain.bottleneck import Bottleneck
from tpusim.study.explain.overlap import Between


def to_json(
    found: Bottleneck,
    work: Workload,
    lowerings: Sequence[Mapping[str, Any]] = (),
    between: Between | None = None,
) -> str:
    """The layer as in the result JSON, every relaxation with its cycles, what each of `lowerings` costs, and what is
    saved `between` its neighbours, where layers overlap.
    """
    setup, (reads, read_by) = found.setup, work.neighbours(found.layer.name)
    return document(
        hardware=setup.hardware.to_dict(),
        workload=work.name,
        batch=setup.batch,
        lowering=setup.lowering,
        layer={**asdict(found.layer), "inputs": reads, "riders": work.carried_by(found.layer.name)},
        read_by=read_by,
        phases=asdict(found.phases),
        tiling=dict(found.explanation.choices),
        overlapping=asdict(between) if between else None,
        bound_by=found.limit,
        main_state=found.main_state,
        agrees=found.agrees,
        gains=[
            {
                "with": gain.relaxation.name,
                "that_is": gain.how,
                "relieves": gain.relaxation.limit,
                "per": gain.relaxation.per,
                "cycles": gain.cycles,
                "macs": gain.macs,
                "gain": gain.gain,
            }
            for gain in found.gains
        ],
        untried=[{"with": each.relaxation.name, "reason": each.reason} for each in found.untried],
        lowerings=list(lowerings),
    )
