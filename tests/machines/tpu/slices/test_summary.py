"""What is told of a collective: every cycle of a chip, the time of links, and the closed form beside it."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tests.strategies import cases
from tpusim.machines.tpu.slices.algorithms.registry import algorithms_for
from tpusim.machines.tpu.slices.collective import OPS
from tpusim.machines.tpu.slices.mesh import DCN
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.machines.tpu.slices.summary import Question, segments, timed_collective

SLICES = ("v5e_2x2", "v5e_2x4", "v6e_2x16", "v6e_16x16", "v5p_2x2x2", "v4_4x4x4", "v7x_2x2x1", "v7x_4x4x4")


def random_question(seed: int) -> Question:
    """A question of a random slice, with links that are more and less in a hurry than any there is."""
    random = Random(seed)
    changes = [
        f"interconnect.collectives.{name}={random.choice(values)}"
        for name, values in {"chunk": ["1KiB", "2KiB"], "passes": ["1", "1", "2"], "streams": ["apart", "together"],
                             "most_passes": ["16", "40"]}.items()
    ]  # fmt: skip
    changes += [f"slices={random.choice([1, 1, 2])}"]
    place = load_slice(random.choice(SLICES), changes)
    op = random.choice([*OPS])
    axes = [name for name, side in zip("xyz", place.torus, strict=False) if side > 1] + [DCN] * (place.slices > 1)
    named = tuple(sorted(random.sample(axes, random.randint(1, len(axes))), key=axes.index))
    size = random.randint(2048, 2 ** random.randint(12, 21))
    rings = [name for name in algorithms_for(op) if DCN not in named or "ring" not in name]
    return Question(place, op, size, named, algorithm=random.choice(["", *rings]))


def test_accounts_are_complete_whatever_is_left_out() -> None:
    """The states of a chip add up to the cycles, and passes that are left out are told as if they had been run."""
    left_out = 0
    for seed in range(cases(usual=60)):
        question = random_question(seed)
        made, whole = (timed_collective(question, whole=each) for each in (False, True))
        assert made.cycles == whole.cycles, seed
        assert sum(made.account.values()) == made.cycles, seed
        assert made.account == whole.account, seed
        assert made.links == whole.links, seed
        assert max(made.timing.held) <= made.cycles, seed
        left_out += made.timing.left_out > 0
    assert left_out > 3


def test_a_chip_does_one_thing_after_another() -> None:
    for seed in range(cases(usual=20)):
        made = timed_collective(random_question(seed), whole=True)
        for place in range(len(made.timing.messages.places)):
            parts = segments(made.timing, place, 0, made.cycles)
            assert [parts[0][0], parts[-1][1]] == [0, made.cycles]
            assert all(before[1] == behind[0] for before, behind in pairwise(parts))


def test_no_collective_is_faster_than_its_bytes_go_over_the_links() -> None:
    for seed in range(cases(usual=60)):
        made = timed_collective(random_question(seed))
        assert made.bound < made.seconds, seed


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", [(), ("x", DCN)])
def test_the_network_between_slices_is_not_taken_for_a_link(op: str, axes: tuple[str, ...]) -> None:
    place = load_slice("v5e_2x2", ["slices=2"])
    slower = load_slice("v5e_2x2", ["slices=2", "interconnect.dcn.bandwidth=1 GB/s"])
    fast, slow = (timed_collective(Question(each, op, 2**20, axes)).seconds for each in (place, slower))
    assert slow > 1.5 * fast
