"""What a run knew of the cards that it chose among: what is compared later, to find out whether they are still the same."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from metainfer.api.v1alpha1.common import ApiModel

VersionText = Annotated[str, Field(max_length=192)]
LISTED_VERSIONS = 16


class KnownFamily(ApiModel):
    """One family of cards as the last run found it."""

    key: str = Field(max_length=320, description="key is POOL/FAMILY.")
    driver_versions: tuple[VersionText, ...] = Field(
        default=(), max_length=LISTED_VERSIONS, description="driverVersions of its nodes that were acted on, the latest first; empty = no label tells any."
    )
    firmware_versions: tuple[VersionText, ...] = Field(
        default=(), max_length=LISTED_VERSIONS, description="firmwareVersions of its nodes that were acted on, the latest first."
    )
    runtime_versions: tuple[VersionText, ...] = Field(
        default=(),
        max_length=LISTED_VERSIONS,
        description="runtimeVersions (provider, version) in its nodes' portraits that were acted on.",
    )
    calibration_epoch: int = Field(default=0, ge=0, description="calibrationEpoch of the family in its pool's status that was acted on.")
