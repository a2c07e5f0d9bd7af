"""What a pool's status says of the learned model that ranks candidates. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.accelerator_pool import PredictorStatus
from metainfer.decide.conditions import Finding, format_time
from metainfer.decide.learned import LearnedState

CONDITION_REASONS: Final[Mapping[str, str]] = {"OtherVersion": "ModelOutdated", "Corrupted": "ModelCorrupted", "NoModel": "NoModel"}
"""Of the registry's reasons; they are about a document, the condition is about the predictor."""


VERDICT_LENGTH = 256
"""Of ``PredictorStatus.newest_verdict``."""


def build_predictor_status(learned: LearnedState) -> PredictorStatus:
    """Version, rows and held-out figures of the model that serves; without one, only which features this operator has."""
    newest = {"newest_version": learned.newest_version, "newest_verdict": learned.newest_verdict[:VERDICT_LENGTH]}
    if learned.version is None or learned.problem is not None:
        return PredictorStatus(feature_version=learned.feature_version, **newest)
    return PredictorStatus(
        **newest,
        version=learned.version,
        feature_version=learned.feature_version,
        rows=learned.rows,
        made_at=format_time(learned.made_at) if learned.made_at is not None else None,
        held_out_regret_permille=_known(learned.held_out_regret_permille),
        base_regret_permille=_known(learned.base_regret_permille),
    )


def family_figures(learned: LearnedState, pool: str, family: str) -> dict[str, int | None]:
    """Fields of a FamilyStatus; nothing where the serving model was not trained on the family."""
    record = learned.families.get(f"{pool}/{family}") if learned.problem is None else None
    if record is None:
        return {}
    return {
        "learned_rows": record.rows,
        "held_out_regret_permille": _known(record.held_out_regret_permille),
        "base_regret_permille": _known(record.base_regret_permille),
    }


def find_predictor(learned: LearnedState, families: Sequence[str]) -> Finding:
    """Whether a learned model ranks candidates of these families (``POOL/FAMILY``), or why the roofline alone does."""
    if learned.problem is not None:
        reason, message = learned.problem
        return Finding(reasons.PREDICTOR_LEARNED, "False", CONDITION_REASONS.get(reason, reason), message)
    if learned.version is None:
        return Finding(reasons.PREDICTOR_LEARNED, "False", "NoModel", "rankings rest on the roofline alone")
    served = [name for name in families if learned.serves(name)]
    if families and not served:
        words = f"model {learned.version} was learned on other cards and did not beat the roofline on these or on cards that it had not seen"
        return Finding(reasons.PREDICTOR_LEARNED, "False", "OtherFamilies", f"{words}: the roofline ranks until enough is measured here")
    regret, base = learned.held_out_regret_permille / 10, learned.base_regret_permille / 10
    words = f"model {learned.version} of {learned.rows} rows: its first pick loses {regret:.1f} % on models it has not seen, the roofline's {base:.1f} %"
    where = "" if len(served) == len(families) else f"; it ranks in {', '.join(name.rpartition('/')[2] for name in served)}, the roofline in the others"
    return Finding(reasons.PREDICTOR_LEARNED, "True", "Learned", f"{words}{where}")


def _known(permille: int) -> int | None:
    return permille if permille >= 0 else None
