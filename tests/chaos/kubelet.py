"""The part of a kubelet that the API server asks for logs: one TLS server for all nodes of a chaos run."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from tests.apiserver.site import run_site


@dataclass
class KubeletLogs:
    """Last lines of containers' logs, by namespace and pod."""

    port: int = 0
    lines: dict[tuple[str, str], str] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.Response:
        """One request of the API server."""
        line = self.lines.get((request.match_info["namespace"], request.match_info["pod"]))
        return web.Response(status=404) if line is None else web.Response(text=f"{line}\n")


def issue_certificate(pki: Path, directory: Path) -> ssl.SSLContext:
    """A server certificate for 127.0.0.1 by the API server's own CA: it accepts no other kubelet."""
    key, request, certificate = (directory / f"kubelet.{end}" for end in ("key", "csr", "crt"))
    names = directory / "kubelet.names"
    names.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    make_key = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key]
    ask = ["req", "-new", "-key", key, "-subj", "/CN=kubelet", "-out", request]
    sign = ["x509", "-req", "-in", request, "-CA", pki / "ca.crt", "-CAkey", pki / "ca.key", "-days", "2", "-set_serial", "77"]
    for arguments in (make_key, ask, [*sign, "-extfile", names, "-out", certificate]):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


@asynccontextmanager
async def run_kubelet_logs(pki: Path, directory: Path) -> AsyncIterator[KubeletLogs]:
    """Serves until the end."""
    logs = KubeletLogs()
    site = web.Application()
    site.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs.answer)
    async with run_site(site, issue_certificate(pki, directory)) as logs.port:
        yield logs
