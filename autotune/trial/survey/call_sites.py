"""Which label each checkpoint call of the installed Megatron Core belongs to, asked of its own source.

A label acts through an attribute that a constructor sets from ``"<label>" in config.recompute_modules``; the call stands
under an ``if`` on that attribute, or in a function that is called under one. Both are read from the syntax tree, so a
label or a call site that a later revision adds is found without a table here, and one that follows another pattern is
reported as unknown and never guessed. Checked against 0.16.1, 0.19.2, 2a75ac12 and d98e8a64.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
LAYER, MTP_LAYER = "layer", "mtp_layer"
"""Labels of full recompute's own call sites: a decoder layer (or chunk of layers), a multi-token-prediction layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """One function that checkpoints something."""

    file: str
    """Relative to the package's root, for example ``transformer/attention.py``."""
    function: str
    """Qualified name, as ``code.co_qualname`` spells it."""
    line: int
    label: str | None
    """The selective label, ``layer`` or ``mtp_layer``; None where the source does not say."""

    @property
    def name(self) -> str:
        """How it is reported to a person."""
        return f"{self.file}:{self.function}"


class CallSites:
    """The call sites of one Megatron Core.

    Args:
        root: Its folder ``megatron/core``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def all(self) -> tuple[CallSite, ...]:
        """Every call site, by file and line."""
        files = [file for file in self._trees if "checkpoint" in self._texts[file]]
        return tuple(site for file in sorted(files) for site in self._sites_of(file))

    @property
    def unknown(self) -> tuple[CallSite, ...]:
        """Those whose label the source does not say."""
        return tuple(site for site in self.all if site.label is None)

    def label_of(self, code: CodeType) -> str | None:
        """The label of the call site whose running code this is; None if there is none."""
        return self._labels.get((code.co_filename, code.co_qualname))

    @cached_property
    def _labels(self) -> dict[tuple[str, str], str | None]:
        return {(str(self._root / site.file), site.function): site.label for site in self.all}

    @cached_property
    def _texts(self) -> dict[str, str]:
        texts = {str(path.relative_to(self._root)): path.read_text(encoding="utf-8") for path in self._root.rglob("*.py")}
        return {file: text for file, text in texts.items() if "recompute_modules" in text or "checkpoint(" in text}

    @cached_property
    def _trees(self) -> dict[str, ast.Module]:
        wanted = (
            "recompute_modules",
            "tensor_parallel.checkpoint(",
            "te_checkpoint(",
            "_checkpoint.checkpoint(",
            "import checkpoint",
        )
        return {file: ast.parse(text) for file, text in self._texts.items() if any(word in text for word in wanted)}

    @cached_property
    def _label_of_attribute(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for tree in self._trees.values():
            for node, tests, _ in _walk(tree):
                if not isinstance(node, ast.Assign) or (isinstance(node.value, ast.Constant) and not node.value.value):
                    continue
                labels = _labels_tested(node.value) or next(
                    (labels for t in reversed(tests) if (labels := _labels_tested(t))), []
                )
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and len(labels) == 1:
                        found[target.attr] = labels[0]
        return found

    @cached_property
    def _label_of_alias(self) -> dict[tuple[str, str, str], str]:
        """Attributes set from another label attribute, by file, class and name."""
        found: dict[tuple[str, str, str], str] = {}
        for file, tree in self._trees.items():
            for node, _, scopes in _walk(tree):
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Attribute | ast.BoolOp):
                    continue
                named = {part.attr for part in ast.walk(node.value) if isinstance(part, ast.Attribute)}
                labels = {self._label_of_attribute[name] for name in named if name in self._label_of_attribute}
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and len(labels) == 1:
                        found[file, _class_of(scopes), target.attr] = next(iter(labels))
        return found

    @cached_property
    def _label_of_called(self) -> dict[str, str]:
        """Label of the functions that are only called under an ``if`` on a label's attribute."""
        found: dict[str, set[str | None]] = defaultdict(set)
        for file, tree in self._trees.items():
            for node, tests, scopes in _walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    found[node.func.attr].add(self._guard(tests, file, scopes))
        return {name: label for name, labels in found.items() if len(labels) == 1 for label in labels if label is not None}

    def _guard(self, tests: tuple[ast.expr, ...], file: str, scopes: tuple[_Scope, ...]) -> str | None:
        for test in reversed(tests):
            for node in ast.walk(test):
                if not isinstance(node, ast.Attribute):
                    continue
                label = self._label_of_attribute.get(node.attr) or self._label_of_alias.get((file, _class_of(scopes), node.attr))
                if label is not None:
                    return label
        return None

    def _sites_of(self, file: str) -> Iterator[CallSite]:
        seen: dict[str, CallSite] = {}
        own = _imports_own_checkpoint(self._trees[file])
        for node, tests, functions in _walk(self._trees[file]):
            if not isinstance(node, ast.Call) or not functions or not _is_checkpoint_call(node, own):
                continue
            qualname = _qualname(functions)
            if qualname in seen:
                continue
            label = self._guard(tests, file, functions) or next(
                (self._label_of_called[f.name] for f in reversed(functions) if f.name in self._label_of_called), None
            )
            if label is None and any(_reads_recompute_method(f) for f in functions if not isinstance(f, ast.ClassDef)):
                label = MTP_LAYER if "multi_token_prediction" in file else LAYER
            seen[qualname] = CallSite(file=file, function=qualname, line=node.lineno, label=label)
        yield from seen.values()


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, tuple[ast.expr, ...], tuple[_Scope, ...]]]:
    """Every node with the ``if`` tests that hold there (of its own function) and the functions and classes around it."""
    no_tests: tuple[ast.expr, ...] = ()
    no_scopes: tuple[_Scope, ...] = ()
    todo: list[tuple[ast.AST, tuple[ast.expr, ...], tuple[_Scope, ...]]] = [(tree, no_tests, no_scopes)]
    while todo:
        node, tests, scopes = todo.pop()
        yield node, tests, scopes
        if isinstance(node, _Scope):
            tests, scopes = (), (*scopes, node)
        if isinstance(node, ast.If):
            held = (*tests, node.test)
            todo += [(part, tests, scopes) for part in (*reversed(node.orelse), node.test)]
            todo += [(part, held, scopes) for part in reversed(node.body)]
        else:
            todo += [(child, tests, scopes) for child in reversed(list(ast.iter_child_nodes(node)))]


def _labels_tested(expression: ast.AST) -> list[str]:
    """Labels in tests of the form ``"<label>" in <...>.recompute_modules``."""
    return [
        node.left.value
        for node in ast.walk(expression)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str)
        and isinstance(node.ops[0], ast.In)
        and isinstance(node.comparators[0], ast.Attribute)
        and node.comparators[0].attr == "recompute_modules"
    ]


def _is_checkpoint_call(node: ast.Call, own_checkpoint: bool) -> bool:
    function = node.func
    if isinstance(function, ast.Name):
        return function.id == "te_checkpoint" or (function.id == "checkpoint" and own_checkpoint)
    if not isinstance(function, ast.Attribute) or function.attr != "checkpoint":
        return False
    owner = function.value
    return (isinstance(owner, ast.Name) and owner.id == "tensor_parallel") or (
        isinstance(owner, ast.Attribute) and (owner.attr.endswith("checkpoint") or owner.attr == "random")
    )


def _imports_own_checkpoint(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("megatron.core.tensor_parallel")
        and any(alias.name == "checkpoint" for alias in node.names)
        for node in ast.walk(tree)
    )


def _class_of(scopes: tuple[_Scope, ...]) -> str:
    return next((scope.name for scope in reversed(scopes) if isinstance(scope, ast.ClassDef)), "")


def _reads_recompute_method(function: _Scope) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "recompute_method" for node in ast.walk(function))


def _qualname(scopes: tuple[_Scope, ...]) -> str:
    parts: list[str] = []
    for number, scope in enumerate(scopes):
        parts.append(scope.name)
        if number + 1 < len(scopes) and not isinstance(scope, ast.ClassDef):
            parts.append("<locals>")
    return ".".join(parts)
