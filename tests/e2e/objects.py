"""Objects that the end-to-end tests apply: targets with and without a real server, adaptations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab import IMAGES
from onnx import TensorProto, helper

Object = dict[str, Any]
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def make_target(name: str, *, env: list[Object] | None = None, **pod: Any) -> Object:
    """A Deployment that holds one card and sleeps: for tests about what is written, not about what is served."""
    container = {
        "name": "server",
        "image": IMAGES["probe"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["/opt/venv/bin/python", "-c", "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); signal.pause()"],
        "env": env or [],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi", "metainfer.dev/card": 1}, "limits": {"memory": "2Gi", "metainfer.dev/card": 1}},
        "securityContext": RESTRICTED,
    }
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"automountServiceAccountToken": False, "securityContext": security, "terminationGracePeriodSeconds": 2, "containers": [container], **pod}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def make_adaptation(name: str, model: str = "orientation", **spec: Any) -> Object:
    """An adaptation of the Deployment of the same name, bounded so that it decides within a minute or two."""
    defaults: Object = {
        "targetRef": {"name": name},
        "model": {"uri": f"pvc://models/{model}.onnx"},
        "settings": {"preset": "MetaInfer"},
        "configSpace": {"precisions": ["fp32"], "batchSizes": [1, 4]},
        "validation": {"topK": 2},
        "load": {"clients": 4},
    }
    merged = {key: value for key, value in (defaults | spec).items() if value is not None}
    return {"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "metadata": {"name": name}, "spec": merged}


WIDTH = 20_000


def write_wide_model(folder: Path) -> int:
    """``wide.onnx``: one MatMul whose weights (1.6 GB, a sparse file of zeros) lie beside it; returns their bytes."""
    size = WIDTH * WIDTH * 4
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "wide.bin"), ("offset", "0"), ("length", str(size))):
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "wide.onnx").write_bytes(model.SerializeToString())
    with (folder / "wide.bin").open("wb") as file:
        file.truncate(size)
    return size
