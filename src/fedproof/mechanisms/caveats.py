"""Why a guarantee would not hold: a code for programs, a sentence for readers, and what would cure it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """One condition of the theorem that is not met.

    `code` names the condition, `sentence` says what is not met here, `remedy` what to do about it.
    """

    code: str
    sentence: str
    remedy: str | None = None


def sentences(caveats: Iterable[Caveat]) -> tuple[str, ...]:
    """What a file holds of caveats, and a reader is told."""
    return tuple(caveat.sentence for caveat in caveats)


def rule_caveats(rule: str) -> tuple[Caveat, ...]:
    """A rule other than the mean voids the sensitivity that the noise was made for."""
    if rule == "mean":
        return ()
    return (
        Caveat(
            code="rule",
            sentence=(
                f"the rule {rule} looks at every update by itself before noise hides it: one unit may move "
                "its result by more than the clip norm that the noise was made for"
            ),
            remedy='Set aggregation.rule = "mean": the certificate itself withstands poisoning.',
        ),
    )


_RISING = ("hoeffding", "clopper-pearson", "levels")  # bounds that rise with every score, and heed no order


def attended_caveats(bound: str | None = None, *, noise: bool = True) -> tuple[Caveat, ...]:
    """Corrupted users who get several replicas in one message can make them depend on one another.

    Each replica's law still lies in the band of its theorem, but the number of replicas that go wrong need
    not concentrate: users who see all of them can let them go wrong together or not at all. Who attends one
    after another cannot, see docs/theory.md, section 4.

    Without `noise` a replica that drew no corrupted user is the clean one, and who is drawn no user decides.
    So what replicas score is at most what independent ones would, those that drew corrupted users counted as
    right; a `bound` that rises with every score is at most theirs.
    """
    if not noise and bound in _RISING:
        return ()
    return (
        Caveat(
            code="attended-together",
            sentence=(
                "one message carries several replicas: what a corrupted user sends for one may depend on "
                "another, and confidence bounds cover replicas that are independent or come one by one"
            ),
            remedy=(
                "Train one replica after the other, and certify with bound hoeffding, levels or "
                "clopper-pearson, or with method mean: these hold for users who remember earlier trainings."
                if noise
                else f"Set bound to one that rises with every score: {', '.join(_RISING)}."
            ),
        ),
    )
