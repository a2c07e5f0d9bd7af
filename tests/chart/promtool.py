"""The real promtool over the chart's alert rules and the expressions of its dashboard."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

FILES = Path(__file__).resolve().parents[2] / "charts" / "meta-infer" / "files"
RULES = FILES / "rules.yaml"
DASHBOARD = FILES / "dashboard.json"

INTERVALS = {"$__rate_interval": "5m", "$__range": "1d", "$__interval": "1m"}
"""What Grafana puts in place of its variables."""


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], check=False, capture_output=True, text=True)


def read_alerts() -> dict[str, dict[str, Any]]:
    """Every alert by its name."""
    document = yaml.safe_load(RULES.read_text())
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def read_panels() -> Iterator[tuple[str, str]]:
    """Title and expression of every query of the dashboard, variables filled in."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in INTERVALS.items():
                expression = expression.replace(name, value)
            yield panel["title"], re.sub(r"\$\w+", ".*", expression)


def build_recording_rules(expressions: Sequence[str]) -> str:
    """A rule file that promtool can check, one recording rule per expression."""
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions)]
    return yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]})


def build_alert_test(alert: str, series: Mapping[str, str], at: str, fires: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """One test for ``promtool test rules``: these alerts, with exactly these labels and the texts that belong to them, and no other."""
    rule = read_alerts()[alert]
    expected = [
        {"exp_labels": {**rule["labels"], **labels}, "exp_annotations": {name: _fill(text, labels) for name, text in rule["annotations"].items()}}
        for labels in fires
    ]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": expected}],
    }


def _fill(text: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)
