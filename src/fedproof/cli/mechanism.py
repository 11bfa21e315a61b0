"""The options that describe a mechanism, what they mean together, and the mechanism itself."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import Annotated, Any, get_type_hints

import typer

from fedproof import check
from fedproof.cli.belonging import Kind, flag
from fedproof.mechanisms import (
    Clipping,
    Everyone,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    Mechanism,
    PerLayer,
    Poisson,
    Sampling,
    SamplingKind,
    UserFedAvg,
)
from fedproof.threat import Relation, Unit

_MOST_NOISE = 1e6

Given = Mapping[str, Any]


EpsilonRelation = Annotated[
    Relation | None,
    typer.Option(
        help="What --epsilon was accounted for: join if for one unit added or removed (Opacus, TensorFlow "
        "Privacy and dp_accounting by default), replace if for one unit replaced by another."
    ),
]
RelationOption = Annotated[
    Relation,
    typer.Option(
        help="What k poisoned units did: replace means that k honest units were corrupted, join that k came "
        "on top of the honest ones."
    ),
]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Who takes part in how many rounds, and with how much noise.

    Options:
        noise_multiplier: Standard deviation of the Gaussian noise on the SUM of the clipped updates, divided
            by the clip norm. Noise on the mean: multiply by the fixed number you divide by.
        sampling: How the users of a round are drawn: poisson, each by a coin of its own; fixed, exactly
            --cohort of --users; none, all users in every round. [default: poisson with
            --sampling-probability]
        sampling_probability: Chance that one given user takes part in a round. With --unit instance: chance
            that one given instance enters a batch, the largest over all users.
        cohort: Users in a round, out of --users: the expected number or the exact one.
        users: Number of users that --cohort is drawn from.
        rounds: Rounds of training behind one model.
        steps: InsDP-FedAvg: noisy steps that a user takes on its own data in one round.
        unit: What one poisoned unit is: all data of a user, or one labelled instance.
    """

    noise_multiplier: float | None = None
    sampling: SamplingKind | None = None
    sampling_probability: float | None = None
    cohort: int | None = None
    users: int | None = None
    rounds: int = 1
    steps: int = 1
    unit: Unit = Unit.USER


@dataclass(frozen=True, kw_only=True)
class MechanismOptions(SamplingOptions):
    """A whole mechanism with noise.

    Options:
        noise_multiplier: Standard deviation of the Gaussian noise on the SUM of the clipped updates, divided
            by the clip norm. Noise on the mean: multiply by the fixed number you divide by. InsDP-FedSGD: of
            the noise that each user adds to its own sum of clipped gradients.
        per_layer: Number of layers, if each layer of an update is clipped to the clip norm by itself:
            together they may reach the square root of this number times the clip norm.
        batch_probability: InsDP-FedSGD (--unit instance): chance that an instance enters the batch of its
            user, if that user is one of the --cohort drawn from --users.
    """

    per_layer: int | None = None
    batch_probability: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SamplingOptions):
    """What is known of a mechanism before training.

    Options:
        users: Number of users that a cohort is drawn from. --find mechanism: of all users, or of all
            instances with --unit instance.
    """


# --- a dataclass of options as options of a command ---------------------------------------------------------

_OPTIONS = "\n\nOptions:\n"  # heads what a docstring says of them
# What the library calls an option, where that is not the option's own name.
_LIBRARY_NAMES = {"num_layers": "per_layer", "local_steps": "steps", "features": "width", "anchors": "width"}


def unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its parameter `options`, a dataclass, as options of their own.

    Typer reads options from a signature alone, so the signature is what changes. The command's parameter
    `given` gets the options that were typed, by name. Where the library refuses a value, the message names
    the option. Both docstrings explain options, as typer has them explain commands.
    """
    signature, hints = inspect.signature(command), _explained(command)
    kind = hints.pop("options", None)
    inner = {} if kind is None else _explained(kind)
    defaults = {} if kind is None else {field.name: field.default for field in fields(kind)}
    named = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    own = [named(name, default=default, annotation=inner[name]) for name, default in defaults.items()]
    context = named("context", annotation=typer.Context)
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in signature.parameters.items()
        if name not in ("options", "given")
    ]

    @wraps(command)
    def called(context: typer.Context, **values: Any) -> None:
        typed = _typed(context)
        given = {name: value for name, value in values.items() if name in typed}
        if kind is not None:
            values["options"] = kind(**{name: values.pop(name) for name in defaults})
            values["given"] = given
        try:
            command(**values)
        except ValueError as error:
            raise ValueError(_as_options(str(error), given)) from error
        except ArithmeticError as error:
            raise ValueError(f"numbers too large or too small to compute with: {_numbers(given)}") from error

    called.__doc__ = (inspect.getdoc(command) or "").partition(_OPTIONS)[0]
    called.__signature__ = signature.replace(parameters=[context, *kept, *own])  # type: ignore[attr-defined]
    called.__annotations__ = {"context": typer.Context} | hints | inner
    return called


def _explained(owner: Any) -> dict[str, Any]:
    """The types of a command's parameters, or a class's fields, as options where a docstring says of what."""
    docs = [inspect.getdoc(one) or "" for one in reversed(getattr(owner, "__mro__", [owner]))]
    told = "\n".join(doc.partition(_OPTIONS)[2] for doc in docs)
    rows = [row.strip().partition(": ") for row in told.replace("\n        ", " ").splitlines()]
    helps = {name: typer.Option(help=text) for name, _, text in rows}
    hints = get_type_hints(owner, include_extras=True)
    return {name: Annotated[hint, helps[name]] if name in helps else hint for name, hint in hints.items()}


def _typed(context: typer.Context) -> set[str]:
    """The options that stand on the command line, those with their default values included."""
    options = [str(one.name) for one in context.command.params if one.param_type_name == "option"]
    sources = {name: context.get_parameter_source(name) for name in options}
    return {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}


def _as_options(message: str, given: Given) -> str:
    """The library's message about a parameter, about the option that it came from.

    >>> _as_options("num_layers = 0 must be a whole number", {"per_layer": 0})
    '--per-layer = 0 must be a whole number'
    """
    word, _, rest = message.partition(" ")
    name = _LIBRARY_NAMES.get(word, word)
    if name not in given:
        return message
    return f"{flag(name)} {rest}" if rest.startswith("= ") else f"{flag(name)} {given[name]}: {message}"


def _numbers(given: Given) -> str:
    numbers = {name: value for name, value in given.items() if type(value) in (int, float)}
    return ", ".join(f"{flag(name)} {value}" for name, value in numbers.items())


# --- what the options mean ----------------------------------------------------------------------------------


def mechanism_kinds(options: SamplingOptions, given: Given) -> list[Kind]:
    """Which mechanism the options describe, and how its cohorts are drawn."""
    if options.unit == Unit.INSTANCE:
        return [Kind.FEDSGD if "batch_probability" in given else Kind.FEDAVG]
    drawing = _drawing(options, given)
    return [Kind.USER] if drawing is None else [Kind.USER, drawing]


def _drawing(options: SamplingOptions, given: Given) -> Kind | None:
    """How users are drawn; None if nothing is said about it."""
    match options.sampling:
        case SamplingKind.NONE:
            return Kind.EVERYONE
        case SamplingKind.FIXED:
            return Kind.FIXED
        case SamplingKind.POISSON:
            return Kind.BY_PROBABILITY if "sampling_probability" in given else Kind.POISSON
    if "sampling_probability" in given:
        return Kind.BY_PROBABILITY
    return None if options.cohort is None and options.users is None else Kind.BY_COUNT


def check_relation(relation: Relation, kinds: list[Kind]) -> None:
    """Refuse units that join where that has no meaning, even if no number would show it."""
    if relation is Relation.JOIN and Kind.FIXED in kinds and Kind.RENYI in kinds:
        raise ValueError(
            "--relation = 'join' is not defined for cohorts of fixed size and --method renyi: use --relation "
            "replace, or --method margin"
        )


def sampling_of(options: SamplingOptions) -> Sampling:
    """How units are drawn into one noisy sum; at instance level, into a batch."""
    if options.sampling == SamplingKind.NONE:
        return Everyone()
    if options.sampling_probability is not None:
        check.probability(**{"--sampling-probability": options.sampling_probability})
        return Poisson(probability=options.sampling_probability)
    if options.cohort is None:
        raise ValueError(
            "how users are drawn is missing: give --sampling-probability, or --sampling poisson or fixed "
            "with --cohort and --users, or --sampling none if all users take part in every round"
        )
    drawn = _cohort(options)
    return drawn if options.sampling == SamplingKind.FIXED else Poisson(probability=drawn.probability)


def _cohort(options: SamplingOptions) -> FixedSize:
    assert options.cohort is not None, "checked by the table of options"
    assert options.users is not None, "checked by the table of options"
    return FixedSize(cohort=options.cohort, users=options.users)


def check_noise(multiplier: float, least: float = 1e-3) -> None:
    """Noise in a range in which it makes a difference and can be computed with."""
    check.positive(**{"--noise-multiplier": multiplier})
    if not least <= multiplier <= _MOST_NOISE:
        raise ValueError(f"--noise-multiplier = {multiplier:g} must be between {least:g} and {_MOST_NOISE:g}")


def mechanism_of(options: MechanismOptions, kinds: list[Kind]) -> Mechanism:
    """The mechanism that the options describe; ValueError names the option that is wrong."""
    noise = options.noise_multiplier
    assert noise is not None, "checked by the table of options"
    check_noise(noise)
    check.count(**{"--rounds": options.rounds, "--steps": options.steps})
    if Kind.FEDSGD in kinds:
        assert options.batch_probability is not None
        return InstanceFedSGD(
            rounds=options.rounds,
            noise_multiplier=noise,
            sampling=_cohort(options),
            batch_probability=options.batch_probability,
        )
    sampling = sampling_of(options)
    if Kind.FEDAVG in kinds:
        return InstanceFedAvg(
            rounds=options.rounds,
            local_steps=options.steps,
            noise_multiplier=noise,
            batch_probability=sampling.probability,
        )
    layers = options.per_layer
    clipping: Clipping = Flat() if layers is None else PerLayer(num_layers=layers)
    return UserFedAvg(rounds=options.rounds, noise_multiplier=noise, sampling=sampling, clipping=clipping)
