"""The stages of a pipeline: blocks of a network parted among chips, one behind another, and what they send on."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from math import prod
from typing import Any

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.network.mesh import STAGE
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.training import AGAIN, map_op
from tpusim.network.workload import (
    ACCUMULATE,
    BACKWARD,
    FORWARD,
    SO_FAR,
    UPDATE,
    CollectiveLayer,
    Source,
    Workload,
    in_order,
    reads_of,
)

_SCATTER = "reduce_scatter"


def staged(share: Workload, stages: int, microbatches: int) -> Workload:
    """Return a share of a network, for one microbatch, whose blocks are parted among chips along `stage`.

    Each stage has equally many blocks in a row; the first also has what comes before all blocks, the last what comes
    behind. Values that layers of other stages read are sent on from stage to stage. Gradients of weights are added up
    over microbatches: behind a reduce-scatter, as a chip keeps only its part of them then, and ahead of an all-reduce,
    which needs to take place once.

    Raises:
        InputError: blocks that stages cannot have equally many of; or gradients that go ahead.
    """
    made = _Stages(share, stages)
    if microbatches > 1 and share.phases:
        made.add_up(microbatches)
    made.send()
    work = made.workload(microbatches)
    return replace(work, entire=share.entire and staged(share.entire, stages, microbatches))


def of_stage(work: Workload, stage: int) -> Workload:
    """Return the part of a network that a stage has."""
    number = dict(work.stages)
    return work.made_of((layer for layer in work.layers if number[layer.name] == stage), stages=(), microbatches=1)


def microbatches_of(batch: int, stages: int, asked: int | None) -> int:
    """Return the microbatches of a chip's batch: those asked for, else as many as part it evenly, up to four a stage.

    Of S equal stages and M microbatches the bubble is (S - 1) / (M + S - 1) of a step: below a fifth with four a stage.
    More of them make layers small.

    Raises:
        InputError: the batch is no multiple of them.
    """
    if asked is not None and batch % asked:
        fits = ", ".join(str(each) for each in range(1, min(batch, 8 * stages) + 1) if batch % each == 0)
        says = f"the batch of a chip, {batch:,}, is not parted evenly; take {fits}, or another batch"
        raise InputError(Problem(says, f"--microbatches {asked}"))
    if asked is not None:
        return asked
    return max(number for number in range(1, 4 * stages + 1) if batch % number == 0)


class _Stages:
    """A share while it is parted: its layers in order, what they read, and what chips exchange."""

    def __init__(self, share: Workload, stages: int) -> None:
        self.share, self.stages, self.batch = share, stages, share.batch
        self.layers, self.own = [*share.layers], {layer.name: layer for layer in share.layers}
        self.edges = {name: [*sources] for name, sources in share.edges}
        self.phases = dict(share.phases)
        self.collectives = {each.name: each for each in share.collectives}
        self.number: dict[str, int] = {}
        """By layer its stage."""
        self._number_blocks()
        self._number_the_way_back()
        self._keep_what_comes()

    # ---- which stage has what

    def _number_blocks(self) -> None:
        """Give the network's own layers their stages."""
        # Inference has no phases: all of its layers go forward.
        forward = [each.name for each in self.layers if self.phases.get(each.name, FORWARD) == FORWARD]
        there = {*forward}
        copies = [names for block in self.share.blocks for copy in block.copies if (names := there.intersection(copy))]
        if not copies:
            says = f"{self.share.name} names no blocks that stages could have; part it along other axes"
            raise InputError(Problem(says, f"--mesh {STAGE}={self.stages}"))
        if len(copies) % self.stages:
            fits = ", ".join(str(each) for each in range(1, len(copies) + 1) if len(copies) % each == 0)
            says = f"{self.stages} stages cannot have equally many of {counted(len(copies), 'block')}; take {fits}"
            raise InputError(Problem(says, f"--mesh {STAGE}={self.stages}"))
        each_has = len(copies) // self.stages
        of = {name: at // each_has for at, names in enumerate(copies) for name in names}
        # Layers between blocks go with the block ahead of them.
        last = max(at for at, name in enumerate(forward) if name in of)
        now = 0
        for at, name in enumerate(forward):
            now = of.get(name, now) if at <= last else self.stages - 1
            self.number[name] = now

    def _number_the_way_back(self) -> None:
        """Give gradients and updates the stages of their layers; sums of what a later stage makes are of that one."""
        for layer in self.layers:
            if layer.name in self.number:
                continue
            own = layer.name
            while own not in self.number:
                assert "." in own, "what a step adds is named by its layer"
                own = own.rpartition(".")[0]
            number = self.number[own]
            read = [self._stage_of(one) for source in self.edges[layer.name] for one in source.names
                    if self._is_made(one)]  # fmt: skip
            # So one gradient is sent, and not both of its summands.
            if layer.op == "add" and self.phases[layer.name] == BACKWARD and read and min(read) > number:
                number = min(read)
            self.number[layer.name] = number

    def _stage_of(self, name: str) -> int:
        """The stage that makes a value."""
        while name in self.collectives:
            name = self.collectives[name].reads[0]
        return self.number[name]

    def _is_made(self, name: str) -> bool:
        """Whether a layer makes a value, and it is neither an input nor weights."""
        return (
            name in self.phases
            or name in self.number
            or bool(name in self.collectives and self.collectives[name].reads)
        )

    def _keep_what_comes(self) -> None:
        """Let the way back read what came from another stage, which need not be computed again there."""
        for name, sources in self.edges.items():
            came = {
                one: there
                for source in sources
                for one in source.names
                if AGAIN in one
                and self._is_made(one)
                and self._stage_of(one) < self.number[name]
                and self._is_made(there := one.replace(AGAIN, ""))
            }
            if came:
                self.edges[name] = [_renamed(source, came) for source in sources]
        self._drop_unread()

    def _drop_unread(self) -> None:
        """Drop what would be computed again for nobody, with all that only that reads."""
        reads: defaultdict[str, list[str]] = defaultdict(list)
        for name, one in reads_of(self.edges.items(), self.collectives.values()):
            reads[name].append(one)
        readers = Counter(one for of in reads.values() for one in of)
        due = [each.name for each in self.layers if each.name.endswith(AGAIN) and not readers[each.name]]
        # What lost its last reader goes with it: weights that were gathered for it, and its own operands.
        gone: set[str] = set()
        while due:
            name = due.pop()
            gone.add(name)
            for one in reads[name]:
                readers[one] -= 1
                if not readers[one] and (one in self.collectives or one.endswith(AGAIN)):
                    due.append(one)
        self.layers = [each for each in self.layers if each.name not in gone]
        self.collectives = {name: each for name, each in self.collectives.items() if name not in gone}
        for held in (self.edges, self.phases, self.number):
            for name in gone & held.keys():
                del held[name]

    # ---- gradients of several microbatches

    def add_up(self, microbatches: int) -> None:
        """Add up the gradients that updates read, each of a loss that is the mean over all microbatches."""
        self.layers = [_of_the_mean(layer, microbatches) for layer in self.layers]
        due: dict[str, tuple[str, Op]] = {}
        for layer in (each for each in self.layers if self.phases[each.name] == UPDATE):
            for one in (one for source in self.edges[layer.name] for one in source.names):
                self._note_sums(one, layer, due)
        found = {name: f"{name}.sum" for name in due}
        for name in self.edges:
            if self.phases[name] == UPDATE:
                self.edges[name] = [_renamed(source, found) for source in self.edges[name]]
        for each in [*self.collectives.values()]:
            if each.name not in due and {*each.reads} & {*found}:
                reads = tuple(found.get(one, one) for one in each.reads)
                self.collectives[each.name] = each._replace(reads=reads)
        self._put_sums(due)

    def _note_sums(self, name: str, reader: Op, due: dict[str, tuple[str, Op]]) -> None:
        """Note the sum that an update needs: of a gradient, or of a chip's part of it."""
        each = self.collectives.get(name)
        # All sums of an all-reduce are there before it, so that it takes place once.
        if each is not None and each.op != _SCATTER:
            for one in each.reads:
                self._note_sums(one, reader, due)
        elif name in due or (each is None and self.phases.get(name) != BACKWARD):
            return
        else:
            shape = self.own.get(name, reader).shapes(self.batch)[OFMAP]
            due[name] = self._maker(name), map_op("add", f"{name}.sum", shape, self.batch)

    def _maker(self, name: str) -> str:
        """The last layer that makes a value."""
        while name in self.collectives:
            name = self.collectives[name].reads[-1]
        return name

    def _put_sums(self, due: dict[str, tuple[str, Op]]) -> None:
        """Put each sum behind the layer that makes the gradient; of what chips scatter behind the next such layer, so
        that the chip need not wait.
        """
        now, behind = defaultdict[str, list[tuple[str, Op]]](list), list[tuple[str, Op]]()
        for name, (maker, layer) in due.items():
            now[maker].append((name, layer))
        layers = list[Op]()
        for layer in self.layers:
            if self.phases[layer.name] == UPDATE and behind:
                layers += (self._sum(*each) for each in behind)
                behind = []
            layers.append(layer)
            if layer.name in now:
                layers += (self._sum(*each) for each in behind)
                behind = [each for each in now[layer.name] if each[0] in self.collectives]
                layers += (self._sum(*each) for each in now[layer.name] if each[0] not in self.collectives)
        self.layers = layers

    def _sum(self, name: str, layer: Op) -> Op:
        self.edges[layer.name] = [Source((name,)), Source((f"{name}{SO_FAR}",))]
        self.phases[layer.name] = ACCUMULATE
        self.number[layer.name] = self._stage_of(name)
        return layer

    # ---- what stages send

    def send(self) -> None:
        """Send values to the stages that read them."""
        readers: dict[str, dict[int, list[str]]] = {}
        for name, one in reads_of(self.edges.items(), ()):
            if self._is_made(one):
                readers.setdefault(one, {}).setdefault(self.number[name], []).append(name)
        elements = {each.name: prod(each.shapes(self.batch)[OFMAP]) for each in self.layers}
        mesh = dict(self.share.mesh)
        elements |= {each.name: each.outcome(mesh) for each in self.collectives.values()}
        begun = {layer.name: at for at, layer in enumerate(self.layers)}
        ways = list[tuple[int, CollectiveLayer]]()
        for name, by_stage in readers.items():
            own = self._stage_of(name)
            for way, others in ((1, [at for at in by_stage if at > own]), (-1, [at for at in by_stage if at < own])):
                if not others:
                    continue
                # A turn back would wait for one that comes behind it.
                if way > 0 and self.phases.get(self._maker(name), FORWARD) != FORWARD:
                    raise InputError(Problem("its gradient goes ahead in the pipeline", f"layer {self._maker(name)}"))
                made = name
                for number, stage in enumerate(range(own + way, way * max(way * at for at in others) + way, way), 1):
                    sent = f"{name}.send" + (f"_{number}" if number > 1 else "")
                    here = by_stage.get(stage, [])
                    each = CollectiveLayer(
                        sent, "permute", elements[name], (STAGE,), (made,), tuple(here), axis=stage - way, to=stage
                    )
                    ways.append((begun[self._maker(name)], each))
                    for reader in here:
                        self.edges[reader] = [_renamed(source, {name: sent}) for source in self.edges[reader]]
                    made = sent
        # What comes of no layer may begin at once.
        there = ((max((begun[self._maker(name)] for name in each.reads), default=-1), each)
                 for each in self.collectives.values())  # fmt: skip
        self.collectives = {each.name: each for each in in_order([*there], ways)}

    def workload(self, microbatches: int) -> Workload:
        """The share with its stages."""
        readers: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for name, one in reads_of(self.edges.items(), self.collectives.values()):
            readers[one][name] = None
        return self.share.made_of(
            self.layers, edges=tuple((name, tuple(of)) for name, of in self.edges.items()), microbatches=microbatches,
            phases=tuple((layer.name, self.phases[layer.name]) for layer in self.layers if self.phases),
            collectives=tuple(each._replace(read_by=tuple(readers[each.name])) for each in self.collectives.values()),
            stages=tuple((layer.name, self.number[layer.name]) for layer in self.layers),
        )  # fmt: skip


def _of_the_mean(layer: Any, microbatches: int) -> Op:
    """A layer, of whose loss a microbatch has one of several parts."""
    if layer.op == "cross_entropy_gradient":
        layer = replace(layer, factor=layer.factor / microbatches)
    found: Op = layer
    return found


def _renamed(source: Source, names: dict[str, str]) -> Source:
    return source._replace(names=tuple(names.get(one, one) for one in source.names))
