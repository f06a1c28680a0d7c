"""Sizes: GB is decimal, GiB is binary, a bare number is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ExitStatus, RequestError
from autotune.units import format_gb, format_gb_and_gib, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("75GB", 75 * 10**9),
        ("75GiB", 75 * 2**30),
        (" 75 gb ", 75 * 10**9),
        ("0.5TiB", 2**39),
        ("512MB", 512 * 10**6),
        ("7B", 7),
        ("69.85GiB", 75000866406),
    ],
)
def test_parse_size_known(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("75", "--mem-target='75': a size needs a unit; write 75GB (10^9) or 75GiB (2^30)"),
        ("-75GB", "--mem-target='-75GB': a size is a positive number with a unit; write for example 75GB (10^9) or 70GiB (2^30)"),
        (
            "75Gb/s",
            "--mem-target='75Gb/s': a size is a positive number with a unit; write for example 75GB (10^9) or 70GiB (2^30)",
        ),
        ("75G", "--mem-target='75G': unknown unit 'G'; use MB, GB, TB (10^n) or MiB, GiB, TiB (2^n)"),
        ("0GB", "--mem-target='0GB': a size has to be at least one byte; write for example 75GB"),
        ("", "--mem-target='': a size is a positive number with a unit; write for example 75GB (10^9) or 70GiB (2^30)"),
        ("nanGB", "--mem-target='nanGB': a size is a positive number with a unit; write for example 75GB (10^9) or 70GiB (2^30)"),
    ],
)
def test_parse_size_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_size_bytes(text)
    assert str(caught.value) == message
    assert caught.value.exit_status is ExitStatus.BAD_REQUEST


@given(st.text())
def test_parse_size_reads_or_refuses(text: str) -> None:
    try:
        assert parse_size_bytes(text) > 0
    except RequestError as error:
        assert "\n" not in str(error).replace(repr(text), "")


@given(st.integers(min_value=1, max_value=2**50))
def test_whole_bytes_survive(size_bytes: int) -> None:
    assert parse_size_bytes(f"{size_bytes}B") == size_bytes


def test_formats_name_their_unit() -> None:
    assert format_gb(65_325_000_000) == "65.325 GB"
    assert format_gb_and_gib(75 * 10**9) == "75.000 GB (69.849 GiB)"
    assert format_gb(70_612_000) == "70.612 MB"
    assert format_gb(999_999_999) == "1000.000 MB"
    assert format_gb_and_gib(96 * 2**20) == "100.663 MB (96.000 MiB)"
    assert format_gb_and_gib(75 * 2**30) == "80.531 GB (75.000 GiB)"
