"""Expected failures are one line and know their exit status."""

from __future__ import annotations

import pickle

import pytest

from autotune.errors import AutotuneError, ExitStatus, NoBoundaryError, RequestError, StoppedError
from autotune.workload.bridge_recipe import LiveRecipeError

EVERY = (
    RequestError("--recipe", "x", "is unknown", "name another"),
    NoBoundaryError("nothing passes"),
    StoppedError("it was lost"),
    LiveRecipeError("OSError", "the hub cannot be reached"),
)


def test_request_error_states_setting_value_rule_and_way_out() -> None:
    error = RequestError("model.num_layers", -3, "has to be positive", "give the number of layers")
    assert str(error) == "model.num_layers=-3: has to be positive; give the number of layers"
    assert (error.setting, error.value) == ("model.num_layers", -3)


def test_request_error_without_value() -> None:
    assert str(RequestError("--resume", None, "no run named", "give --out")) == "--resume: no run named; give --out"


def test_exit_statuses_are_the_documented_ones() -> None:
    assert {status.name: int(status) for status in ExitStatus} == {
        "OK": 0, "DEFECT": 1, "BAD_REQUEST": 2, "NO_BOUNDARY": 3, "STOPPED": 4,
    }  # fmt: skip
    errors: list[type[AutotuneError]] = [RequestError, NoBoundaryError, StoppedError]
    assert [error.exit_status for error in errors] == [2, 3, 4]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: AutotuneError) -> None:
    """A node says so what it lacks."""
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


def test_every_kind_of_error_is_among_them() -> None:
    """Of this package: a test may have one of its own."""
    kinds = {kind for kind in AutotuneError.__subclasses__() if kind.__module__.startswith("autotune.")}
    assert kinds == {type(error) for error in EVERY}
