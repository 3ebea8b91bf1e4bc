"""Networks that Google's compiler took whole: what each of their operations takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tpusim.study.validation.cases import Case, LeftOut, Row, rows
from tpusim.study.validation.network_operations import Operation, operation

ESTIMATED = {
    "network_resnet18": "ResNet-18",
    "network_resnet50": "ResNet-50",
    "network_vgg16": "VGG16",
    "network_yolov2": "YOLOv2",
    "network_bert_layer": "a layer of BERT, 128 and 512 words",
}
SCHEDULED = {"scheduled_resnet50": "ResNet-50", "scheduled_vgg16": "VGG16"}
"""Their convolutions and products."""
POOLING = "scheduled_pooling"

_BESIDE_LOOP = 630
"""Cycles of an operation's code outside its loop: part of what defines `scheduled_with_hbm` (truth/README.md)."""


def estimated(name: str) -> tuple[Case, ...]:
    """What the operations of one of the networks `ESTIMATED` are expected to take."""
    return tuple(_case(each, _estimate(each)) for each in _operations() if each.layers and _of(each, name))


def estimated_besides(name: str) -> tuple[LeftOut, ...]:
    """Its operations that need an op which is none here, as far as they are priced at all."""
    some = (each for each in _operations() if not each.layers and _of(each, name) and each.row["estimated_cycles"])
    return tuple(LeftOut(each.name, _estimate(each)) for each in some)


def scheduled(name: str) -> tuple[Case, ...]:
    """What the code of the convolutions and products of one of the networks `SCHEDULED` takes."""
    return tuple(_case(each, code) for each, code in _coded(name) if each.on_the_array)


def scheduled_besides(name: str) -> tuple[LeftOut, ...]:
    """Its other operations: copies, and pooling, which is a set of its own."""
    return tuple(LeftOut(each.name, code) for each, code in _coded(name) if not each.on_the_array)


def scheduled_pooling() -> tuple[Case, ...]:
    """What the code of the poolings of all of these takes."""
    coded = (pair for name in SCHEDULED for pair in _coded(name))
    return tuple(_case(each, code) for each, code in coded if "reduce-window" in each.row["fused"])


def _coded(name: str) -> Iterator[tuple[Operation, float]]:
    for each in _operations():
        if f"scheduled_{each.row['network']}" == name and (code := _code_of(each.row)) is not None:
            yield each, code


def _of(each: Operation, name: str) -> bool:
    return f"network_{each.row['network']}" == name


def _estimate(each: Operation) -> float:
    return float(each.row["estimated_cycles"])


def _case(each: Operation, theirs: float) -> Case:
    return Case(each.name, each.layers, each.batch, theirs, _estimate(each), _code_of(each.row))


def _code_of(row: Row) -> float | None:
    """Cycles of the operation's code with HBM: `scheduled_with_hbm` of a convolution whose windows are all alike."""
    code = _code().get((row["network"], row["name"]))
    if code is None:
        return None
    loop, moving = float(code["scheduled_cycles"]), float(code["hbm_cycles"])
    return _BESIDE_LOOP + max(loop, moving) + moving / int(code["iterations"])


@cache
def _code() -> dict[tuple[str, str], Row]:
    """Emitted code by network and operation."""
    return {(row["case"].split("_")[0], row["name"]): row for row in rows("xla_tpu_v2_networks_scheduled")}


@cache
def _operations() -> list[Operation]:
    """All of all networks, in order."""
    return [operation(row) for row in rows("xla_tpu_v2_networks")]
