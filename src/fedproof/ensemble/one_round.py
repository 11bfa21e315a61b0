"""One upload from every unit, and one release: what honest units send, and the model that is made of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedproof.aggregation import Contributions
from fedproof.arrays import Floats, Integers
from fedproof.ensemble.engines import on_engine
from fedproof.ensemble.fingerprints import fingerprint
from fedproof.ensemble.task import Task
from fedproof.ensemble.train import released, train_replicas
from fedproof.mechanisms import Partition, UploadedOnce
from fedproof.mechanisms.uploads import Sent
from fedproof.release import Centre, Release, add_noise, check_units, summed
from fedproof.rounds import State, Tampering
from fedproof.rounds.heads import heads
from fedproof.seeds import Purpose, private_numbers
from fedproof.vault import Vault

_ITEM = "release"
_CELLS = 1 << 23  # numbers of uploads that are held at once
_SPANS = 64  # parts in which units go to the workers of a cluster


def release(task: Task, keep: list[Integers] | None = None, *, engine: str = "local") -> Release:
    """The release of a task: the sum of what all units send, and its noise.

    `keep` gets the vectors `(units, width, classes)` of the sum, which no noise hides.

    Guarantee: see `OneRound` and `Local`. The noise follows from the seed, or from the operating system, and
    from nothing else; make a release once. It is the same on every `engine`: what a unit sends follows from
    the unit alone, and sums on the grid are exact, whoever adds up how many of them, in which order.
    """
    mechanism = described(task)
    check_units(mechanism, task.units.num_users)
    total = np.zeros(mechanism.upload.shape, dtype=np.int64)
    added: dict[int, list[Integers]] = {}
    on_gpu = mechanism.upload.labels and task.device.startswith("cuda")
    sum_of = partial(_sum_of, task, kept=keep is not None)
    with on_engine(engine, sum_of, _spans(task, engine), on_gpu=on_gpu) as sums:
        for units, (part, vectors) in sums:
            total += part
            added[units.start] = vectors
    if keep is not None:
        keep.extend(vectors for begin in sorted(added) for vectors in added[begin])
    if mechanism.noise_multiplier and mechanism.honest is None:
        add_noise(mechanism, total, private_numbers(task.seed, Purpose.NOISE, 0, secure=task.secure_noise))
    return Release(
        mechanism=mechanism, total=total, anchors=anchors_of(task, mechanism), view=task.federation.view
    )


def _spans(task: Task, engine: str) -> list[range]:
    """The units, in one part for this machine and in some for a cluster."""
    units = task.units.num_users
    step = units if engine == "local" else -(-units // _SPANS)
    return [range(begin, min(begin + step, units)) for begin in range(0, units, step)]


def _sum_of(task: Task, units: range, *, kept: bool) -> tuple[Integers, list[Integers]]:
    """The exact sum of what some units send, and if they are to be `kept` the vectors that it is made of."""
    mechanism, vectors = described(task), list[Integers]()
    total = np.zeros(mechanism.upload.shape, dtype=np.int64)
    for sent in uploads_of(task, units):
        total += summed(mechanism, sent, vectors if kept else None)
    return total, vectors


def make_once(
    task: Task,
    vault: Vault,
    name: str,
    before: Callable[[Release | Centre, Integers | None], object],
    count: Callable[[], object],
    *,
    observe: bool = False,
    engine: str = "local",
) -> Path:
    """The file `name` with a task's release, which is made unless it was: noise is never used again.

    `before` is called with the release, and if it is to `observe` with the vectors it was made of, while it
    is still in memory. `count` is called before it is there to be published.

    Raises:
        ValueError: the release was made of something else, or was made and is gone.
    """
    mark, path = fingerprint(task), vault.folder / name
    if vault.made(_ITEM, mark) is None:
        if path.exists():
            raise vault.other()
        kept: list[Integers] = []
        found: Release | Centre
        if task.mechanism.one_release:
            found = Centre(mechanism=task.mechanism, total=released(task).numpy())
        else:
            found = release(task, kept if observe else None, engine=engine)
        before(found, np.concatenate(kept) if observe else None)
        vault.keep(_ITEM, mark, {name: found.save})
    if not vault.publish(_ITEM, count):
        raise vault.gone(name)
    return path


def uploads_of(task: Task, units: range | None = None) -> Iterator[Sent]:
    """What the units send, all or those, some at a time and in order; adversaries send what they like."""
    asked = range(task.units.num_users) if units is None else units
    begin = asked.start
    for made in _honest(task, asked):
        sent = made if task.mechanism.honest is None else _noised(task, made, begin)
        yield sent if task.attack is None else _tampered(task.attack, sent, begin)
        begin += len(sent)


def _noised(task: Task, made: Sent, begin: int) -> Sent:
    """What the users from `begin` on send, each with noise of its own, which no other user changes."""
    mechanism = described(task)
    sent = []
    for vector, who in zip(made, task.units.who[begin : begin + len(made)].tolist(), strict=True):
        numbers = private_numbers(task.seed, Purpose.NOISE, 0, who, secure=task.secure_noise)
        sent.append(mechanism.noised(vector[None], numbers))
    return np.concatenate(sent)


def _honest(task: Task, asked: range) -> Iterator[Sent]:
    """What units send who do as they are told."""
    mechanism = described(task)
    if mechanism.upload.labels:
        yield _labels(task, mechanism, asked)
        return
    units, width = task.units, mechanism.upload.shape[0]
    anchors = anchors_of(task, mechanism)
    step = max(1, _CELLS // (width * mechanism.upload.classes))
    for begin in range(asked.start, asked.stop, step):
        ends = units.offsets[begin : min(begin + step, asked.stop) + 1]
        own = slice(int(ends[0]), int(ends[-1]))
        # Each unit's rows by themselves: how many others hold decides the last bits of a common product.
        each = [_seen(mechanism, units.features[a:b], anchors) for a, b in pairwise(ends.tolist())]
        found = heads(
            np.concatenate(each),
            units.labels[own],
            ends - ends[0],
            units.num_classes,
            solver=task.local.solver,
            penalty=task.local.penalty,
            balanced=task.local.balanced,
        )
        yield found[:, :, :-1].transpose(1, 2).numpy()  # without intercept: inputs are seen by direction


def _tampered(attack: Tampering, sent: Sent, begin: int) -> Sent:
    """What the units from `begin` on send under attack: a row each of `(1, units, numbers or labels)`."""
    updates = torch.from_numpy(np.array(sent)).reshape(1, len(sent), -1)
    there = torch.ones(updates.shape[:2], dtype=torch.bool)
    contributions = Contributions(
        updates=updates,
        present=there,
        scales=there.unsqueeze(2),
        members=torch.arange(begin, begin + len(sent)).unsqueeze(0),
        layer_sizes=(updates.shape[2],),
    )
    state = State(round=0, params=torch.zeros(1, updates.shape[2]), clip_norms=torch.ones(1))
    return attack(contributions, state).updates.reshape(sent.shape).numpy()


def described(task: Task) -> UploadedOnce:
    """The mechanism of a task, which must be of this kind."""
    assert isinstance(task.mechanism, UploadedOnce)
    return task.mechanism


def anchors_of(task: Task, mechanism: UploadedOnce) -> NDArray[np.float32] | None:
    """The public inputs that others are compared with, as rows; None if there are none."""
    if not mechanism.upload.bumps:
        return None
    anchors = _anchors(task, mechanism)
    return anchors.reshape(len(anchors), -1).astype(np.float32)


def check_public(task: Task) -> None:
    """Raise ValueError, before anybody trains, where there are fewer public inputs than anchors."""
    mechanism = described(task)
    if mechanism.upload.labels or mechanism.upload.bumps:
        _anchors(task, mechanism)


def _anchors(task: Task, mechanism: UploadedOnce) -> NDArray[np.generic]:
    """The first public inputs, as many as the mechanism says."""
    wanted, public = mechanism.upload.shape[0], task.federation.public_features
    if public is None or len(public) < wanted:
        held = 0 if public is None else len(public)
        raise ValueError(
            f"anchors = {wanted} must be at most the number of public instances = {held}: set data.public"
        )
    return public[:wanted]


def _seen(
    mechanism: UploadedOnce, features: NDArray[np.generic], anchors: NDArray[np.float32] | None
) -> Floats:
    """Instances as inputs are seen: by their weights."""
    flat = features.reshape(len(features), -1).astype(np.float64)
    return mechanism.upload.weights(flat, None if anchors is None else anchors.astype(np.float64))


def _labels(task: Task, mechanism: UploadedOnce, users: range) -> NDArray[np.int64]:
    """Labels `(users, anchors)` that users' own models give to the anchors; -1 where one cannot tell."""
    asked = _anchors(task, mechanism)
    nobody = np.zeros(len(asked), dtype=np.int64)
    federation = replace(task.federation, test_features=asked, test_labels=nobody, test_texts=None)
    alone = replace(task, federation=federation, mechanism=Partition(pooled=True), attack=None)
    scores = train_replicas(alone, users).scores
    tells = scores.max(axis=2) > scores.min(axis=2)  # false for what is no number
    return np.where(tells, scores.argmax(axis=2), -1)
