"""Layers that overlap (`sequencer.between_layers: overlap`, `stay`): those that follow one another, as one Program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from tpusim.base.errors import failures_named
from tpusim.machines.lowered import Ran, Reader, Saved, Told
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording, cuts_of
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.runs.need import TRANSFER_BYTES
from tpusim.machines.tpu.runs.prepared import Prepared, as_floats, need_numba
from tpusim.machines.tpu.schedule.joined import Joint, ReadOutcomes, linked, placed, unfit
from tpusim.machines.tpu.schedule.residence import Residence, immovable, residence
from tpusim.machines.tpu.schedule.scratch import in_scratch
from tpusim.network.ops.elementwise import Div, Rdiv
from tpusim.network.ops.fused import OTHER
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import Residency, WordRange

if TYPE_CHECKING:
    from tpusim.reference import Operands, Tensor

MOST_LAYERS = 64
"""Of a chain: what more of them would hide is no more than what one begins with."""


@dataclass(frozen=True)
class ProgramChain(Generic[Ran]):
    """Layers joined to one Program: `machines.lowered.Chain`.

    `apart` says why the first does not overlap with what is ahead of it.
    """

    members: tuple[Ran, ...]
    joints: tuple[Joint, ...]
    hardware: Hardware
    apart: str

    @property
    def name(self) -> str:
        """What messages call it."""
        return " to ".join(dict.fromkeys((self.joints[0].name, self.joints[-1].name)))

    @cached_property
    def residence(self) -> Residence:
        """Where each has its words, and what stays on chip between them, if anything is to and can."""
        if _stays(self.hardware) and not any(immovable(each.program) for each in self.joints):
            return residence(self.joints, self.hardware)
        return Residence(tuple(placed(self.joints, self.hardware)), (), ())

    @cached_property
    def layers(self) -> tuple[Joint, ...]:
        """Each as it runs among the others: what it makes for them may be in the scratch memory."""
        return in_scratch(self.residence.layers, self.hardware, self.residence.stay)

    @cached_property
    def program(self) -> Program:
        """All of them as one."""
        return linked(self.layers, self.hardware, self.residence.stay)

    def program_for(self, number: np.dtype[Any]) -> Program:
        """The Program, for values that are added in such numbers, where each layer is given all that it reads."""
        doubles = number == np.float64 or any(member.prepared.program.doubles for member in self.members)
        return replace(self.program, doubles=doubles).with_given_operands()

    def alone(self, at: int) -> Prepared:
        """A layer by itself, with the addresses that it has among the others."""
        return self._of(at, self.residence.alone(at))

    def among(self, at: int) -> Prepared:
        """A layer as it runs among the others."""
        return self._of(at, self.layers[at].program)

    def _of(self, at: int, program: Program) -> Prepared:
        ready: Prepared = self.members[at].prepared
        return replace(ready, program=program)

    def saved(self, at: int) -> Saved:
        """Bytes that need not cross the bus, and what stays on chip."""
        before, after = self.joints[at].program, self.layers[at].program
        apart = "" if at else self.apart
        return Saved(_hbm_bytes(before) - _hbm_bytes(after), residency_of(self.residence, at), apart)

    @cached_property
    def timing(self) -> Timing:
        """Time by the event engine. Raises DeadlockError, which names the layers."""
        with failures_named(self):
            return event.run(self.program, self.hardware)

    def recorded(self) -> tuple[Recording, tuple[int, ...]]:
        """What every unit does when; the first cycle of each layer, and the one after the last."""
        found = event.record(self.program, self.hardware)
        cuts = cuts_of(found.log, found.program) if len(self.members) > 1 else (0, found.cycles)
        return found, tuple(cuts)

    @property
    def given(self) -> dict[Reader, Reader]:
        """By each that reads an outcome on chip, the reader whose random numbers all find there."""
        return given_to(self.residence, [member.layer for member in self.members])

    def stepped(
        self, operands: Sequence[Operands], number: np.dtype[Any], told: Told
    ) -> tuple[Timing, list[dict[str, Tensor]]]:
        """Time and values of all layers from one run of the register engine; each has operands of its own."""
        need_numba()
        from tpusim.machines.tpu import register

        named = {f"{joint.name}.{name}": each
                 for joint, mine in zip(self.joints, operands, strict=True) for name, each in mine.items()}  # fmt: skip
        timing, written = register.run(self.program_for(number), self.hardware, as_floats(named), told)
        made = [{name: written[f"{each.name}.{name}"] for name in each.program.written} for each in self.joints]
        return timing, made


def chains_of(members: Iterable[Ran], workload: Workload, hardware: Hardware, kept: int) -> Iterator[ProgramChain[Ran]]:
    """The layers, in order, in chains as long as can be; for each there are `kept` bytes of this computer's memory."""
    reads = _Reads(workload)
    held: list[Ran] = []
    joints: list[Joint] = []
    apart = ""
    for member in members:
        joint = _joint(member.layer, member.prepared, reads.of(member.layer))
        if held and (why := _cut(joint, joints, hardware, kept)):
            yield ProgramChain(tuple(held), reads.among(joints), hardware, apart)
            held, joints, apart = [], [], why
        held.append(member)
        joints.append(joint)
    yield ProgramChain(tuple(held), reads.among(joints), hardware, apart)


def _joint(layer: Op, ready: Prepared, reads: Mapping[str, ReadOutcomes]) -> Joint:
    joint, draft = Joint(layer.name, ready.program, reads), ready.draft
    return joint._replace(units=draft.units, finish=draft.finished) if draft else joint


def _cut(joint: Joint, ahead: Sequence[Joint], hardware: Hardware, kept: int) -> str:
    """Why a layer does not overlap with those ahead of it; nothing where it does."""
    if hardware.hbm.dram:
        return "HBM is modelled with its banks"
    if len(ahead) == MOST_LAYERS:
        return f"{MOST_LAYERS} layers overlap at most"
    steps = sum(len(each.program.steps) for each in (*ahead, joint))
    if 2 * steps * TRANSFER_BYTES > kept:
        return "this computer has no memory for more of them at once"
    # Those between them have been looked at as they joined the first.
    why = next(filter(None, (immovable(each.program) for each in (ahead[0], joint))), "") if _stays(hardware) else ""
    return why or unfit(joint, ahead, hardware)


def _stays(hardware: Hardware) -> bool:
    return hardware.sequencer.between_layers == "stay"


def _hbm_bytes(program: Program) -> int:
    return program.use.hbm_read_bytes + program.use.hbm_write_bytes


class _Reads:
    """What layers read of others: as the workload tells, or all of the layer ahead."""

    def __init__(self, workload: Workload) -> None:
        self._batch, self._known, self._layers = workload.batch, workload.sources(), workload.layers
        self._ahead: Mapping[str, Op | None] = dict(
            zip((layer.name for layer in workload.layers), (None, *workload.layers), strict=False)
        )

    def among(self, joints: Sequence[Joint]) -> tuple[Joint, ...]:
        """Layers of a chain, with what others want of them."""
        names = {each.name for each in joints}
        return tuple(each._replace(leaves=self._leaves(each.name, names)) for each in joints)

    def _leaves(self, name: str, names: Collection[str]) -> bool:
        """Whether others than these read a layer's outcome, or nobody does: it is the network's, then."""
        readers = self._readers[name]
        return not readers or not readers <= {*names}

    @cached_property
    def _readers(self) -> defaultdict[str, set[str]]:
        """By layer, those that read what it makes."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for layer in self._layers:
            for read in self.of(layer).values():
                for name in read.names:
                    found[name].add(layer.name)
        return found

    def of(self, layer: Op) -> dict[str, ReadOutcomes]:
        """By its tensors. Where nobody tells, it reads what the layer ahead makes."""
        tensors = layer.reads(self._batch)
        if layer.name in self._known:
            told = zip(tensors, self._known[layer.name], strict=False)
            return {tensor: ReadOutcomes(*source) for tensor, source in told}
        ahead = self._ahead[layer.name]
        return {next(iter(tensors)): ReadOutcomes((ahead.name,))} if ahead else {}


# ---- what is told of tensors that stay on chip, and what layers are given that read them there


def residency_of(found: Residence, layer: int) -> Residency | None:
    """Where a layer of a chain has its words, and its outcome, if that stays; None where nothing is to stay."""
    if not found.own:
        return None
    own, outcome = found.own[layer], found.outcome(layer)
    buffers = found.layers[layer].program.buffers
    mine = WordRange(*own, max((each.lanes for each in buffers), default=0))
    if outcome is None:
        return Residency(mine)
    readers = tuple(dict.fromkeys(found.layers[at].name for at, _ in outcome.readers))
    return Residency(mine, WordRange(outcome.base, outcome.words, outcome.lanes), readers, outcome.spilled)


def given_to(found: Residence, layers: Sequence[Op]) -> dict[Reader, Reader]:
    """By each that reads an outcome on chip, the reader whose random numbers all find there: one that wants them above
    zero, else one that divides by them, as these are nowhere zero, else one that rounds, as these are small, else the
    first.
    """
    return {
        reader: min(each.readers, key=lambda one: _needs(layers[one[0]], one[1]))
        for each in found.allocations
        for reader in each.readers
    }


def _needs(layer: Op, tensor: str) -> int:
    """How particular a layer is about its numbers, the least first."""
    if layer.positive:
        return 0
    divides = (isinstance(layer, Div) and tensor == OTHER) or (isinstance(layer, Rdiv) and tensor != OTHER)
    return 1 if divides else 3 if layer.exact else 2
