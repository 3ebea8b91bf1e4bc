"""How every exhibit of words.yaml is made: a line each."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.base.errors import InputError, did_you_mean
from tpusim.study.paper import (
    accuracy,
    arrangement,
    block_order,
    design_space,
    dram,
    examples,
    explicit,
    lowered_sizes,
    machine,
    multi_tile,
    strides,
    tensor_cores,
)  # fmt: skip
from tpusim.study.paper.exhibit import Maker
from tpusim.study.paper.words import words

MAKERS = {
    "table1": Maker(lowered_sizes.make, lowered_sizes.asked),
    "table2": Maker(machine.make_configuration),
    "1": Maker(arrangement.make_lowered),
    "2a": Maker(tensor_cores.make_explicit, tensor_cores.explicit_asked),
    "2b": Maker(explicit.make, explicit.asked),
    "3": Maker(strides.make_channel_last, strides.orders_asked),
    "4a": Maker(tensor_cores.make_strides, tensor_cores.strides_asked),
    "4b": Maker(strides.make_strides, strides.asked),
    "5": Maker(arrangement.make_on_chip),
    "6": Maker(arrangement.make_orders),
    "7": Maker(dram.make, dram.asked),
    "8": Maker(strides.make_channel_first, strides.orders_asked),
    "10": Maker(examples.make_single, examples.asked),
    "11": Maker(examples.make_double, examples.asked),
    "12": Maker(block_order.make_order),
    "13a": Maker(accuracy.make_products, accuracy.products_asked),
    "13b": Maker(accuracy.make_convolutions, accuracy.convolutions_asked),
    "14a": Maker(multi_tile.make_effect, multi_tile.effect_asked),
    "14b": Maker(multi_tile.make_strategy, multi_tile.strategy_asked),
    "15a": Maker(accuracy.make_networks, accuracy.networks_asked),
    "15b": Maker(accuracy.make_errors, accuracy.errors_asked),
    "16a": Maker(design_space.make_sizes, design_space.sizes_asked),
    "16b": Maker(design_space.make_words, design_space.words_asked),
    "17": Maker(tensor_cores.make_networks, tensor_cores.networks_asked),
    "18a": Maker(tensor_cores.make_strided, tensor_cores.networks_asked),
    "18b": Maker(tensor_cores.make_reuse, tensor_cores.networks_asked),
    "chip": Maker(machine.make_chip, machine.chip_asked),
}
"""By the name that the command line has for an exhibit."""


def chosen(figures: Sequence[str]) -> list[str]:
    """Those of these names, in the paper's order, or all without any. Raises InputError for one that is not known."""
    known = words()
    for each in figures:
        if each not in known:
            guess = did_you_mean(each, known) or ";"
            raise InputError(f"--figure {each}: no such exhibit{guess} there is {', '.join(known)}")
    return [each for each in known if each in figures or not figures]
