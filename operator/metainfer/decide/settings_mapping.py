"""Which environment variables carry which settings, and what the server runs with now (the baseline). Pure.

Presets are data. A setting that the owner declares is fixed at its value, and so is one that no variable carries: what
is chosen can then be written whole, and what is written was measured together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from metainfer.api.v1alpha1.model_adaptation import Settings, SettingsEnv
from metainfer.decide.declared import Declaration, find_declaration, reads_setting
from metainfer.decide.environment import ConfigMaps, env_values
from metainfer.decide.facts import ContainerFacts, TargetFacts
from metainfer.decide.ownership import env_path, readable
from metainfer.decide.setting_values import SETTINGS, DelayUnit, Setting, Value, format_setting, parse_setting
from metainfer_probe.contract import Precision, ServingConfig

PLAIN_DEFAULTS: Final[Mapping[Setting, str]] = {
    "precision": "fp32",
    "max_batch_size": "1",
    "max_batch_delay": "0ms",
    "concurrency": "1",
    "execution_providers": "CPUExecutionProvider",
}
"""Of the MetaInfer server by its documentation; of a server that is mapped by hand, by assumption (and said so)."""


@dataclass(frozen=True, slots=True)
class SettingsMapping:
    """How settings reach one kind of server."""

    names: Mapping[Setting, str]
    """Environment variable of each setting; one that is missing here cannot be set."""
    defaults: Mapping[Setting, str] = field(default_factory=lambda: PLAIN_DEFAULTS)
    """What the server does when a variable is not set, in the variable's own spelling."""
    providers: tuple[str, ...] = ()
    """Execution providers that the image serves; empty = not known."""
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")
    """Precisions that the image makes at load from the given file; others can only be recommended."""
    delay_unit: DelayUnit = "duration"
    documented: bool = True
    """Whether ``defaults`` are the server's own words."""


_OUR_NAMES: Final[Mapping[Setting, str]] = {
    "precision": "METAINFER_PRECISION",
    "max_batch_size": "METAINFER_MAX_BATCH_SIZE",
    "max_batch_delay": "METAINFER_MAX_BATCH_DELAY",
    "concurrency": "METAINFER_CONCURRENCY",
    "execution_providers": "METAINFER_EXECUTION_PROVIDERS",
}
_OUR_PROVIDERS: Final = ("CPUExecutionProvider", "OpenVINOExecutionProvider")

PRESETS: Final[Mapping[str, SettingsMapping]] = {
    "MetaInfer": SettingsMapping(names=_OUR_NAMES, providers=_OUR_PROVIDERS),
    # MLServer's ModelSettings: max_batch_size 0 and max_batch_time 0.0 (seconds) mean no adaptive batching.
    "MLServer": SettingsMapping(
        names={**_OUR_NAMES, "max_batch_size": "MLSERVER_MODEL_MAX_BATCH_SIZE", "max_batch_delay": "MLSERVER_MODEL_MAX_BATCH_TIME"},
        defaults={**PLAIN_DEFAULTS, "max_batch_size": "0", "max_batch_delay": "0"},
        providers=_OUR_PROVIDERS,
        delay_unit="seconds",
    ),
}


def resolve_mapping(settings: Settings | None, execution_providers: Sequence[str] = ()) -> SettingsMapping | None:
    """The preset's row, or one from the given names; None when nothing says how settings reach the server.

    ``execution_providers`` is configSpace.executionProviders: what the user says that the image serves.
    """
    if settings is None:
        return None
    if settings.preset is not None:
        preset = PRESETS[settings.preset]
        return SettingsMapping(preset.names, preset.defaults, tuple(execution_providers) or preset.providers, preset.precisions, preset.delay_unit)
    return _custom_mapping(settings.env, tuple(execution_providers)) if settings.env is not None else None


def _custom_mapping(env: SettingsEnv, execution_providers: tuple[str, ...]) -> SettingsMapping | None:
    given: Mapping[Setting, str | None] = {
        "precision": env.precision,
        "max_batch_size": env.max_batch_size,
        "max_batch_delay": env.max_batch_delay,
        "concurrency": env.concurrency,
        "execution_providers": env.execution_providers,
    }
    names = {setting: name for setting, name in given.items() if name is not None}
    if not names:
        return None
    first = execution_providers[0] if execution_providers else PLAIN_DEFAULTS["execution_providers"]
    defaults: Mapping[Setting, str] = {**PLAIN_DEFAULTS, "execution_providers": first}
    return SettingsMapping(names, defaults, execution_providers, documented=False)


def render_settings(mapping: SettingsMapping, config: ServingConfig) -> Mapping[str, str]:
    """Value of each mapped variable for a configuration; precision is always among them where it can be set."""
    return {name: format_setting(setting, config, mapping.delay_unit) for setting, name in mapping.names.items()}


@dataclass(frozen=True, slots=True)
class FixedSettings:
    """Values that cannot be chosen, because the owner declares them or no variable carries them; None = free."""

    precision: Precision | None = None
    batch_size: int | None = None
    concurrency: int | None = None
    max_batch_delay_us: int | None = None
    execution_provider: str | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the server runs with now, as far as its environment tells."""

    config: ServingConfig
    notes: tuple[str, ...] = ()
    """What was assumed, or cannot be used, each naming path and manager."""
    fixed: Mapping[Setting, Declaration] = field(default_factory=dict)
    """Settings that the owner declares."""
    fixed_at: FixedSettings = FixedSettings()
    unusable: frozenset[Setting] = frozenset()
    """Of ``fixed``: those whose value cannot be read; the default stands in for them, and nothing may be written."""


def settings_that_fix(baseline: Baseline) -> FixedSettings:
    """What the candidates must keep."""
    return baseline.fixed_at


@dataclass(frozen=True, slots=True)
class _Reading:
    """One setting as it is now."""

    value: Value
    note: str = ""
    declaration: Declaration | None = None
    settable: bool = True
    usable: bool = True

    @property
    def free(self) -> bool:
        return self.declaration is None and self.settable


def read_baseline(mapping: SettingsMapping | None, target: TargetFacts, container: ContainerFacts, config_maps: ConfigMaps) -> Baseline:
    """The present configuration: what the owner declares, what we applied before, and the server's defaults for the rest.

    Without a mapping everything counts as a plain server's default, and everything is free: it can only be recommended.
    """
    if mapping is None:
        return Baseline(_config({setting: _default(SettingsMapping({}), setting) for setting in SETTINGS}))
    reader = _Reader(mapping, target, container, config_maps)
    readings = {setting: reader.read(setting) for setting in SETTINGS}
    config = _config({setting: reading.value for setting, reading in readings.items()})
    return Baseline(
        config=config,
        notes=(*(reading.note for reading in readings.values() if reading.note), *_batching_note(readings, config)),
        fixed={setting: reading.declaration for setting, reading in readings.items() if reading.declaration is not None},
        fixed_at=_fixed_at(readings),
        unusable=frozenset(setting for setting, reading in readings.items() if not reading.usable),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Where the settings of one server are read."""

    mapping: SettingsMapping
    target: TargetFacts
    container: ContainerFacts
    config_maps: ConfigMaps

    def read(self, setting: Setting) -> _Reading:
        name = self.mapping.names.get(setting)
        if name is None:
            return self._read_unmapped(setting)
        declaration = find_declaration(self.target, self.container, name, self.config_maps)
        if declaration is not None:
            return self._read_declared(setting, declaration)
        return self._read_own(setting, name)

    def _read_unmapped(self, setting: Setting) -> _Reading:
        default = _default(self.mapping, setting)
        if setting == "execution_providers" and not self.mapping.providers:
            # Nobody says what the image runs on: the server picks what it finds on the node.
            return _Reading(default, f"{setting} has no variable and configSpace.executionProviders is empty: the server is taken to pick its provider itself")
        return _Reading(default, f"{setting} has no variable: taken as {self.mapping.defaults[setting]} and never changed", settable=False)

    def _read_declared(self, setting: Setting, declaration: Declaration) -> _Reading:
        default, word = _default(self.mapping, setting), self.mapping.defaults[setting]
        if declaration.value is None:
            return _Reading(default, f"{declaration} gives {setting} a value that cannot be read: nothing is written", declaration, usable=False)
        if not declaration.value.strip():
            return _Reading(default, f"{declaration} is empty: read as the default, {word}", declaration)
        value = parse_setting(setting, declaration.value, self.mapping.delay_unit)
        if value is None:
            note = f"{declaration} gives {setting} the value {declaration.value[:64]!r}, which cannot be used: nothing is written"
            return _Reading(default, note, declaration, usable=False)
        return _Reading(value, "", declaration)

    def _read_own(self, setting: Setting, name: str) -> _Reading:
        applied = env_values(self.container, self.config_maps).get(name)
        value = parse_setting(setting, applied, self.mapping.delay_unit) if applied else None
        if value is not None:
            return _Reading(value)
        default, word = _default(self.mapping, setting), self.mapping.defaults[setting]
        path = readable(env_path(self.container, name))
        if reads_setting(self.container, name):
            return _Reading(default, f"{path} is not set, so the server receives $({name}) as it stands: {setting} counts as {word}")
        return _Reading(default, "" if self.mapping.documented else f"{path} is not set: {setting} counts as {word}")


def _default(mapping: SettingsMapping, setting: Setting) -> Value:
    value = parse_setting(setting, mapping.defaults[setting], mapping.delay_unit)
    if value is None:
        raise ValueError(f"default of {setting} cannot be parsed: {mapping.defaults[setting]!r}")
    return value


def _config(values: Mapping[Setting, Value]) -> ServingConfig:
    """Requests are joined only with room for two and time to wait; else the server runs single requests."""
    batches = int(values["max_batch_size"]) > 1 and int(values["max_batch_delay"]) > 0
    return ServingConfig.model_validate(
        {
            "execution_provider": values["execution_providers"],
            "precision": values["precision"],
            "batch_size": values["max_batch_size"] if batches else 1,
            "concurrency": values["concurrency"],
            "dynamic_batching": batches,
            "max_batch_delay_us": values["max_batch_delay"] if batches else 0,
        }
    )


def _batching_note(readings: Mapping[Setting, _Reading], config: ServingConfig) -> tuple[str, ...]:
    size = int(readings["max_batch_size"].value)
    off = size > 1 and not config.dynamic_batching
    return (f"batch size {size} has no effect, because the batch delay is 0: requests are served one by one",) if off else ()


_FIELDS: Final[Mapping[Setting, str]] = {
    "precision": "precision",
    "max_batch_size": "batch_size",
    "max_batch_delay": "max_batch_delay_us",
    "concurrency": "concurrency",
    "execution_providers": "execution_provider",
}


def _fixed_at(readings: Mapping[Setting, _Reading]) -> FixedSettings:
    fixed: dict[str, Any] = {_FIELDS[setting]: reading.value for setting, reading in readings.items() if not reading.free}
    if fixed.get("max_batch_delay_us") == 0 and fixed.get("batch_size", 1) > 1:
        fixed["batch_size"] = 1
    return FixedSettings(**fixed)


def find_disagreements(fixed: FixedSettings, config: ServingConfig) -> tuple[Setting, ...]:
    """Fixed settings that a configuration would need to change. Without batching neither batch size nor delay has an effect."""
    found: list[Setting] = []
    if fixed.precision not in (None, config.precision):
        found.append("precision")
    if _batch_disagrees(fixed, config):
        found.append("max_batch_size")
    if config.dynamic_batching and fixed.max_batch_delay_us not in (None, config.max_batch_delay_us):
        found.append("max_batch_delay")
    if fixed.concurrency not in (None, config.concurrency):
        found.append("concurrency")
    if fixed.execution_provider not in (None, config.execution_provider):
        found.append("execution_providers")
    return tuple(found)


def _batch_disagrees(fixed: FixedSettings, config: ServingConfig) -> bool:
    if fixed.batch_size is None:
        return False
    if config.dynamic_batching:
        return fixed.batch_size != config.batch_size
    return fixed.batch_size > 1 and bool(fixed.max_batch_delay_us)
