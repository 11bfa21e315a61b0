"""Every mechanism says what is executed, in phrases a reader can hold beside the code of a training."""

import pytest

from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FedAvg,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Local,
    Mechanism,
    Median,
    NoisyPartition,
    OneRound,
    Partition,
    PerLayerMedian,
    Poisson,
    Quantile,
    Queries,
    Query,
    SamplingKind,
    Smoothed,
    UserFedAvg,
)
from fedproof.mechanisms.codec import KINDS
from fedproof.mechanisms.uploads import Anchors, Ball, Rows

TENTH, FIXED = Poisson(probability=0.1), FixedSize(cohort=5, users=50)
DIVIDED = "the noisy sum is divided by a number fixed beforehand"
ALL = {
    UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=TENTH): (
        "3 rounds",
        "in each round, every user takes part independently with probability 0.1",
        "each update is clipped to norm S as a whole",
        "Gaussian noise of standard deviation 1.8·S is added to the SUM of the clipped updates",
        DIVIDED,
    ),
    InstanceFedAvg(rounds=1, local_steps=2, noise_multiplier=1.0, batch_probability=0.5): (
        "1 round in which a user takes 2 steps on its own data",
        "in each step, every instance of the user enters the batch independently with probability 0.5 or "
        "less",
        "the gradient of each instance is clipped to norm S",
        "Gaussian noise of standard deviation 1·S is added to the SUM of the clipped gradients",
        DIVIDED,
    ),
    InstanceFedSGD(rounds=2, noise_multiplier=1.0, batch_probability=0.5, sampling=FIXED): (
        "2 rounds",
        "in each round, exactly 5 of the 50 users are drawn, all choices of 5 being equally likely",
        "every instance of a drawn user enters that user's batch independently with probability 0.5",
        "the gradient of each instance is clipped to norm S",
        "each drawn user adds Gaussian noise of standard deviation 1·S to the SUM of its clipped gradients",
        "only the total over all 5 users is ever seen, divided by a number fixed beforehand",
    ),
    CohortOnce(rounds=2, noise_multiplier=3.0, sampling=FIXED, unit="instance", pooled=True): (
        "2 rounds",
        "once, before the first round, exactly 5 of the 50 instances are drawn, all choices of 5 being "
        "equally likely",
        "the gradient of each instance is clipped to norm S",
        "Gaussian noise of standard deviation 3·S is added to the SUM of the clipped gradients",
        DIVIDED,
    ),
    Bagging(rounds=2, sampling=FIXED): (
        "2 rounds",
        "once, before the first round, exactly 5 of the 50 users are drawn, all choices of 5 being equally "
        "likely",
        "only who was drawn is trained on, and no noise is added",
    ),
    Partition(groups=10): (
        "1 round",
        "once, before the first round, every user is put into one of 10 groups, by its identity alone",
        "each model is trained on its own group alone, and no noise is added",
    ),
    Partition(): (
        "1 round",
        "once, before the first round, every user is a group of its own, known by its identity",
        "each model is trained on its own group alone, and no noise is added",
    ),
    NoisyPartition(groups=10, noise_multiplier=2.0, rounds=3): (
        "3 rounds",
        "once, before the first round, every user is put into one of 10 groups, by its identity alone",
        "each model is trained on its own group alone",
        "each update is clipped to norm S as a whole",
        "Gaussian noise of standard deviation 2·S is added to the SUM of the clipped updates",
        DIVIDED,
    ),
    OneRound(upload=Rows(features=8, classes=10), noise_multiplier=5.0): (
        "once, every user sends one head, the row of each class scaled to S/√10",
        "Gaussian noise of standard deviation 5·S is added to the SUM, S being the largest norm of what one "
        "user sends",
        "the noisy sum is released once",
    ),
    Local(upload=Ball(features=16, classes=10), noise_multiplier=2.0, honest=500): (
        "once, every user makes one head, its norm scaled to S",
        "each user adds Gaussian noise of standard deviation 2·S to its own head, and sends it",
        "the server shortens whatever is longer than 35.1509·S, adds it up and releases the sum once",
    ),
    Local(upload=Anchors(anchors=20, classes=10), noise_multiplier=2.0, honest=500): (
        "once, every user makes the labels that a model of its own gives to 20 public inputs",
        "each user adds Gaussian noise of standard deviation 2·S to them as votes, all of norm S together, "
        "and sends the labels ahead",
        "the server adds up the labels as votes and releases the sum once",
    ),
    Smoothed(noise_multiplier=5.0, smoothing=20.0): (
        "once, every user sends one update, which is clipped to norm S as a whole",
        "Gaussian noise of standard deviation 5·S is added to the SUM",
        "the noisy sum is released once",
        "Gaussian noise of standard deviation 20·S is added to it for each model that is served, anew",
        DIVIDED,
    ),
    FedAvg(rounds=1, sampling=Everyone()): (
        "1 round",
        "in each round, every user takes part",
        "updates are averaged, and no noise is added",
    ),
    Queries(queries=(Query(noise_multiplier=2.0, sampling=TENTH, count=3),)): (
        "3 releases of a sum to which one user adds a vector of norm S or less, in each of which every user "
        "takes part independently with probability 0.1 and Gaussian noise of standard deviation 2·S is added "
        "to the SUM",
        DIVIDED,
    ),
}


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.kind)
def test_a_mechanism_says_what_is_executed(mechanism):
    assert mechanism.in_words() == ALL[mechanism]


def test_no_kind_is_left_out():
    kinds = {name for name, kind in KINDS.items() if issubclass(kind, Mechanism)}
    assert kinds == {mechanism.kind for mechanism in ALL}


@pytest.mark.parametrize("clipping", [Median(), PerLayerMedian(num_layers=3), Quantile()], ids=repr)
def test_clipping_that_follows_the_data_says_so(clipping):
    assert "median" in clipping.words or "follows" in clipping.words


def test_sampling_kinds_are_spelled_once():
    assert [kind.kind for kind in (Poisson, FixedSize, Everyone)] == list(SamplingKind)
