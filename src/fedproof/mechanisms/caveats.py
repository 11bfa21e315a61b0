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


def size_caveats() -> tuple[Caveat, ...]:
    """Chances that follow from users' sizes void what is proved about instances that join."""
    return (
        Caveat(
            code="chance-by-size",
            sentence=(
                "the chance of an instance to enter a batch follows from how many instances users hold: one "
                "that joins changes the chances of others"
            ),
            remedy="Declare mechanism.batch_probability, or certify against instances that are replaced.",
        ),
    )
