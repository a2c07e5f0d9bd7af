"""What happens to our fields under each way that Argo CD syncs: one function per event, and what each must come to.

A function plays the event on an Application of its own and says in words what came of it. The words wanted are those of docs/gitops.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from argo_application import POLL_SECONDS, TARGET, Application
from argo_processes import ScenarioError
from tests.apiserver.make_placed import FAST, PRECISION, env_of, plan_placement

from metainfer.decide.plan import ApplyTarget
from metainfer.kube.errors import FieldConflict
from metainfer.kube.kinds import DEPLOYMENT

Raw = dict[str, Any]
Way = Literal["client", "server", "server diff", "replace"]
WAYS: tuple[Way, ...] = get_args(Way)
OPTIONS: Mapping[Way, tuple[str, ...]] = {"server": ("ServerSideApply=true",), "replace": ("Replace=true",)}
ANNOTATIONS: Mapping[Way, Mapping[str, str]] = {"server diff": {"argocd.argoproj.io/compare-options": "ServerSideDiff=true"}}
AGREED = FAST.model_copy(update={"precision": "fp32"})
"""The decision once Git has fixed the precision."""
REQUIRED, PREFERRED = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
TERMS = [{"matchExpressions": [{"key": "card", "operator": "In", "values": ["t4"]}]}]
GITS_AFFINITY = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": TERMS}}}
APART = {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": TARGET}}}}]}}
IGNORE: Sequence[Raw] = (
    {
        "group": "apps",
        "kind": "Deployment",
        "jsonPointers": ["/spec/template/spec/affinity"],
        "jqPathExpressions": [f'.spec.template.spec.containers[].env[]? | select(.name == "{PRECISION}")'],
    },
)
"""What people copy from elsewhere, and what the docs advise against."""
REVISION = "deployment.kubernetes.io/revision"
WATCH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    """An event, how it is played, and what must come of it in each way of syncing that it is played in."""

    name: str
    play: Callable[[Application], Awaitable[str]]
    want: Mapping[Way, str]
    options: Sequence[str] = ()
    ignore: Sequence[Raw] = ()


def everywhere(words: str, **others: str) -> Mapping[Way, str]:
    """The same in all ways but these (``server_diff`` for ``server diff``)."""
    return {way: others.get(way.replace(" ", "_"), words) for way in WAYS}


def declare_precision(value: str) -> Callable[[Raw], object]:
    """Git begins to declare our variable."""
    return lambda pod: pod["containers"][0]["env"].append({"name": PRECISION, "value": value})


def drop_precision(pod: Raw) -> None:
    """Git declares it no more."""
    pod["containers"][0]["env"] = [item for item in pod["containers"][0]["env"] if item["name"] != PRECISION]


def renew(pod: Raw) -> None:
    """An everyday commit."""
    pod["containers"][0] |= {"image": "server:2", "args": ["--verbose"], "env": [{"name": "LOG_LEVEL", "value": "debug"}, *pod["containers"][0]["env"][1:]]}


async def ours(application: Application) -> str:
    """Whether all of ours is there, or none."""
    halves = await application.node_affinity()
    found = [await application.precision() == FAST.precision, REQUIRED in halves, PREFERRED in halves]
    return "ours kept" if all(found) else "ours gone" if not any(found) else f"ours in part {found}"


def rollout(before: Raw, after: Raw) -> str:
    """Whether there was one in between, by the Deployment controller's own count (a Deployment's generation counts annotations too)."""
    counts = [(item["metadata"].get("annotations") or {}).get(REVISION) for item in (before, after)]
    return "no rollout" if counts[0] == counts[1] and before["spec"]["template"] == after["spec"]["template"] else "a rollout"


async def again(application: Application) -> str:
    """Our next apply."""
    await application.place()
    return f"next apply: {await ours(application)}"


async def placed(application: Application) -> Raw:
    """The Deployment with our fields, after everybody has seen them."""
    await application.place()
    await application.settle()
    return await application.read()


async def exact(application: Application) -> str:
    """Ours given back, compared with a fresh create of what Git says."""
    before = await application.last_operation()
    left_over = await application.restore()
    if left_over:
        return f"left: {', '.join(left_over)}"
    words = "restored exactly" if await application.is_as_git_says() else "restored with differences"
    return words if await application.last_operation() == before else f"{words} after a self-heal"


def only_withheld(live: Raw, **fields: Any) -> str:
    """Whom the operator leaves fields of the decision to."""
    plan = plan_placement(live, **fields)
    return "withheld for " + ", ".join(sorted({item.manager for item in plan.withheld})) if plan.withheld else "nothing withheld"


def applied(live: Raw, **fields: Any) -> ApplyTarget:
    """The write that the operator would make."""
    plan = plan_placement(live, **fields)
    if plan.apply is None:
        raise ScenarioError(f"nothing would be written: {plan.withheld}")
    return plan.apply


async def raw_apply(application: Application, action: ApplyTarget) -> Raw:
    """The same write without the operator's release step."""
    return await application.kube.apply(DEPLOYMENT, TARGET, dict(action.body), namespace=application.name)


async def control(application: Application) -> str:
    """Nothing of ours: if this is not healed, no other row says anything."""
    await application.change_by_hand("changed")

    async def healed() -> bool:
        return env_of(await application.read())["LOG_LEVEL"] == "info"

    await application.wait("self-heal", healed)
    return "healed"


async def watched(application: Application) -> str:
    """Our fields, looked at for a while with a hard refresh in it."""
    before = await application.last_operation()
    await application.place()
    seen: set[str] = set()
    deadline = time.monotonic() + WATCH_SECONDS
    refresh = asyncio.create_task(application.settle())
    while time.monotonic() < deadline:
        seen |= {(await application.status())["sync"]["status"], await ours(application)}
        await asyncio.sleep(POLL_SECONDS)
    await refresh
    synced = "no sync" if await application.last_operation() == before else "a sync"
    return ", ".join([*sorted(seen), synced])


async def compared(application: Application) -> str:
    """``argocd app diff``."""
    await placed(application)
    status, output = await application.diff()
    return f"exit {status}, {'empty' if not output else output[:200]}"


async def synced_by_hand(application: Application) -> str:
    """``argocd app sync``."""
    before = await placed(application)
    await application.sync()
    return f"{await ours(application)}, {rollout(before, await application.read())}"


async def recreated(application: Application) -> str:
    """Git begins to ask for deletion and creation at every sync."""
    before = await placed(application)
    await application.annotate("argocd.argoproj.io/sync-options", "Force=true,Replace=true")
    same = (await application.read())["metadata"]["uid"] == before["metadata"]["uid"]
    return f"{'the same Deployment' if same else 'another Deployment'}, {await ours(application)}"


async def healed_beside(application: Application) -> str:
    """The control once more, with ours present."""
    await application.place()
    words = await control(application)
    await application.settle()
    return f"{words}, {await ours(application)}"


async def committed(application: Application) -> str:
    """A new image, arguments and another value."""
    await application.place()
    await application.commit(renew)
    return f"{await ours(application)}, {await again(application)}, {await exact(application)}"


async def same_value(application: Application) -> str:
    """Git declares our variable with the value that is there."""
    await placed(application)
    before = await application.last_operation()
    await application.commit(declare_precision(FAST.precision))
    synced = "no sync" if await application.last_operation() == before else "a sync"
    return f"{synced}, {await exact(application)}"


async def same_value_synced(application: Application) -> str:
    """The same, and then something else is synced: Argo CD is an owner now."""
    await application.place()
    await application.commit(declare_precision(FAST.precision))
    await application.commit(renew)
    return await exact(application)


async def other_value(application: Application) -> str:
    """Git declares our variable with another value."""
    wanted = applied(await application.place())
    await application.commit(declare_precision("fp32"))
    live = await application.read()
    rest = "rest kept" if PREFERRED in await application.node_affinity() else "rest gone"
    try:
        await raw_apply(application, wanted)
    except FieldConflict as error:
        conflict = "conflict with " + ", ".join(sorted({item.manager for item in error.causes}))
    else:
        conflict = "no conflict"
    return f"{env_of(live)[PRECISION]}, {rest}, {only_withheld(live)}, {conflict}"


async def given_way(application: Application) -> str:
    """After it, the operator decides anew with what Git says."""
    await application.place()
    await application.commit(declare_precision("fp32"))
    last, before = await application.last_operation(), await application.read()
    await application.place(config=AGREED)
    await application.settle()
    after = await application.read()
    synced = "no sync" if await application.last_operation() == last else "a sync"
    return f"{env_of(after)[PRECISION]}, {synced}, {rollout(before, after)}, {await exact(application)}"


async def given_way_raw(application: Application) -> str:
    """Why the operator releases the entry first: the same write without it. If the words change, the step can go."""
    await application.place()
    await application.commit(declare_precision("fp32"))
    written = await raw_apply(application, applied(await application.read(), config=AGREED))
    at_once = "Git's entry deleted" if PRECISION not in env_of(written) else "Git's entry stays"
    await application.settle()
    return f"{at_once}, then {await application.precision()}"


async def dropped(application: Application) -> str:
    """Git takes its value back out."""
    await application.place()
    await application.commit(declare_precision("fp32"))
    await application.place(config=AGREED)
    await application.commit(drop_precision)
    live = await application.read()
    if PRECISION in env_of(live):
        return f"stays live, {only_withheld(live)}"
    return f"removed, {await again(application)}"


async def required_affinity(application: Application) -> str:
    """Git declares the half that we had."""
    await application.place()
    await application.commit(lambda pod: pod.update(affinity=GITS_AFFINITY))
    live, halves = await application.read(), await application.node_affinity()
    half = "Git's half" if halves.get(REQUIRED) == GITS_AFFINITY["nodeAffinity"][REQUIRED] else "not Git's half"
    other = "ours of the other" if PREFERRED in halves else "none of the other"
    words = only_withheld(live)
    await application.place()
    return f"{half}, {other}, {words}, {await exact(application)}"


async def affinity_dropped(application: Application) -> str:
    """Git declares one half of the block, and drops the block again."""
    await application.place()
    await application.commit(lambda pod: pod.update(affinity=GITS_AFFINITY))
    await application.commit(lambda pod: pod.pop("affinity"))
    halves = await application.node_affinity()
    if REQUIRED in halves:
        return "not noticed"
    other = "our half kept" if PREFERRED in halves else "our half gone"
    return f"{other}, {await again(application)}, {await exact(application)}"


async def empty_affinity(application: Application) -> str:
    """Git declares ``affinity: {}``."""
    await placed(application)
    before = await application.last_operation()
    await application.commit(lambda pod: pod.update(affinity={}))
    return f"{'no sync' if await application.last_operation() == before else 'a sync'}, {await ours(application)}"


async def other_affinity(application: Application) -> str:
    """Git declares another kind of affinity."""
    await application.place()
    await application.commit(lambda pod: pod.update(affinity=APART))
    return await ours(application)


async def left(application: Application) -> str:
    """Ours given back."""
    await placed(application)
    return await exact(application)


async def pruned(application: Application) -> str:
    """The Deployment goes from Git, with our fields on it."""
    await application.place()
    await application.remove()

    async def gone() -> bool:
        return not await application.exists()

    await application.wait("the prune", gone)
    return "pruned"


async def ignored_value(application: Application) -> str:
    """With ignore rules for our fields, Git declares our variable."""
    await application.place()
    await application.commit(declare_precision("fp32"))
    return "Git's value never arrives" if await application.precision() == FAST.precision else "Git's value arrives"


async def ignored_affinity(application: Application) -> str:
    """With ignore rules for our fields, anything is synced, and ours are given back."""
    await application.place()
    await application.commit(renew)
    await application.restore()
    return "our affinity stays" if await application.node_affinity() else "our affinity goes"


ROWS: Sequence[Row] = (
    Row("somebody changes a declared value, nothing of ours there (control)", control, everywhere("healed")),
    Row("our fields are applied, and watched", watched, everywhere("Synced, ours kept, no sync")),
    Row("argocd app diff", compared, everywhere("exit 0, empty")),
    Row("argocd app sync", synced_by_hand, everywhere("ours kept, no rollout", replace="ours gone, a rollout")),
    Row("a sync with Force=true,Replace=true on the Deployment", recreated, {"client": "another Deployment, ours gone"}),
    Row("somebody changes a declared value", healed_beside, everywhere("healed, ours kept", replace="healed, ours gone")),
    Row("Git: another image, args and value", committed, everywhere(
        "ours kept, next apply: ours kept, restored exactly", replace="ours gone, next apply: ours kept, restored exactly")),
    Row("Git declares our variable, same value", same_value, everywhere("no sync, restored exactly after a self-heal")),
    Row("… and syncs something else", same_value_synced, everywhere("restored exactly", replace="restored exactly after a self-heal")),
    Row("Git declares our variable, another value", other_value, everywhere(
        "fp32, rest kept, withheld for argocd-controller, conflict with argocd-controller",
        replace="fp32, rest gone, withheld for argocd, conflict with argocd")),
    Row("… and we give way", given_way, {way: "fp32, no sync, no rollout, restored exactly" for way in WAYS if way != "replace"}),
    Row("… without the release step", given_way_raw, everywhere("Git's entry deleted, then fp32", server="Git's entry stays, then fp32")),
    Row("… and Git drops it again", dropped, everywhere(
        "removed, next apply: ours kept", replace="stays live, withheld for argocd")),
    Row("Git declares required affinity", required_affinity, everywhere(
        "Git's half, ours of the other, withheld for argocd-controller, restored exactly",
        replace="Git's half, none of the other, withheld for argocd, restored exactly")),
    Row("Git drops its affinity", affinity_dropped, {
        "client": "our half gone, next apply: ours kept, restored exactly", "server": "our half kept, next apply: ours kept, restored exactly",
        "server diff": "not noticed", "replace": "not noticed"}),
    Row("Git declares affinity: {}", empty_affinity, everywhere("no sync, ours kept")),
    Row("Git declares another affinity", other_affinity, everywhere("ours kept", replace="ours gone")),
    Row("ours are given back", left, everywhere("restored exactly")),
    Row("Git drops the Deployment", pruned, everywhere("pruned")),
    Row("with ignore rules: Git declares our variable", ignored_value, {"client": "Git's value never arrives", "server": "Git's value never arrives"},
        options=("RespectIgnoreDifferences=true",), ignore=IGNORE),
    Row("with ignore rules: a sync, and ours are given back", ignored_affinity, {"server": "our affinity stays"},
        options=("RespectIgnoreDifferences=true",), ignore=IGNORE),
)  # fmt: skip
