"""The one way out of a measuring Job: a connection to an address that was looked at before anything is sent to it.

A model's URL comes from somebody who may create an adaptation and nothing else, so it must not reach what only the node
or the cluster's machinery reaches: metadata services hand out the node's credentials. The name is resolved once per connection,
every address behind it is judged, and the connection goes to one of *those* addresses, never to what a second look-up
would say. Names, IPv6 spellings of IPv4 addresses and numbers such as ``2852039166`` all end as addresses here.

Loopback is open: it is the Job's own pod, where nothing listens. So are private networks, where models are kept.
"""

from __future__ import annotations

import errno
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import cast

from metainfer_probe.backends.base import ProbeError

STEP_SECONDS = 20.0
"""Longest silence of a server that is still believed to answer."""

_METADATA = frozenset(
    map(
        ip_address,
        (
            "100.100.100.200",  # Alibaba Cloud
            "168.63.129.16",  # Azure, the agent's own service
            "192.0.0.192",  # Oracle Cloud, classic
            "fd00:ec2::254",  # AWS over IPv6
            "fd20:ce::254",  # Google Cloud over IPv6
        ),
    )
)
"""Beside 169.254.169.254 and fe80::, which are link-local and closed as such."""
_THIS_NETWORK = ip_network("0.0.0.0/8")
_NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
_LOW_32_BITS = 0xFFFF_FFFF
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_TRANSLATED = 0xFFFF_0000
"""``::ffff:0:a.b.c.d`` (RFC 2765), the second spelling of a mapped address."""

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Sequence[str]]
"""Addresses of a host, as ``socket.getaddrinfo`` writes them; raises ``OSError``."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """One end for everything that a download does, on ``time.monotonic``."""

    ends: float

    def wait_seconds(self) -> float:
        """How long the next step may take. Raises TimeoutError past the end."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, STEP_SECONDS)


def resolve(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says about ``host``."""
    return [str(answer[4][0]) for answer in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def find_refused(address: Address) -> str | None:
    """Why no model may be fetched from an address, or None. Pure."""
    for meant in _meant_by(address):
        if meant.is_link_local:
            return "link-local, where metadata services of clouds answer"
        if meant in _METADATA:
            return "the metadata service of a cloud"
        if meant.is_multicast or meant.is_unspecified or (meant.version == 4 and (meant.is_reserved or meant in _THIS_NETWORK)):
            return "no address of a single host"
    return None


def find_outside(address: Address) -> str | None:
    """Why an address is nobody's own, as loopback and private networks are, or None. Pure."""
    outside = any(meant.is_global for meant in _meant_by(address) if not meant.is_loopback)
    return "an address of the internet" if outside else None


def _meant_by(address: Address) -> tuple[Address, ...]:
    """The address and every IPv4 address that it is another spelling of, or is carried to by a translator or tunnel."""
    if isinstance(address, IPv4Address):
        return (address,)
    number = int(address)
    found: list[Address] = [address]
    found += [inner for inner in (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())) if inner is not None]
    high, low = number >> 32, number & _LOW_32_BITS
    compatible = high == 0 and low > 1  # :: and ::1 are themselves
    if compatible or high == _TRANSLATED or (high & _LOW_32_BITS) in _ISATAP or any(address in network for network in _NAT64):
        found.append(IPv4Address(low))
    return tuple(found)


@contextmanager
def open_connection(host: str, port: int, deadline: Deadline, *, tls: ssl.SSLContext | None, find_addresses: Resolver = resolve) -> Iterator[TimedSocket]:
    """A connection to ``host``, closed at the end of the block.

    Raises ProbeError ``HostUnknown`` or ``AddressRefused`` before anything was sent, ``TlsFailed``; else ``OSError``.
    """
    addresses = _checked_addresses(host, port, find_addresses)
    connection = _connect(addresses, port, deadline)
    try:
        if tls is not None:
            connection = _secure(connection, host, tls, deadline)
        yield TimedSocket(connection, deadline)
    finally:
        connection.close()


def _checked_addresses(host: str, port: int, find_addresses: Resolver) -> Sequence[str]:
    try:
        addresses = find_addresses(host, port)
    except (socket.gaierror, UnicodeError) as error:
        passing = getattr(error, "errno", None) == socket.EAI_AGAIN
        raise ProbeError("HostUnknown", f"the host name {host[:100]!r} is not known here; check the address", retryable=passing) from None
    for address in addresses:
        why = find_refused(ip_address(address))
        if why is not None:
            raise ProbeError("AddressRefused", f"{host[:100]!r} is {address}, {why}: models are not fetched from there; use a model server or pvc://")
    return addresses


def _connect(addresses: Sequence[str], port: int, deadline: Deadline) -> socket.socket:
    """To the first address that answers; a bare address is never looked up again."""
    failed: OSError = ConnectionRefusedError(errno.ECONNREFUSED, "no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=deadline.wait_seconds())
        except OSError as error:
            failed = error
    raise failed


def _secure(connection: socket.socket, host: str, tls: ssl.SSLContext, deadline: Deadline) -> socket.socket:
    connection.settimeout(deadline.wait_seconds())
    try:
        return tls.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise ProbeError("TlsFailed", f"the certificate of {host[:100]!r} is not accepted: {error.verify_message}") from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        connection.close()
        raise ConnectionResetError from None
    except ssl.SSLError as error:
        connection.close()
        raise ProbeError("TlsFailed", f"{host[:100]!r} does not speak TLS as this image does: {error.reason or 'handshake failed'}") from None


class TimedSocket:
    """What ``http.client`` needs of a socket, every wait of it counted against one deadline.

    A socket's own timeout starts anew with each byte, so a server that sends one now and then would never end.
    """

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection, self._deadline = connection, deadline

    def sendall(self, content: bytes) -> None:
        """Send everything, or raise ``OSError``."""
        self._connection.settimeout(self._deadline.wait_seconds())
        self._connection.sendall(content)

    def makefile(self, mode: str) -> io.BufferedReader:
        """The reading side; ``http.client`` asks for ``rb``."""
        if mode != "rb":
            raise ValueError(mode)
        return io.BufferedReader(cast("io.RawIOBase", _Reader(self._connection, self._deadline)))

    def close(self) -> None:
        """Nothing: the block of ``open_connection`` closes, when the answer has been read."""


class _Reader(io.RawIOBase):
    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        super().__init__()
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # typeshed's buffer type has no name in Python 3.11
        self._connection.settimeout(self._deadline.wait_seconds())
        return self._connection.recv_into(buffer)
