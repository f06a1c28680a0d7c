"""Settings known to move no device memory and to decide no rule, each with its reason.

Names are Megatron's, without a section: the same setting may be spelled as a Bridge field or as a Megatron-LM argument.
A setting with a non-default value that has neither a field of Workload nor a line here stays in ``Workload.other`` and
makes a prediction "not covered", by name.
"""

from __future__ import annotations

from collections.abc import Mapping

_SCHEDULE = "learning-rate or training schedule: numbers on the host"
_LOGGING = "logging and checks on the host"
_DATA = "data pipeline: host memory"
_INIT = "initial values of parameters; their shapes stay"
_SCALAR = "a scalar factor inside an existing computation"
_INFERENCE = "read by inference only"
_COMM = "which stream or call carries a communication; its buffers are those of the plain call"
_ALIAS = "an alias or copy of another field that is read"
_SAVED = "checkpoint files: written from host copies, between steps"

NEUTRAL: Mapping[str, str] = {
    # Learning rate, schedule, seeds
    "adam_beta1": _SCALAR,
    "adam_beta2": _SCALAR,
    "adam_eps": _SCALAR,
    "clip_grad": "one norm scalar; gradients are scaled in place",
    "decoupled_weight_decay": _SCALAR,
    "end_weight_decay": _SCHEDULE,
    "eval_interval": _SCHEDULE,
    "eval_iters": _SCHEDULE,
    "exit_duration_in_mins": _SCHEDULE,
    "exit_interval": _SCHEDULE,
    "exit_signal_handler": _SCHEDULE,
    "lr": _SCHEDULE,
    "min_lr": _SCHEDULE,
    "muon_nesterov": _SCALAR,
    "random_seed": _SCHEDULE,
    "seed": _SCHEDULE,
    "start_weight_decay": _SCHEDULE,
    "train_iters": _SCHEDULE,
    "train_samples": _SCHEDULE,
    "weight_decay": _SCALAR,
    # Initialisation
    "embedding_init_method": _INIT,
    "embedding_init_method_std": _INIT,
    "init_method": _INIT,
    "init_method_std": _INIT,
    "output_layer_init_method": _INIT,
    "perform_initialization": _INIT,
    "use_cpu_initialization": "parameters are made on the host and moved once, before step 1",
    # Host side
    "manual_gc_eval": "Python garbage collection during evaluation",
    "manual_gc_interval": "how often Python collects; manual_gc itself is a field",
    "check_for_large_grads": _LOGGING,
    "check_for_nan_in_grad": _LOGGING,
    "log_interval": _LOGGING,
    "pad_vocab_size": "whether the tokenizer pads; the model's padded size is what is read",
    "persistent_workers": _DATA,
    "tokenizer_model": "its vocabulary size is what is read",
    "tokenizer_type": "its vocabulary size is what is read",
    "use_tokenizer_vocab_size": "whose vocabulary the model takes; the finalised size is what is read",
    # Numbers inside a computation
    "autocast_dtype": "autocast is off unless autocast_enabled",
    "moe_aux_loss_coeff": _SCALAR,
    "moe_router_bias_update_rate": _SCALAR,
    "moe_router_group_topk": "limits which experts are chosen, not how many",
    "moe_router_num_groups": "limits which experts are chosen, not how many",
    "moe_router_topk_scaling_factor": _SCALAR,
    "activation_func_clamp_value": "inside the fused activation, which keeps its input only (fused_bias_geglu.py)",
    "glu_linear_offset": "inside the fused activation, which keeps its input only (fused_bias_geglu.py)",
    "moe_z_loss_coeff": "one more scalar of the router's logits",
    "mscale": _SCALAR,
    "mscale_all_dim": _SCALAR,
    "mtp_loss_scaling_factor": _SCALAR,
    "layernorm_epsilon": _SCALAR,
    "layernorm_zero_centered_gamma": _SCALAR,
    "persist_layer_norm": "kernel choice of the local norm; Transformer Engine's norms do not read it",
    "rotary_base": _SCALAR,
    "rotary_percent": "width of the rotated part; the table of angles is [seq, head dim] at most",
    "rotary_scaling_factor": _SCALAR,
    "rope_scaling": _SCALAR,
    "rope_scaling_factor": _SCALAR,
    "softmax_scale": _SCALAR,
    "beta_fast": _SCALAR,
    "beta_slow": _SCALAR,
    "yarn_beta_fast": _SCALAR,
    "yarn_beta_slow": _SCALAR,
    "yarn_correction_range_round_to_int": _SCALAR,
    "yarn_mscale": _SCALAR,
    "yarn_mscale_all_dim": _SCALAR,
    "yarn_original_max_position_embeddings": _SCALAR,
    "yarn_rotary_scaling_factor": _SCALAR,
    "loss_scale": _SCALAR,
    "initial_loss_scale": _SCALAR,
    "min_loss_scale": _SCALAR,
    "loss_scale_window": _SCALAR,
    "hysteresis": _SCALAR,
    # Communication and launch
    "average_in_collective": "division inside the collective instead of before it, in place",
    "batch_p2p_comm": _COMM,
    "bucket_size": "how the one gradient buffer is cut for communication; its size stays",
    "data_parallel_size": "derived from the layout",
    "moe_flex_dispatcher_num_sms": "how many multiprocessors communicate; HybridEP sizes its buffers by tokens",
    "moe_hybridep_num_sms": "how many multiprocessors communicate; HybridEP sizes its buffers by tokens",
    "moe_deepep_num_sms": "how many multiprocessors communicate",
    "overlap_p2p_comm": _COMM,
    "align_param_gather": _COMM,
    "tp_comm_bootstrap_backend": _COMM,
    "use_te_rng_tracker": "which class tracks the same random states",
    "te_rng_tracker": "which class tracks the same random states",
    "delay_wgrad_compute": "model.delay_wgrad_compute is read; DDP has a copy of it",
    "distributed_timeout_minutes": _COMM,
    "tp_comm_overlap_cfg": "which multiprocessors drive Transformer Engine's user buffers; tp_comm_overlap says they exist",
    # Derived, aliased, or not read in training
    "autocast_enabled": "with params already in the compute type autocast casts nothing",
    "bf16": "params_dtype says it",
    "apply_wd_to_qk_layernorm": _SCALAR,
    "enable_megatron_core_experimental": "permission to set experimental fields; those are read",
    "hetereogenous_dist_checkpoint": _SAVED,
    "hf_model_id": "name of the model whose facts are read",
    "hf_model_revision": "name of the model whose facts are read",
    "transformer_layer_spec": "which function builds the layers; the fields it reads are read",
    "mamba_stack_spec": "which function builds the layers; the fields it reads are read",
    "hybrid_stack_spec": "which function builds the layers; the fields it reads are read",
    "deallocate_pipeline_outputs": "Megatron's schedules always run with it under Bridge and Megatron-LM",
    "fp8_param_gather": _ALIAS,
    "grad_reduce_in_fp32": "precision.grad_dtype says it",
    "inference_cuda_graph_scope": _INFERENCE,
    "is_hybrid_model": "the layer pattern says it",
    "mock": _DATA,
    "pipeline_dtype": "dtype of stage outputs; equals params_dtype in every mixed-precision recipe",
    "init_model_with_meta_device": "where parameters are before they are copied to their buffers",
    "moe_pad_experts_for_cuda_graph_inference": _INFERENCE,
    "fsdp_all_gather_in_start_param_sync": "when the first gather of a step begins",
    "variable_seq_lengths": "stage outputs are allocated by their real shape",
}
