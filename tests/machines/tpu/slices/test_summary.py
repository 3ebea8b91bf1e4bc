"""What is told of a collective: every cycle of a chip, the time of links, and the closed form beside it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from tests.strategies import cases
from tpusim.machines.tpu.slices.algorithms.registry import algorithms_for
from tpusim.machines.tpu.slices.collective import OPS
from tpusim.machines.tpu.slices.mesh_placement import DCN
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
    size = 2 * random.randint(1024, 2 ** random.randint(11, 20))
    asked = Question(place, op, size, named)
    return replace(asked, algorithm=random.choice(["", *algorithms_for(op, asked.collective.group)]))


def test_accounts_are_complete_whatever_is_left_out() -> None:
    """The states of a chip add up to the cycles, and passes that are left out are told as if they had been run."""
    left_out = 0
    for seed in range(cases(usual=24)):
        question = random_question(seed)
        made, whole = (timed_collective(question, whole=each) for each in (False, True))
        assert made.cycles == whole.cycles, seed
        assert sum(made.account.values()) == made.cycles, seed
        assert made.account == whole.account, seed
        assert made.links == whole.links, seed
        assert max(made.timing.held) <= made.cycles, seed
        ends, steps = whole.timing.log.ends, whole.timing.messages.steps
        assert max(ends[whole.last_chip * steps :][:steps]) == made.cycles, seed
        left_out += made.timing.left_out > 0
    assert left_out > 3


def test_a_chip_does_one_thing_after_another() -> None:
    for seed in range(cases(usual=12)):
        made = timed_collective(random_question(seed), whole=True)
        for place in range(len(made.timing.messages.places)):
            parts = segments(made.timing, place, 0, made.cycles)
            assert [parts[0][0], parts[-1][1]] == [0, made.cycles]
            assert all(before[1] == behind[0] for before, behind in pairwise(parts))


def test_no_collective_is_faster_than_its_bytes_go_over_the_links() -> None:
    for seed in range(cases(usual=40)):
        made = timed_collective(random_question(seed))
        assert made.bound < made.seconds, seed


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", [(), ("x", DCN)])
def test_the_network_between_slices_is_not_taken_for_a_link(op: str, axes: tuple[str, ...]) -> None:
    place = load_slice("v5e_2x2", ["slices=2"])
    slower = load_slice("v5e_2x2", ["slices=2", "interconnect.dcn.bandwidth=1 GB/s"])
    fast, slow = (timed_collective(Question(each, op, 2**20, axes)).seconds for each in (place, slower))
    assert slow > 1.5 * fast


@pytest.mark.parametrize("name", ["v5e_2x2", "v7x_2x2x1"])
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
def test_joined_slices_are_no_ring(name: str, op: str) -> None:
    made = timed_collective(Question(load_slice(name, ["slices=2"]), op, 2**24))
    assert made.algorithm == "rotated_pincer"
    assert not made.question.choice.books
    assert not [each for each in algorithms_for(op, made.question.collective.group) if "ring" in each]


def test_what_a_chip_does_first_counts() -> None:
    """All chips of a ring send at once: as long as its one link is held it carries, whatever else is done."""
    made = timed_collective(Question(load_slice("v6e_16x16"), "permute", 2**24))
    held = dict(zip((each.unit for each in made.timing.messages.servers), made.timing.held, strict=True))
    assert made.account["sends"] == held["link"]
    assert made.account["launch"] == made.question.rates.launch
    assert 0 < made.account["moves"] < held["memory"]


def test_one_chip_stands_for_all_of_a_torus() -> None:
    made = timed_collective(Question(load_slice("v5p_16x16x24"), "all_reduce", 2**28))
    assert made.timing.messages.places == ((0, 0, 0),)
    assert len(made.links) == 6 * 6144


def test_the_links_of_a_ring_are_told_on_the_torus() -> None:
    """A ring through 4 x 4 chips goes from neighbour to neighbour, both ways, and leaves 16 of 48 links alone."""
    made = timed_collective(Question(load_slice("v5e_4x4"), "all_gather", 2**24))
    group = made.question.collective.group
    members = group.cycle((0, 0))
    wanted = {
        link
        for here, there in pairwise([*members, members[0]])
        for link in (*group.torus.between(here, there), *group.torus.between(there, here))
    }
    assert {*made.links} == wanted
    assert len(wanted) == 32


@pytest.mark.parametrize(("name", "op", "seconds"), [
    # Of 2^20 bytes: all but a 16th over two links of each of two axes that close.
    ("v6e_16x16", "all_gather", 2**20 * 255 / 256 / (4 * 93.35e9)),
    ("v6e_16x16", "all_reduce", 2**21 * 255 / 256 / (4 * 93.35e9)),
    # A line has one link into its end.
    ("v6e_2x4", "reduce_scatter", 2**20 * 7 / 8 / (2 * 93.35e9)),
    ("v6e_2x4", "permute", 2**20 / 93.35e9),
    # Half of what the two on one side have crosses the middle of four.
    ("v6e_2x4", "all_to_all", 2**20 / 93.35e9),
    ("v6e_16x16", "all_to_all", 2**20 * 2 / 93.35e9),
])  # fmt: skip
def test_the_closed_form_is_bytes_over_links(name: str, op: str, seconds: float) -> None:
    made = timed_collective(Question(load_slice(name), op, 2**20))
    assert made.bound == pytest.approx(seconds)
