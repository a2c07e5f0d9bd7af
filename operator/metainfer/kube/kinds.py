"""The kinds this operator talks about, as constants. Nothing here knows what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from metainfer.api.v1alpha1 import accelerator_pool, model_adaptation, node_portrait
from metainfer.api.v1alpha1.common import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of the API, enough to build its addresses. The core group is the empty string."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """As it stands in a manifest: ``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Address below the server's root; a namespaced kind without a namespace means all namespaces.

        Raises ValueError when the namespace does not fit the kind: a wrong address would answer about other objects.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.kind} has no namespace, got {namespace!r}")
        if self.namespaced and namespace is None and name is not None:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        below = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
        tail = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part is not None)
        return f"{root}{below}/{self.plural}{tail}"


NODE: Final = Kind("", "v1", "Node", "nodes", namespaced=False)
POD: Final = Kind("", "v1", "Pod", "pods", namespaced=True)
EVENT: Final = Kind("", "v1", "Event", "events", namespaced=True)
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps", namespaced=True)
SERVICE: Final = Kind("", "v1", "Service", "services", namespaced=True)
DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)
NAMESPACE: Final = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
PERSISTENT_VOLUME_CLAIM: Final = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True)
PERSISTENT_VOLUME: Final = Kind("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
JOB: Final = Kind("batch", "v1", "Job", "jobs", namespaced=True)
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments", namespaced=True)
RUNTIME_CLASS: Final = Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False)
CUSTOM_RESOURCE_DEFINITION: Final = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
POOL: Final = Kind(GROUP, VERSION, accelerator_pool.KIND, accelerator_pool.PLURAL, namespaced=False)
ADAPTATION: Final = Kind(GROUP, VERSION, model_adaptation.KIND, model_adaptation.PLURAL, namespaced=True)
PORTRAIT: Final = Kind(GROUP, VERSION, node_portrait.KIND, node_portrait.PLURAL, namespaced=False)

WATCHED: Final = (POOL, ADAPTATION, PORTRAIT, NODE, DEPLOYMENT, JOB, POD)
"""In the order in which they are listed: what is kept of the later ones depends on the earlier ones."""
