"""A site that noises what leaves it, and counts in a ledger of its own. Free of Flower and of torch.

What the site has decided stands in a file of the site. Nobody who sends messages can change it.
"""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedproof import exact
from fedproof.accounting.ledger import Ledger, alone_with, load_site_ledger, save_site_ledger
from fedproof.arrays import Floats
from fedproof.config import validated
from fedproof.config.sections import Open, Positive, Section
from fedproof.files import read_text
from fedproof.mechanisms import Everyone, Query
from fedproof.seeds import SecureGenerator

_MOST = 1 << 30  # updates that anybody would count


class BudgetSpentError(ValueError):
    """One more update would cost more than the site allows."""


class Site(Section):
    """What a site has decided about everything that leaves it.

    Attributes:
        ledger: file that counts what was sent, over all runs; a relative path begins at this file's folder.
        clip_norm: longest update that leaves the site.
        noise_multiplier: standard deviation of the noise on every number of it, over `clip_norm`.
        delta: the δ that ε is stated for.
        max_epsilon: ε of all that is ever sent, at most.
    """

    ledger: str
    clip_norm: Positive
    noise_multiplier: Annotated[float, Field(ge=0.5, le=2.0**16)]  # less noise hides nothing
    delta: Open
    max_epsilon: Positive

    @property
    def query(self) -> Query:
        """One update, to whoever sees it: two clipped ones are at most two clip norms apart.

        So ε is that of local privacy: for the site's data replaced by any other.
        """
        return Query(noise_multiplier=self.noise_multiplier / 2, sampling=Everyone(), count=1)


def load_site(path: Path) -> Site:
    """The decisions in a TOML file; ValueError of one line if it is none."""
    try:
        document = tomllib.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not a site's file: {error}") from error
    found = validated(Site, document, str(path))
    # A link would be replaced by what is written, and what it leads to would count too little.
    return found.model_copy(update={"ledger": str((path.resolve().parent / found.ledger).resolve())})


def begin(site: Site) -> Ledger:
    """An empty ledger on the disk, once: a ledger that is missing later is a reason to stop."""
    path = Path(site.ledger)
    with alone_with(path):
        if path.exists():
            raise ValueError(f"{path} exists: a ledger is begun once, and never again")
        empty = Ledger(queries=(), delta=site.delta)
        save_site_ledger(empty, path)
    return empty


def spent(site: Site) -> Ledger:
    """What the site has sent so far, over all runs, at its δ."""
    path = Path(site.ledger)
    if path.exists() and path.stat().st_nlink > 1:
        raise ValueError(f"{path} has a second name (a hard link), under which another count would be kept")
    return load_site_ledger(path).at(site.delta)


def charge(site: Site) -> Ledger:
    """Count one more update, on the disk before this returns.

    Guarantee: whoever sends only after this has never sent more than the ledger counts, killed or not, in
    however many processes at once.

    Raises:
        BudgetSpentError: it would cost more than the site allows; nothing is counted then.
        ValueError: the ledger is missing, malformed, changed or another's.
    """
    path = Path(site.ledger)
    with alone_with(path):
        before = spent(site)
        if not _pays(site, before, 1):
            raise BudgetSpentError(f"max_epsilon = {site.max_epsilon:g} does not pay for another update")
        after = before.charged(site.query)
        save_site_ledger(after, path)
    return after


def affordable(site: Site, ledger: Ledger) -> int:
    """How many more updates the site can send, with the noise that it has now."""
    low, high = 0, 1  # invariant: `low` more are affordable, `high` are not once the first loop has ended
    while _pays(site, ledger, high) and high < _MOST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _pays(site, ledger, middle) else (low, middle)
    return low


def _pays(site: Site, ledger: Ledger, more: int) -> bool:
    return ledger.charged(replace(site.query, count=more)).affordable(site.max_epsilon, 1) == 1


def noised(site: Site, update: Floats) -> Floats:
    """An update `(dim,)` clipped, with noise that the operating system drew.

    Guarantee: one Gaussian query (`Site.query`), whatever the update is; what is not finite counts as zero.
    On the grid a clipped update has norm `clip_norm` at most, and the noise is that of `exact.normals`.
    """
    grid = exact.grid_of(site.noise_multiplier, site.clip_norm)
    row = np.array(update, dtype=np.float64, ndmin=2)
    norms = exact.lengths(row, (row.shape[1],))
    if not np.isfinite(norms).all():
        row[:], norms[:] = 0.0, 0.0
    sent = exact.whole(row, exact.factors(norms, site.clip_norm, grid.step, row.shape[1]))[0]
    sent += exact.drawn(SecureGenerator(), len(sent), grid.scale)
    return np.asarray(sent * grid.step)
