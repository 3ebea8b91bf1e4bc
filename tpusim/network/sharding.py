"""One chip's share of a network that the chips of a mesh run together, and what these chips exchange.

The axes of a mesh part sizes: `data`, `fsdp` and `expert` the batch, others what the file says under `shard:`. So the
layers of a share come from the file itself, with smaller sizes. What chips have to exchange follows from how sizes
change with the mesh. A sum that gets shorter with more chips along an axis leaves parts of sums, which an all-reduce or
a reduce-scatter adds up; a reader that takes more than the chip's maker has made needs an all-gather; rows that go to
experts of other chips, and come back, need an all-to-all.

Sources: Shoeybi et al., Megatron-LM, 2019 (arXiv:1909.08053), section 3, for tensor; Rajbhandari et al., ZeRO, 2020
(arXiv:1910.02054), stage 3, for fsdp; Lepikhin et al., GShard, 2020 (arXiv:2006.16668), for experts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import free_name
from tpusim.network.backward import Value
from tpusim.network.graph import Placement
from tpusim.network.mesh import OF_BATCH, STAGE, Mesh
from tpusim.network.ops.array_op import Conv1d
from tpusim.network.ops.moves import MapMove
from tpusim.network.ops.op import OFMAP, Op, Shape
from tpusim.network.training import operands_of
from tpusim.network.workload import UPDATE, CollectiveLayer, Source, Workload

Axes: TypeAlias = frozenset[str]
"""Names of axes of a mesh."""
Sides: TypeAlias = Mapping[str, int]
"""Axes of a mesh, each with the axis of a tensor that it parts."""

_NONE: Axes = frozenset()
OF_EXPERTS = "expert"
"""The axis along which each chip has experts of its own, to which rows of all chips go."""
PARTS_WEIGHTS = "fsdp"
"""The axis along which each chip keeps a part of the weights, and gathers them for each layer that reads them."""
_ADDS = frozenset({"add", "channel_sum", "channel_products"})
"""Ops of the vector unit whose sums may be added up later, from parts."""
_STATISTICS = frozenset({
    "channel_mean", "channel_variance", "over_deviation", "batch_norm_shift", "batch_norm_slope", "batch_norm_offset",
    "batch_norm_gradient", "scale_shift",
})  # fmt: skip
"""Ops of a batch normalization, whose statistics are those of a chip's own images."""
_NUMBERED = re.compile(r"(.*)_\d+((?:\.\w+)*)")


def share(of: Callable[[Mesh], Workload], mesh: Mesh) -> Workload:
    """Return one chip's share of a network, with what the chips of a mesh exchange.

    Args:
        of: makes the layers of a chip's share for any mesh of these axes, without collectives.
        mesh: axes with their numbers of chips, such as {"data": 2, "tensor": 8}.

    Raises:
        InputError: sizes that the mesh does not part evenly, or a layer whose share is not known.
    """
    return placed_share(of, mesh)[0]


def placed_share(of: Callable[[Mesh], Workload], mesh: Mesh) -> tuple[Workload, Mapping[str, Placement]]:
    """Return what `share` does, and how the whole of each value is parted among chips.

    Values have the names of their layers, those from outside the names by which edges know them; LAYER.TENSOR is what a
    layer takes of one, and COLLECTIVE.operand a chip's own part of weights that are gathered.
    """
    there = {axis: chips for axis, chips in mesh.items() if chips > 1 and axis != STAGE}
    own = replace(of(mesh), mesh=tuple(mesh.items()))
    if not there:
        return own, {}
    fewer = {axis: (least := _least_factor(chips), of({**mesh, axis: chips // least})) for axis, chips in there.items()}
    made = _Share(own, there, fewer)
    work = made.workload()
    if own.entire is None:
        return work, made.places
    entire = {axis: (least, other.entire or other) for axis, (least, other) in fewer.items()}
    whole = _Share(replace(own.entire, mesh=own.mesh), there, entire).workload()
    return replace(work, entire=whole), made.places


def _least_factor(number: int) -> int:
    least = 2
    while number % least:
        least += 1
    return least


@dataclass(frozen=True)
class _Parted:
    """How the chips of a mesh hold an output.

    Attributes:
        over: axes along which each chip has a part of its elements, each with the axis of the output that it parts.
        sums: axes along which each chip has a part of every sum.
        experts: axes of `over` along which chips have outputs of experts of their own.
    """

    over: Sides = field(default_factory=dict)
    sums: Axes = frozenset()
    experts: Axes = frozenset()


class _Share:
    """A share while its collectives are found, layer by layer.

    Attributes:
        work: the share without them.
        mesh: the axes of several chips.
        places: how values from outside, and those in the end, are parted, as far as the share is made.
    """

    def __init__(self, work: Workload, mesh: Mesh, fewer: Mapping[str, tuple[int, Workload]]) -> None:
        """Take a share, and by axis that of fewer chips, with the number of times by which they are fewer."""
        self.work, self.mesh = work, mesh
        self._own = {layer.name: layer for layer in work.layers}
        self._layers: dict[str, Any] = dict(self._own)
        """Layers as the share has them in the end."""
        self._fewer = {axis: ({each.name: each for each in other.layers}, other.batch)
                       for axis, (_, other) in fewer.items()}  # fmt: skip
        self._times = {axis: times for axis, (times, _) in fewer.items()}
        self._copies = {axis: _more_copies(work, other) for axis, (_, other) in fewer.items()}
        self._at = {name: at for at, name in enumerate(self._own)}
        """Places of layers; a collective may begin behind the layer at its place."""
        self._reads = dict(operands_of(work))
        self._edges, self._held = work.sources(), dict[str, _Parted]()
        self.places: dict[str, Placement] = {}
        self._found: dict[str, CollectiveLayer] = {}
        self._known: dict[tuple[object, ...], str] = {}
        """Collectives by what they read, and what they do."""
        self._updates = {name for name, phase in work.phases if phase == UPDATE}
        for layer in work.layers:
            for tensor in layer.reads(work.batch):
                self._check_parts(layer.name, tensor)
        self._parted = self._parted_weights()
        self._common = self._wanted_by_all()

    def workload(self) -> Workload:
        """The share with its collectives."""
        for name in self._own:
            self._read(name)
        read = {each for operands in self._reads.values() for operand in operands for each in operand.names}
        for name, held in self._held.items():
            if held.sums and name not in read:
                self.places[self._added(name, held.sums, {})] = self._placement(held.over, name)
            self.places[name] = self._placement(held.over, name)
        found = sorted(self._found.values(), key=lambda each: self._at[each.name])
        return self.work.made_of(self._layers.values(), edges=tuple(self._edges.items()), collectives=tuple(found))

    # ---- what the mesh parts

    def _over(self, name: str, tensor: str) -> dict[str, int]:
        """The axes along which each chip has a part of a layer's tensor, each with the side of it that it parts."""
        own, found = _shape(self._own[name], tensor, self.work.batch), dict[str, int]()
        for axis, (layers, batch) in self._fewer.items():
            if name not in layers:
                found |= self._over_of_operands(name, axis)
                continue
            other = _shape(layers[name], tensor, batch)
            if prod(other) > prod(own):
                sides = enumerate(zip(own, other, strict=True))
                found[axis] = next(side for side, (mine, more) in sides if mine < more)
        return found

    def _check_parts(self, name: str, tensor: str) -> None:
        """Check that a chip has all of a layer's tensor, or one part of it along each axis. Raises InputError."""
        own = prod(_shape(self._own[name], tensor, self.work.batch))
        for axis, (layers, batch) in self._fewer.items():
            other = prod(_shape(layers[name], tensor, batch)) if name in layers else own
            if other < own:
                says = f"its {tensor} gets larger the more chips there are along {axis}, so it is no part of the whole"
                raise InputError(Problem(f"{says}; part other sizes, such as channels with groups", f"layer {name}"))
            if other > own * self._times[axis]:
                says = f"its {tensor} is parted twice along {axis}, so that no chip has some of it"
                do = "part one size of it, and none that follows from a part which it reads"
                raise InputError(Problem(f"{says}; {do}", f"layer {name}"))

    def _over_of_operands(self, name: str, axis: str) -> dict[str, int]:
        """The side that an axis parts of a sum of gradients, which fewer chips do not add up in parts."""
        held = [self._held.get(each, _Parted()) for operand in self._reads[name] for each in operand.names]
        first = held[0].over.get(axis)
        return {} if first is None or any(each.over.get(axis) != first for each in held) else {axis: first}

    def _summed(self, name: str) -> Axes:
        """The axes along which each chip adds up a part of a layer's sums."""
        own = self._own[name].terms(self.work.batch)
        return frozenset(
            axis for axis, (layers, batch) in self._fewer.items()
            if name in layers and layers[name].terms(batch) > own
        )  # fmt: skip

    def _part(self, name: str) -> dict[str, int]:
        """The axis that parts weights, for a layer that updates a part of them."""
        key = name.rpartition(".")[0]
        if name not in self._updates or key not in self._parted:
            return {}
        return {PARTS_WEIGHTS: _parted_side(self._own[name].shapes(self.work.batch)[OFMAP], self.mesh[PARTS_WEIGHTS])}

    def _chips(self, axes: Iterable[str]) -> int:
        return prod(self.mesh[axis] for axis in axes)

    # ---- weights of which each chip keeps a part

    def _parted_weights(self) -> Axes:
        """Names of the weights that are parted; their updates become those of a part."""
        if PARTS_WEIGHTS not in self.mesh:
            return _NONE
        chips, found = self.mesh[PARTS_WEIGHTS], set[str]()
        trained = {name.rpartition(".")[0] for name in self._updates}
        for name, operands in self._reads.items():
            layer = self._own[name]
            for tensor, operand in zip(layer.reads(self.work.batch), operands, strict=False):
                weights = operand.weights or {*operand.names} <= trained
                large = (layer.unit == "array" and tensor != "ifmap") or layer.op == "embedding"
                if weights and large and any(side % chips == 0 for side in operand.shape):
                    found.update(operand.names)
        for name in self._updates:
            if name.rpartition(".")[0] in found:
                self._layers[name] = _part_of(self._own[name], chips, self.work.batch)
        return frozenset(found)

    # ---- layer by layer

    def _wanted_by_all(self) -> dict[str, Axes]:
        """By layer the axes along which all its readers want parts of its output.

        Where one of them wants all of it, others take their parts of that.
        """
        found: dict[str, Axes] = {}
        for name, operands in self._reads.items():
            for tensor, operand in zip(self._own[name].reads(self.work.batch), operands, strict=False):
                wanted = frozenset(self._over(name, tensor) | self._part(name))
                for each in operand.names:
                    found[each] = found.get(each, wanted) & wanted
        return found

    def _read(self, name: str) -> None:
        """Find what a layer needs of other chips, and how its output is held."""
        layer, operands = self._own[name], self._reads[name]
        tensors = [*layer.reads(self.work.batch)]
        self._check_parted_once(layer)
        self._check_by_itself(name, tensors[0])
        self._check_parts(name, OFMAP)
        over, summed, whole = self._over(name, OFMAP), self._summed(name), _NONE
        statistic, adds = layer.op in _STATISTICS, layer.unit == "array" or layer.op in _ADDS
        if layer.op == "embedding":
            # Of a table that is parted, a chip takes the rows that it has, and zeros for others.
            summed = summed.union(self._over(name, tensors[0])).difference(over)
        elif summed and not adds and not statistic:
            whole, summed = summed, frozenset()
            self._layers[name] = self._of_whole_rows(layer, whole)
        held = [self._held.get(each, _Parted()) for operand in operands for each in operand.names]
        pending = frozenset(axis for each in held for axis in each.sums)
        # Sums over a chip's own images are what a batch normalization takes.
        alike = layer.op == "add" and all(each.sums == pending for each in held)
        # Of what is parted here each chip wants its part of whole sums.
        later = pending.difference(over) if alike else pending & {*OF_BATCH} if statistic else _NONE
        copies = frozenset(axis for axis, more in self._copies.items() if name in more)
        experts = copies & {OF_EXPERTS}
        own = self._part(name) | dict.fromkeys(copies - experts, 0)
        sources, told = self._edges.get(name, ()), list[Source]()
        for at, operand in enumerate(operands):
            source = sources[at] if at < len(sources) else Source(()) if operand.weights else operand.source
            wanted = _without(self._over(name, tensors[at]), whole) | own
            self.places[f"{name}.{tensors[at]}"] = self._placement(wanted, name)
            told.append(self._source(name, operand, source, _Parted(wanted, later, experts)))
        if any(each.names not in (operand.names, ()) for each, operand in zip(told, operands, strict=True)):
            self._edges[name] = (*told, *sources[len(told) :])
        over = _without(over, whole) | own
        sums = (summed if adds or statistic else _NONE) | later
        self._held[name] = _Parted(dict.fromkeys(experts, 0) | over, sums.difference(over), experts)
        if layer.op == "cross_entropy_gradient":
            # The mean is over the rows of all chips.
            made = self._layers[name]
            self._layers[name] = replace(made, factor=made.factor / self._chips(over))

    def _check_parted_once(self, layer: Op) -> None:
        """Check that an axis parts the work of a layer, and none of it is left to no chip. Raises InputError."""
        for axis, (layers, batch) in self._fewer.items():
            other = layers.get(layer.name)
            # With half of the chips, what is parted once is twice as large.
            if other and _work(other, batch) > self._times[axis] * _work(layer, self.work.batch):
                says = f"both its inputs and its outputs are parted along {axis}, so that each chip lacks products"
                raise InputError(Problem(f"{says}; part one of them", f"layer {layer.name}"))

    def _of_whole_rows(self, layer: Any, axes: Axes) -> Op:
        """A layer that takes whole rows, where its operand is parted along them."""
        if not layer.whole_rows:
            names = ", ".join(sorted(axes))
            says = f"{layer.op} takes elements of several chips along {names}, and how it is shared is not known"
            do = f"part other sizes, or leave {names} out of the mesh"
            raise InputError(Problem(f"{says}; {do}", f"layer {layer.name}"))
        found: Op = replace(layer, channels=layer.channels * self._chips(axes))
        return found

    def _source(self, reader: str, operand: Value, source: Source, wanted: _Parted) -> Source:
        """What a layer reads in place of an operand, of which it wants parts, and takes some sums as they are."""
        if not any(each in self._held for each in operand.names):
            name, over = (source.names or operand.names)[0], wanted.over
            if reader not in self._updates and self._parted & {*operand.names}:
                gathered = self._gathered(reader, operand)
                source = source._replace(names=(gathered,))
                own = {**over, PARTS_WEIGHTS: self._found[gathered].axis}
                self.places[f"{gathered}.operand"] = self._placement(own, gathered)
            if source.direct or name not in self.places:
                self.places[name] = self._placement(over, reader)
            return source
        if source.direct and len(operand.names) > 1:
            self._check_alike(reader, operand, wanted)
        # What comes from outside, beside what layers make, every chip has as far as it reads it.
        outside = [each for each in operand.names if each not in self._held]
        names: list[str] = []
        for each in operand.names:
            if each in outside:
                continue
            held = self._held[each]
            is_own = reader not in self._updates and self._own[each].op in _STATISTICS
            kept = frozenset(OF_BATCH) if is_own else _NONE
            made = self._added(each, held.sums - wanted.sums - kept, wanted.over)
            names.append(self._as_wanted(each, made, held, wanted, source.direct))
        here = next(self._held[each] for each in operand.names if each in self._held)
        if between := here.experts ^ wanted.experts:
            elements = self._to_experts(reader) if wanted.experts else prod(operand.shape)
            names = [self._collective("all_to_all", tuple(names), elements, between, operand.names[0])]
        self._read_by(names, reader)
        return source._replace(names=tuple(dict.fromkeys([*outside, *names])))

    def _check_by_itself(self, name: str, tensor: str) -> None:
        """Check that a chip makes its part of an output of its part of the ifmap, without elements that other chips
        have. Raises InputError.
        """
        layer = self._own[name]
        for axis, side in self._over(name, tensor).items():
            layers, batch = self._fewer[axis]
            if name in layers and not _makes_parts(layer, layers[name], self.work.batch, batch, side):
                sides = ("channels", "rows", "columns", "images")[side]
                says = f"{layer.op} takes {sides} that other chips along {axis} have, beside its own, and how these"
                raise InputError(Problem(f"{says} are exchanged is not known; part other sizes", f"layer {name}"))

    def _check_alike(self, reader: str, operand: Value, wanted: _Parted) -> None:
        """Check that of maps side by side, of which a layer takes parts of channels, each is parted so. Raises
        InputError.
        """
        for axis in (axis for axis, side in wanted.over.items() if side == 0 and axis not in wanted.experts):
            whole = [each for each in operand.names if axis not in self._held.get(each, _Parted()).over]
            if whole and len(whole) < len(operand.names):
                there = ", ".join(each for each in operand.names if each not in whole)
                says = f"it reads {there}, of which each chip along {axis} has a part, beside {', '.join(whole)}, which"
                says += " is not parted, so that its channels would count more than once"
                raise InputError(Problem(f"{says}; part both, or neither", f"layer {reader}"))

    def _placement(self, over: Sides, of: str) -> Placement:
        """Which axes part each side of a value; of weights, the parts that a chip keeps are those of its own part."""
        inner = {PARTS_WEIGHTS} if of in self._updates or of in self._found else set[str]()
        axes = sorted(self.mesh, key=inner.__contains__)
        return tuple(tuple(axis for axis in axes if over.get(axis) == side) for side in range(4))

    def _as_wanted(self, name: str, made: str, held: _Parted, wanted: _Parted, direct: bool) -> str:
        """The name by which a layer's output is read once chips have the parts of it that a reader wants."""
        elements = prod(self._layers[name].shapes(self.work.batch)[OFMAP])
        experts = held.experts | wanted.experts
        for axis, side in held.over.items():
            if axis in experts:
                continue
            if axis not in wanted.over:
                elements *= self.mesh[axis]
                made = self._collective("all_gather", (made,), elements, frozenset({axis}), name, side)
            elif direct and wanted.over[axis] != side:
                made = self._collective(
                    "all_to_all", (made,), elements, frozenset({axis}), name, wanted.over[axis], side
                )
        return made

    def _to_experts(self, reader: str) -> int:
        """Elements of the rows that all experts of a chip take, of which one is a layer's."""
        base = _without_number(reader)
        rows = (layer for name, layer in self._own.items() if _without_number(name) == base)
        return sum(prod(layer.shapes(self.work.batch)["ifmap"]) for layer in rows)

    # ---- collectives

    def _added(self, name: str, sums: Axes, wanted: Sides) -> str:
        """The name by which a layer's output is read once its sums are added up, of which parts are wanted."""
        elements, made = prod(self._layers[name].shapes(self.work.batch)[OFMAP]), name
        scattered = sums.intersection(wanted, self._common.get(name, _NONE))
        for side in sorted({wanted[axis] for axis in scattered}):
            axes = frozenset(axis for axis in scattered if wanted[axis] == side)
            made = self._collective("reduce_scatter", (made,), elements, axes, name, side)
            elements //= self._chips(axes)
        if rest := sums - scattered:
            made = self._collective("all_reduce", (made,), elements, rest, name)
        return made

    def _gathered(self, reader: str, operand: Value) -> str:
        """The collective that gathers weights for a layer."""
        (weights,) = operand.names
        name = free_name(f"{reader}.{weights.rpartition('.')[2]}.all_gather", self._at)
        side = _parted_side(operand.shape, self.mesh[PARTS_WEIGHTS])
        over = (PARTS_WEIGHTS,)
        elements = prod(operand.shape)
        made = CollectiveLayer(name, "all_gather", elements, over, (), (reader,), weights=True, axis=side, of=weights)
        self._found[name], self._at[name] = made, self._at[reader] - 1
        return name

    def _collective(
        self, op: str, reads: tuple[str, ...], elements: int, axes: Axes, of: str, axis: int = 0, to: int = 0
    ) -> str:
        """The name of a collective that reads these, which is one however many read it."""
        key = reads, op, axes, axis, to
        if key not in self._known:
            name = self._known[key] = free_name(f"{of}.{op}", self._at)
            over = tuple(axis for axis in self.mesh if axis in axes)
            self._found[name] = CollectiveLayer(name, op, elements, over, reads, (), False, axis, to)
            self._at[name] = max(self._at[each] for each in reads)
            self._read_by(reads, name)
        return self._known[key]

    def _read_by(self, names: Iterable[str], reader: str) -> None:
        """Note who reads the collectives among some values."""
        for each in self._found.keys() & {*names}:
            readers = self._found[each].read_by
            if reader not in readers:
                self._found[each] = self._found[each]._replace(read_by=(*readers, reader))


def _part_of(layer: Any, chips: int, batch: int) -> Op:
    """A layer on maps, of which a chip has one part of several: images first, which leaves channels side by side."""
    shape = layer.shapes(batch)[OFMAP]
    side = _parted_side(shape, chips)
    found: Op = replace(layer, **{_SIDES[side]: shape[side] // chips})
    return found


_SIDES = "channels", "height", "width", "images"


def _shape(layer: Op, tensor: str, batch: int) -> Shape:
    """The shape of a layer's output, or of what it reads."""
    return layer.shapes(batch)[OFMAP] if tensor == OFMAP else layer.reads(batch)[tensor]


def _makes_parts(layer: Any, fewer: Any, batch: int, fewer_batch: int, side: int) -> bool:
    """Whether parts of a map along a side, each by itself, make the outputs of the whole, one part behind another."""
    if isinstance(layer, MapMove):
        size, whole = (each.sources(many)["ifmap"][side] for each, many in ((layer, batch), (fewer, fewer_batch)))
        for own, other in zip(layer.taken(batch), fewer.taken(fewer_batch), strict=True):
            if own.axis == side and (own.coordinates, other.coordinates) != (range(size), range(whole)):
                parts = [place + first if 0 <= place < size else -1
                         for first in range(0, whole, size) for place in own.coordinates]  # fmt: skip
                if parts != [place if 0 <= place < whole else -1 for place in other.coordinates]:
                    return False
        return True
    along = (0, 3) if getattr(layer, "along_channels", False) else (1, 2)
    axes = dict(zip(along, getattr(layer, "axes", ()), strict=False))
    if isinstance(layer, Conv1d):
        axes = {2: layer.axis}
    if side in axes:
        return bool(layer.op != "deform_conv2d" and axes[side].apart)
    return side not in (1, 2) or prod(getattr(layer, "kernel", ())) == 1


def _parted_side(shape: Shape, chips: int) -> int:
    """The side of a tensor that chips have parts of: the last that they part evenly."""
    return next(side for side in (3, 0, 1, 2) if shape[side] % chips == 0)


def _work(layer: Op, batch: int) -> int:
    """The products of a layer; of one without any the elements of its largest tensor."""
    return layer.macs(batch) or max(map(prod, layer.shapes(batch).values()))


def _without(sides: Sides, axes: Axes) -> dict[str, int]:
    return {axis: side for axis, side in sides.items() if axis not in axes}


def _without_number(name: str) -> tuple[str, str]:
    """The name of a layer without the number of an expert: both sides of it."""
    known = _NUMBERED.fullmatch(name)
    return (known[1], known[2]) if known else (name, "")


def _more_copies(work: Workload, fewer: Workload) -> Axes:
    """Names of the layers of which fewer chips have more alike: those of experts."""
    own, other = (Counter(_without_number(each.name) for each in some.layers) for some in (work, fewer))
    return frozenset(
        each.name for each in work.layers if other[_without_number(each.name)] > own[_without_number(each.name)]
    )


# ---- collectives joined


def combined(work: Workload, elements: int, operands: int) -> Workload:
    """Return a share in which all-reduces of gradients are joined, of neighbours along the same axes, as compilers do:
    each takes a launch, and the hops of its rings.

    Args:
        work: a share, whose collectives are in the order in which they may begin.
        elements: elements of a chip that are joined at most; one of more stays alone.
        operands: collectives that are joined at most.
    """
    groups = _groups(work, elements, operands)
    if len(groups) == len(work.collectives):
        return work
    # What is joined may begin when its last part may.
    place = {each.name: at for at, each in enumerate(work.collectives)}
    groups.sort(key=lambda group: place[group[-1].name])
    joined = [_joined(group) for group in groups]
    called = {each.name: one.name for group, one in zip(groups, joined, strict=True) for each in group}

    def now(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(called.get(name, name) for name in names))

    edges = tuple(
        (layer, tuple(source._replace(names=now(source.names)) for source in sources)) for layer, sources in work.edges
    )
    return replace(work, edges=edges, collectives=tuple(each._replace(read_by=now(each.read_by)) for each in joined))


def _groups(work: Workload, elements: int, operands: int) -> list[list[CollectiveLayer]]:
    """The collectives of a share, in groups that are joined; most are of one."""
    updates, stage = {name for name, phase in work.phases if phase == UPDATE}, dict(work.stages)
    groups: list[list[CollectiveLayer]] = []
    last: dict[tuple[object, ...], list[CollectiveLayer]] = {}
    for each in work.collectives:
        joins = each.op == "all_reduce" and bool(each.read_by) and updates.issuperset(each.read_by)
        # Stages have weights of their own, so their gradients stay apart.
        alike = each.over, stage.get(each.read_by[0]) if joins else None
        group = last.get(alike) if joins else None
        if group and len(group) < operands and sum(one.elements for one in group) + each.elements <= elements:
            group.append(each)
            continue
        groups.append([each])
        if joins:
            last[alike] = groups[-1]
    return groups


def _joined(group: Sequence[CollectiveLayer]) -> CollectiveLayer:
    """The collective that takes the place of a group."""
    first, *others = group
    if not others:
        return first
    return first._replace(
        name=f"{first.name.removesuffix('.all_reduce')}_and_{len(others)}_more.all_reduce",
        elements=sum(each.elements for each in group),
        reads=tuple(dict.fromkeys(name for each in group for name in each.reads)),
        read_by=tuple(dict.fromkeys(name for each in group for name in each.read_by)),
    )
