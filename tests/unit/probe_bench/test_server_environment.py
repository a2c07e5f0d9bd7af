"""What the demo server reads from its environment; names and defaults are those of the operator's presets."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from metainfer_probe.contract import ServingConfig

SERVER = Path(__file__).parents[3] / "hack" / "demo" / "server"
AVAILABLE = ("CPUExecutionProvider", "OpenVINOExecutionProvider")
MODEL = {"MODEL_PATH": "/models/net.onnx"}


@pytest.fixture(scope="module")
def environment() -> ModuleType:
    """The server's files are scripts beside each other, not a package."""
    spec = importlib.util.spec_from_file_location("demo_server_environment", SERVER / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_server_without_settings_runs_on_the_documented_defaults(environment: ModuleType) -> None:
    """The operator's preset counts on them: they are the baseline."""
    settings = environment.read_settings(MODEL, AVAILABLE)
    assert settings.config == ServingConfig(execution_provider="CPUExecutionProvider")
    assert (settings.model_name, settings.batch_size, settings.threads, settings.calibration_path) == ("net", 1, 1, None)


def test_an_empty_value_is_the_default(environment: ModuleType) -> None:
    """An env entry without a value is common and means nothing."""
    names = (
        "METAINFER_PRECISION METAINFER_MAX_BATCH_SIZE METAINFER_MAX_BATCH_DELAY METAINFER_CONCURRENCY METAINFER_EXECUTION_PROVIDERS METAINFER_THREADS "
        "METAINFER_WORKDIR MODEL_NAME CALIBRATION_PATH MLSERVER_MODEL_MAX_BATCH_SIZE MLSERVER_MODEL_MAX_BATCH_TIME"
    ).split()
    assert environment.read_settings(MODEL | dict.fromkeys(names, " "), AVAILABLE) == environment.read_settings(MODEL, AVAILABLE)


def test_every_setting_is_read(environment: ModuleType) -> None:
    """As the operator writes them."""
    told = MODEL | {
        "MODEL_NAME": "ocr",
        "CALIBRATION_PATH": "/models/net.npz",
        "METAINFER_EXECUTION_PROVIDERS": "CUDAExecutionProvider, OpenVINOExecutionProvider,CPUExecutionProvider",
        "METAINFER_PRECISION": "bf16",
        "METAINFER_MAX_BATCH_SIZE": "8",
        "METAINFER_MAX_BATCH_DELAY": "2ms",
        "METAINFER_CONCURRENCY": "3",
        "METAINFER_THREADS": "2",
        "METAINFER_WORKDIR": "/scratch",
    }
    settings = environment.read_settings(told, AVAILABLE)
    assert settings.config == ServingConfig(
        execution_provider="OpenVINOExecutionProvider", precision="bf16", batch_size=8, concurrency=3, dynamic_batching=True, max_batch_delay_us=2000
    )
    assert (settings.model_name, settings.batch_size, settings.threads) == ("ocr", 8, 2)
    assert (settings.calibration_path, settings.workdir) == (Path("/models/net.npz"), Path("/scratch"))


@pytest.mark.parametrize(
    ("told", "batch", "delay_us", "joins"),
    [
        pytest.param({"MLSERVER_MODEL_MAX_BATCH_SIZE": "16", "MLSERVER_MODEL_MAX_BATCH_TIME": "0.02"}, 16, 20_000, True, id="MLServer's own names"),
        pytest.param(
            {"MLSERVER_MODEL_MAX_BATCH_SIZE": "16", "METAINFER_MAX_BATCH_SIZE": "4", "METAINFER_MAX_BATCH_DELAY": "1s"}, 4, 10**6, True, id="ours win"
        ),
        pytest.param({"METAINFER_MAX_BATCH_SIZE": "4"}, 4, 0, False, id="a size without a delay joins nothing"),
        pytest.param({"METAINFER_MAX_BATCH_DELAY": "5ms"}, 1, 5000, False, id="a delay without a size joins nothing"),
        pytest.param({"MLSERVER_MODEL_MAX_BATCH_SIZE": "0"}, 1, 0, False, id="MLServer's zero is one request"),
    ],
)
def test_batching_as_mlserver_understands_it(environment: ModuleType, told: dict[str, str], batch: int, delay_us: int, joins: bool) -> None:
    """Both size and delay are needed."""
    config = environment.read_settings(MODEL | told, AVAILABLE).config
    assert (config.batch_size, config.max_batch_delay_us, config.dynamic_batching) == (batch, delay_us, joins)


@pytest.mark.parametrize(("text", "want_us"), [("0", 0), ("0ms", 0), ("2ms", 2000), ("500us", 500), ("1.5ms", 1500), ("1s", 10**6), ("1s500ms", 1_500_000)])
def test_durations(environment: ModuleType, text: str, want_us: int) -> None:
    """The spellings that the operator writes, and what a human might."""
    assert environment.read_settings(MODEL | {"METAINFER_MAX_BATCH_DELAY": text}, AVAILABLE).config.max_batch_delay_us == want_us


@pytest.mark.parametrize(
    ("told", "words"),
    [
        pytest.param({"MODEL_PATH": ""}, "MODEL_PATH is not set", id="no model"),
        pytest.param({"METAINFER_PRECISION": "fp17"}, "METAINFER_PRECISION is 'fp17', not one of fp32, bf16, fp16, int8", id="precision"),
        pytest.param({"METAINFER_MAX_BATCH_SIZE": "many"}, "METAINFER_MAX_BATCH_SIZE is 'many'", id="size"),
        pytest.param({"METAINFER_MAX_BATCH_SIZE": "-1"}, "not a whole number from 0 to 1024", id="negative size"),
        pytest.param({"MLSERVER_MODEL_MAX_BATCH_SIZE": "9999"}, "MLSERVER_MODEL_MAX_BATCH_SIZE is '9999'", id="size under MLServer's name"),
        pytest.param({"METAINFER_MAX_BATCH_DELAY": "2"}, 'not a duration such as "2ms"', id="delay without a unit"),
        pytest.param({"METAINFER_MAX_BATCH_DELAY": "11s"}, "not between 0 and 10 s", id="long delay"),
        pytest.param({"MLSERVER_MODEL_MAX_BATCH_TIME": "2ms"}, "not a number of seconds", id="MLServer's delay with a unit"),
        pytest.param({"MLSERVER_MODEL_MAX_BATCH_TIME": "nan"}, "not between 0 and 10 s", id="MLServer's delay is no number"),
        pytest.param({"METAINFER_CONCURRENCY": "0"}, "not a whole number from 1 to 256", id="concurrency"),
        pytest.param({"METAINFER_THREADS": "0"}, "METAINFER_THREADS", id="threads"),
        pytest.param(
            {"METAINFER_EXECUTION_PROVIDERS": "CUDAExecutionProvider"}, "this image has CPUExecutionProvider, OpenVINOExecutionProvider", id="provider"
        ),
        pytest.param({"METAINFER_EXECUTION_PROVIDERS": ","}, "names nothing", id="empty list of providers"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(environment: ModuleType, told: dict[str, str], words: str) -> None:
    """Variable, value and what would be right."""
    with pytest.raises(environment.SettingInvalid) as caught:
        environment.read_settings(MODEL | told, AVAILABLE)
    assert words in str(caught.value)
