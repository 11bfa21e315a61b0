"""Rules that turn the updates of a cohort into one, stacked over replicas."""

from fedproof.aggregation.contributions import Aggregation, Contributions
from fedproof.aggregation.mean import mean

__all__ = ["Aggregation", "Contributions", "mean"]
