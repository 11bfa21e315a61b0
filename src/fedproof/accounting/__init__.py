"""What a mechanism costs: events, Rényi curves, loss distributions, trade-off curves. Free of torch."""

from fedproof.accounting.epsilon import account, account_delta, ensemble_account, user_accounts
from fedproof.accounting.events import event_of, queries_of
from fedproof.accounting.tradeoff import Tradeoff, tradeoff

__all__ = [
    "Tradeoff", "account", "account_delta", "ensemble_account", "event_of", "queries_of", "tradeoff",
    "user_accounts",
]  # fmt: skip
