"""Reading scores: never pickle, never all at once, and every fault has its own clear line."""

import pickle

import numpy as np
import pytest

from fedproof.certificates import ApproximateDP, certify
from fedproof.certificates.scores import check_labels, check_scores, input_parts, read_array
from fedproof.digests import fingerprint

KNOWN = ApproximateDP(epsilon=0.1, delta=1e-5, relation="replace")


def valid(dtype=np.float64, shape=(4, 3, 5), seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[2]), size=shape[:2]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("suffix", ["npy", "npz", "compressed.npz"])
def test_files_come_back_mapped(tmp_path, dtype, suffix):
    scores, path = valid(dtype), tmp_path / f"scores.{suffix}"
    writer = {"npy": np.save, "npz": np.savez, "compressed.npz": np.savez_compressed}[suffix]
    with path.open("wb") as file:
        writer(file, **({"arr": scores} if suffix == "npy" else {"scores": scores}))
    found = read_array(path)
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, scores)
    assert fingerprint(found) == fingerprint(scores)
    check_scores(found)


def test_an_archive_names_its_arrays(tmp_path):
    np.savez(tmp_path / "both.npz", scores=valid(), labels=np.zeros(3, dtype=int))
    assert read_array(tmp_path / "both.npz", name="labels").shape == (3,)
    np.savez(tmp_path / "odd.npz", first=valid(), second=valid())
    with pytest.raises(ValueError, match=r"first\.npy, second\.npy"):
        read_array(tmp_path / "odd.npz")


def test_files_that_are_refused(tmp_path):
    whole = tmp_path / "whole.npy"
    np.save(whole, valid())
    archive = tmp_path / "whole.npz"
    np.savez(archive, scores=valid())
    bad = {
        "cut.npy": (whole.read_bytes()[:-9], "damaged"),
        "header.npy": (whole.read_bytes()[:20], "damaged|cannot be read"),
        "cut.npz": (archive.read_bytes()[:-30], "cannot be read"),
        "pickle.npy": (pickle.dumps(valid()), "never opened"),
        "empty.npy": (b"", "never opened"),
        "text.npy": (b"0.5,0.5\n", "never opened"),
    }
    for name, (content, message) in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_array(tmp_path / name)
    with pytest.raises(ValueError, match="cannot be read"):
        read_array(tmp_path / "missing.npy")


class Trap:
    """Would leave a mark if it were ever unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_objects_inside_arrays_are_never_unpickled(tmp_path, suffix):
    path = tmp_path / f"trap.{suffix}"
    trap = np.array([[[Trap(), Trap()]]], dtype=object)
    (np.save if suffix == "npy" else np.savez)(path, trap)
    with pytest.raises(ValueError, match="not allowed"):
        read_array(path)


def broken(change):
    scores = valid()
    change(scores)
    return scores


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (valid()[0], "must be .replicas, inputs, classes."),
        (valid()[:1], "1 replicas, must have at least 2"),
        (valid()[:, :0], "0 inputs"),
        (np.ones((3, 2, 1)), "1 classes"),
        (np.ones((3, 2, 2), dtype=int), "type int64"),
        (np.ones((3, 2, 2), dtype=complex), "type complex"),
        (
            broken(lambda s: s.__setitem__((2, 1, 3), np.nan)),
            "nan at replica 2, input 1, class 3: not a finite",
        ),
        (broken(lambda s: s.__setitem__((2, 1, 3), np.inf)), "not a finite"),
        (broken(lambda s: s.__setitem__((3, 0, 2), -0.1)), r"-0.1 at replica 3, input 0, class 2: outside"),
        (
            broken(lambda s: s.__setitem__((1, 2), [2, -1, 0, 0, 0])),
            r"outside \[0, 1\]: confidences are wanted, not logits",
        ),
        (broken(lambda s: s.__setitem__((1, 2), [0.5, 0.2, 0, 0, 0])), "replica 1, input 2 sum to 0.7"),
    ],
)
def test_invalid_scores_are_never_certified(scores, message):
    with pytest.raises(ValueError, match=message):
        certify(scores, privacy=KNOWN)


def test_faults_far_into_a_file_are_found(monkeypatch):
    monkeypatch.setattr("fedproof.digests.PART_VALUES", 20)
    scores = valid(shape=(50, 3, 5))
    scores[47, 2] = [0.9, 0.2, 0, 0, 0]
    with pytest.raises(ValueError, match="replica 47, input 2"):
        check_scores(scores)


def test_parts_do_not_change_the_result(monkeypatch):
    scores = valid(np.float32, shape=(60, 11, 4))
    whole = certify(scores, privacy=KNOWN, method="mean")
    monkeypatch.setattr("fedproof.certificates.scores.PART_VALUES", 500)
    assert certify(scores, privacy=KNOWN, method="mean") == whole


def test_half_precision_rows_may_miss_one_by_rounding():
    check_scores(valid(np.float16, shape=(20, 50, 10)))
    with pytest.raises(ValueError, match="sum to"):
        check_scores(valid(np.float16, shape=(20, 50, 10)).astype(np.float64))


def test_two_classes_are_symmetric_after_rounding():
    scores = valid(np.float16, shape=(30, 20, 2))
    for _, part in input_parts(scores):
        assert np.array_equal(part.sum(axis=2), np.ones((30, 20)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "shape"),
        ([0.0, 1.0, 1.0], "whole numbers"),
        ([0, 1, 5], "5 at input 2 must be in 0, ..., 4"),
        ([0, -1, 2], "-1 at input 1"),
        ([[0, 1, 2]], "shape"),
    ],
)
def test_labels_are_checked(labels, message):
    with pytest.raises(ValueError, match=message):
        check_labels(labels, 3, 5)


def test_the_fingerprint_sees_type_shape_and_values():
    scores = valid()
    others = [scores.astype(np.float32), scores.reshape(2, 6, 5), scores + 1e-16, scores[::-1]]
    assert len({fingerprint(array) for array in [scores, *others]}) == 4 + (scores + 1e-16 != scores).any()
    assert fingerprint(np.asfortranarray(scores)) == fingerprint(scores)
    assert fingerprint(scores.astype(">f8")) == fingerprint(scores)
