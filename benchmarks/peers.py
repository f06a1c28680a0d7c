"""The estimators that ship with Megatron-LM and Megatron Bridge, on the same rows, called where they are installed.

They run in a process of their own, since both import torch; a peer that is not installed is left out of the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from threading import Timer

import click

from autotune.errors import AutotuneError
from autotune.records import to_builtins
from benchmarks.peer_lines import ANSWER, PROGRESS
from benchmarks.rows import Row
from benchmarks.sizes import padded_vocabulary

_LIMIT_S = 300.0


def peer_table(rows: Sequence[Row]) -> dict[str, dict[str, int | str]]:
    """Bytes, or the reason why there are none, of every row by each installed peer.

    Returns:
        Peer name -> row id -> bytes on the peer's most loaded rank (kind "predicted"), or why it cannot say.

    Raises:
        AutotuneError: The peers' process did not answer.
    """
    asked = [
        {
            "id": row.id,
            "workload": to_builtins(row.workload),
            "granularity": row.boundary.granularity,
            "padded_vocab_size": padded_vocabulary(row.workload),
            "num_microbatches": row.workload.num_microbatches,
            "data_parallel_size": row.workload.parallel.data_parallel_size,
            "etp": row.workload.parallel.etp,
        }
        for row in rows
        if row.workload is not None and row.boundary is not None and row.measured_bytes is not None
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.peer_process"]
    answer: dict[str, dict[str, int | str]] | None = None
    with tempfile.TemporaryFile("w+") as question, tempfile.TemporaryFile() as chatter:
        json.dump(asked, question)
        question.seek(0)
        process = subprocess.Popen(command, stdin=question, stdout=subprocess.PIPE, stderr=chatter, text=True, env=environment)
        watch = Timer(_LIMIT_S, process.kill)
        watch.start()
        with process:
            for line in process.stdout or ():
                answer = _heard(line) or answer
        watch.cancel()
    if process.returncode != 0 or answer is None:
        reason = f"ended after {_LIMIT_S:.0f} s" if process.returncode == -9 else f"exit {process.returncode}"
        raise AutotuneError(f"--peers: the peers' process did not answer ({reason}); run without --peers")
    return answer


def _heard(line: str) -> dict[str, dict[str, int | str]] | None:
    """The answer, if the line is it; what tells how far the peers are is shown."""
    if not line.startswith(ANSWER):
        if line.startswith(PROGRESS):
            click.echo(line.removeprefix(PROGRESS).strip(), err=True)
        return None
    answer: dict[str, dict[str, int | str]] = json.loads(line.removeprefix(ANSWER))
    return answer
