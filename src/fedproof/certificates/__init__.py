"""What a mechanism guarantees: theorems, confidence, certificates that can be checked. Free of torch."""

from fedproof.certificates.api import certify, certify_means, certify_sequentially
from fedproof.certificates.certificate import Certificate, CostMethod, Method, Settings
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.document import dumps, loads, loads_inefficacy, unverified, verify
from fedproof.certificates.inefficacy import Inefficacy, inefficacy
from fedproof.certificates.paper_theorems import Group
from fedproof.certificates.privacy import ApproximateDP
from fedproof.certificates.rules import Rule, collective

__all__ = [
    "ApproximateDP", "Bound", "Certificate", "CostMethod", "Group", "Inefficacy", "Method", "Rule",
    "Settings", "Spending", "certify", "certify_means", "certify_sequentially", "collective", "dumps",
    "inefficacy", "loads", "loads_inefficacy", "unverified", "verify",
]  # fmt: skip
