"""An ensemble of few replicas that is itself retrained under attack: how much lead it needs."""

import math

from fedproof import check


def served_gap(num_replicas: int, num_classes: int, failure_probability: float) -> float:
    """The lead in expected confidence with which a class also leads in the mean over the replicas.

    Guarantee: if the expected lead of A over each rival, given the data and given all earlier replicas, is at
    least this gap, then the mean confidence of A over `num_replicas` replicas is above that of every rival
    with probability at least 1 - `failure_probability`; votes are confidences of 0 and 1.
    Proof: let X_i in [-1, 1] be the lead over one rival in replica i, with mean at least g. By convexity
    E exp(-λ X_i) <= cosh λ - g sinh λ, whose least value over λ is sqrt(1 - g²). So the mean of n of them is
    zero or less with probability at most (1 - g²)^(n/2), which is ψ₂/(C - 1) for each of C - 1 rivals at
    g = sqrt(1 - (ψ₂/(C - 1))^(2/n)).
    Reference: Hoeffding 1963, Theorem 1; Azuma 1967 for replicas one after another; theory.md, section 4.

    >>> round(served_gap(1000, 2, 0.01), 4), round(served_gap(10, 10, 0.01), 4)
    (0.0957, 0.8622)
    """
    check.count(num_replicas=num_replicas)
    check.open_probability(failure_probability=failure_probability)
    exponent = 2 * math.log(failure_probability / (num_classes - 1)) / num_replicas
    return min(1.0, math.sqrt(-math.expm1(exponent)) * (1 + 1e-12))
