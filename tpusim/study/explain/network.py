"""Why a whole network takes as long as it does: the layers that cost most, each explained, and what helps all together.

A change that helps a costly layer may hurt others, so each is made to the whole network, which is simulated again.
Equal layers are simulated once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tpusim.base.errors import InputError
from tpusim.flow.chip_steps.network import exchanges_of, images_of_all, items_of, step_of
from tpusim.flow.hbm_need import held_in_hbm
from tpusim.flow.jobs import Jobs, resolve
from tpusim.flow.lowerings import AUTO, usual
from tpusim.machines.tpu.slices.slice import ChipSlice
from tpusim.network.mesh import HOST, mesh_text
from tpusim.network.ops.array_op import StoredTensor
from tpusim.network.workload import MOST_IMAGES, Workload
from tpusim.result.records import LayerResult, StepResult
from tpusim.result.vocabulary.fields import by_path
from tpusim.study.explain.bottleneck import ExplainedLayer, UntriedChange, explain_layer
from tpusim.study.explain.collectives import easier_hosts, easier_slices
from tpusim.study.explain.relaxation import Setup, Timings, relaxations

MOST_EXPLAINED = 5
"""Kinds of layers that are explained: those that cost most."""
LEAST_CHANGE = 0.005
"""Least part by which a change makes one of them faster, for the whole network to be simulated with it."""

Watch = Callable[[int, int, str], None]
"""Called with the steps that are done, all steps, and what is next."""
WithBatch = Callable[[int], Workload]
WithMesh = Callable[[Mapping[str, int]], Workload]


@dataclass(frozen=True)
class CostlyLayers:
    """Equal layers of a network, the first of which is explained.

    Attributes:
        found: the first of them by itself, and what would help it.
        names: their names, in network order.
        cycles: cycles that they take together in the network.
        share: share of the network's cycles.
    """

    found: ExplainedLayer
    names: tuple[str, ...]
    cycles: int
    share: float


@dataclass(frozen=True)
class NetworkGain:
    """A change of the machine or of the run, and the whole network simulated with it.

    Attributes:
        name: what is changed.
        how: the change, as options set it.
        cycles: cycles of the whole network then.
        gain: how many times as fast the network is, by `per`.
        per: what cycles are counted by: the `network`, or an `image` where the batch changes.
    """

    name: str
    how: str
    cycles: int
    gain: float
    per: str


@dataclass(frozen=True)
class ExplainedNetwork:
    """A network as it is, the layers that cost most, and what would help the whole.

    Attributes:
        jobs: what ran.
        layers: every layer, in network order.
        kinds: number of kinds of layers; those of a kind are equal.
        costly: the kinds that cost most, the costliest first.
        gains: changes with which the whole network was simulated, the largest gain first.
        unmoved: names of changes with which it was not, as they make none of the costly layers faster.
        untried: changes that could not be made, with the reason.
        simulations: simulations that it took, each of one layer, or of all where layers overlap.
        step: the step of a network that several chips share; None of others.
    """

    jobs: Jobs
    layers: tuple[LayerResult, ...]
    kinds: int
    costly: tuple[CostlyLayers, ...]
    gains: tuple[NetworkGain, ...]
    unmoved: tuple[str, ...]
    untried: tuple[UntriedChange, ...]
    simulations: int
    step: StepResult | None = None

    @property
    def cycles(self) -> int:
        """Cycles of all layers, or of the step."""
        return self.step.cycles if self.step else sum(each.cycles for each in self.layers)

    @property
    def time_us(self) -> float:
        """Microseconds of all layers, or of the step."""
        return 1e6 * self.step.seconds if self.step else sum(each.time_us for each in self.layers)

    @property
    def most(self) -> NetworkGain | None:
        """The change that gains most; None where none makes the network faster."""
        return self.gains[0] if self.gains and self.gains[0].gain >= 1 + LEAST_CHANGE else None


def explain_network(
    workload: Workload,
    jobs: Jobs,
    lowering: str | None,
    again: WithBatch | None,
    watch: Watch,
    place: ChipSlice | None = None,
    meshed: WithMesh | None = None,
) -> ExplainedNetwork:
    """Explain the layers of `jobs` that cost most, then simulate the whole with each change that may help.

    Args:
        workload: the network as its file has it, of which `jobs` are.
        jobs: what runs.
        lowering: the lowering that was asked for.
        again: the network for another batch; None where it is of one batch alone.
        watch: called before each step.
        place: the slice of a network that several chips share.
        meshed: the network for another mesh; None where it is of one mesh alone.

    Raises:
        InputError: the network as it is cannot be simulated, or does not fit the machine's HBM (CapacityError).
    """
    held_in_hbm(jobs.work, jobs.machine)
    timings, machine = Timings(), jobs.machine
    steps = _Steps(watch, len({*jobs.kinds}) + MOST_EXPLAINED)
    layers = _simulated(jobs, timings, steps)
    step = _step(jobs, layers, place)
    costly = []
    ranked = _ranked(jobs, layers)[:MOST_EXPLAINED]
    whole = step.cycles if step else sum(each.cycles for each in layers)
    setups = [Setup(jobs.each[first].layer, jobs.each[first].batch, machine, jobs.each[first].lowering, timings)
              for first, *_ in ranked]  # fmt: skip
    steps.total = len({*jobs.kinds}) + sum(len(relaxations(setup)) for setup in setups)
    for places, setup in zip(ranked, setups, strict=True):
        found = explain_layer(setup, partial(steps.show_of, setup.layer.name))
        cycles = sum(layers[place].cycles for place in places)
        costly.append(CostlyLayers(found, tuple(layers[at].name for at in places), cycles, cycles / whole))
    changes, unmoved = _of_the_machine(costly, workload, lowering)
    tried = [*changes, *_of_the_run(workload, jobs, lowering, again), *_of_the_chips(jobs, lowering, place, meshed)]
    steps.total = steps.done + len(tried)
    gains: list[NetworkGain] = []
    untried = [*dict.fromkeys(each for one in costly for each in one.found.untried)]
    if again is None:
        untried.append(UntriedChange("twice the batch", "the workload is for one batch; give it by name, of any batch"))
    for change in tried:
        steps.show(f"the whole with {change.name}")
        try:
            made = change.made()
            held_in_hbm(made.work, made.machine)
            after = _simulated(made, timings)
            then = _step(made, after, change.place or place)
        except InputError as error:
            untried.append(UntriedChange(change.name, error.problems[0].message))
            continue
        cycles = then.cycles if then else sum(each.cycles for each in after)
        more = items_of(made.work)[1] / items_of(jobs.work)[1]
        gains.append(NetworkGain(change.name, change.how, cycles, more * whole / cycles, change.per))
    gains.sort(key=lambda each: -each.gain)
    of_all = tuple(costly), tuple(gains), tuple(unmoved), tuple(untried)
    return ExplainedNetwork(jobs, layers, len({*jobs.kinds}), *of_all, timings.simulations, step)


class _Steps:
    """How far it is."""

    def __init__(self, watch: Watch, total: int) -> None:
        self.done, self.total, self._watch = 0, total, watch

    def show_of(self, layer: str, _: int, what: str) -> None:
        self.show(f"{layer}: {what}")

    def show(self, what: str) -> None:
        self._watch(self.done, max(self.total, self.done + 1), what)
        self.done += 1


def _simulated(jobs: Jobs, timings: Timings, steps: _Steps | None = None) -> tuple[LayerResult, ...]:
    """Every layer in network order; equal ones are simulated once, and where layers overlap all run together."""
    if jobs.family.overlaps(jobs.machine):
        if steps:
            steps.show("all layers together")
        return timings.network(jobs)
    known: dict[Hashable, LayerResult] = {}
    for job, kind in zip(jobs.each, jobs.kinds, strict=True):
        if kind not in known:
            if steps:
                steps.show(job.layer.name)
            with job.placed():
                known[kind] = timings.layer(job.layer, job.batch, jobs.machine, job.lowering)
    of_each = zip(jobs.each, jobs.kinds, strict=True)
    return tuple(known[kind].called(job.layer.name, (), (), "") for job, kind in of_each)


def _step(jobs: Jobs, layers: Sequence[LayerResult], place: ChipSlice | None) -> StepResult | None:
    made = exchanges_of(jobs, place)
    return step_of(jobs, layers, made, "event") if made else None


def _ranked(jobs: Jobs, layers: Sequence[LayerResult]) -> list[list[int]]:
    """The places of the layers of each kind, the kind that takes most cycles first."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, kind in enumerate(jobs.kinds):
        places[kind].append(place)
    return sorted(places.values(), key=lambda those: -sum(layers[place].cycles for place in those))


# ---- changes of the whole


class _Change(NamedTuple):
    """A change of the machine, the workload, the lowering or the slice; `made` returns the jobs then."""

    name: str
    how: str
    made: Callable[[], Jobs]
    per: str = "network"
    place: ChipSlice | None = None


def _of_the_machine(
    costly: Sequence[CostlyLayers], work: Workload, lowering: str | None
) -> tuple[list[_Change], list[str]]:
    """Changes of the machine that make one of the costly layers faster, and the names of those that make none so."""
    changes: dict[str, _Change] = {}
    most: dict[str, float] = defaultdict(float)
    for each in costly:
        for gain in each.found.gains:
            setup, easier = each.found.setup, gain.easier
            if easier is None or (easier.layer, easier.batch) != (setup.layer, setup.batch) or gain.relaxation.ideal:
                continue
            change = _Change(gain.name, gain.how, partial(resolve, work, easier.hardware, lowering))
            changes.setdefault(gain.name, change)
            most[gain.name] = max(most[gain.name], gain.gain)
    helping = [change for name, change in changes.items() if most[name] >= 1 + LEAST_CHANGE]
    return helping, [name for name in changes if most[name] < 1 + LEAST_CHANGE]


def _of_the_run(work: Workload, jobs: Jobs, lowering: str | None, again: WithBatch | None) -> Iterator[_Change]:
    """Changes of how the network is run, which no layer by itself tells of."""
    if lowering in (None, usual(jobs.family)) and len(jobs.family.lowerings) > 1:
        yield _Change(
            "the fastest lowering of each layer", f"--lowering {AUTO}", partial(resolve, work, jobs.hardware, AUTO)
        )
    written = dict(by_path(jobs.hardware.to_dict()))
    for name, path, value in (
        ("results that later ops work on as they leave", "sequencer.fusion", "results"),
        ("layers that overlap", "sequencer.between_layers", "overlap"),
    ):
        if written.get(path, value) not in (value, "stay"):
            yield _Change(name, f"{path}={value}", partial(_set_so, work, jobs, lowering, {path: value}))
    narrow: Mapping[str, tuple[StoredTensor, StoredTensor]] = {
        "weights": ("int8", "computed"),
        "caches": ("computed", "int8"),
    }
    for what, stored in narrow.items():
        if work.with_stored(*stored).layers != work.layers:
            narrowed = partial(resolve, work.with_stored(*stored), jobs.hardware, lowering)
            yield _Change(f"{what} as int8 in HBM", f"--{what} int8", narrowed)
    if again is not None and (batch := 2 * images_of_all(work)) <= MOST_IMAGES:
        larger = partial(again, batch)
        yield _Change(
            "twice the batch", f"--batch {batch}", lambda: resolve(larger(), jobs.hardware, lowering), "image"
        )


def _set_so(work: Workload, jobs: Jobs, lowering: str | None, settings: Mapping[str, Any]) -> Jobs:
    """Return the jobs on the machine with these settings. Raises InputError where it cannot have them."""
    return resolve(work, jobs.hardware.with_overrides(settings), lowering)


# ---- changes of what several chips share


def _of_the_chips(
    jobs: Jobs, lowering: str | None, place: ChipSlice | None, meshed: WithMesh | None
) -> Iterator[_Change]:
    """Changes of the links between chips, and of the mesh; none of a network of one chip."""
    if place is None or not (jobs.work.mesh or jobs.work.collectives):
        return
    between = any(each.over != (HOST,) for each in jobs.work.collectives)
    easier = [*easier_slices(place)] if between else []
    if any(each.over == (HOST,) for each in jobs.work.collectives):
        easier += easier_hosts(place)
    for each in easier:
        if each.settings:
            how = " ".join(f"slice.{path}={text}" for path, text in each.settings.items())
            yield _Change(f"between chips, {each.what}", how, lambda: jobs, place=each.place)
    if jobs.work.collectives and place.overlap != "none":
        alone = place.model_copy(update={"overlap": "none"})
        yield _Change("no collective beside layers", "slice.overlap=none", lambda: jobs, place=alone)
    # Last, as each needs layers of other sizes.
    for mesh in other_meshes(dict(jobs.work.mesh)) if meshed else ():
        assert meshed is not None
        try:
            work = meshed(mesh)
        except InputError:
            # What the network has no such share of is no mesh for it.
            continue
        axes = mesh_text(mesh)
        name = f"the mesh {axes.replace('=', ' ').replace(',', ', ')}"
        yield _Change(name, f"--mesh {axes}", partial(resolve, work, jobs.hardware, lowering))


def other_meshes(mesh: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the meshes of as many chips that are near a mesh: the least factor of an axis, or all of it, goes to
    another.
    """
    found: list[dict[str, int]] = []
    for axis, chips in mesh.items():
        factors = {next((each for each in range(2, chips) if chips % each == 0), chips), chips} if chips > 1 else {}
        for other in dict.fromkeys((*_USUAL_AXES, *mesh)):
            for factor in sorted(factors) if other != axis else ():
                made = {**dict.fromkeys(_USUAL_AXES, 1), **mesh, axis: chips // factor}
                made[other] *= factor
                held = {name: made[name] for name in made if made[name] > 1}
                if held not in found:
                    found.append(held)
    return found


_USUAL_AXES = ("data", "fsdp", "tensor")
