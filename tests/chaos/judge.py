"""What a chaos run comes to: is anything lost, done twice, or written for nothing. Pure: looks at the journal and at what is left.

**Lost**: an adaptation, node or pool whose final state differs from the undisturbed run's of the same seed (conditions with their
reasons, decision, what stands on the Deployment, labels, portraits; names, times and ids left out), or a decision or measurement that
is not in the store.

**Duplicated**: a second Job for the same work (owner, run, purpose, and candidate or node; no Job of a chaos run fails, so nothing has
to be repeated), a second run of an adaptation whose inputs did not change, a second effective write of the same decision to a
Deployment, a second decision of one run in the store.

**Needless write**: a PATCH or PUT that the API server accepted and that changed nothing: the object has the same resourceVersion
after it as before it (the proxy reads it just before). Whether the client was told of the success does not matter. Events are left out:
to say something again raises their count, which is what they are for.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tests.apiserver.faults import NO_CONNECTION, Entry
from tests.chaos.plan import is_step
from tests.chaos.play import Remains

Raw = dict[str, Any]
DECISION = "metainfer.dev/decision"
UNSTEADY = ("LowConfidence",)
"""Conditions that may depend on which of several equal candidates was measured first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence for each thing that is wrong."""

    kills: int
    faults: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    needless_writes: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether everything held."""
        return not (self.lost or self.duplicated or self.needless_writes)

    @property
    def summary(self) -> str:
        """The line that a run ends with."""
        counts = f"lost={len(self.lost)} duplicated={len(self.duplicated)} needless_writes={len(self.needless_writes)}"
        return f"kills={self.kills} faults={self.faults} {counts}"


def judge(disturbed: Remains, undisturbed: Remains) -> Verdict:
    """Compare a disturbed run with what it should have come to."""
    kills = disturbed.ends.count(-9)
    # An outage is one fault, however many requests do not get through.
    faults = sum(bool(entry.fault) and entry.fault != NO_CONNECTION and not entry.fault.startswith(("killed", "frozen")) for entry in disturbed.journal)
    needless = (*find_needless(undisturbed), *find_needless(disturbed))
    return Verdict(kills, faults, (*find_lost(disturbed, undisturbed),), (*find_duplicated(disturbed),), needless)


# --- lost ---


def find_lost(disturbed: Remains, undisturbed: Remains) -> Iterator[str]:
    """Differences of the final states, and what the store does not have."""
    for words, remains in (("undisturbed", undisturbed), ("disturbed", disturbed)):
        if not remains.settled:
            yield f"the {words} run did not come to rest in time: {'; '.join(_waits(remains))}"
    have, want = describe(disturbed), describe(undisturbed)
    for name in want:
        yield from (f"{name}: {path} is {found!r}, undisturbed {wanted!r}" for path, found, wanted in _differences(have.get(name), want[name]))
    decided, recorded = _decided(disturbed), {key for key, _ in _decisions(disturbed)}
    yield from (f"decision {key} stands in a status but not in the store" for key in sorted(decided - recorded))


def _waits(remains: Remains) -> Iterator[str]:
    """What each adaptation says of itself."""
    for raw in remains.objects["modeladaptations"]:
        for item in raw["status"].get("conditions") or ():
            if item["type"] == "Ready":
                yield f"{raw['metadata']['name']} is {item['status']} {item['reason']}: {item['message']}"


def describe(remains: Remains) -> Mapping[str, Any]:
    """The final state by object, without everything that differs between two good runs."""
    found: dict[str, Any] = {}
    for raw in remains.objects["modeladaptations"]:
        status = raw["status"]
        found[f"adaptation {raw['metadata']['name']}"] = {
            "conditions": _conditions(status),
            "recommended": _config((status.get("recommendation") or {}).get("config")),
            "placed": _config((status.get("placement") or {}).get("config")),
            "baseline": _config((status.get("baseline") or {}).get("config")),
            "step": (status.get("run") or {}).get("step"),
            "model": status.get("model"),
        }
    for raw in remains.objects["deployments"]:
        found[f"deployment {raw['metadata']['name']}"] = _describe_deployment(raw, remains)
    for raw in remains.objects["nodeportraits"]:
        kept = ("cards", "cardModel", "correctionFactorPermille", "figures", "health", "microMegaflops")
        spec = {"family": raw["spec"]["family"]}
        found[f"portrait {_plain(raw, remains)}"] = spec | {key: raw["status"].get(key) for key in kept}
    for raw in remains.objects["nodes"]:
        found[f"node {_plain(raw, remains)}"] = {key: value for key, value in raw["metadata"]["labels"].items() if key.startswith("metainfer.dev/")}
    (pool,) = remains.objects["acceleratorpools"]
    families = [family | {"calibration": _without_times(family.get("calibration") or {})} for family in pool["status"]["families"]]
    found["pool"] = {"conditions": _conditions(pool["status"]), "families": families, "nodes": pool["status"]["nodes"]}
    return found


def _without_times(raw: Raw) -> Raw:
    return {key: value for key, value in raw.items() if not key.endswith("At")}


def _describe_deployment(raw: Raw, remains: Remains) -> Raw:
    template = raw["spec"]["template"]
    annotations = template["metadata"].get("annotations") or {}
    recommended = {item["metadata"]["name"]: (item["status"].get("recommendation") or {}).get("decisionId") for item in remains.objects["modeladaptations"]}
    return {
        "generation": raw["metadata"]["generation"],
        "carries its decision": annotations[DECISION] == recommended[raw["metadata"]["name"]] if DECISION in annotations else "no decision",
        "env": template["spec"]["containers"][0].get("env"),
        "affinity": json.loads(json.dumps(template["spec"].get("affinity")).replace(remains.world.tag, "TAG")),
        "available": raw["status"].get("availableReplicas"),
    }


def _plain(raw: Raw, remains: Remains) -> str:
    return str(raw["metadata"]["name"]).removesuffix(f"-{remains.world.tag}")


def _conditions(status: Raw) -> Raw:
    return {item["type"]: (item["status"], item["reason"]) for item in status.get("conditions") or () if item["type"] not in UNSTEADY}


def _config(config: Raw | None) -> Raw | None:
    return None if config is None else {key: value for key, value in config.items() if key != "pool"}


def _differences(have: Any, want: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Paths at which two documents differ."""
    if isinstance(have, dict) and isinstance(want, dict):
        for key in {**want, **have}:
            yield from _differences(have.get(key), want.get(key), f"{path}.{key}".lstrip("."))
    elif have != want:
        yield path or "everything", have, want


# --- duplicated ---


def find_duplicated(remains: Remains) -> Iterator[str]:
    """Work that was done twice."""
    created = [entry for entry in remains.journal if entry.label == "create jobs" and entry.took_effect]
    yield from _repeated("Job for", created, _work_of)
    applied = [entry for entry in remains.journal if entry.label == "apply deployments" and _took_hold(entry)]
    yield from _repeated("write of decision", applied, lambda entry: f"{entry.name} {_decision_in(entry)}")
    runs = {(entry.name, run) for entry in remains.journal if entry.took_effect and (run := _run_in(entry))}
    for name, count in Counter(name for name, _ in runs).items():
        if count > 1:
            yield f"adaptation {name} had {count} runs: {', '.join(sorted(run for found, run in runs if found == name))}"
    for run, count in Counter(run for _, run in _decisions(remains)).items():
        if count > 1:
            yield f"run {run} has {count} decisions in the store"


def _repeated(words: str, entries: Iterable[Entry], work: Any) -> Iterator[str]:
    seen: dict[str, Entry] = {}
    for entry in entries:
        key = work(entry)
        if key in seen:
            yield f"second {words} {key}: {seen[key].line()} and {entry.line()}"
        seen.setdefault(key, entry)


def _took_hold(entry: Entry) -> bool:
    return entry.took_effect and entry.version_before != entry.version_after


def _work_of(entry: Entry) -> str:
    metadata = entry.body["metadata"]
    labels, annotations = metadata["labels"], metadata["annotations"]
    purpose, owner = labels["metainfer.dev/purpose"], metadata["ownerReferences"][0]["name"]
    if purpose == "probe":
        return f"probe of node {annotations['metainfer.dev/node']}"
    return f"{purpose} of {owner}, run {labels['metainfer.dev/run']} {annotations.get('metainfer.dev/candidate', '')}".rstrip()


def _decision_in(entry: Entry) -> str:
    annotations = entry.body["spec"]["template"].get("metadata", {}).get("annotations", {}) if "spec" in entry.body else {}
    return str(annotations.get(DECISION, ""))


def _run_in(entry: Entry) -> str:
    if not is_step(entry, "Probing", "Profiling", "Validating", "Applying", "RollingOut", "Done"):
        return ""
    return str(next(item["value"]["run"]["id"] for item in entry.body if item.get("path") == "/status"))


def _decided(remains: Remains) -> set[str]:
    found = (raw["status"].get("recommendation") for raw in remains.objects["modeladaptations"])
    return {str(item["decisionId"]) for item in found if item}


def _decisions(remains: Remains) -> list[tuple[str, str]]:
    """(decision id, run id) of everything in the store."""
    with closing(sqlite3.connect(remains.store)) as connection:
        return [(str(key), str(run)) for key, run in connection.execute("select decision_id, run_id from decisions")]


# --- needless ---


def find_needless(remains: Remains) -> Iterator[str]:
    """Accepted writes after which nothing is different."""
    for entry in remains.journal:
        if entry.changes and entry.took_effect and entry.version_before == entry.version_after:
            yield f"nothing changed by {entry.line(remains.began)}"
