"""Pieces that more than one kind uses: the frozen base, conditions, bounded strings, and how rules travel in a schema.

CEL rules and list types stand beside the field they bind, as ``json_schema_extra``; ``api/crd.py`` carries them into the CRDs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from metainfer.api import durations

GROUP = "metainfer.dev"
VERSION = "v1alpha1"
FIELD_MANAGER = "metainfer"

FAMILY_LABEL = f"{GROUP}/family"
HEALTH_LABEL = f"{GROUP}/health"
DECISION_ANNOTATION = f"{GROUP}/decision"
PREIMAGE_ANNOTATION = f"{GROUP}/pre-image"
CANARY_LABEL = f"{GROUP}/canary-of"
"""On a Deployment of ours and its pods: UID of the adaptation whose decision they try."""
ROLLBACK_ANNOTATION = f"{GROUP}/rollback-to"
"""On a ModelAdaptation: the decision that somebody wants to go back to."""


def rules(*expressions_and_messages: tuple[str, str]) -> dict[str, Any]:
    """CEL rules of a model or field. Each message says what to do, not only what is wrong."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in expressions_and_messages]}


def duration_between(low: str, high: str) -> dict[str, Any]:
    """The CEL rule of a duration with bounds, both included."""
    return rules((f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')", f"must be between {low} and {high}"))


UNIQUE: dict[str, Any] = {"x-kubernetes-list-type": "set"}
"""A list of scalars without duplicates; the order is kept."""


def keyed_by(key: str) -> dict[str, Any]:
    """A list of objects of which each has another value of ``key``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
FamilyName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Also the value of a node label, hence the length."""
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=_LABEL_KEY)]
"""A DNS name of at most 253 characters, a slash, a name of at most 63."""
LabelValue = Annotated[str, Field(max_length=63, pattern=_LABEL_VALUE)]
EnvName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        json_schema_extra=rules(
            (
                "!self.matches('^(PATH|HOME|IFS|ENV|SHELL|BASH_ENV|GCONV_PATH|NODE_(OPTIONS|PATH)|PERL5?(OPT|LIB|DB)|RUBY(OPT|LIB)|PYTHON[A-Z]+|(LD|DYLD|GLIBC|MALLOC|KUBERNETES|JAVA|JDK|_JAVA)_.*)$')",
                "must be a variable of the server's own: loaders, shells and language runtimes read this one before the server does",
            )
        ),
    ),
]
"""Of the server in the target. Its values are ours, its name is the user's: it must not name what decides which program runs."""
Duration = Annotated[
    str,
    Field(
        max_length=32,
        pattern=durations.PATTERN,
        json_schema_extra=rules(("duration(self) > duration('0s')", "must be longer than 0, for example 300us, 30ms, 10m or 168h")),
    ),
]
Precision = Literal["fp32", "bf16", "fp16", "int8"]
ProviderName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
ModelUri = Annotated[
    str,
    Field(
        min_length=8,
        max_length=2048,
        pattern=r"^(pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/.+|https?://[^\s]+)$",
        json_schema_extra=rules(
            ("!self.split('/').exists(part, part == '..')", "must stay inside the volume or site: remove '..'"),
            ("!self.matches('^https?://[^/]*@')", "must not carry credentials, everybody who may read the object would see them: use pvc://"),
        ),
    ),
]
"""Where a file is. The probe fetches it; no credentials travel in an object that many may read."""
Timestamp = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
ONE_CLAIM = (
    "!has(self.accuracy) || !has(self.accuracy.calibration) || !self.accuracy.calibration.uri.startsWith('pvc://')"
    " || (self.model.uri.startsWith('pvc://') && self.model.uri.split('/')[2] == self.accuracy.calibration.uri.split('/')[2])"
)
"""CEL over a ModelAdaptation's spec: model and calibration are in one claim, or come by URL."""


class ApiModel(BaseModel):
    """Frozen, camelCase on the wire. Unknown fields are ignored: an older operator must read a newer object."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Condition(ApiModel):
    """One aspect of the object's state, in the shape that all of Kubernetes uses (metav1.Condition)."""

    type: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?$", description="type names the aspect, for example Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="status says whether the aspect holds.")
    reason: str = Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="reason is one word for scripts and alerts; docs/conditions.md explains each.",
    )
    message: str = Field(default="", max_length=2048, description="message names the thing and what to do, for people.")
    last_transition_time: Timestamp = Field(description="lastTransitionTime is when status last changed.")
    observed_generation: int = Field(default=0, ge=0, description="observedGeneration is the metadata.generation that this was found for.")


class JobRefusal(ApiModel):
    """The API server did not take a measuring Job. Kept until it takes one, so that tries come further and further apart, also across restarts."""

    job: str = Field(max_length=63, description="job is the name of the Job that was refused last.")
    reason: str = Field(max_length=64, description="reason in one word; docs/conditions.md explains each.")
    message: str = Field(max_length=512, description="message is what the API server said.")
    attempts: int = Field(ge=1, description="attempts is how often it was tried in a row.")
    refused_at: Timestamp = Field(description="refusedAt is when it was tried last.")


class LabelSelectorRequirement(ApiModel):
    """One expression of a label selector."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : true",
                "In and NotIn compare with values: list at least one",
            ),
            (
                "self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0 : true",
                "Exists and DoesNotExist look at the key only: remove values",
            ),
            (
                "self.operator in ['Gt', 'Lt'] ? has(self.values) && size(self.values) == 1 && self.values[0].matches('^[0-9]{1,18}$') : true",
                "Gt and Lt compare with one integer: put exactly one into values",
            ),
        )
    )

    key: LabelKey = Field(description="key is the label that the requirement looks at.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="operator relates the key to the values. Gt and Lt compare integers and take one value, as in node affinity."
    )
    values: tuple[LabelValue, ...] = Field(default=(), max_length=32, json_schema_extra=UNIQUE, description="values are compared with the label's value.")


class LabelSelector(ApiModel):
    """Picks objects by their labels. All entries must hold; without entries it picks everything."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    match_labels: dict[LabelKey, LabelValue] = Field(default={}, max_length=32, description="matchLabels lists labels and the exact values they must have.")
    match_expressions: tuple[LabelSelectorRequirement, ...] = Field(
        default=(), max_length=16, description="matchExpressions lists further requirements, all of which must hold."
    )
