"""Rules that turn the updates of a cohort into one, stacked over replicas."""

from fedproof.aggregation.rule import Aggregation, Contributions, mean

__all__ = ["Aggregation", "Contributions", "mean"]
