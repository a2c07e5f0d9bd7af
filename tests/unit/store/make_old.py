"""A store as the first version of the operator made it: before there were revisions, with a row in each table."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_RESULT = """job_uid VARCHAR(128) NOT NULL, job VARCHAR(63) NOT NULL, finished_at DATETIME NOT NULL, failure_reason VARCHAR(64),
  failure TEXT, report TEXT, detail TEXT"""
FIRST_SCHEMA = f"""
CREATE TABLE schema_version (version INTEGER NOT NULL, PRIMARY KEY (version));
CREATE TABLE probes ({_RESULT}, pool VARCHAR(253) NOT NULL, node VARCHAR(253) NOT NULL, card_model VARCHAR(128) NOT NULL, micro_gflops FLOAT,
  micro_gigabytes_per_second FLOAT, load_permille INTEGER, PRIMARY KEY (job_uid));
CREATE INDEX ix_probes_finished_at ON probes (finished_at);
CREATE INDEX ix_probes_node ON probes (node);
CREATE TABLE profiles ({_RESULT}, adaptation_uid VARCHAR(64) NOT NULL, run_id VARCHAR(32) NOT NULL, node VARCHAR(253) NOT NULL,
  digest VARCHAR(64) NOT NULL, architecture VARCHAR(32) NOT NULL, parameters BIGINT, weight_bytes BIGINT, PRIMARY KEY (job_uid));
CREATE INDEX ix_profiles_finished_at ON profiles (finished_at);
CREATE INDEX ix_profiles_digest ON profiles (digest);
CREATE INDEX profiles_of_run ON profiles (adaptation_uid, run_id);
CREATE TABLE runs ({_RESULT}, adaptation_uid VARCHAR(64) NOT NULL, run_id VARCHAR(32) NOT NULL, digest VARCHAR(64) NOT NULL,
  node VARCHAR(253) NOT NULL, pool VARCHAR(253) NOT NULL, family VARCHAR(63) NOT NULL, execution_provider VARCHAR(64) NOT NULL,
  precision VARCHAR(16) NOT NULL, batch_size INTEGER NOT NULL, concurrency INTEGER NOT NULL, dynamic_batching BOOLEAN NOT NULL,
  max_batch_delay_us INTEGER NOT NULL, load_clients INTEGER, p50_us FLOAT, p99_us FLOAT, throughput_per_second FLOAT,
  p25_ratio_permille INTEGER, difference_ppm BIGINT, micro_gflops FLOAT, partial BOOLEAN, PRIMARY KEY (job_uid));
CREATE INDEX ix_runs_finished_at ON runs (finished_at);
CREATE INDEX ix_runs_digest ON runs (digest);
CREATE INDEX runs_of_run ON runs (adaptation_uid, run_id);
CREATE INDEX runs_of_family ON runs (pool, family);
CREATE TABLE decisions (adaptation_uid VARCHAR(64) NOT NULL, decision_id VARCHAR(32) NOT NULL, run_id VARCHAR(32) NOT NULL,
  decided_at DATETIME NOT NULL, document TEXT NOT NULL, PRIMARY KEY (adaptation_uid, decision_id));
CREATE INDEX ix_decisions_decided_at ON decisions (decided_at);
"""
_FAILURE = '{"reason":"NodeLost","message":"gone","retryable":true}'
_ENDED = f"'2026-03-01 12:00:00.000000', 'NodeLost', '{_FAILURE}', NULL, NULL"
ROWS = f"""
INSERT INTO schema_version VALUES (1);
INSERT INTO probes VALUES ('uid-probe', 'mi-probe-1', {_ENDED}, 'lab', 'node-1', '', NULL, NULL, NULL);
INSERT INTO profiles VALUES ('uid-profile', 'mi-profile-1', {_ENDED}, 'uid-of-ocr', 'run-1', 'node-1', '', '', NULL, NULL);
INSERT INTO runs VALUES ('uid-run', 'mi-bench-1', {_ENDED}, 'uid-of-ocr', 'run-1', '', 'node-1', 'lab', 'ort-cpu', 'CPUExecutionProvider', 'fp32',
  1, 1, 0, 0, 4, NULL, NULL, NULL, 700, NULL, NULL, NULL);
INSERT INTO decisions VALUES ('uid-of-ocr', 'decision-1', 'run-1', '2026-03-01 12:05:00.000000', '{{"selected":"this"}}');
"""  # noqa: S608  these are our own texts


def make_first_store(path: Path, *, version: int = 1) -> str:
    """Write the file; returns its URL."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(FIRST_SCHEMA + ROWS)
        with file:
            file.execute("UPDATE schema_version SET version = ?", (version,))
    return f"sqlite:///{path}"
