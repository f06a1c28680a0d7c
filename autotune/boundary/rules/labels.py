"""Rules on single labels: accepted by the revision, what they need, where they have a site.

Lines: megatron/core/transformer/transformer_config.py at 2a75ac12, unless another file or revision is named.
"""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context
from autotune.boundary.labels import LABELS
from autotune.boundary.rules.rule import rule


@rule("invalid", "transformer_config.py:1825-1840", granularity="selective")
def label_not_accepted(context: Context, boundary: Boundary) -> str | None:
    """The revision's own list decides."""
    missing = [name for name in boundary.modules if name not in context.accepted.labels]
    if not missing or not context.accepted.complete:
        return None
    words = [f"{name} ({_first_in(name)})" for name in missing]
    accepted = ", ".join(sorted(context.accepted.labels))
    return f"Megatron Core {context.accepted.revision} does not accept {', '.join(words)}; it accepts {accepted}"


def _first_in(name: str) -> str:
    label = LABELS.get(name)
    if label is None:
        return "unknown to autotune"
    if label.since is None:
        return "missing from this revision"
    return f"missing here, first in {'.'.join(map(str, label.since.release))} or commit {label.since.commit}"


@rule("not_checkable", "transformer_config.py:1825-1840", granularity="selective")
def label_of_unplaced_revision(context: Context, boundary: Boundary) -> str | None:
    """A revision outside the table may accept what the nearest known one does not."""
    missing = [name for name in boundary.modules if name not in context.accepted.labels]
    if not missing or context.accepted.complete:
        return None
    return f"whether this Megatron Core accepts {', '.join(missing)} cannot be told here: {context.accepted.note}"


@rule("not_checkable", "autotune/boundary/labels.py", granularity="selective")
def label_unknown_to_autotune(context: Context, boundary: Boundary) -> str | None:
    """Accepted by the revision, and this project cannot say where it acts."""
    unknown = [name for name in boundary.modules if name in context.accepted.labels and name not in context.sites]
    if not unknown:
        return None
    return f"{', '.join(unknown)}: unknown to autotune, accepted by Megatron Core {context.accepted.revision}; it can be tried"


@rule("invalid", "transformer_config.py:1842-1845", labels=("moe_act",))
def moe_act_needs_grouped_gemm(context: Context, _: Boundary) -> str | None:
    """moe_act lives in the grouped experts."""
    return None if context.workload.model.moe_grouped_gemm else "moe_act needs moe_grouped_gemm"


@rule("invalid", "transformer_config.py:1847-1851", labels=("mla_up_proj",))
def mla_up_proj_needs_mla(context: Context, _: Boundary) -> str | None:
    """mla_up_proj lives in multi-latent attention."""
    return None if context.workload.model.multi_latent_attention else "mla_up_proj needs multi_latent_attention"


@rule("invalid", "transformer_config.py:1853-1859", labels=("gdn_norm_out",))
def gdn_norm_out_needs_gdn(context: Context, _: Boundary) -> str | None:
    """gdn_norm_out lives in the gated delta net."""
    if context.gated_delta_net:
        return None
    return "gdn_norm_out needs experimental_attention_variant gdn or gdn2"


@rule("invalid", "transformer_config.py:2028-2050 at d98e8a64", labels=("mhc",))
def mhc_needs_hyper_connections(context: Context, boundary: Boundary) -> str | None:
    """mhc needs its feature, and excludes mlp and fine-grained offloading."""
    if not context.workload.other.get("model.enable_mhc_connections"):
        return "mhc needs enable_mhc_connections"
    if "mlp" in boundary.modules:
        return "mhc and mlp cannot be used together: their checkpoints may conflict"
    if context.workload.features.fine_grained_activation_offloading:
        return "mhc does not work with fine-grained activation offloading yet"
    return None


@rule("no_effect", "autotune/boundary/sites.py", granularity="selective")
def label_without_site(context: Context, boundary: Boundary) -> str | None:
    """A label without a site on any layer changes nothing."""
    idle = [name for name in boundary.modules if name in context.sites and not context.sites[name].layers]
    if not idle:
        return None
    return "; ".join(f"{name} has no effect: {context.sites[name].why_none}" for name in idle)


RULES = (
    label_not_accepted,
    label_of_unplaced_revision,
    label_unknown_to_autotune,
    moe_act_needs_grouped_gemm,
    mla_up_proj_needs_mla,
    gdn_norm_out_needs_gdn,
    mhc_needs_hyper_connections,
    label_without_site,
)
