"""Settings come from METAINFER_* variables, and a wrong one is named."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer import cli
from metainfer.decide.facts import MeasuringLimits
from metainfer.settings import Settings, SettingsError, read_settings

IMAGE = {"METAINFER_PROBE_IMAGE": "registry/probe:1"}


def test_the_image_is_all_that_must_be_set() -> None:
    """Everything else has a default; those of the limits are the limits' own."""
    settings = read_settings(IMAGE | {"PATH": "/bin", "KUBECONFIG": "x"})
    assert settings.limits() == MeasuringLimits(probe_image="registry/probe:1")


def test_every_limit_can_be_set() -> None:
    """No field of the limits is left at its default when its variable says otherwise."""
    values = {
        "OPERATOR_NAMESPACE": "ops", "IMAGE_PULL_POLICY": "Never", "IMAGE_BYTES": "5", "PRIORITY_CLASS": "low", "BENCH_WINDOW_SECONDS": "2.5",
        "BENCH_ROUNDS": "3", "PROFILE_BUDGET_SECONDS": "60", "JOB_START_SECONDS": "9", "THREADS_PER_CARD": "2", "JOB_USER_ID": "7",
        "DRIVER_SETTLE_SECONDS": "11",
    }  # fmt: skip
    limits = read_settings(IMAGE | {f"METAINFER_{name}": value for name, value in values.items()}).limits()
    for name, value in values.items():
        assert str(getattr(limits, name.lower())).removesuffix(".0") == value
    assert len(values) + 1 == len(MeasuringLimits.__dataclass_fields__)


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({}, "METAINFER_PROBE_IMAGE must be set"),
        (IMAGE | {"METAINFER_WORKERS": "0"}, "METAINFER_WORKERS is wrong: input should be greater than or equal to 1"),
        (IMAGE | {"METAINFER_RESYNC_SECONDS": "often"}, "METAINFER_RESYNC_SECONDS is wrong: input should be a valid number"),
        (IMAGE | {"METAINFER_LOG_LEVEL": "LOUD"}, "METAINFER_LOG_LEVEL is wrong: input should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        (IMAGE | {"METAINFER_WORKRS": "3"}, "METAINFER_WORKRS is not a setting; settings are METAINFER_BENCH_ROUNDS, "),
    ],
)
def test_a_wrong_setting_is_named_with_its_variable(environ: dict[str, str], want: str) -> None:
    """What is wrong, and what it may be; a typo is not silently a default."""
    with pytest.raises(SettingsError) as caught:
        read_settings(environ)
    assert want in str(caught.value)


@pytest.mark.parametrize("name", ["METAINFER_PORT", "METAINFER_SERVICE_HOST", "METAINFER_WEB_SERVICE_PORT_HTTP", "METAINFER_PORT_8080_TCP_ADDR"])
def test_variables_that_kubernetes_adds_for_services_are_no_typos(name: str) -> None:
    """A Service called metainfer must not keep the operator from starting."""
    assert read_settings(IMAGE | {name: "tcp://10.0.0.1:80"}).health_port == 8080


def test_the_stores_password_is_not_in_what_is_printed() -> None:
    """Settings end up in traces."""
    settings = read_settings({"METAINFER_PROBE_IMAGE": "probe:1", "METAINFER_STORE_URL": "postgresql://metainfer:s3cret@db/x"})
    assert "s3cret" not in f"{settings!r} {settings}"


def test_every_setting_says_what_it_is() -> None:
    """The chart's documentation is made of these."""
    assert [name for name, known in Settings.model_fields.items() if not (known.description or "").endswith(".")] == []


@given(st.dictionaries(st.sampled_from([name.upper() for name in Settings.model_fields]), st.sampled_from(["", "x", "-1", "1e9", "0", "null"]), max_size=4))
def test_no_value_does_anything_but_be_taken_or_named(values: dict[str, str]) -> None:
    """Settings, or SettingsError: nothing else comes out."""
    with contextlib.suppress(SettingsError):
        read_settings({f"METAINFER_{name}": value for name, value in values.items()})


def test_a_wrong_setting_ends_the_command_with_status_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, on one line, without a trace."""
    monkeypatch.delenv("METAINFER_PROBE_IMAGE", raising=False)
    assert cli.main(["run"]) == 2
    assert capsys.readouterr().err.startswith("metainfer: METAINFER_PROBE_IMAGE must be set")


def test_every_command_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """And version prints something without starting anything."""
    assert cli.main(["version"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert all(command.name in printed for command in cli.COMMANDS)
