"""How wide the worlds are: around the ledger's predictions, and around a survey's."""

from __future__ import annotations

from dataclasses import replace
from math import hypot

from autotune.search.held import ALLOCATOR_GAP_ERROR
from autotune.search.observations import PriorSpread
from autotune.search.stop_rule import JITTER, LEDGER_SCATTER, SURVEY_WIDTHS
from autotune.search.survey import SurveyFindings


def around_the_ledger(jitter: float, metric: str) -> PriorSpread:
    """Of worlds before anything was launched.

    Args:
        jitter: Relative scatter of a boundary's peak between launches.
        metric: Which counter is held against the limit. What the allocator keeps is a share that all settings have in common,
            known to a few percent until one was launched.
    """
    known = PriorSpread()
    return replace(known, run=max(jitter, LEDGER_SCATTER), offset=hypot(known.offset, _gap(metric)))


def around_a_survey(findings: SurveyFindings, jitter: float, metric: str) -> PriorSpread:
    """Of worlds around a survey's predictions; all errors grow where switched peaks are farther off than was claimed.

    Where peaks repeat, what ran out of memory in the survey's process is over the limit.
    Surveyed bytes have no term groups; the ledger's of the steps after capture keep the ledger's own errors.
    """
    off, by_chance = findings.surprise, PriorSpread().by_chance
    return PriorSpread(
        offset=hypot(jitter, _gap(metric)), phase_offset=0.0, saving=findings.saving_error * off, least_saving=0.0,
        own=findings.peak_error * off, run=jitter, price=findings.price_error, price_width=1.0, inert=0.0, surveyed=True,
        by_chance_in_process=0.0 if jitter <= JITTER else by_chance,
        widths=SURVEY_WIDTHS,
    )  # fmt: skip


def _gap(metric: str) -> float:
    return ALLOCATOR_GAP_ERROR if metric == "reserved" else 0.0
