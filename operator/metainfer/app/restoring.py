"""``metainfer restore``: the operator's fields given back by hand, by the very steps that the operator takes. Needs no running operator."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

from metainfer.act.restore import Restored, preview_restored, restore_target
from metainfer.decide.leaving import Claim, find_claim, is_marked
from metainfer.decide.pre_image import read_pre_image
from metainfer.kube.client import KubeClient, Selection
from metainfer.kube.errors import ApiError, Conflict, NotFound
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT
from metainfer.observe.leftovers import read_claim
from metainfer.observe.projections import project_target

Raw = Mapping[str, Any]
RESTORED, FAILED, LEFT = 0, 1, 3
"""Exit statuses; the worst of all Deployments counts, and a failure is worse than fields that are left."""
CONFLICT_TRIES, CONFLICT_PAUSE_SECONDS = 5, 0.2
"""The Deployment controller writes its status at any time."""


class Tell(Protocol):
    """Where lines for the user go."""

    def __call__(self, text: str, *, problem: bool = False) -> None:
        """One line or more; problems apart from results."""
        ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for on the command line; no namespace = all."""

    namespace: str | None
    name: str | None
    dry_run: bool
    tell: Tell


def run_restore(wish: Wish) -> int:
    """Restore, or say what would change; returns the exit status."""
    return asyncio.run(_run(wish))


async def _run(wish: Wish) -> int:
    client = KubeClient.connect()
    status, count = RESTORED, 0
    try:
        async for deployment in _find(client, wish):
            count += 1
            one = await _serve(client, wish, deployment)
            status = FAILED if FAILED in (status, one) else max(status, one)
    except ApiError as error:
        wish.tell(f"metainfer: {error}", problem=True)
        return FAILED
    finally:
        await client.close()
    if not count:
        wish.tell("nothing of the operator is on any Deployment asked for")
    return status


async def _find(client: KubeClient, wish: Wish) -> AsyncIterator[Raw]:
    """Deployments that carry our fields or marks."""
    if wish.name is not None:
        yield await client.get(DEPLOYMENT, wish.name, wish.namespace)
        return
    async for page in client.list_pages(DEPLOYMENT, Selection(wish.namespace)):
        for item in page.items:
            if is_marked(project_target(item)):
                yield item


async def _serve(client: KubeClient, wish: Wish, deployment: Raw) -> int:
    place = _place(deployment)
    pre_image = read_pre_image(deployment["metadata"].get("annotations") or {})
    if wish.name is None and pre_image is not None and pre_image.deletion_policy == "Retain":
        wish.tell(f"{place}: kept, as its deletionPolicy is Retain (name it to restore it)")
        return RESTORED
    try:
        await _warn_of_claim(client, wish, deployment)
        return await (_preview if wish.dry_run else _restore)(client, wish, deployment)
    except NotFound:
        wish.tell(f"{place}: gone")
        return RESTORED
    except ApiError as error:
        wish.tell(f"{place}: {error}", problem=True)
        return FAILED


async def _warn_of_claim(client: KubeClient, wish: Wish, deployment: Raw) -> None:
    target = project_target(deployment)
    try:
        adaptations, _ = await client.list(ADAPTATION, namespace=target.namespace)
    except NotFound:
        return
    claims: dict[str, Claim] = {item["metadata"]["name"]: read_claim(item) for item in adaptations}
    claim = find_claim(target, tuple(claims.values()))
    name = next((name for name, found in claims.items() if found == claim), None)
    if name is not None:
        words = f"ModelAdaptation {name} still names it: a running operator writes again. Delete it, or set its updatePolicy.mode to Off, first"
        wish.tell(f"{target.namespace}/{target.name}: warning: {words}", problem=True)


async def _restore(client: KubeClient, wish: Wish, deployment: Raw) -> int:
    place, restored = _place(deployment), await _restore_patiently(client, deployment)
    for left in restored.left:
        wish.tell(f"{place}: left, because it is not recorded as the operator's any more: {left}")
    if restored.left:
        return LEFT
    wish.tell(f"{place}: {'restored' if restored.changed else 'nothing to give back'}")
    return RESTORED


async def _restore_patiently(client: KubeClient, deployment: Raw) -> Restored:
    namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
    for _ in range(CONFLICT_TRIES - 1):
        try:
            return await restore_target(client, namespace, name)
        except Conflict:
            await asyncio.sleep(CONFLICT_PAUSE_SECONDS)
    return await restore_target(client, namespace, name)


async def _preview(client: KubeClient, wish: Wish, deployment: Raw) -> int:
    place = _place(deployment)
    lines = (_lines(deployment), _lines(await preview_restored(client, deployment)))
    wish.tell("\n".join(difflib.unified_diff(*lines, f"{place} now", f"{place} restored", lineterm="")) or f"{place}: nothing to give back")
    return RESTORED


def _place(deployment: Raw) -> str:
    return f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"


def _lines(deployment: Raw) -> list[str]:
    """What somebody declares of it, as YAML."""
    metadata = {key: deployment["metadata"].get(key) for key in ("labels", "annotations")}
    return yaml.safe_dump({"metadata": metadata, "spec": deployment["spec"]}, sort_keys=True).splitlines()
