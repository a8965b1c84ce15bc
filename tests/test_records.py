"""Records: what is written is what is read, whole or not at all, under a key that means the request."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebench import record as records
from tracebench.case import Case, ModelSpec, key, labels
from tracebench.errors import RequestError
from tracebench.record import CoverageInfo, ErrorInfo, GraphBreak, Probe, Record, Speedup, ThroughputInfo, Timing

_text = st.text(max_size=8)
_number = st.floats(allow_nan=False, allow_infinity=False)
_timing = st.builds(Timing, _number, _number, st.lists(_number, max_size=3).map(tuple), st.none() | _number)
_record = st.builds(
    Record,
    key=st.just("0123"),
    started_at=_text,
    wall_s=_number,
    case=st.dictionaries(_text, st.none() | _number | _text, max_size=3),
    status=_text,
    verdict=st.none() | _text,
    error=st.none() | st.builds(ErrorInfo, _text, _text, _text),
    capture=st.none()
    | st.builds(
        records.CaptureInfo,
        _number,
        st.integers(),
        st.lists(st.builds(GraphBreak, _text, st.none() | _text), max_size=2).map(tuple),
        constants=st.lists(
            st.builds(records.Constant, _text, st.lists(st.integers(), max_size=2).map(tuple), _text), max_size=2
        ).map(tuple),
        specialised=st.none()
        | st.lists(st.builds(records.Specialisation, _text, _text, st.none() | _text), max_size=2).map(tuple),
    ),
    probes=st.none() | st.lists(st.builds(Probe, _text, _text), max_size=2).map(tuple),
    coverage=st.none() | st.builds(CoverageInfo, st.none() | _number, st.none() | _number),
    throughput=st.none()
    | st.builds(ThroughputInfo, _timing, _timing, st.builds(Speedup, _number, _number, _number, st.booleans())),
)


@given(_record)
def test_a_record_survives_json(record: Record) -> None:
    data = json.loads(json.dumps(records.to_dict(record), allow_nan=False))
    assert records.from_dict(Record, data) == record


def test_what_was_not_measured_is_null_never_a_number() -> None:
    data = records.to_dict(Record("k", "", 1.0, {}, status="crashed"))
    for field in ("verdict", "error", "capture", "probes", "coverage", "throughput"):
        assert data[field] is None
    assert records.to_dict({"x": math.nan, "y": [math.inf]}) == {"x": None, "y": [None]}


def test_fields_of_a_later_version_are_left_out() -> None:
    data = {**records.to_dict(Record("k", "", 1.0, {}, status="done")), "news": 1}
    assert records.from_dict(Record, data).status == "done"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "k"}', '{"probes": 3}'])
def test_half_a_record_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"k\.json is not a tracebench record"):
        records.load(path)


def test_saving_replaces_the_whole_file_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Record("k", "old", 1.0, {}, status="done")
    path = records.save(old, tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracebench.record.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        records.save(dataclasses.replace(old, started_at="new"), tmp_path)
    assert records.load(path) == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.json"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("x = 1", encoding="utf-8")
    return path


def case(path: Path, **fields: Any) -> Case:
    return Case(ModelSpec("mine", str(path), {"a": 1, "b": 2}), "fx", **fields)


def test_a_key_means_the_request_and_not_where_it_lies(model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / "place.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text("x = 1", encoding="utf-8")
    versions = {"torch": "2.14.1", "python": "3.11"}
    base = key(case(model), versions)
    assert base == key(case(elsewhere), dict(reversed(versions.items())))
    assert base == key(Case(ModelSpec("mine", str(model), {"b": 2, "a": 1}), "fx"), versions)
    others = [
        key(case(model, seed=1), versions),
        key(case(model, executor="inductor"), versions),
        key(case(model, throughput={"seconds": 9}), versions),
        key(case(model, stages=("soundness",)), versions),
        key(case(model), {**versions, "torch": "2.11.0"}),
    ]
    elsewhere.write_text("x = 2", encoding="utf-8")
    assert len({base, *others, key(case(elsewhere), versions)}) == 7


def test_cases_are_named_by_what_tells_them_apart(model: Path) -> None:
    first, second = case(model, dtype="float32"), case(model, dtype="bfloat16")
    assert labels([first, second]) == ["mine fx replay dtype=float32", "mine fx replay dtype=bfloat16"]
    assert labels([first]) == ["mine fx replay"]
    wide = dataclasses.replace(first, model=ModelSpec("mine", str(model), {"a": 7, "b": 2}))
    assert labels([first, wide]) == ["mine fx replay a=1", "mine fx replay a=7"]
    other = dataclasses.replace(first, model=ModelSpec("other", str(model), {"a": 7}))
    assert labels([first, other]) == ["mine fx replay", "other fx replay"]
    strict = [dataclasses.replace(first, frontend_options={"strict": value}) for value in (True, False)]
    assert labels(strict) == ["mine fx replay strict=True", "mine fx replay strict=False"]
    others = [dataclasses.replace(first, frontend=name) for name in ("dynamo", "hook")]
    assert labels(others) == ["mine dynamo replay", "mine hook replay"]


def test_a_case_survives_json(model: Path) -> None:
    asked = case(model, batch_size=3, stages=("coverage",))
    assert Case.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked


def test_a_model_file_that_cannot_be_read_is_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read the model file"):
        key(case(tmp_path / "none.py"), {})
