"""Whoever writes a certificate may want it to say more than is true: what `verify` sees, and what it says so.

A forger can renew checksums, so every forged file here has good ones.
"""

import json
import zipfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from fedproof.certificates import (
    ApproximateDP,
    certify,
    certify_means,
    dumps,
    inefficacy,
    loads,
    loads_inefficacy,
    unverified,
    verify,
)
from fedproof.certificates.document import checksum
from fedproof.certificates.scores import betting_order, check_copies, read_array, repeated_scores
from fedproof.certificates.soundness import copied_models
from fedproof.digests import fingerprint
from fedproof.mechanisms import (
    Bagging,
    Everyone,
    FixedSize,
    Median,
    Partition,
    Poisson,
    Queries,
    Query,
    UserFedAvg,
)
from fedproof.statements import Statement
from fedproof.threat import ThreatModel

MECHANISM = UserFedAvg(rounds=3, noise_multiplier=4.0, sampling=Poisson(probability=0.1))
KNOWN = ApproximateDP(epsilon=0.1, delta=1e-5, relation="join")
LABELS = [0] * 10 + [1, 2]
CAVEAT = "the clip norm was chosen on the test data"
ASSUMPTION = "each user holds at most 600 instances"


def forged(certificate, **changes):
    """The file with other fields and checksums that agree with them."""
    document = json.loads(dumps(certificate)) | changes
    body = {name: value for name, value in document.items() if name != "checksums"}
    return json.dumps(body | {"checksums": {name: checksum(value) for name, value in body.items()}})


# --- labels -------------------------------------------------------------------------------------------------


def test_labels_that_were_altered_to_fit_are_found_by_the_labels(scores):
    certificate = certify(scores, LABELS, mechanism=MECHANISM, method="mean")
    flattering = certify(scores, [0] * 12, mechanism=MECHANISM, method="mean")
    text = dumps(flattering)
    assert verify(text, scores) == ()
    assert unverified(text) == ("labels", "labels_sha256", "accuracy", "certified_accuracy")
    found = verify(text, scores, LABELS)
    assert any(line.startswith("labels: the file says 0 at index 10, the labels give 1") for line in found)
    assert any(line.startswith("labels_sha256") for line in found)
    assert any(line.startswith("accuracy: the file says") for line in found)
    assert verify(dumps(certificate), scores, np.array(LABELS, dtype=np.int8)) == ()
    assert unverified(dumps(certificate), LABELS) == ()


def test_labels_may_be_a_file(scores, tmp_path):
    np.save(tmp_path / "labels.npy", np.array(LABELS))
    text = dumps(certify(scores, LABELS, mechanism=MECHANISM, method="mean"))
    assert verify(text, scores, tmp_path / "labels.npy") == ()


def test_labels_that_cannot_be_compared_are_refused(scores):
    text = dumps(certify(scores, mechanism=MECHANISM, method="mean"))
    assert unverified(text) == ()
    with pytest.raises(ValueError, match="the certificate holds none to compare them with"):
        verify(text, scores, LABELS)
    costs = np.random.default_rng(0).uniform(size=30)
    bounds = dumps(inefficacy(costs, cost_bound=1.0, mechanism=MECHANISM))
    assert unverified(bounds) == ()
    with pytest.raises(ValueError, match="holds none to compare"):
        verify(bounds, costs, [0])
    with pytest.raises(ValueError, match="labels have shape"):
        verify(dumps(certify(scores, LABELS, mechanism=MECHANISM, method="mean")), scores, [0, 1])


# --- replicas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "bound"),
    [
        ("margin", "betting"),
        ("margin", "levels"),
        ("mean", "betting"),
        ("mean", "hoeffding"),
        ("vote", "betting"),
        ("vote", "clopper-pearson"),
        ("paper", "betting"),
        ("renyi", "betting"),
    ],
)
def test_sorting_the_replicas_gains_nothing(scores, method, bound):
    known = {"mechanism": MECHANISM, "method": method, "bound": bound, "delta": 1e-3}
    best_last = scores[np.argsort(scores[:, :, 0].mean(axis=1))]
    for order in (scores, best_last, best_last[::-1]):
        found = certify(order, **known)
        assert found.certified_size == certify(scores, **known).certified_size
        assert found.top_lower is None or found.top_lower == pytest.approx(
            certify(scores, **known).top_lower, rel=1e-12
        )


def test_the_order_of_bets_depends_on_all_replicas_and_on_no_order():
    scores = np.random.default_rng(1).dirichlet([4, 1], size=(50, 3)).astype(np.float32)
    placed = scores[betting_order(scores)]
    shuffled = scores[np.random.default_rng(2).permutation(50)]
    assert np.array_equal(shuffled[betting_order(shuffled)], placed)
    swapped = scores.astype(">f4")
    assert np.array_equal(swapped[betting_order(swapped)], placed)
    other = scores.copy()
    other[0, 0] = other[0, 0][::-1]
    kept = [row.tobytes() for row in other[betting_order(other)] if not np.array_equal(row, other[0])]
    before = [row.tobytes() for row in placed if not np.array_equal(row, scores[0])]
    assert kept != before
    signed = scores.copy()
    signed[0, 0] = [1.0, 0.0]
    negative = signed.copy()
    negative[0, 0] = [1.0, -0.0]  # the same number: not a way to try another order
    assert np.array_equal(betting_order(signed), betting_order(negative))


def test_equal_replicas_do_not_stand_together():
    """Else the order of bets would be one by scores; models of three kinds must mix as by chance."""
    kinds = np.repeat(np.eye(3), [200, 200, 200], axis=0)[:, None]
    placed = kinds[betting_order(kinds)][:, 0].argmax(axis=1)
    # 599 neighbours agree with chance 1/3: five standard deviations are 58
    assert abs(np.sum(placed[1:] == placed[:-1]) - 599 / 3) < 58
    shuffled = kinds[np.random.default_rng(0).permutation(600)]
    assert np.array_equal(shuffled[betting_order(shuffled)], kinds[betting_order(kinds)])


def test_copied_replicas_are_refused(scores):
    thrice = np.repeat(scores[:60], 3, axis=0)
    twice_and_more = np.concatenate([scores[:100], scores[:100], scores[100:130]])
    for copies in (np.concatenate([scores, scores]), thrice, twice_and_more):
        for known in ({"mechanism": MECHANISM}, {"privacy": KNOWN, "method": "mean"}):
            with pytest.raises(ValueError, match=r"replicas [23] times each, number for number: copies are"):
                certify(copies, **known)
    few = np.concatenate([scores, scores[:30]])  # a law of few atoms could do that
    [found] = certify(few, mechanism=MECHANISM, method="mean").unmet
    assert found == Statement.of("copies", number=60, total=230)


@pytest.mark.parametrize("known", [{"mechanism": MECHANISM}, {"privacy": KNOWN, "method": "mean"}], ids=list)
@pytest.mark.parametrize("times", [(200,), (100, 100), (150, 50)], ids=str)
def test_copies_of_a_few_models_are_no_independent_trainings(scores, times, known):
    copies = np.repeat(scores[: len(times)], times, axis=0)
    certificate = certify(copies, **known)
    assert not certificate.sound
    assert certificate.unmet == (Statement.of("copies", number=200, total=200),)
    assert verify(dumps(certificate), copies) == ()
    honest = forged(certificate, unmet=[], sound=True)
    assert any(line.startswith("unmet:") for line in verify(honest, copies))


@pytest.mark.parametrize("few", [slice(2), slice(12)])
@pytest.mark.parametrize(
    "mechanism", [MECHANISM, Bagging(rounds=1, sampling=Poisson(probability=0.1))], ids=repr
)
def test_replicas_that_may_agree_by_chance_are_a_note(scores, few, mechanism):
    """Two inputs of two classes, half precision, and trainings without noise."""
    some = scores[:, few, :2] / scores[:, few, :2].sum(axis=2, keepdims=True)
    some = some if mechanism is not MECHANISM or few.stop == 2 else some.astype(np.float16)
    agreeing = np.concatenate([some, some[:1]])
    certificate = certify(agreeing, mechanism=mechanism, method="mean")
    assert certificate.sound
    note = Statement.of("alike", number=2)
    assert (note in certificate.assumptions, note in certify(some, mechanism=mechanism).assumptions) == (
        True,
        False,
    )
    assert verify(dumps(certificate), agreeing) == ()


def test_no_repetition_proves_nothing(scores):
    """One bit hides a copy: the check is for mistakes, and no forger is held up by it."""
    copies = np.repeat(scores[:1], 200, axis=0).astype(np.float64)
    copies[:, 0, 0] += np.arange(200) * 2.0**-50
    assert certify(copies, mechanism=MECHANISM).sound


@given(inputs=st.integers(5, 30), seed=st.integers(0, 99))
def test_honest_replicas_with_noise_are_not_counted_as_copies(inputs, seed):
    """Linear models of two numbers, in float32: 2,000 of them."""
    generator = np.random.default_rng(seed)
    one = expit(generator.normal(size=(2000, 2)) @ generator.normal(size=(2, inputs))).astype(np.float32)
    assert repeated_scores(np.stack([1 - one, one], axis=2)) == (0, 0)
    nothing = np.full((3, inputs, 4), 0.25, dtype=np.float32)
    assert repeated_scores(nothing) == (0, 0)


def test_equal_models_are_no_independent_trainings():
    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    rows[4:] = np.nan  # models that are no numbers share all of them
    named = {"weight": rows, "bias": rows[:, :1]}
    once = {name: values[:4] for name, values in named.items()}
    assert copied_models(MECHANISM, [named]) == ()
    [found] = copied_models(MECHANISM, [named, once])
    assert found == Statement.of("copied-models", number=8, total=10)
    assert copied_models(Bagging(rounds=1, sampling=Poisson(probability=0.1)), [named, once]) == ()
    assert copied_models(Partition(groups=6), [named, once]) == ()


def test_a_file_of_copies_is_not_verified(scores):
    certificate = certify(scores, mechanism=MECHANISM, method="mean")
    twice = np.concatenate([scores, scores])
    text = forged(certificate, num_replicas=400, scores_sha256=fingerprint(twice))
    [answer] = verify(text, twice)
    assert answer.startswith("scores hold 200 replicas 2 times each")


def honest():
    """Replicas that agree without being copies."""
    generator = np.random.default_rng(5)
    z = generator.normal(size=(2000, 1))
    steep = np.linspace(0.5, 3, 12)
    smooth = expit(z * steep + 1)
    both = np.stack([smooth, 1 - smooth], axis=2)
    yield "votes", (both > 0.5).astype(np.float32)
    yield "half precision, one parameter", both.astype(np.float16)
    yield "rounded to two digits", np.round(both, 2)
    saturated = expit(40 * z * steep + 80).astype(np.float32)
    yield "saturated", np.stack([saturated, 1 - saturated], axis=2)
    yield "one input", both[:, :1].astype(np.float16)
    untrained = both.astype(np.float32)
    untrained[::3] = untrained[0]
    yield "every third cohort was empty", untrained
    yield "equal inputs, rounded", np.round(np.repeat(both[:, :1], 20, axis=1), 3)
    yield "few replicas", np.round(both[:10], 2)
    for atoms in (3, 40, 800, 5000):
        laws = generator.dirichlet([2, 1, 1], size=(atoms, 9))
        yield f"{atoms} cohorts", laws[generator.integers(atoms, size=2000)]
        uneven = generator.choice(atoms, size=2000, p=generator.dirichlet(np.full(atoms, 0.3)))
        yield f"{atoms} uneven cohorts", laws[uneven]


@pytest.mark.parametrize(("name", "scores"), [pytest.param(*case, id=case[0]) for case in honest()])
def test_honest_replicas_are_never_taken_for_copies(name, scores):
    check_copies(scores)


def test_honest_replicas_are_refused_so_rarely_that_nobody_sees_it():
    """Laws that make as many replicas as possible occur twice: a mean of √6 each."""
    generator = np.random.default_rng(6)
    worst = 0.0
    for _ in range(200):
        times = Counter(Counter(generator.integers(1000, size=2449).tolist()).values())
        worst = max(worst, times[2] / (times[1] + times[3]))
    assert 0.5 < worst < 0.8  # it takes 2 and twenty more to be refused


def test_equal_groups_are_no_mistake(scores):
    twice = np.concatenate([scores[:100], scores[:100]])
    assert certify(twice, mechanism=Partition(groups=200), method="vote").sound


# --- words --------------------------------------------------------------------------------------------------


def test_words_of_whoever_trained_are_kept_and_come_back(scores):
    said = {"unmet": [CAVEAT], "assumptions": [ASSUMPTION]}
    costs = np.random.default_rng(0).uniform(size=30)
    means = [[0.9, 0.1]]
    made = [
        (certify(scores, mechanism=MECHANISM, method="mean", **said), scores),
        (certify_means(means, mechanism=MECHANISM, **said), means),
        (inefficacy(costs, cost_bound=1.0, mechanism=MECHANISM, **said), costs),
    ]
    for found, numbers in made:
        assert found.unmet == (Statement.of("unmet-as-stated", text=CAVEAT),)
        assert not found.sound
        assert found.assumptions[-1].sentence == f"stated by whoever trained, not derived: {ASSUMPTION}"
        assert verify(dumps(found), numbers) == ()
        told = {"code": "stated", "arguments": {"text": ASSUMPTION}}
        assert json.loads(dumps(found))["stated_assumptions"] == [told]
    assert loads(dumps(made[0][0])) == made[0][0]


def test_an_assumption_cannot_pass_for_a_derived_one(scores):
    certificate = certify(scores, mechanism=MECHANISM, method="mean")
    false = {"code": "stated", "arguments": {"text": "the replicas need not be independent"}}
    derived = [one.document() for one in certificate.assumptions]
    for assumptions in ([false], [*derived, false], []):
        found = verify(forged(certificate, assumptions=assumptions), scores)
        assert any(line.startswith("assumptions:") for line in found)
    stated = forged(certificate, stated_assumptions=[false], assumptions=[*derived, false])
    assert verify(stated, scores) == ()  # it may be said, and everybody sees who says it
    assert "stated by whoever trained" in loads(stated).assumptions[-1].sentence
    for wrong in ("executed", "no such code"):
        told = {"code": wrong, "arguments": {}}
        [answer] = verify(forged(certificate, stated_assumptions=[told]), scores)
        assert wrong in answer
    for wrong in ({"code": "stated"}, {"code": "stated", "arguments": {}}, {"code": 5, "arguments": {}}):
        assert verify(forged(certificate, assumptions=[wrong]), scores)[-1].startswith("assumptions")


def test_a_condition_that_follows_from_the_settings_cannot_be_left_out(scores):
    """Whoever reads a file without its scores would show a heuristic certificate as a proof."""
    median = replace(MECHANISM, clipping=Median())
    costs = np.random.default_rng(0).uniform(size=30)
    read = {"scores": (certify(scores, mechanism=median, method="mean"), loads)}
    read["costs"] = (inefficacy(costs, cost_bound=1.0, mechanism=median), loads_inefficacy)
    for made, reader in read.values():
        assert reader(dumps(made)) == made
        with pytest.raises(ValueError, match="unmet: clip-norm follows from the settings, and is not there"):
            reader(forged(made, unmet=[], sound=True))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " x",
        "x ",
        "two\nlines",
        "right\u202etfel",
        "zero\u200bwidth",
        "e\u0301",
        "bell\x07",
        "x" * 1001,
        5,
    ],
)
def test_texts_that_show_something_else_are_refused(scores, text):
    for name in ("unmet", "assumptions"):
        with pytest.raises(ValueError, match=name):
            certify(scores, mechanism=MECHANISM, method="mean", **{name: [text]})
    with pytest.raises(ValueError, match="must be a sequence of sentences, not one"):
        certify(scores, mechanism=MECHANISM, unmet="one text")


def test_hidden_characters_are_refused_wherever_they_are(scores):
    certificate = certify(scores, mechanism=MECHANISM, method="mean")
    mechanism = json.loads(dumps(certificate))["mechanism"]
    for changes in (
        {"unmet": ["x\u202ey"]},
        {"mechanism": mechanism | {"rule": "mean\u200b"}},
        {"scores_sha256": "a\u2028b"},
    ):
        with pytest.raises(ValueError, match="characters that cannot be shown"):
            verify(forged(certificate, **changes), scores)
    with pytest.raises(ValueError, match="nested deeper"):
        verify(forged(certificate, unmet=json.loads("[" * 30 + "]" * 30)), scores)


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1e-320, 1e-300, 1e-160, 1e160, 1e308])
@pytest.mark.parametrize("method", ["mean", "paper", "renyi", "margin"])
def test_absurd_noise_ends_in_a_sentence(scores, number, method):
    queries = Queries(queries=(Query(noise_multiplier=3.0, sampling=Everyone(), count=2),))
    for mechanism in (MECHANISM, queries):
        certificate = certify(
            scores[:40], mechanism=mechanism, threat=ThreatModel(), method=method, delta=1e-3, max_size=60
        )
        document = json.loads(dumps(certificate))["mechanism"]
        (document if mechanism is MECHANISM else document["queries"][0])["noise_multiplier"] = number
        found = verify(forged(certificate, mechanism=document), scores[:40])
        assert found if number > 1 else all("\n" not in line for line in found)  # less noise may be no lie


@pytest.mark.parametrize("number", [10**30, 2**63, 1e300, 700, 1e-300])
@pytest.mark.parametrize("method", ["mean", "paper"])
def test_absurd_epsilons_end_in_a_sentence(scores, number, method):
    certificate = certify(scores[:40], privacy=KNOWN, method=method, max_size=3)
    stated = json.loads(dumps(certificate))["privacy"] | {"epsilon": number}
    assert verify(forged(certificate, privacy=stated), scores[:40])


@pytest.mark.parametrize("size", [10**7 + 1, 2**63, 10**250])
def test_sizes_that_nobody_can_search_are_refused(scores, size):
    groups = scores[:21]
    for certificate, array in (
        (certify(scores, mechanism=MECHANISM, method="mean"), scores),
        (certify(groups, mechanism=Partition(groups=21), method="vote"), groups),
    ):
        [answer] = verify(forged(certificate, max_size=size), array)
        assert answer.startswith("max_size = ")


def test_fields_of_the_wrong_type_are_refused(scores):
    once = Bagging(rounds=1, sampling=FixedSize(cohort=2, users=100))
    certificate = certify(scores, mechanism=once, method="vote")
    mechanism = json.loads(dumps(certificate))["mechanism"]
    for name, value in (("pooled", 1), ("pooled", "no"), ("rounds", True), ("rule", 3), ("unit", None)):
        [answer] = verify(forged(certificate, mechanism=mechanism | {name: value}), scores)
        assert answer.startswith(f"mechanism.{name} = ") or "mechanism of kind bagging" in answer


def test_a_mechanism_that_releases_nothing_certifies_nothing(scores):
    with pytest.raises(ValueError, match="queries are empty"):
        certify(scores, mechanism=Queries(queries=()), method="mean")


def test_no_more_units_are_replaced_than_there_are():
    scores = np.zeros((300, 1, 2))
    scores[..., 0] = 1.0
    small = UserFedAvg(rounds=1, noise_multiplier=1000.0, sampling=FixedSize(cohort=5, users=50))
    for method in ("mean", "margin", "vote"):
        assert certify(scores, mechanism=small, method=method, max_size=100).certified_size == (50,)
    costs = np.random.default_rng(0).uniform(size=99)
    assert inefficacy(costs, cost_bound=1.0, mechanism=small, tau=9.0, sizes=[1]).needed is None


def test_a_failure_probability_of_zero_is_for_what_is_not_estimated(scores):
    with pytest.raises(ValueError, match="failure_probability"):
        certify(scores, mechanism=MECHANISM, method="mean", bound="none", failure_probability=0.0)


def test_an_archive_with_two_arrays_of_one_name_is_refused(tmp_path, scores):
    path = tmp_path / "scores.npz"
    np.savez(path, scores=scores)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("scores.npy", b"other")
    with pytest.raises(ValueError, match=r"holds scores\.npy, scores\.npy, must hold one array"):
        read_array(path)
