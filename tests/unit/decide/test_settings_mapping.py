from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import CPU_PROVIDER, OPENVINO_PROVIDER, make_config, make_container, make_env_owner, make_target

from metainfer.api.v1alpha1.model_adaptation import Settings, SettingsEnv
from metainfer.decide.candidates import Choice
from metainfer.decide.environment import ConfigMaps
from metainfer.decide.facts import ContainerFacts, EnvEntry, EnvFrom
from metainfer.decide.setting_values import SETTINGS, DelayUnit, Setting, format_setting, parse_setting
from metainfer.decide.settings_mapping import (
    PRESETS,
    Baseline,
    FixedSettings,
    SettingsMapping,
    find_disagreements,
    read_baseline,
    render_settings,
    resolve_mapping,
    settings_that_fix,
)
from metainfer_probe.contract import ServingConfig

METAINFER, MLSERVER = PRESETS["MetaInfer"], PRESETS["MLServer"]
BATCHING = {"dynamic_batching": True, "batch_size": 8, "max_batch_delay_us": 5_000}


def baseline_of(
    container: ContainerFacts, mapping: SettingsMapping | None = METAINFER, *, ours: tuple[str, ...] = (), maps: ConfigMaps | None = None
) -> Baseline:
    managed = (make_env_owner(container, *ours),) if ours else ()
    return read_baseline(mapping, make_target("ocr", container, managed=managed), container, maps or {})


def custom(**names: str) -> SettingsMapping:
    mapping = resolve_mapping(Settings(env=SettingsEnv(**names)))
    assert mapping is not None
    return mapping


# --- the mapping ---


@pytest.mark.parametrize("settings", [None, Settings(), Settings(env=SettingsEnv())])
def test_without_names_there_is_no_mapping(settings: Settings | None) -> None:
    """Nothing says how a setting would reach the server."""
    assert resolve_mapping(settings) is None


def test_the_presets_differ_where_the_servers_do() -> None:
    """MLServer has its own names for batching, in its own unit; the rest is ours."""
    ours, theirs = resolve_mapping(Settings(preset="MetaInfer")), resolve_mapping(Settings(preset="MLServer"))
    assert ours is not None
    assert theirs is not None
    config = make_config(execution_provider=OPENVINO_PROVIDER, precision="bf16", concurrency=2, **BATCHING)
    assert render_settings(ours, config) == {
        "METAINFER_PRECISION": "bf16",
        "METAINFER_MAX_BATCH_SIZE": "8",
        "METAINFER_MAX_BATCH_DELAY": "5ms",
        "METAINFER_CONCURRENCY": "2",
        "METAINFER_EXECUTION_PROVIDERS": OPENVINO_PROVIDER,
    }
    assert render_settings(theirs, config) == {
        "METAINFER_PRECISION": "bf16",
        "MLSERVER_MODEL_MAX_BATCH_SIZE": "8",
        "MLSERVER_MODEL_MAX_BATCH_TIME": "0.005",
        "METAINFER_CONCURRENCY": "2",
        "METAINFER_EXECUTION_PROVIDERS": OPENVINO_PROVIDER,
    }


def test_the_user_knows_better_what_the_image_serves() -> None:
    """configSpace.executionProviders takes the place of the preset's list."""
    assert METAINFER.providers == (CPU_PROVIDER, OPENVINO_PROVIDER)
    mapping = resolve_mapping(Settings(preset="MetaInfer"), ("CUDAExecutionProvider",))
    assert mapping is not None
    assert mapping.providers == ("CUDAExecutionProvider",)


def test_only_named_settings_are_rendered() -> None:
    """A map of names sets what it names and nothing else."""
    assert render_settings(custom(concurrency="MI_MAX_NUM_SEQS"), make_config(concurrency=4)) == {"MI_MAX_NUM_SEQS": "4"}


def test_without_batching_no_delay_is_written() -> None:
    """A delay left over from elsewhere has no meaning for single requests."""
    values = render_settings(METAINFER, make_config(max_batch_delay_us=5_000))
    assert (values["METAINFER_MAX_BATCH_SIZE"], values["METAINFER_MAX_BATCH_DELAY"]) == ("1", "0ms")


# --- spelling ---

configs = st.builds(
    ServingConfig,
    execution_provider=st.sampled_from((CPU_PROVIDER, OPENVINO_PROVIDER)),
    precision=st.sampled_from(("fp32", "bf16", "fp16", "int8")),
    batch_size=st.integers(2, 1024),
    concurrency=st.integers(1, 256),
    dynamic_batching=st.just(value=True),
    max_batch_delay_us=st.integers(1, 10_000_000),
)


@given(config=configs, unit=st.sampled_from(("duration", "seconds")))
def test_what_is_written_reads_back_as_the_same(config: ServingConfig, unit: DelayUnit) -> None:
    """Every setting in every unit, exactly: a rounded delay would look like a difference for ever."""
    read = {setting: parse_setting(setting, format_setting(setting, config, unit), unit) for setting in SETTINGS}
    assert read == {
        "precision": config.precision,
        "max_batch_size": config.batch_size,
        "max_batch_delay": config.max_batch_delay_us,
        "concurrency": config.concurrency,
        "execution_providers": config.execution_provider,
    }


@pytest.mark.parametrize(
    ("setting", "text", "unit", "want"),
    [
        pytest.param("max_batch_size", "0", "seconds", 1, id="MLServer's 0 is no batching"),
        pytest.param("max_batch_size", "-1", "duration", None, id="negative"),
        pytest.param("max_batch_size", "4096", "duration", None, id="beyond what is measured"),
        pytest.param("max_batch_size", "٣", "duration", None, id="digits of another script"),
        pytest.param("concurrency", "0", "duration", None, id="no execution at all"),
        pytest.param("concurrency", "auto", "duration", None, id="a word"),
        pytest.param("precision", "int8", "duration", "int8", id="a precision"),
        pytest.param("precision", "INT8", "duration", None, id="not the documented spelling"),
        pytest.param("max_batch_delay", "1m30s", "duration", None, id="longer than is measured"),
        pytest.param("max_batch_delay", "300us", "duration", 300, id="microseconds"),
        pytest.param("max_batch_delay", "0.005", "duration", None, id="seconds where a duration belongs"),
        pytest.param("max_batch_delay", "0.02", "seconds", 20_000, id="decimal seconds"),
        pytest.param("max_batch_delay", "5e-3", "seconds", 5_000, id="as Python reads a float"),
        pytest.param("max_batch_delay", "nan", "seconds", None, id="not a number"),
        pytest.param("max_batch_delay", "-0.1", "seconds", None, id="negative seconds"),
        pytest.param("max_batch_delay", "5ms", "seconds", None, id="a duration where seconds belong"),
        pytest.param("execution_providers", "OpenVINOExecutionProvider, CPUExecutionProvider", "duration", OPENVINO_PROVIDER, id="the first provider runs"),
        pytest.param("execution_providers", "P" * 64, "duration", "P" * 64, id="the longest name of a provider"),
        pytest.param("execution_providers", "P" * 65, "duration", None, id="longer than any provider's name"),
        pytest.param("execution_providers", "[cpu]", "duration", None, id="another list syntax"),
    ],
)
def test_reading_is_strict(setting: Setting, text: str, unit: DelayUnit, want: object) -> None:
    """What the server may understand otherwise is unusable, never a guess."""
    assert parse_setting(setting, text, unit) == want


# --- the baseline ---


@pytest.mark.parametrize("mapping", [METAINFER, MLSERVER, None])
def test_a_server_without_settings_runs_with_the_defaults(mapping: SettingsMapping | None) -> None:
    """Documented defaults are no news, and nothing is fixed."""
    found = baseline_of(make_container(), mapping)
    assert found.config == make_config()
    assert (found.notes, dict(found.fixed), settings_that_fix(found)) == ((), {}, FixedSettings())


def test_declared_values_are_fixed_also_when_they_are_empty() -> None:
    """Two names without a usable value count as the default and are named; the third is fixed at its value."""
    container = replace(
        make_container("server"),
        env=(
            EnvEntry("METAINFER_PRECISION"),
            EnvEntry("METAINFER_MAX_BATCH_SIZE", ""),
            EnvEntry("METAINFER_CONCURRENCY", "2"),
            EnvEntry("OMP_NUM_THREADS", "2"),
        ),
    )
    names = ("METAINFER_PRECISION", "METAINFER_MAX_BATCH_SIZE", "METAINFER_CONCURRENCY")
    owner = make_env_owner(container, *names, manager="chart")
    found = read_baseline(METAINFER, make_target("ocr", container, managed=(owner,)), container, {})
    assert found.config == make_config(concurrency=2)
    assert settings_that_fix(found) == FixedSettings(precision="fp32", batch_size=1, concurrency=2)
    assert set(found.fixed) == {"precision", "max_batch_size", "concurrency"}
    assert [found.fixed[setting].value for setting in ("precision", "max_batch_size")] == ["", ""]
    assert found.unusable == frozenset()
    assert len(found.notes) == 2
    for note, name, default in zip(found.notes, names, ("fp32", "1"), strict=False):
        assert f'env[name="{name}"] (manager chart) is empty: read as the default, {default}' in note


def test_the_baseline_of_settings_in_config_maps() -> None:
    """The last source wins, the prefix builds the name, and MLServer's seconds become microseconds."""
    container = replace(
        make_container("embed"),
        env_from=(
            EnvFrom("ConfigMap", "base"),
            EnvFrom("ConfigMap", "site"),
            EnvFrom("ConfigMap", "site", prefix="MLSERVER_MODEL_"),
            EnvFrom("ConfigMap", "absent", optional=True),
        ),
    )
    maps: ConfigMaps = {
        "base": {"MLSERVER_MODEL_MAX_BATCH_SIZE": "8", "MLSERVER_MODEL_MAX_BATCH_TIME": "0.005"},
        "site": {"MLSERVER_MODEL_MAX_BATCH_SIZE": "16", "MAX_BATCH_TIME": "0.02"},
        "absent": None,
    }
    found = baseline_of(container, MLSERVER, maps=maps)
    assert found.config == make_config(batch_size=16, dynamic_batching=True, max_batch_delay_us=20_000)
    assert settings_that_fix(found) == FixedSettings(batch_size=16, max_batch_delay_us=20_000)
    assert {setting: declaration.source for setting, declaration in found.fixed.items()} == {
        "max_batch_size": "ConfigMap site, key MLSERVER_MODEL_MAX_BATCH_SIZE",
        "max_batch_delay": "ConfigMap site, key MAX_BATCH_TIME",
    }


def test_a_reference_to_a_variable_that_nobody_sets_is_not_set() -> None:
    """Before the first apply the server receives the literal text; other settings have no variable and stay as assumed."""
    container = make_container("engine", command=("serve", "--max-num-seqs", "$(MI_MAX_NUM_SEQS)", "$$(NOT_EXPANDED)"))
    found = baseline_of(container, custom(concurrency="MI_MAX_NUM_SEQS"))
    assert found.config == make_config()
    assert found.fixed == {}
    assert settings_that_fix(found) == FixedSettings(precision="fp32", batch_size=1, max_batch_delay_us=0)
    assert any("MI_MAX_NUM_SEQS" in note and "is not set" in note for note in found.notes)


def test_what_a_server_of_unknown_kind_does_by_itself_is_said_to_be_assumed() -> None:
    """A map of names documents no defaults."""
    found = baseline_of(make_container(), custom(max_batch_size="BATCH", max_batch_delay="WAIT"))
    assert any('env[name="BATCH"] is not set: max_batch_size counts as 1' in note for note in found.notes)


def test_our_own_entries_are_the_present_configuration_and_stay_free() -> None:
    """After an apply the baseline is what we wrote, and the next choice may change all of it."""
    config = make_config(precision="int8", concurrency=2, **BATCHING)
    values = render_settings(METAINFER, config)
    container = make_container(env=values)
    found = baseline_of(container, ours=tuple(values))
    assert found.config == config
    assert settings_that_fix(found) == FixedSettings()


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(make_container(env={"METAINFER_PRECISION": "auto"}), id="a word that is no precision"),
        pytest.param(replace(make_container(), env=(EnvEntry("METAINFER_PRECISION", source="secret s/k"),)), id="from a Secret"),
    ],
)
def test_a_declared_value_that_cannot_be_used_is_fixed_and_named(container: ContainerFacts) -> None:
    """The default stands in for it, so that something can be recommended; nothing will be written."""
    found = baseline_of(container)
    assert found.config.precision == "fp32"
    assert settings_that_fix(found).precision == "fp32"
    assert found.unusable == {"precision"}
    assert len(found.notes) == 1
    assert "METAINFER_PRECISION" in found.notes[0]
    assert "nothing is written" in found.notes[0]


def test_batches_without_time_to_wait_are_single_requests() -> None:
    """MLServer batches only with both; a declared size alone has no effect until a delay is set."""
    found = baseline_of(make_container(env={"MLSERVER_MODEL_MAX_BATCH_SIZE": "8"}), MLSERVER)
    assert found.config == make_config()
    assert settings_that_fix(found).batch_size == 8
    assert any("batch size 8 has no effect" in note for note in found.notes)


def test_a_delay_without_room_for_two_is_no_batching() -> None:
    """Batch 1 never waits, whatever delay is declared."""
    found = baseline_of(make_container(env={"METAINFER_MAX_BATCH_DELAY": "5ms"}))
    assert found.config == make_config()
    assert settings_that_fix(found) == FixedSettings(max_batch_delay_us=5_000)
    assert found.notes == ()


def test_batching_that_the_owner_switched_off_stays_off() -> None:
    """Size and delay declared, the delay 0: no choice can batch."""
    found = baseline_of(make_container(env={"METAINFER_MAX_BATCH_SIZE": "8", "METAINFER_MAX_BATCH_DELAY": "0ms"}))
    fixed = settings_that_fix(found)
    assert (fixed.batch_size, fixed.max_batch_delay_us) == (1, 0)
    assert find_disagreements(fixed, make_config()) == ()
    assert find_disagreements(fixed, make_config(**BATCHING)) == ("max_batch_size", "max_batch_delay")


def test_the_provider_of_a_server_that_picks_it_itself_is_free() -> None:
    """With no variable for it and no word about what the image serves, no family is ruled out."""
    names = SettingsEnv(concurrency="N")
    assert settings_that_fix(baseline_of(make_container(), custom(concurrency="N"))).execution_provider is None
    told = resolve_mapping(Settings(env=names), ("CUDAExecutionProvider",))
    assert settings_that_fix(baseline_of(make_container(), told)).execution_provider == "CUDAExecutionProvider"


def test_fixed_settings_are_what_candidates_are_built_with() -> None:
    """The two modules meet in this shape."""
    fixed = Choice(families=(), fixed=FixedSettings(precision="int8")).fixed
    assert fixed.precision == "int8"


# --- agreement of a choice with what is fixed ---


@pytest.mark.parametrize(
    ("fixed", "config", "want"),
    [
        pytest.param(FixedSettings(), make_config(precision="int8", **BATCHING), (), id="everything free"),
        pytest.param(FixedSettings(precision="fp32"), make_config(precision="int8"), ("precision",), id="another precision"),
        pytest.param(FixedSettings(concurrency=2), make_config(), ("concurrency",), id="another concurrency"),
        pytest.param(FixedSettings(execution_provider=OPENVINO_PROVIDER), make_config(), ("execution_providers",), id="another provider"),
        pytest.param(FixedSettings(batch_size=4), make_config(**BATCHING), ("max_batch_size",), id="another batch"),
        pytest.param(FixedSettings(max_batch_delay_us=1), make_config(**BATCHING), ("max_batch_delay",), id="another delay"),
        pytest.param(FixedSettings(max_batch_delay_us=5_000), make_config(), (), id="a delay that single requests never wait"),
        pytest.param(FixedSettings(batch_size=8), make_config(), (), id="batching is switched off by the delay, which is free"),
        pytest.param(FixedSettings(batch_size=1, max_batch_delay_us=1), make_config(), (), id="the owner declares single requests"),
        pytest.param(FixedSettings(batch_size=8, max_batch_delay_us=1), make_config(), ("max_batch_size",), id="the owner makes the server batch"),
    ],
)
def test_a_choice_may_not_need_what_is_fixed_elsewhere(fixed: FixedSettings, config: ServingConfig, want: tuple[Setting, ...]) -> None:
    """Half a choice is never written."""
    assert find_disagreements(fixed, config) == want


@given(config=configs, declared=st.sets(st.sampled_from(SETTINGS)))
def test_a_configuration_that_is_declared_in_part_agrees_with_itself(config: ServingConfig, declared: set[Setting]) -> None:
    """Whatever the owner declares of a running configuration, read back it is that configuration and no contradiction."""
    values = render_settings(MLSERVER, config)
    container = make_container(env=values)
    mine = tuple(MLSERVER.names[setting] for setting in SETTINGS if setting not in declared)
    found = baseline_of(container, MLSERVER, ours=mine)
    assert found.config == config
    assert set(found.fixed) == declared
    assert find_disagreements(settings_that_fix(found), config) == ()
