"""Training steps on a machine that fuses: normalised maps, and gradients of normalisations, are never stored.

Google's compiler does the same for a TPU v2. A layer of the array makes such a map of its sources, as these come; masks
a gradient as it goes; and leaves the sums of a channel that the next normalisation needs (`network.ops.fused`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from tpusim.network.ops import OPS
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.elementwise import Pointwise
from tpusim.network.ops.fused import Fused, Tally
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.workload import Source, Workload

_MAKERS = frozenset({"conv2d", "conv2d_input_gradient", "conv2d_filter_gradient"})
"""Ops that make an operand as it comes."""
_LEAVE = frozenset({"conv2d", "conv2d_input_gradient"})
"""Ops whose results are changed and summed up as they go."""
_MASKS = frozenset({"relu_gradient", "masked"})


class _MapChain(NamedTuple):
    """A map as it is made on the way: ops, one after another, and all that they read, the map that they begin with
    first.
    """

    ops: tuple[Pointwise, ...]
    reads: tuple[Source, ...]


@dataclass
class _Bearer:
    """A layer of the array, what its operands are made of, and what is done to its results."""

    layer: ArrayOp
    reads: list[Source]
    ahead: dict[int, _MapChain] = field(default_factory=dict)
    behind: list[tuple[Pointwise, tuple[Source, ...]]] = field(default_factory=list)
    tallies: tuple[Tally, ...] = ()

    @property
    def whole(self) -> tuple[Op, tuple[Source, ...]]:
        """The layer as it runs, and what it reads."""
        if not (self.ahead or self.behind or self.tallies):
            return self.layer, tuple(self.reads)
        first, second = (
            self.ahead.get(at, _MapChain((), (read,))) for at, read in zip((0, 1), self.reads, strict=True)
        )
        behind = tuple(op for op, _ in self.behind)
        made = Fused(
            self.layer.name, self.layer, ahead=first.ops, ahead_filter=second.ops, behind=behind, tallies=self.tallies
        )
        return made, (*first.reads, *second.reads, *(source for _, sources in self.behind for source in sources))


def on_the_way(step: Workload) -> Workload:
    """Return a training step whose normalisations, masks and sums of channels are work on the way where they can be."""
    found = _StepFusion(step)
    found.join_shortcuts()
    found.make_as_it_comes()
    found.join_activations()
    found.change_as_it_goes()
    found.sum_up_as_it_goes()
    found.sum_up_what_is_left()
    return found.workload()


class _StepFusion:
    """A step while it is fused: its layers by name, in order, and what they read."""

    def __init__(self, step: Workload) -> None:
        self.step, self.batch = step, step.batch
        self.layers: dict[str, Op] = {layer.name: layer for layer in step.layers}
        self.edges: dict[str, list[Source]] = {name: [*sources] for name, sources in step.edges}
        self.exchanged = {each.name: each for each in step.collectives}
        self.phases = dict(step.phases)
        self.bearers = {
            name: _Bearer(layer, self.edges[name])
            for name, layer in self.layers.items()
            if isinstance(layer, ArrayOp) and layer.op in _MAKERS
        }

    def workload(self) -> Workload:
        layers, edges = list[Op](), dict[str, tuple[Source, ...]]()
        for name, layer in self.layers.items():
            made, reads = self.bearers[name].whole if name in self.bearers else (layer, tuple(self.edges[name]))
            layers.append(made)
            edges[name] = reads
        phases = tuple((layer.name, self.phases[layer.name]) for layer in layers)
        collectives = tuple(self.exchanged.values())
        return self.step.made_of(layers, edges=tuple(edges.items()), phases=phases, collectives=collectives)

    # ---- what is read by whom

    def readers(self) -> dict[str, list[tuple[str, int]]]:
        """By layer those that read it, and as which operand; among them collectives."""
        found: dict[str, list[tuple[str, int]]] = {}
        for each in self.exchanged.values():
            for one in each.reads:
                found.setdefault(one, []).append((each.name, 0))
        for name, sources in self._all_edges():
            for at, source in enumerate(sources):
                for one in source.names:
                    found.setdefault(one, []).append((name, at))
        return found

    def _all_edges(self) -> Iterator[tuple[str, Sequence[Source]]]:
        for name in self.layers:
            bearer = self.bearers.get(name)
            yield name, self.edges[name]
            if bearer:
                yield name, [source for made in bearer.ahead.values() for source in made.reads]
                yield name, [source for _, sources in bearer.behind for source in sources]

    def maker(self, reader: str, at: int, *ops: str) -> str | None:
        """The layer that alone makes an operand, of which all is read; of one of `ops` where any are named."""
        (name, *others) = self.edges[reader][at].names
        if others or name not in self.layers or (ops and self.layers[name].op not in ops):
            return None
        read = [*self.layers[reader].reads(self.batch).values()][at]
        return name if prod(read) == prod(self.layers[name].shapes(self.batch)[OFMAP]) else None

    def drop(self, name: str, instead: str = "") -> None:
        """Take a layer away; its readers read another in its place."""
        del self.layers[name], self.edges[name]
        if not instead:
            return

        def now(reads: Sequence[Source]) -> tuple[Source, ...]:
            return tuple(
                each._replace(names=tuple(instead if one == name else one for one in each.names)) for each in reads
            )

        for of in self.edges.values():
            of[:] = now(of)
        for bearer in self.bearers.values():
            bearer.ahead = {at: made._replace(reads=now(made.reads)) for at, made in bearer.ahead.items()}
            bearer.behind = [(op, now(reads)) for op, reads in bearer.behind]
        for each in self.exchanged.values():
            reads = tuple(instead if one == name else one for one in each.reads)
            self.exchanged[each.name] = each._replace(reads=reads)

    # ---- a normalised map, the shortcut, relu

    def join_shortcuts(self) -> None:
        """Join a normalisation, the addition of a map to it and the relu of the sum, where nobody else reads them."""
        readers = self.readers()
        for name in [each.name for each in self.layers.values() if each.op == "relu"]:
            total = self.maker(name, 0, "add")
            if total is None or len(readers[total]) > 1 or len(self.edges[total]) < 2:
                continue
            sides = [self.maker(total, at, "scale_shift") for at in range(len(self.edges[total]))]
            alone = [at for at, side in enumerate(sides) if side and len(readers[side]) == 1]
            if not alone:
                continue
            normal = [sides[at] or "" for at in alone]
            first, *second = ([*self.edges[each]] for each in normal)
            other, *numbers = second[0] if second else [self.edges[total][1 - alone[0]]]
            self.layers[name] = _like(self.layers[name], "shortcut", both=bool(second))
            self.edges[name] = [first[0], other, *first[1:], *numbers]
            for each in (total, *normal):
                self.drop(each)

    def join_activations(self) -> None:
        """Join a normalisation that is still there and the relu of it, if nobody else reads it."""
        readers = self.readers()
        for name in [each.name for each in self.layers.values() if each.op == "relu"]:
            normal = self.maker(name, 0, "scale_shift")
            if normal is not None and len(readers[normal]) == 1:
                self.layers[name] = _like(self.layers[name], "scale_shift_relu")
                self.edges[name] = [*self.edges[normal]]
                self.drop(normal)

    # ---- operands

    def make_as_it_comes(self) -> None:
        """Make normalised maps, and gradients of normalisations, for each of their readers, if all of them can."""
        for name in [*self.layers]:
            if name not in self.layers:
                continue
            made, within = self._made(name)
            readers = self.readers().get(name, []) if made else []
            if made is None or not readers or not all(self._makes(reader, at, made) for reader, at in readers):
                continue
            for reader, at in readers:
                if reader in self.bearers:
                    first, *others = made.reads
                    direct = first.direct and self.edges[reader][at].direct
                    self.bearers[reader].ahead[at] = _MapChain(made.ops, (first._replace(direct=direct), *others))
                else:
                    self.layers[reader] = _like(self.layers[reader], "masked")
                    self.edges[reader] = [self.edges[reader][0], *made.reads]
            for each in (name, *within):
                self.drop(each)

    def _made(self, name: str) -> tuple[_MapChain | None, tuple[str, ...]]:
        """What a layer makes as work on the way, and the layer within it, which nobody else reads."""
        layer = self.layers[name]
        if layer.op in ("scale_shift", "batch_norm_gradient"):
            return _MapChain((_bare(layer),), tuple(self.edges[name])), ()
        within = self.maker(name, 0, "scale_shift") if layer.op == "relu" else None
        if within is None or len(self.readers()[within]) > 1:
            return None, ()
        return _MapChain((_bare(self.layers[within]), _bare(layer)), tuple(self.edges[within])), (within,)

    def _makes(self, reader: str, at: int, made: _MapChain) -> bool:
        """Whether a reader can do with what a map is made of; it reads all of the map, and no other beside it."""
        if reader in self.exchanged or self.maker(reader, at) is None:
            return False
        layer = self.layers[reader]
        if reader in self.bearers:
            grouped = getattr(layer, "groups", 1) > 1
            return (at == 0 and not grouped) or (layer.op == "conv2d_filter_gradient" and at == 1 and not grouped)
        return layer.op == "relu_gradient" and at == 1 and [each.op for each in made.ops] == ["scale_shift", "relu"]

    # ---- results

    def change_as_it_goes(self) -> None:
        """Add to a gradient, and mask it, as it goes: what alone reads it, and reads else what is there by then."""
        for name, bearer in self.bearers.items():
            while bearer.layer.op in _LEAVE and (behind := self._behind(name)):
                reader, source = behind
                others = [each for each in self.edges[reader] if each is not source]
                bearer.behind.append((_bare(self.layers[reader]), tuple(others)))
                self.drop(reader, name)

    def _behind(self, name: str) -> tuple[str, Source] | None:
        """The only reader of a gradient, if that is done to it as it goes."""
        if self.phases[name] != "backward" or len(readers := self.readers().get(name, [])) != 1:
            return None
        ((reader, at),) = readers
        if reader in self.exchanged:
            return None
        op = self.layers[reader].op
        if not (op == "add" or (op in _MASKS and at == 0)) or not self.edges[reader][at].direct:
            return None
        others = (one for number, each in enumerate(self.edges[reader]) if number != at for one in each.names)
        return (reader, self.edges[reader][at]) if self._there(name, others) else None

    def _there(self, name: str, reads: Iterable[str]) -> bool:
        """Whether all of `reads` is made ahead of a layer: what a step computes again may be made behind it."""
        place = {each: at for at, each in enumerate(self.layers)}

        def there(one: str) -> bool:
            own = self.exchanged.get(one)
            return all(map(there, own.reads)) if own else place.get(one, -1) < place[name]

        return all(map(there, reads))

    def sum_up_as_it_goes(self) -> None:
        """Leave the sums of channels that normalisations need."""
        self._sum_up_once()
        readers = self.readers()
        for name, bearer in self.bearers.items():
            if bearer.layer.op not in _LEAVE:
                continue
            by_op = dict[str, list[str]]()
            for reader, at in readers.get(name, []):
                if at == 0 and reader not in self.exchanged and self.maker(reader, 0):
                    by_op.setdefault(self.layers[reader].op, []).append(reader)
            shape = bearer.layer.shapes(self.batch)[OFMAP]
            elements = shape[1] * shape[2] * shape[3]
            apart = Source((name,), direct=False)
            if {"channel_mean", "channel_variance"} <= {*by_op}:
                (mean,), (variance,) = by_op["channel_mean"], by_op["channel_variance"]
                bearer.tallies = "sum", "squares"
                self._small("mean_of_total", mean, shape, [apart], elements=elements)
                self._small("variance_of_squares", variance, shape, [Source((mean,)), apart], elements=elements)
            elif {"channel_sum", "channel_products"} <= {*by_op}:
                maps = {each: self.edges[each][1].names for each in by_op["channel_products"]}
                if there := [each for each, read in maps.items() if self._there(name, read)]:
                    self._sum_products(bearer, by_op["channel_sum"][0], there, apart)

    def sum_up_what_is_left(self) -> None:
        """Take both sums of a gradient behind a relu in one pass, with its mask, if all others that read it mask it
        themselves as it comes: it is not stored then.
        """
        for name in [each.name for each in self.layers.values() if each.op in _MASKS]:
            readers = self.readers().get(name, [])
            sums = {self.layers[reader].op: reader for reader, at in readers
                    if at == 0 and not {reader} & (self.bearers.keys() | self.exchanged.keys())}  # fmt: skip
            if {*sums} != {"channel_sum", "channel_products"} or self.maker(sums["channel_sum"], 0) is None:
                continue
            total, products = sums["channel_sum"], sums["channel_products"]
            mask, _, mean = self._line(name), *self.edges[products][1:]
            others = {reader for reader, _ in readers} - {total, products}
            ways = [(self.bearers[each], at) for each in others for at in self._operands(each, name)]
            if mask is None or mask[1].names != self.edges[products][1].names or not others <= {*self.bearers}:
                continue
            masked: Any = OPS["masked"]
            for bearer, at in ways:
                made = bearer.ahead[at]
                bearer.ahead[at] = _MapChain((masked("masked", 1), *made.ops), (*mask, *made.reads[1:]))
            self.layers[name] = _like(self.layers[name], "channel_masked_sums")
            self.edges[name] = [*mask]
            shape, apart = self.layers[name].shapes(self.batch)["ifmap"], Source((name,), direct=False)
            self._small("mean_of_total", total, shape, [apart], elements=1)
            self._small("centred_total", products, shape, [mean, Source((total,)), apart])

    def _line(self, name: str) -> tuple[Source, ...] | None:
        """A gradient, and the map, scale and shift of the normalisation whose relu masks it; None if it is another."""
        gradient, *line = self.edges[name]
        if self.layers[name].op == "relu_gradient":
            relu = self.maker(name, 1, "scale_shift_relu")
            line = self.edges[relu] if relu else []
        return (gradient, *line) if line else None

    def _operands(self, bearer: str, name: str) -> list[int]:
        """The operands of a layer that are made of a gradient, which comes first."""
        found = self.bearers[bearer].ahead if bearer in self.bearers else {}
        return [at for at, made in found.items() if made.reads[0].names == (name,)]

    def _sum_up_once(self) -> None:
        """Keep the first of several sums of all of one gradient."""
        known = dict[str, str]()
        for name in [each.name for each in self.layers.values() if each.op == "channel_sum"]:
            made = self.maker(name, 0)
            if made and (first := known.setdefault(made, name)) != name:
                self.drop(name, first)

    def _sum_products(self, bearer: _Bearer, total: str, products: Sequence[str], apart: Source) -> None:
        """Sums of a gradient, and of its products with each map that was normalised."""
        last = bearer.behind[-1][1][0].names if bearer.behind else ()
        shape, bearer.tallies = bearer.layer.shapes(self.batch)[OFMAP], ("sum",)
        self._small("mean_of_total", total, shape, [apart], elements=1)
        # Products are with the last maps that come beside results, in turn.
        for number, name in enumerate(sorted(products, key=lambda each: self.edges[each][1].names != last)):
            _, other, mean = self.edges[name]
            if number or other.names != last:
                # This map changes nothing.
                beside: Any = OPS["weighted_sum"]
                bearer.behind.append((beside("beside", 1, factor=1.0, other_factor=0.0), (other,)))
            # The sum of products with what is left of the map without its mean.
            self._small("centred_total", name, shape, [mean, Source((total,)), apart])
            bearer.tallies = *bearer.tallies, "products"

    def _small(self, op: str, name: str, shape: Sequence[int], reads: list[Source], **more: Any) -> None:
        """Put an op on numbers of channels in the place of a layer."""
        made: Any = OPS[op]
        self.layers[name] = made(name, channels=shape[0], images=1, **more)
        self.edges[name] = reads


def _like(layer: Op, op: str, **more: Any) -> Op:
    """Another op on maps of the same size."""
    made: Any = OPS[op]
    sizes = {each: getattr(layer, each) for each in ("channels", "height", "width", "images")}
    found: Op = made(layer.name, **sizes, **more)
    return found


def _bare(layer: Op) -> Pointwise:
    """An op for work on the way, whose sizes are those of what comes or goes."""
    assert isinstance(layer, Pointwise)
    return layer
