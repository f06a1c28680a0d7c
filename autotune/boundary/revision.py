"""Which Megatron Core a workload runs on, and what that revision has: rules and labels come and go between revisions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

_RELEASE = re.compile(r"(?:core_)?v?(\d+)\.(\d+)(?:\.(\d+))?")
_HASH = re.compile(r"[0-9a-f]{7,40}")

KNOWN_COMMITS: dict[str, tuple[str, str]] = {
    # commit: (committed, in UTC; what it is)
    "8f7fbe78609de242630ca4808686bd309694dcab": ("2026-03-23T05:36:36Z", "last commit without clamped uniform groups"),
    "9054192b9bf2b648525bd9188aaeaebe76ec97b7": ("2026-03-23T17:56:26Z", "clamps the last uniform group"),
    "d0b3b775498a8ae6870075f1a5fc32bc260aa1b3": ("2026-06-04T18:33:43Z", "pinned by Megatron Bridge 0.5.0"),
    "458c8d0ecafdf6d9e36771600d62ade27f2a67b7": ("2026-06-29T12:54:52Z", "pinned by Megatron Bridge 0.5.1"),
    "cd4afffa648426a959dc7cb1e24b5ce7d0c3ff54": ("2026-07-25T21:41:59Z", "pinned by Megatron Bridge v0.6.0"),
    "24bad8e677d22625d86ef2a54c9506b6e4992c93": ("2026-08-10T13:13:14Z", "pinned by Megatron Bridge 600d069b"),
    "2a75ac12c54ba6a42b34024756820bf819a2e25f": ("2026-08-13T09:09:29Z", "pinned by the Megatron Bridge 0.6 branch"),
    "d98e8a64ddf34856e74b24714e3bedb2f5a39553": ("2026-08-22T15:22:22Z", "main of 2026-08-22"),
}
"""Dated commits of https://github.com/NVIDIA/Megatron-LM that recipes pin or rules turn on."""

ASSUMED_COMMIT = "2a75ac12c54ba6a42b34024756820bf819a2e25f"
"""Taken where the workload names no revision, or a commit that is not in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """The first release (``(major, minor, patch)``) and the moment on main (UTC) that have a feature."""

    release: tuple[int, int, int]
    committed: str
    commit: str


SHARED_EXPERTS = Since(release=(0, 14, 0), committed="2025-08-20T06:41:10Z", commit="781e7658")
GRAPH_MODULES = Since(release=(0, 16, 0), committed="2025-12-30T22:57:07Z", commit="2b343d73")
EP_OVERLAP_NAMES_MOE = Since(release=(0, 17, 0), committed="2026-03-20T05:57:49Z", commit="45b8eac9")
UNIFORM_CLAMP = Since(release=(0, 17, 0), committed="2026-03-23T17:56:26Z", commit="9054192b")
HYBRID_FULL = Since(release=(0, 18, 0), committed="2026-05-14T01:44:55Z", commit="118933a8")
CHECKPOINT_SKIPS_CAPTURE = Since(release=(0, 18, 0), committed="2026-05-14T11:56:05Z", commit="ada8dfe6")
GDN_NORM_OUT = Since(release=(0, 19, 0), committed="2026-06-08T11:29:55Z", commit="ff5264c3")
OFFLOAD_INSIDE_MOE = Since(release=(0, 19, 0), committed="2026-07-02T05:33:32Z", commit="69c48682")
GTP_LOCAL_GRAPHS = Since(release=(0, 19, 0), committed="2026-07-25T19:17:31Z", commit="c5ff22b7")
HYPER_CONNECTIONS = Since(release=(0, 20, 0), committed="2026-08-17T23:58:52Z", commit="7cdba422")
GATED_DELTA_PRODUCT = Since(release=(0, 20, 0), committed="2026-08-18T10:07:47Z", commit="bd72caf8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A Megatron Core revision; exactly one of ``release`` and ``committed`` is set.

    ``note`` is empty unless another revision than the one asked for had to be taken.
    """

    name: str
    basis: Literal["release", "commit", "assumed"]
    release: tuple[int, int, int] | None = None
    committed: str | None = None
    note: str = ""

    def has(self, feature: Since) -> bool:
        """Whether this revision has the feature."""
        if self.release is not None:
            return self.release >= feature.release
        return (self.committed or "") >= feature.committed


@cache
def resolve_revision(megatron_core: str | None) -> Revision:
    """Read ``Stack.megatron_core``: a release (``0.19.2``, ``core_v0.19.0``), a commit, or a release with a local commit.

    A commit counts before the release number beside it, since development builds of main carry the number of the
    release to come. What cannot be placed gets the assumed revision, and ``note`` says so.
    """
    text = (megatron_core or "").strip()
    for word in _HASH.findall(text.lower()):
        for commit, (committed, _) in KNOWN_COMMITS.items():
            if commit.startswith(word):
                return Revision(name=commit[:8], basis="commit", committed=committed)
    match = _RELEASE.match(text)
    if match:
        major, minor, patch = (int(part or 0) for part in match.groups())
        return Revision(name=f"{major}.{minor}.{patch}", basis="release", release=(major, minor, patch))
    wanted = f"Megatron Core {text!r} is not in the table of known revisions" if text else "no Megatron Core revision is given"
    return Revision(
        name=ASSUMED_COMMIT[:8],
        basis="assumed",
        committed=KNOWN_COMMITS[ASSUMED_COMMIT][0],
        note=f"{wanted}; the rules of {ASSUMED_COMMIT[:8]} (2026-08-13) are used",
    )


def release_tuple(version: str | None) -> tuple[int, int, int] | None:
    """The release number in a version text (``2.6.0.dev0+4329ff84`` gives (2, 6, 0)), None where there is none."""
    match = _RELEASE.match(version.strip()) if version else None
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch
