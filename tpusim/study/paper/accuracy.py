"""Fig. 13, 14b and 15: our errors against reference numbers, on microbenchmarks and on networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Any

from tpusim.machines.family import load_hardware
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.workload_file import load_workload
from tpusim.study.paper.claims import AGAINST, COUNTED, ESTIMATED, Finding
from tpusim.study.paper.exhibit import (
    AskedPoints,
    BarChart,
    Curves,
    Errors,
    ExhibitFigures,
    FoundPoints,
    Making,
    Pairs,
    Parity,
    point_of,
)
from tpusim.study.paper.layers import SEVEN
from tpusim.study.sweep.points import Point
from tpusim.study.validation.cases import Case, rows
from tpusim.study.validation.comparison import of_type
from tpusim.study.validation.sets import number_sets

_TABLE_2 = "tpu_v2"
_BATCH = 8
_OWN = "the machine fitted to that word"
_PLAIN = "tpu_v2, nothing fitted"

Chosen = Callable[[Case], bool]


def every(_: Case) -> bool:
    """Return all cases."""
    return True


def unseen(case: Case) -> bool:
    """Whether a case is in the half of its set that no number was fitted on."""
    return not case.fitted


def thick(case: Case) -> bool:
    """Whether a case is a convolution of 128 input channels or more, which leaves nothing to stack."""
    return convolution(case).in_channels >= _LANES


def convolution(case: Case) -> Conv2d:
    """The only layer of a case."""
    (layer,) = case.layers
    assert isinstance(layer, Conv2d)
    return layer


@dataclass(frozen=True)
class HeldCases:
    """Cases of some sets of one word that a machine is held against: the sets' own machines, or `machine`."""

    sets: tuple[str, ...]
    machine: str | None = None
    chosen: Chosen = every

    @property
    def cases(self) -> list[tuple[str, Case]]:
        """Cases, each with its set."""
        return [(name, case) for name in self.sets for case in number_sets()[name].cases if self.chosen(case)]

    @property
    def word(self) -> str:
        """Origin of the sets' numbers: measured, scheduled or estimated."""
        return number_sets()[self.sets[0]].status

    @property
    def groups(self) -> dict[tuple[Any, ...], list[tuple[int, Case]]]:
        """Indices and cases of each set, batch, type and change of the machine, which make a point."""
        groups: dict[tuple[Any, ...], list[tuple[int, Case]]] = defaultdict(list)
        for place, (name, case) in enumerate(self.cases):
            groups[name, self.machine, case.batch, case.dtype, *case.changes].append((place, case))
        return groups

    @property
    def asked(self) -> AskedPoints:
        """A point for each group, whose layers are named by the indices of their cases, since a workload has each name
        once.
        """
        points: dict[Any, Point] = {}
        for key, cases in self.groups.items():
            numbers, (_, first) = number_sets()[key[0]], cases[0]
            changes = () if self.machine else (*numbers.changes, *first.changes)
            hardware = of_type(load_hardware(self.machine or numbers.hardware, changes), first.dtype)
            layers = [
                replace(layer, name=f"{place} {index}")
                for place, case in cases
                for index, layer in enumerate(case.layers)
            ]
            points[key] = point_of(numbers.name, layers, hardware, first.batch)
        return points

    def pairs(self, found: FoundPoints) -> Pairs:
        """Pairs of the reference's and our cycles."""
        taken = [0.0] * len(self.cases)
        for key in self.groups:
            for row in found[key].layers:
                taken[int(str(row["name"]).partition(" ")[0])] += float(row["cycles"])
        return [(case.theirs, ours) for (_, case), ours in zip(self.cases, taken, strict=True)]

    def errors(self, found: FoundPoints) -> list[float]:
        """Error of each case, in percent of the reference."""
        return [100 * (ours / theirs - 1) for theirs, ours in self.pairs(found)]

    def mean_error(self, found: FoundPoints, when: str, chosen: Chosen = every) -> Finding:
        """Mean absolute error of some cases."""
        errors = zip(self.cases, self.errors(found), strict=True)
        mean = fmean(abs(error) for (_, case), error in errors if chosen(case))
        return Finding(when, mean, AGAINST.format(word=self.word))

    def total_error(self, found: FoundPoints, when: str) -> Finding:
        """Error of the sum of all cases, in percent."""
        theirs, ours = (sum(each) for each in zip(*self.pairs(found), strict=True))
        return Finding(when, 100 * (ours / theirs - 1), AGAINST.format(word=self.word))


def _asked(held: Iterable[HeldCases]) -> dict[Any, Point]:
    """Points of several held cases."""
    return {key: point for each in held for key, point in each.asked.items()}


# ---- Fig. 13


def products() -> Making:
    """Fig. 13a: all products, on both machines."""
    own, plain = HeldCases(("gemm",)), HeldCases(("gemm",), _TABLE_2)
    found = yield _asked((own, plain))
    clouds = {_OWN: own.pairs(found), _PLAIN: plain.pairs(found)}
    findings = [
        own.mean_error(found, _OWN),
        own.mean_error(found, "the half of them on which nothing was fitted", unseen),
        plain.mean_error(found, _PLAIN),
    ]
    return ExhibitFigures([Parity("products", clouds, own.word)], {"gemm_error": findings})


def convolutions() -> Making:
    """Fig. 13b: convolutions of 128 channels and more; and what was measured on TPU v3."""
    own, plain = HeldCases(("micro",), chosen=thick), HeldCases(("micro",), _TABLE_2, thick)
    code = HeldCases(("scheduled_1x1", "scheduled_3x3", "scheduled_large"), chosen=thick)
    usual, odd = HeldCases(("v3",)), HeldCases(("v3_odd",))
    found = yield _asked((own, plain, code, usual, odd))
    estimated = {_OWN: own.pairs(found), _PLAIN: plain.pairs(found)}
    views = [
        Parity("convolutions, 128 channels and more", estimated, own.word),
        Parity("the code emitted for such", {_OWN: code.pairs(found)}, code.word),
    ]
    findings = [
        own.mean_error(found, _OWN),
        own.mean_error(found, "the half of them on which nothing was fitted", unseen),
        plain.mean_error(found, _PLAIN),
        code.mean_error(found, "emitted code"),
    ]
    measured = [
        usual.mean_error(found, "seven products and convolutions of TPU v3"),
        odd.mean_error(found, "a layer of TPU v3 that stands apart"),
    ]
    return ExhibitFigures(views, {"conv_error": findings, "measured_error": measured})


# ---- Fig. 14b

_LANES = 128
_MOST_WAYS = 3
_RULE, _STACKED = "by the rule", "with filter rows stacked too"


def stacked_taps() -> Making:
    """Fig. 14b: 3x3 layers of stride 1 whose channels are fewer than the rows of the array.

    They are timed with one to three taps a pass, by the paper's rule, and on the machine that follows the estimates,
    and compared with the compiler's estimates.
    """
    cases = [
        case
        for case in number_sets()["micro"].cases
        if case.name.endswith("3x3/1") and convolution(case).in_channels < _LANES
    ]
    layers = [convolution(case) for case in cases]
    numbers = [*range(1, _MOST_WAYS + 1)]
    changes = {each: [f"mapping.multi_tile={each}"] for each in numbers}
    ways = {**changes, _RULE: ["mapping.multi_tile=auto"], _STACKED: []}
    machines = {way: load_hardware("tpu_v2_estimator", changed) for way, changed in ways.items()}
    machines[_PLAIN] = load_hardware(_TABLE_2)
    found = yield {way: point_of("fig_14b", layers, machine) for way, machine in machines.items()}
    ours = {way: found[way].each("cycles") for way in machines}
    errors = {
        way: [abs(own / case.theirs - 1) for own, case in zip(cycles, cases, strict=True)]
        for way, cycles in ours.items()
    }

    lines = {"estimated": [case.theirs for case in cases], "the paper's rule": ours[_RULE]}
    lines["filter rows stacked too"] = ours[_STACKED]
    word = AGAINST.format(word=ESTIMATED)
    half = [100 * error for each, error in zip(layers, errors[_RULE], strict=True) if each.in_channels == _LANES // 2]
    means = {_RULE: _RULE, f"{_RULE}, on tpu_v2, to which nothing was fitted": _PLAIN, _STACKED: _STACKED}
    off = [Finding(when, 100 * fmean(errors[way]), word) for when, way in means.items()]
    off.append(Finding(f"{_RULE}, 64 channels alone", fmean(half), word))

    # More tiles than fit count as those that fit: among equally close numbers, the fewest.
    best = [min(numbers, key=lambda way: (round(errors[way][place], 3), way)) for place in range(len(cases))]
    hits = [way == min(_LANES // each.in_channels, each.kernel[1]) for way, each in zip(best, layers, strict=True)]
    rule = [Finding("of 1, 2 and 3 tiles, closest to the estimate", 100 * fmean(hits), word)]
    for what, each in _emitted().items():
        rule.append(Finding(f"passes of emitted code, {what}", 100 * fmean(each), COUNTED))
    views = _over_channels(layers, lines, machines[_RULE].clock_hz)
    return ExhibitFigures(views, {"multi_tile_error": off, "multi_tile_rule": rule})


def _over_channels(layers: Sequence[Conv2d], cycles: Mapping[str, Sequence[float]], clock_hz: float) -> list[Curves]:
    """TFLOPS over the input channels, for each size of map with enough of them; `cycles` of the layers by label."""
    rate = [2 * each.macs(_BATCH) * clock_hz / 1e12 for each in layers]
    views = []
    for side in dict.fromkeys(each.in_height for each in layers):
        at = [place for place, each in enumerate(layers) if each.in_height == side]
        if len(at) >= _MOST_WAYS:
            channels = [float(layers[place].in_channels) for place in at]
            tflops = {label: [rate[place] / of[place] for place in at] for label, of in cycles.items()}
            title = f"{side}x{side}, C_I = C_O, 3x3, batch 8"
            views.append(Curves(title, channels, "input channels", tflops, "TFLOPS", doubling=True))
    return views


def _emitted() -> dict[str, list[bool]]:
    """Whether kernels wider than one tap take as many passes in emitted code as by the rule, by their channels."""
    found: dict[str, list[bool]] = {"fewer than 64 channels": [], "64 channels": [], "from 65 to 127": []}
    for row in rows("xla_tpu_v2_scheduled"):
        channels, high, wide = (int(row[key]) for key in ("ci", "kh", "kw"))
        if high * wide == 1 or not 4 < channels < _LANES:
            continue
        passes = high * ceil(wide / min(_LANES // channels, wide))
        kind = [*found][(channels >= _LANES // 2) + (channels > _LANES // 2)]
        found[kind].append(abs(float(row["matmul_pushes_per_output_word"]) - passes) < 0.5)
    return {kind: each for kind, each in found.items() if each}


# ---- Fig. 15

_NETWORKS = {"network_resnet18": "ResNet-18", "network_resnet50": "ResNet", "network_vgg16": "VGG",
             "network_yolov2": "YOLO"}  # fmt: skip
_EMITTED = {"scheduled_resnet50": "ResNet", "scheduled_vgg16": "VGG"}


def networks() -> Making:
    """Fig. 15a: the seven networks on the machine of Table II, and all networks with numbers on their machines."""
    machine = load_hardware(_TABLE_2)
    words = {
        word: {called: HeldCases((name,)) for name, called in sets.items()}
        for word, sets in (("estimated", _NETWORKS), ("scheduled", _EMITTED))
    }
    seven: dict[Any, Point] = {
        called: point_of(name, load_workload(name, _BATCH).layers, machine, _BATCH) for name, called in SEVEN.items()
    }
    found = yield seven | _asked(each for held in words.values() for each in held.values())
    # A dict as an ordered set: the paper's networks first, each once.
    groups = dict.fromkeys((*SEVEN.values(), *_NETWORKS.values()))

    columns = {"tpu_v2, simulated": [found[each].figure("tflops") if each in seven else None for each in groups]}
    for word, held in words.items():
        rates = {called: _tflops(each, found) for called, each in held.items()}
        theirs, ours = ([rates[each][place] if each in rates else None for each in groups] for place in (0, 1))
        columns |= {f"simulated, beside what is {word}": ours, word: theirs}
    findings = [
        each.total_error(found, f"{called}, {word}") for word, held in words.items() for called, each in held.items()
    ]
    bars = BarChart("convolutions and products, batch 8", [*groups], columns, "TFLOPS")
    return ExhibitFigures([bars], {"networks_match": findings})


def _tflops(held: HeldCases, found: FoundPoints) -> tuple[float, float]:
    """TFLOPS of the reference, and ours."""
    macs = sum(layer.macs(case.batch) for _, case in held.cases for layer in case.layers)
    rate = 2 * macs * load_hardware(_TABLE_2).clock_hz / 1e12
    theirs, ours = (sum(each) for each in zip(*held.pairs(found), strict=True))
    return rate / theirs, rate / ours


def layers_of_networks() -> Making:
    """Fig. 15b: distribution of errors over every layer with a number."""
    estimated, scheduled = HeldCases(tuple(_NETWORKS)), HeldCases(tuple(_EMITTED))
    plain = HeldCases(tuple(_NETWORKS), _TABLE_2)
    found = yield _asked((estimated, scheduled, plain))
    series = {f"against what is {held.word}": held.errors(found) for held in (estimated, scheduled)}
    series[f"{_PLAIN}, against what is estimated"] = plain.errors(found)
    findings = [
        estimated.mean_error(found, f"estimated, {_OWN}"),
        scheduled.mean_error(found, f"scheduled, {_OWN}"),
        plain.mean_error(found, f"estimated, {_PLAIN}"),
    ]
    return ExhibitFigures([Errors("layers of networks, batch 8", series)], {"layer_error": findings})
