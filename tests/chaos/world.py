"""The small cluster of a chaos run and the truth about it: nodes, targets, and what a measurement there would find. All from one seed.

One configuration of each target is clearly the best, so that every sound order of benchmarks ends with it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.apiserver.make_cluster import CARD, make, make_adaptation, make_deployment
from tests.unit.decide.make_runs import make_profile, make_report

from metainfer.decide.facts import Candidate
from metainfer.kube.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM
from metainfer_probe.contract import (
    BenchReport,
    CurvePoint,
    Machine,
    MicroProbe,
    NodeReport,
    PrecisionSupport,
    ProfileReport,
    ProviderFigures,
    ProviderProfile,
)

Raw = dict[str, Any]
FAMILIES: Mapping[str, tuple[str, str]] = {"ort": ("ort-cpu", "CPUExecutionProvider"), "vino": ("vino-cpu", "OpenVINOExecutionProvider")}
"""Value of the node label ``card`` -> family and its provider."""
NODES_PER_FAMILY = 2
CARDS_PER_NODE = 3
"""Room for every target with its surge pod, and for a measurement beside them."""
TARGETS = ("ocr", "speech", "ranker", "tagger")
KEPT = "tagger"
"""Its present configuration is the best: nothing is written."""
BATCHES = (1, 4)
LOAD_CLIENTS = 4
"""Default of spec.load.clients."""
GIGAFLOPS = 60.0
BEST_FACTOR = 0.7
SLOWEST_FACTOR = 1.15


@dataclass(frozen=True, slots=True)
class World:
    """One seed's cluster, in namespaces and under names that no other run has."""

    seed: int
    tag: str
    targets: tuple[str, ...] = TARGETS
    nodes_per_family: int = NODES_PER_FAMILY
    cards_per_node: int = CARDS_PER_NODE

    @property
    def namespace(self) -> str:
        """Of targets and adaptations."""
        return f"chaos-{self.tag}"

    @property
    def system(self) -> str:
        """The operator's own."""
        return f"chaos-system-{self.tag}"

    @property
    def pool(self) -> str:
        """Name of the pool, and value of the label that bounds it."""
        return f"lab-{self.tag}"

    def nodes(self) -> dict[str, str]:
        """Node name -> family's label value."""
        return {f"{card}-{number}-{self.tag}": card for card in FAMILIES for number in range(1, self.nodes_per_family + 1)}

    def make_pool(self) -> Raw:
        """Both families."""
        families = [
            {"name": family, "selector": {"matchLabels": {"card": card}}, "resource": CARD, "executionProviders": [provider]}
            for card, (family, provider) in FAMILIES.items()
        ]
        spec = {"families": families, "nodeSelector": {"matchLabels": {"lab": self.tag}}, "limits": {"maxConcurrentMeasurements": 4}}
        return {"apiVersion": "metainfer.dev/v1alpha1", "kind": "AcceleratorPool", "metadata": {"name": self.pool, "labels": {"lab": self.tag}}, "spec": spec}

    def make_target(self, name: str) -> Raw:
        """One replica that asks for one card; ``ocr`` takes its settings from a ConfigMap too."""
        deployment = make_deployment(name, self.namespace)
        server = deployment["spec"]["template"]["spec"]["containers"][0]
        server["resources"] = {"limits": {CARD: "1"}}
        if name == "ocr":
            server["envFrom"] = [{"configMapRef": {"name": "site"}}]
        return deployment

    def make_config_map(self) -> Raw:
        """Declares one of our settings: a read of it that fails must not look like a change of it."""
        return make(CONFIG_MAP, "site", self.namespace, data={"METAINFER_CONCURRENCY": "1"})

    def make_claim(self) -> Raw:
        """Where the models are; nobody mounts it here."""
        spec = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}
        return make(PERSISTENT_VOLUME_CLAIM, "models", self.namespace, spec=spec)

    def make_adaptation(self, name: str) -> Raw:
        """Four candidates, all of which may be measured."""
        adaptation = make_adaptation(name, self.namespace, target=name)
        adaptation["spec"] |= {
            "model": {"uri": f"pvc://models/{name}.onnx"},
            "poolSelector": {"matchLabels": {"lab": self.tag}},
            "configSpace": {"precisions": ["fp32"], "batchSizes": list(BATCHES), "concurrencies": [1]},
            "validation": {"topK": 4, "budget": "1h"},
        }
        return adaptation

    def winner(self, target: str) -> tuple[str, int]:
        """Family and batch size that are best for the target."""
        if target == KEPT:
            return "ort-cpu", 1
        others = [(family, batch) for family, _ in FAMILIES.values() for batch in BATCHES if (family, batch) != ("ort-cpu", 1)]
        return self._chance(target, "winner").choice(others)

    def p50_us(self, target: str, family: str, batch: int) -> float:
        """The truth about one candidate under the load: family and batch size count on their own, so that neighbours tell of each other."""
        base_us = self._chance(target).uniform(4_000.0, 9_000.0)
        for part, best in zip((family, batch), self.winner(target), strict=True):
            base_us *= BEST_FACTOR if part == best else self._chance(target, part).uniform(1.0, SLOWEST_FACTOR)
        return base_us

    def _chance(self, *parts: object) -> random.Random:
        return random.Random(f"{self.seed}/{parts}")  # noqa: S311 - a simulation, nothing secret

    # --- reports ---

    def probe(self, card: str) -> NodeReport:
        """The portrait of any node of the family: they are alike, so that it does not matter who measures where."""
        _, provider = FAMILIES[card]
        figures = ProviderFigures(
            provider=provider,
            runtime_version="1.0",
            precision="fp32",
            matmul_gflops={"tiny": 2.0, "gemv": 4.0, "m32": 40.0, "m256": GIGAFLOPS, "big": 70.0},
            launch_p50_us=12.0,
            launch_p99_us=30.0,
            compile_ms=3.0,
            effective_precision="fp32",
        )
        machine = Machine(card_model=f"{card} card", architecture="x86_64", kernel="6.1", cores=4, memory_bytes=16 << 30, load_permille=10)
        return NodeReport(
            machine=machine, micro=_micro(), figures=(figures,), bandwidth_gigabytes_per_second={"l2": 80.0, "l3": 40.0, "main": 10.0}, measured_seconds=5.0
        )

    def profile(self, target: str) -> ProfileReport:
        """A model that both runtimes run completely. Its curves promise what benchmarks find: whatever is measured first, the best is measured."""
        providers = tuple(self._provider_profile(target, family, provider) for family, provider in FAMILIES.values())
        return make_profile(digest=digest_of(target), micro=_micro(), detail={"model": target}).model_copy(update={"providers": providers})

    def _provider_profile(self, target: str, family: str, provider: str) -> ProviderProfile:
        # Four clients wait for each other where requests are single, and for one execution where four are joined.
        calls = {batch: self.p50_us(target, family, batch) * batch / LOAD_CLIENTS for batch in BATCHES}
        curve = tuple(CurvePoint(batch_size=batch, mean_us=call_us, p50_us=call_us, p99_us=call_us * 1.1) for batch, call_us in calls.items())
        fp32 = (PrecisionSupport(precision="fp32", native=True),)
        return ProviderProfile(provider=provider, coverage_permille=1000, assigned_nodes=90, precisions=fp32, curve=curve)

    def bench(self, target: str, candidate: Candidate) -> BenchReport:
        """One candidate against its family's single requests."""
        p50_us = self.p50_us(target, candidate.family, candidate.config.batch_size)
        report = make_report(candidate, p50_us, reference_us=self.p50_us(target, candidate.family, 1), micro=_micro(), digest=digest_of(target))
        return report.model_copy(update={"detail": {"model": target}})


def digest_of(target: str) -> str:
    """Each target has a model of its own: what was measured of one says nothing about another."""
    return hashlib.sha256(target.encode()).hexdigest()


def _micro() -> MicroProbe:
    return MicroProbe(gflops=GIGAFLOPS, bandwidth_gigabytes_per_second=10.0, spread_permille=10)
