"""Every ε, accuracy, K and second that the paper prints in tables and lists beside ours."""

import math
from collections.abc import Iterator, Sequence

from fedproof.config import Config
from paper import captions
from paper.clean import CLOSE
from paper.defences import certified_share, defended, no_attack
from paper.predictions import contradicted, trained_as_there
from paper.printed import Place, Printed, Sources, setting_of, settings
from paper.published import Published
from paper.results import Budgets, Clean, Dopamine, RunTime, Trained
from paper.rows import Rows, of_kind
from paper.sizes import INSTANCES, PANELS, Size, best, nearest, size_of, sizes_of


def printed(sources: Sources) -> list[Printed]:
    """Every number of the file."""
    return [
        *settings(sources),
        *_training(sources),
        *_best_epsilon(sources),
        *_largest(sources),
        *_budget(sources),
        *_clipping(sources),
        *_seconds(sources),
        *_robust(sources),
        *captions.printed(sources),
    ]


# --- ε and clean accuracies ---------------------------------------------------------------------------------

BUDGETS = "Privacy budgets ε, to four decimals"
UNDER = "Accuracy under"
_PRIVATE = "user-dp eps "
_NOT_THEIR_DATA = "not the paper's data"


def _training(sources: Sources) -> Iterator[Printed]:
    """Noise and rounds are what our points are found by; ε and accuracies are compared."""
    budgets = {
        (one.experiment, one.sigma, one.rounds): one.paper
        for _, found in of_kind(sources.rows.under("privacy-budgets"), Budgets)
        for one in found.rows
    }
    clean = {
        (one.published.experiment, one.published.sigma, one.published.rounds): one for one in sources.clean
    }
    for entry, places in sources.published.entries():
        key = (entry.experiment, entry.sigma, entry.rounds)
        what = f"{entry.experiment}, σ = {entry.sigma:g}, {entry.rounds} round{'s' * (entry.rounds > 1)}"
        for name, place in places.items():
            value = {
                "sigma": entry.sigma,
                "rounds": entry.rounds,
                "epsilon": entry.epsilon,
                "accuracy": entry.accuracy,
            }[name]
            if value is None:
                continue
            trained = key in budgets or key in clean
            ours: float | None = value if trained else None
            within, why, table = 0.0, "", f"Noise and rounds, {entry.experiment}"
            if name == "epsilon":
                ours, table = budgets.get(key), BUDGETS
            elif name == "accuracy":
                found, table = clean.get(key), f"Clean accuracy, {entry.experiment}"
                ours, within = found.measured if found else None, CLOSE
                if found is not None:
                    why = _NOT_THEIR_DATA if found.substitute else found.chance
            yield Printed(
                table=table,
                what=what,
                place=place,
                published=value,
                ours=ours,
                within=within,
                why=why,
                elsewhere=why == _NOT_THEIR_DATA,
            )
    place = ("accuracy_printed_again", "instance-cifar rounds 1 sigma 8")
    again = [one.accuracy for _, one in of_kind(sources.rows.under("instances-cifar/over-k"), Trained)]
    yield Printed(
        table="Clean accuracy, instance-cifar",
        what="instance-cifar, σ = 8, 1 round, printed a second time",
        place=place,
        published=sources.published.values[place[0]][place[1]],
        ours=100 * again[0] if again else None,
        within=CLOSE,
    )


# --- K ------------------------------------------------------------------------------------------------------


def _elsewhere(rows: Rows, published: Published, name: str) -> str:
    """Why another ε is the best of ours."""
    if name == "user-sent140":
        return _NOT_THEIR_DATA
    if name != "instance-mnist":
        return ""
    why = "certificates are of Poisson batches, whose models stay accurate under more noise"
    return "; ".join(
        [why, *(f"trained as there, {one.evidence}" for one in trained_as_there(rows, published))]
    )


def _best_epsilon(sources: Sources) -> Iterator[Printed]:
    rows, published = sources.rows, sources.published
    for place in ("best_epsilon_for_largest_k", "best_epsilon_said_again"):
        for name, value in published.values[place].items():
            found = sizes_of(rows, PANELS[name][1])
            top = best(found) if found else None
            same = top is not None and top is nearest(found, value)
            yield Printed(
                table="ε of the largest K",
                what=PANELS[name][0] + (", said again" if place == "best_epsilon_said_again" else ""),
                place=(place, name),
                published=value,
                ours=top.epsilon if top else None,
                within=abs(top.epsilon - value) if top and same else 0.0,  # no other ε of ours is nearer
                why=contradicted(published, name) or _elsewhere(rows, published, name),
            )
    for name, value in published.best_epsilon_at_two.items():
        curves = [
            (one.curve("paper", None, False)[2:3] or (0.0,), one.epsilon["paper"])
            for _, one in of_kind(rows.under(PANELS[name][1]), Clean)
            if one.epsilon
        ]
        share, at = max(curves, default=((0.0,), None))
        yield Printed(
            table="ε that certifies most at k = 2",
            what=PANELS[name][0],
            place=("best_epsilon_for_k_2", name),
            published=value,
            ours=at if share[0] or at is None else math.nan,
            within=1e-4,
            why=_NOT_THEIR_DATA if name == "user-sent140" and not share[0] else "",
        )


def _largest(sources: Sources) -> Iterator[Printed]:
    """K, printed as a whole number: ours counts as the same if it is rounded to it."""
    rows, values = sources.rows, sources.published.values["largest_k"]
    near = {
        "user-mnist eps 0.6298": ("user-mnist", 0.6298),
        "user-mnist eps 0.4": ("user-mnist", 0.4),
        "instance-mnist eps 0.4": ("instance-mnist", 0.4),
    }
    for key, value in values.items():
        if key in near:
            name, epsilon = near[key]
            found = sizes_of(rows, PANELS[name][1])
            ours, why = (nearest(found, epsilon).middle if found else None), _beside(found, epsilon)
        else:
            sizes = [size_of(rows, row, sure=True) for row, _ in of_kind(rows.under("overall-budget"), Clean)]
            ours, why = (sizes[0].middle if sizes and sizes[0] else None), ""
        place = ("largest_k", key)
        yield Printed(
            table="Largest K", what=key, place=place, published=value, ours=ours, within=0.5, why=why
        )
    [(key, value)] = sources.published.values["overall_privacy_cost"].items()
    cost = [
        (row.replicas or 0) * one.epsilon["paper"]
        for row, one in of_kind(rows.under("overall-budget"), Clean)
    ]
    yield Printed(
        table="Largest K",
        what=f"overall ε, {key}",
        place=("overall_privacy_cost", key),
        published=value,
        ours=cost[0] if cost else None,
        within=0.01,
        why="70 × 0.145 is 10.15: the paper multiplies an ε of three digits",
    )
    for key, value in sources.published.values["user_against_instance_level"].items():
        found = sizes_of(rows, PANELS["user-mnist"][1])
        user = nearest(found, 0.4) if found else None
        epsilon = key == "epsilon"
        yield Printed(
            table="Largest K",
            what=f"users against instances on MNIST, {key}",
            place=("user_against_instance_level", key),
            published=value,
            ours=None if user is None else user.epsilon if epsilon else INSTANCES * user.middle,
            within=0.05 if epsilon else INSTANCES / 2,
            why="" if epsilon else f"250 instances to a user; its 200 users hold {INSTANCES:.0f} each",
        )
    config = sources.configs.get(PANELS["user-mnist"][1])
    percent = sources.published.values["confidence"]["percent"]
    sure = None if config is None else 100 * (1 - config.certificate.failure_probability)
    yield setting_of("certified accuracy", "confidence, %", ("confidence", "percent"), percent, sure)


# --- everything else ----------------------------------------------------------------------------------------


def _beside(found: Sequence[Size], epsilon: float) -> str:
    """K at the ε on the other side of a printed one, which may be meant as well."""
    if not found:
        return ""
    here = nearest(found, epsilon)
    others = [one for one in found if (one.epsilon > epsilon) is not (here.epsilon > epsilon)]
    if not others:
        return ""
    there = nearest(others, epsilon)
    return f"ours is at ε = {here.epsilon:.4g}; at {there.epsilon:.4g} it is {there.middle:.2f}"


def _budget(sources: Sources) -> Iterator[Printed]:
    """InsDP-FedSGD against Dopamine."""
    values = sources.published.values["fedsgd_vs_dopamine"]
    names = ("sigma", "clip_norm", "batch_sampling", "rounds", "users")
    settings: list[tuple[Place, float]] = [((key,), values[key]) for key in names]
    settings += [(("cohorts", number), cohort) for number, cohort in enumerate(values["cohorts"])]
    for place, value in settings:
        yield Printed(
            table="Settings taken from here as they are",
            what=f"Dopamine, {' '.join(map(str, place)).replace('_', ' ')}",
            place=("fedsgd_vs_dopamine", *place),
            published=value,
            ours=None,
            within=0.0,
            why="accounted with it",
        )
    curves = [
        one for _, found in of_kind(sources.rows.under("fedsgd-dopamine"), Dopamine) for one in found.curves
    ]
    for name, value in values["q=10/30"].items():
        yield Printed(
            table="InsDP-FedSGD against Dopamine",
            what=f"ε of {name} after {values['rounds']} rounds",
            place=("fedsgd_vs_dopamine", "q=10/30", name),
            published=value,
            ours=curves[0].named[name][-1] if curves else None,
            within=0.005,
            why="δ is not printed; ours is a guess",
        )


def _clipping(sources: Sources) -> Iterator[Printed]:
    values = sources.published.values["clipping_comparison"]
    for data, panel in captions.DATA.items():
        config = sources.configs.get(f"certified-clipping/{panel}")
        flat = sources.rows.under(f"certified-clipping/{panel}/clip=flat")
        spent = [one.epsilon["paper"] for _, one in of_kind(flat, Trained)]
        for key, value in values[data].items():
            place, what = ("clipping_comparison", data, key), f"clippings, {data}"
            if key == "epsilon":
                yield Printed(
                    table=BUDGETS,
                    what=what,
                    place=place,
                    published=value,
                    ours=round(spent[0], 4) if spent else None,
                    within=0.0,
                )
            else:
                yield setting_of(what, key, place, value, _clip_setting(config, key))
    epochs = _clip_setting(sources.configs.get("certified-clipping/mnist"), "local_epochs")
    where = ("clipping_comparison", "local_epochs")
    yield setting_of("clippings", "local epochs", where, values["local_epochs"], epochs)


def _clip_setting(config: Config | None, key: str) -> float | None:
    if config is None:
        return None
    found = getattr(config.mechanism, "noise_multiplier" if key == "sigma" else key)
    return None if found is None else float(found)


def _seconds(sources: Sources) -> Iterator[Printed]:
    values = sources.published.values["runtime"]
    found = [one for _, one in of_kind(sources.rows.under("run-time"), RunTime)]
    why = "another machine: replicas are trained as stacks on one GPU"
    for key, value in values["sent140 seconds per round"].items():
        yield Printed(
            table="Run time, seconds",
            what=f"a round, {key}",
            place=("runtime", "sent140 seconds per round", key),
            published=value,
            ours=found[0].seconds_per_round[key] if found else None,
            within=0.0,
            why=why,
            elsewhere=True,
        )
    key = "certification seconds given scores"
    yield Printed(
        table="Run time, seconds",
        what="a certificate, given the scores",
        place=("runtime", key),
        published=values[key],
        ours=found[0].certify_seconds if found else None,
        within=0.0,
        why="another certificate: its bounds hold with 99 % confidence",
        elsewhere=True,
    )


def _robust(sources: Sources) -> Iterator[Printed]:
    """The table of defences: without attack, under attack, certified."""
    table, rows = sources.published.values["robust_accuracy_cifar"], sources.rows
    cells = {
        (one.name, one.attack, one.size): one.ours
        for one in defended(rows.under("robust-accuracy"), sources.published)
    }
    clean, shares = no_attack(rows), certified_share(rows)
    for server in (name for name in table["k=2"] if name.startswith(_PRIVATE)):
        spent = float(server.removeprefix(_PRIVATE))
        yield Printed(
            table=BUDGETS,
            what=server,
            place=("robust_accuracy_cifar", "k=2", server),
            published=spent,
            ours=spent if server in clean else None,
            within=0.0,
        )
    for size, servers in table.items():
        for server, values in servers.items() if size != "columns" else ():
            for column, value in enumerate(values):
                name, k = table["columns"][column].partition(" gamma")[0], int(size[2:])
                if value is None:
                    continue
                ours, kind = cells.get((server, name, k)), f"{UNDER} {name}, CIFAR"
                if name == "no attack":
                    ours, kind = (
                        clean.get(server),
                        "Accuracy of servers without attack, CIFAR (printed once for two k)",
                    )
                elif name == "certified":
                    ours, kind = shares.get((server, k)), "Certified accuracy of UserDP-FedAvg, CIFAR"
                    kind += "" if value else ", printed as 0"
                yield Printed(
                    table=kind,
                    what=f"{server}, {size}",
                    place=("robust_accuracy_cifar", size, server, column),
                    published=value,
                    ours=ours,
                    within=CLOSE,
                    why=_as_there(rows, server, k) if name == "certified" else _why(name),
                )


def _why(attack: str) -> str:
    optimised = attack in ("min-max", "min-sum")
    return "see what differs, in the section on robust accuracy" if optimised else ""


def _as_there(rows: Rows, server: str, size: int) -> str:
    """What is certified of models trained in two ways as there, and of one more ensemble with crops."""
    panels = ("user-dp-heads", "user-dp-crops", "user-dp-crops-again", "user-dp-crops-again-ours")
    heads, crops, again, without = (
        certified_share(rows, f"deviations/{panel}").get((server, size)) for panel in panels
    )
    ways = (("heads and cohorts", heads), ("crops", crops))
    told = [f"{share:.4g} with {name} as there" for name, share in ways if share is not None]
    if again is not None and without is not None:
        told.append(f"of another ensemble {again:.4g} with crops, {without:.4g} without")
    return f"unexplained: {', '.join(told)}" if told else ""
