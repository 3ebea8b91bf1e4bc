"""Layers that overlap (`sequencer.between_layers: overlap`, `stay`): those that follow one another, as one Program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tpusim.base.errors import CheckFailed, InputError, Problem, failures_named
from tpusim.flow.account import layer_result
from tpusim.flow.engines import (
    ENGINES,
    UNCHECKED,
    Begun,
    Outcome,
    Prepared,
    Task,
    difference,
    memory_needed,
    need_numba,
    program_of,
    values_of,
)
from tpusim.flow.need import TRANSFER_BYTES, Room
from tpusim.flow.residency import given_to, residency_of
from tpusim.flow.verify import as_floats, verdict_of
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.schedule.joined import Joint, ReadOutcomes, linked, placed, unfit
from tpusim.machines.tpu.schedule.residence import Residence, immovable, residence
from tpusim.machines.tpu.schedule.scratch import in_scratch
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.numerics.equality import Verdict
from tpusim.reference import Tensor
from tpusim.result.records import LayerResult

MOST_LAYERS = 64
"""Of a chain: what more of them would hide is no more than what one begins with."""


@dataclass(frozen=True)
class Chain:
    """Layers that overlap, at least one; `apart` says why the first does not overlap with what is ahead of it."""

    tasks: tuple[Task[Prepared], ...]
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
        if self.hardware.sequencer.between_layers == "stay" and not any(
            immovable(each.program) for each in self.joints
        ):
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

    @property
    def program_of_numbers(self) -> Program:
        """The same for the numbers of the tasks, where each layer is given all that it reads."""
        doubles = any(program_of(task).doubles for task in self.tasks)
        return replace(self.program, doubles=doubles).with_given_operands()

    def alone(self, at: int) -> Task[Prepared]:
        """A layer by itself, with the addresses that it has among the others."""
        program = self.residence.alone(at)
        return replace(self.tasks[at], prepared=replace(self.tasks[at].prepared, program=program))

    @cached_property
    def timing(self) -> Timing:
        """That of the event engine. Raises DeadlockError, which names the layers."""
        with failures_named(self):
            return event.run(self.program, self.hardware)


def chains_of(tasks: Iterable[Task[Prepared]], workload: Workload, hardware: Hardware, room: Room) -> Iterator[Chain]:
    """The layers, in order, in chains as long as can be."""
    reads = _Reads(workload)
    held: list[Task[Prepared]] = []
    joints: list[Joint] = []
    apart = ""
    for task in tasks:
        joint = _joint(task, reads.of(task.layer))
        if held and (why := _cut(joint, joints, hardware, room)):
            yield Chain(tuple(held), reads.among(joints), hardware, apart)
            held, joints, apart = [], [], why
        held.append(task)
        joints.append(joint)
    yield Chain(tuple(held), reads.among(joints), hardware, apart)


def _joint(task: Task[Prepared], reads: Mapping[str, ReadOutcomes]) -> Joint:
    joint, draft = Joint(task.layer.name, task.prepared.program, reads), task.prepared.draft
    return joint._replace(units=draft.units, finish=draft.finished) if draft else joint


def _cut(joint: Joint, ahead: Sequence[Joint], hardware: Hardware, room: Room) -> str:
    """Why a layer does not overlap with those ahead of it; nothing where it does."""
    if hardware.hbm.dram:
        return "HBM is modelled with its banks"
    if len(ahead) == MOST_LAYERS:
        return f"{MOST_LAYERS} layers overlap at most"
    steps = sum(len(each.program.steps) for each in (*ahead, joint))
    if 2 * steps * TRANSFER_BYTES > room.kept:
        return "this computer has no memory for more of them at once"
    # Those between them have been looked at as they joined the first.
    why = next(filter(None, (immovable(each.program) for each in (ahead[0], joint))), "") if _stays(hardware) else ""
    return why or unfit(joint, ahead, hardware)


def _stays(hardware: Hardware) -> bool:
    return hardware.sequencer.between_layers == "stay"


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


# ---- what engines make of them


def overlapping(chain: Chain, engine: str) -> Iterator[Begun]:
    """Time the layers of a chain.

    Raises:
        InputError: the register engine is asked for the values of a network, or there is too little memory for it.
        CheckFailed: with engine "both", the two disagree.
        DeadlockError: steps wait for one another for ever; all of them name the layers.
    """
    for at, (task, (timing, verdict)) in enumerate(zip(chain.tasks, _outcomes(chain, engine), strict=True)):
        yield Begun(task.layer, partial(_result, chain, at, timing, verdict))


def _result(chain: Chain, at: int, timing: Timing, verdict: Callable[[], Verdict]) -> LayerResult:
    task, program = chain.tasks[at], chain.layers[at].program
    alone, ready = task.prepared, replace(task.prepared, program=program)
    return replace(
        layer_result(task.layer, task.batch, ready, timing, verdict()),
        hidden_cycles=alone.timing.cycles - timing.cycles,
        hbm_saved_bytes=_hbm_bytes(alone.program) - _hbm_bytes(program),
        residency=residency_of(chain.residence, at),
        apart="" if at else chain.apart,
    )


def _hbm_bytes(program: Program) -> int:
    return program.use.hbm_read_bytes + program.use.hbm_write_bytes


def _outcomes(chain: Chain, engine: str) -> Iterator[Outcome]:
    """For each layer its share of the time, and what holds its values against the reference."""
    if len(chain.tasks) == 1:
        yield from map(ENGINES[engine], chain.tasks)
    elif engine == "event":
        for at, share in enumerate(chain.timing.layers):
            yield share, values_of(chain.alone(at))
    else:
        yield from _registered(chain, engine)


def _registered(chain: Chain, engine: str) -> Iterator[Outcome]:
    """Time and values of all layers from one run of the register engine; each has operands of its own."""
    need_numba()
    from tpusim.machines.tpu import register

    tasks = chain.tasks
    if any(task.journey for task in tasks):
        problem = "the register engine runs layers that overlap on random operands"
        raise InputError(Problem(f"{problem}; leave --engine register out for values of the network", chain.name))
    program = chain.program_of_numbers
    operands = _operands(chain)
    named = {f"{task.layer.name}.{name}": each
             for task, mine in zip(tasks, operands, strict=True) for name, each in mine.items()}  # fmt: skip

    def told(cycles: int) -> None:
        tasks[0].doing(f"{cycles:,} cycles of {chain.name}")

    with failures_named(chain), memory_needed(chain):
        timing, written = register.run(program, chain.hardware, named, told)
    if engine == "both" and timing != chain.timing:
        raise CheckFailed(f"layers {chain.name}: the engines disagree: {difference(chain.timing, timing)}")
    for task, mine, share in zip(tasks, operands, timing.layers, strict=True):
        made = {name: written[f"{task.layer.name}.{name}"] for name in task.prepared.program.written}
        yield share, partial(verdict_of, task.layer, mine, made, task.numbers) if task.check else lambda: UNCHECKED


def _operands(chain: Chain) -> list[dict[str, Tensor]]:
    """Those of each layer; readers of what stays on chip find the same there."""
    operands = [dict(as_floats(task.operands())) for task in chain.tasks]
    shared = given_to(chain.residence, [task.layer for task in chain.tasks])
    found = {(at, name): operands[giver][tensor] for (at, name), (giver, tensor) in shared.items()}
    for (at, name), each in found.items():
        operands[at][name] = each
    return operands
