"""Other libraries' outputs: the examples run, and the events are what those libraries mean."""

import re
import sys
from pathlib import Path

import dp_accounting as dp
import pytest

import fedproof as fp
from fedproof.integrations.adapters import opacus_event, pfl_mechanism
from fedproof.statements import Statement
from tests.patience import finished

PFL = {"noise_parameter": 2.0, "num_compositions": 5, "sampling_probability": 0.1}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "adapters").glob("from_*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run_and_certify_something(script):
    done = finished([sys.executable, "-W", "error", script])
    assert done.returncode == 0, done.stderr
    assert "sound True" in done.stdout
    curve = next(line for line in done.stdout.splitlines() if line.startswith("certified accuracy"))
    assert len(curve.split(",")) >= 2  # at least one poisoned unit is tolerated


def test_there_is_an_example_for_each_library():
    assert [path.stem for path in EXAMPLES] == ["from_jax_privacy", "from_opacus", "from_pfl"]


def test_the_examples_import_none_of_the_libraries():
    pattern = re.compile(r"^(import|from) (jax|jax_privacy|opacus|pfl)\b", re.M)
    assert [path.stem for path in EXAMPLES if pattern.search(path.read_text())] == []


def test_jax_privacys_own_reading():
    # The docstring of jax_privacy/accounting.py: dpsgd_event(3, 512, sampling_prob=0.1), δ = 1e-6 → 3.77.
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(3)), 512)
    assert fp.account(event, 1e-6, ["pld"])["pld"] == pytest.approx(3.77, abs=0.01)


def test_opacus_history_composes():
    parts = [(4.0, 0.05, 60), (4.0, 0.05, 40)]
    whole = fp.account(opacus_event([(4.0, 0.05, 100)]), 1e-5)
    assert fp.account(opacus_event(parts), 1e-5) == whole
    # Opacus accounts like the paper: theory.md, section 1 (instance level q=50/1000, σ=4, 100 steps).
    assert whole["paper"] == pytest.approx(0.6546, abs=1e-4)


def test_pfl_is_described_as_executed():
    quieter = pfl_mechanism(**PFL, noise_scale=0.25)
    assert quieter.queries[0].noise_multiplier == 0.5
    assert quieter.doubts == (Statement.of("drawn-with-replacement"),)
    in_order = pfl_mechanism(**PFL, sampler="minimize_reuse")
    assert in_order.doubts == (Statement.of("drawn-in-order"),)
    assert pfl_mechanism(**PFL, sampler="poisson").doubts == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: opacus_event([]), "history is empty"),
        (lambda: opacus_event([(0.0, 0.1, 5)]), "noise_multiplier = 0.0 must be"),
        (lambda: opacus_event([(1.0, 1.5, 5)]), r"sample_rate = 1.5 must be in"),
        (lambda: opacus_event([(1.0, 0.5, 0)]), "steps = 0 must be"),
        (lambda: pfl_mechanism(**PFL, noise_scale=2.0), "noise_scale = 2.0 must be in"),
        (lambda: pfl_mechanism(**PFL, sampler="fixed"), "sampler = 'fixed' must be one of poisson"),
    ],
)
def test_bad_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        call()
