"""Values of Megatron-LM arguments as they are written: switches, numbers, lists and layer patterns."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from autotune.errors import RequestError
from autotune.workload.megatron_arg_names import Kind

_MAX_LAYERS = 10_000  # a longer pattern is a slip, and would only cost time

_TRUE = {"true", "1", "yes", "on", ""}
_FALSE = {"false", "0", "no", "off"}
_DTYPES = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16",
           "fp8": "fp8", "auto": "fp32"}  # fmt: skip


def read_value(name: str, value: Any, kind: Kind) -> Any:
    """The value of one argument.

    Raises:
        RequestError: The value is not of its argument's kind.
    """
    try:
        if value is None and kind != "bool":
            return None
        return _READERS[kind](value)
    except (ValueError, KeyError, TypeError, SyntaxError):
        raise RequestError(name, value, f"is not {_KINDS[kind]}", "write it as Megatron's command line takes it") from None


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = "" if value is None else str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(word)


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or float(value) != int(float(value)):
        raise ValueError(value)
    return int(float(value))


def _read_word(value: Any) -> str | None:
    word = str(value).strip()
    return None if word in {"None", "null", ""} else word  # "none" is a choice of its own (positions, graph implementation)


def _read_list(value: Any) -> Any:
    """A list of words as a tuple; one word stays one word."""
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    words = re.findall(r"[^\s,\[\]\"']+", str(value))
    if str(value).strip().startswith("["):
        return tuple(words)
    return words[0] if len(words) == 1 else tuple(words)


def _read_dtype(value: Any) -> str:
    return _DTYPES[str(value).strip().lower().removeprefix("torch.")]


def _read_ints(value: Any) -> tuple[int, ...]:
    items = value if isinstance(value, list | tuple) else re.findall(r"-?\d+", str(value))
    if not items:
        raise ValueError(value)
    return tuple(int(item) for item in items)


def _read_pattern(value: Any) -> int | tuple[int, ...]:
    """A layer pattern: N, a list, or an expression of lists such as ``([0]*3+[1]*1)*2``.

    Source: megatron/training/arguments.py:moe_freq_type, _eval_pattern.
    """
    if isinstance(value, list | tuple):
        return tuple(int(item) for item in value)
    text = str(value).strip()
    if "[" not in text:
        return _read_int(text)
    result = _evaluate(ast.parse(text, mode="eval").body)
    if not isinstance(result, list):
        raise ValueError(text)
    return tuple(result)


def _evaluate(node: ast.expr) -> Any:
    match node:
        case ast.List(elts=items):
            return [_evaluate(item) for item in items]
        case ast.Constant(value=int() as number):
            return number
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _evaluate(left), _evaluate(right)
            if _length(first) * _length(second) > _MAX_LAYERS:
                raise ValueError("pattern too long")
            return first * second
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _evaluate(left) + _evaluate(right)
        case _:
            raise ValueError(ast.dump(node))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else int(value)


_READERS: Mapping[Kind, Callable[[Any], Any]] = {
    "int": _read_int, "float": float, "bool": _read_bool, "str": _read_word, "list": _read_list, "ints": _read_ints,
    "pattern": _read_pattern, "own_dtype": lambda value: None if str(value).strip().lower() == "auto" else _read_dtype(value),
    "dtype": _read_dtype,
}  # fmt: skip
_KINDS: Mapping[Kind, str] = {
    "int": "a whole number", "float": "a number", "bool": "a switch (true or false)", "str": "a word", "list": "a list of words",
    "ints": "a list of whole numbers", "pattern": "a layer pattern (N, or a list such as ([0]*1+[1]*3))",
    "dtype": "a dtype (fp32, bf16, fp16, fp8)", "own_dtype": "a dtype (fp32, bf16, fp16) or auto",
}  # fmt: skip
