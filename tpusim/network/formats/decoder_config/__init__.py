"""Language models by their config: a config.json of Hugging Face as the workload of its decoder.

What the config says is read by model type (`model_types`), from keys that are read, told or refused (`keys`); the
decoder becomes entries like those of the language models that come with tpusim (`entries`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpusim.base.errors import InputError
from tpusim.input.document import Document, parse_document
from tpusim.input.form import size
from tpusim.input.scalars import show
from tpusim.input.source import read_text, refuse_kind
from tpusim.network.formats import ModelOptions, printable
from tpusim.network.formats.decoder_config.entries import DecoderConfig, entries_of
from tpusim.network.formats.decoder_config.keys import Keys
from tpusim.network.formats.decoder_config.model_types import MODEL_TYPES, WITH_PICTURES
from tpusim.network.workload import names_in

_TYPE = "model_type"
_PICTURES = "vision_config"
_OF_ALL = "tie_word_embeddings", "quantization_config"
"""Keys that a model of words and pictures has beside its parts, and that hold for the words."""


def read(path: Path, asked: ModelOptions) -> Document:
    """Read a config as the workload of its decoder, or a workload in JSON as it is.

    Raises InputError with all keys that are wrong, or that are not known and matter.
    """
    label = str(path)
    # Tabs indent JSON, and stand in none of its texts; all else of it is YAML.
    try:
        document = parse_document(read_text(path).replace("\t", " "), label)
    except InputError as error:
        raise InputError(
            [replace(each, message=each.message.replace("YAML", "JSON")) for each in error.problems]
        ) from None
    refuse_kind(document.data, label, "workloads")
    if "layers" in document.data and _TYPE not in document.data:
        return document
    if document.problems:
        raise InputError(document.problems)
    keys = _keys(document)
    read_by = keys.word(_TYPE, MODEL_TYPES)
    keys.check()
    decoder, model_type = read_by(keys), printable(document.data[_TYPE])
    keys.check()
    _check_turns(keys, decoder)
    notes = [*_notes(keys), *keys.notes, *keys.left_over()]
    keys.check()
    entries, parameters = entries_of(decoder)
    data = {
        "name": _name(path, document.data, model_type),
        "source": f"{printable(path.name)}, a config of Hugging Face of model type {model_type}",
        **entries,
    }
    found = Document(label, data, {"": 1})
    return replace(found, notes=(_counted(found, parameters, decoder, asked.dims), *notes))


def _keys(document: Document) -> Keys:
    """Return the keys of the decoder: those of the part for words, where a model takes pictures, too."""
    data = document.data
    if _TYPE not in data:
        says = f"{_TYPE} is missing: this is no config.json of a language model of Hugging Face"
        raise InputError(document.problem(_TYPE, f"{says}; model types that are known: {', '.join(MODEL_TYPES)}"))
    named, words, told = str(data[_TYPE]), data.get("text_config"), "text_config" in data
    if named in MODEL_TYPES or not (told or named in WITH_PICTURES):
        return Keys(document, data)
    if not isinstance(words, Mapping):
        says = f"{show(words)} is no mapping; it has the keys of the decoder, such as num_hidden_layers"
        raise InputError(document.problem("text_config", says))
    outer = {_TYPE: WITH_PICTURES.get(named), **{key: data[key] for key in _OF_ALL if key in data}}
    keys = Keys(document, {**outer, **words}, "text_config")
    keys.notes += ["words alone are read: what makes tokens of pictures is no part of it"] * (_PICTURES in data)
    return keys


def _check_turns(keys: Keys, decoder: DecoderConfig) -> None:
    """Check that what turns of a head has two halves. Raises InputError."""
    head = decoder.latent.turned if decoder.latent else decoder.turned or decoder.head or decoder.width // decoder.heads
    if decoder.base and head % 2:
        known = "qk_rope_head_dim", "partial_rotary_factor", "head_dim", "hidden_size"
        at = next(key for key in known if keys.data.get(key) is not None)
        keys.wrong(at, f"{head} elements of a head turn by the position, in pairs; make it an even number")
    keys.check()


def _name(path: Path, data: Mapping[str, Any], model_type: str) -> str:
    """Return a name for the network: of the file, unless all files are called so, else of the model."""
    told = data.get("_name_or_path")
    own = told.rstrip("/").rpartition("/")[2] if isinstance(told, str) else ""
    stem = printable(path.stem).strip()
    return stem if stem and stem != "config" else printable(own).strip() or model_type


def _notes(keys: Keys) -> Iterator[str]:
    """Yield notes on keys that are no sizes of their own."""
    if left := [f"{key} {number:,}" for key, number in keys.usual.items() if key != "max_position_embeddings"]:
        yield f"keys left out, and what their model type has then: {', '.join(left)}"
    if keys.inside("quantization_config"):
        yield "quantization_config is not read: --weights int8 or int4 times weights of fewer bytes"
    for name in _architectures(keys.document.data):
        if not name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
            yield f"architectures {printable(name)}: read with the product that rates the next token behind it"


def _architectures(data: Mapping[str, Any]) -> Sequence[str]:
    given = data.get("architectures")
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _counted(document: Document, parameters: Sequence[str], decoder: DecoderConfig, dims: Mapping[str, int]) -> str:
    """Return a note on the number of parameters, for the sizes that a run asks for."""
    sizes = {name: dims.get(name, each) for name, each in document.data["sizes"].items()}
    names = names_in(replace(document, data={"sizes": sizes}), 1)
    total = sum(size(each, 0, sys.maxsize, names) for each in parameters)
    shared = "; the last product has the weights of the embeddings" if decoder.tied else ""
    return f"{total:,} parameters{shared}"
