"""Collectives held against slices that somebody ran, and against what Google's compiler writes for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from math import prod

from tpusim.base.errors import InputError
from tpusim.machines.tpu.slices.algorithms.registry import CompilerChoice, choice
from tpusim.machines.tpu.slices.slice import AXES, ChipSlice, load_slice
from tpusim.machines.tpu.slices.summary import Question, timed_collective
from tpusim.study.validation.cases import MeasuredRow, NumberSet, Omission, Row, UnclearError, cached, rows
from tpusim.study.validation.comparison import ComparedCase, Comparison
from tpusim.study.worker_processes import InputProgress

COLLECTIVES = "collectives"
"""Name for all sets of collectives; the name of each begins with it."""

LARGE, SMALL = f"{COLLECTIVES}_large", f"{COLLECTIVES}_small"
NO_LAUNCH_SETS = "_no_launch"
"""End of the names of sets in which nothing is fitted."""
_LARGE_BYTES = 2**20
_ABOUT = {LARGE: "from 1 MiB on", SMALL: "below 1 MiB"}

_NO_LAUNCH = "interconnect.collectives.launch=1 ps"
"""What takes away the one number that is fitted on collectives."""

_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "s8": 1, "f8": 1}
_GENERATIONS = {"7x": "v7x"}
"""Generations that tables name otherwise than slices."""
_OPS = {"collective-permute": "permute"}


MeasuredCollective = MeasuredRow[Question]
"""What was asked of which slice, and the microseconds that it took."""


@dataclass(frozen=True)
class CompiledCollective:
    """A row of the table of compiled collectives: the compiler's choice, where its code or its scheduler names it, and
    ours. `differs` says in which words they differ.
    """

    name: str
    generation: str
    theirs: str
    ours: str
    differs: tuple[str, ...]


@cached
def measured_collectives(changes: tuple[str, ...] = ()) -> tuple[list[MeasuredCollective], list[Omission]]:
    """Return the rows that can be asked, and those that cannot, with the reason; `changes` override every slice."""
    found, left_out = list[MeasuredCollective](), list[Omission]()
    for row in rows("multichip_measured"):
        if row["kind"] != "collective":
            continue
        name = f"{row['generation']} {row['model']}, {row['topology']}"
        name = f"{name}, {int(row['bytes']):,} B" if row["bytes"] else name
        us = float(row["time_us"]) if row["time_us"] else None
        try:
            found.append(_measured(name, row, us, changes))
        except UnclearError as why:
            left_out.append(Omission(f"{row['id']}: {name}", us, str(why)))
    return found, left_out


def _measured(name: str, row: Row, us: float | None, changes: tuple[str, ...]) -> MeasuredCollective:
    if "wall time" in row["note"]:
        raise UnclearError("wall time on the host, in which a chip has no say")
    if us is None or not row["bytes"]:
        raise UnclearError("no size, or no time, is told")
    op, _, kind = row["model"].partition(" ")
    sides = re.match(r"\d+(x\d+)*", row["topology"])
    if sides is None:
        raise UnclearError("the slice is not told")
    told = f"{_GENERATIONS.get(row['generation'], row['generation'])}_{sides[0]}"
    try:
        place = load_slice(told)
    except InputError as error:
        raise UnclearError(str(error)) from None
    # What is wrong with a slice only now is wrong with the changes, and is no matter of the row.
    place = load_slice(told, changes) if changes else place
    # Groups of one core a chip run beside one another, so that a chip moves what both of its cores have.
    cores = 2 if "both cores" in row["parallelism"] else 1
    ranks = _whole(row["batch_per_chip"]) if row["batch_per_chip"] else place.chips
    element = _BYTES.get({"int8": "s8"}.get(kind, kind), 4)
    axes = _axes_of(place, ranks)
    asked = Question(place, _OPS.get(op, op.replace("-", "_")), _whole(row["bytes"]) * cores, axes, "", element)
    try:
        assert asked.collective
    except InputError as error:
        raise UnclearError(str(error)) from None
    return MeasuredRow(name, LARGE if asked.size >= _LARGE_BYTES else SMALL, asked, us)


def _axes_of(place: ChipSlice, ranks: int) -> tuple[str, ...]:
    """Return the fewest axes along which as many chips stand."""
    sides = dict(zip(AXES, place.torus, strict=False))
    for many in range(1, len(sides) + 1):
        for names in combinations(sides, many):
            if prod(sides[name] for name in names) == ranks:
                return names
    raise UnclearError(f"no axes of the slice have {ranks} chips")


def _whole(text: str) -> int:
    """Return a number of a table; `tables_from` has seen that it is one."""
    return round(float(text))


@cached
def collective_sets() -> dict[str, NumberSet]:
    """The sets by their names: measured times from 1 MiB on and below, and the same with nothing fitted."""
    found, left_out = measured_collectives()
    sets = {}
    for name, about in _ABOUT.items():
        if not any(each.group == name for each in found):
            continue
        made = NumberSet(name, "measured", COLLECTIVES, about, "slices", (), unit="us", lowering="")
        sets[name] = replace(made, left_out=tuple(left_out) if name == LARGE else ())
        bare = replace(made, kind=f"{COLLECTIVES} with no launch", about=f"{about}, with no launch: nothing is fitted")
        sets[name + NO_LAUNCH_SETS] = replace(bare, name=name + NO_LAUNCH_SETS)
    return sets


def compare_collectives(sets: Sequence[NumberSet], changes: Sequence[str], progress: InputProgress) -> list[Comparison]:
    """Time the collectives of the sets, with further overrides of every slice. Raises InputError."""
    found = []
    for number, each in enumerate(sets):
        progress(number, each.name)
        bare = each.name.endswith(NO_LAUNCH_SETS)
        asked, _ = measured_collectives((*changes, *([_NO_LAUNCH] if bare else [])))
        mine = [one for one in asked if one.group == each.name.removesuffix(NO_LAUNCH_SETS)]
        if not mine:
            raise InputError(f"--set {' '.join(changes)}: no slice of {each.name} has the axes of its rows then")
        found.append(Comparison(replace(each, asked=tuple(changes)), tuple(map(_compared, mine))))
    return found


def _compared(each: MeasuredCollective) -> ComparedCase:
    made = timed_collective(each.asked)
    return ComparedCase(each.name, made.seconds * 1e6, each.took, made.bound * 1e6, False)


# ---- what the compiler writes

_ALGORITHMS = {
    "RotatedPincerEmitter": "rotated_pincer", "RotatedPincerShortEmitter": "short_pincer",
    "SingleInputAllReduceScatterFusion": "scatter_ring", "AllToAllEmitter": "direct", "NetRouterEmitter": "direct",
}  # fmt: skip
_GATHERS = "1DAllGather"
_UNITS = re.compile(r"Ici[XYZ](?:Minus|Plus)|SparseCore\d")


@cached
def compiled_collectives() -> tuple[CompiledCollective, ...]:
    """Return the rows that name an emitter or, of 7x, what the scheduler books."""
    return tuple(_compiled())


def _compiled() -> Iterator[CompiledCollective]:
    for row in rows("xla_collectives"):
        booked = tuple(_UNITS.findall(row["resources"])) if row["generation"] == "7x" else ()
        if not row["bytes"] or (not row["emitter"] and not booked):
            continue
        ours = _chosen(row)
        size = f"{int(row['bytes']):,} B"
        name = f"{row['generation']} {row['topology'].partition(':')[2]} {row['axes']} {row['op']} {size}"
        differs = []
        theirs, mine = [row["emitter"]], [ours.algorithm]
        if row["emitter"]:
            wanted = "gather_ring" if row["emitter"].startswith(_GATHERS) else _ALGORITHMS.get(row["emitter"], "")
            differs += ["algorithm"] * (wanted != ours.algorithm)
        for column, number in (("colors", ours.colours), ("phases", ours.phases)):
            if row[column]:
                theirs, mine = [*theirs, f"{row[column]} {column}"], [*mine, f"{number} {column}"]
                differs += [column] * (int(row[column]) != number)
        if row["strategy"]:
            theirs, mine = [*theirs, row["strategy"]], [*mine, ours.strategy]
            differs += ["strategy"] * (row["strategy"] != ours.strategy)
        if booked:
            theirs, mine = [*theirs, *booked], [*mine, *ours.books]
            differs += ["resources"] * ({*booked} != {*ours.books})
        their_words, our_words = " ".join(filter(None, theirs)), " ".join(filter(None, mine))
        yield CompiledCollective(name, row["generation"], their_words, our_words, tuple(differs))


@cache
def _place(name: str) -> ChipSlice:
    return load_slice(name)


def _chosen(row: Row) -> CompilerChoice:
    """Return what we take for a row: its axes are those of a mesh of cores, which has the lengths."""
    generation, _, sides = row["topology"].partition(":")
    generation = _GENERATIONS.get(row["generation"], row["generation"])
    place = _place(f"{generation}_{sides}")
    mesh = dict(zip(AXES, map(int, row["mesh"].split("x")), strict=False))
    names = row["axes"].split("+")
    closed = [dict(zip(AXES, place.wraps, strict=False))[name] for name in names]
    lengths, op = [mesh[name] for name in names], row["op"]
    emitters = place.interconnect.collectives
    asked = _OPS.get(op, op.replace("-", "_"))
    return choice(asked, lengths, closed, _whole(row["bytes"]), len(names) == len(mesh), emitters, names)
