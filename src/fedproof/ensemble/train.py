"""Replicas of a task, trained as stacks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation.rule import alone
from fedproof.arrays import replica_accuracies
from fedproof.ensemble.memory import Sizes, halved, shared_fits, sizes_for
from fedproof.ensemble.task import (
    Task,
    cohort_size,
    population_of,
    shares_first_round,
    start_of,
)
from fedproof.models import Layout, Model
from fedproof.models.model import as_inputs
from fedproof.models.precision import all_digits
from fedproof.rounds import RoundReport, Setting, State, Streams, executor_of, smoothed, user_fedavg
from fedproof.rounds.randomness import Stream
from fedproof.rounds.stacking import LANES, Stacking, free_cores, on_cores
from fedproof.rounds.state import users_on
from fedproof.seeds import Lots, Purpose, cohorts_of

_WIDTH = 512  # test inputs at once, for as many replicas as fit
_TOGETHER = 64  # replicas in closed form, each for itself, that are computed by the same operations
_DRAWN = 16  # replicas whose cohorts are looked at together
_PROBES = 256  # test inputs on which the accuracy after each round is watched


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """A range of trained replicas.

    Attributes:
        indices: which replicas.
        scores: `(replicas, inputs, classes)` float32, softmax on the test inputs.
        params: `(replicas, dim)`, the models on the host.
        layout: what a row of `params` means.
        diagnostics: `(replicas, rounds)` each, see `RoundReport`; and `accuracy` on some test inputs.
    """

    indices: range
    scores: NDArray[np.float32]
    params: Tensor
    layout: Layout
    diagnostics: dict[str, NDArray[np.float64]]

    @property
    def models(self) -> dict[str, Tensor]:
        """Named parameters `(replicas, ...)`."""
        return self.layout.views(self.params)


@all_digits()
def train_replicas(
    task: Task, replicas: range, *, first_updates: Tensor | None = None, sizes: Sizes | None = None
) -> Replicas:
    """The given replicas of `task`.

    A replica's result depends on the task and its index alone, not on the range or the stack it is trained
    in, up to the last bits. Those follow from shapes, and shapes from public numbers. With
    `task.secure_noise` it has the same law each time, and another value.

    Guarantee: what a unit holds, and whether it is there at all, changes no bit of a replica that did not
    draw it.

    Args:
        task: what is trained.
        replicas: indices, `range(0, 100)`.
        first_updates: result of `first_updates(task)` for this federation, model, local training and seed,
            or `table_of` those who are drawn; saves the first round in every part and every noise
            level. Computed here if None. Of a mechanism with one release it may be that, from
            `released(task)`.
        sizes: how much is trained at once; None chooses from the memory of the device.
    """
    if not replicas or replicas.start < 0 or replicas.step != 1:
        raise ValueError(f"replicas = {replicas} must be a range of neighbouring indices, at least one")
    sizes = sizes or sizes_for(task)
    found = _untrained(task, replicas)
    with free_cores(torch.device(task.device)) as cores:
        if task.mechanism.apart:
            setting = _setting(task, sizes, 1)
            train = partial(_train_block, task, setting, None, sizes.cells, found)
            on_cores(train, _apart(task, replicas, setting.stacking), cores)
            return found
        shared = shared_by_replicas(task, replicas, first_updates, sizes)
        setting = _setting(task, sizes, cores)
        begin = 0
        while begin < len(replicas):
            block = np.arange(begin, min(begin + sizes.block, len(replicas)))
            try:
                _train_block(task, setting, shared, sizes.cells, found, block)
            except torch.cuda.OutOfMemoryError:
                sizes = halved(sizes)
                setting = replace(setting, stacking=replace(setting.stacking, size=sizes.stack))
                torch.cuda.empty_cache()
                continue
            begin += len(block)
    return found


@all_digits()
def first_updates(task: Task, sizes: Sizes | None = None, users: NDArray[np.int64] | None = None) -> Tensor:
    """Round-one update `(users, dim)` of every user, or the given ones, the same for all replicas.

    It is also the same for all noise levels and clip norms, and has the same bits whoever else is asked for.
    Kept in the host's memory if the device could not hold it beside the training.
    """
    sizes = sizes or sizes_for(task)
    home = torch.device(task.device if shared_fits(task) else "cpu")
    with free_cores(torch.device(task.device)) as cores:
        while True:
            try:
                setting = _setting(task, sizes, cores)
                return user_fedavg.first_updates(setting, start_of(task, 0), home, users)
            except torch.cuda.OutOfMemoryError:
                sizes = halved(sizes)
                torch.cuda.empty_cache()


def drawn_users(task: Task, replicas: Iterable[int], known: Tensor | None = None) -> NDArray[np.int64]:
    """The users whose update round one of `replicas` needs and a `known` table (users, dim) does not have.

    Few replicas draw few of many users, and nobody else has to train.
    """
    needed = np.full(task.units.num_users, task.secure_noise)  # then only the training itself draws
    needed[[0, *getattr(task.attack, "adversaries", ())]] = True  # the first stands in for an empty cohort
    ahead = iter(replicas)
    while not needed.all() and (some := list(islice(ahead, _DRAWN))):
        needed |= cohorts_of(task.mechanism, task.units.who, task.seed, some)[:, 0].any(axis=0)
    return np.flatnonzero(needed if known is None else needed & known[:, 0].isnan().cpu().numpy())


def table_of(task: Task, users: NDArray[np.int64], updates: Tensor, known: Tensor | None = None) -> Tensor:
    """First `updates` of some `users` as a table (users, dim), nan for others; written into a `known` one."""
    if len(users) == task.units.num_users:
        return updates
    if known is None:
        known = updates.new_full((task.units.num_users, updates.shape[1]), torch.nan)
    known[torch.from_numpy(users).to(known.device)] = updates
    return known


@all_digits()
def released(task: Task, updates: Tensor | None = None, sizes: Sizes | None = None) -> Tensor:
    """The one release `(dim,)` that replicas are drawn around, from everybody's first `updates`.

    Guarantee: see `Smoothed`. The noise follows from the seed, or from the operating system, and from nothing
    else; make a release once.
    """
    sizes = sizes or sizes_for(task)
    updates = first_updates(task, sizes) if updates is None else updates
    stream = Stream(task.seed, Purpose.RELEASE, 0, torch.device("cpu"), secure=task.secure_noise)
    return smoothed.release(task.mechanism, _setting(task, sizes, 1), start_of(task, 0), updates, stream)


@all_digits()
def predict(model: Model, params: Tensor, inputs: Tensor, *, cells: int) -> NDArray[np.float32]:
    """Softmax scores `(replicas, inputs, classes)` of models `(replicas, dim)`, `cells` of them at a time."""
    with free_cores(params.device) as cores:
        return _predict(model, params, inputs, cells, cores)


def _predict(
    model: Model, params: Tensor, inputs: Tensor, cells: int, cores: int, most: int = _WIDTH
) -> NDArray[np.float32]:
    width = min(cells, most, len(inputs))
    chunks = torch.split(inputs, width)
    scores = np.empty((len(params), len(inputs), model.num_classes), dtype=np.float32)
    together = 1 << (cells // width).bit_length() - 1  # so that stacks are cut into pieces of one shape

    def score(rows: slice) -> None:
        with torch.no_grad():
            found = [model.logits(params[rows], chunk.unsqueeze(0)).softmax(-1) for chunk in chunks]
        scores[rows] = torch.cat(found, dim=1).float().cpu().numpy()

    on_cores(score, [slice(row, row + together) for row in range(0, len(params), together)], cores)
    return scores


def _untrained(task: Task, replicas: range) -> Replicas:
    """Room for what becomes of replicas."""
    names = (*(field.name for field in fields(RoundReport)), "accuracy")
    inputs, classes = len(task.federation.test_labels), task.federation.num_classes
    return Replicas(
        indices=replicas,
        scores=np.empty((len(replicas), inputs, classes), dtype=np.float32),
        params=torch.empty(len(replicas), task.model.layout.dim, dtype=task.dtype),
        layout=task.model.layout,
        diagnostics={name: np.empty((len(replicas), task.mechanism.rounds)) for name in names},
    )


def _apart(task: Task, replicas: range, stacking: Stacking) -> Iterable[NDArray[np.int64]]:
    """Places of replicas that are trained at once, -1 where there is none: one after the other, by itself.

    Whoever joins or leaves changes the number of replicas and everybody's place among them. What a replica
    computes does not depend on either: nobody else is in its arrays. Models in closed form share arrays, but
    the lane follows from who a replica is, and so does the shape where it matters: see `Stacking`.
    """
    if task.local.solver == "sgd":
        return np.arange(len(replicas))[:, None]
    lane, work = (each[replicas.start : replicas.stop] for each in (task.units.who, task.units.sizes))
    return replace(stacking, size=_TOGETHER).stacks(work, lane, _TOGETHER)


def _train_block(
    task: Task,
    setting: Setting,
    shared: Tensor | None,
    cells: int,
    found: Replicas,
    places: NDArray[np.int64],
) -> None:
    """Train the replicas in some `places` of `found`, through all rounds, and write down what they become."""
    block = [found.indices[place] for place in _filled(places).tolist()]
    play, streams = executor_of(task.mechanism), _streams(task, block)
    norms = torch.full((len(block),), task.mechanism.clip_norm, dtype=torch.float64, device=task.device)
    state = State(round=0, params=_starts(task, block), clip_norms=norms)
    inputs = as_inputs(task.federation.test_features, torch.device(task.device), task.dtype)
    probe = np.linspace(0, len(inputs) - 1, min(_PROBES, len(inputs))).astype(np.int64)
    labels = task.federation.test_labels[probe]
    reports, learned = [], []
    for round in range(task.mechanism.rounds):
        if round > 0:
            scores = _predict(setting.model, state.params, inputs[probe], cells, setting.cores)
            learned.append(replica_accuracies(scores, labels))
        state, report = play(task.mechanism, setting, state, streams, shared if round == 0 else None)
        reports.append(report)
    most = cells if task.mechanism.apart else _WIDTH  # one model alone takes as many inputs as fit
    scores = _predict(setting.model, state.params, inputs, cells, setting.cores, most)
    learned.append(replica_accuracies(scores[:, probe], labels))
    real, own = places >= 0, places[places >= 0]
    found.scores[own] = scores[real]
    found.params[own] = state.params.cpu()[real]
    for name, values in (_diagnostics(reports) | {"accuracy": np.stack(learned, axis=1)}).items():
        found.diagnostics[name][own] = values[real]


def _filled(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places, and for an empty one somebody twice, of the same lane if there is one."""
    real = places >= 0
    if real.all():
        return places
    filler = np.where(real[:LANES], places[:LANES], np.resize(places[real], LANES))  # no lane grows long
    return np.where(real, places, np.resize(filler, len(places)))


def _setting(task: Task, sizes: Sizes, cores: int) -> Setting:
    device = torch.device(task.device)
    return Setting(
        model=task.model.to(device, task.dtype),
        users=users_on(task.units, device, task.dtype),
        local=task.local,
        seed=task.seed,
        stacking=Stacking(size=sizes.stack, rigid=device.type != "cpu" or not task.model.stacks),
        cores=cores,
        aggregation=alone(task.aggregation),
        population=population_of(task),
        expected_cohort=cohort_size(task),
        cohort_spread=task.mechanism.sampling.spread(population_of(task)),
        attack=task.attack,
    )


def _names(task: Task, block: Sequence[int]) -> list[int]:
    """What the random numbers of replicas are known by: their places, or the identities of their units."""
    return task.units.who[list(block)].tolist() if task.mechanism.apart else list(block)


def _streams(task: Task, block: Sequence[int]) -> Streams:
    device, secure, users = torch.device(task.device), task.secure_noise, task.units.who
    names = _names(task, block)
    pooled = names if task.mechanism.pooled else []
    drawn = [] if shares_first_round(task) or task.mechanism.pooled else names

    def streams(purpose: Purpose, replicas: Iterable[int]) -> list[Stream]:
        return [Stream(task.seed, purpose, replica, device, secure=secure) for replica in replicas]

    return Streams(
        cohorts=cohorts_of(task.mechanism, users, task.seed, block, secure=secure),
        noise=streams(Purpose.NOISE, names),
        batches=streams(Purpose.BATCH, pooled),
        lots=Lots(task.seed, Purpose.BATCH, drawn, secure=secure),
    )


def _starts(task: Task, block: Sequence[int]) -> Tensor:
    """Parameters `(replicas, dim)` that a block starts from."""
    if not task.own_start:
        return start_of(task, 0).expand(len(block), -1).contiguous()
    return torch.stack([start_of(task, name) for name in _names(task, block)])


def shared_by_replicas(
    task: Task, replicas: Iterable[int], given: Tensor | None = None, sizes: Sizes | None = None
) -> Tensor | None:
    """What all `replicas` start from: first updates (users, dim), or one release (dim,); None: nothing."""
    if not shares_first_round(task):
        return None
    if task.mechanism.one_release and (given is None or given.ndim == 2):
        if task.secure_noise:
            raise ValueError(
                "secure_noise = True: a release cannot be made again, so make it once, by released(task), "
                "and hand it in as first_updates"
            )
        return released(task, given, sizes)
    if given is None:
        users = drawn_users(task, replicas)
        return table_of(task, users, first_updates(task, sizes, users))
    if given.ndim == 1 and task.mechanism.one_release and len(given) == task.model.layout.dim:
        return given.double()
    expected = (task.federation.num_users, task.model.layout.dim)
    if tuple(given.shape) != expected:
        raise ValueError(f"first_updates has shape {tuple(given.shape)}, but (users, dim) is {expected}")
    return given.to(task.device if shared_fits(task) else "cpu", task.dtype)


def _diagnostics(reports: list[RoundReport]) -> dict[str, NDArray[np.float64]]:
    return {
        field.name: torch.stack([getattr(report, field.name) for report in reports], dim=1)
        .double()
        .cpu()
        .numpy()
        for field in fields(RoundReport)
    }
