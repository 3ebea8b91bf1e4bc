"""The outcome of a simulation: one record a layer, and one for the totals.

Field names are those of the result JSON, so `Result.to_json()` is a plain dump.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from operator import add, attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from annotated_types import Interval

from tpusim.base.errors import InputError
from tpusim.base.words import counted, with_settings
from tpusim.result.chips import cores_of_its_chip, part_notes

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST = 10**30
"""Larger than any figure of a result."""

Count: TypeAlias = Annotated[int, Interval(ge=0, lt=_MOST)]
Difference: TypeAlias = Annotated[int, Interval(gt=-_MOST, lt=_MOST)]
Amount: TypeAlias = Annotated[float, Interval(ge=0, lt=_MOST)]
Element: TypeAlias = Annotated[float, Interval(gt=-_MOST, lt=_MOST)]


@dataclass(frozen=True)
class EnergyUse:
    """The energy taken, by the constants of a technology: a model.

    Figures such as `energy`, in picojoules, have their words in `tpusim.result.vocabulary.figures`.

    Attributes:
        technology: name of the technology.
        parts: picojoules by their use; they add up to `energy`.
        counts: events that take energy and have no figure of their own, by name.
    """

    technology: str
    energy: Amount
    energy_delay: Amount
    tops_per_watt: Amount
    parts: Mapping[str, Amount]
    counts: Mapping[str, Count]


def energy_use(
    technology: str, parts: Mapping[str, float], counts: Mapping[str, int], macs: int, seconds: float
) -> EnergyUse:
    """Return the record of `parts` in picojoules, where a machine does `macs` multiplications in `seconds`."""
    energy = sum(parts.values())
    # 10^12 operations a joule are as many a picojoule.
    return EnergyUse(technology, energy, energy * seconds, 2 * macs / energy if energy else 0.0, parts, counts)


STALL_CAUSES = ("starved", "blocked", "waiting_weights", "port_stall", "bank_conflict", "vector_work", "conversion")
"""The reasons why the array stood still; `tpusim.result.vocabulary.states` says what each means."""

_WHERE_ANY = ("layers_left", "not_timed", "not_known", "reference_only", "sizes", "changes", "hbm_use", "narrow",
    "step",
)  # fmt: skip
"""Fields that the JSON of a result has only where they are not empty."""

_OF_LAYERS_WHERE_ANY = ("own", "riders", "phase")
"""Fields that the JSON of a layer has only where they are not empty."""

_OF_LAYERS_ALONE = (
    "name", "op", "multi_tile", "blocking", "lowering", "first_mismatch", "inputs", "own", "apart", "residency",
    "riders", "phase",
)  # fmt: skip
"""Fields that the JSON of a total leaves out."""

_ASKED_TOO = ("dtype", "sums", "seal")
"""Optional inputs of a run, and the seal; the JSON has them before the outcome."""


def _before(place: str, moved: Sequence[str], held: Mapping[str, Any]) -> dict[str, Any]:
    """Return `held` with the fields in `moved` right ahead of the field `place`."""
    names = [name for name in held if name not in moved]
    names[names.index(place) : names.index(place)] = moved
    return {name: held[name] for name in names}


Tellable = TypeVar("Tellable")


def told(figure: Tellable | None) -> Tellable:
    """Return a figure that every result of a TPU has. Raises InputError for a result of another family, which has
    none.
    """
    if figure is None:
        raise InputError("the result is not of a TPU, and does not tell of passes, blocks and vector memories")
    return figure


@dataclass(frozen=True)
class VectorMemoryUse:
    """The use of the vector memories. Accesses are words, and bytes are bytes, summed over all lanes.

    Figures have their words in `tpusim.result.vocabulary.figures`.

    Attributes:
        ifmap_bytes: bytes of the vector memories that the ifmap takes, at most.
    """

    reads: Count
    writes: Count
    port_idle_ratio: Amount
    peak_bytes: Count
    ifmap_bytes: Count


@dataclass(frozen=True)
class DramUse:
    """The work of the DRAM, where HBM is modelled with its banks.

    Figures have their words in `tpusim.result.vocabulary.figures`. Transfers ask for `hbm_asked_bytes`, and the DRAM
    reads
    and writes whole bursts. A request for a burst that is still pending is served with it; `hbm_moved_bytes` counts the
    bursts that are left. In results of an earlier version, the bytes asked for are None.
    """

    hbm_asked_bytes: Count | None = field(default=None, kw_only=True)
    hbm_moved_bytes: Count
    hbm_wanted_bytes: Count
    hbm_overfetch: Amount
    hbm_reached_bytes_per_s: Amount
    row_hits: Count
    row_misses: Count
    row_conflicts: Count
    refreshes: Count
    channel_imbalance: Amount


@dataclass(frozen=True)
class Blocking:
    """The blocks, folds and strips that the lowering cut a layer into.

    Attributes:
        rows: rows of outputs of a block (of a strip).
        cols: columns of outputs of a block (of a strip).
        images: images of a block.
        blocks: blocks of the layer.
        row_folds: groups of rows of the filter matrix, each of which fills the array from top to bottom.
        col_folds: groups of output channels, each of which fills the array from side to side.
        loop_order: which loop is outside: over blocks of outputs, or over filters.
        word_fill: elements of a word that are in use.
        strips: parts of the map whose elements share a word.
        chunks: parts of the reduction; each is filled, used and replaced while the partial sums stay.
    """

    rows: Count
    cols: Count
    images: Count
    blocks: Count
    row_folds: Count
    col_folds: Count
    loop_order: str
    word_fill: Count
    strips: Count
    chunks: Count = 1


@dataclass(frozen=True)
class Mismatch:
    """The first wrong element of a layer.

    Attributes:
        index: coordinates of the element.
        axes: names of these coordinates.
        expected: value by the reference.
        actual: value that the machine made; null where none was written.
        tensor: tensor that the element is of.
        bound: proven bound of the difference; 0 where values must be equal.
    """

    index: tuple[Count, ...]
    axes: tuple[str, ...]
    expected: Element
    actual: Element | None
    tensor: str = "ofmap"
    bound: Amount = 0.0

    def __str__(self) -> str:
        where = ", ".join(f"{axis}={i}" for axis, i in zip(self.axes, self.index, strict=True))
        digits, within = (".9g", f" within {self.bound:.2g}") if self.bound else ("g", "")
        found = "was never written" if self.actual is None else f"is {self.actual:{digits}}"
        return f"{self.tensor}[{where}] {found}, expected {self.expected:{digits}}{within}"


@dataclass(frozen=True)
class WordRange:
    """A range of words of the vector memories.

    Attributes:
        first: first word.
        words: words of each lane.
        lanes: lanes in which the range lies.
    """

    first: Count
    words: Count
    lanes: Count


@dataclass(frozen=True)
class Residency:
    """The places of a layer's words, where tensors stay on the chip between layers.

    Attributes:
        own: words that the layer needs while it runs.
        outcome: words in which its results stay; null where they do not.
        readers: layers that read the results there; the last of them frees the words.
        spilled: whether results that stay go to HBM as well.
    """

    own: WordRange
    outcome: WordRange | None = None
    readers: tuple[str, ...] = ()
    spilled: bool = False


@dataclass(frozen=True)
class HbmContents:
    """What the machine's HBM has to hold for a network, where the machine's file says how much it holds.

    Parts are weights, inputs and outputs, caches, and maps between layers and weights gathered from other chips, the
    most of them while the layer or collective `at` runs.

    Attributes:
        capacity_bytes: bytes that HBM holds.
        need_bytes: bytes that the network needs, in the tiles of the machine; they include padding.
        unpadded_bytes: bytes that it would need without padding.
        at: layer or collective while which the maps between layers and gathered weights are the most.
        parts: bytes of each part of the need.
        unpadded_parts: bytes of each part without padding.
    """

    capacity_bytes: Count
    need_bytes: Count
    unpadded_bytes: Count
    at: str
    parts: Mapping[str, Count]
    unpadded_parts: Mapping[str, Count]


@dataclass(frozen=True)
class CollectiveResult:
    """What chips exchange in a step. Cycles are those of a chip's clock, from the start of the step.

    Attributes:
        name: name of the collective in the network.
        op: all_reduce, all_gather, reduce_scatter, all_to_all or permute; offload or reload, to the host and back.
        bytes: bytes of a chip before it; of an all_gather those after it.
        axes: axes of the mesh along which chips take part.
        algorithm: name of the algorithm that the compiler takes.
        cycles: cycles that it takes.
        hbm_cycles: cycles in which it uses HBM.
        start: cycle in which it begins.
        end: cycle in which it is done.
        exposed_cycles: cycles of it in which no layer runs, as the chip waits for it.
        times: times that it takes place in a step, of which `start` and `end` are the first: of a pipeline, once a
            microbatch.
    """

    name: str
    op: str
    bytes: Count
    axes: tuple[str, ...]
    algorithm: str
    cycles: Count
    hbm_cycles: Count
    start: Count
    end: Count
    exposed_cycles: Count
    times: Count = 1

    @property
    def hidden_cycles(self) -> int:
        """Cycles of it in which layers run, or the chip waits for another."""
        return self.cycles - self.exposed_cycles


@dataclass(frozen=True)
class StageResult:
    """A stage of a pipeline, and its turns with microbatches. Cycles are those of a chip's clock.

    Attributes:
        layers: layers that it has.
        forward_cycles: cycles of a turn forward.
        backward_cycles: cycles of a turn back; 0 where there is none.
        update_cycles: cycles of its updates, once a step.
        ahead_cycles: cycles in which what a turn makes goes to the next stage.
        back_cycles: cycles in which gradients go to the stage ahead.
        bubble_cycles: cycles of the step in which it has nothing to do.
        held: microbatches of which it keeps values for the way back, at most.
    """

    layers: Count
    forward_cycles: Count
    backward_cycles: Count
    update_cycles: Count
    ahead_cycles: Count
    back_cycles: Count
    bubble_cycles: Count
    held: Count


@dataclass(frozen=True)
class StepResult:
    """A step of a network that several chips share: layers of a chip, and collectives beside them.

    Attributes:
        slice: slice of the chips, with what was set of it.
        about: the slice in words.
        chips: chips that share the network.
        mesh: axes along which they share it, each with its chips.
        cycles: cycles of a chip's clock until all is done.
        seconds: seconds until then.
        parts: cycles by what the chip does: compute, hbm, launches, shared_hbm, links, dcn, host, bubble; they add up
            to `cycles`.
        collectives: what chips exchange, in order.
        items: what is made in a step: images, or tokens where the network has them.
        items_per_second: how many of them all chips make in a second.
        items_per_second_chip: how many a chip makes.
        stages: the stages of a pipeline, in order; `parts` and `collectives` are of the one that is busy longest.
        microbatches: parts of a batch that go through them.
        layer_starts: cycle in which each layer begins, in order; none of a pipeline, whose layers come again and again.
        layer_ends: cycle in which each is done.
    """

    slice: str
    about: str
    chips: Count
    mesh: Mapping[str, Count]
    cycles: Count
    seconds: Amount
    parts: Mapping[str, Count]
    collectives: tuple[CollectiveResult, ...]
    items: str
    items_per_second: Amount
    items_per_second_chip: Amount
    stages: tuple[StageResult, ...] = ()
    microbatches: Count = 1
    layer_starts: tuple[Count, ...] = ()
    layer_ends: tuple[Count, ...] = ()

    @property
    def exposed_cycles(self) -> int:
        """Cycles in which the chip waits for collectives."""
        return sum(each.times * each.exposed_cycles for each in self.collectives)


@dataclass(frozen=True)
class LayerResult:
    """The outcome of a layer. Cycles are clock cycles.

    Figures such as `macs` and `cycles` have their words in `tpusim.result.vocabulary.figures`. Those of a TPU alone,
    such as passes and vector memories, are None of a machine of another family.

    Attributes:
        name: name of the layer in its network.
        op: kind of operation, as workload files name it.
        multi_tile: taps that a pass stacks, at most.
        stall_cycles: cycles that the array stands still, by cause; the glossary says what each cause means.
        vector_memory: how the vector memories were used; null where the machine has none.
        outputs: elements of the ofmap.
        outputs_checked: elements of the ofmap that were held against the reference.
        outputs_mismatched: elements of the ofmap that are wrong.
        units: cycles of every unit by what they go to; those of a unit add up to `cycles`.
        blocking: how the lowering cut the layer up; null where the machine has no such blocks.
        lowering: lowering that the layer's Program is from, also where the run asked for `auto`.
        first_mismatch: first wrong element; null where none is.
        intermediates_checked: elements of tensors written to HBM and read again that were held against the reference.
        intermediates_mismatched: elements of those tensors that are wrong.
        dram: what the DRAM did; null where HBM is a pipe.
        energy_use: energy that was taken; null where the run had no technology.
        error_share: largest error of an output over its proven bound, among outputs that had to be worked out to tell
            that they are right; null where there are none, or where outputs must be equal.
        inputs: layers, and inputs of the network, that the layer reads, where its file says so.
        own: figures that only the machine's family tells, by name; left out of the JSON where there are none.
        launch_cycles: cycles in which the layer is launched, and nothing else goes on; 0 for layers that are launched
            with the one ahead. They count as stalls, of a TPU's array as `starved`.
        hidden_cycles: cycles by which the layer takes fewer than alone, as it overlaps with others; below zero where it
            takes more.
        apart: why the layer does not overlap with the one ahead, where layers are to.
        hbm_saved_bytes: bytes that the layer moves fewer than alone, as results stay on the chip.
        residency: where the layer has its words; null where nothing stays on the chip.
        riders: layers that ride on its results, in order; left out of the JSON where there are none.
        phase: phase of a training step that the layer is of: forward, backward or update; left out of the JSON of other
            runs.
    """

    name: str
    op: str
    macs: Count
    passes: Count | None
    multi_tile: Count | None
    cycles: Count
    time_us: Amount
    ideal_cycles: Count
    pe_utilization: Amount
    mapping_efficiency: Amount | None
    tflops: Amount
    stall_cycles: Mapping[str, Count]
    hbm_read_bytes: Count
    hbm_write_bytes: Count
    vector_memory: VectorMemoryUse | None
    outputs: Count
    outputs_checked: Count
    outputs_mismatched: Count
    units: Mapping[str, Mapping[str, Count]]
    blocking: Blocking | None
    lowering: str = ""
    first_mismatch: Mismatch | None = None
    intermediates_checked: Count = 0
    intermediates_mismatched: Count = 0
    lowered_bytes: Count = 0
    transformation_cycles: Count = 0
    transformation_share: Amount = 0.0
    dram: DramUse | None = None
    energy_use: EnergyUse | None = None
    error_share: Amount | None = None
    inputs: tuple[str, ...] = ()
    own: Mapping[str, Count | Amount | str] = field(default_factory=dict)
    launch_cycles: Count = 0
    hidden_cycles: Difference = 0
    apart: str = ""
    hbm_saved_bytes: Count = 0
    residency: Residency | None = None
    riders: tuple[str, ...] = ()
    phase: str = ""

    def called(self, name: str, inputs: tuple[str, ...], riders: tuple[str, ...], phase: str) -> LayerResult:
        """Return the figures as those of another layer of the kind, which share them."""
        made = object.__new__(LayerResult)
        vars(made).update(vars(self), name=name, inputs=inputs, riders=riders, phase=phase)
        return made

    @property
    def wrong(self) -> int:
        """Number of elements that differ from the reference."""
        return self.outputs_mismatched + self.intermediates_mismatched


@dataclass(frozen=True, kw_only=True)
class Total(LayerResult):
    """The layers run one after another, as if they were one: sums, ratios of sums, the largest `error_share`.

    Fields of single layers have no meaning in a total, and its JSON leaves them out.

    Attributes:
        wall_seconds: seconds that the simulation took on this computer.
    """

    name: str = "total"
    op: str = ""
    multi_tile: Count | None = None
    blocking: Blocking | None = None
    wall_seconds: Amount


@dataclass(frozen=True)
class Result:
    """A whole run: its complete inputs, the totals and the layers in network order.

    Attributes:
        tpusim: version of tpusim that made the result.
        hardware: machine, complete, as files write it.
        workload: name of the network.
        batch: images at a time.
        lowering: lowering that the run asked for.
        engine: interpreter that kept time: event, simpy, register or both.
        seed: seed of the random operands.
        total: all layers together.
        layers: each layer, in network order.
        layers_left: layers that were not simulated, as the run was interrupted; left out of the JSON where there are
            none.
        not_timed: ops of the network that take no time here, by name and count; left out of the JSON where there are
            none.
        not_known: ops of the network that tpusim does not know, by name and count; left out of the JSON where there are
            none.
        sizes: sizes that the workload names, such as the length of a sequence; left out of the JSON where there are
            none.
        dtype: what operands are: integers, f32, bf16, f16, f8 or int8.
        sums: order in which the data path added: any, or that of the array.
        reference_only: ops whose values the reference alone worked out, by name and count; left out of the JSON where
            there are none.
        chips: chips that share the network, whose part of one was run; left out of the JSON where it is 1.
        changes: fields of the machine that were set beside its file, by path, as they were written; left out of the
            JSON where there are none.
        narrow: number of layers whose second factors HBM has narrower than they are computed, by type; left out of the
            JSON where there are none.
        hbm_use: what HBM has to hold; left out of the JSON where the machine's file does not say how much it holds.
        step: the step of a network that several chips share, layers and collectives together; left out of the JSON of
            other networks, and of runs that were interrupted.
        seal: what `seal_of` made of the result when its file was written; empty of a result that no file is of.

    Examples:
        >>> import tpusim
        >>> result = tpusim.simulate(tpusim.load_workload("tiny", batch=2), tpusim.load_hardware("tiny_4x4"))
        >>> result.correct, result.total.cycles == sum(layer.cycles for layer in result.layers)
        (True, True)
        >>> [layer.name for layer in result.layers]
        ['fig10', 'fig11', 'two_passes']
    """

    tpusim: str
    hardware: Mapping[str, Any]
    workload: str
    batch: Count
    lowering: str
    engine: str
    seed: Count
    total: Total
    layers: tuple[LayerResult, ...]
    layers_left: Count = 0
    not_timed: Mapping[str, Count] = field(default_factory=dict)
    not_known: Mapping[str, Count] = field(default_factory=dict)
    sizes: Mapping[str, Count] = field(default_factory=dict)
    dtype: str = "integers"
    sums: str = "any"
    reference_only: Mapping[str, Count] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    chips: Count = 1
    narrow: Mapping[str, Count] = field(default_factory=dict)
    hbm_use: HbmContents | None = None
    step: StepResult | None = None
    seal: str = field(default="", compare=False, repr=False)

    @property
    def machine(self) -> str:
        """The machine's name for people, with what was set: "tpu_v2 with array.size=64"."""
        return with_settings(str(self.hardware.get("name", "unnamed hardware")), self.changes)

    @cached_property
    def kinds(self) -> tuple[LayerResult, ...]:
        """For each layer the first of its kind, all of whose figures it has: only names, of its own and of others,
        and phases differ.
        """
        return tuple(_of_kinds(self.layers))

    @property
    def checked(self) -> bool:
        """Whether every output of every layer was compared with the reference."""
        return self.total.outputs_checked == self.total.outputs

    @property
    def correct(self) -> bool | None:
        """Whether no checked output was wrong; None where nothing was checked, as with `check=False`."""
        return self.total.wrong == 0 if self.total.outputs_checked else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON."""
        return {**self._without_layers(), "layers": [*map(_layer_dict, self.layers)]}

    def _without_layers(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, with no layers in the place of the layers."""
        held = _before("total", _ASKED_TOO, asdict(replace(self, layers=(), seal=seal_of(self))))
        made = {name: value for name, value in held.items() if value or name not in _WHERE_ANY}
        total = {name: value for name, value in made["total"].items() if name not in _OF_LAYERS_ALONE}
        made["total"] = _before("intermediates_checked", ("wall_seconds",), total)
        if self.chips == 1:
            del made["chips"]
        untimed = 1 if self.step else self.chips
        notes = part_notes(untimed, self.hardware.get("name"), cores_of_its_chip(self.hardware))
        told = {"checked": self.checked, "correct": self.correct, **({"notes": notes} if notes else {})}
        uses = {"by_op": by_op(self.layers), "by_phase": by_phase(self.layers)}
        parts = {name: {kind: asdict(use) for kind, use in of.items()} for name, of in uses.items() if of}
        return {**made, **told, **parts}

    def to_json(self) -> str:
        """Return the result JSON of the contract, indented, keys in a fixed order."""
        texts = {name: _indented(value, 1) for name, value in self._without_layers().items()}
        if self.layers:
            texts["layers"] = "[" + ",".join(f"\n    {text}" for text in _layer_texts(self)) + "\n  ]"
        return _joined(texts, 0)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame, a row a layer, a column a field: those of a sweep's layers.csv, and more.

        Raises:
            InputError: pandas is not installed; says how to install it.
        """
        from tpusim.result.notebook import frame_of

        return frame_of(self)

    def __repr__(self) -> str:
        """Return a line, as `print` shows it; every figure is in `to_json()`."""
        run = f"{self.workload}, batch {self.batch}, on {self.machine}: {counted(len(self.layers), 'layer')}"
        took = f"{self.total.cycles:,} cycles, {self.total.time_us:,.1f} us"
        return f"<Result of {run}, {took}; to_json(), to_frame(), total and layers tell more>"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        from tpusim.result.notebook import html_of

        return html_of(self)


# ---- the seal: what was asked, and what stands in no sum

_SEAL = "1:"
"""Ahead of a seal: what it is made of. Others are of other versions, and are not compared."""
_SEALED = ("tpusim", "hardware", "workload", "batch", "lowering", "engine", "seed", "sizes", "dtype", "sums", "chips")
_SEALED_OF_LAYERS = attrgetter("name", "op", "macs", "cycles", "multi_tile", "lowering", "inputs", "phase", "blocking")


def seal_of(result: Result) -> str:
    """Return a short text that differs for a result of another machine, batch or layers: whoever edits a file of a
    result changes what nothing else in it tells of.
    """
    asked = json.dumps([getattr(result, name) for name in _SEALED], sort_keys=True)
    digest = sha256(asked.encode())
    for layer in result.layers:
        digest.update(repr(_SEALED_OF_LAYERS(layer)).encode())
    if step := result.step:
        digest.update(repr((step.slice, sorted(step.mesh.items()), step.cycles, step.collectives)).encode())
    return f"{_SEAL}{digest.hexdigest()[:16]}"


def unsealed(result: Result) -> bool:
    """Return whether a result differs from what its file was written with, as its seal tells."""
    return result.seal.startswith(_SEAL) and result.seal != seal_of(result)


# ---- JSON, indented as by `json.dumps(..., indent=2)`

_OF_ONE_LAYER = ("name", "inputs", "riders", "phase")
"""Fields in which layers of a kind differ: one shape and one lowering, with all that follows from them."""


def _layer_dict(layer: LayerResult) -> dict[str, Any]:
    held = asdict(layer)
    return {name: held[name] for name in held if held[name] or name not in _OF_LAYERS_WHERE_ANY}


def _of_kinds(layers: Iterable[LayerResult]) -> Iterator[LayerResult]:
    """Yield for each layer the first of its kind."""
    figures = attrgetter(*(each.name for each in fields(LayerResult) if each.name not in _OF_ONE_LAYER))
    known: defaultdict[Hashable, list[tuple[object, LayerResult]]] = defaultdict(list)
    for layer in layers:
        kind, alike = figures(layer), known[layer.op, layer.cycles]
        first = next((first for own, first in alike if own == kind), None)
        if first is None:
            alike.append((kind, layer))
        yield first or layer


def _layer_texts(result: Result) -> Iterator[str]:
    """Yield the JSON of each layer; what layers of a kind share is written once, around what each has of its own."""
    known: dict[tuple[int, ...], list[str]] = {}
    for layer, first in zip(result.layers, result.kinds, strict=True):
        own = {name: value for name in _OF_ONE_LAYER
               if (value := getattr(layer, name)) or name not in _OF_LAYERS_WHERE_ANY}  # fmt: skip
        if (key := (id(first), len(layer.riders) > 0, len(layer.phase) > 0)) not in known:
            texts = {name: _OWN if name in own else _indented(value, 3) for name, value in _layer_dict(layer).items()}
            known[key] = _joined(texts, 2).split(_OWN)
        opening, *behind = known[key]
        said = (_ENCODER.encode(value) if isinstance(value, str) else _listed(value) for value in own.values())
        yield opening + "".join(map(add, said, behind))


_OWN = "\0"
"""The place of what a layer has of its own; JSON has no such character."""


def _listed(names: Iterable[str]) -> str:
    """Return a list of names as the JSON of a layer has it."""
    texts = ",".join(f"\n        {_ENCODER.encode(name)}" for name in names)
    return f"[{texts}\n      ]" if texts else "[]"


_ENCODER = json.JSONEncoder(indent=2)


def _indented(value: object, depth: int) -> str:
    return _ENCODER.encode(value).replace("\n", "\n" + "  " * depth)


def _joined(texts: Mapping[str, str], depth: int) -> str:
    """Return a JSON object of keys and the texts of their values."""
    ahead = "\n" + "  " * depth
    return "{" + ",".join(f'{ahead}  "{key}": {text}' for key, text in texts.items()) + ahead + "}"


@dataclass(frozen=True)
class OpUse:
    """The layers of one op together, or of one phase of a training step.

    Attributes:
        layers: layers of the op, or phase.
        cycles: cycles that they take together.
        time_us: microseconds that they take together.
        share: share of the cycles of all layers.
    """

    layers: int
    cycles: int
    time_us: float
    share: float


def by_op(layers: Sequence[LayerResult]) -> dict[str, OpUse]:
    """Return where the time of a run goes by the kind of op, the costliest op first."""
    uses = _uses(layers, [layer.op for layer in layers])
    return dict(sorted(uses.items(), key=lambda each: -each[1].cycles))


def by_phase(layers: Sequence[LayerResult]) -> dict[str, OpUse]:
    """Return where the time of a training step goes, phase by phase; nothing for other runs."""
    return _uses(layers, [layer.phase for layer in layers]) if any(layer.phase for layer in layers) else {}


def _uses(layers: Sequence[LayerResult], kinds: Sequence[str]) -> dict[str, OpUse]:
    run, uses = sum(layer.cycles for layer in layers), {}
    for kind in dict.fromkeys(kinds):
        alike = [layer for layer, own in zip(layers, kinds, strict=True) if own == kind]
        cycles, time_us = sum(layer.cycles for layer in alike), sum(layer.time_us for layer in alike)
        uses[kind] = OpUse(len(alike), cycles, time_us, cycles / run)
    return uses


# ---- the totals of a run, over all its layers

_ADDED = (
    "macs", "cycles", "time_us", "ideal_cycles", "hbm_read_bytes", "hbm_write_bytes", "outputs",
    "outputs_checked", "outputs_mismatched", "intermediates_checked", "intermediates_mismatched", "lowered_bytes",
    "transformation_cycles", "launch_cycles", "hidden_cycles", "hbm_saved_bytes",
)  # fmt: skip
"""The figures that a total sums up."""


def total_of(layers: tuple[LayerResult, ...], wall_seconds: float) -> Total:
    """Add the layers up. Ratios are weighted: by cycles, or by passes for the mapping efficiency."""
    sums: dict[str, Any] = {name: sum(getattr(layer, name) for layer in layers) for name in _ADDED}
    units = dict.fromkeys(unit for layer in layers for unit in layer.units)
    weighted = [(each.mapping_efficiency, each.passes) for each in layers]
    mapped = [(efficiency, passes) for efficiency, passes in weighted if efficiency is not None and passes is not None]
    uses, spent = [layer.energy_use for layer in layers if layer.energy_use], None
    # Older results have no energy, and a sum without some of the layers would mislead.
    if len(uses) == len(layers):
        parts = {key: sum(use.parts[key] for use in uses) for key in uses[0].parts}
        counts = _sum_maps(use.counts for use in uses)
        spent = energy_use(uses[0].technology, parts, counts, sums["macs"], sums["time_us"] / 1e6)
    return Total(
        **sums,
        passes=sum(passes for _, passes in mapped) if mapped else None,
        mapping_efficiency=_mean(mapped) if mapped else None,
        vector_memory=_memory_total([(each.vector_memory, each.cycles) for each in layers if each.vector_memory]),
        pe_utilization=_mean((layer.pe_utilization, layer.cycles) for layer in layers),
        transformation_share=_mean((layer.transformation_share, layer.cycles) for layer in layers),
        tflops=2 * sums["macs"] / (sums["time_us"] * 1e6) if sums["time_us"] else 0.0,
        stall_cycles=_sum_maps(layer.stall_cycles for layer in layers),
        # A unit that a layer does not use is idle for all its cycles, so that every unit's account adds up to the
        # total.
        units={unit: _sum_maps(each.units.get(unit, {"idle": each.cycles}) for each in layers) for unit in units},
        dram=_dram_total([layer.dram for layer in layers if layer.dram]),
        energy_use=spent,
        error_share=max((layer.error_share for layer in layers if layer.error_share is not None), default=None),
        wall_seconds=wall_seconds,
    )


def _memory_total(uses: Sequence[tuple[VectorMemoryUse, int]]) -> VectorMemoryUse | None:
    """Return sums and peaks; ports by cycles. None where no layer has any."""
    if not uses:
        return None
    memories = [use for use, _ in uses]
    return VectorMemoryUse(
        reads=sum(memory.reads for memory in memories),
        writes=sum(memory.writes for memory in memories),
        port_idle_ratio=_mean((memory.port_idle_ratio, cycles) for memory, cycles in uses),
        peak_bytes=max(memory.peak_bytes for memory in memories),
        ifmap_bytes=max(memory.ifmap_bytes for memory in memories),
    )


def _dram_total(uses: Sequence[DramUse]) -> DramUse | None:
    """Return sums; rates by the bytes moved. None where no layer has any."""
    if not uses:
        return None
    others = ("row_hits", "row_misses", "row_conflicts", "refreshes")
    sums = {name: sum(getattr(use, name) for use in uses) for name in ("hbm_moved_bytes", "hbm_wanted_bytes", *others)}
    asked = [use.hbm_asked_bytes for use in uses if use.hbm_asked_bytes is not None]
    # The mean rate is all bytes over all time, not the mean of the rates.
    seconds = sum(use.hbm_moved_bytes / use.hbm_reached_bytes_per_s for use in uses if use.hbm_reached_bytes_per_s)
    return DramUse(
        **sums,
        hbm_asked_bytes=sum(asked) if len(asked) == len(uses) else None,
        hbm_overfetch=sums["hbm_moved_bytes"] / max(1, sums["hbm_wanted_bytes"]),
        hbm_reached_bytes_per_s=sums["hbm_moved_bytes"] / seconds if seconds else 0.0,
        channel_imbalance=_mean((use.channel_imbalance, use.hbm_moved_bytes) for use in uses),
    )


def _mean(weighted: Iterable[tuple[float, int]]) -> float:
    pairs = list(weighted)
    weight = sum(w for _, w in pairs)
    return sum(value * w for value, w in pairs) / weight if weight else 0.0


def _sum_maps(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return sums by key; a map that layers of a kind share is added once, as often as it comes."""
    every = [*maps]
    counts, total = Counter(map(id, every)), dict[str, int]()
    for each in {id(each): each for each in every}.values():
        for key, value in each.items():
            total[key] = total.get(key, 0) + value * counts[id(each)]
    return total
