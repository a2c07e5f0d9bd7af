"""Addresses of kinds."""

from __future__ import annotations

import pytest

from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, NODE, POD, POOL


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (NODE.path(), "/api/v1/nodes"),
        (POD.path(), "/api/v1/pods"),
        (POD.path(namespace="a", name="b", subresource="log"), "/api/v1/namespaces/a/pods/b/log"),
        (DEPLOYMENT.path(namespace="a"), "/apis/apps/v1/namespaces/a/deployments"),
        (ADAPTATION.path(namespace="a", name="b", subresource="status"), "/apis/metainfer.dev/v1alpha1/namespaces/a/modeladaptations/b/status"),
        (POOL.path(name="a/../b"), "/apis/metainfer.dev/v1alpha1/acceleratorpools/a%2F..%2Fb"),
    ],
)
def test_addresses(have: str, want: str) -> None:
    """As the API server has them; names cannot leave their place."""
    assert have == want


def test_an_address_that_would_mean_other_objects_is_refused() -> None:
    """A namespace for a kind without one, or a name without its namespace."""
    with pytest.raises(ValueError, match="Node has no namespace"):
        NODE.path(namespace="a")
    with pytest.raises(ValueError, match="Pod p needs a namespace"):
        POD.path(name="p")
