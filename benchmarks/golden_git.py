"""What a clone of Megatron-LM holds: golden files of every commit, argument files, and the software of a commit's test image."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

TEST_CASES = "tests/functional_tests/test_cases"
_GOLDEN = re.compile(rf"{TEST_CASES}/(?P<test>.+)/golden_values_?(?P<environment>[^/]*)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFile:
    """One version of one golden file, at the oldest commit that has it."""

    path: str
    test: str
    """Folder of the test below the test cases: ``moe/gpt3_...``."""
    environment: str
    commit: str
    day: str
    values: Mapping[str, Any]


class History:
    """A repository that is only read, through one ``git cat-file`` process."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository

    @cached_property
    def _objects(self) -> subprocess.Popen[bytes]:
        command = ["git", "-C", str(self._repository), "cat-file", "--batch"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """End the process."""
        for pipe in (self._objects.stdin, self._objects.stdout):
            if pipe is not None:
                pipe.close()
        self._objects.wait()

    @lru_cache(maxsize=8192)  # noqa: B019 - one History lives as long as its program
    def text(self, name: str) -> str | None:
        """The text of an object (``<commit>:<path>`` or a blob's hash), or None where there is none."""
        pipes = self._objects
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(f"{name}\n".encode())
        pipes.stdin.flush()
        header = pipes.stdout.readline().split()
        if header[-1] == b"missing" or len(header) != 3:
            return None
        content = pipes.stdout.read(int(header[2]))
        pipes.stdout.read(1)
        return content.decode("utf-8", errors="replace") if header[1] == b"blob" else None

    @lru_cache(maxsize=8192)  # noqa: B019
    def paths(self, commit: str, folder: str) -> tuple[str, ...]:
        """Files of a commit below a folder."""
        return tuple(self._git("ls-tree", "-r", "--name-only", commit, folder).splitlines())

    def golden_files(self) -> Iterator[GoldenFile]:
        """Every version of every golden file, oldest first."""
        log = self._git("log", "--all", "--raw", "--no-abbrev", "--no-renames", "--date-order", "--reverse",
                        "--format=commit %H %cs", "--", TEST_CASES)  # fmt: skip
        commit = day = ""
        for line in log.splitlines():
            if line.startswith("commit "):
                _, commit, day = line.split(" ")
                continue
            described, _, path = line.partition("\t")
            found = _GOLDEN.fullmatch(path)
            if found is None or described.endswith("D"):
                continue
            values = _json(self.text(described.split()[3]))
            if isinstance(values, Mapping):
                yield GoldenFile(path=path, commit=commit, day=day, values=values, **found.groupdict())

    def config(self, commit: str, test: str, parts: Mapping[str, str]) -> dict[str, Any] | None:
        """Arguments and environment of a test: its own file, or the parts that its recipe names, laid over each other."""
        import yaml

        paths = [f"{TEST_CASES}/{test}/model_config.yaml"]
        if parts:
            root = f"{TEST_CASES}/{test.split('/', maxsplit=1)[0]}"
            paths = [f"{TEST_CASES}/ci_base_config.yml", *(f"{root}/{kind}s/{name}.yaml" for kind, name in sorted(parts.items()))]
        merged: dict[str, Any] = {}
        for path in paths:
            try:
                part = yaml.safe_load(self.text(f"{commit}:{path}") or "")
            except yaml.YAMLError:
                part = None
            for key, value in part.items() if isinstance(part, Mapping) else ():
                merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
        return merged if merged.get("MODEL_ARGS") else None

    def stack(self, commit: str, *, lts: bool) -> dict[str, str]:
        """What the commit itself says of its image: container, Megatron Core, Transformer Engine; silence where it does not."""
        stack: dict[str, str] = {}
        images = re.findall(r"nvcr\.io/nvidia/pytorch:([\d.]+)-py3", self._build(commit))
        if images:
            stack["container"] = images[0] if lts else images[-1]
        version = self.text(f"{commit}:megatron/core/package_info.py") or ""
        numbers = dict(re.findall(r"^(MAJOR|MINOR|PATCH) = (\d+)", version, re.M))
        if len(numbers) == 3:
            stack["megatron_core"] = ".".join(numbers[name] for name in ("MAJOR", "MINOR", "PATCH"))
        locked = re.search(r'^name = "transformer-engine"\nversion = "([\d.]+)', self.text(f"{commit}:uv.lock") or "", re.M)
        if locked and not (lts and images and images[0] == "24.01"):
            stack["transformer_engine"] = locked[1]
        return stack

    def _build(self, commit: str) -> str:
        stages = (self.text(f"{commit}:.gitlab/stages/{name}.yml") for name in ("01.build", "01.test"))
        return next((text for text in stages if text and "nvcr.io/nvidia/pytorch" in text), "")

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(self._repository), *arguments], capture_output=True, check=True)
        return done.stdout.decode("utf-8", errors="replace")


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return None
