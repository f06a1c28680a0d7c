"""Ray's own words: errors without colours, prints of its threads into a log."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

from autotune.cluster.ranks import _why_lost
from autotune.cluster.rays_words import first_line, rays_words_to


def rays_error() -> Exception:
    from ray.exceptions import RayTaskError

    lines = "Traceback (most recent call last):\n  File x\nValueError: gone"
    return RayTaskError("ray::RankSlot.facts()", lines, ValueError("gone"), proctitle="ray::RankSlot", pid=7, ip="10.0.0.9")


def test_an_error_of_rays_is_shown_without_colours() -> None:
    coloured = RuntimeError("\n\x1b[36mray::RankSlot.__init__()\x1b[39m (pid=7) died\nmore")
    assert first_line(coloured) == "ray::RankSlot.__init__() (pid=7) died"
    assert "\x1b" in str(rays_error()), "Ray colours no longer: this module's reason is gone"
    for text in (first_line(rays_error()), _why_lost(rays_error())):
        assert "\x1b" not in text and "ray::RankSlot" in text
    assert first_line(KeyError()) == "KeyError" and len(first_line(ValueError("x" * 900))) == 200


def print_from(name: str, text: str) -> None:
    thread = threading.Thread(target=lambda: print(text, flush=True), name=name)
    thread.start()
    thread.join()


def test_what_rays_threads_print_goes_to_the_log_and_the_rest_where_it_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "ray.log"
    before = sys.stdout
    with rays_words_to(log):
        print("ours", flush=True)
        assert not log.exists()
        print_from("ray_listen_error_messages", "\x1b[33m(raylet)\x1b[0m Raylet is terminated.\n    [state-dump] x")
        print_from("another", "also ours")
    assert sys.stdout is before
    print_from("ray_listen_error_messages", "late")
    assert capsys.readouterr().out == "ours\nalso ours\nlate\n"
    assert log.read_text() == "(raylet) Raylet is terminated.\n    [state-dump] x\n"


def test_a_disk_that_is_full_loses_the_log_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with rays_words_to(tmp_path / "absent" / "ray.log"):
        print_from("ray_print_logs", "gone")
        print("ours")
    assert capsys.readouterr().out == "ours\n"


def test_what_rays_loggers_say_goes_to_the_log_and_a_full_disk_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("ray.tune.execution.experiment_state")
    handlers = logging.getLogger("ray").handlers
    with rays_words_to(tmp_path / "ray.log"):
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            logger.exception("Saving experiment state failed")
    assert capsys.readouterr().err == ""
    said = (tmp_path / "ray.log").read_text()
    assert "ERROR ray.tune.execution.experiment_state: Saving experiment state failed\nTraceback" in said
    assert logging.getLogger("ray").handlers is handlers
    with rays_words_to(tmp_path / "no folder" / "ray.log"):
        logger.error("this is lost")
