"""What accounting, certificates and readers give; `python -m tests.golden.values` writes `values.json`.

Write it again only for a change that is meant to move a number, and say in the same commit why it moves.
"""

import csv
import gzip
import hashlib
import json
import struct
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from dp_accounting import UnsupportedEventError

from fedproof.accounting import account, account_delta, ensemble_account, tradeoff
from fedproof.accounting.epsilon import replaced_epsilon, sum_epsilon, without_replacement_epsilon
from fedproof.certificates import ApproximateDP, certify, certify_means, inefficacy
from fedproof.certificates.scores import read_array
from fedproof.data import load
from fedproof.digests import fingerprint
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FedAvg,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Local,
    NoisyPartition,
    OneRound,
    Partition,
    PerLayer,
    Poisson,
    Quantile,
    Queries,
    Query,
    Smoothed,
    UserFedAvg,
    is_private,
)
from fedproof.mechanisms.uploads import Anchors, Ball, NonNegative, Pairs, Rows
from fedproof.threat import Relation, ThreatModel

FILE = Path(__file__).with_name("values.json")
TENTH, FEW = Poisson(probability=0.1), FixedSize(cohort=20, users=1000)
POINTS = (0.01, 0.3, 0.5, 0.9, 0.999)

MECHANISMS = {
    "user": UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=TENTH),
    "user, once": UserFedAvg(rounds=1, noise_multiplier=6.0, sampling=Poisson(probability=0.2)),
    "user, little noise": UserFedAvg(rounds=2, noise_multiplier=0.4, sampling=Poisson(probability=0.02)),
    "user, many rounds": UserFedAvg(rounds=500, noise_multiplier=2.0, sampling=Poisson(probability=0.01)),
    "user, everyone": UserFedAvg(rounds=2, noise_multiplier=20.0, sampling=Everyone()),
    "user, fixed": UserFedAvg(rounds=3, noise_multiplier=3.0, sampling=FEW),
    "user, layers": UserFedAvg(
        rounds=3, noise_multiplier=2.0, sampling=TENTH, clipping=PerLayer(num_layers=4)
    ),
    "user, quantile": UserFedAvg(rounds=3, noise_multiplier=2.0, sampling=TENTH, clipping=Quantile()),
    "fedsgd": InstanceFedSGD(rounds=4, noise_multiplier=1.5, sampling=FEW, batch_probability=0.3),
    "fedsgd, few": InstanceFedSGD(
        rounds=2, noise_multiplier=1.0, sampling=FixedSize(cohort=2, users=8), batch_probability=0.05
    ),
    "fedavg of instances": InstanceFedAvg(
        rounds=2, local_steps=3, noise_multiplier=4.0, batch_probability=0.2
    ),
    "fedavg of instances, whole": InstanceFedAvg(
        rounds=1, local_steps=1, noise_multiplier=4.0, batch_probability=1.0
    ),
    "cohort once": CohortOnce(rounds=4, noise_multiplier=3.0, sampling=FixedSize(cohort=10, users=1000)),
    "cohort once, Poisson": CohortOnce(rounds=4, noise_multiplier=3.0, sampling=TENTH),
    "cohort once, instances": CohortOnce(
        rounds=4, noise_multiplier=3.0, sampling=Poisson(probability=0.01), pooled=True, unit="instance"
    ),
    "bagging": Bagging(rounds=4, sampling=FixedSize(cohort=5, users=1000)),
    "bagging, Poisson": Bagging(rounds=4, sampling=Poisson(probability=0.01)),
    "partition": Partition(groups=25),
    "partition, instances": Partition(groups=25, pooled=True, unit="instance"),
    "noisy partition": NoisyPartition(groups=25, noise_multiplier=2.0, rounds=3),
    "one round, rows": OneRound(upload=Rows(features=16, classes=10), noise_multiplier=5.0),
    "one round, ball": OneRound(upload=Ball(features=16, classes=10), noise_multiplier=5.0),
    "one round, pairs": OneRound(upload=Pairs(features=16, classes=3), noise_multiplier=5.0),
    "one round, non-negative": OneRound(upload=NonNegative(anchors=8, classes=4), noise_multiplier=7.0),
    "one round, anchors": OneRound(upload=Anchors(anchors=8, classes=4), noise_multiplier=3.0),
    "one round, instances": OneRound(
        upload=Ball(features=16, classes=3), noise_multiplier=5.0, unit="instance"
    ),
    "one round, no noise": OneRound(upload=Ball(features=16, classes=3), noise_multiplier=0.0),
    "local": Local(upload=Ball(features=16, classes=10), noise_multiplier=1.0, honest=500),
    "local, anchors": Local(upload=Anchors(anchors=8, classes=4), noise_multiplier=2.0, honest=50),
    "smoothed": Smoothed(noise_multiplier=5.0, smoothing=20.0, population=1000),
    "no privacy": FedAvg(rounds=3, sampling=TENTH),
    "two queries": Queries(
        queries=(
            Query(noise_multiplier=2.0, sampling=TENTH, count=3),
            Query(noise_multiplier=9.0, sampling=Everyone(), count=1),
        )
    ),
    "owners drawn first": Queries(
        queries=(Query(noise_multiplier=4.0, sampling=TENTH, count=2, selection_probability=0.5),)
    ),
    "fixed and everyone": Queries(
        queries=(
            Query(noise_multiplier=4.0, sampling=FEW, count=2),
            Query(noise_multiplier=9.0, sampling=Everyone(), count=1),
        )
    ),
}


def found():
    """All values, as JSON has them."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "accounting": {name: _spent(mechanism) for name, mechanism in MECHANISMS.items()},
            "curves": {name: _curves(mechanism) for name, mechanism in MECHANISMS.items()},
            "certificates": dict(_certificates()),
            "costs": dict(_costs()),
            "readers": dict(_read(Path(folder))),
        }


def _or_refusal(function, *given):
    try:
        return function(*given)
    except (ValueError, UnsupportedEventError) as error:
        return type(error).__name__


def written(parts):
    """The text of the file: a line for each name."""
    lines = {
        part: ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        for part, values in parts.items()
    }
    return "{\n" + ",\n".join(f"{json.dumps(part)}: {{\n{text}\n}}" for part, text in lines.items()) + "\n}\n"


# --- accounting ---------------------------------------------------------------------------------------------


def _spent(mechanism):
    return {
        "epsilon": {str(delta): _or_refusal(account, mechanism, delta) for delta in (0.0029, 1e-6)},
        "delta": {str(epsilon): _or_refusal(account_delta, mechanism, epsilon) for epsilon in (0.5, 3.0)},
        "without replacement": _or_refusal(without_replacement_epsilon, mechanism, 0.0029),
        "replaced": _or_refusal(replaced_epsilon, mechanism, 0.0029) if is_private(mechanism) else None,
        "sum": _or_refusal(sum_epsilon, mechanism, 0.0029),
        "ensemble": _or_refusal(ensemble_account, mechanism, 0.0029, 10),
        "queries": [query.noise_multiplier for query in mechanism.queries],
    }


def _curves(mechanism):
    return {
        f"{relation} {size}": _or_refusal(_curve, mechanism, relation, size)
        for relation, size in product(Relation, (1, 7))
    }


def _curve(mechanism, relation, size):
    curve = tradeoff(mechanism, ThreatModel(unit=mechanism.unit, relation=relation), size)
    return {"lower": curve.lower(POINTS).tolist(), "upper": curve.upper(POINTS).tolist()}


# --- certificates of given scores ---------------------------------------------------------------------------


def confidences(classes, replicas=120, inputs=6):
    """Scores (replicas, inputs, classes) of falling confidence; the last input is undecided."""
    generator = np.random.default_rng(classes)
    strengths = [*np.linspace(40, 2, inputs - 1), 1.0]
    draws = [generator.dirichlet([most, *[1] * (classes - 1)], size=replicas) for most in strengths]
    return np.stack(draws, axis=1).astype(np.float32)


def whole_numbers(replicas, inputs, classes):
    """Scores of groups, or of one release, counted in units."""
    return np.random.default_rng(5).uniform(0, 60, (replicas, inputs, classes))


_LABELS = [0, 0, 0, 1, 0, 0]
_JOIN, _REPLACE = (ThreatModel(unit="user", relation=relation) for relation in ("join", "replace"))
_KNOWN = ApproximateDP(epsilon=0.3, delta=1e-5, relation="join")
_BOUNDS = {
    "paper": ("betting", "empirical-bernstein", "hoeffding", "none"),
    "renyi": ("clopper-pearson", "betting", "hoeffding", "none"),
    "mean": ("betting", "empirical-bernstein", "hoeffding", "none"),
    "margin": ("betting", "levels"),
    "vote": ("clopper-pearson", "betting", "hoeffding", "none"),
}


def _certificates():
    user, quiet = MECHANISMS["user"], UserFedAvg(rounds=1, noise_multiplier=30.0, sampling=Everyone())
    for classes, (method, bounds) in product((2, 3), _BOUNDS.items()):
        scores = confidences(classes)
        for bound, threat, (name, mechanism) in product(
            bounds, (_JOIN, _REPLACE), (("user", user), ("quiet", quiet))
        ):
            options = {"delta": 0.0029} if method == "paper" else {}
            asked = dict(mechanism=mechanism, threat=threat, method=method, bound=bound, **options)
            yield f"{classes} {method} {bound} {threat.relation} {name}", _certified(scores, **asked)
    scores = confidences(3)
    once = {"mechanism": MECHANISMS["bagging"], "threat": _REPLACE}
    more = {
        "epsilon alone": {"privacy": _KNOWN, "method": "mean"},
        "epsilon alone, paper": {"privacy": _KNOWN, "method": "paper"},
        "epsilon alone, join": {"privacy": _KNOWN, "method": "margin", "threat": _JOIN},
        "published spending": {"mechanism": quiet, "method": "mean", "spending": "paper"},
        "published group": {"mechanism": quiet, "method": "renyi", "group": "paper"},
        "sequential": {"mechanism": quiet, "method": "mean", "sequential": True},
        "served": {"mechanism": quiet, "method": "vote", "served": 0.05},
        "simultaneous": {"mechanism": quiet, "method": "mean", "simultaneous": True},
        "pairwise": {"mechanism": quiet, "method": "vote", "rule": "pairwise"},
        "run-off": {"mechanism": quiet, "method": "vote", "rule": "run-off"},
        "run-off of means": {"mechanism": quiet, "method": "mean", "rule": "run-off"},
        **{f"bagging {method}": {**once, "method": method} for method in ("mean", "margin", "vote")},
        "fixed": {"mechanism": MECHANISMS["user, fixed"], "method": "margin"},
        "smoothed": {"mechanism": MECHANISMS["smoothed"], "method": "margin"},
        "small size": {"mechanism": quiet, "method": "margin", "max_size": 2},
    }
    for name, asked in more.items():
        yield name, _certified(scores, **asked)
    instances = ThreatModel(unit="instance", relation="replace")
    yield "instances", _certified(scores, mechanism=MECHANISMS["fedsgd"], threat=instances)
    for method in ("mean", "vote", "renyi", "paper"):
        options = {"delta": 0.0029} if method == "paper" else {}
        exact = certify_means(scores.mean(axis=0), _LABELS, mechanism=quiet, method=method, **options)
        yield f"means {method}", _columns(exact)
    groups, one = whole_numbers(25, 6, 3), whole_numbers(1, 6, 3)
    for rule, threat in product(("plurality", "pairwise", "run-off"), (_JOIN, _REPLACE)):
        asked = {"mechanism": MECHANISMS["partition"], "method": "vote", "rule": rule, "threat": threat}
        yield (
            f"partition {rule} {threat.relation}",
            _certified(groups / groups.sum(2, keepdims=True), **asked),
        )
    for name, threat in product(("one round, rows", "one round, anchors", "local"), (_JOIN, _REPLACE)):
        asked = {"mechanism": MECHANISMS[name], "method": "exact", "threat": threat}
        yield f"{name} {threat.relation}", _certified(one, **asked)


def _certified(scores, **asked):
    return _or_refusal(lambda: _columns(certify(scores, _LABELS, **asked)))


def _columns(certificate):
    names = ("prediction", "certified_size", "top_lower", "rival_upper", "real_size")
    columns = {name: getattr(certificate, name) for name in names}
    return columns | {"accuracy": certificate.accuracy, "sound": certificate.sound}


def _costs():
    costs = np.random.default_rng(3).beta(4, 2, 200)
    quiet = UserFedAvg(rounds=1, noise_multiplier=30.0, sampling=Everyone())
    methods = {
        "paper": ("betting", "hoeffding"),
        "mean": ("betting", "hoeffding", "none"),
        "distribution": ("levels",),
    }
    for method, bounds in methods.items():
        for bound, negative, threat in product(bounds, (False, True), (_JOIN, _REPLACE)):
            result = inefficacy(
                -costs if negative else costs,
                cost_bound=0.9,
                mechanism=quiet,
                method=method,
                bound=bound,
                threat=threat,
                negative=negative,
                sizes=(0, 1, 5),
                tau=2.0,
                delta=0.0029 if method == "paper" else None,
            )
            names = ("cost", "lower", "upper", "needed", "clipped_share", "sound")
            at = f"{method} {bound} {'negative' if negative else 'positive'} {threat.relation}"
            yield at, {name: getattr(result, name) for name in names}


# --- readers ------------------------------------------------------------------------------------------------


def _read(folder):
    """Files of each format, written here, and what is read from them."""
    yield "digits", _held(load("digits", classes=[0, 1], users=12, seed=3))
    _write_leaf(folder / "leaf" / "small")
    yield "leaf", _held(load("leaf/small", data_dir=folder, test="shares"))
    _write_idx(folder / "squares")
    for way in ("iid", "dirichlet"):
        yield f"idx {way}", _held(load("idx/squares", data_dir=folder, users=4, partition=way, seed=1))
    _write_cifar(folder / "cifar-10-batches-bin")
    yield "cifar10", _held(load("cifar10", data_dir=folder, users=5, classes=[1, 7]))
    yield "table", _held(load(_table(folder / "table.csv"), users=3))
    scores = confidences(3)
    for kind in (np.float16, np.float32, np.float64):
        np.save(folder / "scores.npy", scores.astype(kind))
        yield f"scores {np.dtype(kind)}", fingerprint(read_array(folder / "scores.npy"))
    np.savez(folder / "scores.npz", scores=scores)
    yield "scores npz", fingerprint(read_array(folder / "scores.npz"))


def _held(federation):
    arrays = ("features", "labels", "which", "test_features", "test_labels")
    digests = {name: _digest(getattr(federation, name)) for name in arrays}
    return digests | {
        "name": federation.name,
        "users": federation.num_users,
        "classes": list(federation.class_names),
        "sizes": federation.sizes.tolist(),
        "left out": federation.left_out,
    }


def _digest(array):
    found = np.ascontiguousarray(array)
    return [str(found.dtype), list(found.shape), hashlib.sha256(found.tobytes()).hexdigest()[:16]]


def _write_leaf(folder):
    def part(users):
        return {
            "users": list(users),
            "num_samples": [len(rows) for rows in users.values()],
            "user_data": {
                user: {"x": [[row, row / 2] for row in rows], "y": [row % 3 for row in rows]}
                for user, rows in users.items()
            },
        }

    parts = {
        "train": {"ann": [0, 1, 2], "bob": [3, 4], "eve": [5, 6, 7, 8]},
        "test": {"ann": [3], "tim": [1, 5]},
    }
    for name, users in parts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "data.json").write_text(json.dumps(part(users)))


def _write_idx(folder):
    folder.mkdir()
    for part, count in (("train", 40), ("t10k", 20)):
        images = np.broadcast_to(np.arange(count)[:, None, None], (count, 6, 5))
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            packed = gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(packed)


def _write_cifar(folder):
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = np.random.default_rng(len(name)).integers(0, 256, (20, 3073)).astype(np.uint8)
        records[:, 0] = np.arange(20) % 10
        records.tofile(folder / f"{name}.bin")


def _table(path):
    """The name of a function that reads a table of numbers whose first column is the label."""
    rows = [[i % 3, i, i * i / 7] for i in range(30)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    module = type(sys)("golden_table")

    def arrays():
        with path.open(newline="") as file:
            table = np.array(list(csv.reader(file)), dtype=np.float32)
        return table[:24, 1:], table[:24, 0].astype(np.int64), table[24:, 1:], table[24:, 0].astype(np.int64)

    module.arrays = arrays
    sys.modules["golden_table"] = module
    return "golden_table:arrays"


if __name__ == "__main__":
    FILE.write_text(written(found()))
