"""The Transformer Engine stand-ins: same numbers as plain PyTorch, and for backward exactly what TE keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from autotune.trial.prelude.te_stand_in import kernels  # noqa: E402
from autotune.trial.prelude.te_stand_in.attention import DotProductAttention  # noqa: E402
from autotune.trial.prelude.te_stand_in.grouped_linear import GroupedLinear  # noqa: E402
from autotune.trial.prelude.te_stand_in.linear import LayerNormLinear, Linear  # noqa: E402
from autotune.trial.prelude.te_stand_in.norm import LayerNorm, RMSNorm  # noqa: E402
from autotune.trial.prelude.te_stand_in.optimizers import FusedAdam, multi_tensor_l2norm, multi_tensor_scale  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


def kept_bytes(call: Callable[[], Any], *, but: tuple[Tensor, ...] = ()) -> int:
    """Bytes of distinct storages that autograd keeps of a call, without parameters and the given tensors."""
    storages: dict[int, int] = {}
    leave_out = {tensor.untyped_storage().data_ptr() for tensor in but}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, torch.nn.Parameter) and storage.data_ptr() not in leave_out:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = call()
    del kept
    return sum(storages.values())


def gradients(output: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    seed = torch.linspace(-1, 1, output.numel()).view(output.shape)
    return torch.autograd.grad(output, leaves, seed)


def assert_same(mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_norms_are_those_of_torch(kind: Any, zero_centered: bool) -> None:
    x = torch.randn(6, 3, 16, requires_grad=True)
    norm = kind(16, eps=1e-5, params_dtype=torch.float32, device="cpu", zero_centered_gamma=zero_centered)
    torch.nn.init.normal_(norm.weight)
    gain = norm.weight + 1 if zero_centered else norm.weight
    if kind is RMSNorm:
        want = torch.nn.functional.rms_norm(x, (16,), gain, 1e-5)
    else:
        want = torch.nn.functional.layer_norm(x, (16,), gain, norm.bias, 1e-5)
    got = norm(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    leaves = [x, *norm.parameters()]
    if kind is RMSNorm:
        leaves = [x, norm.weight]
    assert_same(gradients(got, *leaves), gradients(want, *leaves))


def test_rms_norm_keeps_its_input_and_four_bytes_a_row() -> None:
    x = torch.randn(6, 3, 16, requires_grad=True)
    norm = RMSNorm(16, params_dtype=torch.float32, device="cpu")
    assert kept_bytes(lambda: norm(x)) == x.untyped_storage().nbytes() + 6 * 3 * 4


@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_that_of_torch_and_keeps_its_input_only(bias: bool) -> None:
    x = torch.randn(6, 2, 8, requires_grad=True)
    layer = Linear(8, 12, bias=bias, params_dtype=torch.float32, device="cpu")
    if bias:
        torch.nn.init.normal_(layer.bias)
    want = torch.nn.functional.linear(x, layer.weight, layer.bias)
    got = layer(x)
    torch.testing.assert_close(got, want)
    leaves = [x, layer.weight, *([layer.bias] if bias else [])]
    assert_same(gradients(got, *leaves), gradients(want, *leaves))
    assert kept_bytes(lambda: layer(x)) == x.untyped_storage().nbytes()


def test_linear_can_hand_back_its_bias_instead_of_adding_it() -> None:
    layer = Linear(8, 12, bias=True, return_bias=True, params_dtype=torch.float32, device="cpu")
    out, bias = layer(torch.randn(3, 8))
    assert bias is layer.bias and out.shape == (3, 12)


def test_fused_weight_gradient_goes_into_main_grad_and_returns_a_shared_dummy() -> None:
    x = torch.randn(6, 8, dtype=torch.bfloat16, requires_grad=True)
    layer = Linear(8, 12, bias=False, params_dtype=torch.bfloat16, device="cpu", fuse_wgrad_accumulation=True)
    layer.weight.main_grad = torch.ones(12, 8)
    layer.weight.grad_added_to_main_grad = False
    (dummy,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    want = 1 + torch.ones(6, 12).t() @ x.detach().float()
    torch.testing.assert_close(layer.weight.main_grad, want)
    assert layer.weight.grad_added_to_main_grad and dummy.shape == (12, 8)
    (again,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    assert again.untyped_storage().data_ptr() == dummy.untyped_storage().data_ptr()


@pytest.mark.parametrize("normalization", ["RMSNorm", "LayerNorm"])
def test_layer_norm_linear_is_norm_then_linear_and_keeps_both_inputs(normalization: str) -> None:
    x = torch.randn(6, 2, 8, requires_grad=True)
    layer = LayerNormLinear(8, 12, bias=False, normalization=normalization, params_dtype=torch.float32, device="cpu")
    torch.nn.init.normal_(layer.layer_norm_weight)
    if normalization == "RMSNorm":
        normed = torch.nn.functional.rms_norm(x, (8,), layer.layer_norm_weight, 1e-5)
    else:
        normed = torch.nn.functional.layer_norm(x, (8,), layer.layer_norm_weight, layer.layer_norm_bias, 1e-5)
    want = torch.nn.functional.linear(normed, layer.weight)
    got = layer(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    leaves = [x, layer.layer_norm_weight, layer.weight]
    assert_same(gradients(got, *leaves), gradients(want, *leaves))
    rows, per_row = 12, 4 if normalization == "RMSNorm" else 8
    assert kept_bytes(lambda: layer(x)) == 2 * x.untyped_storage().nbytes() + rows * per_row


def test_layer_norm_linear_returns_its_norm_where_asked() -> None:
    x = torch.randn(6, 8, requires_grad=True)
    layer = LayerNormLinear(8, 4, bias=False, return_layernorm_output=True, params_dtype=torch.float32, device="cpu")
    out, normed = layer(x)
    want = torch.nn.functional.layer_norm(x, (8,))
    torch.testing.assert_close(normed, want, rtol=1e-4, atol=1e-5)
    both = gradients(out, x)[0] + gradients(layer(x)[1], x)[0]
    joint = torch.autograd.grad([*layer(x)], [x], [torch.linspace(-1, 1, t.numel()).view(t.shape) for t in (out, normed)])[0]
    torch.testing.assert_close(joint, both, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("splits", [[3, 2, 1], [6, 0, 0]])
def test_grouped_linear_is_one_product_for_each_expert_over_one_input(splits: list[int]) -> None:
    x = torch.randn(6, 8, requires_grad=True)
    layer = GroupedLinear(3, 8, 5, bias=False, params_dtype=torch.float32, device="cpu")
    weights = [layer.weight0, layer.weight1, layer.weight2]
    want = torch.cat([piece @ weight.t() for piece, weight in zip(torch.split(x, splits), weights, strict=True)])
    got = layer(x, splits)
    torch.testing.assert_close(got, want)
    assert_same(gradients(got, x, *weights), gradients(want, x, *weights))
    assert kept_bytes(lambda: layer(x, splits)) == x.untyped_storage().nbytes()


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize(("mask", "window"), [("causal", None), ("no_mask", None), ("causal", (3, 0))])
def test_attention_is_that_of_torch(groups: int, mask: str, window: tuple[int, int] | None) -> None:
    s, b, heads, d, dv = 10, 2, 4, 6, 5
    q = torch.randn(s, b, heads, d, requires_grad=True)
    k = torch.randn(s, b, groups, d, requires_grad=True)
    v = torch.randn(s, b, groups, dv, requires_grad=True)
    layer = DotProductAttention(heads, (d, dv), num_gqa_groups=groups, attn_mask_type=mask, window_size=window)
    allowed = torch.ones(s, s, dtype=torch.bool)
    if mask == "causal":
        allowed = allowed.tril()
    if window is not None:
        allowed = allowed.tril() & ~torch.ones(s, s, dtype=torch.bool).tril(-window[0] - 1)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(t.permute(1, 2, 0, 3) for t in (q, k, v)), attn_mask=allowed, enable_gqa=True
    )
    want = want.permute(2, 0, 1, 3).reshape(s, b, heads * dv)
    got = layer(q, k, v)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert_same(gradients(got, q, k, v), gradients(want, q, k, v))


def test_attention_keeps_nothing_of_the_square_of_the_sequence() -> None:
    s, b, heads, d = 64, 2, 4, 8
    q, k, v = (torch.randn(s, b, heads, d, requires_grad=True) for _ in range(3))
    layer = DotProductAttention(heads, d)
    qkv_and_out = 4 * s * b * heads * d * 4
    assert kept_bytes(lambda: layer(q, k, v)) == qkv_and_out + b * heads * s * 4 + 16


def test_attention_dropout_comes_back_the_same_in_backward() -> None:
    s, heads, d = 16, 2, 4
    q, k, v = (torch.randn(s, 1, heads, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    layer = DotProductAttention(heads, d, attention_dropout=0.3)

    def run() -> Tensor:
        torch.manual_seed(11)
        return layer(q, k, v).double()

    grad = torch.autograd.grad(run().sum(), v)[0]
    step = torch.zeros_like(v)
    step[3, 0, 1, 2] = 1e-2
    base = run().sum()
    with torch.no_grad():
        v += step
    torch.testing.assert_close((run().sum() - base) / 1e-2, grad[3, 0, 1, 2], rtol=1e-3, atol=1e-3)


def test_settings_without_a_stand_in_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="delay_wgrad_compute"):
        Linear(4, 4, params_dtype=torch.float32, device="cpu", delay_wgrad_compute=True)
    with pytest.raises(NotImplementedError, match="softmax offset"):
        DotProductAttention(2, 4, softmax_type="learnable")
    with pytest.raises(NotImplementedError, match="padding"):
        DotProductAttention(2, 4)(*(torch.zeros(2, 1, 2, 4) for _ in range(3)), attn_mask_type="padding")
    with pytest.raises(NotImplementedError, match="fp32 or bf16"):
        FusedAdam([torch.nn.Parameter(torch.zeros(1))], exp_avg_dtype=torch.uint8)


@pytest.mark.parametrize("decoupled", [True, False])
def test_fused_adam_is_that_of_torch(decoupled: bool) -> None:
    mine = torch.nn.Parameter(torch.randn(7, 3))
    theirs = torch.nn.Parameter(mine.detach().clone())
    arguments: dict[str, Any] = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    adam = FusedAdam([mine], adam_w_mode=decoupled, **arguments)
    reference = (torch.optim.AdamW if decoupled else torch.optim.Adam)([theirs], **arguments)
    for _ in range(4):
        mine.grad = torch.randn(7, 3)
        theirs.grad = mine.grad.clone()
        adam.step()
        reference.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_states_of_fused_adam_appear_in_its_first_step_with_their_dtypes() -> None:
    parameter = torch.nn.Parameter(torch.randn(8, dtype=torch.bfloat16))
    adam = FusedAdam(
        [parameter], exp_avg_dtype=torch.bfloat16, master_weights=True, use_decoupled_grad=True, store_param_remainders=True
    )
    assert not adam.state
    parameter.decoupled_grad = torch.ones(8, dtype=torch.bfloat16)
    adam.step()
    dtypes = {name: value.dtype for name, value in adam.state[parameter].items()}
    assert dtypes == {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.float32, "master_param": torch.int16}


def test_remainder_bits_hold_the_full_master_weight() -> None:
    start = torch.randn(64)
    with_bits = torch.nn.Parameter(start.bfloat16())
    with_copy = torch.nn.Parameter(start.bfloat16())
    optimizers = [
        FusedAdam([p], lr=1e-4, master_weights=True, use_decoupled_grad=True, store_param_remainders=bits)
        for p, bits in ((with_bits, True), (with_copy, False))
    ]
    for step in range(20):
        grad = torch.randn(64, generator=torch.Generator().manual_seed(step)).bfloat16()
        for parameter, adam in zip((with_bits, with_copy), optimizers, strict=True):
            parameter.decoupled_grad = grad
            adam.step()
    master = optimizers[1].state[with_copy]["master_param"]
    rebuilt = optimizers[0]._master(with_bits, optimizers[0].state[with_bits])
    torch.testing.assert_close(rebuilt, master, rtol=0, atol=0)
    torch.testing.assert_close(with_bits.float(), master, rtol=1e-2, atol=1e-3)


def test_multi_tensor_functions() -> None:
    flag, tensors = torch.zeros(1, dtype=torch.int), [torch.randn(3), torch.randn(2, 2)]
    norm, each = multi_tensor_l2norm(0, flag, [tensors], True)
    torch.testing.assert_close(norm[0], torch.cat([t.flatten() for t in tensors]).norm())
    assert each is not None and each.shape == (2,)
    scaled = [torch.empty_like(t) for t in tensors]
    multi_tensor_scale(0, flag, [tensors, scaled], 0.5)
    torch.testing.assert_close(scaled[1], tensors[1] / 2)
    assert flag.item() == 0
    multi_tensor_scale(0, flag, [[torch.tensor([float("inf")])], [torch.empty(1)]], 1.0)
    assert flag.item() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cpu_that_is_slow_at_16_bits_multiplies_in_single_precision(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has its type, and nothing that is made on the way is the model's memory."""
    inside: list[str] = []

    @contextlib.contextmanager
    def scratch() -> Iterator[None]:
        inside.append("in")
        yield

    monkeypatch.setattr(kernels, "multiplies", lambda of: of not in (torch.bfloat16, torch.float16))
    monkeypatch.setattr(kernels, "_scratch", [scratch])
    monkeypatch.setattr(torch, "mm", None)  # The slow product.
    a, b = torch.randn(8, 16).to(dtype), torch.randn(16, 4).to(dtype)
    exact = (a.double() @ b.double()).to(dtype)
    assert torch.equal(kernels.matmul(a, b), exact) and kernels.matmul(a, b).dtype == dtype
    total = torch.ones(8, 4, dtype=dtype)
    kernels.matmul_into(total, a, b, accumulate=True)
    torch.testing.assert_close(total, exact + 1)
    assert inside == ["in"] * 3
