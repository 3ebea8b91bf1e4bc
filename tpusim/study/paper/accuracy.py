"""Fig. 13 and 15: how far we are from reference numbers, on microbenchmarks and on networks."""

from __future__ import annotations

from tpusim.machines.tpu.description import load_hardware
from tpusim.network.workload_file import load_workload
from tpusim.study.paper.claim import AGAINST, Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.layers import SEVEN
from tpusim.study.paper.reference import Held, all_asked, thick
from tpusim.study.paper.views import Bars, Cloud, Errors, Parity, Series
from tpusim.study.validation.cases import Case

_TABLE_2 = "tpu_v2"
_BATCH = 8
_OWN = "the machine fitted to that word"
_PLAIN = "tpu_v2, nothing fitted"


def _unseen(case: Case) -> bool:
    """In the half of a set that no number was fitted on."""
    return not case.fitted


# ---- Fig. 13

_PRODUCTS = Held(("gemm",))
_PLAIN_PRODUCTS = Held(("gemm",), _TABLE_2)
_CONVOLUTIONS = Held(("micro",), chosen=thick)
_PLAIN_CONVOLUTIONS = Held(("micro",), _TABLE_2, thick)
_CODE = Held(("scheduled_1x1", "scheduled_3x3", "scheduled_large"), chosen=thick)
_V3 = Held(("v3",))
_V3_ODD = Held(("v3_odd",))


def products_asked() -> Asked:
    """All products, on both machines."""
    return all_asked((_PRODUCTS, _PLAIN_PRODUCTS))


def make_products(found: Found) -> Shown:
    """Fig. 13a."""
    clouds = [Cloud(_OWN, _PRODUCTS.pairs(found)), Cloud(_PLAIN, _PLAIN_PRODUCTS.pairs(found))]
    findings = [
        _PRODUCTS.finding(found, _OWN),
        _PRODUCTS.finding(found, "the half of them on which nothing was fitted", _unseen),
        _PLAIN_PRODUCTS.finding(found, _PLAIN),
    ]
    return Shown([Parity("products", clouds, "cycles", _PRODUCTS.word)], {"gemm_error": findings})


def convolutions_asked() -> Asked:
    """Those of 128 channels and more; and what was measured on TPU v3."""
    return all_asked((_CONVOLUTIONS, _PLAIN_CONVOLUTIONS, _CODE, _V3, _V3_ODD))


def make_convolutions(found: Found) -> Shown:
    """Fig. 13b."""
    estimated = [Cloud(_OWN, _CONVOLUTIONS.pairs(found)), Cloud(_PLAIN, _PLAIN_CONVOLUTIONS.pairs(found))]
    views = [
        Parity("convolutions, 128 channels and more", estimated, "cycles", _CONVOLUTIONS.word),
        Parity("the code emitted for such", [Cloud(_OWN, _CODE.pairs(found))], "cycles", _CODE.word),
    ]
    findings = [
        _CONVOLUTIONS.finding(found, _OWN),
        _CONVOLUTIONS.finding(found, "the half of them on which nothing was fitted", _unseen),
        _PLAIN_CONVOLUTIONS.finding(found, _PLAIN),
        _CODE.finding(found, "emitted code"),
    ]
    measured = [
        _V3.finding(found, "seven products and convolutions of TPU v3"),
        _V3_ODD.finding(found, "a layer of TPU v3 that stands apart"),
    ]
    return Shown(views, {"conv_error": findings, "measured_error": measured})


# ---- Fig. 15

_NETWORKS = {"network_resnet18": "ResNet-18", "network_resnet50": "ResNet", "network_vgg16": "VGG",
             "network_yolov2": "YOLO"}  # fmt: skip
_EMITTED = {"scheduled_resnet50": "ResNet", "scheduled_vgg16": "VGG"}
_OF_NETWORK = {name: Held((name,)) for name in (*_NETWORKS, *_EMITTED)}
_ESTIMATED = Held(tuple(_NETWORKS))
_SCHEDULED = Held(tuple(_EMITTED))
_PLAIN_NETWORKS = Held(tuple(_NETWORKS), _TABLE_2)


def networks_asked() -> Asked:
    """The seven on the machine of Table II, and all for which there are numbers on their machines."""
    machine = load_hardware(_TABLE_2)
    seven = {name: point_of(name, load_workload(name, _BATCH).layers, machine, _BATCH) for name in SEVEN}
    return {**seven, **all_asked(_OF_NETWORK.values())}


def make_networks(found: Found) -> Shown:
    """Fig. 15a."""
    groups = dict.fromkeys((*SEVEN.values(), *_NETWORKS.values()))
    named = {called: name for name, called in SEVEN.items()}
    plain = [float(found[named[each]].figures["tflops"]) if each in named else None for each in groups]
    columns = [Series("tpu_v2, simulated", plain)]
    for sets, word in ((_NETWORKS, "estimated"), (_EMITTED, "scheduled")):
        by_name = {called: _tflops(_OF_NETWORK[name], found) for name, called in sets.items()}
        columns += [
            Series(f"simulated, beside what is {word}", [by_name.get(each, (0, None))[1] for each in groups]),
            Series(word, [by_name.get(each, (None, 0))[0] for each in groups]),
        ]
    findings = [
        Finding(f"{called}, {held.word}", held.total_error(found), AGAINST.format(word=held.word))
        for sets in (_NETWORKS, _EMITTED)
        for name, called in sets.items()
        for held in (_OF_NETWORK[name],)
    ]
    return Shown(
        [Bars("convolutions and products, batch 8", [*groups], columns, "TFLOPS")], {"networks_match": findings}
    )


def _tflops(held: Held, found: Found) -> tuple[float, float]:
    """Theirs and ours."""
    macs = sum(layer.macs(case.batch) for _, case in held.cases for layer in case.layers)
    rate = 2 * macs * load_hardware(_TABLE_2).clock_hz / 1e12
    theirs, ours = (sum(each) for each in zip(*held.pairs(found), strict=True))
    return rate / theirs, rate / ours


def errors_asked() -> Asked:
    """Every layer for which there is a number."""
    return all_asked((_ESTIMATED, _SCHEDULED, _PLAIN_NETWORKS))


def make_errors(found: Found) -> Shown:
    """Fig. 15b."""
    series = [Series(f"against what is {held.word}", held.errors(found)) for held in (_ESTIMATED, _SCHEDULED)]
    series.append(Series(f"{_PLAIN}, against what is estimated", _PLAIN_NETWORKS.errors(found)))
    findings = [
        _ESTIMATED.finding(found, f"estimated, {_OWN}"),
        _SCHEDULED.finding(found, f"scheduled, {_OWN}"),
        _PLAIN_NETWORKS.finding(found, f"estimated, {_PLAIN}"),
    ]
    return Shown([Errors("layers of networks, batch 8", series)], {"layer_error": findings})
