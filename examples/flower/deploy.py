"""A real deployment on one machine: SuperLink and SuperNodes as processes, TLS and node authentication.

Everything listens on 127.0.0.1. One node is killed in the middle and started again; with --kill superlink the
server is, and the run goes on where it was.

python deploy.py --nodes 4 --out runs/deployment
"""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil
from make_data import make_data
from make_keys import make_keys

APP = Path(__file__).parent
NAME = "loopback"
PATIENCE, TOTAL = 300.0, 3600.0  # seconds without any progress, and in all, until a wait is given up
MISSED = 60.0  # seconds after which the SuperLink misses a node whose heart beats no more


@dataclass(kw_only=True)
class Deployment:
    """Processes of one SuperLink and its SuperNodes; all of them end with the `with` block.

    Attributes:
        folder: keys, data and logs.
        nodes: number of SuperNodes.
        port: of the SuperLink.
        processes: by name, `superlink` and `node-I`.
    """

    folder: Path
    nodes: int
    port: int = field(default_factory=lambda: free_port())
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> "Deployment":
        self.folder.mkdir(parents=True, exist_ok=True)
        make_keys(self.nodes, self.folder / "keys")
        make_data(self.nodes, self.folder / "data")
        (self.folder / "home").mkdir(exist_ok=True)
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder / "keys" / "ca.crt"}"\n'
        )
        try:
            self.start_superlink()
            for node in range(self.nodes):
                self.flwr("supernode", "register", str(self.folder / "keys" / f"node-{node}.pub"), NAME)
                self.start_node(node)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self.processes)):
            self.kill(name)
        for process in psutil.process_iter():  # helpers whose parent had ended before
            with contextlib.suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == self.environment["FLWR_HOME"]:
                    process.kill()

    @property
    def environment(self) -> dict[str, str]:
        """Of every process: no telemetry, and a home of its own for Flower."""
        return os.environ | {
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": str(self.folder / "home"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(APP), os.environ.get("PYTHONPATH")])),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # flower-superexec
            "OMP_NUM_THREADS": "1",
        }

    def start_superlink(self) -> None:
        """Start the SuperLink, and return when it listens; it remembers the nodes of an earlier one."""
        keys = self.folder / "keys"
        self._start(
            "superlink",
            "flower-superlink",
            f"--port={self.port}",
            f"--ssl-ca-certfile={keys / 'ca.crt'}",
            f"--ssl-certfile={keys / 'server.crt'}",
            f"--ssl-keyfile={keys / 'server.key'}",
            "--enable-supernode-auth",
            f"--database={self.folder / 'superlink.db'}",  # nodes and their keys outlive the process
            "--disable-runtime-dependency-installation",
        )
        self.wait(lambda: reachable(self.port), "the SuperLink listens")

    def start_node(self, node: int, *, key: Path | None = None, name: str | None = None) -> None:
        """Start SuperNode `node` with its own key, or another one, and its own data."""
        keys = self.folder / "keys"
        self._start(
            name or f"node-{node}",
            "flower-supernode",
            f"--superlink=127.0.0.1:{self.port}",
            f"--root-certificates={keys / 'ca.crt'}",
            f"--auth-supernode-private-key={key or keys / f'node-{node}'}",
            f"--port={free_port()}",
            f"--ssl-ca-certfile={keys / 'ca.crt'}",
            f"--ssl-certfile={keys / 'server.crt'}",
            f"--ssl-keyfile={keys / 'server.key'}",
            f'--node-config=partition-id={node} data="{self.folder / "data" / f"user-{node}.npz"}" '
            f'local-noise=0.2 site="{self.folder / f"site-{node}.toml"}"',  # the node's own decisions
        )

    def kill(self, name: str) -> None:
        """End a process and its children at once, as a power cut would."""
        process = self.processes.pop(name)
        try:
            # Flower's helpers have sessions of their own, so they are found by descent.
            family = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        process.kill()
        process.wait()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def flwr(self, *arguments: str) -> str:
        """Output of the `flwr` command."""
        command = [str(Path(sys.executable).with_name("flwr")), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def run_app(self, config: Mapping[str, object], app: Path = APP) -> None:
        """Submit the app of this folder, or another, with the given run configuration."""
        values = " ".join(
            f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
            for key, value in config.items()
        )
        self.flwr("run", str(app), NAME, "--run-config", values)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return when `condition` holds; RuntimeError with the SuperLink's log when there is no hope.

        On a busy machine everything is late. Hope ends with the SuperLink, when no log and no result has
        grown for `PATIENCE` seconds, and after `TOTAL` seconds.
        """
        start = moved = time.monotonic()
        grown = -1
        while not condition():
            now, written = time.monotonic(), self._written()
            if written != grown:
                grown, moved = written, now
            ended = self.processes["superlink"].poll() is not None
            if ended or now > moved + PATIENCE or now > start + TOTAL:
                said = self.log("superlink")
                raise RuntimeError(f"waited in vain until {what}; the SuperLink says\n{said}")
            time.sleep(0.25)

    @property
    def activated(self) -> int:
        """How often a node was let in."""
        return (self.folder / "superlink.log").read_text(errors="replace").count("Activated node")

    def log(self, name: str) -> str:
        """The last lines that a process has written."""
        path = self.folder / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-30:]) if path.exists() else ""

    def _written(self) -> int:
        """Bytes of all logs and results; the SuperLink's database says only that it is alive."""
        total = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):  # a temporary file may be gone by now
                total += 0 if path.name.startswith("superlink.db") else path.stat().st_size
        return total

    def _start(self, name: str, command: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(Path(sys.executable).with_name(command)), *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )


def reachable(port: int) -> bool:
    """Whether somebody listens on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rounds_done(out: Path) -> int:
    """Rounds that the server has finished, over all parts; for a moment a part holds the models of two."""
    last: dict[Path, int] = {}
    for path in out.glob("part-*/models-*.npz"):
        last[path.parent] = max(last.get(path.parent, 0), int(path.stem.split("-")[1]))
    return sum(last.values())


def without_node(deployment: Deployment, out: Path, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Kill a node after a round, call `meanwhile`, and have it back, to be asked again in the next one."""
    deployment.wait(lambda: rounds_done(out) >= 1, "a round is over")
    deployment.kill("node-0")
    killed = time.monotonic()
    meanwhile()
    # The SuperLink refuses the node's key until it has missed the dead process. Each attempt is two processes
    # that import all of Flower, so the first one waits until it will be let in.
    time.sleep(max(0.0, killed + MISSED - time.monotonic()))
    known = deployment.activated
    deployment.start_node(0)

    def back() -> bool:
        if deployment.processes["node-0"].poll() is not None:  # again and again, as a service manager would
            time.sleep(15)
            deployment.start_node(0)
        return deployment.activated > known

    deployment.wait(back, "the node is back")


def without_superlink(
    deployment: Deployment,
    config: Mapping[str, object],
    *,
    after: int = 3,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Kill the SuperLink `after` so many rounds, call `meanwhile` while nothing runs, and start it again.

    Nodes connect again by themselves; the app is submitted again, as it was, and goes on from its folder.
    """
    out = Path(str(config["out"]))
    deployment.wait(lambda: rounds_done(out) >= after, f"{after} rounds are over")
    deployment.kill("superlink")
    meanwhile()
    deployment.start_superlink()
    deployment.run_app(config)


def ask_once(deployment: Deployment, out: Path) -> None:
    """Run the strategies that ask every node once, one after the other; results are in `out`."""
    deployment.run_app(ONCE | {"out": str(out), "users": deployment.nodes})
    last = str(ONCE["strategy"]).split()[-1]
    deployment.wait((out / last / "certificate.json").exists, "the certificate is there")


# One round for each part, and parts enough that some are trained before and after the killed node. A round
# waits four minutes for whoever is silent, a part ten for whoever is known to be away: machines are busy, and
# a node that was killed is let in again after one.
SETTINGS: dict[str, object] = {
    "rounds": 1,
    "probability": 0.5,
    "noise-multiplier": 1.0,
    "replicas": 48,
    "part-size": 12,
    "timeout": 240.0,
    "connect-timeout": 600.0,
}

# Everybody is asked once for each of these: an upload, a vote, and that is all.
ONCE: dict[str, object] = {
    "strategy": "one-round anchors partition local",
    "noise-multiplier": 1.0,
    "timeout": 240.0,
    "connect-timeout": 600.0,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kill", choices=["node", "superlink"], default="node")
    parser.add_argument("--once", action="store_true", help="ask everybody once, and kill nobody")
    options = parser.parse_args()
    with Deployment(folder=options.out.resolve(), nodes=options.nodes) as running:
        results = running.folder / "run"
        submitted = SETTINGS | {"out": str(results), "users": options.nodes}
        if options.once:
            ask_once(running, results)
        else:
            running.run_app(submitted)
            if options.kill == "node":
                without_node(running, results)
            else:
                without_superlink(running, submitted)
            running.wait((results / "certificate.json").exists, "the certificate is there")
    print(results)
