"""The two tasks of the public tables behind one face: how rows are built, which groups there are, and what a measurement tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from metainfer.predict.learned.errors import TableUnreadable
from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.rows import Rows
from metainfer.predict.public.cards import BITS
from metainfer.predict.public.columns import Column, Columns, length
from metainfer.predict.public.contests import Field, kernel_field, serving_field
from metainfer.predict.public.groups import Group
from metainfer.predict.public.kernel_sums import KERNEL_COLUMNS, build_kernel_rows
from metainfer.predict.public.language_models import MODEL_COLUMNS
from metainfer.predict.public.serving import SERVING_COLUMNS, SERVING_MODEL_COLUMNS, build_serving_rows

HARDWARE_COLUMNS = ("card", "family", "bw_gbs", "bf16_tflops", "int8_tops", "fp8_tflops", "fp4_tflops")
PROBE_COLUMNS = (
    "card", "backend", "precision", "probe_tiny_ms", "probe_gemv_ms", "probe_m32_ms", "probe_m256_ms", "probe_gemm_ms",
    "probe_dec_attn_ms", "probe_ctx_attn_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """What is known before anything is predicted."""

    serves: bool
    models: Columns
    hardware: Columns
    probes: Columns | None
    """None = spec sheets only."""

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Of candidates."""
        return SERVING_COLUMNS if self.serves else KERNEL_COLUMNS

    @property
    def latency_columns(self) -> tuple[str, ...]:
        """Of measurements."""
        return ("ttft_ms", "tpot_ms", "tok_s_gpu") if self.serves else ("ttft_ms", "tpot_ms")

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Of questions."""
        own = ("isl", "osl", "slo_tpot") if self.serves else ("workload", "slo_ttft", "slo_tpot", "min_bits", "cards")
        return ("group_id", "model", *own)

    @property
    def model_columns(self) -> tuple[str, ...]:
        """Of architectures."""
        return SERVING_MODEL_COLUMNS if self.serves else MODEL_COLUMNS

    def build_rows(self, table: Columns) -> tuple[Rows, Rows]:
        """The two latencies of each row of the table."""
        build = build_serving_rows if self.serves else build_kernel_rows
        return build(table, self.models, self.hardware, self.probes)

    def build_field(self, table: Columns, rows: tuple[Rows, Rows], forecasts: tuple[Forecast, Forecast]) -> Field:
        """Candidates ready for contests."""
        build = serving_field if self.serves else kernel_field
        return build(table, rows, forecasts)

    def read_groups(self, groups: Columns, table: Columns) -> Iterator[Group]:
        """Groups as the contract writes them; one without members is passed over."""
        bits = np.array([BITS.get(name, 16.0) for name in table["precision"].tolist()])
        places: dict[tuple[object, ...], Column] = {}
        for index in range(length(groups)):
            row = {name: values[index] for name, values in groups.items()}
            keys = ("model", "isl", "osl") if self.serves else ("model", "workload")
            key = tuple(row[name] for name in keys)
            if key not in places:
                places[key] = np.flatnonzero(np.logical_and.reduce([table[name] == row[name] for name in keys]))
            members = places[key]
            if not self.serves:
                cards = str(row["cards"]).split(";")
                members = members[(bits[members] >= row["min_bits"]) & np.isin(table["card"][members], cards)]
            if len(members):
                first = np.inf if self.serves else _limit(row["slo_ttft"])
                yield Group(str(row["group_id"]), str(row["model"]), members, first, _limit(row["slo_tpot"]))


def _limit(value: float) -> float:
    """Milliseconds; an empty cell means the same as inf."""
    if not value > 0 and not np.isnan(value):
        raise TableUnreadable(f"groups.csv: a limit of {value} ms cannot be kept, expected a positive number or inf")
    return np.inf if np.isnan(value) else float(value)
