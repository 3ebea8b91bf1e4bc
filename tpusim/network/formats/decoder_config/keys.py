"""The keys of a config of Hugging Face: each is read, changes no layer, is told, or is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.words import few
from tpusim.input.document import Document
from tpusim.input.scalars import FLOAT, show, whole_number
from tpusim.network.formats import printable
from tpusim.network.ops.op import MOST_CHANNELS

T = TypeVar("T")

_NO_LAYER = frozenset((
    "model_type", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "auto_map",
    "tokenizer_class", "task_specific_params", "id2label", "label2id", "gradient_checkpointing", "problem_type",
    "initializer_range", "initializer_factor", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "attention_dropout", "hidden_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "embd_pdrop",
    "attn_pdrop", "resid_pdrop", "classifier_dropout", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "output_router_logits", "router_aux_loss_coef",
    "router_jitter_noise", "aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp", "cache_implementation",
    "attn_implementation", "num_return_sequences", "num_beams", "num_beam_groups", "temperature", "top_k", "top_p",
    "max_length", "min_length", "length_penalty", "repetition_penalty", "diversity_penalty", "typical_p", "n_ctx",
    "original_max_position_embeddings", "return_dict", "do_sample", "early_stopping", "torchscript",
))  # fmt: skip
"""Keys of training, of choosing tokens, and of files, on which no layer depends."""
_STRUCTURE = frozenset((
    "size", "sizes", "dim", "dims", "head", "heads", "layer", "layers", "expert", "experts", "rank", "window", "group",
    "groups", "bias", "norm", "norms", "pattern", "moe", "sparse", "softcapping", "multiplier", "factor", "conv", "ssm",
    "mamba", "kernel", "activation", "act", "rope", "rotary", "attn", "attention", "mlp", "ffn", "embedding",
    "embeddings", "position", "positions", "scaling", "hidden", "intermediate", "width", "depth", "gate", "qk", "kv",
    "q", "k", "v", "state", "router", "topk", "lora", "n", "num", "d", "block", "blocks", "types", "parallel",
    "residual", "encoder", "alibi", "tie", "clip", "types", "pruned",
))  # fmt: skip
"""Words of keys that layers depend on, as far as a name tells."""
_SAMPLED = 6


@dataclass
class Keys:
    """The keys of a config, or of the part of it at `path`, and which of them were read.

    Attributes:
        document: the file.
        data: the keys with their values.
        path: place of the part in the file, "" for all of it.
        problems: what is wrong with keys read so far.
        notes: what is to be told of them.
        usual: whole numbers that the file leaves out, with those that its model type has then.
    """

    document: Document
    data: Mapping[str, Any]
    path: str = ""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    usual: dict[str, object] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)
    _wrong: set[str] = field(default_factory=set)

    def whole(self, key: str, usual: int | None = None, least: int = 1, most: int = MOST_CHANNELS) -> int:
        """Return a whole number; where it is missing or null, the usual one, or 1 with a problem."""
        given = self._given(key, usual)
        if given is None:
            return 1
        if key not in self.data or self.data[key] is None:
            self.usual[key] = given
        try:
            return whole_number(given, least, most)
        except InputError as error:
            self.wrong(key, str(error))
            return least

    def maybe(self, key: str) -> int | None:
        """Return a whole number, or None where it is missing or null."""
        self._read.add(key)
        return self.whole(key) if self.data.get(key) is not None else None

    def real(self, key: str, usual: float, least: float = 0.0, most: float = 1e12) -> float:
        """Return a number above `least`; where it is missing or null, the usual one."""
        given = self._given(key, usual)
        # Python's JSON writes 1e-05, which is text to YAML.
        number = float(given) if isinstance(given, str) and FLOAT.fullmatch(given) else given
        if isinstance(number, bool) or not isinstance(number, int | float) or not least < number <= most:
            self.wrong(key, f"{show(given)} is no number above {least:g} up to {most:g}; write one such as {usual:g}")
            return usual
        return number

    def cap(self, key: str, usual: float) -> float:
        """Return a bound; where it is missing, the usual one; 0, where it is null or there is none."""
        self._read.add(key)
        return self.real(key, 30.0) if self.data.get(key) is not None else 0.0 if key in self.data else usual

    def truth(self, key: str, usual: bool) -> bool:
        """Return a truth value; where it is missing or null, the usual one."""
        given = self._given(key, usual)
        if not isinstance(given, bool):
            self.wrong(key, f"{show(given)} is no truth value; write true or false")
        return given is True

    def word(self, key: str, known: Mapping[str, T], usual: str | None = None) -> T:
        """Return what a word stands for; where it is missing or null, the usual one."""
        given = self._given(key, usual)
        if isinstance(given, str) and given in known:
            return known[given]
        if given is not None:
            hint = did_you_mean(str(given), known) or ";"
            self.wrong(key, f"{show(given)} is not known here{hint} allowed: {', '.join(known)}")
        return next(iter(known.values()))

    def words(self, key: str, known: Sequence[str], many: int) -> list[str] | None:
        """Return a word for each of `many` layers, or None where the key is missing or null."""
        self._read.add(key)
        given = self.data.get(key)
        if given is None:
            return None
        if not isinstance(given, list) or len(given) != many or not all(each in known for each in given):
            self.wrong(key, f"{show(given)} names no {many} layers; write one of {', '.join(known)} for each")
            return [known[0]] * many
        return given

    def inside(self, key: str) -> Mapping[str, Any]:
        """Return a mapping; where there is none, an empty one."""
        self._read.add(key)
        given = self.data.get(key)
        if given is not None and not isinstance(given, Mapping):
            self.wrong(key, f"{show(given)} is no mapping; write one, or null")
        return given if isinstance(given, Mapping) else {}

    def only(self, key: str, allowed: object, why: str) -> None:
        """Refuse any other value of a key than one, which is also the usual one."""
        self._read.add(key)
        given = self.data.get(key)
        if given is not None and given != allowed:
            self.wrong(key, f"{show(given)} is not known here: {why}; allowed: {show(allowed)}")

    def multiple(self, key: str, number: int, of: str, divisor: int) -> None:
        """Refuse a number that is no multiple of another key's."""
        if not {key, of} & self._wrong and number % divisor:
            self.wrong(key, f"{number} is no multiple of {of}, {divisor}; write one that is, or a divisor there")

    def at_most(self, key: str, number: int, of: str, most: int) -> None:
        """Refuse a number above another key's."""
        if not {key, of} & self._wrong and number > most:
            self.wrong(key, f"{number} is above {of}, {most}; write {most} at most")

    def tells(self, key: str, note: str) -> None:
        """Tell of a key that changes no layer here, where the file has it."""
        self._read.add(key)
        if self.data.get(key):
            self.notes.append(f"{key} {note}")

    def ignores(self, *keys: str) -> None:
        """Count keys as read that change no layer of this model type."""
        self._read.update(keys)

    def wrong(self, key: str, message: str) -> None:
        """Add what is wrong with a key, once."""
        if key in self._wrong:
            return
        self._wrong.add(key)
        self.problems.append(self.document.problem(f"{self.path}.{key}" if self.path else key, message))

    def check(self) -> None:
        """Raise InputError with all that is wrong so far."""
        if self.problems:
            raise InputError(self.problems)

    def left_over(self) -> Iterator[str]:
        """Yield a note on keys that were not read; those that layers may depend on become problems."""
        told: list[str] = []
        for key, value in self.data.items():
            # Whatever it is, it is switched off.
            if key in self._read or key in _NO_LAYER or key.startswith("_") or not value:
                continue
            if {*key.casefold().split("_")} & _STRUCTURE:
                hint = did_you_mean(key, self._read - self.data.keys()) or ";"
                says = f"not known of this model type, and layers may depend on it{hint} known: "
                self.wrong(key, f"{says}{', '.join(sorted(self._read))}; set it to null to leave it out")
            else:
                told.append(printable(key))
        if told:
            yield f"keys that are not read: {few(told, _SAMPLED)}"

    def _given(self, key: str, usual: object) -> object:
        self._read.add(key)
        if self.data.get(key) is not None:
            return self.data[key]
        if usual is None:
            self.wrong(key, "required key is missing; add it, as the model's config.json has it")
        return usual
