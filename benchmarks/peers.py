"""The estimators that ship with Megatron-LM and Megatron Bridge, on the same rows, called where they are installed.

They run in a process of their own, since both import torch; a peer that is not installed is left out of the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from autotune.errors import AutotuneError
from autotune.records import to_builtins
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
    try:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.peer_process"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=environment,
            check=True,
        )
        answer: dict[str, dict[str, int | str]] = json.loads(process.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        raise AutotuneError(f"--peers: the peers' process did not answer ({type(error).__name__}); run without --peers") from None
    return answer
