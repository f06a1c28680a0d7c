"""Holds memory of a GPU until its standard input closes: what is left is a smaller GPU for everyone else.

    python -m benchmarks.gpu_holder --leave BYTES

Prints the bytes that are free once it holds the rest.
"""

from __future__ import annotations

import sys

import click

PIECE_BYTES = 256 * 2**20


@click.command(help=__doc__)
@click.option("--leave", required=True, type=int)
def main(*, leave: int) -> None:
    """Hold, tell, wait."""
    import torch

    held = []
    torch.cuda.init()
    while (room := torch.cuda.mem_get_info()[0] - leave) > 0:
        held.append(torch.empty(min(room, PIECE_BYTES), dtype=torch.uint8, device="cuda"))
        if room < PIECE_BYTES:
            break
    print(torch.cuda.mem_get_info()[0], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
