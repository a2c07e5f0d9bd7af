"""Where the API server is and how to prove who we are: the pod's service account, or a kubeconfig file.

Read anew each time: tokens rotate. Shared by our client and kopf's login, so that both always log in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet projects token and CA into every pod."""


class CredentialsError(Exception):
    """There is no usable way to log in; the message names the file or variable."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """One way to reach one API server."""

    source: Literal["service account", "kubeconfig"]
    server: str
    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    authorization: str | None = field(default=None, repr=False)
    """The whole header value, scheme included."""
    verify: bool = True
    server_name: str | None = None
    """Name expected in the server's certificate when it is not the host's."""
    proxy: str | None = None


async def read_credentials(environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT) -> Credentials:
    """KUBECONFIG when set, else the service account inside a pod, else ``~/.kube/config``.

    Raises CredentialsError.
    """
    if not environ.get("KUBECONFIG") and environ.get("KUBERNETES_SERVICE_HOST"):
        return _read_service_account(environ, service_account)
    path = environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return await _read_kubeconfig(path)


def _read_service_account(environ: Mapping[str, str], directory: Path) -> Credentials:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        token = (directory / "token").read_text().strip()
    except OSError as error:
        raise CredentialsError(f"cannot read the service account's token: {error}; is automountServiceAccountToken off for this pod?") from error
    return Credentials(
        source="service account",
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_path=str(directory / "ca.crt"),
        authorization=f"Bearer {token}",
    )


async def _read_kubeconfig(path: str) -> Credentials:
    loaded = Configuration(host="")
    try:
        await config.load_kube_config(config_file=path, client_configuration=loaded, persist_config=False)  # type: ignore[no-untyped-call] # the client's own
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # The library checks little: a file of another shape comes back as whatever it stumbled over.
        raise CredentialsError(f"cannot use kubeconfig {path}: {' '.join(str(error).split())}; set KUBECONFIG to a file of the cluster") from error
    return Credentials(
        source="kubeconfig",
        server=loaded.host,
        ca_path=loaded.ssl_ca_cert,
        certificate_path=loaded.cert_file,
        key_path=loaded.key_file,
        authorization=loaded.api_key.get("BearerToken"),
        verify=loaded.verify_ssl,
        server_name=loaded.tls_server_name,
        proxy=loaded.proxy,
    )
