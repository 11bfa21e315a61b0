import json
from functools import partial

import numpy as np
import pytest

from fedproof.data import load as load_data
from fedproof.data.text import Encoding, encode, read_vectors, tokens
from fedproof.threat import Relation, Unit

load = partial(load_data, test="shares")  # of three users none may be set aside
TRAIN = {
    "ann": [("Good day!", 1), ("the flight", 0)],
    "bob": [("bad bad flight", 0)],
    "cem": [("good good good", 1), ("zzz day", 1), ("bad", 0)],
}
TEST = {"ann": [("bad day", 0)], "cem": [("good", 1), ("the day", 1)]}


def test_vectors_of_wanted_words_come_in_the_files_order(glove_folder):
    vocabulary = read_vectors(glove_folder / "glove" / "glove.6B.50d.txt", ["day", "good", "unheard"])
    assert vocabulary.words == ("good", "day")
    assert vocabulary.vectors.dtype == np.float32
    np.testing.assert_array_equal(vocabulary.vectors[:, 0], [0, 0, 1.5, 3.5])


def test_padding_stands_in_front_and_long_texts_keep_their_first_words(glove_folder):
    encoding = Encoding(vectors=glove_folder / "glove" / "glove.6B.50d.txt", length=3)
    rows, test_rows, vocabulary = encode(["Good day", "the good zzz bad", "@ann"], ["bad"], encoding)
    token = {word: index + 2 for index, word in enumerate(vocabulary.words)}
    assert rows.dtype == np.int32
    assert rows.tolist() == [[0, token["good"], token["day"]], [token["the"], token["good"], 1], [0, 0, 0]]
    assert test_rows.tolist() == [[0, 0, token["bad"]]]
    assert not vocabulary.vectors[:2].any()


def test_a_words_vector_does_not_depend_on_other_texts(glove_folder):
    # The guarantee is about one user's texts: they must not change how others' texts are read.
    encoding = Encoding(vectors=glove_folder / "glove" / "glove.6B.50d.txt", length=4)
    alone, _, few = encode(["good zzz day"], ["bad"], encoding)
    together, _, many = encode(["good zzz day", "the bad flight ! zzz"], ["bad"], encoding)
    np.testing.assert_array_equal(few.vectors[alone[0]], many.vectors[together[0]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Don't", ["don", "'t"]),
        ("so_so #fail :)", ["so", "so", "#", "fail", ":", ")"]),
        ("see www.a.b/c?d and HTTPS://x.y", ["see", "and"]),
        ("caf\u00e9 \ud800", ["caf\u00e9"]),
    ],
)
def test_tokens(text, expected):
    assert [token for token in tokens(text) if token != "\ud800"] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 1 2\ngood 1\n", "line 2: 2 finite numbers"),
        ("the 1 2\ngood 1 x\n", "line 2: 2 finite numbers"),
        ("the 1 2\ngood 1 nan\n", "line 2: 2 finite numbers"),
        ("the 1 2\ngood 1 1e300\n", "line 2: 2 finite numbers"),
        ("", "holds none of the 1 words"),
        ("good " + "1" * 200_000, "longer than this format allows"),
    ],
    ids=lambda value: value[:30],
)
def test_bad_vector_files_are_named(tmp_path, content, message):
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"vectors\.txt.*{message}"):
        read_vectors(path, ["good"])
    path.write_bytes(b"\xff\xfe 1 2\n")
    with pytest.raises(ValueError, match=r"vectors\.txt is no utf-8 text"):
        read_vectors(path, ["good"])


def test_words_with_spaces_are_passed_over(tmp_path):
    path = tmp_path / "vectors.txt"  # as in glove.840B
    path.write_text("the 1 2\n. . . 3 4\n. 5 6\n")
    assert read_vectors(path, ["."]).vectors[2:].tolist() == [[5, 6]]


def test_leaf_users_are_the_accounts(write_leaf, glove_folder):
    federation = load("leaf/tweets", data_dir=write_leaf("tweets", TRAIN, TEST), length=4)
    assert federation.sizes.tolist() == [2, 1, 3]
    assert federation.labels.tolist() == [1, 0, 0, 1, 1, 0]
    assert federation.features.shape == (6, 4)
    assert federation.features.dtype == np.int32
    assert federation.test_labels.tolist() == [0, 1, 1]
    assert federation.vectors is not None
    assert federation.vectors.shape == (8, 4)
    assert federation.name == "leaf/tweets"


def test_places_in_a_leaf_folder_are_no_identities_of_instances(write_leaf, glove_folder):
    federation = load("leaf/tweets", data_dir=write_leaf("tweets", TRAIN, TEST), length=4)
    assert federation.user_ids is not None
    assert federation.instance_ids is None  # so nothing is proved about instances that join


def test_leaf_tests_belong_to_the_users_who_are_kept(write_leaf, glove_folder):
    folder = write_leaf("tweets", TRAIN, {**TEST, "eve": [("day", 1)]})
    federation = load("leaf/tweets", data_dir=folder, minimum=3)
    assert federation.sizes.tolist() == [3]
    assert federation.test_labels.tolist() == [1, 1, 1]  # cem's two, and eve's, who trains nobody's model
    assert load("leaf/tweets", data_dir=folder, partition="iid", users=2).sizes.tolist() == [3, 3]


def test_leaf_pseudo_users_are_named_synthetic(write_leaf, glove_folder):
    users = {f"pseudo{i}": rows for i, rows in enumerate(TRAIN.values())}
    federation = load("leaf/tweets", data_dir=write_leaf("tweets", users, users))
    assert federation.name == "leaf/tweets (synthetic users)"


def test_leaf_sentiment140_keeps_the_text_in_the_fifth_field(write_leaf, glove_folder):
    users = {u: [(["1", "Mon", "NO_QUERY", u, text], y) for text, y in r] for u, r in TRAIN.items()}
    plain = load("leaf/a", data_dir=write_leaf("a", TRAIN, TEST))
    listed = load("leaf/b", data_dir=write_leaf("b", users, TEST))
    np.testing.assert_array_equal(plain.features, listed.features)


def test_a_label_that_one_leaf_user_makes_up_is_no_class(write_leaf):
    # It changed how many classes there are, and with -3 the numbers of all others.
    honest = {"ann": [([0.0], 0), ([1.0], 1)], "bob": [([2.0], 1)]}
    test = {"ann": [([0.5], 0), ([1.5], 1)]}
    folder = write_leaf("honest", honest, test)
    expected = load("leaf/honest", data_dir=folder)
    write_leaf("poisoned", honest | {"eve": [([9.0], 57), ([9.0], -3), ([8.0], 1)]}, test)
    found = load("leaf/poisoned", data_dir=folder)
    assert found.class_names == expected.class_names == ("0", "1")
    assert found.labels.tolist() == [*expected.labels, 1]
    assert found.sizes.tolist() == [2, 1, 1]
    write_leaf("all", honest | {"eve": [([9.0], 57)]}, test)
    with pytest.raises(ValueError, match=r"users \[2\] hold no instance of a class that is tested"):
        load("leaf/all", data_dir=folder)


def test_an_instance_of_no_class_moves_no_other_of_its_leaf_user(write_leaf):
    # Random numbers are drawn by places, and one poisoned instance moved those of all behind it.
    rows = [([float(place)], place % 2) for place in range(5)]
    folder = write_leaf("honest", {"ann": rows, "bob": rows}, {"ann": rows})
    expected = load("leaf/honest", data_dir=folder)
    write_leaf("poisoned", {"ann": [([9.0], 57), *rows[1:]], "bob": rows}, {"ann": rows})
    found = load("leaf/poisoned", data_dir=folder)
    assert expected.instance_ids is None
    np.testing.assert_array_equal(found.which, expected.which[1:])
    np.testing.assert_array_equal(found.features, expected.features[1:])
    assert found.left_out == 1
    assert expected.tested_only


def held(federation, unit):
    """What each unit holds, and which number it is known by."""
    ids = federation.who.repeat(federation.sizes)
    if unit is Unit.INSTANCE:
        rows = zip(ids, federation.which, federation.features[:, 0], federation.labels, strict=True)
        return {(int(user), int(which)): (float(x), int(y)) for user, which, x, y in rows}
    parts = (np.split(each, federation.offsets[1:-1]) for each in (federation.features, federation.labels))
    return {int(user): repr(rows) for user, *rows in zip(federation.who, *parts, strict=True)}


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"users": 4},
        {"public": 5},
        {"minimum": 2},
        {"minimum": 2, "users": 4},
        {"classes": [1, 0]},
        {"classes": [1, 0], "users": 3},
        {"partition": "iid", "users": 3},
        {"partition": "iid", "users": 3, "classes": [1, 0]},
        {"partition": "degree", "users": 3, "degree": 0.9},
        {"partition": "dirichlet", "users": 3},
    ],
    ids=repr,
)
def test_one_unit_changes_no_other_where_all_is_settled(write_leaf, options, unit, relation):
    """Whatever one unit of a folder holds, the others are who they were, or the federation says so."""
    if unit is Unit.USER and "partition" in options:
        return  # users come after the dealing, and so does what they poison
    drawn = np.random.default_rng(1)
    test = {"ann": [([float(label)], label) for label in range(3)]}
    for number in range(12):
        users = {
            name: [([float(drawn.random())], int(drawn.integers(3))) for _ in range(drawn.integers(2, 6))]
            for name in "abcdefg"
        }
        other = {name: list(rows) for name, rows in users.items()}
        if relation is Relation.JOIN:
            if unit is Unit.INSTANCE:
                other["c"].insert(0, ([7.0], 1))
            else:
                other = {"a": users["a"], "new": [([7.0], 1), ([7.0], 0), ([7.0], 0)]} | other
        elif unit is Unit.INSTANCE:
            other["c"][0] = ([7.0], (0, 1, 2, 57)[number % 4])
        else:
            other["c"] = [([7.0], (0, 1, 2, 57)[number % 4])] * (number // 4) + [([7.0], number % 3)]
        folder = write_leaf("one", users, test)
        write_leaf("two", other, test)
        one, two = (load(f"leaf/{name}", data_dir=folder, **options) for name in ("one", "two"))
        nameless = (unit, relation) == (Unit.INSTANCE, Relation.JOIN) and one.instance_ids is None
        if (unit, relation) not in one.unsettled and not nameless:
            assert len(held(one, unit).items() ^ held(two, unit).items()) <= 2


def test_leaf_numbers_in_many_files(write_leaf):
    test = {"f1": [([1, 1], 3), ([1, 1], 10)], "f2": [([7, 7], 61)]}
    folder = write_leaf("femnist", {"f1": [([0.5, 1], 10), ([0, 0], 3)]}, test)
    second = {"users": ["f2"], "num_samples": [1], "user_data": {"f2": {"x": [[7, 8]], "y": [61]}}}
    (folder / "leaf" / "femnist" / "train" / "more.json").write_text(json.dumps(second))
    federation = load("leaf/femnist", data_dir=folder)
    assert federation.class_names == ("3", "10", "61")
    assert federation.features.dtype == np.float32
    assert federation.features.tolist() == [[0.5, 1], [0, 0], [7, 8]]
    assert load("leaf", data_dir=folder / "leaf" / "femnist").num_users == 2
    chosen = load("leaf/femnist", data_dir=folder, classes=[10, "3"])
    assert chosen.labels.tolist() == [0, 1]
    assert chosen.num_users == 1  # f2 holds nothing of this task


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": [2, 1, 4]}, "user 'cem' has 3 features and 3 labels, num_samples says 4"),
        ({"num_samples": [2, 1]}, "3 users, 2 counts and 3 entries"),
        ({"num_samples": None}, "is no LEAF file"),
        ({"num_samples": {"ann": 2, "bob": 1, "cem": 3}}, "is no LEAF file"),
        ({"users": ["ann", "bob"], "num_samples": [2, 1]}, "2 users, 2 counts and 3 entries"),
        ({"users": ["ann", "bob", "dan"]}, "user 'dan' has no lists x and y"),
        ({"users": ["ann", "bob", "ann"], "num_samples": [2, 1, 2]}, "user 'ann' occurs twice"),
        ({"users": [1, 2, 3]}, "user 1 has no lists x and y"),
        ({"user_data": []}, "is no LEAF file"),
        ({"user_data": {u: {"x": "ab", "y": [0, 1]} for u in TRAIN}}, "user 'ann' has no lists x and y"),
    ],
)
def test_leaf_files_whose_counts_disagree_are_named(write_leaf, glove_folder, changes, message):
    folder = write_leaf("tweets", TRAIN, TEST, **changes)
    with pytest.raises(ValueError, match=rf"data\.json.*{message}.*preprocess") as caught:
        load("leaf/tweets", data_dir=folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"ann": [], "bob": [("bad", 0)]}, r"users \['ann'\] hold no data"),
        ({"ann": []}, "holds no instances"),
        ({"ann": [("bad", "0")]}, "label '0' is no integer"),
        ({"ann": [("bad", 0.5)]}, r"label 0\.5 is no integer"),
        ({"ann": [("bad", True)]}, "label True is no integer"),
        ({"ann": [("bad", 10**30)]}, "label 1000000000000000000000000000000 is no integer"),
        ({"ann": [("bad", 0), (3, 1)]}, "feature '3' is no text"),
        ({"ann": [([1, 2], 0), ([1], 1)]}, "lists of numbers of one shape"),
        ({"ann": [([1, float("nan")], 0)]}, "finite numbers"),
        ({"ann": [(3, 0)]}, "lists of finite numbers"),
        ({"ann": [({}, 0)]}, "lists of numbers of one shape"),
        ({"ann": [([1, 2], 0)]}, "features differ in kind or shape"),
    ],
)
def test_bad_leaf_instances_are_named(write_leaf, glove_folder, users, message):
    folder = write_leaf("tweets", users, TEST)
    with pytest.raises(ValueError, match=rf"leaf/tweets/t.*{message}"):
        load("leaf/tweets", data_dir=folder)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b"[]", b"null"], ids=lambda value: value[:5]
)
def test_leaf_files_that_are_no_json_are_named(write_leaf, content):
    folder = write_leaf("tweets", TRAIN, TEST)
    (folder / "leaf" / "tweets" / "train" / "data.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.json is no (JSON|utf-8|LEAF)"):
        load("leaf/tweets", data_dir=folder)


def test_missing_leaf_folder_and_vectors_say_what_to_do(write_leaf):
    folder = write_leaf("tweets", TRAIN, TEST)
    with pytest.raises(ValueError, match=r"leaf/none/train holds no JSON file; a LEAF data set needs"):
        load("leaf/none", data_dir=folder)
    with pytest.raises(
        ValueError, match=r"glove\.6B\.50d\.txt is not there; run `fedproof data fetch glove`"
    ):
        load("leaf/tweets", data_dir=folder)
    with pytest.raises(ValueError, match=r"mine\.txt is not there"):
        load("leaf/tweets", data_dir=folder, vectors="mine.txt")


def test_length_must_be_a_count(load_arrays, write_leaf, glove_folder):
    with pytest.raises(ValueError, match="length = 0"):
        load_arrays("leaf/tweets", data_dir=write_leaf("tweets", TRAIN, TEST), length=0)
