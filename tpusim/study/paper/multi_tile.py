"""Fig. 14: how many taps a pass stacks."""

from __future__ import annotations

from math import ceil
from statistics import fmean

from tpusim.machines.tpu.description import load_hardware
from tpusim.network.ops.conv2d import Conv2d
from tpusim.study.paper.claim import AGAINST, COUNTED, ESTIMATED, Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.layers import square
from tpusim.study.paper.views import Curves, Series
from tpusim.study.validation.cases import Case
from tpusim.study.validation.sets import number_sets
from tpusim.study.validation.tables import Row, rows

_LAYER = 128, 8, 128, 3
"""W_I, C_I, C_O, W_F of Fig. 14a."""
_TILES = 1, 2, 3, 4, 6, 9
_BEYOND = 3
"""W_F: from here on more tiles are whole filter rows, of which the paper does not speak."""
_MACHINES = "tpu_v2", "tpu_v2_estimator"
_LANES = 128
_MIB = 2**20
_MOST_WAYS = 3
_RULE = "auto"
_OWN = "configured"


# ---- Fig. 14a


def effect_asked() -> Asked:
    """The layer of the figure with every number of tiles."""
    return {
        f"{name} {tiles}": point_of("fig_14a", [square(_LAYER)], load_hardware(name, [f"mapping.multi_tile={tiles}"]))
        for name in _MACHINES
        for tiles in _TILES
    }


def make_effect(found: Found) -> Shown:
    """TFLOPS and workspace over the number of tiles."""
    tflops = {name: [float(found[f"{name} {tiles}"].figures["tflops"]) for tiles in _TILES] for name in _MACHINES}
    space = [float(found[f"tpu_v2 {tiles}"].figures["peak_bytes"]) / _MIB for tiles in _TILES]
    curves = Curves(
        "128x128x8 > 128, 3x3, batch 8", _TILES, "tiles", [Series(each, tflops[each]) for each in _MACHINES], "TFLOPS",
        [Series("workspace", space)], "workspace (MiB)",
    )  # fmt: skip
    return Shown([curves], {"workspace_linear": _linear(space), "diminishing_return": _diminishing(found)})


def _linear(space: list[float]) -> list[Finding]:
    second = space[1] - space[0]
    more = zip(_TILES[2:], space[2:], strict=True)
    return [Finding(f"{tiles} tiles", (used - space[0]) / (tiles - 1) / second) for tiles, used in more]


def _diminishing(found: Found) -> list[Finding]:
    def saved(name: str, first: int, last: int) -> float:
        """Cycles a tile."""
        before, after = (found[f"{name} {tiles}"].cycles for tiles in (first, last))
        return (before - after) / (last - first)

    return [
        Finding(f"{after} tiles, {name}", saved(name, middle, after) / saved(name, before, middle))
        for name in _MACHINES
        for before, middle, after in ((1, 2, _BEYOND), (1, _BEYOND, _TILES[-1]))
    ]


# ---- Fig. 14b


def _layers() -> list[Case]:
    """3x3 layers of stride 1 and fewer channels than rows, with what the compiler estimates."""
    micro = (case for case in number_sets()["micro"].cases if case.name.endswith("3x3/1"))
    return [case for case in micro if _conv(case).in_channels < _LANES]


def _conv(case: Case) -> Conv2d:
    (layer,) = case.layers
    assert isinstance(layer, Conv2d)
    return layer


def _ways() -> dict[str, list[str]]:
    numbers = [str(tiles) for tiles in range(1, _MOST_WAYS + 1)]
    return {each: [f"mapping.multi_tile={each}"] for each in (*numbers, _RULE)} | {_OWN: []}


def strategy_asked() -> Asked:
    """Those layers with one to three tiles, by the rule, and as the machine that follows the estimates has it."""
    layers = [_conv(case) for case in _layers()]
    ways = {way: load_hardware("tpu_v2_estimator", changes) for way, changes in _ways().items()}
    points = {way: point_of("fig_14b", layers, machine) for way, machine in ways.items()}
    return points | {"tpu_v2": point_of("fig_14b", layers, load_hardware("tpu_v2"))}


def make_strategy(found: Found) -> Shown:
    """TFLOPS over the input channels, ours by the rule and the compiler's."""
    cases = _layers()
    machine = load_hardware("tpu_v2_estimator")
    rate = [2 * _conv(case).macs(case.batch) * machine.clock_hz / 1e12 for case in cases]
    theirs = [each / case.theirs for each, case in zip(rate, cases, strict=True)]
    labels = {_RULE: "the paper's rule", _OWN: "filter rows stacked too"}
    views = []
    for side in dict.fromkeys(_conv(case).in_height for case in cases):
        at = [place for place, case in enumerate(cases) if _conv(case).in_height == side]
        channels = [float(_conv(cases[place]).in_channels) for place in at]
        if len(at) < _MOST_WAYS:
            continue
        lines = [Series("estimated", [theirs[place] for place in at])]
        lines += [
            Series(label, [rate[place] / _cycles(found, way)[place] for place in at]) for way, label in labels.items()
        ]
        title = f"{side}x{side}, C_I = C_O, 3x3, batch 8"
        views.append(Curves(title, channels, "input channels", lines, "TFLOPS", doubling=True))
    return Shown(views, {"multi_tile_error": _error(found, cases), "multi_tile_rule": _rule(found, cases)})


def _cycles(found: Found, way: str) -> list[float]:
    return [float(row["cycles"]) for row in found[way].layers]


def _mean_error(found: Found, way: str, cases: list[Case]) -> float:
    pairs = zip(_cycles(found, way), cases, strict=True)
    return 100 * fmean(abs(ours / case.theirs - 1) for ours, case in pairs)


def _error(found: Found, cases: list[Case]) -> list[Finding]:
    word = AGAINST.format(word=ESTIMATED)
    half = [place for place, case in enumerate(cases) if _conv(case).in_channels == _LANES // 2]
    own = [100 * abs(_cycles(found, _RULE)[place] / cases[place].theirs - 1) for place in half]
    means = {
        "by the rule": _RULE,
        "by the rule, on tpu_v2, to which nothing was fitted": "tpu_v2",
        "with filter rows stacked too": _OWN,
    }
    found_means = [Finding(when, _mean_error(found, way, cases), word) for when, way in means.items()]
    return [*found_means, Finding("by the rule, 64 channels alone", fmean(own), word)]


def _rule(found: Found, cases: list[Case]) -> list[Finding]:
    """How often the rule's number of tiles is what the compiler takes: in its estimates, and in its code."""
    errors = {way: _cycles(found, way) for way in _ways() if way not in (_RULE, _OWN)}
    hits = []
    for place, case in enumerate(cases):
        off = {way: abs(cycles[place] / case.theirs - 1) for way, cycles in errors.items()}
        # More tiles than fit are as many as fit: of those that are as close, the fewest.
        best = min(off, key=lambda way: (round(off[way], 3), int(way)))
        hits.append(int(best) == min(_LANES // _conv(case).in_channels, _conv(case).kernel[1]))
    closest = Finding("of 1, 2 and 3 tiles, closest to the estimate", 100 * fmean(hits), AGAINST.format(word=ESTIMATED))
    emitted = _emitted().items()
    return [
        closest,
        *(Finding(f"passes of emitted code, {what}", 100 * fmean(each), COUNTED) for what, each in emitted),
    ]


def _emitted() -> dict[str, list[bool]]:
    """Whether kernels wider than a tap take as many passes in emitted code as by the rule, by their channels."""
    found: dict[str, list[bool]] = {"fewer than 64 channels": [], "64 channels": [], "from 65 to 127": []}
    for row in rows("xla_tpu_v2_scheduled"):
        channels, high, wide = (int(row[key]) for key in ("ci", "kh", "kw"))
        if high * wide == 1 or not 4 < channels < _LANES:
            continue
        passes = high * ceil(wide / min(_LANES // channels, wide))
        kind = [*found][(channels >= _LANES // 2) + (channels > _LANES // 2)]
        found[kind].append(abs(_pushes(row) - passes) < 0.5)
    return {kind: each for kind, each in found.items() if each}


def _pushes(row: Row) -> float:
    return float(row["matmul_pushes_per_output_word"])
