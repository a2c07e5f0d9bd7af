"""The demo's inference runtime: MLServer in front of the very code that the benchmark measured.

The model is opened by ``serving.open_serving_session``, so the server runs the backend, file copy and precision that a
benchmark reported, and refuses to start where the runtime would do something else. MLServer joins requests (adaptive
batching), this class runs at most ``concurrency`` executions at once. Requests of different sizes cannot be joined: leave
batching off for such models, as the operator does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from environment import ServerSettings, read_settings
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.settings import ModelSettings
from mlserver.types import Datatype, InferenceRequest, InferenceResponse, MetadataModelResponse, MetadataTensor, Parameters, ResponseOutput
from prometheus_client import Counter, Histogram, Info

from metainfer_probe.backends import available_providers, find_backend
from metainfer_probe.backends.base import Array, Feeds, ProbeError, Session
from metainfer_probe.calibration import read_calibration
from metainfer_probe.contract import TensorSpec
from metainfer_probe.model_file import ModelFile, read_model
from metainfer_probe.serving import open_serving_session

CALIBRATION_SAMPLES = 64
FIRST_BUCKET_SECONDS, LAST_BUCKET_SECONDS, BUCKET_RATIO = 200e-6, 10.0, 1.1
"""Steps of 10 %: a drift of 20 % moves a quantile by two buckets. MLServer's own histogram doubles from 5 ms on."""
BUCKET_COUNT = 1 + math.ceil(math.log(LAST_BUCKET_SECONDS / FIRST_BUCKET_SECONDS, BUCKET_RATIO))
BUCKETS = tuple(float(f"{FIRST_BUCKET_SECONDS * BUCKET_RATIO**step:.4g}") for step in range(BUCKET_COUNT))
DATATYPES = {
    "bool": Datatype.BOOL, "uint8": Datatype.UINT8, "uint16": Datatype.UINT16, "uint32": Datatype.UINT32, "uint64": Datatype.UINT64,
    "int8": Datatype.INT8, "int16": Datatype.INT16, "int32": Datatype.INT32, "int64": Datatype.INT64,
    "float16": Datatype.FP16, "float32": Datatype.FP32, "float64": Datatype.FP64, "bfloat16": Datatype.FP32,
}  # fmt: skip

REQUESTS = Histogram(
    "metainfer_request_duration_seconds",
    "From a request's arrival in the server's data plane to its answer: waiting and batching included, HTTP and JSON not.",
    ["model"],
    buckets=BUCKETS,
)
EXECUTIONS = Counter("metainfer_executions", "Runs of the session; requests divided by these is the mean batch that was formed.", ["model"])
FAILURES = Counter("metainfer_request_failures", "Requests that ended in an error.", ["model"])
SERVING = Info("metainfer_serving", "What this server really runs, read back from its session.", ["model"])

log = logging.getLogger("mlserver.metainfer")
Predict = Callable[[InferenceRequest], Awaitable[InferenceResponse]]


class ProbeRuntime(MLModel):  # type: ignore[misc]  # MLServer has no types
    """One model in one configuration; see ``environment`` for the settings."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._served = read_settings(os.environ, available_providers())
        self._pool = ThreadPoolExecutor(max_workers=self._served.config.concurrency, thread_name_prefix="execution")
        self._session: Session | None = None
        self._output_names: tuple[str, ...] = ()
        self._effective: dict[str, Any] = {}

    async def load(self) -> bool:
        """Make the copy of the file that the precision needs, open it, run it once; end the process where that fails."""
        try:
            model, self._session = await asyncio.get_running_loop().run_in_executor(self._pool, _open, self._served)
        except ProbeError as error:
            raise SystemExit(f"error: {self._served.model_path} cannot be served: {error.reason}: {error.message}") from None
        self._output_names = tuple(spec.name for spec in model.outputs)
        self.inputs, self.outputs = _metadata(model.inputs), _metadata(model.outputs)
        self._effective = _effective(self._served, self._session)
        SERVING.labels(self.name).info({name: str(value) for name, value in self._effective.items()})
        self.predict = self._timed(self.predict)  # by now MLServer's batching, if any, is part of it
        log.info("serving %s with %s", self.name, self._effective)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """One execution: a single request, or several that MLServer joined."""
        if self._session is None:
            raise InferenceError(f"{self.name} is not loaded")
        feeds = {request_input.name: _decode(request_input) for request_input in payload.inputs}
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self._pool, self._session.run, feeds)
            EXECUTIONS.labels(self.name).inc()
        except ProbeError as error:
            raise InferenceError(f"{error.reason}: {error.message}") from error
        wanted = {output.name for output in payload.outputs or ()} or set(self._output_names)
        named = zip(self._output_names, outputs, strict=True)
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=[_encode(name, value) for name, value in named if name in wanted])

    async def metadata(self) -> MetadataModelResponse:
        """The usual description, and in ``parameters`` what is really in force."""
        response = await super().metadata()
        response.parameters = Parameters(**self._effective)
        return response

    async def unload(self) -> bool:
        """Free the session."""
        self._pool.shutdown(wait=True)
        if self._session is not None:
            self._session.close()
            self._session = None
        return True

    def _timed(self, predict: Predict) -> Predict:
        durations, failures = REQUESTS.labels(self.name), FAILURES.labels(self.name)

        async def timed(payload: InferenceRequest) -> InferenceResponse:
            start = time.perf_counter()
            try:
                response = await predict(payload)
            except Exception:
                failures.inc()
                raise
            durations.observe(time.perf_counter() - start)
            return response

        return timed


def _open(served: ServerSettings) -> tuple[ModelFile, Session]:
    if not served.model_path.is_file():
        raise ProbeError("ModelNotFound", "there is no such file")
    model = read_model(served.model_path)
    samples = _read_samples(served, model)
    served.workdir.mkdir(parents=True, exist_ok=True)
    session = open_serving_session(served.model_path, served.config, calibration=samples, workdir=served.workdir, threads=served.threads)
    if samples:
        session.run(samples[0])  # the first run sets up memory and kernels; better before the server says it is ready
    return model, session


def _read_samples(served: ServerSettings, model: ModelFile) -> tuple[Feeds, ...]:
    if served.calibration_path is None:
        return ()
    try:
        return read_calibration(served.calibration_path, model.inputs, CALIBRATION_SAMPLES)[0]
    except ProbeError as error:
        if served.config.precision == "int8":
            raise
        log.warning("calibration inputs are not used: %s: %s", error.reason, error.message)
        return ()


def _effective(served: ServerSettings, session: Session) -> dict[str, Any]:
    readback = session.readback()
    return {
        "execution_provider": readback.provider,
        "precision": readback.precision,
        "batch_size": served.batch_size,
        "max_batch_delay_us": served.config.max_batch_delay_us if served.batch_size > 1 else 0,
        "concurrency": served.config.concurrency,
        "threads": served.threads,
        "runtime": find_backend(readback.provider).runtime_version(),
    }


def _metadata(specs: Sequence[TensorSpec]) -> list[MetadataTensor]:
    return [MetadataTensor(name=spec.name, datatype=DATATYPES.get(spec.dtype, Datatype.BYTES), shape=list(spec.shape or ())) for spec in specs]


def _decode(request_input: Any) -> Array:
    try:
        return NumpyCodec.decode_input(request_input)  # type: ignore[no-any-return]  # MLServer has no types
    except (ValueError, TypeError) as error:
        raise InferenceError(
            f"input {request_input.name!r} does not hold {request_input.shape} values of {request_input.datatype.value} "
            f"(requests of different sizes cannot be joined: METAINFER_MAX_BATCH_SIZE=1): {error}"
        ) from error


def _encode(name: str, value: object) -> ResponseOutput:
    """Tensors as they are (bfloat16 as fp32); sequences and maps as one JSON text per element."""
    if isinstance(value, np.ndarray):
        return NumpyCodec.encode_output(name, value.astype(np.float32) if value.dtype.name == "bfloat16" else value)
    items = value if isinstance(value, list) else [value]
    texts = [json.dumps(item, default=lambda part: part.tolist()) for item in items]
    return ResponseOutput(name=name, shape=[len(texts), 1], datatype=Datatype.BYTES, data=texts, parameters=Parameters(content_type="str"))
