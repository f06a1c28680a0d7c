"""A Boundary: one activation-recompute setting, all four fields, normalised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import RequestError

Granularity = Literal["selective", "full"]
Method = Literal["uniform", "block"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """One recompute setting by Megatron's names, without their prefix ``recompute_``.

    Under selective granularity ``modules`` is a sorted tuple without duplicates. ``granularity=None`` (recompute off)
    and ``selective`` with no modules (the control) are different settings with the same effect. A list that Megatron
    would fill by its hidden default (``modules=None`` -> ``["core_attn"]``,
    transformer_config.py:TransformerConfig.__post_init__) is filled by ``from_fields``.
    """

    granularity: Granularity | None
    modules: tuple[str, ...] = ()
    method: Method | None = None
    num_layers: int | None = None

    @classmethod
    def off(cls) -> Boundary:
        """No recompute: granularity None."""
        return cls(None)

    @classmethod
    def selective(cls, modules: Iterable[str] = ()) -> Boundary:
        """Selective recompute of the given labels; none is the control."""
        return cls("selective", tuple(sorted(set(modules))))

    @classmethod
    def full(cls, method: Method, num_layers: int) -> Boundary:
        """Full recompute."""
        return cls("full", (), method, num_layers)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Boundary:
        """Read Megatron's four fields (``recompute_granularity`` ...), a missing one as None.

        A ``recompute_modules`` of None under selective becomes ``["core_attn"]``, as Megatron does.
        Fields that Megatron ignores for the granularity are dropped.

        Raises:
            RequestError: A granularity that Megatron does not have, or a module list that is no list of names.
        """
        granularity = fields.get("recompute_granularity")
        modules = fields.get("recompute_modules")
        if granularity not in (None, "selective", "full"):
            raise RequestError("recompute_granularity", granularity, "is None, selective or full", "choose one of these")
        if isinstance(modules, str) or not all(isinstance(label, str) for label in modules or ()):
            raise RequestError("recompute_modules", modules, "is a list of labels", "write for example [core_attn]")
        if granularity is None:
            return cls.off()
        if granularity == "full":
            return cls("full", (), fields.get("recompute_method"), fields.get("recompute_num_layers"))
        return cls(
            "selective",
            tuple(sorted({"core_attn"} if modules is None else set(modules))),
            None,
            fields.get("recompute_num_layers"),
        )

    def to_fields(self) -> dict[str, Any]:
        """The four fields by Megatron's names, as the patch writes them (modules never None)."""
        return {
            "recompute_granularity": self.granularity,
            "recompute_modules": list(self.modules),
            "recompute_method": self.method,
            "recompute_num_layers": self.num_layers,
        }

    @property
    def key(self) -> str:
        """A short unique name: ``off``, ``[]``, ``layernorm+moe_act``, ``full/uniform/1``."""
        if self.granularity is None:
            return "off"
        if self.granularity == "full":
            return f"full/{self.method}/{self.num_layers}"
        return "+".join(self.modules) or "[]"

    @property
    def is_control(self) -> bool:
        """Whether nothing is recomputed."""
        return self.granularity != "full" and not self.modules
