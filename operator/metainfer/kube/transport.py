"""One HTTP request to the API server: rate, deadline, credentials, one retry for reads, typed errors.

Knows no kinds. Built on the session and TLS set-up of ``kubernetes.aio``, and on nothing of its models: they cost
milliseconds per object and refuse objects that lack a "required" field.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from metainfer.api.v1alpha1.common import FIELD_MANAGER
from metainfer.kube.credentials import Credentials, CredentialsError, read_credentials
from metainfer.kube.errors import ServerUnavailable, TooManyRequests, Unauthorized, build_error
from metainfer.kube.rate import TokenBucket
from metainfer.metrics import API_REQUESTS

CONNECT_SECONDS, TOTAL_SECONDS = 10.0, 60.0
"""A request without a deadline can hang for ever on a dead load balancer; a chunk of 500 Nodes takes well below 10 s."""
TOKEN_MAX_AGE_SECONDS = 60.0
"""How often a service account's token file is read again; client-go uses the same minute."""
RETRY_SECONDS = 0.5
"""Pause before the one retry of a read; a longer one that the server asked for (Retry-After) comes on top."""
RETRY_AFTER_LIMIT_SECONDS = 30.0
"""Longest pause taken from a Retry-After header; a longer one would look like a dead operator."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: ``verb`` is Kubernetes' word (get, list, create, patch, delete) and labels the metric."""

    verb: str
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = "application/json"

    @property
    def reads(self) -> bool:
        """Whether sending it twice cannot change anything."""
        return self.method == "GET"


class Transport:
    """Sends calls. One per process, used by all workers at once."""

    def __init__(
        self,
        bucket: TokenBucket,
        *,
        login: Callable[[], Awaitable[Credentials]] = read_credentials,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bucket = bucket
        self._login = login
        self._clock = clock
        self._sleep = sleep
        self._credentials: Credentials | None = None
        self._read_at = 0.0
        self._session: ApiClient | None = None
        self._login_lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()  # type: ignore[no-untyped-call] # the client's own
            self._session = None

    async def send(self, call: Call) -> bytes:
        """The answer's body. Raises ApiError; reads get one more try after 401, 429, 5xx and network errors.

        Writes are sent once, whatever the answer: it may come from something in between that has passed the request on. A refused
        credential is read again in any case, so that the next pass has a good one.
        """
        try:
            return await self._send_once(call)
        except Unauthorized:
            await self._log_in(again=True)
            if not call.reads:
                raise
        except (TooManyRequests, ServerUnavailable):
            if not call.reads:
                raise
            await self._sleep(RETRY_SECONDS)
        return await self._send_once(call)

    async def _send_once(self, call: Call) -> bytes:
        await self._bucket.take()
        session, credentials = await self._log_in()
        try:
            answer = await self._exchange(session, credentials, call)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            API_REQUESTS.labels(verb=call.verb, code="none").inc()
            msg = f"{call.method} {call.path}: {type(error).__name__} {error}".rstrip()
            raise ServerUnavailable(0, "NoAnswer", msg) from error
        status, headers, body = answer
        API_REQUESTS.labels(verb=call.verb, code=str(status)).inc()
        if status < 400:
            return body
        retry_after = _read_retry_after(headers)
        if retry_after is not None:
            self._bucket.pause(retry_after)
        raise build_error(status, _read_status(body), retry_after)

    @staticmethod
    async def _exchange(session: ApiClient, credentials: Credentials, call: Call) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": "application/json, */*", "Content-Type": call.content_type, "User-Agent": FIELD_MANAGER}
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        answer = await session.rest_client.request(  # type: ignore[no-untyped-call] # the client's own
            call.method,
            f"{credentials.server}{call.path}" + (f"?{urlencode(call.query)}" if call.query else ""),
            headers=headers,
            body=call.body,
            _request_timeout=aiohttp.ClientTimeout(total=TOTAL_SECONDS, sock_connect=CONNECT_SECONDS),
        )
        return answer.status, answer.headers, await answer.read()

    async def _log_in(self, *, again: bool = False) -> tuple[ApiClient, Credentials]:
        async with self._login_lock:
            if again or self._is_stale():
                await self._read_credentials()
            if self._session is None or self._credentials is None:
                raise ServerUnavailable(0, "NotLoggedIn", "the connection to the API server is closed")
            return self._session, self._credentials

    def _is_stale(self) -> bool:
        if self._credentials is None or self._session is None:
            return True
        return self._credentials.source == "service account" and self._clock() - self._read_at > TOKEN_MAX_AGE_SECONDS

    async def _read_credentials(self) -> None:
        try:
            fresh = await self._login()
        except CredentialsError as error:
            raise ServerUnavailable(0, "NoCredentials", str(error)) from error
        if self._session is None or self._credentials is None or _tls_of(fresh) != _tls_of(self._credentials):
            await self.close()
            self._session = ApiClient(_build_configuration(fresh))
        self._credentials, self._read_at = fresh, self._clock()


def _tls_of(credentials: Credentials) -> tuple[object, ...]:
    return (
        credentials.server, credentials.ca_path, credentials.certificate_path, credentials.key_path,
        credentials.verify, credentials.server_name, credentials.proxy,
    )  # fmt: skip


def _build_configuration(credentials: Credentials) -> Configuration:
    # As kopf does: no proxy out of the environment. Inside a cluster it is rarely meant for the API server.
    result = Configuration(host=credentials.server, client_session_kwargs={"trust_env": False})
    result.ssl_ca_cert = credentials.ca_path
    result.cert_file = credentials.certificate_path
    result.key_file = credentials.key_path
    result.verify_ssl = credentials.verify
    result.tls_server_name = credentials.server_name
    result.proxy = credentials.proxy
    return result


def _read_status(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    # Not from the API server itself: a proxy, or a kubelet through pods/log.
    return {"message": body[:512].decode(errors="replace")} if body else {}


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return min(max(float(headers.get("Retry-After", "")), 0.0), RETRY_AFTER_LIMIT_SECONDS)
    except ValueError:
        return None
