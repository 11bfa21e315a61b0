"""What would certify more: gains computed from what a run left behind, and sliders over the planned sizes."""

from collections.abc import Iterator, Sequence

from fedproof.certificates import Method
from fedproof.report.page import Markup, data_block, details, join, section, table, tag, void
from fedproof.report.planner import Plan
from fedproof.report.run_data import RunData
from fedproof.report.words import chosen_size, number, percent, plural


def planner_section(plan: Plan | None, run: RunData) -> Markup:
    """What would improve the certificate, and sliders to try it; nothing if neither is known."""
    found = improvements(run, plan)
    if plan is None and not found:
        return Markup("")
    gains = tag("ul", *(tag("li", sentence) for sentence in found), class_="gains") if found else ""
    sliders = () if plan is None else (*_planner(plan, run), _table(plan))
    return section("planner", "What would certify more?", gains, *sliders)


# --- gains --------------------------------------------------------------------------------------------------


def improvements(run: RunData, plan: Plan | None) -> tuple[str, ...]:
    """Sentences, the most useful first; each states a gain that was computed."""
    curve = run.summary.certified_accuracy
    if run.certificate is None or curve is None:
        return ()
    size = chosen_size(curve)
    now = curve[str(size)]
    return (*_method(run, size, now), *_replicas(run, size, now), *_noise(plan), *_abstained(run))


def _method(run: RunData, size: int, now: float) -> Iterator[str]:
    """A tight certificate in place of the paper's."""
    assert run.certificate is not None
    if run.certificate.settings.method is not Method.PAPER:
        return
    then = _at(run, "mean", run.config.threat.relation.value, sure=True, size=size)
    if then is not None and then > now:
        yield (
            f'certificate.method = "mean" certifies {percent(then)} instead of {percent(now)} at '
            f"k = {size}, from replicas like these; name it before they are trained, not after looking."
        )


def _replicas(run: RunData, size: int, now: float) -> Iterator[str]:
    """More replicas, up to what infinitely many would give; known for the methods in `metrics.csv` alone."""
    assert run.certificate is not None
    method = run.certificate.settings.method
    relation = "" if method is Method.PAPER else run.config.threat.relation.value
    then = _at(run, method, relation, sure=False, size=size)
    if then is not None and then > now:
        yield (
            f"More replicas: at most {percent(then)} instead of {percent(now)} at k = {size}, with "
            "infinitely many of them."
        )


def _noise(plan: Plan | None) -> Iterator[str]:
    """More noise, as long as the models stay as confident."""
    if plan is None:
        return
    noise, probability, rounds = plan.start
    most = plan.sizes[-1][probability][rounds]
    if most > plan.here:
        more = f"{most} or more" if most >= plan.most else str(most)
        yield (
            f"More noise: a multiplier of {plan.noises[-1]:g} instead of {plan.noises[noise]:g} certifies "
            f"{more} instead of {plan.here} for the typical input, if it stays as confident."
        )


def _abstained(run: RunData) -> Iterator[str]:
    sizes = run.summary.certified_size
    count = 0 if sizes is None else sizes.abstained
    if count:
        yield (
            f"More replicas also decide more: the ensemble abstains on {plural(count, 'input')}, where it "
            "cannot tell the two best classes apart yet."
        )


def _at(run: RunData, method: str, relation: str, *, sure: bool, size: int) -> float | None:
    """Certified accuracy at a size in `metrics.csv`; None if that curve is not there."""
    rows = [
        row
        for row in run.metrics
        if (row["method"], row["relation"], bool(row["failure_probability"])) == (method, relation, sure)
    ]
    found = (float(row["certified_accuracy"]) for row in rows if int(row["size"]) == size)
    return next(found, 0.0) if rows else None


# --- sliders ------------------------------------------------------------------------------------------------


def _planner(plan: Plan, run: RunData) -> tuple[Markup, Markup]:
    """Sliders for noise, sampling, rounds and k, and what they would certify."""
    noise, probability, rounds = plan.start
    sliders = (
        _slider("noise", "Noise multiplier", plan.noises, noise),
        _slider("probability", f"Chance of one {run.unit} to be drawn", plan.probabilities, probability),
        _slider("rounds", "Rounds", plan.rounds, rounds),
        _k_slider(plan),
    )
    intro = (
        f"For the typical input of this run: confidence {plan.top:.4g} for its label, at most "
        f"{plan.rival:.4g} for any other. More noise certifies more as long as the models stay as confident "
        "as here, which only training can tell. The sizes are those of ",
        tag("code", "fedproof plan"),
        ".",
    )
    result = tag(
        "div",
        tag("p", "Certified size", class_="name"),
        tag("output", size_text(plan, plan.here), class_="value", id="plan-size", aria_live="polite"),
        tag("p", class_="verdict", id="plan-verdict"),
        tag("div", class_="plan-plot", id="plan-plot"),
        class_="plan-result",
    )
    form = tag("form", *sliders, class_="sliders", autocomplete="off")
    tool = tag("div", form, result, data_block(document(plan, run)), class_="planner")
    return join([tag("h3", "Try it"), tag("p", *intro)]), tool


def document(plan: Plan, run: RunData) -> dict[str, object]:
    """What the script needs, with all numbers as text beside them."""
    return {
        "noise": [number(value) for value in plan.noises],
        "probability": [number(value) for value in plan.probabilities],
        "rounds": [str(value) for value in plan.rounds],
        "noiseValues": plan.noises,
        "sizes": plan.sizes,
        "start": plan.start,
        "most": plan.most,
        "unit": run.unit,
    }


def size_text(plan: Plan, size: int) -> str:
    """A size, or that it is beyond what was searched."""
    return f"{size} or more" if size >= plan.most else str(size)


def _slider(key: str, name: str, values: Sequence[float], start: int) -> Markup:
    control = void(
        "input",
        type="range",
        id=f"plan-{key}",
        min=0,
        max=len(values) - 1,
        step=1,
        value=start,
        disabled=len(values) == 1,
        aria_valuetext=number(values[start]),
    )
    shown = tag("output", number(values[start]), for_=f"plan-{key}", class_="shown")
    return tag("div", tag("label", name, for_=f"plan-{key}"), shown, control, class_="slider")


def _k_slider(plan: Plan) -> Markup:
    largest = max(size for plane in plan.sizes for row in plane for size in row)
    control = void("input", type="range", id="plan-k", min=0, max=max(largest, 1), step=1, value=plan.here)
    shown = tag("output", plan.here, for_="plan-k", class_="shown")
    return tag("div", tag("label", "Wanted k", for_="plan-k"), shown, control, class_="slider")


def _table(plan: Plan) -> Markup:
    header = ["Noise multiplier", "Chance to be drawn", *(f"{count} rounds" for count in plan.rounds)]
    rows = [
        [number(noise), number(probability), *(size_text(plan, size) for size in plan.sizes[i][j])]
        for i, noise in enumerate(plan.noises)
        for j, probability in enumerate(plan.probabilities)
    ]
    return details("All certified sizes as a table", table(header, rows))
