"""Numbers of a result, with the bounds that its reader holds them to."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from annotated_types import Interval

_MOST = 10**30
"""No figure of a result comes near it."""

Count: TypeAlias = Annotated[int, Interval(ge=0, lt=_MOST)]
Difference: TypeAlias = Annotated[int, Interval(gt=-_MOST, lt=_MOST)]
Figure: TypeAlias = Annotated[float, Interval(ge=0, lt=_MOST)]
Element: TypeAlias = Annotated[float, Interval(gt=-_MOST, lt=_MOST)]
