"""A generation: tokens made one after another, each behind all that are there before it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from tpusim.base.errors import InputError
from tpusim.base.words import counted, with_settings
from tpusim.flow.jobs import resolve
from tpusim.machines.family import Machine, family_of, of_tpus_alone
from tpusim.network.ops.array_op import Gemm
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult
from tpusim.study.kinds import KnownKinds, layers_of

CHECKED = 8
"""Tokens between the first and the last that are simulated, too."""
WEIGHTS, ATTENTION, VECTOR, HEAD = "weights", "attention", "vector", "LM head"
"""Parts of a token: products with weights, what reads the cache, the vector unit's other work, and the last product
with what follows it, whose results rate every next token. Which of these is taken is not timed.
"""
FEWEST_ON_A_LINE = 3
"""Simulated tokens on one plan from which a line is told: two are always on one."""


@dataclass(frozen=True)
class TokenShare:
    """A part of a token's time.

    Attributes:
        name: weights, attention, vector or LM head.
        layers: layers of the part.
        cycles: cycles that they take.
        hbm_bytes: bytes that they read from HBM and write there.
    """

    name: str
    layers: int
    cycles: int
    hbm_bytes: int


@dataclass(frozen=True)
class Token:
    """A token of a generation.

    Attributes:
        context: tokens whose keys it sees, its own included.
        cycles: cycles that it takes; between tokens that were simulated, on the line through them.
        parts: parts of its time, in the order in which they come; of a simulated token alone.
        plan: number of the plan that its layers have: their lowerings, blocks and passes; of a simulated token alone.
    """

    context: int
    cycles: float
    parts: tuple[TokenShare, ...] = ()
    plan: int | None = None

    @property
    def simulated(self) -> bool:
        """Whether it was simulated."""
        return bool(self.parts)

    @property
    def hbm_bytes(self) -> int:
        """Bytes that a simulated token reads from HBM and writes there."""
        return sum(each.hbm_bytes for each in self.parts)


@dataclass(frozen=True)
class Prompt:
    """What a generation begins with: tokens that are read at once, and make the first token.

    Attributes:
        tokens: tokens of each sequence.
        cycles: cycles until the first token is there.
        parts: parts of that time, as those of a token.
    """

    tokens: int
    cycles: int
    parts: tuple[TokenShare, ...]


@dataclass(frozen=True)
class TokenLine:
    """Simulated tokens in a row that are on one plan, and the line from the first to the last.

    Attributes:
        first, last: keys that these tokens see.
        slope: cycles that each key adds.
        off: cycles by which a token between them is off the line, at most.
    """

    first: int
    last: int
    slope: float
    off: float


@dataclass(frozen=True)
class Generation:
    """A generation of `batch` sequences.

    Attributes:
        workload, hardware: names of what ran.
        changes: fields of the machine that were set beside its file, by path, as they were written.
        chips: chips that share the network, of whose work one's part was timed.
        chip_cores: cores of the chip of which the machine is one.
        batch: sequences, each of which gets every token.
        tokens: tokens in order; behind a prompt, without the first, which the prompt makes.
        off: largest distance of a simulated token from the line through the simulated ones beside it, as a share of its
            cycles; 0 where all tokens were simulated.
        clock_hz: cycles a second.
        bandwidth: bytes that HBM moves in a second.
        prompt: what is read ahead of these tokens; None: its time is not asked for.
    """

    workload: str
    hardware: str
    batch: int
    tokens: tuple[Token, ...]
    off: float
    clock_hz: int
    bandwidth: int
    changes: Mapping[str, str] = field(default_factory=dict)
    chips: int = 1
    chip_cores: int = 1
    prompt: Prompt | None = None

    @property
    def machine(self) -> str:
        """The machine's name for people, with what was set."""
        return with_settings(self.hardware, self.changes)

    @property
    def first_seconds(self) -> float:
        """Seconds in which the prompt is read, until the first token is there; 0 without a prompt."""
        return self.prompt.cycles / self.clock_hz if self.prompt else 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all tokens, without those of a prompt."""
        return sum(each.cycles for each in self.tokens) / self.clock_hz

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of all sequences together."""
        return len(self.tokens) * self.batch / self.seconds

    @property
    def bound_seconds(self) -> float:
        """Seconds in which HBM could move the bytes of the first token."""
        return self.tokens[0].hbm_bytes / self.bandwidth

    @property
    def simulated(self) -> tuple[Token, ...]:
        """The tokens that were simulated, in order."""
        return tuple(each for each in self.tokens if each.simulated)

    @property
    def plan_changes(self) -> tuple[tuple[int, int], ...]:
        """Keys of simulated tokens beside one another that are on different plans."""
        return tuple((one.context, other.context) for one, other in pairwise(self.simulated) if one.plan != other.plan)

    @property
    def lines(self) -> tuple[TokenLine, ...]:
        """Lines through simulated tokens, wherever enough in a row are on one plan."""
        on_one = (tuple(tokens) for _, tokens in groupby(self.simulated, lambda each: each.plan))
        return tuple(_line(tokens) for tokens in on_one if len(tokens) >= FEWEST_ON_A_LINE)


def _line(tokens: Sequence[Token]) -> TokenLine:
    first, last = tokens[0], tokens[-1]
    slope = (last.cycles - first.cycles) / (last.context - first.context)
    off = max(abs(each.cycles - first.cycles - slope * (each.context - first.context)) for each in tokens)
    return TokenLine(first.context, last.context, slope, off)


def generate(
    at: Callable[[int], Workload],
    machine: Machine,
    first: int,
    tokens: int,
    lowering: str | None = None,
    progress: Callable[[int, str], None] = lambda done, what: None,
    prompt: Workload | None = None,
) -> Generation:
    """Time a generation of `tokens` tokens, the first of which sees `first` keys, its own included.

    The first, the last and eight between them are simulated; the others lie on lines between these. Where the plan of
    some layer changes, cycles leave the line: `changes` and `lines` of the outcome tell where.

    Args:
        at: the workload of a token, by the keys that it sees.
        machine: a TPU.
        first: keys that the first token sees.
        tokens: number of tokens.
        lowering: that of the run.
        progress: called with the tokens that are done, and what is next.
        prompt: what reads the tokens ahead of the first of these, if its time is asked for.

    Raises:
        InputError: the machine is no TPU, products have more rows from token to token, as where a prompt is read, or
            what `simulate` raises.

    Examples:
        >>> import tpusim
        >>> from tpusim.study.generation import generate
        >>> machine = tpusim.load_hardware("tpu_v6e")
        >>> def at(keys):
        ...     return tpusim.Workload("scores", 1, [tpusim.Gemm("scores", m=4, n=keys, k=128, groups=8)])
        >>> made = generate(at, machine, 512, 3)
        >>> [token.context for token in made.tokens], made.off
        ([512, 513, 514], 0.0)
    """
    if family_of(machine).name != "tpu":
        raise of_tpus_alone(machine, "a generation")
    _check_rows(at(first), at(first + 1))
    # Tokens evenly spread: where the plan of a layer changes, some of them leave the line, and `off` tells how far.
    places = [*dict.fromkeys(round(first + at * (tokens - 1) / (CHECKED + 1)) for at in range(CHECKED + 2))]
    if tokens <= CHECKED + 2:
        places = [*range(first, first + tokens)]
    read = None
    if prompt is not None:
        progress(0, f"a prompt of {first - 1:,}")
        jobs = resolve(prompt, machine, lowering)
        results = layers_of(jobs, {})
        read = Prompt(first - 1, sum(each.cycles for each in results), _parts(jobs.work, results))
    # Only what reads the cache differs from token to token.
    known: KnownKinds = {}
    plans: dict[Hashable, int] = {}
    found: list[Token] = []
    for number, context in enumerate(places):
        progress(number, f"a token behind {context - 1:,}")
        jobs = resolve(at(context), machine, lowering)
        results = layers_of(jobs, known)
        plan = plans.setdefault(tuple((each.lowering, each.passes, each.blocking) for each in results), len(plans))
        found.append(Token(context, sum(each.cycles for each in results), _parts(jobs.work, results), plan))
    made = [found[0]]
    for one, other in pairwise(found):
        slope = (other.cycles - one.cycles) / (other.context - one.context)
        between = range(one.context + 1, other.context)
        made += [Token(each, one.cycles + slope * (each - one.context)) for each in between]
        made.append(other)
    off = max((_off(*each) for each in zip(found, found[1:], found[2:], strict=False)), default=0.0)
    off = off if tokens > len(found) else 0.0
    work = at(first)
    told = work.name, machine.name, work.batch, tuple(made), off
    parts = work.chips, family_of(machine).chip_cores(machine)
    return Generation(*told, machine.clock_hz, machine.hbm_bytes_per_s, dict(machine.changes), *parts, read)


def _check_rows(work: Workload, later: Workload) -> None:
    """Raise InputError where a product has more rows for the token behind."""
    for one, other in zip(work.layers, later.layers, strict=True):
        if isinstance(one, Gemm) and isinstance(other, Gemm) and one.m < other.m:
            says = f"layer {one.name} has {counted(one.m, 'row')} for the first token and {other.m:,} for the next"
            raise InputError(
                f"--tokens: {says}, as if each read all tokens ahead of it again; ask for a phase in which each reads "
                "itself alone, such as --phase decode"
            )


def _off(before: Token, here: Token, behind: Token) -> float:
    """Return the distance of the middle token from the line through the other two, as a share of its cycles."""
    along = (here.context - before.context) / (behind.context - before.context)
    return abs(here.cycles - (before.cycles + (behind.cycles - before.cycles) * along)) / here.cycles


def _parts(work: Workload, results: Sequence[LayerResult]) -> tuple[TokenShare, ...]:
    """Return the parts of a token, in the order in which they come."""
    sources = work.sources()
    readers = {layer.name for layer in work.layers if any(each.cache for each in sources.get(layer.name, ()))}
    # The softmax between products of an attention has the attention's name, too.
    attention = {name.rpartition(".")[0] for name in readers if "." in name}
    last = max((at for at, layer in enumerate(work.layers) if layer.unit == "array"), default=0)

    def part(at: int) -> str:
        layer = work.layers[at]
        if at >= last:
            return HEAD
        if layer.name in readers or layer.name.rpartition(".")[0] in attention:
            return ATTENTION
        return WEIGHTS if layer.unit == "array" else VECTOR

    mine: dict[str, list[LayerResult]] = {name: [] for name in (WEIGHTS, ATTENTION, VECTOR, HEAD)}
    for at, result in enumerate(results):
        mine[part(at)].append(result)
    return tuple(
        TokenShare(
            name,
            len(own),
            sum(each.cycles for each in own),
            sum(each.hbm_read_bytes + each.hbm_write_bytes for each in own),
        )
        for name, own in mine.items()
        if own
    )
