"""Flower's own DP strategies, described as what they execute."""

import numpy as np
import pytest

import fedproof as fp
from fedproof.mechanisms import FixedSize, Flat, Poisson, Quantile, UserFedAvg
from fedproof.statements import Statement


@pytest.fixture
def strategies(flower):
    from flwr.serverapp import strategy

    return strategy


@pytest.fixture
def fedavg(strategies):
    return strategies.FedAvg(fraction_train=0.2, min_train_nodes=2)


def test_server_side_fixed_clipping(flower, strategies, fedavg):
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(fedavg, 1.8, 0.7, 20)
    found = flower.mechanism_of(wrapped, rounds=3, num_users=100)
    sampling = FixedSize(cohort=20, users=100)
    assert found.mechanism == UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=sampling, clip_norm=0.7)
    assert fp.account(found.described, 0.0029) == fp.account(found.mechanism, 0.0029)


def test_a_certificate_keeps_the_reasons(flower, strategies, fedavg):
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(fedavg, 1.8, 0.7, 20)
    found = flower.mechanism_of(wrapped, rounds=1, num_users=100)
    scores = np.tile([[[0.95, 0.05]]], (200, 1, 1))
    certificate = fp.certify(scores, [0], mechanism=found.described)
    assert not certificate.sound
    assert certificate.unmet == found.unmet
    assert Statement.of("node-weights") in found.unmet
    assert certificate.certified_size == fp.certify(scores, [0], mechanism=found.mechanism).certified_size


def test_the_noise_is_that_of_the_sum_really_taken(flower, strategies):
    # 10 of 50 nodes are drawn, the noise is calibrated to 20: half of what was meant.
    inner = strategies.FedAvg(fraction_train=0.2)
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(inner, 2.0, 1.0, 20)
    mechanism = flower.mechanism_of(wrapped, rounds=1, num_users=50).mechanism
    assert mechanism.sampling == FixedSize(cohort=10, users=50)
    assert mechanism.noise_multiplier == 1.0


def test_adaptive_clipping_is_one_more_query(flower, strategies, fedavg):
    wrapped = strategies.DifferentialPrivacyServerSideAdaptiveClipping(fedavg, 1.0, 20, 0.1, 0.6, 0.3, 2.0)
    found = flower.mechanism_of(wrapped, rounds=2, num_users=100)
    assert found.mechanism.clipping == Quantile(target=0.6, learning_rate=0.3, count_noise_std=2.0)
    # Flower splits the noise multiplier that it was given between the two queries.
    assert found.mechanism.effective_noise_multiplier == pytest.approx(1.0)
    assert Statement.of("noise-order") in found.unmet


@pytest.mark.parametrize("kind", ["Fixed", "Adaptive"])
def test_clipping_by_the_nodes_is_no_bound_on_a_poisoned_one(flower, strategies, fedavg, kind):
    cls = getattr(strategies, f"DifferentialPrivacyClientSide{kind}Clipping")
    arguments = (1.0, 0.5, 40) if kind == "Fixed" else (1.0, 40)
    found = flower.mechanism_of(cls(fedavg, *arguments), rounds=1, num_users=200)
    assert Statement.of("node-clips") in found.unmet


def test_flowers_accountant_gives_the_population_and_equal_weights(flower, strategies, fedavg):
    pytest.importorskip("dp_accounting")
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

    config = PrivacyConfig(1e-3, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(
        fedavg, 1.8, 0.7, 20, accountant=RdpAccountant(config)
    )
    found = flower.mechanism_of(wrapped, rounds=3)
    assert found.mechanism.sampling == FixedSize(cohort=20, users=100)
    assert Statement.of("node-weights") not in found.unmet
    with pytest.raises(ValueError, match="population_size = 100"):
        flower.mechanism_of(wrapped, rounds=3, num_users=50)


def test_our_own_strategy_has_no_reasons(flower):
    mechanism = UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=Poisson(probability=0.1))
    strategy = flower.RoundsStrategy(mechanism, num_users=10, delta=0.01, seed=0)
    found = flower.mechanism_of(strategy, rounds=2)
    assert (found.mechanism, found.described, found.unmet) == (mechanism, mechanism, ())
    assert isinstance(found.mechanism.clipping, Flat)
    with pytest.raises(ValueError, match="rounds = 3"):
        flower.mechanism_of(strategy, rounds=3)


def test_what_cannot_be_described_is_refused(flower, strategies, fedavg):
    wrap = strategies.DifferentialPrivacyServerSideFixedClipping
    with pytest.raises(fp.UnsupportedEventError, match="FedAvg adds no noise"):
        flower.mechanism_of(fedavg, rounds=1, num_users=10)
    with pytest.raises(fp.UnsupportedEventError, match="noise_multiplier = 0"):
        flower.mechanism_of(wrap(fedavg, 0.0, 1.0, 2), rounds=1, num_users=10)
    with pytest.raises(fp.UnsupportedEventError, match="FedMedian inside a DP strategy"):
        flower.mechanism_of(wrap(strategies.FedMedian(), 1.0, 1.0, 2), rounds=1, num_users=10)
    with pytest.raises(ValueError, match="num_users = None must be the number of nodes"):
        flower.mechanism_of(wrap(fedavg, 1.0, 1.0, 2), rounds=1)
    with pytest.raises(ValueError, match="draws 2 nodes, must be 1 to num_users = 1"):
        flower.mechanism_of(wrap(fedavg, 1.0, 1.0, 2), rounds=1, num_users=1)


# --- the reasons are facts: Flower's own code does what they say ------------------------------------------


@pytest.fixture
def round_of(strategies, make_grid, record, reply_with):
    """The new model after one round of a strategy whose nodes send the given models and weights."""
    from flwr.app import ConfigRecord, MetricRecord

    def play(wrapped, models):
        grid = make_grid(dict.fromkeys(range(len(models)), lambda m: []))
        messages = list(wrapped.configure_train(1, record(w=np.zeros(2)), ConfigRecord(), grid))
        replies = []
        for message, (model, weight) in zip(messages, models, strict=True):
            if model is not None:
                replies.append(reply_with(message, {"w": np.array(model)}))
                replies[-1].content["metrics"] = MetricRecord({"num-examples": weight})
        arrays, _ = wrapped.aggregate_train(1, replies)
        return None if arrays is None else arrays["w"].numpy()

    return play


def test_reason_weights(strategies, round_of):
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(strategies.FedAvg(), 1e-9, 1.0, 4)
    moved = round_of(wrapped, [([9.0, 0.0], 10**9)] + [([0.0, 0.1], 1)] * 3)
    assert moved[0] == pytest.approx(1.0, abs=1e-6)  # four times the 1/4 that the noise is calibrated to


def test_reason_replies(strategies, round_of):
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(strategies.FedAvg(), 1e-9, 1.0, 4)
    moved = round_of(wrapped, [([9.0, 0.0], 1)] + [(None, 1)] * 3)
    assert moved[0] == pytest.approx(1.0, abs=1e-6)


def test_reason_nan(strategies, round_of):
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(strategies.FedAvg(), 1e-9, 1.0, 2)
    assert np.isnan(round_of(wrapped, [([np.nan, 0.0], 1), ([0.0, 0.1], 1)])[0])


def test_reason_order(strategies, round_of, monkeypatch):
    wrapped = strategies.DifferentialPrivacyServerSideAdaptiveClipping(
        strategies.FedAvg(),
        0.1,
        2,
        1.0,
        0.0,
        1.0,
        10.0,  # noise that moves the norm, yet never overflows
    )
    used = []
    monkeypatch.setattr(
        "flwr.serverapp.strategy.dp_adaptive_clipping.compute_stdv",
        lambda noise_multiplier, norm, count: used.append(norm) or 0.0,
    )
    round_of(wrapped, [([9.0, 0.0], 1), ([0.0, 9.0], 1)])
    assert used != [1.0]  # clipped to 1.0, noised for another norm
