"""The two halves of the measured rows: A is looked at while the ledger is being tuned, B is scored once, at the end.

Rows of one test on other GPUs, with another batch count or resumed from a checkpoint train the same thing, so they must
fall into the same half: the split is by test family, and by a hash, so that nobody chose it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

Half = Literal["A", "B"]

# What may follow a test's name without changing what it trains.
_VARIANT = re.compile(
    r"_1node$|_resume_torch_dist|_resume_torch(?=_)|_frozen|_mbc\d+|_reshard_[0-9a-zA-Z]+x[0-9a-zA-Z]+x[0-9a-zA-Z]+"
)


def case_family(row_id: str) -> str:
    """The test a row belongs to: its id without environment, resume, node-count and batch-count variants.

    Example:
        >>> case_family("mlm:gpt/gpt3_mcore_te_tp1_pp4_vp1_resume_torch_dist_tunable_overlap:dev_dgx_h100")
        'mlm:gpt/gpt3_mcore_te_tp1_pp4_vp1_tunable_overlap'
    """
    parts = row_id.split(":")
    head = ":".join(parts[:2]) if parts[0] in {"mlm", "simumax"} else parts[0]
    previous = None
    while previous != head:
        previous, head = head, _VARIANT.sub("", head)
    return head


def half(row_id: str) -> Half:
    """The half of a row: the parity of the SHA-256 of its test family."""
    return "A" if hashlib.sha256(case_family(row_id).encode()).digest()[0] % 2 == 0 else "B"
