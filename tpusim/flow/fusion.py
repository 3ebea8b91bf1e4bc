"""The layers that run: on a machine that fuses (`sequencer.fusion: results`), layers that ride on the results of others
do not run by themselves.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tpusim.base.errors import CapacityError
from tpusim.flow.lowerings import AUTO, prepared, usual
from tpusim.flow.training_fusion import on_the_way
from tpusim.machines.family import CheckPlan, FusionLimits, Machine, family_of
from tpusim.machines.lowered import LayerWatch, unheard
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.elementwise import Add, Clip, LeakyRelu, Relu
from tpusim.network.ops.fused import OTHER, Fused
from tpusim.network.ops.op import Op
from tpusim.network.workload import Source, Workload

BEARERS = frozenset({"conv2d", "conv1d", "gemm", "conv_transpose2d", "deform_conv2d"})
"""Ops whose results other ops may ride on."""
ACTIVATIONS = Relu, LeakyRelu, Clip
"""Activations that may finish results.

None of them increases the distance of two numbers, so a bound on sums in floating point also holds for their results.
"""


@dataclass
class _Riders:
    """The ops that ride on a layer so far, the name of the last one, and the layer's sources."""

    layer: ArrayOp
    reads: tuple[Source, ...]
    last: str
    bias: bool = False
    adds: bool = False
    finish: tuple[Relu | LeakyRelu | Clip, ...] = ()

    apart: list[Op] = field(default_factory=list)

    @property
    def fused(self) -> Op:
        alone = not (self.bias or self.adds or self.finish)
        return self.layer if alone else Fused(self.layer.name, self.layer, self.adds, self.finish, self.bias)

    def dearer(self, workload: Workload, hardware: Machine) -> bool:
        """Whether all of this takes fewer cycles layer by layer, each with its fastest lowering."""
        if not self.apart:
            return False
        together, *each = (_cycles(_TimedLayer(one.shape_key, one, workload.batch, hardware))
                           for one in (self.fused, self.layer, *self.apart))  # fmt: skip
        return together > sum(each)


@dataclass(frozen=True)
class _TimedLayer:
    """A layer to be timed; only its shape counts for equality."""

    shape: Hashable
    layer: Op = field(compare=False)
    batch: int
    hardware: Machine


@lru_cache(maxsize=1024)
def _cycles(asked: _TimedLayer) -> int:
    lowering = family_of(asked.hardware).meant(asked.layer, AUTO)
    cycles: int = prepared(asked.layer, asked.batch, asked.hardware, lowering).timing.cycles
    return cycles


def fused(
    workload: Workload,
    hardware: Machine,
    asked: Mapping[str, str],
    timed: Collection[str] = (),
    watch: LayerWatch = unheard,
) -> Workload:
    """The workload in the form in which its layers run; `asked` has the lowering that each layer is asked for.

    Where the machine fuses, biases, additions and activations ride on the results of the layers that they follow.

    Biases ride where there is room for them: the layer's own, or numbers that a layer behind it adds to each channel.
    An addition of maps rides on the later of the two layers whose outputs it adds, an activation on one layer; no other
    layer may read the results that it rides on. Additions and activations are left alone where the vector unit would
    fall behind the array: an element has as many operations as there are ALUs for a lane. The lowering of a layer says
    what the layer may carry: in tiles nothing, by the vector unit no addition of maps. Machines of other families fuse
    nothing.

    A layer that is `timed` carries only what takes longer by itself, by the fastest lowerings; `watch` is told of each
    such layer.
    """
    fusing = family_of(hardware).fusing(hardware)
    if fusing is None:
        return workload
    if workload.phases:
        workload = on_the_way(workload)
    fusion = _Fusion(workload, hardware, fusing, asked)
    whole = fusion.whole()
    dearer: set[str] = set()
    for name in fusion.bearers_of(timed):
        watch(name, "timing it with and without what rides on it")
        dearer |= {name} if fusion.riders[name].dearer(workload, hardware) else set()
    return _Fusion(workload, hardware, fusing, asked, dearer).whole() if dearer else whole


class _Fusion:
    def __init__(
        self,
        workload: Workload,
        hardware: Machine,
        fusing: FusionLimits,
        asked: Mapping[str, str],
        empty: Collection[str] = (),
    ) -> None:
        """Layers named in `empty` carry nothing."""
        self.workload, self.hardware, self.fusing, self.family = workload, hardware, fusing, family_of(hardware)
        # If a layer's lowering is left open, the usual one decides what its results may carry.
        unsaid = usual(self.family)
        self.lowerings = {
            layer.name: self.family.meant(layer, unsaid if asked[layer.name] == AUTO else asked[layer.name])
            for layer in workload.layers
        }
        self.edges: Mapping[str, tuple[Source, ...]] = dict(workload.edges)
        self.place = {layer.name: index for index, layer in enumerate(workload.layers)}
        self.readers = Counter(name for each in self.edges.values() for source in each for name in source.names)
        self.exchanged = {each.name: each.reads for each in workload.collectives}
        self.readers.update(name for reads in self.exchanged.values() for name in reads)
        self.bearers = {each.name for each in workload.layers if each.op in BEARERS} - {*empty}
        self.riders: dict[str, _Riders] = {}
        # For each layer that rides, the layer whose results it became.
        self.within: dict[str, str] = {}

    def whole(self) -> Workload:
        kept: list[Op] = []
        for layer in self.workload.layers:
            if not self._rides(layer):
                if layer.name in self.bearers:
                    assert isinstance(layer, ArrayOp)
                    bias = layer.name in self.workload.biases and self._has_room(layer)
                    self.riders[layer.name] = _Riders(layer, self.edges.get(layer.name, ()), layer.name, bias)
                kept.append(layer)
        layers = [self.riders[each.name].fused if each.name in self.riders else each for each in kept]
        # Layers that were left out earlier are nobody's riders, but are still read, under the names of the layers that
        # remain.
        reads = {name: self.riders[name].reads if name in self.riders else of for name, of in self.edges.items()}
        edges = tuple(
            (name, tuple(each._replace(names=tuple(self.within.get(one, one) for one in each.names)) for each in of))
            for name, of in reads.items()
            if name not in self.within
        )
        ride = {name for name, each in self.riders.items() if each.bias}
        biases = tuple(each for each in self.workload.biases if each not in ride)
        # For each layer that carries others, their names in the order in which results meet them.
        carried = ((name, tuple(each.name for each in on.apart)) for name, on in self.riders.items() if on.apart)
        riders = *self.workload.riders, *carried
        return self.workload.made_of(layers, edges=edges, riders=riders, biases=biases)

    def bearers_of(self, wanted: Collection[str]) -> list[str]:
        """Layers that carry others, in order: the `wanted` ones, and those whose results these add, as their place
        counts.
        """
        found: set[str] = set()
        due = [*wanted]
        while due:
            name = due.pop()
            bearer = self.within.get(name, name)
            if bearer in self.riders and bearer not in found:
                found.add(bearer)
                due += self.riders[bearer].reads[-1].names if self.riders[bearer].adds else ()
        return sorted((each for each in found if self.riders[each].apart), key=self.place.__getitem__)

    def _rides(self, layer: Op) -> bool:
        """Let a layer ride on the layer that it follows, if possible."""
        sources = self.edges.get(layer.name, ())
        if isinstance(layer, ACTIVATIONS) and len(sources) == 1:
            on = self._on(sources[0], layer, "finish")
            finish = (*on.finish, layer) if on else (layer,)
            done = sum(self.fusing.operations(each.operation, each.coefficients(1)) for each in finish)
            if on is None or 1 + done > self.fusing.most:
                return False
            on.finish = finish
        elif isinstance(layer, Add) and layer.other == "each" and len(sources) == 2:
            later, other = sorted(sources, key=lambda each: -self._made(each))
            on = self._on(later, layer, "add")
            if on is None or on.adds or on.finish or self._made(other) >= self.place[on.layer.name]:
                return False
            on.adds, on.reads = True, (*on.reads[:1], other, *on.reads[1:])
        elif isinstance(layer, Add) and len(sources) == 1:
            # An addition of one number for each channel is a bias, even where the map of one image has a single
            # element.
            on = self._on(sources[0], layer, "bias")
            a_bias = layer.shapes(self.workload.batch)[OTHER] == (layer.channels, 1, 1, 1)
            if on is None or not a_bias or on.bias or on.finish or on.layer.name in self.workload.biases:
                return False
            if not self._has_room(on.layer):
                return False
            on.bias = True
        else:
            return False
        on.last = layer.name
        on.apart.append(layer)
        self.within[layer.name] = on.layer.name
        return True

    def _has_room(self, layer: ArrayOp) -> bool:
        """Whether the biases of a layer fit beside it, by the lowering that it is asked for."""
        biased, asked = Fused(layer.name, layer, bias=True), self.lowerings[layer.name]
        if "bias" not in self.fusing.carries(asked):
            return False
        try:
            self.family.planned(biased, self.workload.batch, self.hardware, asked, CheckPlan(), sys.maxsize)
        except CapacityError:
            return False
        return True

    def _on(self, source: Source, layer: Op, what: str) -> _Riders | None:
        """The layer whose results `layer` alone reads, all of them, if it can carry this kind of work; else None."""
        name = source.names[0]
        on = self.riders.get(self.within.get(name, name))
        if on is None or on.last != name or self.readers[name] > 1 or not source.direct or len(source.names) > 1:
            return None
        if what not in self.fusing.carries(self.lowerings[on.layer.name]):
            return None
        batch = self.workload.batch
        return on if next(iter(layer.sources(batch).values())) == on.layer.shapes(batch)["ofmap"] else None

    def _made(self, source: Source) -> int:
        """Place of the layer that completes a source; -1 for an input of the network."""
        return max(map(self._place, source.names))

    def _place(self, name: str) -> int:
        """Place of a layer, or of the last one that makes what a collective moves."""
        if name in self.exchanged:
            return max(map(self._place, self.exchanged[name]), default=-1)
        return self.place.get(self.within.get(name, name), -1)
