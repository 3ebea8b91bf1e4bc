"""A slice: chips on a torus of links, as files describe it; and the links of its generation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import PlainSerializer, ValidationInfo, field_validator

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.units import BANDWIDTH, SIZE, TIME
from tpusim.input.document import Document
from tpusim.input.form import (
    FROM_YAML,
    Choice,
    FileModel,
    FileSection,
    Form,
    Name,
    Overrides,
    Quantity,
    Reader,
    rational,
    read_overrides,
    texts_of,
    whole,
    written,
)
from tpusim.input.scalars import show, whole_number
from tpusim.input.source import open_document, shipped, with_neighbours
from tpusim.machines.tpu.description import Hardware, load_hardware

FOLDER = "configs/slices"
"""Folder of the shipped slices."""

INTERCONNECTS = "configs/interconnects"
"""Folder of the links of the generations."""

AXES = "xyz"
"""Names of the axes of a torus, in the order of its sides."""

_PS_PER_S = 10**12
_MOST_SIDE = 1024
_MOST_JOINED = 4096
_SIDES = re.compile(r"[0-9]{1,9}(x[0-9]{1,9})*")
_CUBE = 4


class Sides(FileSection):
    """The slices that a generation can have.

    Attributes:
        dimensions: axes of its torus.
        longest: chips of its longest axis.
        chips: chips of its largest slice.
    """

    dimensions: Annotated[int, whole(3), written(2)]
    longest: Annotated[int, whole(_MOST_SIDE), written(16)]
    chips: Annotated[int, whole(2**20), written(256)]


class Wrap(FileSection):
    """The axes whose last chip has a link to the first.

    Attributes:
        multiple: chips of which an axis that wraps is a multiple.
        of: whether `each` axis is judged by itself, or none wraps unless `all` are such multiples.
    """

    multiple: Annotated[int, whole(_MOST_SIDE), written(16)]
    of: Annotated[Literal["each", "all"], Choice()] = "each"


class Link(FileSection):
    """A link between two neighbours, one in each direction.

    Attributes:
        bandwidth_bytes_per_s: bytes that a link carries one way in a second, all that goes with data included.
        payload: the part of them that is data.
        hop_ps: time from the first byte that a chip sends to the first that its neighbour may send on.
    """

    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "100 TB/s"), written("93.35 GB/s", "bandwidth")]
    payload: Annotated[Fraction, rational(1, Fraction(1, 1000))] = Fraction(1)
    hop_ps: Annotated[int, Quantity(TIME, "1 ms"), written("1 us", "hop")]


class Emitters(FileSection):
    """The collectives of a generation: what code of the compiler does with the links.

    Attributes:
        launch_ps: time of a collective before its first byte.
        chunk_bytes: bytes that a hop of a ring carries, at most.
        most_passes: passes of a stream over its elements, at most; hops carry more where there would be more of them.
        passes: passes of a ring that are under way at once; with 1 the next begins when the last hop of one is there.
        streams: whether the streams of a ring go hop by hop `together`, each hop when those before it of all streams
            have arrived, as code of one core has it, or `apart`, each by itself.
        dma_bytes: bytes of the largest copy to a chip that is no neighbour.
        short_bytes: most bytes over several axes for which a variant with fewer hops is taken; none: there is none.
        short_part_bytes: most bytes of a chip's part for which it is taken along one axis; none: there is none.
        padded_part_bytes: most bytes of a chip's part that a gather over two axes pads and adds up; none: it is a ring.
        ring_chips: most chips of a slice of which a reduce-scatter over all of two axes is one ring.
        long_ring: chips from which a ring that closes is a long one.
        colours: how its code names the streams of long rings that close, and of pairs: a colour for each `axis`, both
            ways round, or as all others for each `direction`.
        adds: what adds what arrives, the `vector_unit` or a `sparse_core`.
        adds_per_cycle: elements that a SparseCore adds in a cycle.
    """

    launch_ps: Annotated[int, Quantity(TIME, "1 s"), written("3 us", "launch")]
    chunk_bytes: Annotated[int, Quantity(SIZE, "1 GiB"), written("256 KiB", "chunk")]
    most_passes: Annotated[int, whole(4096), written(16)]
    passes: Annotated[int, whole(64)] = 1
    streams: Annotated[Literal["together", "apart"], Choice()] = "together"
    dma_bytes: Annotated[int, Quantity(SIZE, "1 GiB"), written("32 KiB", "dma")]
    short_bytes: Annotated[int | None, Quantity(SIZE, "1024 GiB"), written("4 MiB", "short")] = None
    short_part_bytes: Annotated[int | None, Quantity(SIZE, "1 GiB"), written("64 KiB", "short_part")] = None
    padded_part_bytes: Annotated[int | None, Quantity(SIZE, "1 GiB"), written("32 KiB", "padded_part")] = None
    ring_chips: Annotated[int, whole(2**20)] = 8
    long_ring: Annotated[int, whole(_MOST_SIDE)] = 16
    colours: Annotated[Literal["axis", "direction"], Choice()] = "direction"
    adds: Annotated[Literal["vector_unit", "sparse_core"], Choice()] = "vector_unit"
    adds_per_cycle: Annotated[int, whole(2**20)] = 256


_COLLECTIVES = "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"


def _ops(given: object) -> tuple[str, ...]:
    """Read a list of ops of collectives, one of them, or none. Raises InputError."""
    every = () if given == "none" else (given,) if isinstance(given, str) else given
    if isinstance(every, list | tuple) and all(each in _COLLECTIVES for each in every):
        return (*map(str, every),)
    raise InputError(f"{show(given)} are no collectives; write none, or a list of {', '.join(_COLLECTIVES)}")


class Overlap(FileSection):
    """How the compiler has collectives run beside layers.

    Attributes:
        gathers: gathers that may be under way at once.
        permutes: collectives that move by permutes, which all others do, that may be.
        ahead: blocks whose weights may come before the readers of an earlier one are done; what they bring takes
            memory.
        alone: ops of which the compiler makes no start and done, so that no layer runs beside them within a slice.
    """

    gathers: Annotated[int, whole(1024), written(1)]
    permutes: Annotated[int, whole(1024), written(5)]
    ahead: Annotated[int, whole(1024), written(1)]
    alone: Annotated[
        tuple[str, ...], Reader(_ops, f"a list of {', '.join(_COLLECTIVES)}"), written("[all_reduce]")
    ] = ()


class Combine(FileSection):
    """All-reduces of gradients that the compiler joins to one.

    Attributes:
        size_bytes: bytes of a chip, at most.
        operands: gradients, at most.
    """

    size_bytes: Annotated[int, Quantity(SIZE, "1024 GiB"), written("120 MiB", "size")]
    operands: Annotated[int, whole(2**20), written(256)]


class Dcn(FileSection):
    """The network between slices, by which every chip reaches its like in any other.

    Attributes:
        bandwidth_bytes_per_s: bytes that a chip sends in a second.
        latency_ps: time until the first of them arrives.
    """

    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "100 TB/s"), written("6.25 GB/s", "bandwidth")]
    latency_ps: Annotated[int, Quantity(TIME, "1 s"), written("10 us", "latency")]


class Host(FileSection):
    """The way between a chip and the memory of its host, in which there is room for whatever is offloaded.

    Attributes:
        bandwidth_bytes_per_s: bytes that go one way in a second, beside as many the other way.
        latency_ps: time until the first of them arrives; none: nobody says.
    """

    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "100 TB/s"), written("32 GB/s", "bandwidth")]
    latency_ps: Annotated[int | None, Quantity(TIME, "1 s"), written("2 us", "latency")] = None


class Interconnect(FileModel):
    """The links between the chips of a generation, and its collectives.

    Attributes:
        name: name of the generation in names of slices.
        generation: name of the generation for people.
        machine: machine of a whole chip: a shipped name, or a path.
        sides: the slices that there can be; a section.
        wrap: which axes close to rings; a section.
        link: a link; a section.
        collectives: what collectives cost beside bytes; a section.
        overlap: how many of them run beside layers; a section.
        combine: how many are joined; a section.
        dcn: the network between slices; a section, which a generation without one leaves out.
        host: the way to the host's memory; a section, which a generation leaves out where no figure is known.
    """

    name: Annotated[str, Name(), written("v6e")]
    generation: Annotated[str, Name(), written("TPU v6e")]
    machine: Annotated[str, Name(), written("tpu_v6e")]
    sides: Sides
    wrap: Wrap
    link: Link
    collectives: Emitters
    overlap: Overlap
    combine: Combine
    dcn: Dcn | None = None
    host: Host | None = None

    @cached_property
    def chip(self) -> Hardware:
        """The machine of a chip. Raises InputError."""
        try:
            return load_hardware(self.machine)
        except InputError as error:
            # Of a GPU, every key is wrong; the first tells.
            raise InputError(
                Problem(f"no TPU chip: {error.problems[0]}", f"interconnect.machine {self.machine}")
            ) from None

    def wraps(self, torus: tuple[int, ...]) -> tuple[bool, ...]:
        """Whether each axis of a torus of these sides closes to a ring."""
        whole_axes = [side % self.wrap.multiple == 0 for side in torus]
        return tuple(whole_axes if self.wrap.of == "each" else [all(whole_axes)] * len(torus))

    def refusal(self, torus: tuple[int, ...]) -> str:
        """Why the generation can have no slice of these sides, and which fits; empty if it can."""
        sides = self.sides
        shape = "x".join(map(str, torus))
        axes = "1 axis" if sides.dimensions == 1 else f"{sides.dimensions} axes"
        allowed = (
            f"a slice of {self.generation} has {axes} of 1, 2 or a multiple of {_CUBE} chips, up to {sides.longest}, "
            f"and at most {sides.chips:,} chips"
        )
        if self.allows(torus):
            return ""
        near = self.fitting(math.prod(torus))
        return f"{shape} is none: {allowed}" + f"; such as {', '.join(near)}" * bool(near)

    def allows(self, torus: tuple[int, ...]) -> bool:
        """Whether the generation can have a slice of these sides."""
        whole_sides = all(side <= 2 or side % _CUBE == 0 for side in torus)
        fits = max(torus) <= self.sides.longest and math.prod(torus) <= self.sides.chips
        return len(torus) == self.sides.dimensions and whole_sides and fits

    def fitting(self, chips: int) -> list[str]:
        """Shipped slices of the generation by name, the nearest in chips first; at most three."""
        known = [name for name in shipped(FOLDER) if name.startswith(f"{self.name}_")]
        found = [(abs(math.log(max(chips, 1) / math.prod(sides))), name)
                 for name in known if (sides := _sides(name)) and self.allows(sides)]  # fmt: skip
        return [name for _, name in sorted(found)[:3]]

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values."""
        held = self.model_dump(by_alias=True)
        return {key: value for key, value in held.items() if value is not None or key not in ("dcn", "host")}

    def host_cycles(self, moved: int, clock_hz: int) -> int:
        """Cycles in which bytes go to the host's memory, or come back. Raises InputError where no way is known."""
        if self.host is None:
            says = (
                f"no way of {self.generation} to its host is known; offload nothing, or give its links a host section"
            )
            raise InputError(Problem(f"{says} with its bandwidth", "--offload"))
        carried = -(-moved * clock_hz // self.host.bandwidth_bytes_per_s)
        return carried + cycles_of(self.host.latency_ps or 0, clock_hz)


def load_interconnect(name_or_path: str | Path, overrides: Overrides = ()) -> Interconnect:
    """The links of a generation, by its name or from a YAML file. Raises InputError with every problem of the file."""
    document = with_neighbours(open_document(name_or_path, INTERCONNECTS), {"machine": "configs"})
    return _read(_INTERCONNECT, document, overrides)


def interconnect_of(value: object) -> Interconnect:
    """The links that a slice's file names or writes out. Raises InputError with every problem."""
    if isinstance(value, Interconnect):
        return value
    if isinstance(value, Mapping):
        return _INTERCONNECT.build(value, FROM_YAML)
    if not isinstance(value, str):
        raise InputError(f"{show(value)} names no links; write one of {', '.join(shipped(INTERCONNECTS))}, or a path")
    try:
        return load_interconnect(value)
    except InputError as error:
        # The problem is in another file, so its place is told in the message.
        raise InputError([Problem(str(each)) for each in error.problems]) from None


def _as_written(links: Interconnect) -> str | dict[str, Any]:
    known = links.name in shipped(INTERCONNECTS) and load_interconnect(links.name) == links
    return links.name if known else links.to_dict()


def _torus(value: object) -> tuple[int, ...]:
    if isinstance(value, str) and _SIDES.fullmatch(value):
        value = [int(side) for side in value.split("x")]
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= len(AXES):
        raise InputError(f"{show(value)} is no list of 1 to {len(AXES)} sides; write e.g. [4, 4] or 4x4")
    return tuple(whole_number(side, 1, _MOST_SIDE) for side in value)


class ChipSlice(FileModel):
    """A slice: the chips of a torus, and how many such slices a network joins.

    Attributes:
        name: name of the slice in results; that of its file unless given.
        interconnect: links between its chips: the name of a generation, a path, or a section.
        torus: chips along each axis.
        slices: slices that are joined by the network between slices.
        overlap: whether collectives run beside `layers`, or the chip waits for each of them: none.

    Examples:
        >>> from tpusim.machines.tpu.slices.slice import load_slice
        >>> load_slice("v5e_8x16").wraps
        (False, True)
    """

    name: Annotated[str, Name(), written("v6e_2x4")]
    interconnect: Annotated[
        Interconnect, Reader(interconnect_of, "a generation, a path, or a section"), PlainSerializer(_as_written),
        written("v6e"),
    ]  # fmt: skip
    torus: Annotated[tuple[int, ...], Reader(_torus, "a list of sides"), written("[2, 4]")]
    slices: Annotated[int, whole(_MOST_JOINED)] = 1
    overlap: Annotated[Literal["layers", "none"], Choice()] = "layers"

    @field_validator("torus")
    @classmethod
    def _can_be(cls, torus: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        links = info.data.get("interconnect")
        if isinstance(links, Interconnect) and (says := links.refusal(torus)):
            raise InputError(says)
        return torus

    @field_validator("slices")
    @classmethod
    def _are_joined(cls, slices: int, info: ValidationInfo) -> int:
        links = info.data.get("interconnect")
        if slices > 1 and isinstance(links, Interconnect) and links.dcn is None:
            raise InputError(f"no network between slices of {links.generation} is known; write 1")
        return slices

    @property
    def chips(self) -> int:
        """All chips, of all slices."""
        return math.prod(self.torus) * self.slices

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Whether each axis closes to a ring."""
        return self.interconnect.wraps(self.torus)

    @property
    def rings(self) -> list[str]:
        """Names of the axes that close to rings."""
        return [AXES[index] for index, wraps in enumerate(self.wraps) if wraps]

    @property
    def chip(self) -> Hardware:
        """The machine of a chip."""
        return self.interconnect.chip

    @property
    def words(self) -> str:
        """The slice for people: "256 chips of TPU v6e, 16 x 16, both axes wrap"."""
        closed = self.rings
        shape = " x ".join(map(str, self.torus))
        told = f"{', '.join(closed)} wrap{'s' * (len(closed) == 1)}" if closed else "no axis wraps"
        joined = f"; {self.slices} such slices" * (self.slices > 1)
        return f"{math.prod(self.torus):,} chips of {self.interconnect.generation}, {shape}, {told}{joined}"

    def to_dict(self) -> dict[str, Any]:
        """The YAML form."""
        return self.model_dump(by_alias=True)


_INTERCONNECT: Form[Interconnect] = Form(Interconnect, files={"machine": "configs"})
_SLICE: Form[ChipSlice] = Form(ChipSlice)
_NAME = re.compile(rf"(?P<generation>[a-z0-9]+?)_(?P<sides>{_SIDES.pattern})")
_LINKS = "interconnect."

Read = TypeVar("Read", bound=FileModel)


def _sides(name: str) -> tuple[int, ...]:
    """The sides in "v5e_4x8"; none in any other name, such as v6e_8."""
    found = _NAME.fullmatch(name)
    return tuple(map(int, found["sides"].split("x"))) if found and "x" in name.partition("_")[2] else ()


def load_slice(name_or_path: str | Path, overrides: Overrides = ()) -> ChipSlice:
    """The slice of a name or a YAML file.

    A name is a shipped one, or a generation with the sides of a slice that it can have, such as "v5e_4x8". Overrides
    are texts such as "slices=2" or "interconnect.link.hop=2 us".

    Raises:
        InputError: with every problem of the file and the overrides.
    """
    name = str(name_or_path)
    if isinstance(overrides, Mapping):
        overrides = [f"{path}={value}" for path, value in overrides.items()]
    given = [overrides] if isinstance(overrides, str) else [*overrides]
    # A path that there is not is told beside those of the slice.
    of_links = [text.strip() for text in given if text.partition("=")[0].strip() in _fields_of_links()]
    found = _NAME.fullmatch(name)
    if found and name not in shipped(FOLDER) and _sides(name) and found["generation"] in shipped(INTERCONNECTS):
        held = {"name": name, "interconnect": found["generation"], "torus": [*_sides(name)]}
        document = Document(name, held, {"": 1})
    else:
        if found and name not in shipped(FOLDER) and not Path(name).exists():
            known = shipped(INTERCONNECTS)
            guess = did_you_mean(found["generation"], known) or ";"
            raise InputError(Problem(f"no such slice{guess} generations: {', '.join(known)}, each with its sides, such "
                                     f"as v5e_4x8; shipped: {', '.join(shipped(FOLDER))}", name))  # fmt: skip
        document = with_neighbours(open_document(name_or_path, FOLDER), {"interconnect": INTERCONNECTS})
    made = _read(_SLICE, document, [text for text in given if text.strip() not in of_links])
    if not of_links:
        return made
    document = Document(made.interconnect.name, made.interconnect.to_dict())
    try:
        links = _read(_INTERCONNECT, document, [text.removeprefix(_LINKS) for text in of_links])
    except InputError as error:
        raise InputError(_told_as_asked(error)) from None
    if says := links.refusal(made.torus):
        raise InputError(Problem(f"{says}; set other sides, or name another slice", f"--set {of_links[0]}"))
    told = {f"{_LINKS}{path}": text for path, text in links.changes.items()}
    return made.model_copy(update={"interconnect": links}).telling(told)


def slices_of(chips: int, machine: str) -> list[str]:
    """Names of slices of a number of chips, at most three: of the generations whose chip is a machine, else of all; the
    roundest first. Where one is too small, the fewest that are joined, as options ask for them.
    """
    every = [load_interconnect(name) for name in shipped(INTERCONNECTS)]
    # Of a machine of one's own no generation says which links it has.
    known = [each for each in every if each.machine == machine] or every
    for joined in (each for each in range(1, _MOST_JOINED + 1) if chips % each == 0):
        more = f" --set slice.slices={joined}" if joined > 1 else ""
        found = [(max(sides), f"{links.name}_{'x'.join(map(str, sides))}{more}")
                 for links in known if joined == 1 or links.dcn
                 for sides in _shapes(chips // joined, links.sides.dimensions) if links.allows(sides)]  # fmt: skip
        if found:
            return [name for _, name in sorted(found)[:3]]
    return []


def _shapes(chips: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield the sides of a number of axes whose product is a number of chips, the shortest first."""
    if axes == 1:
        yield (chips,)
        return
    for side in range(1, _MOST_SIDE + 1):
        if chips % side == 0:
            yield from ((side, *rest) for rest in _shapes(chips // side, axes - 1) if side <= rest[0])


@lru_cache(maxsize=1)
def _fields_of_links() -> tuple[str, ...]:
    return tuple(f"{_LINKS}{path}" for path in _INTERCONNECT.paths)


def _told_as_asked(error: InputError) -> list[Problem]:
    """Return the problems of changes of links, each with the path that was asked for."""
    asked = "--set "
    return [replace(each, where=each.where.replace(asked, f"{asked}{_LINKS}", 1) if each.where else None)
            for each in error.problems]  # fmt: skip


def _read(form: Form[Read], document: Document, overrides: Overrides) -> Read:
    data = {"name": Path(document.label.strip("<>")).stem, **document.data}
    final = replace(document, data=data)
    given, refused = read_overrides(overrides, form)
    for path, (value, where) in given.items():
        final = final.override(path, value, where)
    return form.read(final, FROM_YAML, refused).telling(texts_of(given))


def cycles_of(time_ps: int, clock_hz: int) -> int:
    """Whole cycles of a time, rounded up."""
    return -(-time_ps * clock_hz // _PS_PER_S)
