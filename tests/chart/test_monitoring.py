"""Alert rules and dashboard: what they ask for exists, and each alert fires when it should and not otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase
from scenarios.prometheus import INSTALL, install, is_installed
from tests.chart.promtool import RULES, build_alert_test, build_recording_rules, promtool, read_alerts, read_panels

from metainfer import metrics

ROOT = Path(__file__).resolve().parents[2]
Labels = Mapping[str, str]


@pytest.fixture(scope="module", autouse=True)
def _promtool() -> None:
    if is_installed():
        return
    if os.geteuid() != 0:
        pytest.skip(f"NO PROMTOOL: alert rules are not tested; as root: {INSTALL}")
    install()


@dataclass(frozen=True)
class Case:
    """What Prometheus has scraped, one sample a minute, and what is to come of it at a moment."""

    alert: str
    series: Mapping[str, str]
    at: str
    fires: Sequence[Labels] = ()


def passes(result: str, values: str) -> Mapping[str, str]:
    return {f'metainfer_reconcile_seconds_count{{kind="adaptation",result="{result}"}}': values}


def waits(quick: str, all_: str) -> Mapping[str, str]:
    """``all_`` of the keys within 30 s, and those that waited at most 10 s."""
    return {f'metainfer_queue_age_seconds_bucket{{le="{edge}"}}': values for edge, values in (("10", quick), ("30", all_), ("+Inf", all_))}


def answers(code: str, values: str) -> Mapping[str, str]:
    return {f'metainfer_api_requests_total{{verb="create",code="{code}"}}': values}


def conditions(kind: str, status: str, values: str) -> Mapping[str, str]:
    return {f'metainfer_conditions{{kind="ModelAdaptation",type="{kind}",status="{status}",reason="NoPool"}}': values}


def served(values: str) -> Mapping[str, str]:
    return {'metainfer_served_p99_ratio{namespace="models",name="ocr"}': values}


def scraped(name: str, labels: str, values: str) -> Mapping[str, str]:
    return {f"{name}{{{labels}}}": values}


CASES = {
    "not scraped for ten minutes": Case("MetaInferDown", scraped("up", 'job="other"', "1x20"), "11m", [{}]),
    "scraped": Case("MetaInferDown", scraped("metainfer_event_loop_lag_seconds", "", "0x20"), "11m"),
    "away for a moment": Case("MetaInferDown", scraped("metainfer_event_loop_lag_seconds", "", "0x3 _x8 0x10"), "14m"),
    "listed half an hour ago": Case(
        "MetaInferStale", scraped("metainfer_resync_last_success_timestamp_seconds", 'kind="Node"', "0x60"), "36m", [{"kind": "Node"}]
    ),
    "listed every five minutes": Case("MetaInferStale", scraped("metainfer_resync_last_success_timestamp_seconds", 'kind="Node"', "0+60x60"), "36m"),
    "passes that fail": Case("MetaInferPassesFail", passes("failed", "0+1x60"), "20m", [{"kind": "adaptation"}]),
    "one failed pass": Case("MetaInferPassesFail", passes("failed", "0x3 1x60"), "20m"),
    "passes tried again": Case("MetaInferPassesFail", passes("retried", "0+1x60"), "20m"),
    "refused by the API server": Case("MetaInferForbidden", answers("403", "0+1x60"), "20m", [{"verb": "create"}]),
    "answered by the API server": Case("MetaInferForbidden", answers("201", "0+1x60"), "20m"),
    "long waits": Case("MetaInferQueueSlow", waits("0+5x60", "0+10x60"), "20m", [{}]),
    "a few long waits": Case("MetaInferQueueSlow", waits("0+19x60", "0+20x60"), "20m"),
    "late wake-ups": Case("MetaInferEventLoopSlow", scraped("metainfer_event_loop_lag_seconds", "", "2x60"), "20m", [{}]),
    "a late wake-up": Case("MetaInferEventLoopSlow", scraped("metainfer_event_loop_lag_seconds", "", "2x5 0 2x4 0x60"), "20m"),
    "events lost": Case("MetaInferWatchMisses", scraped("metainfer_resync_repairs_total", 'kind="Pod",sort="changed"', "0+1x200"), "2h30m", [{"kind": "Pod"}]),
    "events lost once": Case("MetaInferWatchMisses", scraped("metainfer_resync_repairs_total", 'kind="Pod",sort="changed"', "0x9 40x200"), "2h30m"),
    "unreadable": Case(
        "MetaInferUnreadableObjects", scraped("metainfer_unreadable_objects", 'kind="AcceleratorPool"', "1x20"), "6m", [{"kind": "AcceleratorPool"}]
    ),
    "readable": Case("MetaInferUnreadableObjects", scraped("metainfer_unreadable_objects", 'kind="AcceleratorPool"', "0x20"), "6m"),
    "other kinds' objects": Case("MetaInferUnreadableObjects", scraped("metainfer_unreadable_objects", 'kind="Pod"', "1x20"), "6m"),
    "store away": Case("MetaInferStoreAway", scraped("metainfer_store_up", "", "0x20"), "6m", [{}]),
    "store away for a moment": Case("MetaInferStoreAway", scraped("metainfer_store_up", "", "1x3 0x2 1x20"), "6m"),
    "rows refused": Case(
        "MetaInferRowsRefused", scraped("metainfer_store_rows_lost_total", 'table="samples",reason="refused"', "0x5 1x60"), "10m", [{"table": "samples"}]
    ),
    "rows that did not fit": Case("MetaInferRowsRefused", scraped("metainfer_store_rows_lost_total", 'table="samples",reason="full"', "0x5 1x60"), "10m"),
    "the first row refused": Case(
        "MetaInferRowsRefused", scraped("metainfer_store_rows_lost_total", 'table="samples",reason="refused"', "_x5 1x60"), "10m", [{"table": "samples"}]
    ),
    "a row refused long ago": Case("MetaInferRowsRefused", scraped("metainfer_store_rows_lost_total", 'table="samples",reason="refused"', "1x200"), "150m"),
    "an answer that does not hold": Case("MetaInferAnswerWrong", conditions("AnswerTrue", "False", "1x150"), "121m", [{"reason": "NoPool"}]),
    "an answer in doubt": Case("MetaInferAnswerWrong", conditions("AnswerTrue", "Unknown", "1x150"), "121m"),
    "slower for two hours": Case("MetaInferServiceSlower", served("1.4x150"), "121m", [{"namespace": "models", "name": "ocr"}]),
    "slower with a pause": Case("MetaInferServiceSlower", served("1.4x60 1.1 1.4x90"), "121m"),
    "the first decision taken back": Case(
        "MetaInferRolledBack", scraped("metainfer_rollbacks_total", 'reason="Worse"', "_x5 1x30"), "10m", [{"reason": "Worse"}]
    ),
    "another decision taken back": Case(
        "MetaInferRolledBack", scraped("metainfer_rollbacks_total", 'reason="Worse"', "1x90 2x30"), "95m", [{"reason": "Worse"}]
    ),
    "a decision taken back long ago": Case("MetaInferRolledBack", scraped("metainfer_rollbacks_total", 'reason="Worse"', "1x200"), "150m"),
    "cards degraded": Case("MetaInferCardsDegraded", scraped("metainfer_nodes", 'family="l4",health="Degraded"', "1x90"), "61m", [{"family": "l4"}]),
    "cards healthy": Case("MetaInferCardsDegraded", scraped("metainfer_nodes", 'family="l4",health="Healthy"', "8x90"), "61m"),
    "latency that cannot be read": Case("MetaInferLatencyUnread", conditions("LatencyObserved", "False", "1x90"), "61m", [{"reason": "NoPool"}]),
    "latency that nobody asks for": Case("MetaInferLatencyUnread", conditions("LatencyObserved", "Unknown", "1x90"), "61m"),
    "stalled": Case("MetaInferStalled", conditions("Stalled", "True", "2x30"), "16m", [{"kind": "ModelAdaptation", "reason": "NoPool"}]),
    "not stalled": Case("MetaInferStalled", conditions("Ready", "True", "2x30"), "16m"),
}


def test_rules_are_rules_to_prometheus() -> None:
    """Expressions, durations and templates of the texts."""
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    """Each case, with its exact labels and texts, by Prometheus' own evaluation."""
    tests = [{"name": name, **build_alert_test(case.alert, case.series, case.at, case.fires)} for name, case in CASES.items()]
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    tested = promtool("test", "rules", tmp_path / "cases.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_is_seen_to_fire_and_to_be_silent() -> None:
    """An alert without both cases may be always on, or never."""
    assert {case.alert for case in CASES.values() if case.fires} == read_alerts().keys()
    assert {case.alert for case in CASES.values() if not case.fires} == read_alerts().keys()


def test_every_alert_has_its_entry_in_the_operations_page() -> None:
    """Whoever is woken finds what to do; and the page names no alert that does not exist."""
    page = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"^\| `(MetaInfer\w+)` \|", page, re.MULTILINE)) == read_alerts().keys()


def test_the_dashboards_queries_are_queries_to_prometheus(tmp_path: Path) -> None:
    """Checked as recording rules, with Grafana's variables filled in."""
    (tmp_path / "panels.yaml").write_text(build_recording_rules([expression for _, expression in read_panels()]))
    checked = promtool("check", "rules", tmp_path / "panels.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def exported() -> dict[str, set[str]]:
    """Name of every series of the operator -> its labels."""
    found: dict[str, set[str]] = {}
    for metric in (item for item in vars(metrics).values() if isinstance(item, MetricWrapperBase)):
        labels = set(metric._labelnames)
        for described in metric.describe():
            if isinstance(metric, Histogram):
                found |= {f"{described.name}_{end}": labels | {"le"} for end in ("bucket", "sum", "count")}
            else:
                found[described.name + ("_total" if described.type == "counter" else "")] = labels
    return found


def asked_for() -> Iterator[tuple[str, str]]:
    """Where, and the expression."""
    yield from ((name, rule["expr"]) for name, rule in read_alerts().items())
    yield from read_panels()


@pytest.mark.parametrize(("where", "expression"), list(asked_for()))
def test_alerts_and_dashboard_ask_for_metrics_that_exist(where: str, expression: str) -> None:
    """A metric or label that is renamed leaves an alert that never fires and a panel that stays empty."""
    series = exported()
    names = set(re.findall(r"\bmetainfer_\w+", expression))
    assert names, where
    assert names <= series.keys(), where
    labels = {label for group in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression) for label in re.split(r",\s*", group)}
    labels |= set(re.findall(r"[{,]\s*(\w+)\s*[=!]~?\"", expression))
    assert labels - {"namespace", "pod", "job", "instance"} <= set.union(*(series[name] for name in names)), where
