"""Numbers and results in words: what a person reads first."""

import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from fedproof.accounting.spent import PROVEN, Covers, Spent
from fedproof.certificates import Bound
from fedproof.statements import sentences
from fedproof.summary import RunSummary
from fedproof.threat import Relation, ThreatModel, Unit, changed_in_words

SPACE = "\u00a0"  # between a number and its unit: never a line break
_ALL_DIGITS = Context(prec=400)  # of any float
_SUREST = Decimal("99.9999")  # percent that are said of what may fail


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage; 100 % is said of all alone.

    >>> percent(0.98611).replace(SPACE, " "), percent(0.9997).replace(SPACE, " ")
    ('98.6 %', '99.9 %')
    """
    text = f"{100 * share:.{digits}f}"
    if share < 1 - 1e-9 and text == f"{100:.{digits}f}":
        text = f"{100 - 10.0**-digits:.{digits}f}"
    return f"{text}{SPACE}%"


def percent_down(share: float, digits: int = 1) -> str:
    """A share that is certified, as a percentage that is never above what was computed.

    >>> percent_down(0.29).replace(SPACE, " "), percent_down(2 / 3).replace(SPACE, " ")
    ('29.0 %', '66.6 %')
    """
    return f"{at_least(Decimal(repr(float(share))).scaleb(2), digits)}{SPACE}%"


def rounded_up(value: float, digits: int = 4) -> str:
    """A privacy loss with `digits` significant digits, never below what was computed.

    >>> rounded_up(0.0636283456), rounded_up(224.35496), rounded_up(0.1), rounded_up(math.inf)
    ('0.06363', '224.4', '0.1000', '∞')
    >>> rounded_up(0.10000000000001), rounded_up(123456.7)
    ('0.1001', '123500')
    """
    if not math.isfinite(value):
        return "∞"
    if value <= 0:
        return "0"
    return _rounded(value, digits - 1 - Decimal(repr(float(value))).adjusted(), ROUND_CEILING)


def scientific_up(value: float, digits: int = 3) -> str:
    """A chance with `digits` significant digits, however small, never below what was computed.

    >>> scientific_up(1.2301e-7), scientific_up(0.25)
    ('1.24e-07', '0.25')
    """
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(value)
    return f"{float(up):.{digits}g}"


def at_least(value: float | Decimal, places: int = 4) -> str:
    """A lower bound with so many decimals, never above what was computed.

    >>> at_least(0.33338), at_most(0.33331), at_most(0.1), at_most(0.00001)
    ('0.3333', '0.3334', '0.1000', '0.0001')
    """
    return _rounded(value, places, ROUND_FLOOR)


def at_most(value: float, places: int = 4) -> str:
    """An upper bound with so many decimals, never below what was computed.

    >>> at_most(1e30)
    '1000000000000000000000000000000.0000'
    """
    return _rounded(value, places, ROUND_CEILING)


def _rounded(value: float | Decimal, places: int, rounding: str) -> str:
    exact = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    return f"{exact.quantize(Decimal(1).scaleb(-places), rounding, _ALL_DIGITS):f}"


def needed_units(least: float) -> str:
    """So many units an attack needs, or more; the paper's number need not be whole.

    >>> needed_units(5), needed_units(4.6059)
    ('5', '4.60')
    """
    return at_least(least, 0 if float(least).is_integer() else 2)


def number(value: float) -> str:
    """A number as short as it can be.

    >>> number(6.0), number(0.25), number(24.0042)
    ('6', '0.25', '24')
    """
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(1.934).replace(SPACE, " "), duration(600).replace(SPACE, " ")
    ('1.9 s', '10.0 min')
    """
    if seconds < 120:
        return f"{seconds:.1f}{SPACE}s"
    return f"{seconds / 60:.1f}{SPACE}min" if seconds < 7200 else f"{seconds / 3600:.1f}{SPACE}h"


def data_size(num_bytes: float) -> str:
    """Bytes for people.

    >>> data_size(2_600_000).replace(SPACE, " "), data_size(40).replace(SPACE, " ")
    ('2.6 MB', '40 B')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.3g}{SPACE}{unit}"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "user"), plural(12000, "input")
    ('1 user', '12,000 inputs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def confidence(failure_probability: float) -> str:
    """How sure a statement is that fails with `failure_probability`, rounded down: nothing is 100 % sure.

    >>> confidence(0.01).replace(SPACE, " "), confidence(1e-9).replace(SPACE, " ")
    ('99 %', '99.9999 %')
    """
    sure = 100 - 100 * Decimal(f"{failure_probability:.12g}")
    digits = min(sure, _SUREST).quantize(_SUREST, ROUND_FLOOR).normalize()
    return f"{digits:f}{SPACE}%"


def how_sure(failure_probability: float) -> str:
    """The same in a legend; what is counted rather than estimated cannot fail.

    >>> how_sure(0.01).replace(SPACE, " "), how_sure(0)
    ('99 % confidence', 'with certainty')
    """
    return f"{confidence(failure_probability)} confidence" if failure_probability else "with certainty"


def chosen_size(curve: Mapping[str, float]) -> int:
    """The size the headline speaks of: the largest that keeps three quarters of what is certified at all.

    At least 1 if anything is certified against one unit: that none is poisoned is no news.

    >>> chosen_size({"0": 0.9, "1": 0.8, "2": 0.3}), chosen_size({"0": 0.4, "1": 0.2, "2": 0.0})
    (1, 1)
    """
    sizes = (int(k) for k, share in curve.items() if share and share >= 0.75 * curve["0"])
    return max(max(sizes, default=0), 1 if curve.get("1") else 0)


def headline(summary: RunSummary) -> str:
    """The result, and the theorem that it rests on."""
    curve, threat = summary.certified_accuracy, summary.threat
    if curve is None or threat is None or summary.failure_probability is None:
        return (
            f"{percent(summary.accuracy)} of the test inputs are labelled correctly, and nothing is "
            "certified: one poisoned user may change every label."
        )
    return claim(
        curve,
        threat,
        covered(summary.failure_probability, summary.bound),
        sound=summary.sound,
        users=summary.users,
        simultaneous=bool(summary.simultaneous),
        served=summary.served,
    )


def covered(failure_probability: float, bound: str | None) -> float | None:
    """The failure probability, unless what was estimated was taken as exact: then none covers its error."""
    return None if failure_probability and bound == Bound.NONE else failure_probability


def claim(
    curve: Mapping[str, float],
    threat: ThreatModel,
    failure_probability: float | None,
    *,
    sound: bool,
    users: int | None = None,
    label: str = "correct label",
    simultaneous: bool = False,
    served: float | None = None,
) -> str:
    """What is certified, of the shares of inputs in `curve` by the size as a text, and what the theorem says.

    What is counted is about the very models that answer. What is estimated is about expected confidences, or
    votes, of honest training: with `served` alone it is about as many models as there are.
    `failure_probability` is of all of it; without one nothing is said of how sure that is.

    >>> claim({"0": 0.9, "1": 0.8}, ThreatModel(), 0.0, sound=True).replace(SPACE, " ")
    '80.0 % of the test inputs keep their correct label whatever 1 user does, with certainty.'
    >>> found = claim({"0": 0.9, "2": 0.8}, ThreatModel(), 0.01, sound=True, users=9).replace(SPACE, " ")
    >>> print(*found.split(". "), sep=chr(10))
    80.0 % of the test inputs are correct and certified against up to 2 of 9 users
    With 99 % confidence for each input, honest training puts the same label first in expectation.
    """
    if failure_probability == 0:
        return _counted(curve, threat, sound=sound, users=users, label=label)
    whom = "all inputs together" if simultaneous else "each input"
    sure = f"With {confidence(failure_probability)} confidence for {whom}, " if failure_probability else ""
    if not curve["0"]:
        return f"{sure}no test input is certified." if sure else "No test input is certified."
    size = chosen_size(curve)
    what = "correct and certified" if label == "correct label" else "certified"
    first = f"{percent_down(curve[str(size)])} of the test inputs {'are' if sound else 'would be'} {what}"
    if served is None:
        then = "honest training puts the same label first in expectation"
    else:
        then = "as many models of honest users would have given the same label"
    then = f"{sure}{then}" if sure else then.capitalize()
    return f"{first} {_against(threat, users, size)}. {then}{'' if sure else ', if means were exact'}."


def _counted(
    curve: Mapping[str, float], threat: ThreatModel, *, sound: bool, users: int | None, label: str
) -> str:
    if not curve["0"]:
        return f"No test input is certified to keep its {label}."
    size = chosen_size(curve)
    verb = "keep" if sound else "would keep"
    kept = f"{percent_down(curve[str(size)])} of the test inputs {verb} their {label}"
    return f"{kept} {_whatever(threat, users, size)}, with certainty."


NOT_PROVED = "not proved"


def amount(spent: Spent | None, digits: int = 3) -> str:
    """An ε in a cell: never the number of one that does not hold; a dash where no privacy is claimed.

    >>> from dataclasses import replace
    >>> from fedproof.statements import Statement
    >>> one = Spent(epsilon=0.44, delta=1e-3, relation="join", unit="user", covers="model")
    >>> amount(one), amount(replace(one, unmet=(Statement.of("clip-norm"),))), amount(None)
    ('0.440', 'not proved', '–')
    """
    if spent is None:
        return "–"
    return rounded_up(spent.epsilon, digits) if spent.holds else NOT_PROVED


def equation(spent: Spent, digits: int = 3) -> str:
    """An ε in a sentence: `ε = 0.44`, or that none is proved, without the number.

    >>> equation(Spent(epsilon=0.44, delta=1e-3, relation="join", unit="user", covers="model"))
    'ε = 0.440'
    """
    return f"ε = {amount(spent, digits)}" if spent.holds else f"ε {NOT_PROVED}"


def of_whom(spent: Spent) -> str:
    """The unit that an ε is for, and what happens to it; a user who adds noise of its own is left out.

    >>> of_whom(Spent(epsilon=0.44, delta=1e-3, relation="join", unit="user", covers="server"))
    'one user left out (it sends noise alone)'
    """
    own_noise = spent.covers in (Covers.SERVER, Covers.SUM) and spent.relation is Relation.JOIN
    change = "left out (it sends noise alone)" if own_noise else changed_in_words(spent.relation)
    return f"one {spent.unit} {change}"


def why_not(spent: Iterable[Spent]) -> list[str]:
    """For each condition that some ε does not meet, a sentence that names it; the same one once.

    >>> from dataclasses import replace
    >>> from fedproof.statements import Statement
    >>> void = (Statement.of("one-clip-norm", unit="user"),)
    >>> one = Spent(epsilon=1, delta=1e-3, relation="replace", unit="user", covers="model", unmet=void)
    >>> why_not([one])[0][:40], why_not([replace(one, accountant="paper")])[0][:40]
    ('No ε is proved for one user replaced: on', "The paper's ε is as published, and no bo")
    """
    found = []
    for one in spent:
        named = one.accountant == PROVEN
        first = (
            f"No ε is proved for {of_whom(one)}"
            if named
            else "The paper's ε is as published, and no bound here"
        )
        if named or one.accountant == "paper":
            found += [f"{first}: {sentence}." for sentence in sentences(one.unmet)]
    return list(dict.fromkeys(found))


def at_once(summary: RunSummary) -> list[str]:
    """How many labels change at once, in a sentence for each size that was asked for."""
    unit = summary.threat.unit.value if summary.threat else "unit"
    return [
        f"{plural(int(size), f'poisoned {unit}')} can change the labels of at most {most:,} of these "
        f"{plural(summary.inputs, 'input')} at once."
        for size, most in (summary.collective or {}).items()
    ]


def picked(count: int) -> str:
    """What it costs to choose among certified runs by what they certify.

    >>> picked(3)[:52]
    'Each certificate holds for its own run. If you pick '
    """
    return (
        f"Each certificate holds for its own run. If you pick one of {count} runs after looking at them, "
        "train it again with another seed, or certify all of them at a failure probability divided by "
        f"{count}."
    )


def _against(threat: ThreatModel, users: int | None, size: int) -> str:
    """The adversaries that a share is certified against."""
    if size == 0:
        return f"if no {threat.unit} is poisoned"
    if threat.unit is not Unit.USER:
        return f"against up to {plural(size, 'poisoned training instance')}"
    if threat.relation is Relation.JOIN:
        return f"against up to {plural(size, 'malicious user')} who join"
    of = "" if users is None else f" of {users:,}"
    return f"against up to {size:,}{of} {'user' if size == 1 and users is None else 'users'}"


def _whatever(threat: ThreatModel, users: int | None, size: int) -> str:
    """What the adversaries may do; `users` is how many there are, where that is known."""
    if size == 0:
        return f"as long as no {threat.unit} is poisoned"
    if threat.relation is Relation.JOIN:
        return f"even if up to {plural(size, f'malicious {threat.unit}')} join"
    if threat.unit is Unit.USER:
        if users is None:
            return "whatever 1 user does" if size == 1 else f"whatever up to {size:,} users do"
        return f"whatever up to {size:,} of {plural(users, 'user')} do"
    return f"even if up to {plural(size, 'training instance')} are poisoned"
