"""The machine's HBM: what a network takes of it, or one chip's share of a network; those that it does not hold are
refused, with the mesh that would do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from operator import add
from typing import Literal, NamedTuple, TypeAlias

from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.machines.family import Machine, family_of
from tpusim.memory.hbm_layout import FILTER
from tpusim.memory.tile import Tile
from tpusim.network.mesh import STAGE, Mesh, mesh_text
from tpusim.network.ops.array_op import ArrayOp, stored_bits
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.workload import (
    ACCUMULATE,
    BACKWARD,
    FORWARD,
    INPUT,
    OFFLOAD,
    RELOAD,
    SO_FAR,
    UPDATE,
    BlocksAhead,
    CollectiveLayer,
    Source,
    Workload,
)
from tpusim.result.records import HbmContents


class HbmNeed(NamedTuple):
    """Bytes of HBM that a network takes: weights, inputs and outputs, and caches, which are there all the time; and
    maps between layers and weights gathered from other chips, the most of them while the layer or collective `at` runs.
    """

    weights: int
    ends: int
    between: int
    at: str
    caches: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weights + self.ends + self.between + self.caches + self.gathered

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for; caches and gathered weights only where there are some."""
        there = {"weights": self.weights, "inputs_and_outputs": self.ends, "maps_between_layers": self.between}
        more = {"caches": self.caches, "gathered_weights": self.gathered}
        return there | {part: size for part, size in more.items() if size}


_AHEAD = 1
"""Blocks whose weights are there beside those of the block that runs, as shipped links have it (`overlap.ahead`)."""
UNPADDED = Tile()
"""The tile of an element: tensors take what their elements take."""


def hbm_need(workload: Workload, machine: Machine, tile: Tile | None = None) -> HbmNeed:
    """Return what HBM has to hold for a network, at least, in tiles: by default in those of the machine.

    Weights, inputs and outputs of the network count all the time. A map counts from the layer that makes it to the
    last one that reads it, and what a layer reads and what it makes are there together. Of a value that several
    layers make, by additions or concatenations that take no time here, what they have made so far counts, up to the
    size that is read. A cache counts all the time. Where the workload does not say what a layer reads, it reads what
    the layer ahead makes. Updates of a training step replace what they read first: weights, and what an optimizer
    keeps of them. Not counted is what a lowering writes on the way, such as a lowered matrix.

    Of one chip's share of a network, what that chip holds counts. A collective makes a value as a layer does, behind
    the last one that makes what it reads. Of weights that it gathers, a chip holds its part all the time, and all of
    them from when the gather may begin: when the readers of the block two before are done. What is offloaded does not
    count from its last reader to when it may be loaded again: on the way back, when the readers of the block two before
    are done.

    Of a pipeline the stage that takes most counts: what it has of the network, for a microbatch, and what the way back
    will read of others that are under way. What comes from another stage counts from its first reader on.
    """
    tile = tile or family_of(machine).tile(machine)
    if not workload.stages:
        return _HbmCount(workload, machine, tile).need()
    # Imported here, as a network of one chip has no stages.
    from tpusim.network.pipeline_stages import of_stage

    stages = 1 + max(number for _, number in workload.stages)
    number = dict(workload.stages)
    there = sorted({number[layer.name] for layer in workload.layers})
    parts = {at: _HbmCount(of_stage(workload, at), machine, tile) for at in there}
    # A stage holds what the way back reads of as many microbatches as there are stages from it on.
    needs = (each.need(min(workload.microbatches, stages - at)) for at, each in parts.items())
    return max(needs, key=lambda need: need.total)


class _Read(NamedTuple):
    """The tensor that the maker `at` a place reads: what it is `of`, the names that it comes from, and its bytes.

    A value comes from its makers, in order. What is passing comes from outside, for one reader alone. A part is what
    a chip has of weights that it gathers.
    """

    of: Literal["cache", "value", "input", "passing", "weights", "part"]
    at: int
    names: tuple[str, ...]
    size: int


Maker: TypeAlias = Op | CollectiveLayer
"""What makes a value."""


class _HbmCount:
    """A network while its bytes are counted: its makers in order, what each makes, and what each reads."""

    def __init__(self, workload: Workload, machine: Machine, tile: Tile) -> None:
        self.workload, self.batch, self.tile, self.machine = workload, workload.batch, tile, machine
        self.bits = 8 * machine.element_bytes
        self.known, self.mesh = workload.sources(), dict(workload.mesh)
        self.phases = dict(workload.phases)
        self.collectives = {each.name: each for each in workload.collectives}
        self.gathers = {name for name, each in self.collectives.items() if each.weights}
        self.carrier = {rider: name for name, riders in workload.riders for rider in riders}
        self.updates = {
            self.carrier.get(name, name) for name, phase in workload.phases if phase in (ACCUMULATE, UPDATE)
        }
        """Layers that replace what they read, and those on which such ride."""
        self.place = {maker.name: at for at, maker in enumerate(self._in_order())}
        self.of_layers = [*self._reads_of_layers()]
        self.made = self._made()
        self.reads = sorted((*self.of_layers, *self._reads_of_collectives()), key=lambda each: each.at)

    def need(self, under_way: int = 1) -> HbmNeed:
        """All bytes, by what they are for, with the microbatches that are under way."""
        lasts = {each.names: each.at for each in self.reads if each.of == "value"}
        values = {names: (size, lasts[names]) for names, size in _largest(self.reads, "value").items()}
        outputs = self._outputs()

        def held(kind: bool) -> list[int]:
            """Bytes while each maker runs, with what it makes: of gathered weights, or of all else."""
            some = {names: each for names, each in values.items() if self.gathers.issuperset(names) == kind}
            made = [size * ((name in self.gathers) == kind and name not in outputs) for name, size in self.made.items()]
            return [*map(add, _between(some, self.made, self.place), made)]

        others = (under_way - 1) * self._kept(values) if under_way > 1 else 0
        gathered, between = held(True), [size + others for size in held(False)]
        for each in self.reads:
            between[each.at] += each.size * (each.of == "passing")
        there = [*map(add, gathered, between)]
        most = there.index(max(there))
        weights, ends = self._lasting()
        ends += sum(map(self.made.__getitem__, outputs))
        caches = sum(_largest(self.reads, "cache").values())
        return HbmNeed(weights, ends, between[most], [*self.place][most], caches, gathered[most])

    def _kept(self, values: Mapping[tuple[str, ...], tuple[int, int]]) -> int:
        """Bytes of what the way there has made for the way back."""
        there = [at for name, at in self.place.items() if self.phases.get(name) == FORWARD]
        back = [at for name, at in self.place.items() if self.phases.get(name) == BACKWARD]
        if not there or not back:
            return 0
        # A gradient from the stage behind is there once, however many microbatches are under way.
        some = {names: each for names, each in values.items() if self.place[names[-1]] <= there[-1]}
        return _between(some, self.made, self.place)[back[0]]

    def _outputs(self) -> set[str]:
        """The makers whose outcome nobody reads."""
        found = self.made.keys() - {name for of in self.known.values() for source in of for name in source.names}
        found -= {name for each in self.collectives.values() for name in self._makers(each)}
        return found - {ahead.name for ahead, layer in pairwise(self.workload.layers) if layer.name not in self.known}

    def _lasting(self) -> tuple[int, int]:
        """Bytes of weights and of inputs, which are there all the time."""
        # What updates replace stays, as weights do.
        trained = {
            name for each in self.updates if each in self.place for source in self.known[each] for name in source.names
            if self.phases[each] in (ACCUMULATE, UPDATE) or name.endswith(SO_FAR)
        }  # fmt: skip
        inputs, weights = _largest(self.reads, "input"), sum(each.size for each in self.reads if each.of == "weights")
        kept = {names: size for names, size in inputs.items() if trained.issuperset(names)}
        parts = _largest(self.reads, "part")
        kept |= {names: max(size, kept.get(names, 0)) for names, size in parts.items()}
        ends = sum(size for names, size in inputs.items() if names not in kept)
        return weights + sum(kept.values()), ends

    # ---- makers, in order

    def _in_order(self) -> list[Maker]:
        """Layers in their order, and collectives among them, each as early as it may begin."""
        layers, after = self.workload.layers, {layer.name: at for at, layer in enumerate(self.workload.layers)}
        if not self.collectives:
            return [*layers]
        readers = self._places_of_readers(after)
        # Gathered weights, and what comes back from the host.
        windows: defaultdict[str, BlocksAhead] = defaultdict(partial(BlocksAhead, _AHEAD))
        copies = self.workload.copies
        forward = {name for name, phase in self.workload.phases if phase == FORWARD}
        turn = max((at for name, at in after.items() if name in forward), default=-1)
        for each in self.workload.collectives:
            makers = [*self._makers(each)]
            # Its maker is in another stage, and what came early waits there.
            if STAGE in each.over and not after.keys() & {*makers}:
                if readers[each.name]:
                    after[each.name] = min(readers[each.name]) - 1
                continue
            if any(name not in after and self._is_of_network(name) for name in makers):
                continue
            behind = max((after[name] for name in makers if name in after), default=-1)
            if each.weights or each.op == RELOAD:
                # Weights of layers that are left out.
                if not readers[each.name]:
                    continue
                window = windows[each.op if each.op == RELOAD else FILTER]
                block = self.workload.block_of(layers[min(readers[each.name])].name, copies)
                free = max(window.behind(block, readers[each.name]), turn if each.op == RELOAD else -1)
                behind = max(behind, min(free, min(readers[each.name]) - 1))
            after[each.name] = behind
        begun = [each for each in self.workload.collectives if each.name in after]
        return sorted((*layers, *begun), key=lambda maker: after[maker.name])

    def _places_of_readers(self, layers: Mapping[str, int]) -> dict[str, list[int]]:
        """By collective the places among `layers` of those that read it, by way of other collectives, too."""
        found: dict[str, list[int]] = {name: [] for name in self.collectives}
        for name, at in layers.items():
            for one in {one for source in self.known.get(name, ()) for one in source.names if one in found}:
                found[one].append(at)
        for each in reversed(self.workload.collectives):
            for name in self._makers(each):
                if name in found:
                    found[name] += found[each.name]
        return found

    def _makers(self, collective: CollectiveLayer) -> Iterator[str]:
        """Yield the layers, collectives or inputs that make an operand; of a layer that rides the one that carries
        it.
        """
        for name in collective.reads:
            yield self.carrier.get(name, name)

    def _is_of_network(self, name: str) -> bool:
        """Whether a name is that of a layer or a collective, which may be left out here, and of no input."""
        return name in self.known or name in self.collectives

    # ---- what makers make

    def _made(self) -> dict[str, int]:
        """Bytes of what each maker makes, by its name, in order; nothing where it replaces what was there."""
        layers = {layer.name: layer for layer in self.workload.layers}
        read: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for each in self.of_layers:
            read[each.names].append(each.size)
        bits, made = self._bits_of_gathered() if self.gathers else {}, dict[str, int]()
        for name in self.place:
            if name in self.updates:
                made[name] = 0
            elif name in layers:
                made[name] = self.tile.bytes(layers[name].shapes(self.batch)[OFMAP], self.bits)
            else:
                least = max(read[name,], default=0)
                made[name] = self._outcome(self.collectives[name], made, bits.get(name, self.bits), least)
        return made

    def _outcome(self, collective: CollectiveLayer, made: Mapping[str, int], bits: int, read: int) -> int:
        """Bytes of what a collective makes: as much as is read of it or, where it only moves that, was given to it;
        none where that is not here, or replaces what was.
        """
        makers = [*self._makers(collective)]
        sent = STAGE in collective.over and not self.place.keys().isdisjoint(makers)
        if sent or collective.op == OFFLOAD or (makers and self.updates.issuperset(makers)):
            return 0
        if collective.op == RELOAD:
            makers = [origin for name in makers for origin in self._makers(self.collectives[name])]
        stays = collective.op in ("all_reduce", "permute", RELOAD) and len(makers) == 1
        return max(self._flat(collective.outcome(self.mesh), bits), read, made.get(makers[0], 0) if stays else 0)

    def _bits_of_gathered(self) -> dict[str, int]:
        """The bits of an element of weights that are gathered, by the collective: those that a reader has in HBM."""
        found: dict[str, int] = {}
        for layer in self.workload.layers:
            for tensor, source in zip(layer.reads(self.batch), self.known.get(layer.name, ()), strict=False):
                for name in source.names:
                    if name in self.gathers:
                        found[name] = max(_stored_bits(layer, tensor, self.machine), found.get(name, 0))
        return found

    def _flat(self, elements: int, bits: int) -> int:
        return self.tile.bytes((elements, 1, 1, 1), bits)

    # ---- what makers read

    def _reads_of_layers(self) -> Iterator[_Read]:
        """Every tensor that every layer reads."""
        ahead = INPUT
        for layer in self.workload.layers:
            at = self.place[layer.name]
            first, *others = layer.reads(self.batch)
            told = dict(zip((first, *others), self.known.get(layer.name, (Source((ahead,)),)), strict=False))
            for tensor, shape in {**layer.sources(self.batch), **layer.reads(self.batch)}.items():
                names = told[tensor].names if tensor in told else ()
                stored = _stored_bits(layer, tensor, self.machine)
                # Blocks of queries read parts of one cache, which is there as a whole.
                if tensor in told and (elements := told[tensor].cache):
                    # Heads and tokens of a cache fill tiles whichever way round pads least: its vectors lie side by
                    # side.
                    yield _Read("cache", at, names, self._flat(elements, stored))
                elif names or (layer.name not in self.known and tensor in others and tensor != FILTER):
                    gathered = bool(names) and self.gathers.issuperset(names)
                    yield self._read(at, names, self.tile.bytes(shape, stored if gathered else self.bits))
                else:
                    yield _Read("weights", at, names, self.tile.bytes(shape, stored))
            ahead = layer.name

    def _reads_of_collectives(self) -> Iterator[_Read]:
        """Every operand of every collective: what others make, or what the chip has of weights or of an input."""
        for name, each in self.collectives.items():
            if name not in self.place:
                continue
            at, makers = self.place[name], tuple(self._makers(each))
            if STAGE in each.over and self.place.keys().isdisjoint(makers):
                continue
            inside = [maker for maker in makers if maker in self.place]
            outside = tuple(maker for maker in makers if maker not in self.place)
            if inside:
                yield self._read(at, tuple(inside), sum(self.made[maker] for maker in inside))
            if outside or not makers:
                whole = self.made[name] if each.weights else self._flat(each.elements, self.bits)
                part = -(-whole // each.chips(self.mesh)) if each.op == "all_gather" else whole
                lasting: Literal["part", "input"] = "part" if each.weights or not makers else "input"
                yield _Read(lasting, at, outside or (each.of or name,), part)

    def _read(self, at: int, names: Sequence[str], size: int) -> _Read:
        """A tensor that others make, here or elsewhere, or that is an input."""
        makers = tuple(sorted({name for name in names if name in self.place}, key=self.place.__getitem__))
        if makers:
            return _Read("value", at, makers, size)
        return _Read(
            "passing" if any(map(self._is_of_network, names)) or not names else "input", at, tuple(names), size
        )


def _largest(reads: Sequence[_Read], of: str) -> dict[tuple[str, ...], int]:
    """Bytes of values, inputs or caches, by their names: the most that any layer reads of them."""
    found: dict[tuple[str, ...], int] = {}
    for each in reads:
        if each.of == of:
            found[each.names] = max(each.size, found.get(each.names, 0))
    return found


def _stored_bits(layer: Op, tensor: str, machine: Machine) -> int:
    """The bits of an element of a tensor that a layer reads, in HBM."""
    stored = layer.filter_stored if tensor == FILTER and isinstance(layer, ArrayOp) else "computed"
    return stored_bits(stored, machine.element_bytes)


def _between(
    values: Mapping[tuple[str, ...], tuple[int, int]], made: Mapping[str, int], place: Mapping[str, int]
) -> list[int]:
    """Return the bytes of maps that are there while each layer runs, without what the layer makes.

    `values` has, by the makers of a value in order, its size and the place of its last reader.
    """
    parts: dict[tuple[int, str], int] = {}
    starts: dict[int, int] = {}
    ends: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for makers, (size, last) in values.items():
        part = so_far = 0
        for maker, until in zip(makers, (*(place[each] for each in makers[1:]), last), strict=True):
            # Values that have had the same makers so far are one so far.
            part = parts.setdefault((part, maker), len(parts) + 1)
            so_far += made[maker]
            starts[part] = place[maker] + 1
            ends[part].append((until, min(size, so_far)))
    changes = [0] * (len(place) + 1)
    for part, start in starts.items():
        held = 0
        for (end, size), (before, _) in pairwise([*sorted(ends[part], reverse=True), (start - 1, 0)]):
            held = max(held, size)
            changes[before + 1] += held
            changes[end + 1] -= held
    return [*accumulate(changes)][:-1]


def hbm_use(workload: Workload, machine: Machine) -> HbmContents | None:
    """Return what HBM has to hold for a network, with padding and without; None where the machine holds any network."""
    capacity = family_of(machine).capacity(machine)
    if capacity is None:
        return None
    need, bare = hbm_need(workload, machine), hbm_need(workload, machine, UNPADDED)
    return HbmContents(capacity, need.total, bare.total, need.at, need.parts, bare.parts)


def held_in_hbm(
    workload: Workload, machine: Machine, fitting: Callable[[], Mesh | None] | None = None
) -> HbmContents | None:
    """Return `hbm_use`. Raises CapacityError where that is more than the HBM holds, with what the network needs, and
    with the mesh that `fitting` finds.
    """
    use = hbm_use(workload, machine)
    if use is None or use.need_bytes <= use.capacity_bytes:
        return use
    without = f" ({use.unpadded_bytes:,} B without padding)" if use.unpadded_bytes < use.need_bytes else ""
    of = f"in each chip of {mesh_text(dict(workload.mesh))}, " if workload.mesh else ""
    needs = f"needs {use.need_bytes:,} B of HBM {of}at batch {workload.batch}{without}"
    says = f"{needs}, and {machine.label} has {use.capacity_bytes:,} B"
    sizes = {part: (most, use.unpadded_parts.get(part, 0)) for part, most in use.parts.items()}
    told = {part: f"{most:,} B" + (f" ({least:,} B)" if least < most else "") for part, (most, least) in sizes.items()}
    words = {
        "weights": "are weights", "inputs_and_outputs": "inputs and outputs",
        "maps_between_layers": f"maps between layers, while {use.at} runs", "caches": "caches",
        "gathered_weights": "weights gathered then",
    }  # fmt: skip
    parts = ", ".join(f"{told[part]} {words[part]}" for part in told)
    fewer = "take fewer layers, or a machine that holds more"
    too_many = use.parts["weights"] > use.capacity_bytes
    advice = f"no batch is small enough; {fewer}" if too_many else f"take a smaller batch, or {fewer[5:]}"
    if fitting is not None:
        mesh = fitting()
        less = ", or keep less for the way back" if workload.phases else ""
        none = f"no mesh of as many chips fits; take more chips{less}"
        advice = f"--mesh {mesh_text(mesh)} fits" if mesh else none
    raise CapacityError(Problem(f"{says}: {parts}; {advice}", f"network {workload.name}"))


def fitting_mesh(
    share: Callable[[Mesh], Workload], machine: Machine, asked: Mesh, chips: int, training: bool = False
) -> Mesh | None:
    """Return the first of the obvious meshes of `chips` whose HBM holds the share of each; None if there is none.

    The obvious ones have the stages and experts of the mesh that was `asked` for, and as many chips along `tensor`, or
    more. A training step has all others along `fsdp`; tokens have them along `data`, then along `fsdp`.

    Args:
        share: returns the share of a chip of a mesh, as its layers run; raises InputError where a mesh does not suit
            the network.
    """
    capacity = family_of(machine).capacity(machine)
    for mesh in _obvious(asked, chips, training):
        try:
            work = share(mesh)
        except InputError:
            continue
        if capacity is None or hbm_need(work, machine).total <= capacity:
            return mesh
    return None


def _obvious(asked: Mesh, chips: int, training: bool) -> Iterator[Mesh]:
    """Yield meshes that differ from the `asked` one in what weights, gradients, maps and caches are parted by."""
    fixed = {axis: chips for axis, chips in asked.items() if axis not in ("data", "fsdp", "tensor")}
    left = chips // prod(fixed.values())
    tensors = [many for many in range(asked.get("tensor", 1), left + 1) if left % many == 0]
    for parted in ("fsdp",) if training else ("data", "fsdp"):
        for tensor in tensors:
            found = {**fixed, parted: left // tensor, "tensor": tensor}
            made = {axis: chips for axis, chips in found.items() if chips > 1}
            if made != {axis: chips for axis, chips in asked.items() if chips > 1}:
                yield made
