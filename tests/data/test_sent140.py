import csv
import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproof.data import load
from fedproof.data.sent140 import held_out, read_tweets

OFFICIAL = "training.1600000.processed.noemoticon.csv"


@pytest.fixture
def write_official(tmp_path, glove_folder):
    """Function that writes (polarity, account, text) rows as the published file; returns the data folder."""

    def write(rows):
        folder = tmp_path / "sent140"
        folder.mkdir(exist_ok=True)
        with (folder / OFFICIAL).open("w", encoding="latin-1", newline="") as out:
            writer = csv.writer(out, quoting=csv.QUOTE_ALL)
            for number, (polarity, account, text) in enumerate(rows):
                writer.writerow([polarity, number, "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", account, text])
        return tmp_path

    return write


ROWS = [("0", f"user{i % 3}", f"bad day, \u00e9 number {i}") for i in range(15)]
ROWS += [("4", f"user{i % 3}", "good\nday") for i in range(15)]


def test_accounts_are_users_and_a_fifth_of_each_is_for_testing(write_official):
    rows = [*ROWS, ("2", "user9", "the flight")]
    federation = load("sent140", data_dir=write_official(rows), test="shares")
    assert federation.name == "sent140"
    assert federation.class_names == ("negative", "positive")
    assert federation.sizes.tolist() == [8, 8, 8]
    assert len(federation.test_labels) == 6
    assert np.bincount(federation.labels).sum() + len(federation.test_labels) == 30  # neutral is left out
    assert federation.tests_of_users


def test_whole_accounts_are_for_testing(write_official):
    rows = [(polarity, f"user{i % 40}", "good day") for i, (polarity, *_) in enumerate(8 * ROWS)]
    federation = load("sent140", data_dir=write_official(rows))
    assert set(federation.sizes.tolist()) == {6}
    assert 24 <= federation.num_users < 40
    assert len(federation.test_labels) == 6 * (40 - federation.num_users)  # nothing of theirs is left out
    assert not federation.tests_of_users


def test_latin_1_and_line_breaks_in_texts_are_read(write_official):
    tweets = read_tweets(write_official(ROWS) / "sent140" / OFFICIAL)
    assert tweets.texts[0] == "bad day, \u00e9 number 0"
    assert tweets.texts[-1] == "good\nday"
    assert len(tweets.accounts) == 3


@settings(derandomize=True, deadline=None)
@given(owners=st.lists(st.integers(0, 6), min_size=1, max_size=120))
def test_held_out_share(owners):
    test = held_out(np.array(owners))
    for owner in set(owners):
        size = owners.count(owner)
        expected = max(1, size // 5) if size >= 2 else 0
        assert test[np.array(owners) == owner].sum() == expected


def test_pseudo_users_are_named_synthetic(write_official):
    federation = load("sent140-pseudo", data_dir=write_official(ROWS), users=4)
    assert federation.name == "sent140-pseudo (synthetic users)"
    assert federation.sizes.tolist() == [6, 6, 6, 6]
    with pytest.raises(ValueError, match=r"synthetic users.* comes without users"):
        load("sent140-pseudo", data_dir=write_official(ROWS), partition="natural")


def test_copy_without_accounts_only_serves_pseudo_users(tmp_path, glove_folder, write_official):
    folder = tmp_path / "sent140"
    folder.mkdir()
    lines = "label,text\n" + "0,bad day\n1,good day\n" * 10
    (folder / "tweets.csv.gz").write_bytes(gzip.compress(lines.encode()))
    federation = load("sent140-pseudo", data_dir=tmp_path, users=4)
    assert federation.num_users == 4
    assert len(federation.labels) + len(federation.test_labels) == 20
    nobody = write_official([(polarity, "", text) for polarity, _, text in ROWS])
    with pytest.raises(ValueError, match="has no accounts; use name = 'sent140-pseudo'"):
        load("sent140", data_dir=nobody)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"3","1","Mon","Q","ann","text"\n', "line 1: a label 0, 2 or 4"),
        ('"4","1","Mon","Q","ann"\n', "line 1: a label 0, 2 or 4"),
        ('"0","1","Mon","Q","ann","good"\n"positive","1","Mon","Q","ann","good"\n', "line 2: a label"),
        ("", "holds no tweets"),
        ('"2","1","Mon","Q","ann","good"\n', "holds no tweets"),
        ('"0","1","Mon","Q","ann","' + "x" * 200_000, "longer than this format allows"),
        ('"0","1","Mon","Q","ann","' + "x\n" * 100_000, "no CSV"),
    ],
    ids=lambda value: value[:30],
)
def test_bad_files_are_named(tmp_path, glove_folder, content, message):
    folder = tmp_path / "sent140"
    folder.mkdir()
    (folder / OFFICIAL).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=rf"noemoticon\.csv.*{message}") as caught:
        load("sent140", data_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_file_says_what_to_do(tmp_path, glove_folder):
    for name in ("sent140", "sent140-pseudo"):
        with pytest.raises(
            ValueError, match=r"noemoticon\.csv is not there; run `fedproof data fetch sent140`"
        ):
            load(name, data_dir=tmp_path)
