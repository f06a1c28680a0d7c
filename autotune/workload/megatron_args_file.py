"""Megatron-LM arguments from a file: a launch script or command line, or a JSON or YAML mapping."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from autotune.errors import RequestError
from autotune.records import decode_json
from autotune.workload.megatron_args import workload_from_args
from autotune.workload.workload import Workload

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LAUNCHER = {"nnodes": "nnodes", "nproc_per_node": "nproc_per_node"}
_OF_THE_FILE = ("gpu", "gpus_per_node", "name")


def read_args_file(path: Path) -> Workload:
    """Read Megatron-LM arguments from a file.

    A ``.json``, ``.yaml`` or ``.yml`` file holds a mapping of arguments, or Megatron-LM's own test form with ``MODEL_ARGS``
    and ``ENV_VARS``. Any other file is read as a shell command: ``torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py
    --num-layers 32 ...``, with comments, continued lines, ``export NAME=value`` and ``ARGS=( ... )``. The keys ``gpu``,
    ``gpus_per_node``, ``name`` and ``world_size`` of a mapping say what the arguments do not.

    Raises:
        RequestError: The file cannot be read, holds no arguments, or they do not make a workload.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(str(path), None, f"cannot be read ({error})", "give a text file of arguments") from None
    if path.suffix in {".json", ".yaml", ".yml"}:
        args, environment = _from_mapping(path, _load(path, text))
    else:
        args, environment = parse_command(text)
    if not args:
        raise RequestError(str(path), None, "holds no Megatron arguments", "write them as --name value")
    settings = {key: args.pop(key) for key in _OF_THE_FILE if key in args}
    return workload_from_args(
        args,
        gpu=str(settings.get("gpu", "H100")),
        gpus_per_node=int(settings.get("gpus_per_node", 8)),
        name=str(settings.get("name", path.stem)),
        reference=str(path),
        env_vars=environment,
    )


def parse_command(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and environment of a shell command or script.

    Returns:
        Arguments by name (a bare switch is True, several values are a list), with ``world_size`` from torchrun's
        ``--nnodes`` and ``--nproc-per-node`` where both are there; and the environment variables it sets.
    """
    environment: dict[str, str] = {}
    values: dict[str, Any] = {}
    for line in text.replace("\\\n", " ").splitlines():  # a value never goes on in the next line, a command may
        loose: list[str] = []
        for word in _words(line):
            match = _ASSIGNMENT.fullmatch(word)
            if match and not match[2].startswith("("):
                environment[match[1]] = match[2]
            elif word != "export":
                bare = match[2][1:] if match else word  # ARGS=(--first ...
                loose.append(bare if "(" in bare else bare.removesuffix(")"))
        values.update(_pairs([word for word in loose if word]))
    launch = {key: values.pop(key) for key in list(values) if _plain(key) in _LAUNCHER}
    sizes = {_plain(key): value for key, value in launch.items()}
    if str(sizes.get("nproc_per_node", "")).isdigit():
        values.setdefault("world_size", int(str(sizes.get("nnodes", 1))) * int(str(sizes["nproc_per_node"])))
    return values, environment


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    name: str | None = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values[name] = value if equals else True
        elif name is not None and not word.endswith(".py") and not word.startswith("$"):
            held = values[name]
            values[name] = word if held is True else [*(held if isinstance(held, list) else [held]), word]
    return values


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise RequestError("arguments", line.strip(), f"cannot be read ({error})", "close the quotation") from None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _from_mapping(path: Path, value: Any) -> tuple[dict[str, Any], dict[str, str]]:
    if not isinstance(value, Mapping):
        raise RequestError(str(path), None, "is no mapping of arguments", "write one argument a line as name: value")
    args = value.get("MODEL_ARGS", value)
    environment = value.get("ENV_VARS", {})
    if not isinstance(args, Mapping) or not isinstance(environment, Mapping):
        raise RequestError(str(path), None, "MODEL_ARGS and ENV_VARS are not mappings", "write name: value under each")
    own = {key: value[key] for key in (*_OF_THE_FILE, "world_size") if key in value}
    return {**args, **own}, {str(key): str(item) for key, item in environment.items()}


def _load(path: Path, text: str) -> Any:
    import yaml

    try:
        return decode_json(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        line = " ".join(str(error).split())
        raise RequestError(str(path), None, f"cannot be parsed ({line})", "mend the file") from None
