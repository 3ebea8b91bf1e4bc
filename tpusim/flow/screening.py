"""The outputs of a layer, looked at in float32 first: what that settles need not be worked out in float64."""

from __future__ import annotations

import numpy as np

from tpusim.flow.boxes import alone, places, within
from tpusim.flow.held import Expectation
from tpusim.network.ops.op import OFMAP, Index
from tpusim.numerics.element_types import Values, all_finite
from tpusim.numerics.equality import agreement, larger, surely_near
from tpusim.reference import Box
from tpusim.reference.rounding import Screen, screen

MOST_LEFT = 20
"""So many outputs of a box are worked out one by one, in less time than all of it takes in float64."""


class Screening:
    """For one layer, as long as it settles more boxes than not.

    Attributes:
        share: the largest error over its bound of outputs that had to be worked out to settle a box; None: none had.
    """

    def __init__(self, expectation: Expectation, written: Values) -> None:
        """`written` is all of the tensor."""
        self._expectation, self._written = expectation, written
        self.share: float | None = None
        self._furthest: tuple[float, Index] | None = None
        self._settled = 0
        self._asked = expectation.bounded and expectation.tensor == OFMAP

    def settles(self, box: Box) -> bool:
        """Whether all outputs in `box` are within their bounds for certain; there may be no fault if it does not."""
        found = screen(self._expectation.layer, self._expectation.operands, box) if self._asked else None
        settled = found is not None and self._near(box, found)
        self._settled += 1 if settled else -1
        self._asked = self._asked and self._settled >= 0
        return settled

    def furthest(self) -> float | None:
        """The error over its bound of the output that is the furthest from what float32 finds, of the boxes settled."""
        return None if self._furthest is None else self._alone(self._furthest[1])[1]

    def _near(self, box: Box, found: Screen) -> bool:
        actual = self._written[places(box)]
        if found.least is None:
            # Who rounds as often may lie on the other side of the true one, unless it finds the very same.
            same = bool((actual == found.values).all())
            return same and (not found.roundings or all_finite(found.values))
        with np.errstate(invalid="ignore", over="ignore"):  # Of infinities, which settle nothing.
            apart = np.subtract(actual, found.values, out=found.values)
            np.abs(apart, out=apart)
            near = surely_near(apart, found.least, self._expectation.roundings, found.roundings)
        if not (near.all() or self._right_one_by_one(box, near)) or not all_finite(found.least):
            return False
        self._note(box, apart)
        return True

    def _right_one_by_one(self, box: Box, near: Values) -> bool:
        """Whether the few outputs that are left are right in float64."""
        if near.size - int(np.count_nonzero(near)) > MOST_LEFT:
            return False
        for at in np.argwhere(~near):
            right, share = self._alone(within(box, at))
            if not right:
                return False
            self.share = larger(self.share, share)
        return True

    def _alone(self, at: Index) -> tuple[bool, float | None]:
        """Whether an output is right, and its error over its bound."""
        box = alone(at)
        right, share = agreement(self._written[places(box)], self._expectation.of(box))
        return bool(right.all()), share

    def _note(self, box: Box, apart: Values) -> None:
        """The furthest so far."""
        most = float(apart.max(initial=0.0))
        if self._furthest is None or most > self._furthest[0]:
            self._furthest = most, within(box, np.unravel_index(int(apart.argmax()), apart.shape))
