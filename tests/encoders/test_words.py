"""The mean of public word vectors, of texts and of token ids."""

import json
import shutil
from functools import partial

import numpy as np
import pytest

from fedproof.encoders import load as load_data
from fedproof.encoders import named

load = partial(load_data, test="shares")  # of three users none may be set aside
WORDS = ["the", "good", "bad", "day"]


@pytest.fixture
def texts(folder):
    """Tweets of three accounts in LEAF's format, and vectors of four words."""
    (folder / "glove").mkdir()
    lines = [f"{word} {i + 0.5} {i * i} {-i}" for i, word in enumerate(WORDS)]
    (folder / "glove" / "glove.6B.50d.txt").write_text("\n".join(lines) + "\n")
    rows = {"ann": ["good day", "bad day"], "bob": ["the good", "nobody knows"], "cid": ["bad bad day", ""]}
    for part in ("train", "test"):
        data = {
            "users": list(rows),
            "num_samples": [2] * 3,
            "user_data": {
                user: {"x": [[str(i), "", "", "", text, ""] for i, text in enumerate(said)], "y": [0, 1]}
                for user, said in rows.items()
            },
        }
        (folder / "leaf" / "tweets" / part).mkdir(parents=True)
        (folder / "leaf" / "tweets" / part / "data.json").write_text(json.dumps(data))
    return "leaf/tweets"


def test_a_text_is_the_mean_of_its_known_words(texts):
    seen = load(texts, encoder="glove-mean")
    good, bad, day = ([i + 0.5, i * i, -i] for i in (1, 2, 3))
    np.testing.assert_allclose(seen.features[0], np.mean([good, day], axis=0))
    np.testing.assert_allclose(seen.features[3], 0)  # no word has a vector
    np.testing.assert_allclose(seen.features[4], np.mean([bad, bad, day], axis=0), rtol=1e-6)
    assert seen.vectors is None
    assert seen.test_texts[2] == "the good"  # reports still show what people read
    assert len(seen.encoded_by.weights_sha256) == 64
    assert seen.user_ids.tolist() == load(texts).user_ids.tolist()


def test_another_file_of_vectors_gives_other_features(texts, folder):
    first = load(texts, encoder="glove-mean")
    path = folder / "glove" / "glove.6B.50d.txt"
    path.write_text(path.read_text().replace("day 3.5", "day 4.5"))
    second = load(texts, encoder="glove-mean")
    assert second.encoded_by != first.encoded_by
    assert not np.array_equal(first.features, second.features)


def test_fewer_words_are_other_features(texts):
    short = load(texts, encoder="glove-mean", length=1)
    np.testing.assert_allclose(short.features[0], [1.5, 1, -1])
    assert not np.array_equal(short.features, load(texts, encoder="glove-mean").features)


def test_token_ids_have_the_same_features_as_their_texts(texts, folder, monkeypatch):
    (folder / "my_tokens.py").write_text(
        "import fedproof.data\ndef ids(): return fedproof.data.load('leaf/tweets', test='shares')"
    )
    monkeypatch.syspath_prepend(folder)
    seen = load("my_tokens:ids", encoder="glove-mean")
    np.testing.assert_allclose(seen.features, load(texts, encoder="glove-mean").features, rtol=1e-6)


def test_encoders_are_for_what_they_are_made_for(texts, module):
    with pytest.raises(ValueError, match=r"encoder = 'hog' needs grey images.*leaf/tweets has texts"):
        load(texts, encoder="hog")
    with pytest.raises(
        ValueError, match=r"encoder = 'efficientnet-lite2' needs images.*leaf/tweets has texts"
    ):
        load(texts, encoder="efficientnet-lite2")
    with pytest.raises(ValueError, match=r"'glove-mean' needs texts.*digits has inputs of shape \(64,\)"):
        load("digits", encoder="glove-mean")
    with pytest.raises(ValueError, match=r"is an nn.Module, which takes no texts"):
        load(texts, encoder=f"{module}:network")
    with pytest.raises(ValueError, match=r"project = 1 needs numbers.*choose an encoder"):
        load(texts, public=2, project=1)


def test_a_function_gets_texts_as_they_are(texts, folder, monkeypatch):
    (folder / "my_lengths.py").write_text(
        "import numpy as np\ndef f(): return lambda rows: np.array([[len(t)] for t in rows])"
    )
    monkeypatch.syspath_prepend(folder)
    assert load(texts, encoder="my_lengths:f").features[:, 0].tolist() == [8, 7, 8, 12, 11, 0]


def test_how_a_text_sounds_stands_beside_the_mean_of_its_words(texts, monkeypatch):
    seen, plain = load(texts, encoder="glove-vader"), load(texts, encoder="glove-mean")
    np.testing.assert_array_equal(seen.features[:, :-3], plain.features)
    negative, positive, compound = seen.features[:, -3:].T
    good_day, bad_day, _, nothing_said = range(4)
    assert compound[good_day] > 0 > compound[bad_day]
    assert positive[good_day] > 0
    assert negative[bad_day] > 0
    assert not seen.features[nothing_said].any()
    assert seen.encoded_by.weights_sha256 != plain.encoded_by.weights_sha256
    monkeypatch.setattr(named, "VADER_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"have the digest \w+, must be 0+; install vaderSentiment==3.3.2"):
        load(texts, encoder="glove-vader")


def test_how_a_text_sounds_needs_the_text(texts, folder, monkeypatch):
    (folder / "my_tokens.py").write_text(
        "import fedproof.data\ndef ids(): return fedproof.data.load('leaf/tweets', test='shares')"
    )
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ValueError, match=r"'glove-vader' needs texts, leaf/tweets has inputs of shape"):
        load("my_tokens:ids", encoder="glove-vader")
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package vaderSentiment: .*fedproof\[encoders\]"):
        load(texts, encoder="glove-vader")


def test_public_instances_may_come_from_other_data(texts, folder):
    shutil.copytree(folder / "leaf" / "tweets", folder / "leaf" / "others")
    alone = load(texts, encoder="glove-mean")
    seen = load(texts, encoder="glove-mean", public="leaf/others")
    np.testing.assert_array_equal(seen.features, alone.features)  # everybody keeps what is hers
    np.testing.assert_array_equal(seen.public_features, alone.features)
    assert "6 instances of leaf/others" in seen.encoded_by.assumptions[-1].sentence
    projected = load(texts, encoder="glove-mean", public="leaf/others", project=2)
    np.testing.assert_allclose(projected.public_features.mean(axis=0), 0, atol=1e-6)
    with pytest.raises(ValueError, match="public = 'leaf/tweets' is what users hold: name other data"):
        load(texts, public="leaf/tweets")
    with pytest.raises(ValueError, match="public = 'leaf/others' holds texts: choose an encoder"):
        load(texts, public="leaf/others")


def test_public_instances_have_the_shape_of_users_instances(module):
    with pytest.raises(ValueError, match=r"public = 'digits' has inputs of shape \(64,\), \w+:images of"):
        load(f"{module}:images", users=2, public="digits")
