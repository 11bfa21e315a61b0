"""A number that the paper prints beside ours, with its place in `paper_values.json`; and all settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedproof.config import Config
from paper.clean import Comparison
from paper.published import Published
from paper.rows import Rows
from paper.study import Point

Place = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Printed:
    """One number of the paper.

    Attributes:
        table: which of the paper's tables, or what else it belongs to.
        what: which entry of it.
        place: of the number in `paper_values.json`.
        published, ours: None: ours is not trained yet, or not a number of ours at all; nan: there is none.
        within: how far apart the two may be to count as the same.
        why: where they are not: the reason; empty: unexplained.
        elsewhere: whether ours is on other data, or another machine.
    """

    table: str
    what: str
    place: Place
    published: float
    ours: float | None
    within: float
    why: str = ""
    elsewhere: bool = False

    @property
    def close(self) -> bool | None:
        """Whether the two agree; None where there is nothing to compare with yet."""
        return None if self.ours is None else abs(self.ours - self.published) <= self.within * (1 + 1e-9)


@dataclass(frozen=True)
class Sources:
    """What the comparisons are made of."""

    points: Sequence[Point]
    rows: Rows
    published: Published
    clean: Sequence[Comparison]

    @cached_property
    def configs(self) -> dict[str, Config]:
        """By `study/panel`, the experiment of its first point at the paper's scale."""
        found: dict[str, Config] = {}
        for point in self.points:
            if point.config is not None:
                found.setdefault("/".join(point.key.split("/")[:2]), point.config)
        return found


# --- settings -----------------------------------------------------------------------------------------------

_EXPERIMENTS = {
    "user-mnist": ("certified-user-epsilon/mnist", "inefficacy-users/mnist-bkd-alpha"),
    "user-cifar": ("certified-user-epsilon/cifar", "inefficacy-users/cifar-bkd-alpha"),
    "user-sent140": ("certified-user-epsilon/tweets", "inefficacy-users/tweets-lf-alpha"),
    "instance-mnist": ("instances-mnist/certified", "instances-mnist/over-k"),
    "instance-cifar": ("instances-cifar/certified", "instances-cifar/over-k"),
}
_SETTINGS = "Settings"
_VECTORS = 100.0  # dimensions of the word vectors that are to be had
_DIFFERS = {
    ("user-sent140-model", "vectors"): "vectors of 300 dimensions are not to be had here",
    ("instance-mnist", "local_steps"): "the printed ε follow from 26 steps a round",
    ("user-sent140", "users"): "as many as the data have, which is no setting here",
    ("instance-mnist", "clip_norm"): "the paper's code clips to 1.0, and its accuracies are met with that",
}


def settings(sources: Sources) -> Iterator[Printed]:
    """Every setting that the paper prints, beside that of our experiments."""
    for name, (certified, attacked) in _EXPERIMENTS.items():
        config, under = sources.configs.get(certified), sources.configs.get(attacked)
        for key, value in sources.published.values["setup"][name].items():
            if key != "note":
                yield Printed(
                    table=_SETTINGS,
                    what=f"{name}, {key.replace('_', ' ')}",
                    place=("setup", name, key),
                    published=value,
                    ours=_setting(under if key == "cost_bound" else config, key),
                    within=0.0,
                    why=_DIFFERS.get((name, key), ""),
                )
    config = sources.configs.get(_EXPERIMENTS["user-mnist"][0])
    under = sources.configs.get("inefficacy-users/mnist-bkd-gamma")
    values = sources.published.values["setup"]["all"]
    everywhere = {
        "momentum": _setting(config, "momentum"),
        "weight_decay": _setting(config, "weight_decay"),
        "replicas_certified_accuracy": _setting(config, "replicas"),
        "replicas_inefficacy": _setting(under, "replicas"),
        "attack_scale": _setting(sources.configs.get("inefficacy-users/mnist-bkd-alpha"), "attack_scale"),
        "poison_fraction": _setting(under, "poison_fraction"),
    }
    for key, value in values.items():
        yield setting_of("all", key, ("setup", "all", key), value, everywhere[key])
    tweets = sources.configs.get("certified-user-epsilon/tweets")
    ours = {
        "user-sent140-model": {
            "hidden": float(tweets.model.hidden[0]) if tweets and tweets.model.hidden else None,
            "vectors": _VECTORS,
        },
        "robust-accuracy": {
            "replicas": _setting(sources.configs.get("robust-accuracy/user-dp-data"), "replicas")
        },
    }
    for name, own in ours.items():
        for key, value in sources.published.values["setup"][name].items():
            found = setting_of(name, key, ("setup", name, key), value, own[key])
            yield replace(found, why=_DIFFERS.get((name, key), ""))
    scales = _varied(sources, "inefficacy-users/mnist-bkd-gamma", "attack.scale")
    for place, value in enumerate(sources.published.values["attack_scales"]):
        scale = value if float(value) in scales else None
        yield setting_of("attacks", f"γ, {place + 1}.", ("attack_scales", place), value, scale)


def setting_of(name: str, key: str, place: Place, value: float, ours: float | None) -> Printed:
    """A setting, which is the same or is not."""
    what = f"{name}, {key.replace('_', ' ')}"
    return Printed(table=_SETTINGS, what=what, place=place, published=value, ours=ours, within=0.0)


def _setting(config: Config | None, key: str) -> float | None:
    if config is None:
        return None
    if key == "users":
        return config.data.users or config.mechanism.population
    found: Any = {
        "cost_bound": config.attack.cost_bound,
        "attack_scale": config.attack.scale,
        "poison_fraction": config.attack.poison_fraction,
        "replicas": config.ensemble.replicas,
    }
    value = found[key] if key in found else getattr(config.mechanism, key)
    return None if value is None else float(value)


def _varied(sources: Sources, panel: str, key: str) -> set[float]:
    return {float(point.values[key]) for point in sources.points if point.key.startswith(f"{panel}/")}
