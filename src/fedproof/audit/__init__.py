"""Audits of the executed code: can what replicas show be squared with what is accounted?"""

from fedproof.audit.canary import audit, canary_pair, noise_rows, statistics
from fedproof.audit.evidence import Evidence, dependence, evidence

__all__ = ["Evidence", "audit", "canary_pair", "dependence", "evidence", "noise_rows", "statistics"]
