"""Sizes, ages, tables and hints, as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text import format_age, format_html_table, format_size, format_table, parse_duration, suggest

SIZES = {
    0: "0 B", 1: "1 B", 999: "999 B", 1_000: "1.0 kB", 1_234: "1.2 kB", 99_949: "99.9 kB", 99_950: "100 kB",
    100_000: "100 kB",
    999_499: "999 kB", 999_500: "1.0 MB", 10**6: "1.0 MB", 8 << 20: "8.4 MB", 10**9: "1.0 GB", 10**12: "1.0 TB",
    10**15: "1,000 TB",
}  # fmt: skip
AGES = {
    -3: "0 s", 0: "0 s", 0.4: "0 s", 12: "12 s", 59: "59 s", 60: "1 min", 300: "5 min", 3_599: "60 min", 3_600: "1 h",
    10_800: "3 h",
    172_799: "48 h", 172_800: "2 days", 8_640_000: "100 days",
}  # fmt: skip
DURATIONS = {
    "90s": 90, "10m": 600, "90min": 5_400, " 12 h ": 43_200, "2d": 172_800, "0.5s": 0.5,
    "90": None, "s": None, "-1s": None, "1w": None, "1h30m": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize(("size", "text"), SIZES.items())
def test_a_size_has_a_unit_and_two_or_three_figures(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(("seconds", "text"), AGES.items())
def test_an_age_is_a_whole_number_of_its_largest_unit(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@given(st.floats(0, 1e15), st.floats(0, 1e15))
def test_a_larger_size_never_reads_as_a_smaller_one(one: float, other: float) -> None:
    units = ["B", "kB", "MB", "GB", "TB"]

    def read(text: str) -> float:
        figures, unit = text.replace(",", "").split(" ")
        return float(figures) * 1_000.0 ** units.index(unit)

    smaller, larger = sorted((one, other))
    assert read(format_size(smaller)) <= read(format_size(larger))


def test_a_hint_is_the_similar_name_or_the_known_ones() -> None:
    assert suggest("steams", ["streams", "puts"]) == "did you mean 'streams'?"
    assert suggest("x", ["streams", "puts"], "it has") == "it has streams, puts"
    assert suggest("x" * 10_000, [f"y{n}" for n in range(5_000)]).count(",") == 19


def test_columns_stand_under_their_heads() -> None:
    text = format_table(("path", "rows"), [("store/a", "7"), ("store/long/one", "1,234")], right=["rows"])
    assert text.splitlines() == [
        "path             rows",
        "store/a             7",
        "store/long/one  1,234",
    ]


def test_no_line_ends_in_spaces() -> None:
    assert format_table(("a", ""), [("x", ""), ("long", "note")]).splitlines() == ["a", "x", "long  note"]


def test_a_table_without_rows_is_its_heads() -> None:
    assert format_table(("path", "rows"), [], right=["rows"]) == "path  rows"


def test_html_is_escaped() -> None:
    page = format_html_table(("path", "rows"), [("<script>alert(1)</script>", "7 & 8")], right=["rows"])
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "7 &amp; 8" in page
    assert "<script" not in page
    assert page.count("<tr>") == 2
    assert page.count('text-align:right">') == 2
