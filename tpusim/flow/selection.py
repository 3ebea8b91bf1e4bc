"""Which layers of a workload are meant by a glob of names, or by the first and the last: conv1..maxpool."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tpusim.base.errors import InputError, did_you_mean
from tpusim.network.workload import Workload

TO = ".."
"""Between the first layer and the last; without one of them, from the beginning, or to the end."""


def select_layers(workload: Workload, wanted: str) -> Workload:
    """The workload with only the layers that are `wanted`.

    Raises:
        InputError: when there is none.
    """
    names = names_wanted(workload, wanted)
    if not names:
        raise InputError(f"no layer of {workload.name} matches {wanted!r}{_instead(workload, wanted)}")
    return workload.with_layers(lambda layer: layer.name in names)


def names_wanted(workload: Workload, wanted: str) -> frozenset[str]:
    """Those of its layers; none where no name matches.

    Raises:
        InputError: there is no such first or last layer, or they stand the other way round.
    """
    names = [layer.name for layer in workload.layers]
    matching = frozenset(name for name in names if fnmatchcase(name, wanted))
    if TO not in wanted or matching:
        return matching
    first, _, last = wanted.partition(TO)
    begin = _place(workload, names, first, wanted) if first else 0
    end = _place(workload, names, last, wanted) if last else len(names) - 1
    if begin > end:
        raise InputError(f"{wanted}: {first} comes after {last} in {workload.name}; name the first layer first")
    return frozenset(names[begin : end + 1])


def _place(workload: Workload, names: Sequence[str], name: str, wanted: str) -> int:
    """Where a layer stands, or the one on whose results it rides."""
    bearers = {rider: bearer for bearer, riders in workload.riders for rider in riders}
    if (there := bearers.get(name, name)) in names:
        return names.index(there)
    raise InputError(f"{wanted}: {workload.name} has no layer {name!r}{_instead(workload, name)}")


def _instead(workload: Workload, wanted: str) -> str:
    """What may have been meant by a name that no layer has."""
    riding = [(name, bearer) for bearer, riders in workload.riders for name in riders if fnmatchcase(name, wanted)]
    if riding:
        name, bearer = riding[0]
        more = f", and {len(riding) - 1:,} more do so on those of others" if len(riding) > 1 else ""
        return f": {name} rides on the results of {bearer}{more}; name that, or leave sequencer.fusion out"
    names = [layer.name for layer in workload.layers]
    left_out = len(workload.never_timed) < len(workload.not_timed)
    more = "; layers that are not the array's are left out, and --ops all has them" if left_out else ""
    hint = did_you_mean(wanted, names) or ";"
    return f"{hint} it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}{more}"
