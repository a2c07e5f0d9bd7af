from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.predict.make_samples import NOON, SPEED, Fleet, make_config, make_probe, make_profile

from metainfer import cli
from metainfer.predict.registry_files import save_record
from metainfer.predict.training import Curriculum, train_challenger
from metainfer.predict.training_lines import write_lines

FLEET = Fleet()


def make_request(**fields: Any) -> dict[str, Any]:
    """A new model on two cards that were probed."""
    profile = make_profile(101, "fast-0").report
    assert profile is not None
    cards = []
    for family in ("fast", "slow"):
        report = make_probe(family, SPEED[family]).report
        assert report is not None
        cards.append({"pool": "lab", "family": family, "report": report.model_dump(mode="json")})
    return {"profile": profile.model_dump(mode="json"), "cards": cards, "profiled_on": "fast"} | fields


def call(tmp_path: Path, request: dict[str, Any] | str, *arguments: str) -> tuple[int, Path]:
    path = tmp_path / "request.json"
    path.write_text(request if isinstance(request, str) else json.dumps(request))
    return cli.main(["predict", str(path), *arguments]), path


def test_candidates_come_back_in_order_with_what_they_rest_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All usual points of both cards, the faster card first."""
    status, _ = call(tmp_path, make_request(), "--base", "--format", "json")
    assert status == 0
    ranking = json.loads(capsys.readouterr().out)
    assert len(ranking) == 2 * 2 * 2 * 4 * 2
    assert [item["rank"] for item in ranking] == list(range(1, 65))
    assert [item["score_permille"] for item in ranking] == sorted((item["score_permille"] for item in ranking), reverse=True)
    assert ranking[0]["candidate"].startswith("lab/fast/")
    assert {item["rests_on"] for item in ranking} == {"roofline on measured peaks"}


def test_only_the_candidates_that_were_asked_for_are_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, one line each."""
    asked = [{"pool": "lab", "family": family, "config": make_config().model_dump(mode="json")} for family in ("slow", "fast")]
    assert call(tmp_path, make_request(candidates=asked), "--base")[0] == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert "per second" in head
    assert "lab/fast/CPUExecutionProvider/fp32/b1/c1/doff: roofline on measured peaks" in first
    assert "lab/slow/" in second


def test_a_trained_model_changes_the_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has learned that int8 on ONNX Runtime is slow here."""
    record = replace(train_challenger(Curriculum(FLEET.build().join()), NOON + timedelta(days=1)), version=7)
    save_record(record, tmp_path / "model.json.gz")
    places = {}
    for choice in (("--base",), ("--model", str(tmp_path / "model.json.gz"))):
        assert call(tmp_path, make_request(), *choice, "--format", "json")[0] == 0
        ranking = json.loads(capsys.readouterr().out)
        places[choice[0]] = next(item["rank"] for item in ranking if item["candidate"].startswith("lab/fast/CPUExecutionProvider/int8/b1/c1"))
    assert places["--model"] > places["--base"]
    assert ranking[0]["rests_on"].startswith("model 7 on roofline")


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        ("{", "Invalid JSON"),
        (json.dumps({"cards": []}), "profile: Field required"),
        (json.dumps(make_request(load_clients=0)), "load_clients: Input should be greater than or equal to 1"),
        (json.dumps(make_request(candidates=[{"family": "gone", "config": make_config().model_dump(mode="json")}])), "cards are lab/fast, lab/slow"),
    ],
    ids=["no JSON", "no profile", "no clients", "unknown card"],
)
def test_a_wrong_request_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], request_text: str, words: str) -> None:
    """Field and what is wrong with it, in one line, exit status 2."""
    assert call(tmp_path, request_text)[0] == 2
    assert words in capsys.readouterr().err


def test_a_model_that_cannot_serve_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for by name, so no silent fallback."""
    (tmp_path / "model.json").write_text("{}")
    assert call(tmp_path, make_request(), "--model", str(tmp_path / "model.json"))[0] == 2
    assert "holds no model" in capsys.readouterr().err


def test_training_from_a_table_gives_the_same_file_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped model can be made again by anybody."""
    table = tmp_path / "table.jsonl"
    table.write_text("\n".join(write_lines(FLEET.build())))
    arguments = ["train", "--samples", str(table), "--no-shipped", "--made-at", "2026-03-02T00:00:00+00:00", "--out"]
    for name in ("first.json.gz", "second.json.gz"):
        assert cli.main([*arguments, str(tmp_path / name)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["serves"]
    assert told["rows"] == 128
    assert (tmp_path / "first.json.gz").read_bytes() == (tmp_path / "second.json.gz").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "want", "reason"),
    [
        (["--no-shipped"], 3, "TooFewModels"),
        (["--no-shipped", "--samples", "missing.jsonl"], 2, "TableUnreadable"),
        (["--no-shipped", "--known-until", "yesterday"], 2, "TimeInvalid"),
        (["--no-shipped", "--made-at", "2026-03-02T00:00:00"], 2, "TimeInvalid"),
    ],
    ids=["nothing", "no file", "no time", "no zone"],
)
def test_what_cannot_be_trained_is_said_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], want: int, reason: str) -> None:
    """Reason and message as JSON: the operator reads it as well."""
    assert cli.main(["train", *arguments]) == want
    assert json.loads(capsys.readouterr().out)["reason"] == reason
