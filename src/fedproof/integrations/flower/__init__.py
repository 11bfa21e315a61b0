"""Certified mechanisms for Flower 1.41 (Message API), executed exactly as they are accounted and certified.

Names are imported when they are first used: a node's app is started anew for every message, and needs
nothing of what the server accounts and certifies with.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedproof.integrations import require_flower

if TYPE_CHECKING:
    from fedproof.integrations.flower.arrays import stacked_arrays, upload_reply
    from fedproof.integrations.flower.exchange import Fault, TooFewRepliesError
    from fedproof.integrations.flower.files import write_certificate
    from fedproof.integrations.flower.nodes import (
        answer_partition,
        ask_partitions,
        replicas_mod,
        wait_for_nodes,
    )
    from fedproof.integrations.flower.one_round import OneRoundStrategy
    from fedproof.integrations.flower.recognise import Recognised, mechanism_of
    from fedproof.integrations.flower.site import SiteApp, site_mod
    from fedproof.integrations.flower.strategy import RoundsStrategy

require_flower()

_HOME = {
    "arrays": ("stacked_arrays", "upload_reply"),
    "exchange": ("Fault", "TooFewRepliesError"),
    "files": ("write_certificate",),
    "nodes": ("answer_partition", "ask_partitions", "replicas_mod", "wait_for_nodes"),
    "one_round": ("OneRoundStrategy",),
    "recognise": ("Recognised", "mechanism_of"),
    "site": ("SiteApp", "site_mod"),
    "strategy": ("RoundsStrategy",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Fault", "OneRoundStrategy", "Recognised", "RoundsStrategy", "SiteApp", "TooFewRepliesError",
    "answer_partition", "ask_partitions", "mechanism_of", "replicas_mod", "site_mod", "stacked_arrays",
    "upload_reply", "wait_for_nodes", "write_certificate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
