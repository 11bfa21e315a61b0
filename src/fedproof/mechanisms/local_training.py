"""What a user does with its own data."""

from dataclasses import dataclass

from fedproof import check

SOLVERS = ("sgd", "ridge", "logistic", "gradient", "sums")


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How one drawn user trains: SGD with momentum and weight decay over its own instances.

    `epochs` passes over the data in batches of `batch_size`, the last one possibly smaller. DP-SGD mechanisms
    take their number of steps from the mechanism and `batch_size` as the divisor of the noisy sum. Where
    drawn instances are trained on with noise, a round is one step, and `batch_size` only says of how many
    instances gradients are held at a time.

    `cosine` lowers the learning rate from epoch to epoch of a round along half a cosine. `shift` moves the
    images of every step by up to so many pixels each way, `flip` mirrors those of every other step on
    average. `stretch` lets every entry of the matrix that maps an image's coordinates differ by up to so much
    from the identity's, which stretches, slants and turns it; `bend` displaces 4 by 4 of its points by up to
    so many pixels each way, and what is in between smoothly. Both differ from place to place of a batch.
    Which step and place does what follows from the seed, alike for all users and replicas. `balanced` weighs
    a user's instances so that every class it holds counts alike. DP-SGD uses none of the six.

    `solver` other than `sgd` fits a linear model to the pooled instances in closed form, in one round:
    `ridge` regression of the classes, multinomial `logistic` regression, one step of it from zero
    (`gradient`), or the sum of each class's instances (`sums`). `penalty` is what the squared
    norm of weights and intercepts costs beside the sum of all losses, whatever their number; logistic
    regression takes half of it, the last two none. Of the other options a fit uses `balanced` alone.
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    cosine: bool = False
    shift: int = 0
    flip: bool = False
    stretch: float = 0.0
    bend: float = 0.0
    balanced: bool = False
    solver: str = "sgd"
    penalty: float = 1.0

    def __post_init__(self) -> None:
        check.count(epochs=self.epochs, batch_size=self.batch_size)
        check.not_negative_count(shift=self.shift)
        check.positive(learning_rate=self.learning_rate, penalty=self.penalty)
        check.not_negative(momentum=self.momentum, weight_decay=self.weight_decay)
        check.not_negative(stretch=self.stretch, bend=self.bend)
        check.in_float32(learning_rate=self.learning_rate, weight_decay=self.weight_decay)
        if self.stretch >= 0.5:
            raise ValueError(f"stretch = {self.stretch!r} must be below 0.5, which could flatten an image")
        if self.momentum >= 1:
            raise ValueError(f"momentum = {self.momentum!r} must be in [0, 1)")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver = {self.solver!r} must be one of {', '.join(SOLVERS)}")

    @property
    def augments(self) -> bool:
        """Whether steps see images in another way than they are."""
        return bool(self.shift or self.flip or self.stretch or self.bend)

    def check_solver(self, *, rounds: int, pooled: bool) -> None:
        """Raise ValueError if a fit in closed form is asked of a training that is none."""
        for key, value, needed in (("rounds", rounds, 1), ("pooled", pooled, True)):
            if self.solver != "sgd" and value != needed:
                said = f"{key} = {value} must be {needed}".lower()
                raise ValueError(
                    f"{said} for solver = '{self.solver}', which fits all instances of a model once"
                )
