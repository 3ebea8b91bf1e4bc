"""Tables of things by name, each imported when it is first looked at."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

Thing = TypeVar("Thing")


class Registry(UserDict[str, Thing], Generic[Thing]):
    """Things by name. Names, their order and their number cost no import; a thing costs that of its own module."""

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        """`places` says for each name where the thing stands in `package`: "module.attribute"."""
        super().__init__()
        self._package = package
        self.data = dict[str, Any](places)

    def __getitem__(self, name: str) -> Thing:
        found: Any = self.data[name]
        if isinstance(found, str):
            module, _, attribute = found.rpartition(".")
            found = self.data[name] = getattr(import_module(f"{self._package}.{module}"), attribute)
        thing: Thing = found
        return thing
