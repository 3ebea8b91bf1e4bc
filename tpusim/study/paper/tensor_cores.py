"""Fig. 2a, 4a, 17, 18a and 18b: a V100, simulated, each claim under the assumptions that it hangs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from tpusim.machines.family import load_hardware
from tpusim.network.ops.conv2d import Conv2d
from tpusim.study.paper.claim import Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import Simulated, point_of
from tpusim.study.paper.layers import RESNET, SEVEN, convolutions, products, square
from tpusim.study.paper.views import Bars, Series
from tpusim.study.sweep.space import Point

_GPU, _LIBRARY, _OURS, _EXPLICIT = "v100", "channel_last", "block_channel_first", "explicit"
_NHWC, _NCHW = (), ("mapping.layout=NCHW",)
_LAYOUTS = {"NHWC": _NHWC, "NCHW": _NCHW}
"""How maps lie, for the library; under NCHW it transposes them first."""
_STRIDES = 1, 2, 4
_FEW, _MANY = 8, 64
_SLOW = ("l2.bytes_per_cycle=570",)
"""Half of what is fitted for L2, about."""
_REUSES = {"patch": "a patch in shared memory", "cache": "by the cache"}


def _asked(network: str, layers: Sequence[Conv2d], how: str, batch: int = _FEW, changes: Sequence[str] = ()) -> Asked:
    """One point, under a name that says all of it."""
    machine = load_hardware(_GPU, list(changes))
    return {_name(network, how, batch, changes): point_of(network, layers, machine, batch, how)}


def _name(network: str, how: str, batch: int = _FEW, changes: Sequence[str] = ()) -> str:
    return " ".join([network, how, f"{batch}", *changes])


# ---- Fig. 2a


def explicit_asked() -> Asked:
    """Every network by the library, as maps lie, and by the lowered matrix."""
    points: dict[str, Point] = {}
    for network in SEVEN:
        layers = convolutions(network, _MANY)
        for changes in _LAYOUTS.values():
            points |= _asked(network, layers, _LIBRARY, _MANY, changes)
        points |= _asked(network, layers, _EXPLICIT, _MANY)
    return points


def make_explicit(found: Found) -> Shown:
    """Time of the explicit method over that of the library's implicit one."""

    def slower(network: str, changes: Sequence[str]) -> float:
        own = found[_name(network, _EXPLICIT, _MANY)].cycles
        return 100 * (own / found[_name(network, _LIBRARY, _MANY, changes)].cycles - 1)

    bars = {layout: [slower(each, changes) for each in SEVEN] for layout, changes in _LAYOUTS.items()}
    series = [Series(f"over {layout}", [*values, fmean(values)]) for layout, values in bars.items()]
    findings = [Finding(f"over {layout}, mean of seven networks", fmean(values)) for layout, values in bars.items()]
    return Shown(
        [Bars("explicit on a V100", [*SEVEN.values(), "mean"], series, "% slower")], {"gpu_explicit": findings}
    )


# ---- Fig. 4a


def strides_asked() -> Asked:
    """Five layers of ResNet at each stride, of few images and of many, and the products of equal size."""
    points: dict[str, Point] = {}
    for stride in _STRIDES:
        layers = [square(size, stride) for size in RESNET]
        for batch in (_FEW, _MANY):
            for changes in _LAYOUTS.values():
                points |= _asked(f"stride {stride}", layers, _LIBRARY, batch, changes)
            points |= _asked(f"product {stride}", products(layers), _LIBRARY, batch)
    return points


def make_strides(found: Found) -> Shown:
    """What of the TFLOPS at stride 1 is lost."""
    ways = {
        **{f"{layout}, batch {batch}": ("stride", batch, changes)
           for batch in (_FEW, _MANY) for layout, changes in _LAYOUTS.items()},
        **{f"product of equal size, batch {batch}": ("product", batch, _NHWC) for batch in (_FEW, _MANY)},
    }  # fmt: skip

    def lost(stride: int, what: str, batch: int, changes: Sequence[str]) -> float:
        strided, plain = (_rates(found[_name(f"{what} {each}", _LIBRARY, batch, changes)]) for each in (stride, 1))
        return 100 * (1 - fmean(a / b for a, b in zip(strided, plain, strict=True)))

    findings = {
        f"gpu_stride_{stride}": [Finding(when, lost(stride, *way)) for when, way in ways.items()]
        for stride in _STRIDES[1:]
    }
    names, way = [square(size).name for size in RESNET], (_LIBRARY, _MANY, _NHWC)
    series = [Series(f"stride {stride}", _rates(found[_name(f"stride {stride}", *way)])) for stride in _STRIDES]
    return Shown([Bars(f"a V100, NHWC, batch {_MANY}", names, series, "TFLOPS")], findings)


def _rates(of: Simulated) -> list[float]:
    return [float(row["tflops"]) for row in of.layers]


# ---- Fig. 17, 18a, 18b


def networks_asked() -> Asked:
    """Every network by the library, as maps lie, and by blocks that reuse taps either way, or not."""
    points: dict[str, Point] = {}
    for network in SEVEN:
        layers = convolutions(network, _FEW)
        for changes in _LAYOUTS.values():
            points |= _asked(network, layers, _LIBRARY, _FEW, changes)
        for reuse in (*_REUSES, "none"):
            for slow in ((), _SLOW):
                points |= _asked(network, layers, _OURS, _FEW, (f"mapping.reuse={reuse}", *slow))
    return points


def make_networks(found: Found) -> Shown:
    """Time of the blocks over that of the library."""
    over = {
        (reuse, layout): [_ours(found, each, reuse).cycles / _library(found, each, changes).cycles for each in SEVEN]
        for reuse in _REUSES
        for layout, changes in _LAYOUTS.items()
    }
    findings = [Finding(f"{_REUSES[reuse]}, over {layout}", fmean(values)) for (reuse, layout), values in over.items()]
    series = [
        Series(f"{_REUSES[reuse]}, over {layout}", [*values, fmean(values)]) for (reuse, layout), values in over.items()
    ]
    bars = Bars("channel-first blocks on a V100", [*SEVEN.values(), "mean"], series, "time over the library's")
    return Shown([bars], {"gpu_networks": findings})


def make_strided(found: Found) -> Shown:
    """How much sooner strided layers of these networks are done than by the library, mean of the layers."""
    findings = [
        Finding(f"{what}, over {layout}", _sooner(found, reuse, _library, changes, lambda each: max(each.stride) > 1))
        for reuse, what in _REUSES.items()
        for layout, changes in _LAYOUTS.items()
    ]
    return Shown((), {"gpu_strided": findings})


def make_reuse(found: Found) -> Shown:
    """How much sooner layers are done that reuse what taps share, mean of those of more taps than one."""
    kinds: Mapping[str, Callable[[Conv2d], bool]] = {
        "stride 1": lambda each: max(each.stride) == 1 < max(each.kernel),
        "larger strides": lambda each: min(each.kernel) > max(each.stride) > 1,
    }
    findings = [
        Finding(f"{what}, {kind}{how}", _sooner(found, reuse, _without, slow, chosen))
        for reuse, what in _REUSES.items()
        for kind, chosen in kinds.items()
        for slow, how in (((), ""), (_SLOW, ", half the rate of L2"))
    ]
    return Shown((), {"gpu_reuse": findings})


def _ours(found: Found, network: str, reuse: str, changes: Sequence[str] = ()) -> Simulated:
    return found[_name(network, _OURS, _FEW, (f"mapping.reuse={reuse}", *changes))]


def _library(found: Found, network: str, changes: Sequence[str]) -> Simulated:
    return found[_name(network, _LIBRARY, _FEW, changes)]


def _without(found: Found, network: str, changes: Sequence[str]) -> Simulated:
    return _ours(found, network, "none", changes)


def _sooner(
    found: Found,
    reuse: str,
    against: Callable[[Found, str, Sequence[str]], Simulated],
    changes: Sequence[str],
    chosen: Callable[[Conv2d], bool],
) -> float:
    """In percent; `changes` are those of what it is held against, and of the blocks where they are of the machine."""
    own = changes if changes == _SLOW else ()
    gains = [
        float(theirs["cycles"]) / float(row["cycles"])
        for network in SEVEN
        for layer, row, theirs in zip(
            convolutions(network, _FEW),
            _ours(found, network, reuse, own).layers,
            against(found, network, changes).layers,
            strict=True,
        )
        if chosen(layer)
    ]
    return 100 * (fmean(gains) - 1)
