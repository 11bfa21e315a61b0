"""Ordinary training on public data: weights to start from, or one small model that a release teaches."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedproof import check, data, encoders
from fedproof.config import PretrainConfig, validated
from fedproof.config.sections import PretrainSection
from fedproof.federation import Federation
from fedproof.files import read_text, replacing
from fedproof.folder import RELEASE, read_config
from fedproof.mechanisms import Releases
from fedproof.mechanisms.uploads import Anchors
from fedproof.models import build
from fedproof.models.model import as_inputs, load
from fedproof.models.precision import all_digits
from fedproof.progress import Progress, silent
from fedproof.release import load_release

_SHORT = PretrainSection(epochs=60, batch_size=32)  # public inputs are few


DISTILLED = (
    "computed from the release and public inputs: it costs no more privacy, and has no certificate of its own"
)


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Weights on disk, and how well they do on the public test set."""

    path: Path
    accuracy: float
    epochs: int


@all_digits()
def pretrain(
    config: PretrainConfig, out: Path, *, device: str = "cpu", progress: Progress = silent
) -> Pretrained:
    """Train without privacy on the public data of `config` and write the weights as `.npz`.

    The data are taken as public: nothing here protects them. Leave out every class of the private task.
    """
    check.device(device)
    if config.model.copies != 1:
        raise ValueError(f"model.copies = {config.model.copies} must be 1: weights of one model are written")
    public = data.load(users=1, partition="iid", seed=config.pretrain.seed, **config.data.model_dump())
    model = build(config.model.name, public, hidden=config.model.hidden)
    module = load(model.module(), model.layout, model.initial(config.pretrain.seed)).to(device)
    _train(module, public.features, torch.tensor(public.labels), config.pretrain, progress)
    return _finished(module, public, out, config.pretrain)


@all_digits()
def distil(
    folder: Path,
    model: str,
    out: Path,
    *,
    hidden: tuple[int, ...] = (),
    section: PretrainSection = _SHORT,
    device: str = "cpu",
    progress: Progress = silent,
) -> Pretrained:
    """Train the model called `model` on public inputs that a run's release labels; write its weights.

    For who must ship one small network: of any shape, without anchors. All public inputs of the run are
    labelled, the anchors among them, by the released votes as the release weighs them: a class counts by how
    far its votes are above those of the average class.

    Guarantee: that of the release for privacy, as this is post-processing. None against poisoning: `k` users
    who cannot change what the release answers to an input may change what this model answers.

    Raises:
        ValueError: the run released no votes on anchors, or its public inputs are not those of the release.
    """
    check.device(device)
    config = read_config(folder)
    if config.mechanism.described.releases is not Releases.MODEL or config.mechanism.upload != Anchors.kind:
        raise ValueError(f"{folder}: released no votes on anchors, by which public inputs could be labelled")
    release = load_release(folder / RELEASE)
    federation = encoders.load(**config.data.model_dump(), device=device, progress=progress)
    public, anchors = federation.public_features, release.anchors
    assert public is not None and anchors is not None  # noqa: PT018  # a run with anchors has both
    if not np.array_equal(public[: len(anchors)].reshape(anchors.shape).astype(np.float32), anchors):
        raise ValueError(f"{folder}: the public inputs are not those that the release was made with")
    above = np.maximum(release.scores(public), 0) + np.finfo(np.float32).tiny  # alike where nobody knows
    labels = torch.tensor(above / above.sum(axis=1, keepdims=True), dtype=torch.float32)
    network = build(model, federation, hidden=hidden)
    module = load(network.module(), network.layout, network.initial(section.seed)).to(device)
    _train(module, public, labels, section, progress)
    return _finished(module, federation, out, section)


def _finished(module: nn.Module, public: Federation, out: Path, section: PretrainSection) -> Pretrained:
    """The weights in a file, judged by the test inputs."""
    arrays = {name: value.detach().cpu().numpy() for name, value in module.named_parameters()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        np.savez(file, allow_pickle=False, **arrays)
    return Pretrained(path=out, accuracy=_accuracy(module, public), epochs=section.epochs)


def _train(
    module: nn.Module,
    features: NDArray[np.generic],
    labels: Tensor,
    section: PretrainSection,
    progress: Progress,
) -> None:
    """SGD with Nesterov momentum and a learning rate that falls to zero along a cosine.

    `labels` are classes `(inputs,)`, or shares of them `(inputs, classes)`.
    """
    device = next(module.parameters()).device
    inputs, labels = as_inputs(features, device, torch.float32), labels.to(device)
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=section.learning_rate,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        nesterov=section.momentum > 0,
    )
    batches = -(-len(labels) // section.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=section.epochs * batches)
    generator = torch.Generator().manual_seed(section.seed)
    module.train()
    for epoch in range(section.epochs):
        order = torch.randperm(len(labels), generator=generator)
        for batch in torch.split(order, section.batch_size):
            chosen = batch.to(device)
            loss = F.cross_entropy(module(_flipped(inputs[chosen], section.flip, generator)), labels[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        progress("pretrain", epoch + 1, section.epochs)


def _flipped(images: Tensor, flip: bool, generator: torch.Generator) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    if not flip:
        return images
    mirrored = torch.rand(len(images), generator=generator).to(images.device) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def _accuracy(module: nn.Module, public: Federation) -> float:
    inputs = as_inputs(public.test_features, next(module.parameters()).device, torch.float32)
    module.eval()
    with torch.no_grad():
        found = torch.cat([module(part).argmax(-1) for part in torch.split(inputs, 500)])
    return float(np.mean(found.cpu().numpy() == public.test_labels))


def load_pretrain_config(path: Path) -> PretrainConfig:
    """The configuration of a pretraining; ValueError of one line if it is none."""
    try:
        document = tomllib.loads(read_text(path))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return validated(PretrainConfig, document, str(path))
