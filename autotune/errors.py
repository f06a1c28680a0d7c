"""Errors that a person caused or can mend; each is shown as one line without a traceback."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of every command, for scripts."""

    OK = 0
    DEFECT = 1
    BAD_REQUEST = 2
    NO_BOUNDARY = 3
    STOPPED = 4


class AutotuneError(Exception):
    """An expected failure. Its text is one line: setting, value, rule and way out."""

    exit_status = ExitStatus.BAD_REQUEST


class RequestError(AutotuneError):
    """The request is wrong (exit status 2).

    Args:
        setting: What the user set, as they spell it (``--mem-target``, ``model.num_layers``).
        value: The value they gave.
        rule: What the value has to satisfy.
        way_out: What to do instead, as a sentence.
    """

    exit_status = ExitStatus.BAD_REQUEST

    def __init__(self, setting: str, value: object, rule: str, way_out: str) -> None:
        self.setting = setting
        self.value = value
        self.rule = rule
        self.way_out = way_out
        super().__init__(f"{setting}={value!r}: {rule}; {way_out}" if value is not None else f"{setting}: {rule}; {way_out}")

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, object, str, str]]:
        """By its parts: an error crosses processes as a pickle, which would otherwise hand the text alone to ``__init__``."""
        return type(self), (self.setting, self.value, self.rule, self.way_out)


class NoBoundaryError(AutotuneError):
    """Nothing passes, after full and the broadest selective set were considered (exit status 3)."""

    exit_status = ExitStatus.NO_BOUNDARY


class StoppedError(AutotuneError):
    """Stopped before an answer; the run can be resumed (exit status 4)."""

    exit_status = ExitStatus.STOPPED
