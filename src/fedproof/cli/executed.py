"""What is taken to have been executed, in plain English: the half of a guarantee that nobody can check."""

from fedproof.certificates import ApproximateDP
from fedproof.mechanisms import (
    Clipping,
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    PerLayer,
    Poisson,
    Sampling,
    UserFedAvg,
)
from fedproof.threat import Relation, ThreatModel

_DIVIDED = "the noisy sum is divided by a number fixed beforehand"


def executed(
    source: UserFedAvg | InstanceFedAvg | InstanceFedSGD | ApproximateDP,
    threat: ThreatModel,
    *,
    replicas: int | None = None,
) -> str:
    """One sentence that a reader can hold beside the code of the training, of one model or of `replicas`.

    >>> tenth = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> executed(tenth, ThreatModel()).split("; ")[1]
    'in each round, every user takes part independently with probability 0.1'
    """
    trainings = "" if replicas is None else f"{replicas} independent trainings on the same data, each "
    if isinstance(source, ApproximateDP):
        return trainings + _known_by_epsilon(source, threat)
    return f"{trainings}{'of ' * bool(trainings)}{'; '.join(_parts(source, threat))}"


def _parts(source: UserFedAvg | InstanceFedAvg | InstanceFedSGD, threat: ThreatModel) -> list[str]:
    match source:
        case UserFedAvg():
            parts = _user_fedavg(source)
        case InstanceFedAvg():
            parts = _instance_fedavg(source)
        case InstanceFedSGD():
            parts = _instance_fedsgd(source)
    if threat.relation is Relation.JOIN:
        parts.append(f"none of these numbers changes when {threat.unit}s join")
    return parts


def _user_fedavg(mechanism: UserFedAvg) -> list[str]:
    return [
        _count(mechanism.rounds, "round"),
        f"in each round, {_drawn(mechanism.sampling)}",
        _clipped(mechanism.clipping),
        f"{_noise(mechanism.noise_multiplier)} is added to the SUM of the clipped updates",
        _DIVIDED,
    ]


def _instance_fedavg(mechanism: InstanceFedAvg) -> list[str]:
    steps = _count(mechanism.local_steps, "step")
    return [
        f"{_count(mechanism.rounds, 'round')} in which a user takes {steps} on its own data",
        "in each step, every instance of the user enters the batch independently with probability "
        f"{_number(mechanism.batch_probability)} or less",
        "the gradient of each instance is clipped to norm S",
        f"{_noise(mechanism.noise_multiplier)} is added to the SUM of the clipped gradients",
        _DIVIDED,
    ]


def _instance_fedsgd(mechanism: InstanceFedSGD) -> list[str]:
    cohort = mechanism.sampling.cohort
    return [
        _count(mechanism.rounds, "round"),
        f"in each round, {_drawn(mechanism.sampling)}",
        "every instance of a drawn user enters that user's batch independently with probability "
        f"{_number(mechanism.batch_probability)}",
        "the gradient of each instance is clipped to norm S",
        f"each drawn user adds {_noise(mechanism.noise_multiplier)} to the SUM of its clipped gradients",
        f"only the total over all {cohort} users is ever seen, divided by a number fixed beforehand",
    ]


def _known_by_epsilon(privacy: ApproximateDP, threat: ThreatModel) -> str:
    unit = threat.unit
    stated = "added or removed" if privacy.relation is Relation.JOIN else "replaced by another"
    text = (
        f"({_number(privacy.epsilon)}, {_number(privacy.delta)})-differentially private for one {unit} "
        f"{stated}, in everything by which one {unit} can influence the model"
    )
    if privacy.relation is Relation.JOIN and threat.relation is Relation.REPLACE:
        text += f"; each {unit} that is replaced counts as one removed and one added"
    return text


def _drawn(sampling: Sampling) -> str:
    match sampling:
        case Everyone():
            return "every user takes part"
        case Poisson(probability=probability):
            return f"every user takes part independently with probability {_number(probability)}"
        case FixedSize(cohort=cohort, users=users):
            chosen = f"all choices of {cohort} being equally likely"
            return f"exactly {cohort} of the {users} users are drawn, {chosen}"


def _clipped(clipping: Clipping) -> str:
    if isinstance(clipping, PerLayer):
        return f"each of the {clipping.num_layers} layers of an update is clipped to norm S by itself"
    return "each update is clipped to norm S as a whole"


def _noise(multiplier: float) -> str:
    return f"Gaussian noise of standard deviation {_number(multiplier)}·S"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _number(value: float) -> str:
    """All digits that tell one number from the next: a rounded echo would hide a typing error."""
    return f"{value:.12g}"
