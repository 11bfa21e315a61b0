"""What stands before the studies: the short of it, where to find what, how to read it, every conclusion."""

from collections.abc import Iterator, Sequence

from paper.printed import Printed
from paper.provenance import Provenance
from paper.rows import Rows, device_seconds, shared_seconds
from paper.statements import Statement
from paper.study import REHEARSAL, Point, Study

INTRODUCTION = """\
# The paper, reproduced

Figures and tables of Xie et al., *Unraveling the connections between privacy and certified robustness in
federated learning against poisoning attacks* (CCS 2023), from our own trainings. Each number that the paper
prints stands beside ours, and each of its conclusions is computed, the ones that fail too.
"""

READING = """
## How to read it

**Words.** *k* users or instances are poisoned; those who *join* come to an honest federation, those who
*replace* corrupt units of it. An input is certified for k if no k of them change what a model is expected
to answer. *O* models (replicas) are trained anew; accuracies are means over single replicas, certificates
are about the ensemble of all. *σ* is the noise, *ε* what one model spends by the paper's accounting,
unless another one is named. *Dir(1)* and *Dir(0.5)* deal the classes unevenly to users. *UserDP* protects
a user, *InsDP* an instance. *α* is the poisoned share of an adversary's instances, *γ* what its update is
multiplied by, *τ* what an attacker wants to divide its cost by. A *study* is a figure or table with its
*panels*, by whose names they are measured again; a panel's *points* are single trainings, each a *row* of
`experiments/results/rows.jsonl`. *Changed since* says that a row was measured with code of before.

<a id="certified"></a>**Certified accuracy.** *Paper's K* is the largest k that its formula gives any test
input, a real number: one input reaches it. It is the median of several seeds with their range, or of one
ensemble with half of what its quarters differ from their mean. *K with confidence* has Hoeffding's
bounds. Certified accuracies are the share of test inputs that are answered right and certified for k: by
the paper's formula without confidence, for adversaries that *join* or *replace* by the mechanism's
trade-off curve and mean confidences (`mean`), by *fedproof*'s default from the whole distribution over
replicas (`margin`, the one to quote) for both; these with the confidence of the row (99 % unless said
otherwise), which is each input's own. k is the largest of 1, 2, 5 and 10 at which a panel certifies an
input in a thousand, by the paper's formula at most 2; 10 and 2 where there is none. A † marks what is no
proof, with the reason below. The paper's own columns are heuristic throughout: without confidence its
means count as exact, with it the choice of the rival among ten classes is not covered; its ε is of users
who join, and against those who are replaced k would have to be halved; what a † says of a row it says of
them, too. The accuracy in parentheses is printed in the paper; where it comes of trainings unlike those
that are certified, the [table of clean accuracies](#clean-accuracies) has the like.

<a id="costs"></a>**Costs of attacks.** Each is J(D) → J(D') ≥ our certified lower bound (the paper's
bound, of the means as they are) against units that are replaced, and the share of attacked replicas whose
cost was clipped: J(D) is the attacker's cost without attack, J(D') under it, both clipped at C̄. The
panel's C̄ is the paper's where it prints one, for two classes; a C̄ below the loss of a clean model shows
nothing, so that the same replicas are also judged by a C̄ of 10, by the attack's success, and by the
unclipped loss that the paper draws, for which nothing is certified. Accuracies are the ensemble's,
*certified* is the share of inputs certified for as many adversaries.

<a id="needed"></a>**Units needed.** How many an attack needs to divide its cost by τ, at least: by our
bound against units that are replaced, which holds with 99 % confidence, and by the paper's formula. J(D)
= C̄ says that the cost is at its bound before anybody attacks.
"""

_HOW_MADE = """
`fedproof reproduce all --device cuda` makes the rows, `python docs/build.py` this page from them. Every
number of ours is computed from the rows, every published one is in `experiments/paper_values.json`; what the
paper shows, what differs and the deviations are told in our own words. Rows hold their commit and hashes of
settings, defaults and the code that trains, attacks, certifies and measures, newer ones of data, too; PyTorch
and hardware are named. `fedproof reproduce all --check 5 --device cuda --out experiments/results` trains five
of them again (on a CPU `--scale 0.1`, and one small panel, as `certified-user-epsilon/mnist`): the same code
on the same device must give every number, else those are compared whose Monte-Carlo error is known.
`fedproof reproduce certified-user-epsilon/mnist --device cuda --out again` measures one panel anew.
"""


def rehearsed(scale: float) -> Iterator[str]:
    """That the page is not of the paper's scale."""
    if scale < 1:
        few = ", cut down to what takes minutes: its numbers mean nothing" if scale < REHEARSAL else ""
        yield f"**Measured at scale {scale:g}{few}.**\n"


def in_short(found: Sequence[Statement], numbers: Sequence[Printed]) -> Iterator[str]:
    """One screen for whoever reads no further."""
    yield "## In short\n"
    yield from _verdicts([one for one in found if not one.beyond and not one.own])
    failed = [one for one in found if one.own and one.verdict == "no" and not one.agreement]
    if failed:
        yield "* What one might expect besides, and what does not hold either:"
        yield from (f"    * {_noted(one)}" for one in failed)
    yield from (
        f"* {one.claim[:1].upper()}{one.claim[1:]}: {one.evidence}." for one in found if one.agreement
    )
    yield from _missed(numbers)
    beyond = [one for one in found if one.beyond]
    if beyond:
        yield "* **The same models prove more** with our certificates than with the paper's formula:"
        yield from (f"    * {one.beyond}: {one.evidence}" for one in beyond)
    yield (
        "* [Where we differ from the authors' code](#where-we-differ-from-the-authors-code), and [how this "
        "page was made](#how-this-page-was-made).\n"
    )


def _verdicts(theirs: Sequence[Statement]) -> Iterator[str]:
    """How many of the paper's conclusions hold, and those that do not."""
    if not theirs:
        return
    held, failed, open_, untested = (
        sum(one.verdict == said for one in theirs) for said in ("yes", "no", "open", "not tested")
    )
    sure = sum(one.follows and one.verdict == "yes" for one in theirs)
    formula = f", {sure} of them by their formula alone" if sure else ""
    apart = f", {untested} cannot be tested, most for want of the paper's tweets" if untested else ""
    these = " These do not hold:" if failed else ""
    yield (
        f"* **{held} of {len(theirs)} conclusions of the paper hold** on our own trainings{formula}, "
        f"{failed} do not, {open_} are [open](#conclusions-computed){apart}.{these}"
    )
    yield from (f"    * {_noted(one)}" for one in theirs if one.verdict == "no")


_MOST = 5  # tables that are named


def _missed(numbers: Sequence[Printed]) -> Iterator[str]:
    """Where most of the published numbers are that we do not meet, those on other data and machines aside."""
    known = [one for one in numbers if one.close is not None and not one.elsewhere]
    tables = {one.table: [other for other in known if other.table == one.table] for one in known}
    missed = {name: sum(not one.close for one in entries) for name, entries in tables.items()}
    most = sorted((name for name in missed if missed[name]), key=lambda name: -missed[name])[:_MOST]
    if most:
        named = "; ".join(f"{name}: {missed[name]} of {len(tables[name])}" for name in most)
        yield (
            f"* {sum(bool(one.close) for one in known)} of {len(known)} published numbers are met, other "
            f"data and machines aside. [Not met](#not-the-same) are, above all: {named}."
        )


def _noted(one: Statement) -> str:
    return f"{one.claim} ({one.note})" if one.note else one.claim


def where(studies: Sequence[Study]) -> Iterator[str]:
    """What of the paper is shown in which study."""
    yield "## Where to find it\n"
    yield "| in the paper | study | here |\n|---|---|---|"
    yield "| Table 2 | | settings, among [every printed number](#every-printed-number) |"
    for study in studies:
        yield f"| {study.place or 'not there'} | `{study.name}` | [{study.title}](#study-{study.name}) |"
    yield ""


def conclusions(found: Sequence[Statement]) -> Iterator[str]:
    """Every conclusion with its verdict and what it rests on."""
    yield "\n## Conclusions, computed\n"
    yield (
        "Some are the paper's, some ours. One is open where what it compares differs by less than it varies, "
        "was measured of one ensemble alone, or is so in most pairs and not in nearly all. Where costs are "
        "compared, the one that is clipped at the panel's C̄ is shown and does not decide: a claim holds if "
        "95 % of the pairs do in each of the others, and does not if fewer than three in four do in one of "
        "them. K is larger if Student's t says so at level 5 % of pairs of the same seeds, or of the same "
        "quarters of the replicas; only where nothing can be paired, if the ranges are apart. An ε is the "
        "best if K is larger there than at every other one. Seeds deal the data and draw the models anew, "
        "quarters do neither.\n"
    )
    yield "| conclusion | whose | holds | from |\n|---|---|---|---|"
    for one in found:
        verdict = "yes" if one.verdict == "yes" else f"**{one.verdict}**"
        verdict += ", by the formula" if one.follows else ""
        evidence = "; ".join(filter(None, (one.untested, one.evidence, one.note)))
        yield f"| {one.claim} | {one.whose} | {verdict} | {evidence} |"


def missing(points: Sequence[Point], rows: Rows) -> Iterator[str]:
    """What is not trained with these settings, so that nobody takes the page for whole."""
    counts: dict[str, list[bool]] = {}
    for point in points:
        counts.setdefault(point.study, []).append(rows.find(point) is None)
    names = [f"`{name}` {sum(found)} of {len(found)}" for name, found in counts.items() if any(found)]
    if names:
        yield (
            "Points that are **not trained yet** with the settings of today; where rows of before are there, "
            f"they are shown: {', '.join(names)}.\n"
        )


def how_made(studies: Sequence[Study], origin: Provenance, every: Rows, rows: Rows) -> Iterator[str]:
    """The last section: minutes, what is known against rows, and the commands."""
    yield "\n## How this page was made\n"
    yield from _effort(studies, list(origin.points.values()), rows)
    yield from origin.summary(every)
    yield _HOW_MADE


def _effort(studies: Sequence[Study], points: Sequence[Point], rows: Rows) -> Iterator[str]:
    """How much was trained and how long it took, and which part of it shows nothing of the paper."""
    beside = {study.name for study in studies if study.own}
    trained = [point for point in points if point.config]
    whole = [(point, row) for point in trained if (row := rows.find(point))]
    for hardware in sorted({row.hardware for _, row in whole}):
        found = [(point.study in beside, row) for point, row in whole if row.hardware == hardware]
        minutes, own = (
            device_seconds(row for apart, row in found if apart or not only) / 60 for only in (False, True)
        )
        part = f", {minutes - own:.1f} for the paper and {own:.1f} for studies of our own" if own else ""
        shared = shared_seconds(row for _, row in found) / 60
        yield (
            f"* **{minutes:.1f} minutes** of one {hardware} for {len(found)} of {len(trained)} points{part}, "
            "by the clock: each row has what passed since the row before it. The seconds under the panels "
            f"add up to {shared:.1f} minutes; commands that ran at once are counted twice there."
        )
    if len(trained) < len(points):
        yield f"* {len(points) - len(trained)} more points train nothing: they are computed."
