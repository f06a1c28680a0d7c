"""The values of Hydra-form overrides (``key=value``), for configurations that are changed without Hydra.

Covers what configurations of Bridge need of Hydra's override grammar: null, booleans, numbers, quoted and plain strings,
lists and dicts, and the prefixes ``+`` and ``++``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from autotune.errors import RequestError

_INTEGER = re.compile(r"[+-]?(0|[1-9](_?[0-9])*)")
_FLOAT = re.compile(r"[+-]?([0-9][0-9_]*\.[0-9_]*|\.[0-9_]+|[0-9][0-9_]*(?=[eE]))([eE][+-]?[0-9]+)?|[+-]?(inf|nan)")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_WORDS = {"null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Override:
    """One override: ``text`` as given, its dotted path, its value."""

    text: str
    path: str
    value: Any


def parse_override(text: str) -> Override:
    """Read ``path=value``.

    Raises:
        RequestError: It is no such pair, or the value does not parse.
    """
    key, equals, value = text.lstrip("+").partition("=")
    if text.startswith("~"):
        raise RequestError("override", text, "a field cannot be deleted", "set it to null: key.path=null")
    if not equals or not _KEY.fullmatch(key.strip()):
        raise RequestError("override", text, "is no override", "write key.path=value, for example train.global_batch_size=16")
    return Override(text, key.strip(), parse_value(value, text))


def parse_value(text: str, whole: str) -> Any:
    """Read one value; ``whole`` is the override that an error names."""
    parser = _Parser(text.strip(), whole)
    value = parser.value("")
    parser.end()
    return value


class _Parser:
    def __init__(self, text: str, whole: str) -> None:
        self.text, self.whole, self.at = text, whole, 0

    def value(self, stop: str) -> Any:
        self._skip()
        if self.text.startswith("[", self.at):
            return self._list()
        if self.text.startswith("{", self.at):
            return self._dict()
        if self.text[self.at : self.at + 1] in ("'", '"'):
            return self._quoted()
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in stop:
            self.at += 1
        return _scalar(self.text[start : self.at].strip())

    def end(self) -> None:
        self._skip()
        if self.at != len(self.text):
            raise self._error(f"has something after its value: {self.text[self.at :]!r}")

    def _list(self) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while not self._closes("]"):
            if items:
                self._expect(",")
            items.append(self.value(",]"))
        return items

    def _dict(self) -> dict[str, Any]:
        self.at += 1
        items: dict[str, Any] = {}
        while not self._closes("}"):
            if items:
                self._expect(",")
            key = self.value(":")
            self._expect(":")
            items[str(key)] = self.value(",}")
        return items

    def _quoted(self) -> str:
        quote = self.text[self.at]
        self.at += 1
        out = []
        while self.at < len(self.text) and self.text[self.at] != quote:
            if self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in (quote, "\\"):
                self.at += 1
            out.append(self.text[self.at])
            self.at += 1
        self._expect(quote)
        return "".join(out)

    def _closes(self, bracket: str) -> bool:
        self._skip()
        if self.at >= len(self.text):
            raise self._error(f"lacks a closing {bracket}")
        if self.text[self.at] == bracket:
            self.at += 1
            return True
        return False

    def _expect(self, character: str) -> None:
        self._skip()
        if not self.text.startswith(character, self.at):
            raise self._error(f"lacks {character} at {self.text[self.at :]!r}")
        self.at += 1

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def _error(self, rule: str) -> RequestError:
        return RequestError("override", self.whole, rule, "quote the value as a shell would need it")


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text.lower()):
        return float(text)
    return text
