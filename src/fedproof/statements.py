"""What a number means, said once: conditions that are not met, and what is taken for granted.

A statement is a code with arguments. Files hold it, `verify` compares it, and its sentence is made from the
catalogue below when somebody reads it. Free of torch.
"""

import string
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

from fedproof import check

Argument = str | int | float


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One condition or assumption: its `code` in the catalogue, and the `arguments` of its sentence.

    >>> Statement.of("rule", rule="krum").fix
    'Set aggregation.rule = "mean": the certificate itself withstands poisoning.'
    >>> Statement.of("stated", text="users hold no common data").sentence
    'stated by whoever trained, not derived: users hold no common data'
    """

    code: str
    arguments: Mapping[str, Argument]

    def __post_init__(self) -> None:
        if self.code not in _CATALOGUE:
            raise ValueError(f"code = {self.code!r} is not in the catalogue of statements")
        wanted = _arguments_of(self.code)
        if not isinstance(self.arguments, Mapping) or set(self.arguments) != wanted:
            names = ", ".join(sorted(wanted)) or "no arguments"
            raise ValueError(f"statement '{self.code}' takes {names}, not {self.arguments!r}")
        for name, value in self.arguments.items():
            if isinstance(value, str):
                check.sentences(**{name: (value,)})
            elif type(value) not in (int, float) or not -_LARGEST < value < _LARGEST:
                raise ValueError(f"{name} = {str(value)[:80]} must be a text or a number that can be shown")

    def __hash__(self) -> int:
        return hash((self.code, tuple(sorted(self.arguments.items()))))

    @classmethod
    def of(cls, code: str, **arguments: Argument) -> Self:
        """The statement of a code; members of enumerations become the texts that files hold."""
        plain = {name: str(value) if isinstance(value, str) else value for name, value in arguments.items()}
        return cls(code=code, arguments=plain)

    @property
    def sentence(self) -> str:
        """What it says, for a reader, and who says so where that is whoever trained."""
        return _TOLD + self.text if self.told and self.code in ASSUMED else self.text

    @property
    def text(self) -> str:
        """The same without who says so."""
        return _CATALOGUE[self.code].sentence.format(**self.arguments)

    @property
    def fix(self) -> str | None:
        """What to do about a condition that is not met; None where nothing helps."""
        fix = _CATALOGUE[self.code].fix
        return None if fix is None else fix.format(**self.arguments)

    @property
    def told(self) -> bool:
        """Whether whoever trained says so; what a certificate derives by itself is not for others to say."""
        return _CATALOGUE[self.code].told

    @property
    def concerns_privacy(self) -> bool:
        """Whether an ε does not hold either where this condition is not met."""
        return not _CATALOGUE[self.code].estimate

    def document(self) -> dict[str, Any]:
        """As files hold it."""
        return {"code": self.code, "arguments": dict(self.arguments)}

    def shown(self) -> dict[str, Any]:
        """As programs print it: with its sentence, which nobody reads back."""
        return self.document() | {"sentence": self.sentence} | ({"fix": self.fix} if self.fix else {})


def sentences(statements: Iterable[Statement]) -> tuple[str, ...]:
    """What a reader is told."""
    return tuple(statement.sentence for statement in statements)


def stated(given: Iterable[Statement | str], name: str, code: str) -> tuple[Statement, ...]:
    """What whoever trained states: own sentences under `code`, or statements that others have made.

    Raises:
        ValueError: one text alone, whose letters would be the sentences, or a code that only a certificate
            derives.
    """
    if isinstance(given, str):
        raise ValueError(f"{name} = {given!r} must be a sequence of sentences, not one")
    found = tuple(one if isinstance(one, Statement) else _own(one, name, code) for one in given)
    check_told(**{name: found})
    return found


def check_statements(**values: tuple[Statement, ...]) -> None:
    """Raise ValueError unless these are statements, and not too many."""
    for name, statements in values.items():
        if not isinstance(statements, tuple) or not all(isinstance(one, Statement) for one in statements):
            raise ValueError(f"{name} = {statements!r} must be statements")
        if len(statements) > _MOST:
            raise ValueError(f"{name} has {len(statements)} entries, must have at most {_MOST}")


def check_told(**values: tuple[Statement, ...]) -> None:
    """Raise ValueError unless these are statements that whoever trained may make."""
    check_statements(**values)
    for name, statements in values.items():
        for one in statements:
            if not one.told:
                raise ValueError(f"{name}: '{one.code}' is derived, not stated by whoever trained")


def _own(text: object, name: str, code: str) -> Statement:
    if not isinstance(text, str):
        raise ValueError(f"{name} = {text!r} must be texts")
    check.sentences(**{name: (text,)})
    return Statement.of(code, text=text)


def _arguments_of(code: str) -> set[str]:
    entry = _CATALOGUE[code]
    parsed = string.Formatter().parse(entry.sentence + (entry.fix or ""))
    return {name for _, name, _, _ in parsed if name}


@dataclass(frozen=True)
class _Entry:
    """A template of a sentence, and of its fix.

    `told`: whoever trained says it, nobody derives it. `estimate`: it concerns what replicas say of their
    expectation, and no ε.
    """

    sentence: str
    _: KW_ONLY
    fix: str | None = None
    told: bool = False
    estimate: bool = False


_LARGEST = 1e18
_MOST = 100  # statements of whoever trained
_TOLD = "stated by whoever trained, not derived: "
_OWN_NUMBERS = (
    "Give every training random numbers of its own, and its scores as they were computed, not rounded."
)
_TIGHT = 'Set certificate.method = "margin" or "mean"'
_MEAN = 'Set aggregation.rule = "mean": the certificate itself withstands poisoning.'

# --- conditions that are not met ----------------------------------------------------------------------------

UNMET = {
    # of a certificate
    "no-confidence": _Entry(
        "the means over the replicas are taken as exact: no failure probability covers their error",
        fix='Set certificate.bound = "betting" (or "levels" for method margin).',
        estimate=True,
    ),
    "relation": _Entry(
        "units are replaced, but the accounting is for adding or removing one",
        fix=(
            f'{_TIGHT}, which account replacement, or threat.relation = "join" if adversaries can only be '
            "added."
        ),
    ),
    "copies": _Entry(
        "{number} of {total} replicas score what another one does, number for number: trainings that "
        "share a seed are one training",
        fix=_OWN_NUMBERS,
        estimate=True,
    ),
    "copied-models": _Entry(
        "{number} of {total} models equal another one, number for number: trainings that share a seed "
        "are one training",
        fix=_OWN_NUMBERS,
        told=True,
        estimate=True,
    ),
    "spending": _Entry(
        "the failure probability is spent on each of two bounds: neither both together nor the choice of "
        "the two classes is covered",
        fix='Share the failure probability soundly: spending = "sound", or certificate.method = "margin".',
        estimate=True,
    ),
    "fixed-size": _Entry(
        "cohorts of fixed size are drawn, but Poisson sampling is accounted",
        fix=(
            'Set mechanism.sampling = "poisson", or certificate.method = "margin" or "mean": their '
            "accounting covers cohorts of fixed size."
        ),
    ),
    "owners-drawn": _Entry(
        "users are drawn as a whole, but every instance is accounted as if drawn by itself",
        fix=f"{_TIGHT}: they account users that are drawn as a whole.",
    ),
    "one-clip-norm": _Entry(
        "one {unit} that is replaced is taken to move a sum by one clip norm, not by two"
    ),
    # of a mechanism
    "no-noise": _Entry(
        "no noise is added: there is no guarantee",
        fix=(
            'Set mechanism.kind = "user-fedavg" and mechanism.noise_multiplier: without noise nothing is '
            "proved."
        ),
    ),
    "clip-norm": _Entry(
        "the clip norm is the median of the cohort's norms: it depends on the data without noise",
        fix=(
            'Set mechanism.clip = "quantile" (follows the median with noise, sound) or "flat" with a '
            "mechanism.clip_norm chosen without looking at the data."
        ),
    ),
    "rule": _Entry(
        "the rule {rule} looks at every update by itself before noise hides it: one unit may move its "
        "result by more than the clip norm that the noise was made for",
        fix=_MEAN,
    ),
    "noise-of-the-sum": _Entry(
        "the noise of all users adds up in a sum only, which the rule {rule} does not compute",
        fix=_MEAN,
    ),
    "chance-by-size": _Entry(
        "the chance of an instance to enter a batch follows from how many instances users hold: one that "
        "joins changes the chances of others",
        fix="Declare mechanism.batch_probability, or certify against instances that are replaced.",
    ),
    "shuffled-batches": _Entry(
        "batches are parts of shuffled passes, but are accounted as if they were Poisson samples",
        fix="Set mechanism.shuffled = false: batches are then drawn as they are accounted.",
    ),
    # of a training, on its data
    "unsettled": _Entry(
        "who takes part, or who holds what, was settled with a look at all data: one unit that is "
        "poisoned may change it for others",
        fix="Choose classes and users beforehand, and load what is left, as a Federation or a LEAF folder.",
        told=True,
    ),
    "chance-by-label": _Entry(
        "the chance of an instance to enter a batch follows from how many instances users hold, and one "
        "whose label no test input has does not count: it changes the chances of others",
        fix="Declare mechanism.batch_probability.",
        told=True,
    ),
    "identities": _Entry(
        "{unit}s have no identities, only places in the data, which change when somebody joins or "
        "leaves: give them identities",
        fix="Give the federation {unit}_ids, or certify against {unit}s that are replaced.",
        told=True,
    ),
    "population": _Entry(
        "sums are divided by a number that follows from how many are there, which whoever joins "
        "changes: declare a population",
        fix="Declare mechanism.population, the most there may be.",
        told=True,
    ),
    "attended-together": _Entry(
        "one message carries several replicas: what a corrupted user sends for one may depend on "
        "another, and confidence bounds cover replicas that are independent or come one by one",
        fix=(
            "Train one replica after the other, and certify with bound hoeffding, levels or "
            "clopper-pearson, or with method mean: these hold for users who remember earlier trainings."
        ),
        told=True,
        estimate=True,
    ),
    "attended-unnoised": _Entry(
        "one message carries several replicas: what a corrupted user sends for one may depend on "
        "another, and confidence bounds cover replicas that are independent or come one by one",
        fix="Set bound to one that rises with every score: {bounds}.",
        told=True,
        estimate=True,
    ),
    "unmet-as-stated": _Entry("{text}", told=True),
    # of what other libraries execute
    "node-weights": _Entry(
        "the average is weighted by a number that each node reports: a poisoned node can raise its share "
        "from 1/cohort to nearly 1, and the noise is calibrated to 1/cohort"
    ),
    "node-replies": _Entry(
        "a node that does not reply, or replies with an error, changes the divisor or ends the round "
        "without noise: the noise covers only rounds in which everybody replies"
    ),
    "node-clips": _Entry(
        "updates are clipped by the nodes: a poisoned node need not clip",
    ),
    "node-nan": _Entry(
        "an update with NaN passes the clipping: one node can make the model NaN",
    ),
    "noise-order": _Entry(
        "the clip norm is adapted between clipping and noising: the noise belongs to the next round's "
        "clip norm, not to the one that was applied"
    ),
    "drawn-with-replacement": _Entry(
        "pfl's sampler draws a cohort with replacement, but Poisson sampling is accounted"
    ),
    "drawn-in-order": _Entry("pfl's sampler takes users in a fixed order, but Poisson sampling is accounted"),
    # of what stands beside a certificate
    "published-formula": _Entry(
        "the paper's formula: its accounting and its confidence bounds, for comparison",
        estimate=True,
    ),
    "attack-unit": _Entry("the attack is on the level of the {attack}, the certificate of the {certificate}"),
    "attack-relation": _Entry(
        "the attack's relation is {attack}, the certificate's {certificate}: to corrupt units is one "
        "thing, to come or to go another"
    ),
}

# --- what is taken for granted ------------------------------------------------------------------------------

_PREDICTOR = "the certified predictor is the "
_OF_ALL = " of the ensemble; a single replica has no certificate"
_STATEMENT = (
    "the statement is about {}: trained on data that may hold the poisoned units, the certified label is the "
    "one that the clean data's expectation gives"
)
_PROVED = "epsilon and delta were proved for one {unit} "

ASSUMED = {
    # of the execution of a mechanism
    "executed": _Entry("training was executed exactly as the mechanism is described here"),
    "divisor": _Entry(
        "sums over a cohort are divided by a number fixed beforehand, whoever is drawn or joins"
    ),
    "noise-multiplier": _Entry(
        "a noise multiplier is the noise's standard deviation over the largest norm of what one {unit} "
        "adds to a sum"
    ),
    "cohort-alone": _Entry(
        "each replica's cohort was drawn at random and nobody else took part; no privacy is claimed"
    ),
    "instances-alone": _Entry(
        "each replica's instances were drawn at random and no other was trained on; no privacy is claimed"
    ),
    "group-alone": _Entry(
        "every model was trained on its own group alone, and the same group gives the same model again"
    ),
    "group-by-identity": _Entry(
        "which group one {unit} belongs to depends on no data; no privacy is claimed"
    ),
    "group-of-one": _Entry(
        "which group one {unit} belongs to is its own: no user has two identities, and whoever takes no "
        "part has no vote; no privacy is claimed"
    ),
    "noisy-group-alone": _Entry(
        "every model was trained on its own group alone, and the same group with the same noise gives "
        "the same model again; neither the noise nor what sums are divided by depends on who takes part"
    ),
    "noisy-group-by-identity": _Entry(
        "which group one {unit} belongs to depends on no data; the statement is about these models, the "
        "noise in them being what it was"
    ),
    "counted-once": _Entry(
        "every {unit} was counted once, and what it sent was put inside the set '{upload}'"
    ),
    "counted-once-with-room": _Entry(
        "every user was counted once, and what it sent was put inside the set '{upload}', {times:.6g} "
        "times as large as that of honest users before their noise"
    ),
    "honest-alone": _Entry("what an honest {unit} sent depends on its own data alone"),
    "honest-with-noise": _Entry(
        "what an honest user sent depends on its own data and its own noise alone; poisoned users may "
        "leave theirs out"
    ),
    "honest-whole": _Entry(
        "what an honest user sent depends on its own data alone, and holds all that the model reads"
    ),
    "chosen-without-data": _Entry(
        "encoder, public data, set and noise level were chosen without the users' data"
    ),
    "sum-exact": _Entry(
        "the sum is exact; noise was drawn once, whoever takes part, and used for nothing else"
    ),
    "sum-without-noise": _Entry("the sum is exact, and no noise is added to it"),
    "noise-of-release": _Entry(
        "the noise of the release was drawn once, whoever takes part, and used for nothing else"
    ),
    "noise-of-honest": _Entry(
        "for the ε of the sum alone: {honest} users or more added their noise, and what others sent does "
        "not depend on it"
    ),
    "this-release": _Entry(
        "the statement is about this release: had the poisoned {unit}s sent anything else, and all else "
        "been the same, the noise included; fresh noise may give another label"
    ),
    "this-release-smoothed": _Entry(
        "the statement is about this release: had the poisoned users sent anything else, and all else "
        "been the same, its noise included; fresh noise in the release may give another label"
    ),
    "this-release-of-users": _Entry(
        "the statement is about this release: had the poisoned users sent anything else, and all else "
        "been the same, the noise of honest users included; fresh noise may give another label"
    ),
    "proved-if-replaced": _Entry(_PROVED + "replaced by another"),
    "proved-if-joined": _Entry(_PROVED + "added or removed"),
    "proved-in-two-steps": _Entry(_PROVED + "added or removed; to replace one is to take two such steps"),
    # of where scores come from
    "means-exact": _Entry(
        "the class confidences are exact expectations, without Monte-Carlo error, up to the rounding of "
        "{numbers} and what a row misses one by"
    ),
    "independent": _Entry(
        "the replicas are independent trainings by the same mechanism on the same data; what an "
        "adversary does in one does not depend on another"
    ),
    "drawn": _Entry("the replicas are independent draws of noise around one release"),
    "alike": _Entry("{number} replicas score what another one does, number for number, by chance"),
    "votes-stored": _Entry(
        "votes are those of the {numbers} numbers as they are stored, the first of equal ones"
    ),
    "confidences-stored": _Entry(
        "confidences are the {numbers} numbers as they are stored; of two classes the second one's, and "
        "one minus it"
    ),
    "pairs-stored": _Entry(
        "which of two classes a model prefers is read from the numbers as stored; equal ones count for "
        "neither"
    ),
    "inputs-unseen": _Entry("no input was chosen by anybody who had seen the replicas, or what they score"),
    "settled": _Entry("method, bound and failure probability were decided before any score was seen"),
    "number-settled": _Entry("how many replicas there are was decided before any of their scores was seen"),
    "rule-settled": _Entry("the rule was chosen before any score was seen"),
    "cost-settled": _Entry(
        "what the cost measures, and how it is bounded, was decided by nobody who had seen the replicas"
    ),
    "order-random": _Entry("sha256 puts the replicas into an order that is as good as random"),
    "secret": _Entry(
        "whoever chose the poisoned units knew none of the random numbers that the training draws"
    ),
    # of what is certified
    "elected-plurality": _Entry(_PREDICTOR + "class with most votes, the first of equal ones"),
    "elected-pairwise": _Entry(
        f"{_PREDICTOR}class that beats every other one, model by model, the first of equal ones; where "
        "there is none, the class with most votes, which is certified against no poisoned unit"
    ),
    "elected-run-off": _Entry(
        f"{_PREDICTOR}winner of a run-off, model by model, between the two classes with most votes, "
        "always the first of equal ones"
    ),
    "released-model": _Entry("the certified predictor is the released model itself; its scores count units"),
    "predictor-votes": _Entry(f"{_PREDICTOR}most probable vote{_OF_ALL}"),
    "predictor-confidences": _Entry(f"{_PREDICTOR}mean confidence{_OF_ALL}"),
    "predictor-pairwise": _Entry(f"{_PREDICTOR}class that is probably preferred to each other one{_OF_ALL}"),
    "predictor-run-off-votes": _Entry(
        f"{_PREDICTOR}class that is probably preferred to the other of the first two by most probable "
        f"vote{_OF_ALL}"
    ),
    "predictor-run-off-confidences": _Entry(
        f"{_PREDICTOR}class that is probably preferred to the other of the first two by mean "
        f"confidence{_OF_ALL}"
    ),
    "about-votes": _Entry(_STATEMENT.format("the most probable vote")),
    "about-confidences": _Entry(_STATEMENT.format("expected confidences")),
    "about-trainings": _Entry(_STATEMENT.format("expectations over trainings")),
    "about-all-inputs": _Entry(
        "it is one statement about all inputs: its failure probability is that any of them is wrong"
    ),
    "about-served": _Entry(
        "and about {replicas} replicas that are retrained under attack and served together: they fail to "
        "give that label with at most {served:.6g}, so all of it fails with at most {together:.6g}"
    ),
    # of what only whoever trained can know
    "seed-known": _Entry(
        "corrupted units were chosen without knowing the seed, and act without knowing it", told=True
    ),
    "seed-fresh": _Entry(
        "the seed was drawn by the operating system and is not published; corrupted units were chosen "
        "independently of it, and act so",
        told=True,
    ),
    "no-seed": _Entry(
        "cohorts and noise were drawn by the operating system and are not published; corrupted units "
        "were chosen independently of them, and act so",
        told=True,
    ),
    "numbered": _Entry(
        "every node's number, which its group or its cohorts follow from, was its own and given out "
        "beforehand",
        told=True,
    ),
    "begun": _Entry(
        "the model that training starts from is not poisoned: no user's data went into it", told=True
    ),
    "apart": _Entry(
        "what an honest node sends for one replica follows from that replica's models and the node's own "
        "data: its app carries nothing over from another replica",
        told=True,
    ),
    "module-begun": _Entry(
        ("the module, and all that it starts from, is not poisoned: no user's data went into it"),
        told=True,
    ),
    "weights-begun": _Entry(
        "the weights that training starts from are not poisoned: no user's data went into them (sha256 "
        "of their numbers {sha256})",
        told=True,
    ),
    "vectors": _Entry("the word vectors are not poisoned: no user's data went into them", told=True),
    "finished": _Entry(
        "no training that was begun was left out: whoever stops one by falling silent, having seen a model "
        "of it, would choose which models there are",
        told=True,
    ),
    "quorum": _Entry(
        "had fewer than {least} users replied there would be no model: the statement is for if there is one",
        told=True,
    ),
    "released-quorum": _Entry(
        "had fewer than {least} users replied there would be no release: the statement is about the label "
        "that a release gives, if there is one",
        told=True,
    ),
    "replies": _Entry(
        "whether a user replied does not depend on what it holds: one without usable data sent zeros",
        told=True,
    ),
    "covers-known-users": _Entry(
        "ε covers what a user holds, not whether it has joined: neighbouring federations differ in one "
        "user's contribution to what is added up; who the users are, and who replied, is public",
        told=True,
    ),
    "covers-hidden-users": _Entry(
        "ε covers what a user holds, not whether it has joined: neighbouring federations differ in one "
        "user's contribution to what is added up; who the users are, and who was connected, is public, but "
        "nobody knows who was drawn except the server and, of itself, each user",
        told=True,
    ),
    "tests-of-users": _Entry(
        "the test inputs, which name the classes, are shares of users who train: none of them is "
        "poisoned, and scores, labels, certificate and page are private, as no finite epsilon covers them",
        told=True,
    ),
    "encoder": _Entry("the encoder is not poisoned: {name}", told=True),
    "encoder-weights": _Entry(
        "the encoder is not poisoned: {name} (sha256 of its weights {sha256})", told=True
    ),
    "public": _Entry("the public data are not poisoned: {count} instances of {source}", told=True),
    "public-map": _Entry(
        "the public data are not poisoned: {count} instances of {source}, which give the centre and "
        "{project} directions ({projection})",
        told=True,
    ),
    "stated": _Entry("{text}", told=True),
}

_CATALOGUE: Mapping[str, _Entry] = UNMET | ASSUMED
