"""Which way to log in is taken, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.kube.credentials import CredentialsError, read_credentials

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    """As the kubelet projects it."""
    (tmp_path / "token").write_text("abc\n")
    return tmp_path


@pytest.mark.parametrize(("host", "want"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")])
async def test_a_pod_uses_its_service_account(host: str, want: str, service_account: Path) -> None:
    """Address from the environment, token without its newline, CA by path."""
    have = await read_credentials(POD | {"KUBERNETES_SERVICE_HOST": host}, service_account)
    assert (have.source, have.server, have.authorization) == ("service account", want, "Bearer abc")
    assert have.ca_path == str(service_account / "ca.crt")
    assert "abc" not in repr(have)


async def test_a_kubeconfig_that_is_named_wins(service_account: Path, tmp_path: Path) -> None:
    """Inside a pod too: somebody set it on purpose."""
    path = tmp_path / "config"
    path.write_text(
        """
        {"apiVersion": "v1", "kind": "Config", "current-context": "c",
         "clusters": [{"name": "k", "cluster": {"server": "https://elsewhere:6443", "insecure-skip-tls-verify": true}}],
         "users": [{"name": "u", "user": {"token": "t"}}],
         "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}
        """
    )
    have = await read_credentials(POD | {"KUBECONFIG": str(path)}, service_account)
    assert (have.source, have.server, have.authorization, have.verify) == ("kubeconfig", "https://elsewhere:6443", "Bearer t", False)


@pytest.mark.parametrize("content", [None, "", "just: words", "{", '{"apiVersion": "v1", "kind": "Config", "current-context": "none", "contexts": []}'])
async def test_a_kubeconfig_that_is_of_no_use_is_named(content: str | None, tmp_path: Path) -> None:
    """Whatever is wrong with it, the file is named and what to do."""
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError, match=r"cannot use kubeconfig .*config: .*set KUBECONFIG"):
        await read_credentials({"KUBECONFIG": str(path)})


async def test_a_pod_without_a_token_is_told_why(tmp_path: Path) -> None:
    """The usual reason is named."""
    with pytest.raises(CredentialsError, match="automountServiceAccountToken"):
        await read_credentials(POD, tmp_path)
