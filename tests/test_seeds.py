"""Secret randomness: a seed that nobody chose, kept in one file, and nothing public that follows from it."""

from pathlib import Path

import numpy as np
import pytest

from fedproof.config import load_config, parse_config
from fedproof.experiment import make_task, run
from fedproof.folder import read_config

TINY = """
[data]
classes = [0, 1]
users = 24
[mechanism]
rounds = 2
cohort = 8
noise_multiplier = 3.0
delta = 0.01
batch_size = 4
learning_rate = 0.5
[ensemble]
replicas = 12
part_size = 4
[certificate]
method = "mean"
"""


def tiny(*overrides):
    return parse_config(TINY, "tiny", overrides)


# --- who holds what is public -------------------------------------------------------------------------------


def test_who_holds_what_does_not_follow_from_the_seed_of_the_training():
    one, other = (make_task(tiny(f"ensemble.seed={seed}"), "cpu").federation for seed in (0, 1))
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    dealt = make_task(tiny("ensemble.seed=0", "data.seed=1"), "cpu").federation
    assert not np.array_equal(one.features, dealt.features)


def test_directories_of_earlier_releases_keep_their_users(tmp_path):
    written = tiny("ensemble.seed=5", "data.seed=5").to_toml()
    (tmp_path / "config.toml").write_text(written.replace("seed = 5\n", "", 1))
    assert read_config(tmp_path) == tiny("ensemble.seed=5", "data.seed=5")
    with pytest.raises(ValueError, match=r"another configuration \(data\.seed = 5 there, 0 here\)"):
        run(tiny("ensemble.seed=5"), tmp_path, resume=True)


EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.mark.parametrize(
    "path", [*EXPERIMENTS.glob("*.toml"), *EXPERIMENTS.glob("compare/*/*.toml")], ids=str
)
def test_published_numbers_can_be_had_again(path):
    if not path.name.startswith("pretrain"):
        assert load_config(path).ensemble.seed is not None
