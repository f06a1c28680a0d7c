"""The survival rule and the phase peaks, held to a toy machine that counts bytes by reference and knows no rule."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_machine import Checkpointed, Op, play

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins, to_builtins
from autotune.trial.survey.normalise import normalise
from autotune.trial.survey.phase_peaks import Predictor
from autotune.trial.survey.timeline import Timeline

LABELS = ("a", "b", "n")


def layer(*body: Op | Checkpointed) -> Checkpointed:
    return Checkpointed("layer", "C", body)


def plain_layer() -> Checkpointed:
    """A discarded norm, a region whose input and output others save, a nested region, an activation that is discarded."""
    return layer(
        Checkpointed("n", "W", (Op(50, saves_input=True, own_bytes=3),)),
        Op(120, saves_input=True),
        Checkpointed("a", "C", (Op(90, saves_input=True, saves_output=True, own_bytes=11),)),
        Op(50, saves_input=True, transient_bytes=40),
        Checkpointed(
            "b", "C", (Op(200, saves_input=True), Checkpointed("n", "W", (Op(100, saves_input=True),)), Op(50, saves_input=True))
        ),
        Op(48),
    )


def all_settings(layers: int) -> list[Boundary]:
    sets = [Boundary.selective(c) for r in range(len(LABELS) + 1) for c in itertools.combinations(LABELS, r)]
    full = [Boundary.full("uniform", n) for n in range(1, layers + 1)] + [Boundary.full("block", n) for n in range(1, layers + 1)]
    return sets + full


BASES = [Boundary.selective(), Boundary.full("uniform", 1), Boundary.selective(["a"]), Boundary.selective(LABELS)]


@pytest.mark.parametrize("base", BASES, ids=lambda boundary: boundary.key)
def test_every_setting_is_predicted_to_the_byte_from_one_trace(base: Boundary) -> None:
    layers = (plain_layer(), plain_layer(), layer(Op(60, saves_input=True), Op(48, saves_input=True)))
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
def bodies(draw: st.DrawFn, labels: tuple[str, ...]) -> tuple[Op | Checkpointed, ...]:
    """A chain that begins and ends with plain operations and holds checkpointed regions, nested ones too."""

    def op(saves_input: bool | None = None) -> Op:
        return Op(
            draw(SIZES),
            saves_input=draw(st.booleans()) if saves_input is None else saves_input,
            saves_output=draw(st.booleans()),
            own_bytes=draw(st.sampled_from([0, 0, 7, 90])),
            transient_bytes=draw(st.sampled_from([0, 0, 60])),
        )

    parts: list[Op | Checkpointed] = [op(True)]
    for label in labels:
        if draw(st.booleans()):
            first = Op(draw(SIZES), saves_input=True, own_bytes=draw(st.integers(0, 40)))
            if draw(st.booleans()):  # A discarded output has to be saved by the operation that follows.
                parts += [Checkpointed(f"{label}w", "W", (first,)), op(True)]
            else:
                inner = draw(bodies(labels=("n",))) if label != "n" else ()
                parts += [Checkpointed(label, "C", (first, *inner)), op()]
    return (*parts, Op(draw(SIZES), saves_input=draw(st.booleans())))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(bodies(labels=("a", "b")), min_size=1, max_size=4),
    st.sampled_from([Boundary.selective(), Boundary.full("uniform", 1), Boundary.selective(["a", "aw", "b", "bw", "n", "nw"])]),
    st.lists(st.sampled_from(["a", "aw", "b", "bw", "n", "nw"]), max_size=6),
    st.integers(1, 2),
)
def test_random_models_are_predicted_to_the_byte_from_any_base(
    drawn: list[tuple[Op | Checkpointed, ...]], base: Boundary, labels: list[str], units: int
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
