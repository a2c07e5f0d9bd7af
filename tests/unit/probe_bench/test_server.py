"""The demo server, started for real: MLServer with our runtime class, asked over HTTP.

Needs an interpreter with mlserver 1.7 and the probe's dependencies: this one, or the one that DEMO_SERVER_PYTHON names.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data import models

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "hack" / "demo" / "server"
PYTHON = os.environ.get("DEMO_SERVER_PYTHON", sys.executable)
START = "import sys; from mlserver.cli.main import main; sys.argv = ['mlserver', 'start', sys.argv[1]]; main()"
PATIENCE_SECONDS = 120.0
READ_ONLY = 0o555


def _missing() -> str:
    ran = subprocess.run([PYTHON, "-c", "import mlserver, onnxruntime, openvino"], capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["no message"])[-1]


MISSING = _missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{PYTHON} cannot run the demo server: {MISSING}; set DEMO_SERVER_PYTHON")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; everything on loopback."""

    process: subprocess.Popen[str]
    port: int
    metrics_port: int
    log: Path

    def get(self, path: str) -> Any:
        status, text = self.ask(self.port, "GET", path)
        if status != HTTPStatus.OK:
            raise ConnectionError(f"{path} answers {status}")
        return json.loads(text) if text else None

    def metrics(self) -> dict[str, float]:
        lines = self.ask(self.metrics_port, "GET", "/metrics")[1].splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")}

    def infer(self, array: np.ndarray, **more: Any) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer to one request."""
        asked = {"inputs": [{"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}], **more}
        status, text = self.ask(self.port, "POST", "/v2/models/net/infer", json.dumps(asked))
        return status, json.loads(text)

    def ask(self, port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request(method, path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()


Start = Callable[..., Server]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for held in sockets:
        held.bind(("127.0.0.1", 0))
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


def launch(folder: Path, model: Path, **settings: str) -> Server:
    """Start it as the container would: nothing writable but the work directory, which is also the temporary one."""
    http, grpc, metrics = free_ports(3)
    work, elsewhere = folder / "work", folder / "read-only"
    work.mkdir()
    elsewhere.mkdir(mode=READ_ONLY)
    told = {"MODEL_PATH": str(model), "MODEL_NAME": "net", "METAINFER_WORKDIR": str(work), "TMPDIR": str(work), "HOME": str(work)}
    ports = {"MLSERVER_HOST": "127.0.0.1", "MLSERVER_HTTP_PORT": str(http), "MLSERVER_GRPC_PORT": str(grpc), "MLSERVER_METRICS_PORT": str(metrics)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("METAINFER_", "MLSERVER_", "MODEL_", "CALIBRATION_"))}
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [PYTHON, "-c", START, str(SERVER)],
            cwd=elsewhere,
            env=inherited | told | ports | settings | {"PYTHONPATH": str(ROOT / "probes"), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return Server(process, http, metrics, log)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers and ends them."""
    started: list[Server] = []

    def ready(model: Path, **settings: str) -> Server:
        server = launch(tmp_path, model, **settings)
        started.append(server)
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and server.process.poll() is None:
            try:
                server.get("/v2/models/net/ready")
            except ConnectionError:
                time.sleep(0.1)
                continue
            return server
        pytest.fail(f"the server did not become ready:\n{server.log.read_text()[-3000:]}")

    yield ready
    for server in started:
        server.process.terminate()
        server.process.wait(30)


def requests(path: Path, count: int = 4) -> Path:
    arrays = {f"x/{index}": np.random.default_rng(index).standard_normal((1, 32)).astype(np.float32) for index in range(count)}
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for options
    return path


def test_every_setting_is_in_force_and_read_back(tmp_path: Path, start: Start) -> None:
    """Not what was asked for but what runs: provider, precision, batch, delay, concurrency; and joined requests keep their own answers."""
    model = models.dense(tmp_path)
    server = start(
        model,
        METAINFER_EXECUTION_PROVIDERS="CUDAExecutionProvider,OpenVINOExecutionProvider",
        METAINFER_PRECISION="int8",
        METAINFER_MAX_BATCH_SIZE="4",
        METAINFER_MAX_BATCH_DELAY="200ms",
        METAINFER_CONCURRENCY="2",
        MLSERVER_MODEL_MAX_BATCH_SIZE="",
        CALIBRATION_PATH=str(requests(tmp_path / "real.npz")),
    )
    described = server.get("/v2/models/net")
    want = {"execution_provider": "OpenVINOExecutionProvider", "precision": "int8", "batch_size": 4, "max_batch_delay_us": 200_000, "concurrency": 2}
    assert {name: described["parameters"][name] for name in want} == want
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 32]}]
    info = next(line for line in server.metrics() if line.startswith("metainfer_serving_info{"))
    assert all(f'{name}="{value}"' in info for name, value in want.items())

    weights = models.weights(32, 32)
    asked = [np.random.default_rng(index).standard_normal((1, 32)).astype(np.float32) for index in range(12)]
    answers: dict[int, tuple[int, dict[str, Any]]] = {}
    threads = [threading.Thread(target=lambda index=index: answers.update({index: server.infer(asked[index], id=str(index))})) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, (status, answer) in answers.items():
        assert (status, answer["id"]) == (HTTPStatus.OK, str(index))
        output = answer["outputs"][0]
        assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [1, 32])
        exact = np.maximum(asked[index] @ weights, 0)
        assert np.linalg.norm(np.array(output["data"]) - exact) / np.linalg.norm(exact) < 0.05
    counted = server.metrics()
    assert counted['metainfer_request_duration_seconds_count{model="net"}'] == 12
    assert counted['metainfer_executions_total{model="net"}'] < 12, "some of twelve requests at once were joined"


def test_a_server_without_settings_serves_the_file_as_given(tmp_path: Path, start: Start) -> None:
    """The defaults of the preset; one request per execution; the histogram's steps are 10 % from 200 us to 10 s."""
    server = start(models.dense(tmp_path))
    parameters = server.get("/v2/models/net")["parameters"]
    want = {"execution_provider": "CPUExecutionProvider", "precision": "fp32", "batch_size": 1, "max_batch_delay_us": 0, "concurrency": 1, "threads": 1}
    assert {name: parameters[name] for name in want} == want
    x = np.ones((3, 32), np.float32)
    answer = server.infer(x)[1]["outputs"][0]
    assert answer["shape"] == [3, 32]
    assert np.allclose(np.array(answer["data"]).reshape(3, 32), np.maximum(x @ models.weights(32, 32), 0), atol=1e-5)
    status, refusal = server.infer(np.ones((1, 31), np.float32))
    assert status == HTTPStatus.BAD_REQUEST
    assert "31" in refusal["error"]
    edges = sorted(float(edge) for name in server.metrics() for edge in re.findall(r'metainfer_request_duration_seconds_bucket\{le="([\d.]+)"', name))
    assert edges[0] == 0.0002
    assert edges[-1] >= 10
    assert max(high / low for low, high in itertools.pairwise(edges)) < 1.11
    assert server.metrics()['metainfer_request_failures_total{model="net"}'] == 1


def test_odd_outputs_are_answered_as_text(tmp_path: Path, start: Start) -> None:
    """A string label, a map as JSON, and an empty tensor."""
    server = start(models.odd_outputs(tmp_path))
    label, probabilities, hits = server.infer(np.ones((1, 12), np.float32))[1]["outputs"]
    assert label["data"][0] in ("low", "high")
    assert set(json.loads(probabilities["data"][0])) == {"low", "high"}
    assert (hits["shape"], hits["data"]) == ([0, 2], [])


@pytest.mark.parametrize(
    ("build", "settings", "words"),
    [
        pytest.param(models.dense, {"METAINFER_PRECISION": "fp17"}, "error: METAINFER_PRECISION is 'fp17'", id="a setting"),
        pytest.param(models.extension_operators, {}, "cannot be served: UnknownOperators", id="a model that cannot be opened"),
        pytest.param(models.small_cnn, {"METAINFER_PRECISION": "int8"}, "cannot be served: CalibrationMissing", id="int8 without inputs"),
        pytest.param(lambda folder: folder / "gone.onnx", {}, "cannot be served: ModelNotFound", id="no file"),
    ],
)
def test_a_server_that_cannot_serve_ends_with_one_sentence(tmp_path: Path, build: Callable[[Path], Path], settings: dict[str, str], words: str) -> None:
    """As the last line of its log, with an exit code that is not zero."""
    server = launch(tmp_path, build(tmp_path), **settings)
    try:
        assert server.process.wait(PATIENCE_SECONDS) != 0
    finally:
        server.process.kill()
    last = server.log.read_text().strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
