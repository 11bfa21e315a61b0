"""What of a run is secret, and what may leave the machine that trained it, in words.

A note in the run's directory says the latter; its first line is said at the end of a command.
"""

from fedproof.config import Config
from fedproof.mechanisms import Mechanism, is_private
from fedproof.seeds import FRESH, KNOWN, NO_SEED

UNCOVERED = (
    "ε does not cover these numbers: no noise hides them. They are for whoever trained, and must not be "
    "published."
)

_COVERED = """\
ε of the ensemble (ledger.json) covers the models, parts/*.safetensors or release.npz, and what is computed
from them and public test inputs: scores.npy, certificate.json, metrics.csv, summary.json, report.html. It
does not cover how many users there are and how much they hold, what training took, or how the settings were
chosen.
"""
_PRIVATE = """\
private/ holds the seed, if the operating system drew one: whoever knows it knows cohorts and noise. Both
private/rounds.csv and parts/*.npz hold norms of updates, clipped shares and sizes of cohorts, round by round;
private/observed.csv comes from what every single unit sent. ε covers none of them.
"""
_KNOWN = """\
To publish models, leave ensemble.seed out of the configuration, or set ensemble.secure_noise = true, and
train again. Where the data are public anyway nothing is lost.
"""


def secret_of(config: Config) -> str:
    """What nobody who was corrupted may have known of a run's random numbers."""
    if config.ensemble.secure_noise:
        return NO_SEED
    return FRESH if config.ensemble.seed is None else KNOWN


def notice(config: Config, mechanism: Mechanism) -> str:
    """What may be published of a run of `config`, which executes `mechanism`."""
    if not is_private(mechanism):
        first = "No noise was added, so no ε covers anything here; in any case keep private/ to yourself."
        return f"{first}\n\n{_PRIVATE}"
    if mechanism.reasons:
        first = f"Publish nothing of this that must stay private: {'; '.join(mechanism.reasons)}."
        return f"{first}\n\n{_PRIVATE}"
    if config.ensemble.seed is not None and not config.ensemble.secure_noise:
        first = "Publish nothing of this that must stay private: whoever knows the seed can remove the noise."
        return f"{first}\n\n{_KNOWN}\n{_PRIVATE}"
    first = "Keep private/ and parts/*.npz to yourself; everything else here may be published."
    return f"{first}\n\n{_COVERED}\n{_PRIVATE}"
