"""Kubernetes quantities as exact integers: cpu in millicores, everything else in bytes or pieces, rounded up as the scheduler does.

Pure. Knows the notation and the rules for adding a pod's requests up, and no other part of an object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

from metainfer.decide.facts import ContainerFacts, Quantities

_NOTATION = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i))?")
_SUFFIX: Mapping[str, Fraction] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 10**3),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip


def parse_quantity(text: str) -> Fraction:
    """The exact value; raises ValueError naming the text."""
    found = _NOTATION.fullmatch(text)
    if found is None:
        raise ValueError(f"not a quantity: {text!r}")
    number, exponent, suffix = found.groups()
    value = Fraction(number)
    if exponent is not None:
        return value * Fraction(10) ** int(exponent)
    return value * _SUFFIX[suffix] if suffix else value


@lru_cache(maxsize=4096)
def _parse_units(text: str, per_unit: int) -> int:
    return ceil(parse_quantity(text) * per_unit)


def parse_quantities(raw: Mapping[str, Any] | None) -> dict[str, int]:
    """A resource list; raises ValueError naming the resource."""
    result: dict[str, int] = {}
    for name, value in (raw or {}).items():
        try:
            result[name] = _parse_units(str(value), 1000 if name == "cpu" else 1)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return result


def is_extended_resource(name: str) -> bool:
    """Whether it is one that a device plugin or an administrator brought: a domain that is not Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def add_requests(containers: Sequence[ContainerFacts]) -> dict[str, int]:
    """What a pod takes from its node.

    Containers and restartable init containers run together; another init container runs beside the restartable ones started
    before it, so its request counts as a maximum. The scheduler's rule (k8s.io/component-helpers resource.PodRequests),
    without pod-level resources and overhead.
    """
    together: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in containers:
        if not container.init:
            _add(together, container.requests)
        elif container.restartable:
            _add(together, container.requests)
            _add(sidecars, container.requests)
            _raise(peak, sidecars)
        else:
            moment = dict(sidecars)
            _add(moment, container.requests)
            _raise(peak, moment)
    _raise(together, peak)
    return together


def _add(total: dict[str, int], more: Quantities) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise(total: dict[str, int], least: Quantities) -> None:
    for name, value in least.items():
        total[name] = max(total.get(name, 0), value)


def resolve_share(value: int | str | None, total: int, *, round_up: bool) -> int:
    """An IntOrString of a rollout: a count, or a percentage of ``total``. Raises ValueError."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    number, percent, rest = value.partition("%")
    if not percent or rest:
        raise ValueError(f"neither a count nor a percentage: {value!r}")
    product = int(number) * total
    return -(-product // 100) if round_up else product // 100
