"""Update attacks: their constraints, their direction, and the server's bound on whatever they hand in."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproof.aggregation import Contributions
from fedproof.attacks import (
    Backdoor,
    Direction,
    ModelReplacement,
    WorstCase,
    build_attack,
    choose_adversaries,
)
from fedproof.attacks.attack import coalition_of
from fedproof.attacks.worst_case import _steepest
from fedproof.ensemble import first_updates, train_replicas
from fedproof.mechanisms import Flat, PerLayer, Poisson, Quantile
from fedproof.models import build
from fedproof.robustness.poisoned import attacked_first_updates, under_attack
from fedproof.rounds.randomness import cohorts_of
from fedproof.rounds.state import State
from tests.attacks.conftest import demo_task, random_federation

ADVERSARIES = (1, 3, 4, 8, 11)


def cohorts(*, shared, replicas=6, members=9, dim=40, users=12):
    """Random contributions with another cohort in every replica, some without adversaries."""
    generator = torch.Generator().manual_seed(11)
    if shared:
        who = torch.arange(users).unsqueeze(0)
        present = torch.rand((replicas, users), generator=generator) < 0.5
    else:
        who = torch.stack([torch.randperm(users, generator=generator)[:members] for _ in range(replicas)])
        who[0] = torch.tensor([0, 2, 5, 6, 7, 9, 10, -1, -1])
        who[1] = torch.tensor([0, 1, 5, 6, 7, 9, 10, 2, -1])
        present = who >= 0
    updates = torch.randn((len(who), who.shape[1], dim), generator=generator) + 0.5
    updates = torch.where((who >= 0).unsqueeze(2), updates, 0)
    return Contributions(
        updates=updates,
        present=present,
        scales=present.unsqueeze(2).float(),
        members=who,
        layer_sizes=(dim,),
    )


def state(contributions):
    replicas, dim = len(contributions.present), contributions.updates.shape[2]
    return State(round=0, params=torch.zeros(replicas, dim), clip_norms=torch.ones(replicas))


def crafted(kind, contributions, **options):
    """For each replica: the adversaries' honest updates and what they hand in, in float64."""
    task = demo_task()
    hook = under_attack(task, build_attack(kind, adversaries=ADVERSARIES, **options)).attack
    after = hook(contributions, state(contributions))
    for who, honest, handed in zip(contributions.members, contributions.updates, after.updates, strict=True):
        mine = torch.isin(who, torch.tensor(ADVERSARIES))
        yield honest[mine].double().numpy(), handed[mine].double().numpy()


def naive_perturbation(honest, direction):
    mean = honest.mean(axis=0)
    match direction:
        case Direction.UNIT:
            return -mean / np.linalg.norm(mean)
        case Direction.STD:
            return -honest.std(axis=0)
        case Direction.SIGN:
            return -np.sign(mean)


def naive_value(kind, honest, update):
    distances = [sum((update - row) ** 2) for row in honest]
    return max(distances) if kind == "min-max" else sum(distances)


def bisected(kind, honest, direction):
    """The largest γ by bisection, as the authors search for it."""
    bound = max(naive_value(kind, honest, row) for row in honest)
    mean, moving = honest.mean(axis=0), naive_perturbation(honest, direction)
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        inside = naive_value(kind, honest, mean + middle * moving) <= bound
        low, high = (middle, high) if inside else (low, middle)
    return mean + low * moving, bound


@pytest.mark.parametrize("kind", ["min-max", "min-sum"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("shared", [True, False])
def test_optimised_updates_meet_their_constraint_with_equality(kind, direction, shared):
    seen = 0
    for honest, handed in crafted(kind, cohorts(shared=shared), direction=direction):
        if len(honest) < 2:
            np.testing.assert_allclose(handed, honest, atol=1e-6)
            continue
        expected, bound = bisected(kind, honest, direction)
        np.testing.assert_allclose(handed, np.tile(expected, (len(honest), 1)), rtol=1e-4, atol=1e-4)
        assert naive_value(kind, honest, handed[0]) == pytest.approx(bound, rel=1e-3)
        seen += 1
    assert seen >= (1 if shared else 4)


def test_equal_honest_updates_leave_no_room():
    given = cohorts(shared=True)
    given.updates[:, list(ADVERSARIES)] = 0.3
    for kind in ("min-max", "min-sum"):
        for direction in Direction:
            ((_, handed),) = crafted(kind, given, direction=direction)
            np.testing.assert_allclose(handed, 0.3, atol=1e-4)


def test_model_replacement_scales_what_the_base_hands_in():
    given = cohorts(shared=False)
    for honest, handed in crafted("label-flip", given, scale=50.0):
        np.testing.assert_allclose(handed, 50 * honest, rtol=1e-6)
    plain, scaled = (list(crafted("min-max", given, scale=factor)) for factor in (1.0, 3.0))
    for (_, once), (_, thrice) in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(thrice, 3 * once, rtol=1e-5)


def test_coalitions_find_the_adversaries_of_every_replica():
    given = cohorts(shared=False)
    found = coalition_of(given, ADVERSARIES)
    for replica, who in enumerate(given.members.tolist()):
        mine = [user for user in who if user in ADVERSARIES]
        slots = found.slots[replica][found.present[replica]].tolist()
        assert [who[slot] for slot in slots] == mine
    assert coalition_of(given, ()) is None
    assert coalition_of(given, (99,)) is None


# --- worst-case direction --------------------------------------------------------------------------------


def test_the_worst_direction_of_a_linear_model_is_exact():
    # Margin (w_1 - w_0)·x + b_1 - b_0 of an input of class 1 falls fastest along (x, -x, 1, -1).
    task = demo_task()
    index = int(np.flatnonzero(task.federation.test_labels == 1)[0])
    attack = WorstCase(adversaries=(0,), inputs=(index,), length=2.0)
    hook = under_attack(task, attack).attack
    x = torch.from_numpy(task.federation.test_features[index].copy())
    expected = torch.cat([x, -x, torch.tensor([1.0, -1.0])])
    expected = 2 * expected / expected.norm()
    given = replace(cohorts(shared=False, dim=130), layer_sizes=(130,))
    params = torch.randn((6, 130), generator=torch.Generator().manual_seed(0))
    after = hook(given, State(round=1, params=params, clip_norms=torch.ones(6)))
    rows = after.updates[given.members == 0]
    torch.testing.assert_close(rows, expected.expand_as(rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", [None, 1])
@pytest.mark.parametrize("name", ["linear", "mlp", "brought"])
def test_the_worst_direction_lowers_the_margin_of_every_model(name, target):
    federation = random_federation((8, 8))
    model = build(f"{__name__}:small_module" if name == "brought" else name, federation)
    task = demo_task(federation=federation, model=model)
    attack = WorstCase(adversaries=ADVERSARIES, inputs=(2, 5), target=target, length=1e-2)
    attacked = under_attack(task, attack)
    params = (
        model.initial(0) + torch.randn((6, model.layout.dim), generator=torch.Generator().manual_seed(0)) / 9
    )
    given = replace(cohorts(shared=False, dim=model.layout.dim), layer_sizes=model.layout.layer_sizes)
    after = attacked.attack(given, State(round=1, params=params, clip_norms=torch.ones(6)))
    mine = torch.isin(given.members, torch.tensor(ADVERSARIES))
    for replica in range(6):
        if not mine[replica].any():
            continue
        step = after.updates[replica][mine[replica]][:1]
        assert float(step.norm()) == pytest.approx(1e-2, rel=1e-4)
        chosen = [i for i in (2, 5) if target is None or federation.test_labels[i] != target]
        margins = [
            margin(model, params[replica] + move, federation, chosen, target) for move in (0 * step, step)
        ]
        assert margins[1] < margins[0]


@pytest.mark.parametrize("room", [1, 3, 7, 20, 1000])
def test_the_worst_direction_does_not_depend_on_how_much_is_done_at_once(room):
    federation = random_federation((8, 8))
    model = build("mlp", federation)
    params = model.initial(0) + torch.randn((6, model.layout.dim), generator=torch.Generator().manual_seed(0))
    inputs, labels = torch.tensor(federation.test_features), torch.tensor(federation.test_labels)
    all_at_once = _steepest(model, params, inputs, labels, None, 10_000)
    torch.testing.assert_close(_steepest(model, params, inputs, labels, None, room), all_at_once)


def margin(model, params, federation, chosen, target):
    """Mean over the inputs of the right logit minus the target's, or the strongest wrong one's."""
    inputs = torch.tensor(federation.test_features[chosen]).unsqueeze(0)
    logits = model.logits(params.reshape(1, -1), inputs)[0].detach()
    total = 0.0
    for row, label in zip(logits, federation.test_labels[chosen].tolist(), strict=True):
        wrong = [c for c in range(federation.num_classes) if c != label]
        rival = row[target] if target is not None else row[wrong].max()
        total += float(row[label] - rival)
    return total / len(chosen)


def small_module(federation):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)
    )


# --- what DP promises: nothing escapes the server's bound ------------------------------------------------


def constant(contributions, state, adversaries, value=0.0):
    return torch.full_like(contributions.updates, value)


@pytest.mark.parametrize(
    "clipping", [Flat(), PerLayer(num_layers=2), Quantile()], ids=lambda c: type(c).__name__
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38, 1e19, 1e-30])
def test_no_adversarial_update_escapes_clipping(value, clipping):
    # A replica's noise is the same with and without the attack: the adversaries make all the difference.
    task = demo_task(rounds=1)
    task = replace(task, model=build("mlp", task.federation, hidden=(4,)))
    task = replace(task, mechanism=replace(task.mechanism, clipping=clipping))
    adversaries = choose_adversaries(96, 12, seed=0)
    absent = under_attack(task, build_attack("absent", adversaries=adversaries))
    attack = build_attack(f"{__name__}:constant", adversaries=adversaries, value=value)
    without, attacked = (train_replicas(one, range(20)) for one in (absent, under_attack(task, attack)))
    difference = flat(attacked) - flat(without)
    assert bool(difference.isfinite().all())
    drawn = (
        12  # at most all of them, each with the clip norm times the sensitivity, over the fixed cohort of 24
    )
    assert float(difference.norm(dim=1).max()) <= drawn * clipping.sensitivity / 24 * (1 + 1e-5)
    bad = attacked.diagnostics["non_finite"].sum()
    if np.isfinite(value):
        assert bad == 0
    else:
        assert bad > 0
        assert float(difference.abs().max()) < 1e-6  # not finite counts as nothing


def test_a_server_without_clipping_would_be_lost():
    task = demo_task(rounds=1)
    adversaries = choose_adversaries(96, 12, seed=0)
    wide = replace(task, mechanism=replace(task.mechanism, clip_norm=1e6, noise_multiplier=1e-9))
    attack = build_attack(f"{__name__}:constant", adversaries=adversaries, value=100.0)
    absent = build_attack("absent", adversaries=adversaries)
    without, attacked = (train_replicas(under_attack(wide, one), range(20)) for one in (absent, attack))
    assert float((flat(attacked) - flat(without)).norm(dim=1).max()) > 12 / 24 * 10


def flat(replicas):
    return torch.cat([value.flatten(1) for value in replicas.models.values()], dim=1).double()


# --- work shared with the clean run ----------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_only_the_adversaries_first_updates_are_computed_anew(scale):
    federation = random_federation((8, 8))
    task = demo_task(federation=federation, model=build("mlp", federation))
    base = Backdoor(adversaries=(7, 0, 3), target=1)
    attacked = under_attack(task, base if scale == 1 else ModelReplacement(base=base, scale=scale))
    clean = first_updates(task)
    before = clean.clone()
    shared = attacked_first_updates(attacked, base.adversaries, clean)
    assert torch.equal(clean, before)
    honest = [user for user in range(12) if user not in base.adversaries]
    assert torch.equal(shared[honest], clean[honest])
    torch.testing.assert_close(shared, first_updates(attacked))
    assert not torch.equal(shared[list(base.adversaries)], clean[list(base.adversaries)])
    one, other = (train_replicas(attacked, range(5), first_updates=given).scores for given in (shared, None))
    np.testing.assert_allclose(one, other, atol=1e-5)
    assert attacked_first_updates(task, (), clean) is clean


class Spy:
    """A hook that changes nothing, sees who hands in, and names its adversaries as those of attacks do."""

    def __init__(self, adversaries):
        self.adversaries, self.seen = adversaries, []

    def __call__(self, contributions, state):
        self.seen.append(set(contributions.members.flatten().tolist()))
        return contributions


@pytest.mark.parametrize("kind", ["min-max", "min-sum", "worst-case", "label-flip"])
def test_a_replica_does_not_depend_on_those_beside_it(kind):
    task = demo_task()
    task = replace(task, mechanism=replace(task.mechanism, sampling=Poisson(probability=0.05)))
    adversaries = tuple(range(0, 96, 6))
    spy = Spy(adversaries)
    train_replicas(replace(task, attack=spy), range(1))
    if kind in ("min-max", "min-sum") and not spy.seen[0].issuperset(adversaries):
        pytest.xfail("the engine leaves out adversaries that no replica of the block has drawn")
    attacked = under_attack(task, build_attack(kind, adversaries=adversaries, scale=3.0))
    together, alone = (train_replicas(attacked, replicas).scores for replicas in (range(30), range(1)))
    np.testing.assert_allclose(together[:1], alone, atol=1e-5)


# --- the whole coalition ---------------------------------------------------------------------------------


class Colluding(Spy):
    """A spy whose adversaries know of each other, and which keeps what it saw."""

    collusive = True

    def __call__(self, contributions, state):
        self.seen.append((contributions, state))
        return contributions


def seen_by(spy, task, replicas=12):
    train_replicas(replace(task, attack=spy), range(replicas))
    return spy.seen


@pytest.mark.parametrize("own_start", [False, True])
def test_a_coalition_is_whole_in_every_round_wherever_one_of_it_is_drawn(own_start):
    task = demo_task(rounds=3)
    task = replace(
        task, own_start=own_start, mechanism=replace(task.mechanism, sampling=Poisson(probability=0.1))
    )
    drawn_of = [contributions for contributions, _ in seen_by(Colluding(()), task)]
    rounds = seen_by(Colluding(ADVERSARIES), task)
    later = rounds if own_start else rounds[1:]
    without, partly = 0, 0
    for (contributions, _), honest in zip(later, drawn_of[-len(later) :], strict=True):
        for who, present, members in zip(
            contributions.members, contributions.present, honest.members, strict=True
        ):
            drawn = set(who[present].tolist())
            assert drawn == set(members.tolist()) - {-1}  # nobody takes part who was not drawn
            wanted = drawn | (set(ADVERSARIES) if drawn & set(ADVERSARIES) else set())
            assert set(who.tolist()) - {-1} == wanted
            without += not drawn & set(ADVERSARIES)
            partly += 0 < len(drawn & set(ADVERSARIES)) < len(ADVERSARIES)
    assert without > 0
    assert partly > 0


def test_who_is_not_drawn_computes_what_it_would_hand_in():
    task = demo_task(rounds=1)
    task = replace(task, own_start=True, mechanism=replace(task.mechanism, sampling=Poisson(probability=0.2)))
    everybody = replace(task, mechanism=replace(task.mechanism, sampling=Poisson(probability=1.0)))
    [(found, _)], [(whole, _)] = (
        seen_by(Colluding(ADVERSARIES), task),
        seen_by(Colluding(()), everybody),
    )
    absent = (found.members >= 0) & ~found.present
    assert int(absent.sum()) > 10
    replica, slot = absent.nonzero(as_tuple=True)
    expected = whole.updates[replica, found.members[replica, slot]]
    torch.testing.assert_close(found.updates[replica, slot], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["min-max", "min-sum"])
def test_one_drawn_adversary_hides_among_all_of_them(kind):
    """With those drawn alone it would hand in its own update, having nothing to hide behind."""
    task = demo_task(rounds=1)
    task = replace(task, own_start=True, mechanism=replace(task.mechanism, sampling=Poisson(probability=0.1)))
    spy = Colluding(ADVERSARIES)
    [(found, state)] = seen_by(spy, task)
    hook = under_attack(task, build_attack(kind, adversaries=ADVERSARIES)).attack
    assert hook.collusive
    after = hook(found, state)
    mine = torch.isin(found.members, torch.tensor(ADVERSARIES))
    alone = [r for r in range(12) if int((mine & found.present)[r].sum()) == 1]
    assert alone
    for replica in alone:
        honest = found.updates[replica][mine[replica]].double().numpy()
        expected, _ = bisected(kind, honest, Direction.STD)
        [handed] = after.updates[replica][(mine & found.present)[replica]].double().numpy()
        np.testing.assert_allclose(handed, expected, rtol=1e-4, atol=1e-4)
        assert np.abs(handed - found.updates[replica][(mine & found.present)[replica]].numpy()).max() > 1e-3


@pytest.mark.parametrize("own_start", [False, True])
@pytest.mark.parametrize("kind", ["min-max", "min-sum"])
def test_a_coalition_changes_no_bit_of_a_replica_that_drew_none_of_it(kind, own_start):
    task = demo_task(rounds=3)
    task = replace(
        task, own_start=own_start, mechanism=replace(task.mechanism, sampling=Poisson(probability=0.08))
    )
    clean = train_replicas(task, range(20))
    adversaries = tuple(range(3, 96, 19))
    attacked = train_replicas(
        under_attack(task, build_attack(kind, adversaries=adversaries, scale=9.0)), range(20)
    )
    drawn = cohorts_of(task.mechanism, task.units.who, task.seed, range(20))[:, :, list(adversaries)]
    untouched = ~drawn.any(axis=(1, 2))
    assert 0 < untouched.sum() < 20
    same = (flat(clean) == flat(attacked)).all(dim=1).numpy()
    assert same[untouched].all()
    assert not same[~untouched].any()


def test_wrapped_attacks_collude_as_what_they_wrap():
    for options in ({}, {"scale": 5.0}, {"user_instances": 2}, {"joining": True}):
        who = (96, 97) if options.get("joining") else ADVERSARIES
        assert build_attack("min-sum", adversaries=who, **options).collusive
        assert not build_attack("label-flip", adversaries=who, **options).collusive
