"""All Prometheus metrics of the operator, in one place: base units, labels of few values. Names of objects are only on ``SERVED_``.

An alert on a service's latency has to name the service, and there are as many series as adaptations that are watched.
Whoever does a thing counts it; nothing here reads a cluster.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

RECONCILE_SECONDS: Final = Histogram(
    "metainfer_reconcile_seconds", "Duration of one pass, by kind of object and result (done, dropped, retried, failed).",
    ("kind", "result"), buckets=_PASS_BUCKETS,
)  # fmt: skip
QUEUE_DEPTH: Final = Gauge("metainfer_queue_depth", "Keys that wait for a worker now.")
QUEUE_DELAYED: Final = Gauge("metainfer_queue_delayed", "Keys that become due later.")
QUEUE_RUNNING: Final = Gauge("metainfer_queue_running", "Keys that a worker has in hand.")
QUEUE_AGE_SECONDS: Final = Histogram("metainfer_queue_age_seconds", "Time from when a key was due until a worker took it.", buckets=_PASS_BUCKETS)
API_REQUESTS: Final = Counter("metainfer_api_requests_total", "Requests to the API server, by verb and HTTP status (none: no answer).", ("verb", "code"))
WATCH_EVENTS: Final = Counter("metainfer_watch_events_total", "Watch events, by kind and outcome (changed, same, dropped, unreadable).", ("kind", "outcome"))
WATCH_LAST_EVENT: Final = Gauge(
    "metainfer_watch_last_event_timestamp_seconds", "Unix time of the last watch event of a kind; old is normal for a quiet kind.", ("kind",)
)
RESYNC_LAST: Final = Gauge("metainfer_resync_last_success_timestamp_seconds", "Unix time of the last complete list of a kind.", ("kind",))
RESYNC_REPAIRS: Final = Counter(
    "metainfer_resync_repairs_total", "Differences that a resync found, by kind and sort (changed, removed): events that the watch missed.", ("kind", "sort")
)
CACHED_OBJECTS: Final = Gauge("metainfer_cached_objects", "Objects in the cache, by kind.", ("kind",))
UNREADABLE_OBJECTS: Final = Gauge("metainfer_unreadable_objects", "Objects that do not fit the schema known here, by kind; the log names them.", ("kind",))
CONDITIONS: Final = Gauge(
    "metainfer_conditions",
    "Pools and adaptations that have a condition, by kind of object, type, status and reason (docs/conditions.md); counted when scraped.",
    ("kind", "type", "status", "reason"),
)  # fmt: skip
NODES: Final = Gauge("metainfer_nodes", "Nodes that have a portrait, by family and health of their cards; counted when scraped.", ("family", "health"))
EVENTS: Final = Counter(
    "metainfer_events_total",
    "What was told in Events, by kind of object, type and reason: triggers, verdicts, rollbacks and the rest of docs/conditions.md.",
    ("kind", "type", "reason"),
)  # fmt: skip
RUNS_STARTED: Final = Counter("metainfer_runs_started_total", "Runs of adaptations, by the trigger that started them (docs/conditions.md).", ("trigger",))
SERVED_P99_SECONDS: Final = Gauge("metainfer_served_p99_seconds", "99th percentile of the last window that a target served.", ("namespace", "name"))
SERVED_BASELINE_SECONDS: Final = Gauge(
    "metainfer_served_baseline_p99_seconds", "The same over the first windows after the decision settled.", ("namespace", "name")
)
SERVED_P99_RATIO: Final = Gauge("metainfer_served_p99_ratio", "The last window's over the baseline's: 1.2 is 20 % slower.", ("namespace", "name"))
SERVED_READING_AGE_SECONDS: Final = Gauge("metainfer_served_reading_age_seconds", "Time since the last window ended.", ("namespace", "name"))
JOBS_STARTED: Final = Counter("metainfer_jobs_started_total", "Measuring Jobs created, by purpose (probe, profile, bench, check).", ("purpose",))
RESTORES: Final = Counter(
    "metainfer_restores_total", "Deployments given back to their owners, by result (restored, left: fields had to be left, unchanged).", ("result",)
)
DECISIONS: Final = Counter("metainfer_decisions_total", "Decisions taken, by chosen family and reason.", ("family", "reason"))
ROLLBACKS: Final = Counter("metainfer_rollbacks_total", "Decisions that were taken back, by reason.", ("reason",))
CANARIES: Final = Counter("metainfer_canaries_total", "Trials that ended, by outcome (Promoted, Worse, Failed, Inconclusive, Dropped).", ("outcome",))
PREDICTED_RANK: Final = Histogram(
    "metainfer_predicted_rank_of_best",
    "Place (1 = first) that the prediction gave to the candidate which then measured best; the operator's own quality series.",
    ("family",), buckets=(1, 2, 3, 4, 5, 8, 16),
)  # fmt: skip
PREDICTION_ERROR_RATIO: Final = Histogram(
    "metainfer_prediction_error_ratio", "Measured over predicted latency of validated candidates, after correction.",
    ("family",), buckets=(0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.4, 2, 4),
)  # fmt: skip
STORE_UP: Final = Gauge("metainfer_store_up", "1 while the sample store answers, 0 while it is away and rows wait in memory.")
STORE_OUTAGES: Final = Counter("metainfer_store_outages_total", "How often the sample store went away.")
STORE_BACKLOG_ROWS: Final = Gauge("metainfer_store_backlog_rows", "Rows in memory that are written when the sample store is back.")
STORE_ROWS_LOST: Final = Counter(
    "metainfer_store_rows_lost_total",
    "Rows that are not recorded, by table and reason: full (the backlog; read again from Job or status), refused (by the database; a defect).",
    ("table", "reason"),
)  # fmt: skip
EVENT_LOOP_LAG_SECONDS: Final = Gauge("metainfer_event_loop_lag_seconds", "How much later than asked the event loop woke a sleeper, last look.")
