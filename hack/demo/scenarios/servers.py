"""Servers that do well or badly under what benchmarks find best, as their owners start them."""

from __future__ import annotations

from collections.abc import Callable

from scenarios.stage import OTHER_MODEL, Stage
from scenarios.watched import Object, Watched

START = "exec /opt/venv/bin/mlserver start /srv"
REFUSES = f'case "$METAINFER_EXECUTION_PROVIDERS" in *OpenVINO*) echo "this image cannot do that"; exit 1;; esac; {START}'
"""A server that runs as its owner starts it, and ends at once under what benchmarks find best."""
BURNS = f'case "$METAINFER_EXECUTION_PROVIDERS" in *OpenVINO*) for i in 1 2 3; do (while :; do :; done) & done;; esac; {START}'
"""The same, but slower: three processes beside it take most of its processor, of which no benchmark knows."""


def serve_elsewhere(stage: Stage, name: str, script: str, *, prepare: Callable[[Object], None] = lambda _deployment: None) -> Watched:
    """Not on the family on which the model is fastest, so that something is written. ``prepare`` changes the Deployment before it is applied."""
    with stage.closed([*stage.family_nodes("openvino-cpu"), *stage.degraded_nodes()]):
        return stage.serve(name, OTHER_MODEL, prepare=prepare, command=["/bin/sh", "-c", script])


def make_separable(deployment: Object) -> None:
    """As owners write a server that loses no request in a rollout, and that a trial can stand beside.

    Old pods go on answering until nobody sends them anything, a new one is there first, and the Deployment selects on more than the Service.
    """
    spec = deployment["spec"]
    spec["strategy"] = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec["selector"]["matchLabels"] |= {"part": "server"}
    spec["template"]["metadata"]["labels"] |= {"part": "server"}
    spec["template"]["spec"]["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 5}}}
