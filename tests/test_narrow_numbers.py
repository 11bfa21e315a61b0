"""Numbers of NumPy's narrow types mean what they say: nothing wraps around, overflows or loses digits."""

import numpy as np
import pytest

from fedproof.accounting import account, ensemble_account, tradeoff
from fedproof.accounting.epsilon import user_accounts
from fedproof.accounting.ledger import Ledger
from fedproof.accounting.tradeoff import curve_of
from fedproof.certificates import certify
from fedproof.certificates.planning import lead_for_size, noise_for_size
from fedproof.certificates.privacy import ApproximateDP
from fedproof.mechanisms import (
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    PerLayer,
    Poisson,
    Quantile,
    Queries,
    Query,
    UserFedAvg,
)
from fedproof.threat import Relation, ThreatModel

pytestmark = pytest.mark.filterwarnings("error")  # an overflow warns


@pytest.fixture(autouse=True)
def no_curve_is_kept():
    """Equal descriptions share curves: a right one that was kept would hide a wrong one."""
    curve_of.cache_clear()


def test_noise_whose_square_float16_cannot_hold_is_not_infinite():
    mechanism = UserFedAvg(rounds=3000, noise_multiplier=np.float16(300), sampling=Everyone())
    assert float(tradeoff(mechanism, ThreatModel(), 100).lower(0.6)) < 1e-9


def test_rounds_times_steps_do_not_wrap_around():
    def training(number):
        return InstanceFedAvg(
            rounds=number(300), local_steps=number(300), noise_multiplier=40.0, batch_probability=0.05
        )

    assert training(np.uint16).queries == training(int).queries
    assert training(np.uint16).queries[0].count == 90_000


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.int64])
def test_replicas_do_not_wrap_around(kind):
    mechanism = UserFedAvg(rounds=kind(100), noise_multiplier=60.0, sampling=Poisson(probability=0.01))
    assert ensemble_account(mechanism, 1e-5, kind(100)) == ensemble_account(mechanism, 1e-5, 100)
    ledger = Ledger.of(mechanism, 1e-5)
    assert ledger.spend(kind(100)).spend(kind(100)).replicas == 200


def test_rounds_that_users_took_part_in_are_counted_in_full():
    own = InstanceFedAvg(rounds=300, local_steps=3, noise_multiplier=40.0, batch_probability=0.05)
    spent = [
        user_accounts(own, 1e-5, user_sizes=[50], batch_size=5, participation=np.array([200], dtype=kind))
        for kind in (np.uint8, np.int64)
    ]
    assert spent[0] == spent[1]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble])
def test_descriptions_compute_with_the_value_they_were_given(kind):
    chance, noise = kind(0.00313), kind(2.7)
    narrow, wide = (
        UserFedAvg(rounds=10, noise_multiplier=number(noise), sampling=Poisson(probability=number(chance)))
        for number in (kind, float)
    )
    assert account(narrow, 1e-5) == account(wide, 1e-5)
    assert type(narrow.queries[0].noise_multiplier) is float
    assert type(narrow.sampling.probability) is float


def test_no_description_keeps_a_narrow_number():
    one, half = np.uint8(1), np.float16(0.5)
    made = (
        Query(noise_multiplier=half, sampling=Everyone(), count=one, selection_probability=half),
        Queries(queries=(Query(noise_multiplier=half, sampling=Everyone(), count=one),)),
        FixedSize(cohort=one, users=np.uint8(5)),
        InstanceFedSGD(
            rounds=one,
            noise_multiplier=half,
            sampling=FixedSize(cohort=1, users=2),
            batch_probability=half,
            clip_norm=half,
        ),
        PerLayer(num_layers=one),
        Quantile(target=half, learning_rate=half, count_noise_std=half),
        ApproximateDP(epsilon=half, delta=np.float16(0.001), relation="join"),
        Ledger(queries=(), delta=half, replicas=one, parallel=one),
    )
    for description in made:
        kept = [value for value in vars(description).values() if isinstance(value, np.generic)]
        assert not kept, description


def test_a_narrow_failure_probability_is_shared_to_its_last_digit():
    """Half of float16's smallest number is rounded to all of it, twice as much as there is to spend."""
    scores = np.random.default_rng(1).dirichlet([30, 3], size=(400, 200))
    known = ApproximateDP(epsilon=0.05, delta=1e-6, relation="replace")
    psi = np.float16(1.2e-7)
    narrow, wide = (
        certify(scores, privacy=known, method="mean", failure_probability=number(psi), simultaneous=True)
        for number in (np.float16, float)
    )
    assert narrow.top_lower == wide.top_lower
    assert type(narrow.failure_probability) is float


def test_planned_sizes_do_not_wrap_around():
    assert lead_for_size(np.uint8(200), Relation.REPLACE) == 400
    asked = {"top": 0.95, "rival": 0.05, "sampling": Everyone(), "rounds": 3, "threat": ThreatModel()}
    assert noise_for_size(size=np.uint8(200), **asked) == noise_for_size(size=200, **asked)
