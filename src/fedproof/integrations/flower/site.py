# mypy: disable-error-code="import-not-found"
# mypy: allow-subclassing-any
"""Privacy at the site: an app that lets nothing leave a node but updates that the site clipped and noised."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

from fedproof.arrays import Floats
from fedproof.integrations.flower.arrays import Layout, decode, flatten, layout_of, record_of
from fedproof.integrations.site import BudgetSpentError, Site, charge, load_site, noised

SITE = "site"  # in the node's configuration: the site's file

_LOG = logging.getLogger("flwr")
_SPENT = "the site has spent its privacy budget"
_REFUSED = "the site does not answer this message"


def site_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mod for a ClientApp: what leaves the node is what the site's own file says, whatever the server asks.

    Use `SiteApp`, which has nothing outside of it; `--node-config 'site="/etc/fedproof/site.toml"'`. As a mod
    of another ClientApp it must be the first, and the app must have no lifespan (`@app.lifespan`): Flower
    runs that outside all mods, and sends the text of its exceptions.

    Guarantee: every reply is one Gaussian query of the site's data (`integrations.site.noised`), and counted
    on the site's disk before the app sees the message; or it is one of two errors, which are decided before
    that. Proof: the reply is made before the app is called, from the server's message and the site's file
    alone. Of what the app returns one thing is used: the numbers of one model of the same names and shapes,
    which are clipped and noised. Names, metrics, configurations, metadata, errors and exceptions of the app
    are dropped; an app that fails, or returns anything else, has sent an update of zero, and its noise.
    Assumes: the app's code is what the site has agreed to: code can open a connection of its own, and Flower
    sends the text of an exception that it raises while it is imported. Not covered: how long training took,
    and whether the process died.
    """
    try:
        site, layout, base = _asked(message, context)
        charge(site)
    except Exception as error:  # none of which may leave: the message is the server's
        _LOG.error("nothing is sent: %s", error)
        reason = _SPENT if isinstance(error, BudgetSpentError) else _REFUSED
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)
    key = next(iter(message.content.array_records))
    reply = Message(RecordDict(), reply_to=message)
    update = _update(message, context, call_next, layout, base)
    with np.errstate(all="ignore"):  # entered after the app, which may have asked for exceptions
        moved = base + noised(site, update)
        arrays = record_of(moved[None], layout, stacked=False)
    reply.content = RecordDict({key: arrays, "metrics": MetricRecord({"num-examples": 1})})
    return reply


class SiteApp(ClientApp):
    """A ClientApp all of which is inside `site_mod`: `app = SiteApp()`, and then as ever.

    Guarantee: that of `site_mod`, for whatever is registered with the app. Proof: Flower calls an app, and
    sends what this returns. The call is the mod's; the app's own mods, its lifespan and its functions, and
    the errors of all of them, are in what the mod calls.
    """

    def __init__(self, client_fn: Any = None, mods: list[Mod] | None = None) -> None:
        if site_mod in (mods or ()):
            raise ValueError("mods: site_mod must be left out, as every update would be counted twice")
        super().__init__(client_fn, mods)

    def __call__(self, message: Message, context: Context) -> Message:
        """The site's reply to a message."""
        return site_mod(message, context, super().__call__)


def _asked(message: Message, context: Context) -> tuple[Site, Layout, Floats]:
    """The site's decisions and the model that came; ValueError unless this asks for an update of one."""
    path = context.node_config.get(SITE)
    if not isinstance(path, str):
        raise ValueError(
            f"{SITE} = {path!r} must be the path of the site's file, in the node's configuration"
        )
    kind = message.metadata.message_type
    if kind.partition(".")[0] != MessageType.TRAIN:
        raise ValueError(f"message_type = {kind!r} must be {MessageType.TRAIN}: a site sends updates alone")
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"{len(records)} models came, must be one that an update belongs to")
    layout = layout_of(records[0])
    if not layout.dim:
        raise ValueError("the model that came holds no numbers")
    return load_site(Path(path)), layout, flatten(records[0], layout).astype(np.float64)


def _update(
    message: Message, context: Context, call_next: ClientAppCallable, layout: Layout, base: Floats
) -> Floats:
    """What the app makes of the model, zero if it fails or returns anything else than such a model."""
    try:
        (record,) = call_next(message, context).content.array_records.values()
        found = decode(record, layout, 1, stacked=False)
        return np.zeros_like(base) if found is None else found[0] - base
    except (Exception, SystemExit):  # whatever it is, the server must not learn that it happened
        _LOG.exception("the app failed: noise alone is sent")
        return np.zeros_like(base)
