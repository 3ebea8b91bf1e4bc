"""The address generators of all lanes: one setting for every way in which a stream of the Program reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.steps import LaneGroup, Program

Records = NDArray[Any]

GENERATOR = np.dtype(
    [(name, np.int64) for name in ("fed", "base", "row", "col", "row_step", "col_step", "rows", "cols", "groups")]
)
"""One lane's setting: nested counters start at (row, col) and stay within (rows, cols); `fed` is 0 for none."""


@dataclass(frozen=True)
class Settings:
    """Settings [setting, lane], and the number of the setting that each kind of read uses."""

    records: Records
    number: dict[tuple[LaneGroup, ...], int]

    @classmethod
    def of(cls, program: Program, lanes: int) -> Settings:
        """All settings that a Program needs."""
        number = {reads: at for at, reads in enumerate(dict.fromkeys(stream.reads for stream in program.streams))}
        records = np.zeros((len(number), lanes), GENERATOR)
        for reads, at in number.items():
            for group in reads:
                pattern = group.pattern
                setting = (1, pattern.base, *pattern.start, *pattern.step, *pattern.extent, pattern.counts[2])
                records[at, group.first_lane : group.first_lane + group.lanes] = setting
        return cls(records, number)
