"""Fused optimizers: the state is device memory, the update makes no temporaries.

Source: transformer_engine/pytorch/optimizers/fused_adam.py:FusedAdam and csrc/extensions/multi_tensor/ at 2.17.1.
States appear in the first step (``initialize_state``), which is why a second iteration can run out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from autotune.trial.prelude.te_stand_in.kernels import scratch


def multi_tensor_applier(
    operation: Callable[..., Any], noop_flag: Tensor, tensor_lists: list[list[Tensor]], *arguments: Any
) -> Any:
    """Call an operation over lists of tensors, as ``MultiTensorApply`` does (chunk size first)."""
    return operation(2048 * 32, noop_flag, tensor_lists, *arguments)


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], per_tensor: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The 2-norm over all tensors [1], and of each where asked for."""
    device = noop_flag.device
    total = torch.zeros(1, dtype=torch.float32, device=device)
    with scratch(), torch.no_grad():
        norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensor_lists[0]]
        if norms:
            total.copy_(torch.linalg.vector_norm(torch.stack(norms)))
    return total, torch.stack(norms) if per_tensor else None


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], scale: float) -> None:
    """``target = source * scale``; the flag is set where a value is not finite."""
    with scratch(), torch.no_grad():
        for source, target in zip(*tensor_lists, strict=True):
            target.copy_(source * scale)
            if not bool(torch.isfinite(target).all()):
                noop_flag.fill_(1)


def multi_tensor_scale_tensor(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], scale: Tensor) -> None:
    """As ``multi_tensor_scale`` with the factor in a tensor."""
    multi_tensor_scale(chunk_size, noop_flag, tensor_lists, float(scale))


class FusedAdam(torch.optim.Optimizer):
    """Stands for ``transformer_engine.pytorch.optimizers.FusedAdam`` (fp32 and bf16 states; no FP8, no scaled fp16)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        set_grad_none: bool | None = None,
    ) -> None:
        if not {exp_avg_dtype, exp_avg_sq_dtype, master_weight_dtype} <= {torch.float32, torch.bfloat16}:
            raise NotImplementedError("the FusedAdam stand-in keeps states in fp32 or bf16")
        super().__init__(
            params, {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.adam_w_mode, self.capturable = adam_w_mode, capturable
        self.master_weights, self.use_decoupled_grad = master_weights, use_decoupled_grad
        self.store_param_remainders = store_param_remainders and master_weights and master_weight_dtype == torch.float32
        self.name_to_dtype_map = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype, "master_param": master_weight_dtype}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop (or zero) the gradients that this optimizer reads."""
        if not self.use_decoupled_grad:
            super().zero_grad(set_to_none=set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.decoupled_grad = None
                elif getattr(parameter, "decoupled_grad", None) is not None:
                    parameter.decoupled_grad.zero_()

    def _remainders(self, parameter: Tensor) -> bool:
        return self.store_param_remainders and parameter.dtype == torch.bfloat16

    def initialize_state(self, param: Tensor, store_param_remainders: bool = False) -> None:
        """Make the states of one parameter."""
        state = self.state[param]
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(param, dtype=self.name_to_dtype_map[name])
        if self.master_weights:
            if self._remainders(param):
                state["master_param"] = torch.zeros_like(param, dtype=torch.int16)
            else:
                state["master_param"] = torch.empty_like(param, dtype=self.name_to_dtype_map["master_param"]).copy_(param)

    def get_unscaled_state(self, param: Tensor, state_name: str, skip_unscale: bool = False) -> Tensor:
        """A state in the form checkpoints keep it: bf16 as fp32."""
        value: Tensor = self.state[param][state_name]
        return value.float() if value.dtype == torch.bfloat16 and not skip_unscale else value

    def set_scaled_state(self, param: Tensor, state_name: str, unscaled_state: Tensor) -> None:
        """Set a state from the form checkpoints keep it in."""
        if state_name not in self.state[param]:
            self.initialize_state(param)
        self.state[param][state_name].copy_(unscaled_state)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                grad = getattr(parameter, "decoupled_grad", None) if self.use_decoupled_grad else parameter.grad
                if grad is None:
                    continue
                if not self.state[parameter]:
                    self.initialize_state(parameter)
                with scratch():
                    self._update(parameter, grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2), step = self.state[parameter], group["betas"], group["step"]
        weight = self._master(parameter, state)
        value = grad.float()
        if not self.adam_w_mode:
            value = value + group["weight_decay"] * weight
        mean = state["exp_avg"].float() * beta1 + value * (1 - beta1)
        square = state["exp_avg_sq"].float() * beta2 + value.square() * (1 - beta2)
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        correct1, correct2 = (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
        update = (mean / correct1) / ((square / correct2).sqrt() + group["eps"])
        if self.adam_w_mode:
            update = update + group["weight_decay"] * weight
        weight = weight - group["lr"] * update
        if "master_param" not in state:
            parameter.copy_(weight)
        elif self._remainders(parameter):
            bits = weight.contiguous().view(torch.int32)
            remainder = bits.to(torch.int16)  # The low 16 bits, signed: the high part is rounded to the nearest.
            state["master_param"].copy_(remainder)
            parameter.copy_(((bits - remainder) >> 16).to(torch.int16).view(torch.bfloat16))
        else:
            state["master_param"].copy_(weight)
            parameter.copy_(weight)

    def _master(self, parameter: Tensor, state: dict[str, Tensor]) -> Tensor:
        """The parameter in fp32, out of its master copy or its remainder bits where there are such."""
        if "master_param" not in state:
            return parameter.float()
        if self._remainders(parameter):
            high = parameter.contiguous().view(torch.int16).to(torch.int32) << 16
            return (high + state["master_param"].to(torch.int32)).view(torch.float32)
        return state["master_param"].float()


class FusedSGD(torch.optim.SGD):
    """Stands for ``transformer_engine.pytorch.optimizers.FusedSGD``."""
