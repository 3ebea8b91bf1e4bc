"""The outputs of a layer, looked at in float32 first: what that settles need not be worked out in float64."""

from __future__ import annotations

import numpy as np

from tpusim.flow.numbers import Expectation
from tpusim.network.ops.op import OFMAP, Index
from tpusim.numerics.bounds import surely_near
from tpusim.numerics.equality import Values
from tpusim.numerics.finite import all_finite
from tpusim.reference import Box
from tpusim.reference.screening import Screen, screen


class Screening:
    """For one layer, as long as it settles more boxes than not.

    Attributes:
        furthest: which of the outputs that it has settled is the furthest from what float32 finds; None before that.
    """

    def __init__(self, expectation: Expectation) -> None:
        self._expectation = expectation
        self.furthest: Index | None = None
        self._apart, self._settled = 0.0, 0
        self._asked = expectation.bounded and expectation.tensor == OFMAP

    def settles(self, box: Box, actual: Values) -> bool:
        """Whether all outputs in `box` are within their bounds for certain; there may be no fault if it does not."""
        found = screen(self._expectation.layer, self._expectation.operands, box) if self._asked else None
        settled = found is not None and self._near(box, actual, found)
        self._settled += 1 if settled else -1
        self._asked = self._asked and self._settled >= 0
        return settled

    def _near(self, box: Box, actual: Values, found: Screen) -> bool:
        if found.least is None:
            # Who rounds as often may lie on the other side of the true one, unless it finds the very same.
            return bool((actual == found.values).all()) and all_finite(found.values)
        with np.errstate(invalid="ignore", over="ignore"):  # Of infinities, which settle nothing.
            apart = np.subtract(actual, found.values, out=found.values)
            np.abs(apart, out=apart)
            near = surely_near(apart, found.least, self._expectation.roundings, found.roundings)
        if not (near.all() and all_finite(found.least)):
            return False
        self._note(box, apart)
        return True

    def _note(self, box: Box, apart: Values) -> None:
        """The furthest so far."""
        most = float(apart.max(initial=0.0))
        if self.furthest is None or most > self._apart:
            at = np.unravel_index(int(apart.argmax()), apart.shape)
            self._apart = most
            self.furthest = tuple(part[int(place)] for part, place in zip(box, at, strict=True))
