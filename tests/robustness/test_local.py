"""Users add noise, adversaries do not: no attack breaks a certificate, and the worst one attains it."""

from dataclasses import replace

import numpy as np
import pytest

from fedproof.attacks import build_attack
from fedproof.config import parse_config
from fedproof.ensemble import one_round
from fedproof.experiment import certify_scores, make_task
from fedproof.mechanisms.uploads import shortened
from fedproof.release import summed
from fedproof.robustness.evaluate import attack
from fedproof.robustness.outcome import train
from fedproof.robustness.poisoned import under_attack
from tests.robustness.test_one_round import ANCHORS, DIGITS, USERS, check, federation, task_of

UPLOADS = ("anchors", "rows", "ball")


def digits(upload, *more):
    known = ["mechanism.kind=local", f"mechanism.upload={upload}", "mechanism.noise_multiplier=0.02"]
    near = [f"mechanism.anchors={ANCHORS}", "mechanism.solver=ridge"] if upload == "anchors" else []
    return parse_config(DIGITS, "digits", (*known, *near, *more))


@pytest.mark.parametrize("relation", ["replace", "join"])
@pytest.mark.parametrize("upload", UPLOADS)
def test_no_users_break_a_certificate(upload, relation):
    config = digits(upload, f"threat.relation={relation}")
    kinds = ["label-flip", "hostile", "worst-case", "absent" if relation == "replace" else "leave"]
    for row in attack(config, kinds, (0, 2, 5), task=task_of(config)):
        check(row)
        assert row.certified_inputs > 0


@pytest.mark.parametrize("upload", UPLOADS)
def test_the_bound_is_attained(upload):
    """Whoever joins without noise moves a lead by one: k leave the answer as it is, k + 1 do not."""
    config, found = digits(upload, "threat.relation=join"), federation()
    scores = train(task_of(config), 1, []).scores
    everything = certify_scores(config, task_of(config), scores, found.test_labels)
    right = np.array(everything.prediction) == found.test_labels
    sizes = np.where(right, everything.certified_size, 0)
    size = int(np.median(sizes[sizes > 3]))
    chosen = np.flatnonzero(sizes == size)[:1]
    alone = replace(found, test_features=found.test_features[chosen], test_labels=found.test_labels[chosen])
    held, fallen = attack(config, ["worst-case"], [size, size + 1], task=make_task(config, "cpu", alone))
    for row in (held, fallen):
        check(row)
    assert (held.certified_inputs, held.success) == (1, 0)
    assert (fallen.certified_inputs, fallen.success) == (0, 1)


@pytest.mark.parametrize("upload", UPLOADS)
@pytest.mark.parametrize("kind", ["worst-case", "hostile", "absent"])
def test_honest_noise_is_the_same_whatever_adversaries_do(upload, kind):
    task, who = task_of(digits(upload)), [7, 2, 31, 59]
    attacked = under_attack(task, build_attack(kind, adversaries=tuple(who)))
    before, after = (np.concatenate(list(one_round.uploads_of(each))) for each in (task, attacked))
    changed = [user for user in range(USERS) if not np.array_equal(before[user], after[user])]
    assert set(changed) == set(who)
    moved = summed(task.mechanism, after[who]) - summed(task.mechanism, before[who])
    clean, poisoned = one_round.release(task).total, one_round.release(attacked).total
    np.testing.assert_array_equal(poisoned - clean, moved)


def test_a_server_that_shortens_too_little_is_caught(monkeypatch):
    """The certificate rests on the server's set, not on anybody's noise."""
    config = digits("ball")
    task = task_of(config)
    (row,) = attack(config, ["worst-case"], [3], task=task)
    check(row)
    wide = lambda self, sent: 20 * shortened(self.upload, sent / 20, self.grid.step)  # noqa: E731
    monkeypatch.setattr(type(task.mechanism), "received", wide)
    (row,) = attack(config, ["worst-case"], [3], task=task)
    assert not row.holds_on_certified
