"""Models by the name they have in a configuration."""

from pathlib import Path

from fedproof.federation import Federation
from fedproof.models.dense import linear, mlp
from fedproof.models.model import Model

NAMES = ("linear", "mlp")


def build(
    name: str, federation: Federation, *, hidden: tuple[int, ...] = (), weights: Path | None = None
) -> Model:
    """The model called `name`, shaped for the inputs and classes of `federation`.

    Args:
        name: one of `NAMES`, or `package.module:function` for a function that takes the federation and
            returns an `nn.Module`.
        federation: gives the shape of the inputs, the classes and, for text, the word vectors.
        hidden: widths of hidden layers; empty for the model's default.
        weights: `.npz` file with parameters to start from, by name.
    """
    shape = tuple(federation.test_features.shape[1:])
    if name == "linear":
        return linear(shape, federation.num_classes)
    if name == "mlp":
        return mlp(shape, federation.num_classes, hidden or (64,))
    raise ValueError(f"model = {name!r} must be one of {', '.join(NAMES)}, or package.module:function")
