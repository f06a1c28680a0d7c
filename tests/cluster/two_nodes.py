"""A cluster of Ray's own for tests: ``python two_nodes.py PORT RANKS``, until standard input closes.

A head without room for a rank, with a job server at a port of the loopback interface, and two nodes that hold half of the
ranks each, 8 GPUs declared on both. In a process of its own, since Ray reads how it lets clients in when it is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

from autotune.trial.launch import free_port

if __name__ == "__main__":
    port, ranks = map(int, sys.argv[1:])
    loopback: dict[str, Any] = {"node_ip_address": "127.0.0.1", "dashboard_host": "127.0.0.1"}
    cluster = Cluster()
    try:
        cluster.add_node(
            num_cpus=0, include_dashboard=True, dashboard_port=port, dashboard_agent_listen_port=free_port(), **loopback
        )
        for _ in range(2):
            cluster.add_node(num_cpus=ranks // 2, num_gpus=8, **loopback)
        cluster.wait_for_nodes()
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()
