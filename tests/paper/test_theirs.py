"""Attacks and rules as the authors' code has them: against plain loops, and on the studies that name them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedproof.aggregation import build_rule
from fedproof.attacks import build_attack
from fedproof.federation import Federation
from fedproof.robustness.poisoned import poisoned
from paper import provenance, theirs
from paper.provenance import decided_by
from paper.study import chosen, load_studies, points_of

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
COHORT, ADVERSARIES = 10, 1


@pytest.fixture
def updates():
    return torch.from_numpy(np.random.default_rng(7).normal(size=(3, COHORT, 4)))


def krum_order(updates, num_adversaries, left):
    """Krum's choices one after the other, each update's distance to itself among the smallest."""
    rest, chosen = list(updates), []
    while len(rest) > left and (among := len(rest) - num_adversaries - 2) > 0:
        scores = [sum(sorted(float(((one - other) ** 2).sum()) for other in rest)[:among]) for one in rest]
        chosen.append(rest.pop(int(np.argmin(scores))))
    return chosen


def by_loops(name, updates):
    middle = (len(updates) - 1) // 2
    match name:
        case "median":
            return np.sort(updates, axis=0)[middle]
        case "krum":
            return krum_order(updates, ADVERSARIES, len(updates) - 1)[0]
        case "multi_krum":
            return np.mean(krum_order(updates, ADVERSARIES, 2 * ADVERSARIES + 2), axis=0)
        case "bulyan":
            chosen = np.array(krum_order(updates, ADVERSARIES, 2 * ADVERSARIES))
            found = []
            for column in chosen.T:
                lower = np.sort(column)[(len(column) - 1) // 2]
                nearest = sorted(column, key=lambda value: abs(value - lower))
                found.append(np.mean(nearest[: len(column) - 2 * ADVERSARIES]))
            return np.array(found)
    point = updates.mean(axis=0)
    for _ in range(4):
        weights = 1 / np.maximum(np.linalg.norm(updates - point, axis=1), 1e-5)
        point = (weights[:, None] * updates).sum(axis=0) / weights.sum()
    return point


@pytest.mark.parametrize("name", ["median", "krum", "multi_krum", "bulyan", "geometric_median"])
def test_rules_are_the_loops_of_their_code(name, updates):
    found = getattr(theirs, name)(updates, ADVERSARIES)
    wanted = np.array([by_loops(name, replica.numpy()) for replica in updates])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["median", "multi_krum", "bulyan"])
def test_rules_differ_from_ours_where_the_table_says_so(name, updates):
    ours = build_rule(name.replace("_", "-"), num_adversaries=ADVERSARIES).function(updates, ADVERSARIES)
    assert not torch.allclose(getattr(theirs, name)(updates, ADVERSARIES), ours)


def test_the_pattern_is_fifteen_pixels_and_its_parts_are_dealt_out_in_order():
    assert len(set(theirs.PATTERN)) == 15
    assert {row for row, _ in theirs.PATTERN} == {column for _, column in theirs.PATTERN} == {*range(23, 28)}
    for size, lengths in {1: [15], 2: [8, 7], 4: [4, 4, 4, 3], 8: [2] * 7 + [1]}.items():
        parts = build_attack("paper.theirs:DistributedBackdoor", adversaries=tuple(range(size))).parts()
        assert [len(part) for part in parts] == lengths
        assert theirs.PATTERN[-1] not in parts[-1]


@pytest.mark.parametrize("name", ["Backdoor", "DistributedBackdoor"])
def test_adversaries_stamp_ones_on_their_images_and_nobody_elses(name):
    images = np.random.default_rng(1).normal(size=(12, 3, 32, 32)).astype(np.float32)
    federation = Federation(
        name="images",
        features=images,
        labels=np.arange(12) % 2,
        offsets=np.array([0, 4, 8, 12]),
        test_features=images[:4],
        test_labels=np.arange(4) % 2,
        class_names=("0", "1"),
    )
    attack = build_attack(f"paper.theirs:{name}", adversaries=(0, 2), target=1)
    after = poisoned(federation, attack)  # refuses what touches anybody else
    changed = (after.features != images).any(axis=(1, 2, 3))
    assert changed.tolist() == [True] * 4 + [False] * 4 + [True] * 4
    for user, part in zip(attack.adversaries, attack.parts(), strict=True):
        rows = slice(4 * user, 4 * user + 4)
        places = np.zeros((32, 32), dtype=bool)
        places[tuple(np.array(part).T)] = True
        assert (after.features[rows][:, :, places] == 1).all()
        np.testing.assert_array_equal(after.features[rows][:, :, ~places], images[rows][:, :, ~places])
        assert (after.labels[rows] == 1).all()
    goal = attack.goal(federation)
    assert len(goal.inputs) == 2
    assert (goal.inputs[:, :, *np.array(theirs.PATTERN).T] == 1).all()
    assert (goal.labels == 1).all()


def test_rows_of_these_panels_hold_the_code_beside_the_studies(monkeypatch):
    [study] = chosen(load_studies(EXPERIMENTS), "deviations")
    points = [one for one in points_of(study, EXPERIMENTS) if one.panel.attacks]
    before = [decided_by(one) for one in points]
    real = provenance.code_of
    monkeypatch.setattr(provenance, "code_of", lambda path: "other" if path.stem == "theirs" else real(path))
    changed = [
        {part for part, sha in decided_by(one).items() if sha != old[part]}
        for one, old in zip(points, before, strict=True)
    ]
    wanted = [
        {f"attack {one}" for one in point.panel.attacks if ":" in one}
        | {f"rule {rule}" for rule in (point.config.aggregation.rule,) if ":" in rule}
        for point in points
    ]
    assert changed == wanted
    assert len([parts for parts in wanted if parts]) == 12
