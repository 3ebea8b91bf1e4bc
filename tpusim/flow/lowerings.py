"""Names for `--lowering`, those of a machine's family and `auto`; lowerings that single layers have; and a layer made
ready by its lowering: with `auto`, by the one that simulation finds fastest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from tpusim.base.errors import CapacityError, InputError, Problem, UnsuitableError, did_you_mean, failures_named
from tpusim.machines.family import USUAL, Family, Machine, family_named, family_of
from tpusim.machines.lowered import ReadyLayer, unheard

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op
    from tpusim.network.workload import OwnLowering, Workload

Found = TypeVar("Found")

AUTO = "auto"
"""The name that stands for the fastest lowering of each layer."""
ASKED = "lowering "
"""Beginning of the place of a layer's own lowering, if a run names it and not a file."""
USUAL_FAMILY = family_named(USUAL)
"""The family of machines whose files name none."""


def known(family: Family = USUAL_FAMILY) -> tuple[str, ...]:
    """Every name that `--lowering` takes."""
    return (*family.lowerings, AUTO)


def usual(family: Family = USUAL_FAMILY) -> str:
    """The lowering of a run that names none."""
    return next(iter(family.lowerings))


def of_any_layer(family: Family = USUAL_FAMILY) -> tuple[str, ...]:
    """Names that every layer can be asked for, whatever the workload; `auto` takes the others where it can."""
    return tuple(name for name in known(family) if name not in family.partial)


def glosses(family: Family = USUAL_FAMILY) -> tuple[tuple[str, str], ...]:
    """Every name with its one-line description."""
    return (*family.glosses().items(), (AUTO, "of each layer the fastest of these"))


def candidates(lowering: str, family: Family = USUAL_FAMILY) -> tuple[str, ...]:
    """The lowerings of the family that a name stands for."""
    return tuple(family.lowerings) if lowering == AUTO else (lowering,)


def tried(lowering: str, layer: Op, batch: int, family: Family, bounded: bool) -> tuple[str, ...]:
    """Candidates for a layer, without those that would leave it to another.

    If its outputs must be `bounded`, auto leaves out lowerings without a proven bound.
    """
    if lowering != AUTO:
        return (lowering,)
    return tuple(name for name in family.tried(layer, batch) if not (bounded and name in family.unbounded))


def with_usual_lowerings(workload: Workload, machine: Machine) -> Workload:
    """The workload with own lowerings for layers of several groups, if their files name none: the first lowering would
    take a pass for each group.
    """
    from tpusim.network.workload import OwnLowering

    family, named = family_of(machine), {each.layer for each in workload.lowerings}
    chosen: dict[Hashable, str] = {}
    own: list[OwnLowering] = []
    for layer in workload.layers:
        if layer.name not in named:
            if layer.shape_key not in chosen:
                chosen[layer.shape_key] = family.usual_for(layer, workload.batch, machine)
            if (name := chosen[layer.shape_key]) != usual(family):
                own.append(OwnLowering(layer.name, name))
    return replace(workload, lowerings=(*workload.lowerings, *own)) if own else workload


def by_name(workload: Workload, lowering: str | None, family: Family) -> tuple[Workload, str | None]:
    """The workload with the lowerings that a text names for single layers, and the lowering for all others, if any.

    Such a text is "auto,conv*=fft,conv1=explicit": patterns of names, each with a lowering, of which the last that fits
    a layer counts and goes before that of its file; and up to one lowering alone. Ops that have one way to be done keep
    it. A text without patterns is left as it is.

    Raises:
        InputError: an unknown lowering, a pattern that fits no layer, two lowerings for all layers, or a name that is
            empty.
    """
    if not isinstance(lowering, str):
        return workload, lowering
    parts = [part.strip() for part in lowering.split(",")]
    if not all(parts):
        many = f"{AUTO},conv*={usual(family)}"
        raise InputError(
            Problem(f"{lowering!r} has an empty name; write one, or several with commas between: {many}", "lowering")
        )
    if parts == [lowering] and "=" not in lowering:
        return workload, lowering
    own, problems = {each.layer: each for each in workload.lowerings}, list[Problem]()
    for part in (part for part in parts if "=" in part):
        try:
            own |= _own_by(part, workload, family)
        except InputError as error:
            problems += [replace(each, where=f"{ASKED}{part}") for each in error.problems]
    others = [part for part in parts if "=" not in part]
    if len(others) > 1:
        says = f"{' and '.join(others)} are for all layers; give one, and others by layers' names: conv*={others[1]}"
        problems.append(Problem(says, f"{ASKED}{lowering}"))
    if problems:
        raise InputError(problems)
    return replace(workload, lowerings=tuple(own.values())), next(iter(others), None)


def _own_by(part: str, workload: Workload, family: Family) -> dict[str, OwnLowering]:
    """The own lowerings of the layers that a part "conv*=fft" names. Raises InputError."""
    from tpusim.network.workload import OwnLowering

    pattern, _, name = (each.strip() for each in part.rpartition("="))
    check_known(name, family)
    every = [layer.name for layer in workload.layers]
    fitting = [layer for layer in workload.layers if fnmatchcase(layer.name, pattern)]
    if not fitting:
        hint = (
            did_you_mean(pattern, every) or f"; its layers are {', '.join([*every[:8], *['...'] * (len(every) > 8)])}"
        )
        raise InputError(f"no layer of {workload.name} matches {pattern!r}{hint}")
    free = [layer.name for layer in fitting if layer.unit == "array" or family.meant(layer, name) == name]
    if not free:
        raise InputError(f"{fitting[0].op} is lowered by {family.meant(fitting[0], name)}; leave it out")
    return {layer: OwnLowering(layer, name, f"{ASKED}{part}") for layer in free}


def check_known(lowering: object, family: Family = USUAL_FAMILY) -> None:
    """Raise InputError, with the known names, if the lowering is not one of them."""
    if lowering not in known(family):
        hint = did_you_mean(str(lowering), known(family)) or ";"
        whose = "" if family.name == USUAL else f" for {family.title}"
        raise InputError(f"unknown lowering {lowering!r}{whose}{hint} there is {', '.join(known(family))}")


def check_own(workload: Workload, family: Family = USUAL_FAMILY) -> None:
    """Raise InputError with every own lowering of layers that is unknown or ignored, at its place."""
    problems: list[Problem] = []
    # Each place is reported once, even if an entry stands for several layers.
    for each in {each.where or each.layer: each for each in workload.lowerings}.values():
        try:
            check_known(each.lowering, family)
        except InputError as error:
            problems.append(Problem(str(error), each.where or f"layer {each.layer}"))
    if problems:
        raise InputError(problems)
    # A run's lowering may mean another for ops that only one lowering can do; but a layer's own is a mistake then.
    layers = {layer.name: layer for layer in workload.layers}
    for each in workload.lowerings:
        layer = layers[each.layer]
        only = family.meant(layer, each.lowering)
        if layer.unit == "vector" and each.lowering not in (AUTO, only):
            says = f"{layer.op} is lowered by {only}, not by {each.lowering}; leave out its lowering"
            problems.append(Problem(says, each.where or f"layer {each.layer}"))
    if problems:
        raise InputError(problems)


# ---- a layer made ready


def prepared(
    layer: Op,
    batch: int,
    machine: Machine,
    lowering: str,
    doing: Callable[[str], None] = unheard,
    bounded: bool = False,
) -> ReadyLayer:
    """A layer ready for its machine; of several candidates the first with the fewest cycles.

    `doing` is called with what is done; with `bounded`, outputs will be held against a proven bound.

    Raises:
        CapacityError: when no candidate fits the machine: what each of them says; names the layer.
        CheckFailed, DeadlockError: when a candidate fails otherwise as it is timed; names the layer.
    """
    family = family_of(machine)

    def by(name: str) -> ReadyLayer:
        doing("lowering" if name == lowering else f"trying {name}")
        return family.lowered(layer, batch, machine, name)

    names = tried(lowering, layer, batch, family, bounded)
    if names == (lowering,):
        return by(lowering)
    with failures_named(layer):
        return by_fastest_lowering(names, by, lambda name: family.least(layer, batch, machine, name))


def by_fastest_lowering(
    names: Sequence[str], by: Callable[[str], ReadyLayer], least: Callable[[str], float]
) -> ReadyLayer:
    """A layer made ready `by` each of some lowerings, of which the first with the fewest cycles is chosen.

    A lowering is not tried whose `least` cycles are no fewer than what another takes. Raises as `fitting` does.
    """
    cycles: list[int] = []

    def timed(name: str) -> ReadyLayer:
        made = by(name)
        cycles.append(made.timing.cycles)
        return made

    def hopeless(name: str) -> bool:
        return bool(cycles) and least(name) >= min(cycles)

    # A generator makes one candidate at a time, so at most two are held.
    return min(fitting(names, timed, hopeless), key=lambda each: each.timing.cycles)


def fitting(
    names: Sequence[str], make: Callable[[str], Found], hopeless: Callable[[str], bool] = lambda name: False
) -> Iterator[Found]:
    """Results of `make` for each lowering that fits the machine, except those that are `hopeless` by then.

    Raises:
        CapacityError: when none does: what each of them says, as one may fit more easily than another.
        UnsuitableError: when none takes the op: what the first of them says.
    """
    refused: defaultdict[Problem, list[str]] = defaultdict(list)
    unsuitable: UnsuitableError | None = None
    found = False
    for name in names:
        try:
            if hopeless(name):
                continue
            made = make(name)
        except UnsuitableError as error:
            # Among many lowerings, one for other ops need not be reported.
            unsuitable = unsuitable or error
            continue
        except CapacityError as error:
            for problem in error.problems:
                refused[problem].append(name)
            continue
        found = True
        yield made
        del made
    if found:
        return
    if refused:
        if len(names) == 1:
            raise CapacityError(refused)
        raise CapacityError(
            replace(each, message=f"by {', '.join(those)}: {each.message}") for each, those in refused.items()
        )
    if unsuitable:
        raise unsuitable
