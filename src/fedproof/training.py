"""Train and certify from Python: what a run does, without its directory."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.certificates import Certificate, Group, certify
from fedproof.certificates.api import settings_for
from fedproof.certificates.certificate import ONLY_METHOD
from fedproof.certificates.soundness import copied_models
from fedproof.digests import of_all, of_each
from fedproof.ensemble import Task, one_round, released, train_replicas
from fedproof.ensemble.task import unmet_by
from fedproof.mechanisms import Releases
from fedproof.mechanisms.codec import describe
from fedproof.models.averaged import Averaged
from fedproof.models.module import ModuleModel
from fedproof.release import Release
from fedproof.statements import Statement
from fedproof.threat import Relation, ThreatModel


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The replicas of a task.

    Attributes:
        task: what was trained.
        scores: `(replicas, inputs, classes)`, confidences on the test inputs.
        models: named parameters `(replicas, ...)`; none where one sum is all that was released.
        release: that sum.
    """

    task: Task
    scores: NDArray[np.floating]
    models: dict[str, Tensor]
    release: Release | None = None

    def certify(self, relation: Relation | str = Relation.REPLACE, **options: Any) -> Certificate:
        """The certificate of these replicas against units that are replaced, or that join.

        `options` are those of `fedproof.certify`: method, bound, failure_probability, max_size, ... The
        mechanism, the labels and what this training cannot promise are known here; a partition's votes are
        counted unless another method is asked for.
        """
        only = ONLY_METHOD.get(self.task.mechanism.releases)
        options = ({"method": only} if only else {}) | options
        threat = ThreatModel(unit=self.task.mechanism.unit, relation=Relation(relation))
        seed = Statement.of("no-seed" if self.task.secure_noise else "seed-known")
        labels = self.task.federation.test_labels
        models = [self.models] if self.models else []
        found = certify_task(
            self.task, self.scores, labels, threat=threat, seed=seed, models=models, **options
        )
        return replace(found, models_sha256=self.sha256)

    @property
    def sha256(self) -> str:
        """The digest of the models, or of the release."""
        if self.release is not None:
            return self.release.sha256
        each = of_each({name: values.cpu().numpy() for name, values in self.models.items()})
        return of_all(describe(self.task.mechanism), each)


def train(task: Task, replicas: int | None = None) -> Trained:
    """All replicas of a task, kept in memory.

    `replicas` may be left out where the mechanism says how many there are: one for each group of a partition.
    For ensembles that do not fit into memory, or must survive a crash, use `fedproof.run`.
    """
    known = task.mechanism.models(task.units.num_users)
    wanted = known if replicas is None else replicas
    if wanted is None:
        raise ValueError("replicas = None: say how many, a certificate gets tighter with more of them")
    check.count(replicas=wanted)
    if known is not None and wanted != known:
        raise ValueError(f"replicas = {wanted} must be {known}, as many as the mechanism makes")
    if task.mechanism.releases is Releases.MODEL:
        release = one_round.release(task)
        scores = release.scores(task.federation.test_features)[None]
        return Trained(task=task, scores=scores, models={}, release=release)
    first = released(task) if task.mechanism.one_release else None
    found = train_replicas(task, range(wanted), first_updates=first)
    return Trained(task=task, scores=found.scores, models=found.models)


def certify_task(
    task: Task,
    scores: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    *,
    threat: ThreatModel,
    seed: Statement,
    models: Iterable[Mapping[str, Tensor]] = (),
    **options: Any,
) -> Certificate:
    """The certificate of replicas that this package trained, with what their training cannot promise.

    `models` are those of the replicas, part by part, for what they have in common.

    `seed` says what nobody who was corrupted may have known. A partition keeps no secret: its votes are
    counted, and a unit touches one group, whoever knows which. Nor does one release: its noise cancels. What
    everybody's inputs went through, and the public data that it comes from, are taken for granted too.
    """
    secret = (seed,) if task.mechanism.releases is Releases.REPLICAS else ()
    seen = task.federation.encoded_by
    other = Relation.JOIN if threat.relation is Relation.REPLACE else Relation.REPLACE
    return certify(
        scores,
        labels,
        mechanism=task.mechanism,
        threat=threat,
        unmet=(*unmet_by(task, threat.relation), *copied_models(task.mechanism, models)),
        unmet_otherwise=unmet_by(task, other),
        assumptions=(
            *secret,
            *_assumed_of_start(task),
            *(seen.assumptions if seen else ()),
            *[Statement.of("tests-of-users")] * (task.federation.tests_of_users and labels is not None),
        ),
        **options,
    )


def _assumed_of_start(task: Task) -> tuple[Statement, ...]:
    """What is taken for granted of numbers in the model that no seed draws and no user of this training gave.

    Who could poison them would be in every model, whether drawn or not, in every group and in every replica.
    """
    model = task.model.one if isinstance(task.model, Averaged) else task.model
    found = []
    if isinstance(model, ModuleModel):
        found.append(Statement.of("module-begun"))
    elif (start := getattr(model, "start", None)) is not None and bool(start.any()):
        digest = hashlib.sha256(start.detach().cpu().numpy().tobytes()).hexdigest()
        found.append(Statement.of("weights-begun", sha256=digest))
    if task.federation.vectors is not None:
        found.append(Statement.of("vectors"))
    return tuple(found)


def check_certifiable(task: Task, *, threat: ThreatModel, **options: Any) -> None:
    """Refuse before training what `certify_task` would refuse after it."""
    settings_for(
        mechanism=task.mechanism,
        privacy=None,
        threat=threat,
        group=Group.TIGHT,
        unmet=(),
        unmet_otherwise=(),
        assumptions=(),
        **options,
    )
