"""The certificates on offer."""

from enum import StrEnum


class Method(StrEnum):
    """Which theorem turns scores into certified sizes.

    PAPER: the paper's closed form, from (ε, δ) and mean confidences.
    RENYI: the paper's Rényi certificate, from the RDP curve and vote shares.
    MEAN, MARGIN, VOTE: tight, from the trade-off curve and the mean confidences, the distribution of the
    margins, or the vote shares.
    """

    PAPER = "paper"
    RENYI = "renyi"
    MEAN = "mean"
    MARGIN = "margin"
    VOTE = "vote"


class Group(StrEnum):
    """How RDP of one unit becomes RDP of k: the paper's k halvings, or Mironov's ceil(log2 k)."""

    PAPER = "paper"
    TIGHT = "tight"
