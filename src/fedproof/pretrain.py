"""Ordinary training on public data, to start federated training from weights of one's own."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedproof import data
from fedproof.config import PretrainConfig, validated
from fedproof.federation import Federation
from fedproof.models.model import as_inputs, load
from fedproof.models.precision import all_digits
from fedproof.models.registry import build
from fedproof.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Weights on disk, and how well they do on the public test set."""

    path: Path
    accuracy: float
    epochs: int


@all_digits()
def pretrain(
    config: PretrainConfig,
    out: Path,
    *,
    device: str = "cpu",
    progress: Progress = silent,
) -> Pretrained:
    """Train without privacy on the public data of `config` and write the weights as `.npz`.

    The data are taken as public: nothing here protects them. Leave out every class of the private task.
    """
    public = data.load(users=1, partition="iid", seed=config.pretrain.seed, **config.data.model_dump())
    model = build(config.model.name, public, hidden=config.model.hidden)
    module = load(model.module(), model.layout, model.initial(config.pretrain.seed)).to(device)
    _train(module, public, config, device, progress)
    accuracy = _accuracy(module, public, device)
    arrays = {name: value.detach().cpu().numpy() for name, value in module.named_parameters()}
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return Pretrained(path=out, accuracy=accuracy, epochs=config.pretrain.epochs)


def _train(
    module: nn.Module, public: Federation, config: PretrainConfig, device: str, progress: Progress
) -> None:
    """SGD with Nesterov momentum and a learning rate that falls to zero along a cosine."""
    section = config.pretrain
    inputs = as_inputs(public.features, torch.device(device), torch.float32)
    labels = torch.tensor(public.labels, device=device)
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


def _accuracy(module: nn.Module, public: Federation, device: str) -> float:
    inputs = as_inputs(public.test_features, torch.device(device), torch.float32)
    module.eval()
    with torch.no_grad():
        found = torch.cat([module(part).argmax(-1) for part in torch.split(inputs, 500)])
    return float(np.mean(found.cpu().numpy() == public.test_labels))


def load_pretrain_config(path: Path) -> PretrainConfig:
    """The configuration of a pretraining; ValueError of one line if it is none."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return validated(PretrainConfig, document, str(path))
