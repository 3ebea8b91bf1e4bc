"""Layers explained by some relaxations alone, where no other is looked at: each is a simulation or two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tpusim.study.explain import bottleneck
from tpusim.study.explain.bottleneck import Bottleneck, explain_layer
from tpusim.study.explain.relaxation import Relaxation, Setup, relaxations


@contextmanager
def trying(*names: str) -> Iterator[None]:
    """Within it nothing else is made easier."""

    def some(setup: Setup) -> list[Relaxation]:
        found = [each for each in relaxations(setup) if each.name in names]
        assert len(found) == len(names)
        return found

    with patch.object(bottleneck, "relaxations", some):
        yield


def explained_by(setup: Setup, *names: str) -> Bottleneck:
    with trying(*names):
        found = explain_layer(setup, lambda done, name: None)
    assert isinstance(found, Bottleneck)
    return found
