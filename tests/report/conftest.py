"""Run directories to report on, and a real Chromium driven through its DevTools pipe."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedproof.config import parse_config

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
        shell = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["sh", "-c", shell, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_commands, write_answers),
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
        """Load a file and return the seconds until its load event; network is off."""
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
        start = time.perf_counter()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        return time.perf_counter() - start

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
        self._process.terminate()
        self._process.wait(timeout=10)
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
            small = ("ensemble.replicas=200", *changes)
            run(parse_config(demo_text, "demo", small), folder)
            made[changes] = folder
        return made[changes]

    return make
