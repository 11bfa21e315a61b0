import pytest

from benchmarks.engine import CASES, bench


def test_rows_hold_the_naive_loop_beside_the_engine():
    rows = bench("cpu", ["digits-linear"])
    assert len(rows) == 2
    for row in rows:
        assert set(row) == {
            "name",
            "device",
            "stack",
            "seconds_per_replica",
            "naive_seconds_per_replica",
            "ratio",
        }
        assert row["ratio"] == pytest.approx(row["naive_seconds_per_replica"] / row["seconds_per_replica"])


def test_unknown_cases_are_refused():
    with pytest.raises(ValueError, match=r"names = \['x'\] must be among digits-linear"):
        bench("cpu", ["x"])


@pytest.mark.parametrize("name", CASES)
def test_cases_are_tasks(name):
    assert CASES[name](True).federation.num_users > 1
