"""`tpusim scale`: a network on slices of more and more chips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Unpack

from tpusim.api.answer import Answer
from tpusim.api.asked import (
    AskedRun,
    MachineName,
    Note,
    Progress,
    SliceName,
    WorkloadName,
    WorkloadOptions,
    asked_for,
    check_held,
    model_options,
    notes_of,
    resolved,
    slice_for,
)
from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.flow.chip_steps.network import images_of_all
from tpusim.flow.numbers import INTEGERS
from tpusim.input.scalars import integer
from tpusim.machines.family import Machine
from tpusim.machines.lowered import unheard
from tpusim.report.tables.scaling import at_a_glance, rows_of, scaled, title
from tpusim.study.kinds import KnownKinds
from tpusim.study.scaling import ScaledSlice, Scaling, run_shared

if TYPE_CHECKING:
    from tpusim.input.form import Overrides
    from tpusim.machines.tpu.slices.slice import ChipSlice
    from tpusim.report.plots.figure import Picture

_STDIN = "-"


def scale(
    workload: WorkloadName,
    slices: Sequence[SliceName],
    hardware: MachineName | Machine | None = None,
    *,
    batch: int | None = None,
    batch_a_chip: int | None = None,
    lowering: str | None = None,
    set: Overrides | None = None,
    dtype: str = INTEGERS,
    progress: Progress = unheard,
    note: Note = unheard,
    **options: Unpack[WorkloadOptions],
) -> Answer:
    """Time a network on slices of more and more chips, as `tpusim scale` does: timing alone.

    A slice that cannot run it, as a chip's share does not fit its HBM for instance, says so in its row.

    Args:
        workload: a name that `tpusim list` shows, or a path.
        slices: slices of one generation: names that `tpusim list` shows, paths, or what `load_slice` returns.
        hardware: a name, a path, or what `load_hardware` returns; None: the chip of the slices.
        batch: images or sequences of all chips together, on every slice (strong scaling).
        batch_a_chip: images or sequences a chip, instead, so that more chips have more of them (weak scaling).
        lowering: how layers become passes, as for `simulate`.
        set: fields of the machine to change, as for `load_hardware`; and those of the slices, as slice.FIELD.
        dtype: what operands are, as for `simulate`.
        progress: called before each layer with slices done, all slices, and what is next.
        note: called with what there is to know of the workload and the machine.
        options: those of the workload: dims, phase, weights, caches, mesh, microbatches, training, keep, offload, ...;
            in a mesh "*" takes the chips that other axes leave of a slice. Without a mesh the chips share the batch.

    Raises:
        InputError: with every problem of what is given; slices of several generations; or no slice can run it.

    Examples:
        >>> import tpusim
        >>> answer = tpusim.scale("gpt2_small", ["v6e_2x2", "v6e_8"], batch=8, dims={"layers": 1},
        ...                       mesh={"fsdp": "*"}, set="mapping.search=estimate")
        >>> answer.to_frame()[["slice", "chips", "mesh"]].values.tolist()
        [['v6e_2x2', 4, 'fsdp=4'], ['v6e_8', 8, 'fsdp=8']]
    """
    asked = model_options(**options)
    if str(workload) == _STDIN:
        says = "standard input is read once, and a network anew for each slice; write it into a file, and name that"
        raise InputError(Problem(says, _STDIN))
    for name, given in (("batch", batch), ("batch_a_chip", batch_a_chip)):
        if given is not None and (integer(given) is None or given < 1):
            raise InputError(f"{name}: {given!r:.80} is no number of images; write a whole number, 1 or more")
    if batch is not None and batch_a_chip is not None:
        says = "one of them says how many there are: batch of all chips together, batch_a_chip of each"
        raise InputError(Problem(f"{says}; leave one out", "--batch, --batch-a-chip"))
    # All that is wrong with the slices is told before the first of them takes its time.
    changes, places = _places(slices, set)
    # A note on the network would come again with each slice.
    told = dict[str, None]()

    def tell(text: str) -> None:
        if text not in told:
            note(text)
        told[text] = None

    found: list[ScaledSlice] = []
    known: KnownKinds = {}
    problems = dict[str, Problem]()
    for at, place in enumerate(places):
        all_images = batch_a_chip * place.chips if batch_a_chip else batch

        def doing(_: int, __: int, what: str, at: int = at, place: ChipSlice = place) -> None:
            progress(at, len(places), f"{place.name}: {what}")

        try:
            run_asked = asked_for(workload, hardware, all_images, changes, asked, tell, place)
            found.append(_timed(run_asked, place, lowering, dtype, known, tell, doing))
        except InputError as error:
            # A slice that is too small must not end those that are not.
            problems |= {str(each): each for each in error.problems}
            refusal = "; ".join(map(str, error.problems))
            too_large = isinstance(error, CapacityError)
            found.append(ScaledSlice(place.name, place.chips, all_images or 0, None, refusal, too_large))
    steps = [each.result for each in found if each.result]
    # What no slice can do is wrong with the question.
    if not steps:
        raise InputError(problems.values())
    # Of a batch that nobody gave, the runs tell how many there are.
    usual = next(each.batch for each in found if each.result)
    ordered = sorted((replace(each, batch=each.batch or usual) for each in found), key=attrgetter("chips"))
    made = Scaling(steps[0].workload, steps[0].machine, tuple(ordered), batch_a_chip)

    def draw() -> Picture:
        # Imported here, because matplotlib takes longer to import than small networks take.
        from tpusim.report.plots.scaling import scaling_picture

        return scaling_picture(made)

    rows = [*rows_of(made)]
    return Answer(scaled(made), rows, made, tuple(told), heading=title(made), tiles=at_a_glance(made), draw=draw)


def _places(slices: Sequence[SliceName], set: Overrides | None) -> tuple[Overrides | None, list[ChipSlice]]:
    """Return the changes of the machine, and the slices. Raises InputError with every problem of them."""
    if isinstance(slices, str) or not isinstance(slices, Sequence) or not slices:
        raise InputError(Problem(f"{slices!r:.80} names no slices; write a list, such as v6e_8, v6e_4x4", "--slices"))
    problems: list[Problem] = []
    found: list[ChipSlice] = []
    changes = set
    for each in slices:
        try:
            changes, place = slice_for(each, set)
        except InputError as error:
            problems += error.problems
            continue
        assert place
        if any(place == other for other in found):
            problems.append(Problem(f"{place.name} is named twice; name it once", "--slices"))
        found.append(place)
    if problems:
        raise InputError(dict.fromkeys(problems))
    generations = dict.fromkeys(each.interconnect.generation for each in found)
    if len(generations) > 1:
        says = f"chips of {' and '.join(generations)} have no ideal in common; name slices of one generation"
        raise InputError(Problem(says, "--slices"))
    return changes, found


def _timed(
    asked: AskedRun, place: ChipSlice, lowering: str | None, dtype: str, known: KnownKinds, note: Note, doing: Progress
) -> ScaledSlice:
    """Return a network on a slice. Raises InputError where it cannot run so."""
    jobs = resolved(asked.work, asked.machine, lowering, dtype=dtype, progress=doing)
    check_held(jobs, asked)
    for each in notes_of(jobs.work, asked.unnamed):
        note(each)
    result = run_shared(jobs, place, known, lambda layer, what: doing(0, 0, f"{layer}: {what}"))
    return ScaledSlice(place.name, place.chips, images_of_all(jobs.work), result)
