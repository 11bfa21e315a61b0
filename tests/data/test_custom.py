import sys

import numpy as np
import pytest

from fedproof.data import even_share, load

MODULE = """
import numpy as np
from fedproof.data import Arrays, load
X, Y = np.arange(24.0).reshape(12, 2), np.arange(12) % 3
def arrays(): return X, Y, X[:3], Y[:3]
NAMES = dict(class_names=("a", "b", "c"), name="my")
def named(): return Arrays(features=X, labels=Y, test_features=X, test_labels=Y, **NAMES)
def federation(): return load("digits", users=7)
def float_labels(): return X, Y + 0.5, X, Y
def negative_labels(): return X, Y - 1, X, Y
def poisoned(): return X, np.r_[57, Y[1:]], X, Y
def huge_labels(): return X, Y + 10**12, X, Y
def one_class(): return X, Y * 0, X[:3], Y[:3] * 0
def from_one(): return X, Y + 1, X[:3], Y[:3] + 1
def short(): return X, Y[:5], X, Y
def text(): return ["a"] * 12, Y, X, Y
def ragged(): return [[1, 2], [3]], Y[:2], X, Y
def infinite(): return np.full((12, 2), np.inf), Y, X, Y
def nothing(): return None
value = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_data_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_data_module"
    sys.modules.pop("my_data_module", None)


def test_plain_arrays_are_partitioned(module):
    federation = load(f"{module}:arrays", users=4, classes=[2, 0])
    assert federation.class_names == ("2", "0")
    assert federation.sizes.tolist() == [2, 2, 2, 2]
    assert federation.features.dtype == np.float32
    assert sys.modules[module].X.flags.writeable  # the user's own array stays hers


def test_classes_that_stay_empty_are_said(module, caplog):
    assert load(f"{module}:from_one", users=4).num_classes == 4
    (line,) = caplog.messages
    assert line.startswith(f"{module}:from_one: the smallest label is 1, and classes below it stay empty")
    caplog.clear()
    load(f"{module}:arrays", users=4)
    assert not caplog.messages


def test_arrays_keep_their_names(module):
    assert load(f"{module}:named", users=3, classes=["c", "a"]).class_names == ("c", "a")
    assert load(f"{module}:named", users=3, partition="dirichlet").name == "my"


def test_one_poisoned_label_makes_no_class(module, caplog):
    # It made 58 of three: other models, started otherwise, for everybody.
    honest, poisoned = (load(f"{module}:{name}", users=3) for name in ("arrays", "poisoned"))
    assert poisoned.class_names == honest.class_names
    assert len(poisoned.labels) == len(honest.labels) - 1
    assert "1 training instances are left out, no test input has a label like theirs" in caplog.text


@pytest.mark.parametrize("users", [3, 5])
def test_an_instance_of_no_class_moves_no_other(module, users):
    # One less to deal out gave everybody other instances.
    honest, poisoned = (load(f"{module}:{name}", users=users) for name in ("arrays", "poisoned"))
    places = {row.tobytes(): known for row, known in zip(honest.features, honest.which, strict=True)}
    found = {row.tobytes(): known for row, known in zip(poisoned.features, poisoned.which, strict=True)}
    assert len(places.items() - found.items()) == 1
    assert found.items() < places.items()
    shares = (even_share(each, f"{module}:arrays", "iid") for each in (honest, poisoned))
    assert len(set(shares)) == 1


def test_a_federation_has_no_more_test_inputs_than_are_asked_for(module):
    whole, few = load(f"{module}:federation"), load(f"{module}:federation", test_limit=9)
    assert (len(few.test_features), len(few.test_labels)) == (9, 9) != whole.test_labels.shape * 2
    with pytest.raises(
        ValueError, match=r"minimum = 3: .*:federation returns a Federation, which is used as"
    ):
        load(f"{module}:federation", minimum=3)


def test_a_federation_is_used_as_it_is(module):
    assert load(f"{module}:federation").num_users == 7
    for arguments in ({"users": 8}, {"classes": [0, 1]}, {"partition": "iid"}):
        with pytest.raises(ValueError, match=r"returns a Federation of 7 users.*leave out"):
            load(f"{module}:federation", **arguments)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("float_labels", "labels must be one row of integers from 0, found float64"),
        ("negative_labels", "labels must be integers from 0, the smallest is -1"),
        ("huge_labels", "label 1000000000002 is no class"),
        ("one_class", "all labels of classes that are tested are 0: there must be two classes"),
        ("short", "12 features but 5 labels"),
        ("text", "features must be an array of numbers"),
        ("ragged", "features must be an array of numbers"),
        ("infinite", "features must be finite"),
        ("nothing", "returned NoneType; it must return"),
        ("value", "has no function 'value'"),
        ("missing", "has no function 'missing'"),
        ("", "has no function ''"),
        ("arrays", "comes without users; say how many"),
    ],
)
def test_bad_functions_are_named(module, function, message):
    with pytest.raises(ValueError, match=f"{module}.*{message}"):
        load(f"{module}:{function}")


@pytest.mark.parametrize("name", ["no_such_module:f", ":f", "..:f", "C:\\data"])
def test_bad_module_names_say_what_is_expected(name):
    with pytest.raises(ValueError, match=r"is not found; install it|must look like"):
        load(name)
