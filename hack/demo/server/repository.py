"""The one model of this server, described to MLServer from the environment instead of from files.

``mlserver start FOLDER`` reads ``settings.json``, which names this class; so nothing has to be written at start, and our
names of the batching settings reach MLServer before it looks for its own.
"""

from __future__ import annotations

import os

from environment import SettingInvalid, read_settings
from mlserver.repository import ModelRepository
from mlserver.settings import ModelParameters, ModelSettings

from metainfer_probe.backends import available_providers

RUNTIME = "runtime.ProbeRuntime"


class EnvironmentRepository(ModelRepository):  # type: ignore[misc]  # MLServer has no types
    """Lists exactly one model. Ends the process with one sentence when the environment cannot be used."""

    def __init__(self, root: str) -> None:
        self._root = root

    async def list(self) -> list[ModelSettings]:
        """The settings of the model to serve, batching included."""
        try:
            settings = read_settings(os.environ, available_providers())
        except SettingInvalid as error:
            raise SystemExit(f"error: {error}") from None
        return [
            ModelSettings(
                name=settings.model_name,
                implementation=RUNTIME,
                platform="onnx",
                max_batch_size=settings.batch_size,
                max_batch_time=settings.config.max_batch_delay_us / 1e6,
                parameters=ModelParameters(uri=str(settings.model_path)),
            )
        ]

    async def find(self, name: str) -> list[ModelSettings]:
        """The model's settings if it has that name."""
        return [settings for settings in await self.list() if settings.name == name]
