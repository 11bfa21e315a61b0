"""One upload from everybody, one release: no attack breaks a certificate, and the worst one attains it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedproof import encoders
from fedproof.attacks import build_attack, build_series
from fedproof.attacks.worst_case import worst_upload
from fedproof.config import parse_config
from fedproof.ensemble import one_round
from fedproof.experiment import certify_scores, make_task
from fedproof.mechanisms.uploads import UPLOADS
from fedproof.release import summed
from fedproof.robustness.evaluate import attack, evaluate_all
from fedproof.robustness.outcome import run_attack, train, verdict
from fedproof.robustness.poisoned import under_attack
from fedproof.threat import Relation

USERS, ANCHORS = 60, 40
DIGITS = f"""
[data]
name = "digits"
classes = [0, 1, 2]
users = {USERS}
public = 100
project = 8
[mechanism]
kind = "one-round"
solver = "sums"
noise_multiplier = 0.2
delta = 0.01
[certificate]
method = "exact"
[ensemble]
seed = 3
"""
BY_DATA = ("label-flip", "backdoor", "hostile", "worst-case")


def digits(upload, *, unit="user", relation="replace", more=()):
    named = [f"mechanism.upload={upload}", f"threat.unit={unit}", f"threat.relation={relation}"]
    near = [f"mechanism.anchors={ANCHORS}"] if upload in ("anchors", "non-negative") else []
    fitted = ["mechanism.solver=ridge"] if upload == "anchors" else []
    return parse_config(DIGITS, "digits", (*named, *near, *fitted, *more))


@cache
def federation():
    return encoders.load(**digits("rows").data.model_dump(), device="cpu")


def task_of(config):
    return make_task(config, "cpu", federation())


def check(row):
    assert row.sound
    assert row.holds_on_certified
    assert row.kept_on_certified in (None, 1.0)
    assert row.holds_on_cost
    assert row.certified_lower <= row.cost <= row.certified_upper
    assert row.accuracy >= row.certified_accuracy


# --- no certificate breaks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["replace", "join"])
@pytest.mark.parametrize("upload", UPLOADS)
def test_no_users_break_a_certificate(upload, relation):
    config = digits(upload, relation=relation)
    kinds = {
        "replace": (*BY_DATA, "distributed-backdoor", "absent"),
        "join": (*BY_DATA, "leave"),
    }[relation]
    kinds += () if upload == "anchors" else ("min-max",)
    rows = attack(config, kinds, (0, 3, 9), task=task_of(config))
    for row in rows:
        check(row)
        assert row.certified_inputs > 0
        assert (row.cost == row.clean_cost == row.certified_lower) or row.adversaries


@pytest.mark.parametrize("relation", ["replace", "join"])
@pytest.mark.parametrize("upload", [kind for kind in UPLOADS if kind != "anchors"])
def test_no_instances_break_a_certificate(upload, relation):
    config = digits(upload, unit="instance", relation=relation, more=["attack.spread=12"])
    kinds = BY_DATA if relation == "replace" else (*BY_DATA, "leave")
    for row in attack(config, kinds, (1, 12), task=task_of(config)):
        check(row)
        assert row.certified_inputs > 0


@pytest.mark.parametrize("upload", ["anchors", "rows"])
@pytest.mark.parametrize(
    "more", [["attack.user_instances=1"], ["attack.scale=50.0"], ["attack.values='nan'"]], ids=str
)
def test_options_of_attacks_hold_too(upload, more):
    config = digits(upload, more=more)
    kind = "hostile" if "values" in more[0] else "label-flip"
    if upload == "anchors" and "scale" in more[0]:
        with pytest.raises(ValueError, match="ModelReplacement calculates with numbers, but upload = 'anch"):
            attack(config, [kind], [3], task=task_of(config))
        return
    for row in attack(config, [kind], [3, 9], task=task_of(config)):
        check(row)


# --- what is sent -------------------------------------------------------------------------------------------


def one_input(upload, relation, *, alike):
    """A task with a single test input, and the configuration; `alike`: everybody says all it can for it."""
    config, found = digits(upload, relation=relation), federation()
    scores = train(task_of(config), 1, []).scores[0]
    right = np.flatnonzero(scores.argmax(axis=1) == found.test_labels)
    leads = np.sort(scores[right], axis=1)
    chosen = right[np.argsort(leads[:, -1] - leads[:, -2])[len(right) // 2]][None]  # neither easy nor hard
    inputs, labels = found.test_features[chosen], found.test_labels[chosen]
    found = replace(found, test_features=inputs, test_labels=labels)
    if alike:  # one instance is the input itself, one its opposite of each other class
        others = [one for one in range(3) if one != labels[0]]
        found = replace(
            found,
            features=np.tile(np.concatenate([inputs, -inputs, -inputs]), (USERS, 1)),
            labels=np.tile([labels[0], *others], USERS),
            offsets=3 * np.arange(USERS + 1),
            instance_ids=np.arange(3 * USERS),
        )
    return config, make_task(config, "cpu", found)


@pytest.mark.parametrize(
    ("upload", "relation"),
    [
        (kind, relation)
        for kind in UPLOADS
        for relation in Relation
        if (kind, relation) != ("ball", "replace")
    ],
)
def test_the_bound_is_attained(upload, relation):
    """As many users as are certified leave the answer, one more changes it.

    Whoever joins moves the lead by one whatever others say; whoever is replaced by two if it has said all it
    can for the answer before, against both other classes. In a `ball` nobody can: what it says against one is
    missing against the other.
    """
    config, task = one_input(upload, relation, alike=relation == "replace")
    certificate = certify_scores(config, task, train(task, 1, []).scores, task.federation.test_labels)
    (size,) = certificate.certified_size
    assert certificate.prediction == (task.federation.test_labels[0],)
    assert 5 < size < USERS
    held, fallen = attack(config, ["worst-case"], [size, size + 1], task=task)
    for row in (held, fallen):
        check(row)
    assert (held.certified_inputs, held.success, held.accuracy) == (1, 0, 1)
    assert (fallen.certified_inputs, fallen.success, fallen.accuracy) == (0, 1, 0)


@pytest.mark.parametrize("upload", UPLOADS)
@pytest.mark.parametrize("kind", ["worst-case", "hostile", "absent"])
def test_adversaries_replace_what_they_send_and_nothing_else(upload, kind):
    task, who = task_of(digits(upload)), (7, 2, 31, 59)
    attacked = under_attack(task, build_attack(kind, adversaries=who))
    before, after = (np.concatenate(list(one_round.uploads_of(each))) for each in (task, attacked))
    changed = [user for user in range(USERS) if not np.array_equal(before[user], after[user])]
    assert set(changed) == set(who)
    assert before.dtype == after.dtype
    assert before.shape == after.shape
    # Exact sums: the release moves by the adversaries' vectors, and the noise is the same.
    mechanism, rows = task.mechanism, list(who)
    moved = summed(mechanism, after[rows]) - summed(mechanism, before[rows])
    clean, poisoned = one_round.release(task).total, one_round.release(attacked).total
    np.testing.assert_array_equal(poisoned - clean, moved)
    assert np.any(clean != summed(mechanism, before))  # there is noise
    if kind == "hostile":
        sent = after[list(who[1::2])]
        assert (~np.isin(sent, range(3))).all() if upload == "anchors" else not np.isfinite(sent[1]).any()


def test_parts_of_the_units_are_attacked_alike(monkeypatch):
    task = task_of(digits("rows"))
    attacked = under_attack(task, build_attack("worst-case", adversaries=(0, 8, 33)))
    whole = list(one_round.uploads_of(attacked))
    monkeypatch.setattr(one_round, "_CELLS", 7 * 8 * 3)
    parts = list(one_round.uploads_of(attacked))
    assert (len(whole), len(parts)) == (1, 9)
    np.testing.assert_array_equal(np.concatenate(parts), whole[0])


@pytest.mark.parametrize("upload", UPLOADS)
@pytest.mark.parametrize("count", [1, 5])
def test_nothing_else_of_the_set_does_more(upload, count):
    """Random vectors, and what the worst one becomes by small changes, move the summed leads by less."""
    task, rng, chosen = task_of(digits(upload)), np.random.default_rng(0), np.arange(count)
    release, found = one_round.release(task), task.mechanism.upload
    inputs, labels = federation().test_features[chosen], federation().test_labels[chosen]
    scores = release.scores(inputs)
    scores[chosen, labels] = -np.inf
    rivals = scores.argmax(axis=1)
    anchors = None if release.anchors is None else release.anchors.astype(float)
    weights = found.weights(inputs.astype(float), anchors)

    def moved(sent):
        added = np.einsum("iw,uwc->uic", weights, found.inside(sent))
        return (added[:, chosen, rivals] - added[:, chosen, labels]).sum(axis=1)

    worst = worst_upload(task, chosen, None)
    if found.labels:
        others = rng.integers(-1, 3, size=(3000, ANCHORS))
        near = np.where(rng.random((3000, ANCHORS)) < 0.05, others, worst)
    else:
        others = rng.normal(size=(3000, *found.shape))
        near = worst + 10.0 ** rng.uniform(-4, 0, size=(3000, 1, 1)) * others
    (most,) = moved(worst[None])
    assert most == pytest.approx(1) or count > 1
    if upload != "pairs" or count == 1:
        assert max(moved(others).max(), moved(near).max()) <= most + 1e-12


def opposite(contributions, state, adversaries):
    return -contributions.updates  # of everybody: only the adversaries' rows may count


@pytest.mark.parametrize("upload", ["anchors", "rows"])
def test_an_attack_of_ones_own_sees_what_is_sent(upload):
    task, who = task_of(digits(upload)), [4, 44]
    attacked = under_attack(task, build_attack(f"{__name__}:opposite", adversaries=tuple(who)))
    before, after = (np.concatenate(list(one_round.uploads_of(each))) for each in (task, attacked))
    before[who] = -before[who]
    np.testing.assert_array_equal(after, before)


# --- the tests see something --------------------------------------------------------------------------------


@pytest.mark.parametrize("upload", UPLOADS)
def test_a_majority_wins_where_nothing_is_certified(upload):
    config = digits(upload)
    (row,) = attack(config, ["worst-case"], [40], task=task_of(config))
    check(row)
    assert row.certified_inputs == 0
    assert row.accuracy < 0.3 < 0.8 < row.clean_accuracy
    assert row.cost < row.clean_cost / 2


def test_a_wrong_certificate_is_caught():
    config = digits("rows")
    task = task_of(config)
    claimed = certify_scores(config, task, train(task, 1, []).scores, task.federation.test_labels)
    claimed = replace(claimed, certified_size=(40,) * len(claimed.certified_size))
    ((name, worst),) = build_series("worst-case", [40], num_users=USERS)
    found = verdict(run_attack(task, worst, 1).scores, claimed, 40, failure_probability=1e-6)
    assert found.certified == found.kept + found.contradicted
    assert found.contradicted > found.certified / 2
    (row,) = evaluate_all(
        task, [(name, worst)], num_replicas=1, certifier=lambda scores: claimed, cost_bound=10.0, delta=0.01
    )
    assert not row.holds_on_certified


def test_fresh_noise_is_refused():
    config = digits("anchors", more=["ensemble.secure_noise=true"])
    with pytest.raises(ValueError, match="secure_noise = true must be false to attack kind = 'one-round'"):
        attack(config, ["label-flip"], [3], task=task_of(config))


def test_attacks_on_what_users_send_are_refused_where_units_are_instances():
    task = task_of(digits("rows", unit="instance"))
    with pytest.raises(ValueError, match="WorstCase replaces updates"):
        under_attack(task, build_attack("worst-case", adversaries=(1,)))


def other_anchors(federation, adversaries):
    return replace(federation, public_features=federation.public_features + 1)


def test_public_data_are_not_for_users_to_change():
    task = task_of(digits("anchors"))
    with pytest.raises(ValueError, match="changed public_features"):
        under_attack(task, build_attack(f"{__name__}:other_anchors", adversaries=(1,)))
