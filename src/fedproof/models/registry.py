"""Models by the name they have in a configuration."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from fedproof.federation import Federation
from fedproof.functions import load_function
from fedproof.models.cnn import cifar_cnn, lenet, mnist_cnn
from fedproof.models.dense import linear, logistic, mlp
from fedproof.models.host import all_digits, seeded
from fedproof.models.lstm import lstm
from fedproof.models.model import Model, StackedModel
from fedproof.models.module import from_module
from fedproof.models.weights import with_weights

NAMES = ("linear", "logistic", "mlp", "mnist-cnn", "lenet", "cifar-cnn", "lstm")


@all_digits()
def build(
    name: str,
    federation: Federation,
    *,
    hidden: tuple[int, ...] = (),
    weights: Path | None = None,
    random_head: bool = False,
) -> Model:
    """The model called `name`, shaped for the inputs and classes of `federation`.

    Args:
        name: one of `NAMES`, or `package.module:function` for a function that takes the federation and
            returns an `nn.Module`.
        federation: gives the shape of the inputs, the classes and, for text, the word vectors.
        hidden: widths of hidden layers; empty for the model's default.
        weights: `.npz` file with parameters to start from, by name.
        random_head: whether a head that the file does not have is drawn by the seed, not zero.
    """
    if ":" in name:
        factory = partial(load_function("model", name), federation)
        with seeded(0):  # what is not trained must be the same in every process that uses the models
            module = factory()
        return replace(from_module(module, federation.num_classes), factory=factory)
    model = _built_in(name, federation, hidden)
    head = model.layout.names[-1].rpartition(".")[0]
    return model if weights is None else with_weights(model, weights, head, random_head=random_head)


def _built_in(name: str, federation: Federation, hidden: tuple[int, ...]) -> StackedModel:
    shape = tuple(federation.test_features.shape[1:])
    classes = federation.num_classes
    if hidden and name not in ("mlp", "lstm"):
        raise ValueError(f"hidden = {hidden} is not used by model = {name!r}; only mlp and lstm have it")
    match name:
        case "linear":
            return linear(shape, classes)
        case "logistic":
            return logistic(shape, classes)
        case "mlp":
            return mlp(shape, classes, hidden or (64,))
        case "mnist-cnn":
            return mnist_cnn(shape, classes)
        case "lenet":
            return lenet(shape, classes)
        case "cifar-cnn":
            return cifar_cnn(shape, classes)
        case "lstm":
            if federation.vectors is None:
                raise ValueError(f"model = 'lstm' needs word vectors, {federation.name} has none")
            return lstm(federation.vectors, classes, *hidden[:1])
    raise ValueError(f"model = {name!r} must be one of {', '.join(NAMES)}, or package.module:function")
