"""How every exhibit of words.yaml is made: a line each."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.base.errors import InputError, did_you_mean
from tpusim.study.paper import design_space, explicit, lowered_sizes, multi_tile
from tpusim.study.paper.exhibit import Maker
from tpusim.study.paper.words import words

MAKERS = {
    "table1": Maker(lowered_sizes.make, lowered_sizes.asked),
    "2b": Maker(explicit.make, explicit.asked),
    "14a": Maker(multi_tile.make_effect, multi_tile.effect_asked),
    "14b": Maker(multi_tile.make_strategy, multi_tile.strategy_asked),
    "16a": Maker(design_space.make_sizes, design_space.sizes_asked),
    "16b": Maker(design_space.make_words, design_space.words_asked),
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
