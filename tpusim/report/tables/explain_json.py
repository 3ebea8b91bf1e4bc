"""A layer explained, for other tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tpusim.base.version import __version__
from tpusim.study.explain.bottleneck import Bottleneck, Gain


def to_json(found: Bottleneck, workload: str) -> str:
    """The layer as in the result JSON, and every relaxation with its cycles."""
    case = found.case
    return json.dumps(
        {
            "tpusim": __version__,
            "hardware": case.hardware.to_dict(),
            "workload": workload,
            "batch": case.batch,
            "lowering": found.case.lowering,
            "layer": asdict(found.layer),
            "phases": asdict(found.phases),
            "tiling": dict(found.explanation.choices),
            "bound_by": found.limit,
            "main_state": found.main_state,
            "agrees": found.agrees,
            "gains": [_gain(gain) for gain in found.gains],
            "untried": [{"with": each.relaxation.name, "reason": each.reason} for each in found.untried],
        },
        indent=2,
    )


def _gain(gain: Gain) -> dict[str, Any]:
    relaxation = gain.relaxation
    return {
        "with": relaxation.name,
        "that_is": gain.how,
        "relieves": relaxation.limit,
        "per": relaxation.per,
        "cycles": gain.cycles,
        "macs": gain.macs,
        "gain": gain.gain,
    }
