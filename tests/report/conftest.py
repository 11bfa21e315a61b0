"""Run directories to report on, and a real Chromium driven through its DevTools pipe."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproof.accounting.spent import Spent
from fedproof.certificates import Certificate, Settings, dumps
from fedproof.certificates.comparison import Curve
from fedproof.config import parse_config
from fedproof.federation import Federation
from fedproof.report.run_data import RunData, read_run
from fedproof.robustness import AttackRow
from fedproof.statements import Statement
from fedproof.summary import ComparedRun, SweptRun
from fedproof.threat import Relation
from tests import patience

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Browser:
    """One page of a headless Chromium; commands go through file descriptors 3 and 4, so no port is opened."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()

        def place() -> None:  # in the child: the two ends become its descriptors 3 and 4
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_commands, write_answers)]
            for end, number in zip(ends, (3, 4), strict=True):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place,
            pass_fds=(3, 4),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.call("Network.emulateNetworkConditions", **offline)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One DevTools command and its answer; events met on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                raise RuntimeError("chromium has gone")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> float:
        """Load a file and return the seconds that Chromium computed until its load event; network is off."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        before = patience.computed(self._process)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        return patience.computed(self._process) - before

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def move(self, selector: str, share: float) -> None:
        """Put the pointer at a share of an element's width, in the middle of its height."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.value(f"(b => [b.left, b.top, b.width, b.height])({place}.getBoundingClientRect())")
        x, y = box[0] + share * box[2], box[1] + box[3] / 2
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def set(self, selector: str, value: int) -> None:
        """Move a slider as a person does: with its input event."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{place}.value = {value}; {place}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Exceptions, console messages and log entries since the page was opened."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png", **self._clip())
        path.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def close(self) -> None:
        os.close(self._commands)
        patience.end(self._process)
        os.close(self._answers)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: install it to test the pages in a browser")
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def demo_text() -> str:
    from importlib import resources

    return resources.files("fedproof").joinpath("demo.toml").read_text()


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory, demo_text: str) -> Any:
    """A function that trains a small run of the demo with changes, once for each set of changes."""
    from fedproof.experiment import run

    made: dict[tuple[str, ...], Path] = {}

    def make(*changes: str) -> Path:
        if changes not in made:
            folder = tmp_path_factory.mktemp("run") / "run"
            small = ("ensemble.replicas=100", *changes)
            run(parse_config(demo_text, "demo", small), folder)
            made[changes] = folder
        return made[changes]

    return make


INPUTS, LARGEST = 10_000, 60


@pytest.fixture(scope="session")
def large_run(tmp_path_factory: pytest.TempPathFactory, demo_text: str) -> tuple[Path, dict[str, Any]]:
    """The directory of a made-up run with 10,000 inputs and sizes up to 60, and what its end gives."""
    generator = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("large")
    config = parse_config(demo_text, "demo", ["data.name=mnist", "data.classes=[0,1,2,3,4,5,6,7,8,9]"])
    (folder / "config.toml").write_text(config.to_toml())
    labels = generator.integers(0, 10, INPUTS)
    wrong = generator.random(INPUTS) < 0.05
    predictions = np.where(wrong, (labels + 1) % 10, labels).tolist()
    sizes = generator.integers(0, LARGEST + 1, INPUTS).tolist()
    for index in range(0, INPUTS, 100):
        predictions[index] = sizes[index] = None
    certificate = made_certificate(config, labels.tolist(), predictions, sizes)
    (folder / "certificate.json").write_text(dumps(certificate))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "scores.npy", np.full((2, INPUTS, 10), 0.1, dtype=np.float32))
    images = generator.normal(size=(INPUTS, 1, 28, 28)).astype(np.float32)
    federation = Federation(
        features=images[:200],
        labels=labels[:200],
        offsets=np.arange(0, 201, 2),
        test_features=images,
        test_labels=labels,
        class_names=tuple(map(str, range(10))),
        name="mnist",
    )
    return folder, {"federation": federation, "curves": other_curves(certificate)}


def made_certificate(config: Any, labels: list[int], predictions: list[Any], sizes: list[Any]) -> Certificate:
    """A certificate with these columns."""
    mechanism = config.build_mechanism(user_sizes=[3] * 96, num_layers=2)
    settings = Settings(
        mechanism=mechanism,
        privacy=None,
        threat=config.threat_model,
        method="mean",
        bound="betting",
        failure_probability=0.01,
        spending="sound",
        group="tight",
        max_size=100,
        sequential=False,
    )
    count = len(labels)
    return Certificate(
        settings=settings,
        num_replicas=1000,
        num_inputs=count,
        num_classes=10,
        scores_sha256="0" * 64,
        prediction=tuple(predictions),
        certified_size=tuple(sizes),
        top_lower=(0.9,) * count,
        rival_upper=(0.1,) * count,
        real_size=None,
        labels=tuple(labels),
        labels_sha256="0" * 64,
        accuracy=0.95,
        unmet=(),
        assumptions=(Statement.of("predictor-confidences"),),
    )


def other_curves(certificate: Certificate) -> tuple[Curve, ...]:
    """The curves of other ways to certify, made up: all are those of the certificate."""
    accuracy = tuple(certificate.certified_accuracy(range(LARGEST + 2)))
    return tuple(
        Curve(method=method, relation=relation, failure_probability=chance, accuracy=accuracy)
        for method, relation in (("paper", None), ("mean", Relation.JOIN), ("mean", Relation.REPLACE))
        for chance in (None, 0.01)
    )


# --- hostile and made-up input ------------------------------------------------------------------------------

HOSTILE = "</td><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="session")
def hostile() -> str:
    """Text that takes over a page which does not escape it."""
    return HOSTILE


@dataclass(frozen=True, kw_only=True)
class TextFederation(Federation):
    test_texts: tuple[str, ...] = ()


@pytest.fixture(scope="session", name="hostile_run")
def hostile_run_fixture() -> Any:
    return hostile_run


def hostile_run(folder: Path) -> RunData:
    """A run whose class names, texts and settings try to inject markup."""
    run = read_run(folder)
    count = run.certificate.num_inputs
    federation = TextFederation(
        features=np.zeros((2, 3), dtype=np.int32),
        labels=np.array([0, 1]),
        offsets=np.array([0, 1, 2]),
        test_features=np.zeros((count, 3), dtype=np.int32),
        test_labels=np.array(run.certificate.labels),
        class_names=(HOSTILE + "a", HOSTILE + "b"),
        name=HOSTILE,
        test_texts=(HOSTILE,) * count,
    )
    data = run.config.data.model_copy(update={"name": HOSTILE, "vectors": HOSTILE})
    config = run.config.model_copy(update={"data": data})
    assumed, unmet = Statement.of("stated", text=HOSTILE), Statement.of("unmet-as-stated", text=HOSTILE)
    certificate = replace(run.certificate, assumptions=(assumed,), unmet=(unmet,))
    summary = replace(run.summary, data=HOSTILE, unmet=(unmet,), sound=False)
    return replace(run, federation=federation, config=config, certificate=certificate, summary=summary)


@pytest.fixture(scope="session", name="attack_rows")
def attack_rows_fixture() -> Any:
    return attack_rows


@pytest.fixture(scope="session", name="sweep_rows")
def sweep_rows_fixture() -> Any:
    return sweep_rows


def attack_rows(**changes: Any) -> list[AttackRow]:
    """What `fedproof attack` measures, made up."""
    return [
        AttackRow(
            **{
                "attack": attack,
                "adversaries": k,
                "replicas": 100,
                "clean_replica_accuracy": 0.9,
                "replica_accuracy": 0.9 - 0.01 * k,
                "clean_accuracy": 0.95,
                "accuracy": 0.95 - 0.01 * k,
                "clean_cost": 0.4,
                "cost": 0.4 - 0.005 * k,
                "clipped_share": 0.0,
                "certified_accuracy": 0.9 - 0.05 * k,
                "certified_inputs": 9,
                "holds_on_certified": True,
                "certified_lower": 0.4 - 0.03 * k,
                "certified_upper": 0.4 + 0.01 * k,
                "holds_on_cost": True,
            }
            | changes
        )
        for attack in ("backdoor", HOSTILE)
        for k in (0, 2, 4)
    ]


def spent(epsilon: float, accountant: str = "pld") -> Spent:
    """An ε of one model, made up."""
    return Spent(
        epsilon=epsilon, delta=1e-3, relation="join", unit="user", covers="model", accountant=accountant
    )


def sweep_rows() -> list[SweptRun]:
    """Runs of a sweep, made up."""
    return [
        SweptRun(
            values={"mechanism.noise_multiplier": str(noise), "note": HOSTILE},
            folder=f"noise={noise}",
            spent=spent(2.0 / noise, accountant="paper"),
            accuracy=0.99 - 0.01 * noise,
            certified_accuracy={str(k): max(0.0, 0.99 - 0.01 * noise - k / (3 * noise)) for k in range(9)},
            certified_size=2,
            sound=True,
            seconds=1.0,
        )
        for noise in (1, 2, 4, 8)
    ]


@pytest.fixture(scope="session", name="compare_rows")
def compare_rows_fixture() -> Any:
    return compare_rows


def compare_rows() -> list[ComparedRun]:
    """Rows of a comparison, made up: two mechanisms for users, one for instances."""
    ways = (
        ("dp", "margin", "user", 0.2, 4),
        ("dp", "paper", "user", 0.6, 1),
        (HOSTILE, "vote", "user", None, 8),
        ("deep", "vote", "instance", None, 30),
    )
    return [
        ComparedRun(
            name=name,
            kind="user-fedavg",
            unit=unit,
            relation="replace",
            replicas=100,
            accuracy=0.95,
            seconds=3.0,
            uploads=1000,
            bytes=2_500_000,
            certificate=certificate,
            one=None if epsilon is None else spent(epsilon),
            certified_accuracy={str(k): max(0.0, 0.95 * (1 - k / last)) for k in range(last + 1)},
            sound=certificate != "paper",
            unmet=(Statement.of("unmet-as-stated", text=HOSTILE),) if certificate == "paper" else (),
        )
        for name, certificate, unit, epsilon, last in ways
    ]
