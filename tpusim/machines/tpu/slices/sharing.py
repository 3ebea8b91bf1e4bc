"""The collectives of a network that the chips of a slice share: each timed as the compiler's code has it."""

from __future__ import annotations

from math import prod
from pathlib import Path

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.words import counted
from tpusim.machines.exchanged import DCN, HOST_BACK, HOST_OUT, Exchanges, TimedCollective
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.slices.algorithms.registry import chosen
from tpusim.machines.tpu.slices.collective import OPS, Collective
from tpusim.machines.tpu.slices.exchange import Rates, rates_of
from tpusim.machines.tpu.slices.mesh_placement import MeshPlacement, placed
from tpusim.machines.tpu.slices.slice import ChipSlice, load_slice, slices_of
from tpusim.machines.tpu.slices.timing import timed
from tpusim.machines.tpu.slices.torus import Group
from tpusim.network.mesh import HOST
from tpusim.network.sharding import combined
from tpusim.network.workload import OFFLOAD, CollectiveLayer, Workload

GATHERS, PERMUTES = "gathers", "permutes"
"""Kinds of collectives, as the scheduler of the compiler counts them: those that move by permutes are of one."""


def exchanges(work: Workload, place: ChipSlice | str | Path | None, machine: Hardware) -> Exchanges:
    """Time the collectives of a share of a network on a slice of such machines; equal ones once.

    Raises:
        InputError: no slice is named, the mesh has other chips than the slice, or the machine is no chip.
    """
    chips = prod(size for _, size in work.mesh)
    if place is None:
        near = ", ".join(slices_of(chips, machine.name)) or "one that tpusim list shows"
        links = f"{chips:,} chips share {work.name}, and nobody says how they are linked"
        if chips == 1:
            links = f"values of {work.name} go to the host, and nobody says over which links of a chip"
        raise InputError(Problem(f"{links}; name a slice, such as {near}", "slice"))
    if not isinstance(place, ChipSlice):
        place = load_slice(place)
    if machine.chip_cores > 1:
        says = f"{machine.label} is one of the {machine.chip_cores} cores of a chip, and slices are of chips"
        raise InputError(Problem(f"{says}; take {place.interconnect.machine}", "hardware"))
    if chips != place.chips:
        near = ", ".join(slices_of(chips, machine.name))
        says = f"{counted(chips, 'chip')}, and {place.name} has {place.chips:,}"
        says += f"; write sizes whose product is {place.chips:,}"
        raise InputError(Problem(f"{says}{f', or name a slice such as {near}' if near else ''}", "mesh"))
    # The machine that runs the layers, whatever was set of it, and not the chip of the generation's file.
    mesh, rates = placed(place, dict(work.mesh)), rates_of(place, machine.element_bytes, machine)
    most = place.interconnect.combine
    work = combined(work, most.size_bytes // machine.element_bytes, most.operands)
    known: dict[tuple[str, int, tuple[str, ...]], TimedCollective] = {}
    found = []
    for each in work.collectives:
        kind = each.op, each.elements, each.over
        if kind not in known:
            to_host = each.over == (HOST,)
            known[kind] = (
                _over_pcie(each, place, machine) if to_host else _over_links(each, mesh, place, machine, rates)
            )
        within = not {DCN, HOST_OUT, HOST_BACK} & {*known[kind].holds}
        found.append(known[kind]._replace(alone=within and each.op in place.interconnect.overlap.alone))
    overlap = place.interconnect.overlap
    return Exchanges(
        work, place.label, place.words, place.chips, tuple(found),
        {GATHERS: overlap.gathers, PERMUTES: overlap.permutes},
        overlap.ahead, place.overlap != "none",
    )  # fmt: skip


def _over_links(
    layer: CollectiveLayer, mesh: MeshPlacement, place: ChipSlice, machine: Hardware, rates: Rates
) -> TimedCollective:
    """Time what chips send to one another. Raises InputError for an unknown op, and one chip."""
    if layer.op not in OPS:
        near = did_you_mean(layer.op, OPS) or ";"
        raise InputError(Problem(f"no op {layer.op!r} of several chips{near} there is {', '.join(OPS)}", layer.name))
    group = mesh.group(layer.over)
    if group.size < 2:
        raise InputError(Problem(f"{', '.join(layer.over)} is one chip, which has nobody to talk to", layer.name))
    emitters = place.interconnect.collectives
    collective = Collective(layer.op, layer.elements, machine.element_bytes, group, emitters)
    algorithm = chosen(collective).algorithm
    made = timed(collective, algorithm, rates)
    # Of a line the chips differ; that which moves most in memory counts for all.
    memory = max(held for held, name in zip(made.held, made.messages.servers, strict=True) if name.unit == "memory")
    kind = GATHERS if collective.op == "all_gather" else PERMUTES
    cycles = max(1, made.cycles)
    return TimedCollective(cycles, min(memory, cycles), collective.bytes, links_of(collective.group), kind, algorithm)


def _over_pcie(collective: CollectiveLayer, place: ChipSlice, machine: Hardware) -> TimedCollective:
    """Time what goes to the host, or comes back: each way there is one, and HBM is read or written meanwhile."""
    moved = collective.elements * machine.element_bytes
    cycles = max(1, place.interconnect.host_cycles(moved, machine.clock_hz))
    memory = -(-moved * machine.clock_hz // machine.hbm_bytes_per_s)
    way = HOST_OUT if collective.op == OFFLOAD else HOST_BACK
    return TimedCollective(cycles, min(memory, cycles), moved, (way,), HOST, "pcie")


def links_of(group: Group) -> tuple[str, ...]:
    """Return the axes whose links the chips of a group hold together, by name."""
    return tuple(dict.fromkeys(group.torus.axes[span.axis].name for span in group.spans))
