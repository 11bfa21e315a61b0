"""Local privacy: every user adds its own noise before anything leaves it."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from fedproof import check, exact
from fedproof.arrays import Integers
from fedproof.mechanisms.contract import Query, noise_in_words
from fedproof.mechanisms.one_round import UploadedOnce
from fedproof.mechanisms.uploads import Anchors, Ball, Rows, Sent, on_grid, shortened
from fedproof.statements import Statement
from fedproof.threat import Relation

RARE = 1e-9
"""Chance that an honest user's noised head is longer than the server accepts, and is shortened."""

_LEAST = 0.001
_ROOM = 1 + 2.0**-19  # for the grid, and for what keeps a set's boundary clear of rounding


@dataclass(frozen=True, kw_only=True)
class Local(UploadedOnce):
    """Every user noises the vector it sends; the server bounds what arrives, adds it up and releases the sum.

    A user's vector u lies in K, the set of `upload`, whose largest norm is S. It sends v = u + σ S g with g
    standard normal, σ being `noise_multiplier`; of `anchors` the label with the largest number of v at each
    public input. The server takes nothing for granted of v: it puts it into the set `reach` K, labels into K,
    and adds up. No more noise is added. All is divided by `reach`, so that the server's set is K again.

    Guarantee, poisoning: that of `OneRound`, for every noise. Proof: what enters the sum lies in the server's
    set whoever sent it, noised or not, so a user moves the lead of one class over another by at most one
    (`join`) or two (`replace`), counted in such vectors. An honest user's noise is drawn by itself, from
    nothing that others do: it is the same draw on both sides, and cancels with the user's vector. No noise is
    needed for this, honest or not, and none is counted. What local noise costs is the unit: it is `reach`
    times as large as what an honest user has to say.

    Guarantee, privacy, towards the server and whoever sees what is sent: one Gaussian query, for each user by
    its own noise, whatever others do; the sum is computed from that.
    Guarantee, privacy, of the released sum alone: one Gaussian query with noise √honest times as large, but
    for a chance of honest · `RARE` (`sum_query`). Proof: let H = `honest` users, the one in question among
    them, add their noise. Vectors of the grid within the server's set enter the sum as they are, so unless
    one of the H is shortened the sum is Σ u + σ S Σ g, and Σ g over H users has √H times the deviation; what
    others send is added to it and depends on no honest user's noise. The true law is within H `RARE` of this
    one whatever the user holds, so δ grows by (1 + e^ε) H `RARE`. Labels are not sums of Gaussians: for them
    nothing better than the ε towards the server is claimed.
    For one user `join` says: as if it held nothing, and sent noise alone; `replace`: any data instead.

    Assumes: as `OneRound`, but for the noise; users' noise is their own and independent. Poisoned users need
    add none. For the ε of the sum: at least `honest` users add theirs, and what the others send does not
    depend on it.

    Reference: theory.md, section 3, "Local noise"; Kasiviswanathan et al. 2011, arXiv:0803.0924, for local
    privacy.

    >>> local = Local(upload=Ball(features=16, classes=10), noise_multiplier=2.0, honest=500)
    >>> round(local.reach, 1), round(local.sum_query(Relation.JOIN)[0].noise_multiplier, 1)
    (35.2, 44.7)
    """

    upload: Anchors | Rows | Ball
    noise_multiplier: float
    honest: int
    uploads: ClassVar[tuple[str, ...]] = (Anchors.kind, Rows.kind, Ball.kind)
    kind: ClassVar[str] = "local"

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.count(honest=self.honest)
        check.plain(self)
        if self.noise_multiplier < _LEAST:  # so that its deviation is many steps of the grid
            raise ValueError(f"noise_multiplier = {self.noise_multiplier!r} must be at least {_LEAST}")
        if self.upload.kind not in self.uploads:
            raise ValueError(f"upload = '{self.upload.kind}' must be one of {', '.join(self.uploads)}")
        self.check_grid()

    def heard(self, replied: int, users: int) -> Self:
        """The honest users that are left if so many of all were heard.

        Guarantee: if `honest` of the `users` add their noise whenever they reply, so many are in the sum, or
        the user in question is alone in it. Proof: whoever was not heard may have been honest, while all who
        are not honest replied; the user in question has noise of its own.
        """
        return replace(self, honest=max(1, self.honest - (users - replied)))

    @property
    def reach(self) -> float:
        """How many times larger than K the server's set is: room for the noise of an honest user.

        Guarantee: a noised vector leaves it with chance `RARE` at most. Proof: a length of n standard normal
        numbers exceeds the quantile; of `rows`, each of C rows has its share of the chance.
        """
        if isinstance(self.upload, Anchors):
            return 1.0
        from scipy.special import gammainccinv  # here: all else in this room needs NumPy alone

        width, classes = self.upload.shape
        count, parts = (width, classes) if isinstance(self.upload, Rows) else (width * classes, 1)
        longest = math.sqrt(2 * float(gammainccinv(count / 2, RARE / parts)))
        return (1 + self.noise_multiplier * self.upload.norm * longest) * _ROOM

    @property
    def longest(self) -> float:
        """In units of the server's set, which has room for noise."""
        return self.upload.norm / self.reach

    def noised(self, vectors: Sent, numbers: exact.Source) -> Sent:
        """What users send whose models are `vectors`, with noise of their own from `numbers`.

        Rounding the noise is rounding the noised vector, as the vector is on the grid.
        """
        inside = on_grid(self.upload, self.upload.inside(vectors) / self.reach, self.grid.step)
        sent = inside + exact.drawn(numbers, inside.size, self.grid.scale).reshape(inside.shape)
        return np.asarray(sent.argmax(axis=2) if isinstance(self.upload, Anchors) else sent * self.grid.step)

    def received(self, sent: Sent) -> Integers:
        """What enters the sum: labels as votes, heads as they came unless they are too long."""
        if isinstance(self.upload, Anchors):
            return super().received(sent)
        return shortened(self.upload, sent, self.grid.step)

    def sum_query(self, relation: Relation) -> tuple[Query, float] | None:
        """The noise of honest users adds up, unless somebody's vector is shortened; labels have no sum."""
        if isinstance(self.upload, Anchors):
            return None
        (own,) = self.queries if relation is Relation.JOIN else self.replaced
        noise = own.noise_multiplier * math.sqrt(self.honest)
        return Query(noise_multiplier=noise, sampling=own.sampling, count=1), self.honest * RARE

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        return (
            Statement.of("counted-once-with-room", upload=self.upload.kind, times=float(self.reach)),
            Statement.of("honest-with-noise"),
            Statement.of("chosen-without-data"),
            Statement.of("sum-without-noise"),
            Statement.of("noise-of-honest", honest=self.honest),
            Statement.of("this-release-of-users"),
        )

    def in_words(self) -> tuple[str, ...]:
        noise = noise_in_words(self.noise_multiplier)
        if isinstance(self.upload, Anchors):
            sent = (
                f"each user adds {noise} to them as votes, all of norm S together, and sends the labels ahead"
            )
            bounded = "the server adds up the labels as votes"
        else:
            sent = f"each user adds {noise} to its own head, and sends it"
            one = f"every row that is longer than {self.reach:.6g}·S/√{self.upload.classes}"
            whole = f"whatever is longer than {self.reach:.6g}·S"
            bounded = f"the server shortens {one if isinstance(self.upload, Rows) else whole}, adds it up"
        return (
            f"once, every user makes {self.upload.in_words()}",
            sent,
            f"{bounded} and releases the sum once",
        )

    def upload_bytes(self, dim: int, bytes_each: int) -> int:
        """Labels are as small as ever, noised numbers need eight bytes each."""
        return self.upload.bytes if isinstance(self.upload, Anchors) else 2 * self.upload.bytes
