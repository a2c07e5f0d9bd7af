"""Reads ONNX Runtime's profile: own time, provider and shapes of every executed node, as medians over the runs.

The profile is a trace (one JSON event per executed node). Control-flow nodes contain their branches, so each event's
own time is its duration without what ran inside it. The first run is left out when there are others: it allocates.
"""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer_probe.backends.base import KernelTime
from metainfer_probe.backends.ort_convolutions import ConvolutionWeights, unpadded_macs
from metainfer_probe.classify import op_class
from metainfer_probe.contract import OpClass
from metainfer_probe.work import TensorSeen, count_bytes, count_macs

_SUFFIX = "_kernel_time"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One execution of one node; times in microseconds, ``own_us`` without nested nodes."""

    node: str
    op_type: str
    provider: str
    own_us: float
    inputs: tuple[TensorSeen, ...]
    outputs: tuple[TensorSeen, ...]
    bytes_moved: int
    live_bytes: int
    """Memory that the arena had handed out right after the node; 0 where this runtime does not say."""

    @property
    def op_class(self) -> OpClass:
        """The class of the operator."""
        return op_class(self.op_type)


@dataclass(frozen=True, slots=True)
class StaticKnowledge:
    """What a profile leaves out, by node name: kernels that repack their weights no longer report them.

    ``unpacked``: events of a run without repacking; ``weight_bytes``: from the file, for nodes that have no such event;
    ``convolutions``: the channels before padding.
    """

    unpacked: Mapping[str, NodeEvent]
    weight_bytes: Mapping[str, int]
    convolutions: ConvolutionWeights

    def macs(self, event: NodeEvent) -> int:
        """Multiply-accumulates of one execution."""
        event = self.unpacked.get(event.node, event)
        weight = self.convolutions.behind(event.node) if event.op_class == "convolution" else None
        if weight is not None and event.outputs:
            return unpadded_macs(weight, event.outputs[0].shape)
        return count_macs(event.op_type, [tensor.shape for tensor in event.inputs], [tensor.shape for tensor in event.outputs])

    def bytes_moved(self, event: NodeEvent) -> int:
        """Activations and weights of one execution."""
        unpacked = self.unpacked.get(event.node)
        if unpacked is not None:
            return unpacked.bytes_moved
        return max(event.bytes_moved, self.weight_bytes.get(event.node, 0) + sum(tensor.size_bytes for tensor in (*event.inputs[:1], *event.outputs)))


def read_profile(path: Path) -> list[list[NodeEvent]]:
    """Node events, one list per run; without the first run where there are several. None where a name spoils the file.

    ONNX Runtime writes names as they stand in the model: bytes that are no text, line breaks, and quotes, past which nothing can be read.
    """
    try:
        events = json.loads(path.read_text(errors="replace"), strict=False)
    except ValueError:
        return [[]]
    ends = sorted(event["ts"] + event["dur"] for event in events if event.get("name") == "model_run")
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX)]
    runs: list[list[NodeEvent]] = [[] for _ in range(max(1, len(ends)))]
    for event, own_us in zip(nodes, _own_times(nodes), strict=True):
        runs[min(bisect_left(ends, event["ts"]), len(runs) - 1)].append(_node_event(event, own_us))
    return runs[1:] or runs


def median_kernel_times(runs: Sequence[Sequence[NodeEvent]], known: StaticKnowledge) -> list[KernelTime]:
    """One KernelTime per node: the median over runs of its own time in a run, because one preempted run would drown a mean."""
    first: dict[str, NodeEvent] = {}
    executions: Counter[str] = Counter()
    totals: dict[str, list[float]] = {}
    for position, events in enumerate(runs):
        for event in events:
            first.setdefault(event.node, event)
            executions[event.node] += 1
            totals.setdefault(event.node, [0.0] * len(runs))[position] += event.own_us
    return [
        KernelTime(
            node=node,
            op_type=event.op_type,
            provider=event.provider,
            duration_us=statistics.median(totals[node]),
            op_class=event.op_class,
            macs=known.macs(event) * max(1, round(executions[node] / len(runs))),
            bytes_moved=known.bytes_moved(event) * max(1, round(executions[node] / len(runs))),
        )
        for node, event in first.items()
    ]


def peak_live_bytes(events: Iterable[NodeEvent]) -> int:
    """Peak of live activations over one run: what the arena held, or the largest node's own inputs and outputs."""
    listed = tuple(events)
    reported = max((event.live_bytes for event in listed), default=0)
    widest = max((sum(tensor.size_bytes for tensor in (*event.inputs[:1], *event.outputs)) for event in listed), default=0)
    return reported or widest


def _own_times(events: list[dict[str, Any]]) -> list[float]:
    """Durations without the nested events' durations, per thread; events may come in any order."""
    own = [float(event["dur"]) for event in events]
    order = sorted(range(len(events)), key=lambda index: (events[index]["tid"], events[index]["ts"], -events[index]["dur"]))
    stack: list[int] = []
    for index in order:
        event = events[index]
        while stack and not _contains(events[stack[-1]], event):
            stack.pop()
        if stack:
            own[stack[-1]] = max(0.0, own[stack[-1]] - event["dur"])
        stack.append(index)
    return own


def _contains(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    nests = outer["args"].get("op_name") in ("If", "Loop", "Scan", "SequenceMap")
    return bool(nests and outer["tid"] == inner["tid"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1)


def _node_event(event: dict[str, Any], own_us: float) -> NodeEvent:
    args = event["args"]
    inputs, outputs = _tensors(args.get("input_type_shape")), _tensors(args.get("output_type_shape"))
    reported = sum(int(args.get(key, 0)) for key in ("activation_size", "parameter_size", "output_size"))
    return NodeEvent(
        node=event["name"].removesuffix(_SUFFIX),
        op_type=args.get("op_name", ""),
        provider=args.get("provider", ""),
        own_us=own_us,
        inputs=inputs,
        outputs=outputs,
        bytes_moved=reported or count_bytes(inputs, outputs),
        live_bytes=int(args.get("mem_bytes_requested_in_use", 0)),
    )


def _tensors(listed: object) -> tuple[TensorSeen, ...]:
    if not isinstance(listed, list):
        return ()
    return tuple(TensorSeen(dtype, tuple(int(size) for size in shape)) for entry in listed for dtype, shape in entry.items())
