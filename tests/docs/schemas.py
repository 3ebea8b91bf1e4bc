"""What a value has that its JSON schema does not allow, and which keys of the schema it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TYPES = {"string": str, "integer": int, "number": int | float, "boolean": bool, "null": type(None),
         "object": dict, "array": list}  # fmt: skip
KNOWN = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "$ref", "minimum",
         "exclusiveMaximum", "exclusiveMinimum", "description", "default", "$schema", "$defs", "title"}  # fmt: skip


def problems(value: Any, schema: Any, at: str, whole: Mapping[str, Any]) -> Iterator[str]:
    """What a value has that its schema does not allow, for the words of JSON Schema that ours has."""
    assert {*schema} <= KNOWN
    if "$ref" in schema:
        yield from problems(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], at, whole)
        return
    if "anyOf" in schema:
        if all([*problems(value, each, at, whole)] for each in schema["anyOf"]):
            yield f"{at}: {value!r} is none of those"
        return
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or isinstance(value, bool) != (kind == "boolean")):
        yield f"{at}: {value!r} is no {kind}"
        return
    if kind in ("integer", "number") and not (
        value >= schema.get("minimum", value)
        and value < schema.get("exclusiveMaximum", value + 1)
        and value > schema.get("exclusiveMinimum", value - 1)
    ):
        yield f"{at}: {value!r} is out of range"
    for index, each in enumerate(value if kind == "array" else ()):
        yield from problems(each, schema["items"], f"{at}[{index}]", whole)
    if kind == "object":
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        yield from (f"{at}.{key}: missing" for key in schema.get("required", ()) if key not in value)
        for key, each in value.items():
            inner = known.get(key, others)
            if inner is False:
                yield f"{at}.{key}: unknown"
            elif inner is not True:
                yield from problems(each, inner, f"{at}.{key}", whole)


def keys_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for held in (schema, *schema["$defs"].values()):
        yield from held["properties"].items()


def printed(value: Any, schema: Any, whole: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    """Each key of the value that its schema describes, with the definition (or "") that it stands in."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = whole["$defs"][name]
    for each in schema.get("anyOf", ()):
        if not [*problems(value, each, "", whole)]:
            yield from printed(value, each, whole, name)
    if isinstance(value, list):
        for item in value:
            yield from printed(item, schema.get("items", {}), whole, name)
    elif isinstance(value, Mapping):
        known = schema.get("properties", {})
        for key, held in value.items():
            if key in known:
                yield name, key
            inner = known.get(key, schema.get("additionalProperties", {}))
            if isinstance(inner, Mapping):
                yield from printed(held, inner, whole, name)
