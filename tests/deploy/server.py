"""A real Prometheus on a free port, with the rules of `deploy/` at shorter intervals."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import yaml

from tests.deploy.rules import RULES
from tests.kafka.broker import free_ports
from tests.waiting import PATIENCE_SECONDS, STOP_SECONDS, until

PROMETHEUS = shutil.which("prometheus")
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
MOST_RESPONSES = 20
_COMPOSE = Path(__file__).parents[2] / "deploy" / "compose" / "alertmanager.yml"
INHIBIT_RULES = yaml.safe_load(_COMPOSE.read_text("utf-8"))["inhibit_rules"]
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """A temporary folder that is on a disk, unless the system has none for temporary files.

    Prometheus and promtool reserve up to 512 MB for each file of chunks. In memory, where pytest
    has its temporary directories, that takes most of their CPU time.
    """
    with TemporaryDirectory(prefix="evaluator-") as name:
        yield Path(name)


def ended(process: subprocess.Popen) -> None:
    """Stops a program, by force if it does not exit."""
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Receiver:
    """Receives the notifications of an Alertmanager on a port of its own."""

    def __init__(self) -> None:
        self.alerts: list[dict] = []
        received = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Writes no log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def firing(self) -> list[dict]:
        """Every notification of a firing alert so far."""
        return [one for one in self.alerts if one["status"] == "firing"]

    def stop(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()


class Recording:
    """Responses of `/metrics`, recorded from a process and served in order to a Prometheus.

    A busy process may answer scrapes so late that all of them time out. These are recorded with
    patience, and Prometheus gets all of them in time, whenever it starts: the next one at each
    scrape, and the last one from then on.
    """

    def __init__(self, address: str) -> None:
        self._source = Request(f"http://{address}/metrics", headers={"Accept": OPENMETRICS})
        self._responses: list[tuple[str, bytes]] = []
        left = self._responses

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content_type, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Writes no log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._serving = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def record(self, over: Callable[[], bool]) -> None:
        """Records about a response per second until *over*, thinned to MOST_RESPONSES."""
        while True:
            is_last = over()
            self._responses.append(until(self._response, every=1))
            if is_last:
                break
            time.sleep(1)
        *others, last = self._responses
        step = 1 + len(others) // MOST_RESPONSES
        self._responses[:] = [*others[::step], last]
        self._serving.start()

    def _response(self) -> tuple[str, bytes] | None:
        """A response; None if it fails, as a scrape may, while the machine is busy."""
        try:
            with urlopen(self._source, timeout=PATIENCE_SECONDS) as response:
                return response.headers["Content-Type"], response.read()
        except (URLError, ConnectionError):
            return None

    @property
    def is_served(self) -> bool:
        """Whether only the last response is left to serve."""
        return len(self._responses) == 1

    def stop(self) -> None:
        """Frees the port."""
        if self._serving.is_alive():
            self._server.shutdown()
        self._server.server_close()


@contextmanager
def alertmanager(folder: Path, receiver: Receiver) -> Iterator[str]:
    """The address of an Alertmanager with the rules of Compose.

    It waits until an alert can be inhibited by another one of the same evaluation.
    """
    assert ALERTMANAGER is not None, "alertmanager is missing; `make system` installs it"
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = folder / "alertmanager.yml"
    route = {"receiver": "test", "group_by": ["..."], "group_wait": "5s", "group_interval": "1s"}
    receivers = [{"name": "test", "webhook_configs": [{"url": receiver.url}]}]
    of_all = {"route": route, "receivers": receivers, "inhibit_rules": INHIBIT_RULES}
    config.write_text(json.dumps(of_all))
    command = [
        *(ALERTMANAGER, f"--config.file={config}", f"--storage.path={folder / 'alerts'}"),
        *(f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=warn"),
    ]
    log_path = folder / "alertmanager.log"
    with log_path.open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: is_ready(address), every=0.2, details=log_path.read_text)
        yield address
    finally:
        ended(running)


def is_ready(address: str) -> bool:
    """Whether a Prometheus or an Alertmanager is ready."""
    try:
        with urlopen(f"http://{address}/-/ready", timeout=2) as response:
            return response.status == 200
    except (URLError, ConnectionError, TimeoutError):
        return False


class Prometheus:
    """A Prometheus in a folder, where its data remains after a stop."""

    def __init__(
        self, folder: Path, *, jobs: Mapping[str, str], alertmanager: str | None = None,
        rules: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        assert PROMETHEUS is not None, "prometheus is missing; `make system` installs it"
        self.data = folder / "data"
        self._log = folder / "prometheus.log"
        self._config = folder / "prometheus.yml"
        self._address = f"127.0.0.1:{free_ports(1)[0]}"
        copies = []
        for path in RULES:
            text = re.sub(r"interval: \d+m\b", "interval: 1s", path.read_text("utf-8"))
            copies.append(folder / path.name)
            copies[-1].write_text(rules(text))
        managers = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
            "rule_files": list(map(str, copies)),
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [address]}]}
                for name, address in jobs.items()
            ],
            "alerting": {"alertmanagers": managers},
        }
        self._config.write_text(json.dumps(config))
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        command = [
            *(PROMETHEUS, f"--config.file={self._config}", f"--storage.tsdb.path={self.data}"),
            *(f"--web.listen-address={self._address}", "--log.level=warn"),
            "--enable-feature=exemplar-storage",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: is_ready(self._address), every=0.2, details=self.log)

    def stop(self) -> None:
        """Ends it; safe to call twice."""
        if self._process is not None:
            ended(self._process)
            self._process = None

    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text("utf-8", "replace")[-3000:]

    def ask(self, path: str, **parameters: str) -> object:
        """The data of an answer of the API; fails with the message of an error of PromQL."""
        address = f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}"
        try:
            with urlopen(address, timeout=PATIENCE_SECONDS) as response:
                return json.load(response)["data"]
        except URLError as error:
            message = error.read().decode() if hasattr(error, "read") else error
            raise AssertionError(f"{parameters}: {message}") from error

    def query(self, expr: str) -> list[dict]:
        """The current vector of an expression."""
        data = self.ask("query", query=expr)
        assert isinstance(data, dict)
        return data["result"]
