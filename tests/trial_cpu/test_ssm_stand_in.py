"""Mamba-2 and gated delta rule in plain PyTorch: the chunked forms against their recurrences."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from autotune.trial.prelude.ssm_stand_in import delta_rule, mamba  # noqa: E402
from autotune.trial.prelude.ssm_stand_in.opaque import opaque  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


def scan_step_by_step(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    n, length, heads, width = x.shape
    state = torch.zeros(n, heads, width, b.shape[-1])
    out = []
    for t in range(length):
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        state = state * decay + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None, :]
        out.append((state * c[:, t, :, None, :]).sum(-1))
    return torch.stack(out, 1)


@pytest.mark.parametrize("length", [8, 13])
def test_chunked_scan_is_the_recurrence(length: int) -> None:
    x, dt = torch.randn(2, length, 3, 4), torch.rand(2, length, 3)
    a, b, c = -torch.rand(3) - 0.1, torch.randn(2, length, 3, 5), torch.randn(2, length, 3, 5)
    torch.testing.assert_close(mamba.scan(x, dt, a, b, c, 4), scan_step_by_step(x, dt, a, b, c), rtol=1e-4, atol=1e-4)


def delta_step_by_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float) -> Tensor:
    state = torch.zeros(q.shape[0], q.shape[2], k.shape[-1], v.shape[-1])
    out = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        error = v[:, t] - (state * k[:, t, ..., None]).sum(-2)
        state = state + (beta[:, t, :, None] * k[:, t])[..., None] * error[..., None, :]
        out.append((state * (scale * q[:, t])[..., None]).sum(-2))
    return torch.stack(out, 1)


@pytest.mark.parametrize("length", [64, 100])
def test_chunked_delta_rule_is_the_recurrence(length: int) -> None:
    q, v = torch.randn(2, length, 3, 4), torch.randn(2, length, 3, 5)
    k = torch.nn.functional.normalize(torch.randn(2, length, 3, 4), dim=-1)
    g, beta = -torch.rand(2, length, 3) * 0.2, torch.rand(2, length, 3)
    got = delta_rule.rule(q, k, v, g, beta, scale=0.5)
    torch.testing.assert_close(got, delta_step_by_step(q, k, v, g, beta, scale=0.5), rtol=1e-3, atol=1e-4)


def test_an_opaque_kernel_has_the_gradients_of_its_function_and_keeps_what_it_says() -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = opaque(lambda a, b: (a @ b).tanh(), x, y, keeps=(((100,), torch.float32),))
    seed = torch.randn(4, 5)
    for mine, theirs in zip(
        torch.autograd.grad(out, (x, y), seed), torch.autograd.grad((x @ y).tanh(), (x, y), seed), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    assert kept == [4 * 3 * 4, 3 * 5 * 4, 400]


def test_mamba_keeps_its_packed_input_and_the_scan_output() -> None:
    heads, width, groups, state, length = 4, 8, 2, 3, 16
    inner, conv = heads * width, heads * width + 2 * groups * state
    packed = torch.randn(2, length, 2 * inner + 2 * groups * state + heads, dtype=torch.bfloat16, requires_grad=True)
    parameters = [torch.nn.Parameter(t) for t in (torch.randn(conv, 4), torch.randn(conv), torch.randn(heads))]
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter) and tensor.dim() == 3:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = mamba.mamba_split_conv1d_scan_combined(
            packed, *parameters, -torch.rand(heads), torch.ones(heads), 8, headdim=width, ngroups=groups
        )
    assert out.shape == (2, length, inner)
    assert sorted(kept.values()) == sorted([packed.numel() * 2, 2 * length * inner * 2])
    out.float().sum().backward()
    assert packed.grad is not None and bool(torch.isfinite(packed.grad).all())


def test_causal_convolution_sees_no_future() -> None:
    x, weight = torch.randn(1, 9, 3), torch.randn(3, 4)
    full = delta_rule.causal_conv1d(x, weight, activation="silu")[0]
    cut = delta_rule.causal_conv1d(x[:, :5], weight, activation="silu")[0]
    torch.testing.assert_close(full[:, :5], cut)
    other = delta_rule.causal_conv1d_fn(x.transpose(1, 2), weight, activation="silu")
    torch.testing.assert_close(other.transpose(1, 2), full)


def test_l2_norm_is_that_of_torch() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    want = torch.nn.functional.normalize(x, dim=-1)
    got = delta_rule.l2norm(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    seed = torch.randn(4, 6)
    torch.testing.assert_close(torch.autograd.grad(got, x, seed)[0], torch.autograd.grad(want, x, seed)[0], rtol=1e-3, atol=1e-3)


def test_what_has_no_stand_in_is_refused() -> None:
    zeros = torch.zeros(1, 4, 1, 2)
    with pytest.raises(NotImplementedError, match="packed sequences"):
        delta_rule.chunk_gated_delta_rule(zeros, zeros, zeros, zeros[..., 0], zeros[..., 0], output_final_state=True)
    with pytest.raises(NotImplementedError, match="memory-efficient"):
        mamba.mamba_chunk_scan_combined()
