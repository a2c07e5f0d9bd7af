"""Property tests never fail because the machine is busy: what they check is not how long it takes."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("meta-infer", deadline=None)
settings.load_profile("meta-infer")
