"""What noise from the operating system costs, as JSON: `python -m benchmarks.secure`.

CPU seconds, the two kinds in turn, and the median of the ratios: a machine that others use slows both.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np

from fedproof import exact
from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.seeds import Numbers, SecureGenerator, SeededGenerator

NUMBERS = 1_000_000
REPEATS = 9


def noise_seconds(generator: Numbers) -> float:
    """CPU seconds of a million normal numbers."""
    began = time.process_time()
    exact.drawn(generator, NUMBERS, 2.0**24)
    return time.process_time() - began


def demo_seconds(secure: bool) -> float:
    """CPU seconds of the demo."""
    text = resources.files("fedproof").joinpath("demo.toml").read_text()
    config = parse_config(text, "demo", [f"ensemble.secure_noise={str(secure).lower()}"])
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run(config, Path(folder) / "demo")
        return time.process_time() - began


def ratio(seeded: Callable[[], float], secure: Callable[[], float], repeats: int) -> dict[str, float]:
    """Medians of both, run in turn, and of their ratio."""
    pairs = [(seeded(), secure()) for _ in range(repeats)]
    return {
        "seeded_seconds": statistics.median(first for first, _ in pairs),
        "secure_seconds": statistics.median(second for _, second in pairs),
        "ratio": statistics.median(second / first for first, second in pairs),
    }


def main() -> None:
    """Print both comparisons."""
    plain, secure = SeededGenerator(np.random.SeedSequence(0)), SecureGenerator()
    demo_seconds(False)  # imports and caches
    rows = {
        f"noise, {NUMBERS:,} numbers": ratio(
            lambda: noise_seconds(plain), lambda: noise_seconds(secure), REPEATS
        ),
        "demo": ratio(lambda: demo_seconds(False), lambda: demo_seconds(True), REPEATS),
    }
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
