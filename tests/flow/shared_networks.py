"""Shares of small networks, as chips of a mesh run them: made by hand, with what they exchange."""

from __future__ import annotations

from tpusim import Gemm, Workload
from tpusim.network.workload import CollectiveLayer, Source

WIDTH = 512


def shared_products(many: int = 6) -> Workload:
    """Pairs of products: weights of the first are gathered, sums of the second reduced. Of 2 x 4 chips."""
    layers: list[Gemm] = []
    collectives: list[CollectiveLayer] = []
    edges: dict[str, list[Source]] = {}
    before = "input"
    for number in range(many):
        up, down, gather = f"up_{number}", f"down_{number}", f"gather_{number}"
        layers += [Gemm(name, m=256, k=WIDTH, n=WIDTH) for name in (up, down)]
        edges |= {up: [Source((before,)), Source((gather,))], down: [Source((up,))]}
        after = (f"up_{number + 1}",) if number + 1 < many else ()
        before = f"{down}.all_reduce"
        collectives += [
            CollectiveLayer(gather, "all_gather", WIDTH * WIDTH, ("data",), (), (up,), weights=True),
            CollectiveLayer(before, "all_reduce", 256 * WIDTH, ("tensor",), (down,), after),
        ]
    mesh = (("data", 2), ("tensor", 4))
    return Workload("products", 256, layers, edges=edges, mesh=mesh, collectives=tuple(collectives))


def gathered(many: int) -> Workload:
    """Products, one after another, of each of which the weights are gathered from all of 8 chips."""
    layers = [Gemm(f"product_{number}", m=256, k=WIDTH, n=WIDTH) for number in range(many)]
    names = ["input", *(layer.name for layer in layers)]
    edges = {layer.name: [Source((before,)), Source((f"{layer.name}.gather",))]
             for before, layer in zip(names, layers, strict=False)}  # fmt: skip
    gathers = (CollectiveLayer(f"{each.name}.gather", "all_gather", WIDTH * WIDTH, ("fsdp",), (), (each.name,), True)
               for each in layers)  # fmt: skip
    return Workload("gathered", 256, layers, edges=edges, mesh=(("fsdp", 8),), collectives=tuple(gathers))
