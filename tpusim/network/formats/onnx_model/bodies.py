"""Operators of ONNX that the standard itself defines as others: their bodies in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, defs, helper

from tpusim.network.formats.layer_of_node import UnfitNode
from tpusim.network.formats.onnx_model.new_nodes import UnknownShape, free

WITH_BODIES = frozenset({"Attention", "RotaryEmbedding", "SwiGLU"})
"""Operators of which no layers are known, and whose bodies hold some."""


def body_of(
    node: NodeProto, opset: int, kinds: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], taken: set[str]
) -> list[NodeProto]:
    """Return the nodes that an operator is defined as, for operands of these types and shapes; their values get names
    outside `taken`.

    Raises:
        UnknownShape: a shape is not known yet.
        UnfitNode: the standard has no such body for these operands.
    """
    unknown = next((name for name in node.input if name and (name not in kinds or name not in shapes)), None)
    if unknown is not None:
        raise UnknownShape(f"the shape of {unknown} is not known")
    # The library's annotations know nothing of bodies that depend on operands.
    schema: Any = defs.get_schema(node.op_type, opset, node.domain)
    types = [helper.make_tensor_type_proto(kinds[name], shapes[name]) if name else None for name in node.input]
    told = [b"" if each is None else each.SerializeToString() for each in types]
    plain = NodeProto()
    plain.CopyFrom(node)
    if schema.has_context_dependent_function:
        text = schema.get_context_dependent_function(plain.SerializeToString(), told)
        body = FunctionProto.FromString(text)
    else:
        body = schema.function_body
    if not body.node:
        raise UnfitNode("the standard does not say of what it is made for such operands")
    return [*_placed(body, node, taken)]


def _placed(body: FunctionProto, node: NodeProto, taken: set[str]) -> Iterator[NodeProto]:
    """Yield the nodes of a body in the place of a node."""
    said = {each.name: each for each in node.attribute}
    names = dict(zip(body.input, node.input, strict=False)) | dict.fromkeys([*body.input][len(node.input) :], "")
    names |= {mine: name for mine, name in zip(body.output, node.output, strict=False) if name}
    label = node.name or next(filter(None, node.output), "")
    for each in body.node:
        made = NodeProto()
        made.CopyFrom(each)
        del made.attribute[:], made.input[:], made.output[:]
        for name in each.output:
            if name and name not in names:
                names[name] = free(f"{label}.{name}", taken)
        made.input.extend(names.get(name, name) for name in each.input)
        made.output.extend(names.get(name, name) for name in each.output)
        made.name = next(filter(None, made.output), "")
        made.attribute.extend(_attributes(each, said, node.op_type))
        yield made


def _attributes(node: NodeProto, said: Mapping[str, AttributeProto], op: str) -> Iterator[AttributeProto]:
    """Yield attributes, those of the operator's node, or its defaults, where they refer to it."""
    for each in node.attribute:
        if not each.ref_attr_name:
            yield each
            continue
        known = said.get(each.ref_attr_name) or _defaults(op).get(each.ref_attr_name)
        if known is not None and known.type:
            made = AttributeProto()
            made.CopyFrom(known)
            made.name = each.name
            yield made


@cache
def _defaults(op: str) -> dict[str, AttributeProto]:
    return {name: each.default_value for name, each in defs.get_schema(op).attributes.items()}
