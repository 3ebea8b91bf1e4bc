"""Layers that overlap (`sequencer.between_layers: overlap`, `stay`): consecutive layers as one Program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.base.errors import failures_named
from tpusim.machines.lowered import Account, LayerTensor, Told
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording, cuts_of
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.machines.tpu.runs.prepared import PreparedLayer, as_floats, need_numba
from tpusim.machines.tpu.schedule.joined import Joint, ReadOutcomes, linked, placed, unfit
from tpusim.machines.tpu.schedule.residence import Residence, immovable, in_scratch, residence
from tpusim.network.ops.elementwise import Div, Rdiv
from tpusim.network.ops.fused import OTHER
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import Residency, WordRange

if TYPE_CHECKING:
    from tpusim.reference import Operands, Tensor

MOST_LAYERS = 64
"""Most layers of a chain: longer chains would hide little more."""
_FULL = f"{MOST_LAYERS} layers overlap at most"


@dataclass(frozen=True)
class ProgramChain:
    """Layers joined to one Program; a `machines.lowered.Chain`.

    `hardware` has its arrays arranged for all of them. `apart` says why the first layer does not overlap with the layer
    ahead of the chain. `alone_cycles` are those of each layer by itself. `like` is a chain of the same Programs, whose
    layers read one another alike, and which takes as long.
    """

    members: tuple[tuple[Op, PreparedLayer], ...]
    joints: tuple[Joint, ...]
    hardware: Hardware
    apart: str
    alone_cycles: tuple[int, ...]
    like: ProgramChain | None = None

    @property
    def name(self) -> str:
        """Name of the chain in messages."""
        return " to ".join(dict.fromkeys((self.joints[0].name, self.joints[-1].name)))

    @cached_property
    def residence(self) -> Residence:
        """Places of the layers' words, and outcomes that stay on chip between layers, if the machine and the layers
        allow it.
        """
        stay = self.hardware.sequencer.between_layers == "stay"
        if stay and not any(immovable(each.program) for each in self.joints):
            return residence(self.joints, self.hardware)
        return Residence(tuple(placed(self.joints, self.hardware)), (), ())

    @cached_property
    def layers(self) -> tuple[Joint, ...]:
        """The layers as they run in the chain; intermediates may be in the scratch memory."""
        return in_scratch(self.residence.layers, self.hardware)

    @cached_property
    def program(self) -> Program:
        """All layers as one Program."""
        return linked(self.layers, self.hardware)

    def alone(self, at: int) -> PreparedLayer:
        """A layer by itself, with its addresses in the chain."""
        return self.members[at][1].with_program(self.residence.alone(at))

    def account(self, at: int, batch: int, timing: Timing) -> Account:
        """The account of a layer in the chain, with bytes that need not cross the bus, and tensors that stay
        on chip.
        """
        (layer, ready), program = self.members[at], (self.like or self).layers[at].program
        saved = [use.hbm_read_bytes + use.hbm_write_bytes for use in (self.joints[at].program.use, program.use)]
        return replace(
            ready.with_program(program).account(layer, batch, timing),
            launch_cycles=0 if at else self.hardware.sequencer.launch_cycles,
            hidden_cycles=self.alone_cycles[at] - timing.cycles,
            hbm_saved_bytes=saved[0] - saved[1],
            residency=self._residency(at),
            apart="" if at else self.apart,
        )

    def _residency(self, at: int) -> Residency | None:
        """Places of a layer's own words and of its outcome, if that stays; None if nothing stays in this chain."""
        found = self.like.residence if self.like else self.residence
        if not found.own:
            return None
        mine = WordRange(*found.own[at], max((each.lanes for each in found.layers[at].program.buffers), default=0))
        if (outcome := found.outcome(at)) is None:
            return Residency(mine)
        readers = tuple(dict.fromkeys(found.layers[reader].name for reader, _ in outcome.readers))
        return Residency(mine, WordRange(outcome.base, outcome.words, outcome.lanes), readers, outcome.spilled)

    @cached_property
    def timing(self) -> Timing:
        """Time by the event engine. Raises DeadlockError, which names the layers."""
        if self.like:
            return self.like.timing
        with failures_named(self):
            return event.run(self.program, self.hardware)

    @cached_property
    def by_simpy(self) -> Timing:
        """Time by processes of SimPy; see `timing`."""
        if self.like:
            return self.like.by_simpy
        with failures_named(self):
            return event.by_simpy(self.program, self.hardware)

    def recorded(self) -> tuple[Recording, tuple[int, ...]]:
        """A recording of all units; and the first cycle of each layer, with the cycle after the last."""
        found = event.record(self.program, self.hardware)
        cuts = cuts_of(found.log, found.program, found.hardware) if len(self.members) > 1 else (0, found.cycles)
        return found, tuple(cuts)

    @property
    def given(self) -> dict[LayerTensor, LayerTensor]:
        """By each reader of an outcome on chip, the reader whose random operands all of them find there."""
        return given_to(self.residence, [layer for layer, _ in self.members])

    def stepped(
        self, operands: Sequence[Operands], number: np.dtype[Any], told: Told
    ) -> tuple[Timing, list[dict[str, Tensor]]]:
        """Time and values of all layers from one run of the register engine; each layer has operands of its own."""
        need_numba()
        from tpusim.machines.tpu import register

        named = {f"{joint.name}.{name}": each
                 for joint, mine in zip(self.joints, operands, strict=True) for name, each in mine.items()}  # fmt: skip
        # With given operands a wrong value of one layer cannot spoil the check of the next.
        doubles = number == np.float64 or any(ready.program.doubles for _, ready in self.members)
        program = replace(self.program, doubles=doubles).with_given_operands()
        timing, written = register.run(program, self.hardware, as_floats(named), told)
        made = [{name: written[f"{each.name}.{name}"] for name in each.program.written} for each in self.joints]
        return timing, made


def chains_of(
    members: Iterable[tuple[Op, PreparedLayer]], workload: Workload, hardware: Hardware, most_steps: int
) -> Iterator[ProgramChain]:
    """Chains, as long as possible, of the layers in order; a chain has at most `most_steps` steps unless it is one
    layer. Where the workload says its blocks, a chain that is full ends with one, so that chains repeat as well.
    """
    reads, arrangements = _Reads(workload), _Arrangements(hardware, workload.batch)
    blocks, known = _blocks(workload), dict[Hashable, ProgramChain]()
    held: list[tuple[Op, PreparedLayer]] = []
    joints: list[Joint] = []
    alone: list[int] = []
    machine: Hardware | None = None
    apart = ""

    def ended() -> ProgramChain:
        runs_on = machine or held[0][1].running
        made = ProgramChain(tuple(held), reads.among(joints), runs_on, apart, tuple(alone))
        # Names of layers that stay on chip differ from chain to chain.
        if hardware.sequencer.between_layers == "stay" or len(held) == 1:
            return made
        first = known.setdefault(_kind(made), made)
        return made if first is made else replace(made, like=first)

    for layer, own in members:
        ready = arrangements.fitting(layer, own, machine)
        joint = _joint(layer, ready or own, reads)
        why = "it uses the arrays in another way" if held and ready is None else ""
        if len(held) + blocks.get(layer.name, 1) > MOST_LAYERS:
            why = why or _FULL
        if held and reads.waits(layer):
            why = why or "it waits for other chips"
        if held and (why := why or _cut(joint, joints, hardware, most_steps)):
            yield ended()
            held, joints, alone, machine, apart = [], [], [], None, why
            ready = arrangements.fitting(layer, own, None)
            joint = _joint(layer, ready or own, reads)
        ready = ready or own
        held.append((layer, ready))
        joints.append(joint)
        alone.append(own.timing.cycles)
        if machine is None and ready.program.passes:
            machine = ready.running
    yield ended()


def _blocks(workload: Workload) -> dict[str, int]:
    """Return the number of layers of each copy of a block, by its first layer, for copies that fit into a chain."""
    copies = workload.copies
    spans = ([*span] for _, span in groupby(workload.layers, lambda layer: copies.get(layer.name)))
    return {span[0].name: len(span) for span in spans if span[0].name in copies and len(span) <= MOST_LAYERS}


def _kind(chain: ProgramChain) -> Hashable:
    """Return what chains of the same time have in common: their Programs, and which of their outcomes layers read."""
    place = {joint.name: at for at, joint in enumerate(chain.joints)}
    reads = tuple(
        (
            joint.leaves,
            *(
                (tensor, tuple(place.get(name, -1) for name in read.names), *read[1:])
                for tensor, read in joint.reads.items()
            ),
        )
        for joint in chain.joints
    )
    # The first chain of a kind is kept, so that no other Program has the number of one of its own.
    return tuple(id(ready) for _, ready in chain.members), reads, chain.hardware


def _joint(layer: Op, ready: PreparedLayer, reads: _Reads) -> Joint:
    joint = Joint(layer.name, ready.program, reads.of(layer))
    return joint._replace(units=ready.draft.units, finish=ready.draft.finished) if ready.draft else joint


class _Arrangements:
    """Layers as they use the arrays of a chain."""

    def __init__(self, hardware: Hardware, batch: int) -> None:
        self._hardware, self._batch = hardware, batch
        self._known: dict[tuple[int, str], tuple[PreparedLayer, PreparedLayer]] = {}

    def fitting(self, layer: Op, ready: PreparedLayer, machine: Hardware | None) -> PreparedLayer | None:
        """The layer for a chain whose passes run on `machine`, if there are any yet.

        None if the layer is better alone: in the arrangement of the chain it takes longer by more than a launch.
        """
        whole = ready.running.lanes == self._hardware.lanes
        if not ready.program.passes:
            return ready if machine is None or machine.lanes == ready.running.lanes else None
        if ready.running == machine or (whole and machine is None):
            return ready
        if machine and machine.lanes != self._hardware.lanes:
            return None
        ways = [machine.array.weights] if machine else ["own", "shared"]
        found = min((self._arranged(layer, ready, way) for way in ways), key=lambda each: each.timing.cycles)
        longer = found.timing.cycles - ready.timing.cycles
        return found if longer <= self._hardware.sequencer.launch_cycles else None

    def _arranged(self, layer: Op, ready: PreparedLayer, weights: str) -> PreparedLayer:
        """The layer where undivided arrays have such weights."""
        key = id(ready), weights
        if key not in self._known:
            machine = self._hardware.having("array", weights=weights, split=1)
            # The layer itself is kept, too, so that no other has its number.
            found = prepared(layer, self._batch, machine, ready.lowering).on(self._hardware)
            self._known[key] = found, ready
        return self._known[key][0]


def _cut(joint: Joint, ahead: Sequence[Joint], hardware: Hardware, most_steps: int) -> str:
    """The reason why a layer does not overlap with the layers ahead of it; empty if it does."""
    if hardware.hbm.dram:
        return "HBM is modelled with its banks"
    if sum(len(each.program.rows) for each in (*ahead, joint)) > most_steps:
        return "this computer has no memory for more of them at once"
    # Layers in between were examined when they joined the first.
    ends = (ahead[0], joint) if hardware.sequencer.between_layers == "stay" else ()
    return next(filter(None, (immovable(each.program) for each in ends)), "") or unfit(joint, ahead, hardware)


class _Reads:
    """The outcomes that layers read: as the workload says, or else the layer ahead's."""

    def __init__(self, workload: Workload) -> None:
        self._batch, self._known, self._layers = workload.batch, workload.sources(), workload.layers
        self.exchanged = {each.name: each for each in workload.collectives}
        self._ahead = {layer.name: ahead.name for ahead, layer in pairwise(workload.layers)}

    def among(self, joints: Sequence[Joint]) -> tuple[Joint, ...]:
        """Layers of a chain, marked if others read their outcome; an outcome without readers is the network's."""
        names = {each.name for each in joints}
        readers = ((each, self._readers[each.name]) for each in joints)
        return tuple(each._replace(leaves=not mine or not mine <= names) for each, mine in readers)

    @cached_property
    def _readers(self) -> defaultdict[str, set[str]]:
        """Names of the readers of each layer's outcome."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for layer in self._layers:
            for read in self.of(layer).values():
                for name in read.names:
                    found[name].add(layer.name)
        for name, each in self.exchanged.items():
            for one in each.reads:
                found[one].add(name)
        return found

    def waits(self, layer: Op) -> bool:
        """Whether a layer reads what other chips have a part in, behind a layer of this chip."""
        return any(bool(self.exchanged[name].reads) for read in self.of(layer).values() for name in read.names
                   if name in self.exchanged)  # fmt: skip

    def of(self, layer: Op) -> dict[str, ReadOutcomes]:
        """Outcomes that a layer reads, by its tensors; the layer ahead's if the workload does not say."""
        tensors = layer.reads(self._batch)
        if layer.name in self._known:
            told = zip(tensors, self._known[layer.name], strict=False)
            return {tensor: ReadOutcomes(*source[:3]) for tensor, source in told}
        ahead = self._ahead.get(layer.name)
        return {next(iter(tensors)): ReadOutcomes((ahead,))} if ahead else {}


def given_to(found: Residence, layers: Sequence[Op]) -> dict[LayerTensor, LayerTensor]:
    """By each reader of an outcome on chip, the reader whose random operands all of them find there.

    The most demanding reader is chosen: one that needs positive numbers, else one that divides by them, as these are
    never zero, else one that rounds, as these are small, else the first.
    """

    def needs(reader: LayerTensor) -> int:
        layer, tensor = layers[reader[0]], reader[1]
        divides = (isinstance(layer, Div) and tensor == OTHER) or (isinstance(layer, Rdiv) and tensor != OTHER)
        return 0 if layer.positive else 1 if divides else 3 if layer.exact else 2

    return {reader: min(each.readers, key=needs) for each in found.allocations for reader in each.readers}
