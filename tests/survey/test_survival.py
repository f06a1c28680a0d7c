"""The survival rule and the phase peaks, held to a toy machine that counts bytes by reference and knows no rule."""

from __future__ import annotations

import itertools
import sys
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_machine import Checkpointed, Op, Part, Residual, play

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins, to_builtins
from autotune.trial.survey.normalise import normalise
from autotune.trial.survey.phase_peaks import Predictor
from autotune.trial.survey.timeline import Timeline

LABELS = ("a", "b", "n")
FULL = Boundary.full("uniform", 1)


def layer(*body: Part) -> Checkpointed:
    return Checkpointed("layer", "C", body)


def plain_layer() -> Checkpointed:
    """A discarded norm, a region whose input and output others save, a nested region, an activation that is discarded."""
    attention = Residual(
        (
            Checkpointed("n", "W", (Op(48, saves_input=True, own_bytes=3),)),
            Op(120, saves_input=True),
            Checkpointed("a", "C", (Op(90, saves_input=True, saves_output=True, own_bytes=11),), inputs=3),
            Op(48, saves_input=True, transient_bytes=40),
        )
    )
    inner = (Op(200, saves_input=True), Checkpointed("n", "W", (Op(100, saves_input=True),)), Op(48, saves_input=True))
    return layer(attention, Residual((Checkpointed("b", "C", inner),)))


def all_settings(layers: int) -> list[Boundary]:
    sets = [Boundary.selective(c) for r in range(len(LABELS) + 1) for c in itertools.combinations(LABELS, r)]
    full = [Boundary.full("uniform", n) for n in range(1, layers + 1)] + [Boundary.full("block", n) for n in range(1, layers + 1)]
    return sets + full


BASES = [Boundary.selective(), Boundary.full("uniform", 1), Boundary.selective(["a"]), Boundary.selective(LABELS)]


@pytest.mark.parametrize("base", BASES, ids=lambda boundary: boundary.key)
def test_every_setting_is_predicted_to_the_byte_from_one_trace(base: Boundary) -> None:
    layers = (
        plain_layer(),
        plain_layer(),
        layer(Residual((Checkpointed("b", "C", (Op(60, saves_input=True), Op(48, saves_input=True))),))),
    )
    predictor = Predictor(normalise(play(layers, base, units=2).trace()))
    for boundary in all_settings(3):
        truth = play(layers, boundary, units=2).phases
        predicted = predictor.predict(boundary)
        assert predicted.phases["backward"] == truth["backward"], boundary.key
        assert predicted.phases["loss"] == truth["loss"], boundary.key
        assert predicted.phases["optimizer"] == truth["optimizer"], boundary.key
        assert predicted.peak_bytes == max(truth.values()), boundary.key


SIZES = st.integers(1, 200)


@st.composite
def branches(draw: st.DrawFn) -> Residual:
    """A residual branch that begins with a region: a norm whose output is discarded, or a checkpoint of several operations."""

    def op(saves_input: bool | None = None, out_bytes: int | None = None) -> Op:
        return Op(
            out_bytes or draw(SIZES),
            saves_input=draw(st.booleans()) if saves_input is None else saves_input,
            saves_output=out_bytes is None and draw(st.booleans()),
            own_bytes=draw(st.sampled_from([0, 0, 7, 90])),
            transient_bytes=draw(st.sampled_from([0, 0, 60])),
        )

    def discarded(label: str) -> list[Part]:  # A discarded output has to be saved by the operation that follows.
        return [Checkpointed(label, "W", (Op(draw(SIZES), saves_input=True, own_bytes=draw(st.integers(0, 40))),)), op(True)]

    if draw(st.booleans()):
        middle: list[Part] = [Checkpointed("a", "C", (op(True),), inputs=3)] if draw(st.booleans()) else []
        return Residual((*discarded("n"), *middle, op(out_bytes=48)))
    inner = discarded("m") if draw(st.booleans()) else []
    return Residual((Checkpointed("b", "C", (op(True), *inner, op(True, out_bytes=48))),))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(branches(), min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from([Boundary.selective(), Boundary.full("uniform", 1), Boundary.selective(["a", "b", "m", "n"])]),
    st.lists(st.sampled_from(["a", "b", "m", "n"]), max_size=4),
    st.integers(1, 2),
)
def test_random_models_are_predicted_to_the_byte_from_any_base(
    drawn: list[list[Residual]], base: Boundary, labels: list[str], units: int
) -> None:
    layers = tuple(layer(*body) for body in drawn)
    timeline = normalise(play(layers, base, units).trace())
    predictor = Predictor(timeline)
    boundaries = [Boundary.selective(labels), Boundary.selective(), Boundary.full("uniform", 1 + len(labels) % 3)]
    for boundary in [*boundaries, Boundary.full("block", 1 + len(labels) % 2), base]:
        truth = play(layers, boundary, units).phases
        predicted = predictor.predict(boundary)
        for phase in ("loss", "backward", "optimizer"):
            assert predicted.phases[phase] == truth[phase], (boundary.key, phase)


def test_a_timeline_survives_json() -> None:
    timeline = normalise(play((plain_layer(),), Boundary.full("uniform", 1)).trace())
    assert from_builtins(to_builtins(timeline), Timeline, setting="timeline") == timeline


def test_prediction_is_linear_in_layers() -> None:
    """Counted in steps of the walk, not in seconds: a hundred layers cost ten times ten."""

    def steps(layers: int) -> int:
        timeline = normalise(play((plain_layer(),) * layers, FULL).trace())
        lines = 0

        def count(frame: FrameType, event: str, _: object) -> object:
            nonlocal lines
            lines += event == "call"
            return None

        predictor = Predictor(timeline)
        sys.setprofile(count)
        try:
            predictor.predict(Boundary.selective(["n", "b"]))
        finally:
            sys.setprofile(None)
        return lines

    assert 8 < steps(100) / steps(10) < 12
