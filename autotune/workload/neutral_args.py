"""Megatron-LM arguments known to move no device memory that have no counterpart among Bridge's fields, each with its reason.

Listed one by one, never by prefix: a name that nobody has read about must not pass. Names as ``megatron_arg_names.canonical``
gives them. Read from megatron/training/arguments.py and megatron/training/config at Megatron-LM d98e8a64.
"""

from __future__ import annotations

from collections.abc import Mapping

_BY_REASON: Mapping[str, str] = {
    "learning-rate, step or exit schedule: numbers on the host": """
        decoupled_lr decoupled_min_lr lr_decay_style lr_wsd_decay_style lr_decay_iters lr_decay_samples lr_wsd_decay_iters
        lr_wsd_decay_samples lr_warmup_fraction lr_warmup_iters lr_warmup_samples lr_warmup_init
        override_opt_param_scheduler use_checkpoint_opt_param_scheduler weight_decay_incr_style no_weight_decay_cond_type
        apply_wd_to_qk_layernorm exit_signal exit_signal_handler_for_dataloader exit_signal_handler_for_training
        start_eval_at_iter full_validation multiple_validation_sets validation_set_names iterations_to_skip
        train_sync_interval phase_transition_iterations eval_global_batch_size""",
    "one scalar of the optimizer's arithmetic": """
        sgd_momentum muon_momentum muon_no_split_qkv muon_split_qkv muon_nesterov muon_scale_mode muon_fp32_matmul_prec
        muon_coefficient_type muon_num_ns_steps muon_extra_scale_factor lion_beta1 lion_beta2 grad_norm_skip_threshold""",
    "initial values of parameters; their shapes stay": """
        init_method_xavier_uniform no_initialization data_parallel_random_init use_mup mup_width_mult mup_base_hidden_size
        mup_embedding_mult mup_output_mult mup_base_head_dim mup_attn_scale_power""",
    "data pipeline: host memory": """
        mock_data data_path split train_data_path valid_data_path test_data_path data_args_path per_split_data_args_path
        per_dataset_sequences_path data_cache_path dataloader_fast_cache_load dataloader_defer_npy_index_mmap
        no_mmap_bin_files mmap_bin_files num_workers dataloader_type num_dataset_builder_threads object_storage_cache_path
        mid_level_dataset_surplus sample_rate reset_position_ids reset_attention_mask eod_mask_loss
        allow_ambiguous_pad_tokens fim_data fim_rate fim_spm_rate fim_split_sample fim_fragment_rate fim_no_prefix
        fim_prefix_token fim_middle_token fim_suffix_token fim_pad_token fim_eod_token no_data_sharding enable_msc
        disable_msc""",
    "tokenizer files; the size of the vocabulary is what is read": """
        tokenizer vocab_file merge_file tokenizer_metadata tokenizer_special_tokens tiktoken_pattern
        tiktoken_num_special_tokens tokenizer_sentencepiece_legacy tokenizer_hf_no_use_fast
        tokenizer_hf_no_include_special_tokens trust_remote_code null_tokenizer_eod_id null_tokenizer_pad_id
        chat_template use_gigatoken legacy_tokenizer""",
    "checkpoint files: written from host copies, between steps": """
        save load save_interval persistent_save_interval save_retain_interval no_save_optim no_save_rng no_load_optim
        no_load_rng load_main_params_from_ckpt finetune pretrained_checkpoint ckpt_step ckpt_format use_checkpoint_args
        use_mp_args_from_checkpoint_args no_use_tokenizer_model_from_checkpoint_args exit_on_missing_checkpoint
        auto_detect_ckpt_format ckpt_convert_format ckpt_convert_save ckpt_convert_update_legacy_dist_opt_format
        ckpt_fully_parallel_save no_ckpt_fully_parallel_save ckpt_fully_parallel_load
        ckpt_fully_parallel_load_exchange_algo ckpt_assume_constant_structure ckpt_drop_redundant_extra_state
        ckpt_load_validate_sharding_integrity ckpt_fully_parallel_save_process_group
        ckpt_fully_parallel_load_process_group async_save async_strategy use_persistent_ckpt_worker
        non_persistent_save_interval non_persistent_ckpt_type non_persistent_global_ckpt_dir
        non_persistent_local_ckpt_dir non_persistent_local_ckpt_algo dist_ckpt_format dist_ckpt_strictness
        dist_ckpt_workers use_dist_ckpt dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient
        dist_ckpt_save_pre_mcore_014 replication replication_jump replication_factor verify_integrity
        override_ckpt_iteration strict_fsdp_dtensor_load save_tokenizer_assets no_save_tokenizer_assets export_te_mcore_model
        async_ckpt_cpu_priority async_ckpt_io_priority async_ckpt_use_cpu_shm ckpt_fully_parallel_load_per_rank_objects
        ckpt_pg_tensors_cache_create ckpt_pg_tensors_cache_path no_ckpt_load_validate_sharding_integrity most_recent_k
        export_force_local_attention""",
    "logging, profiling, health checks or restart on the host": """
        log_params_norm log_throughput log_progress timing_log_level timing_log_option tensorboard_dir
        tensorboard_log_interval tensorboard_queue_size log_timers_to_tensorboard no_log_loss_scale_to_tensorboard
        log_validation_ppl_to_tensorboard log_memory_to_tensorboard log_memory_interval log_device_memory_used
        log_num_zeros_in_grad log_world_size_to_tensorboard log_energy wandb_project wandb_exp_name wandb_save_dir
        wandb_entity logging_level config_logger_dir moe_per_layer_logging profile profile_step_start profile_step_end
        use_pytorch_profiler profile_ranks record_memory_history memory_snapshot_path nvtx_ranges log_straggler
        straggler_ctrlr_port straggler_minmax_count disable_straggler_on_startup one_logger_async one_logger_project
        one_logger_run_name no_one_logger app_tag_run_name app_tag_run_version enable_ft_package calc_ft_timeouts
        inprocess_restart adlr_autoresume adlr_autoresume_interval rerun_mode error_injection_rate error_injection_type
        check_for_spiky_loss check_for_nan_in_loss_and_grad no_check_for_nan_in_loss_and_grad
        check_weight_hash_across_dp_replicas_interval gpu_sniff_test_interval run_workload_inspector_server otel_enabled
        otel_service_name otel_span_groups exit_code_requeue no_barrier_with_level_1_timing dump_param_to_param_group_map
        flight_recorder_dump_path flight_recorder_trace_buffer_size flight_recorder_include_stack_trace
        no_flight_recorder_dump_on_timeout no_flight_recorder_extra_dump_on_exec no_flight_recorder_include_only_active
        log_l2_norm_grad_to_tensorboard log_runtime_to_tensorboard log_throughput_to_tensorboard throughput_window_size
        memory_keys runtime_time_unit filter_warnings no_filter_warnings modules_to_filter set_level_for_all_loggers
        save_config_filepath record_shapes pytorch_profiler_collect_shapes pytorch_profiler_collect_callstack
        pytorch_profiler_collect_chakra result_rejected_tracker_filename ft_num_warmup_iters inprocess_active_world_size
        inprocess_max_iterations inprocess_granularity inprocess_soft_timeout inprocess_hard_timeout
        inprocess_barrier_timeout inprocess_completion_timeout inprocess_heartbeat_interval inprocess_heartbeat_timeout
        inprocess_last_call_wait inprocess_termination_grace_time inprocess_monitor_thread_interval
        inprocess_monitor_process_interval inprocess_progress_watchdog_interval inprocess_empty_cuda_cache""",
    "which stream, call or group carries a communication; its buffers stay": """
        distributed_backend distributed_timeout_minutes distributed_timeout_seconds_after_init
        no_overlap_p2p_communication ddp_num_buckets ddp_bucket_size ddp_average_in_collective no_align_param_gather
        no_gradient_reduce_div_fusion gradient_reduce_div_fusion overlap_param_gather_with_optimizer_step
        nccl_communicator_config_path use_sharp sharp_enabled_group high_priority_stream_groups
        disable_gloo_process_groups enable_gloo_process_groups use_gloo_process_groups lazy_mpu_init local_rank
        high_priority_a2a_comm_stream moe_hybridep_num_sms_preprocessing pipeline_model_parallel_comm_backend
        use_ring_exchange_p2p create_all_gather_group align_grad_reduce no_align_grad_reduce no_batch_p2p_comm
        no_batch_p2p_sync batch_p2p_sync tp_only_amax_red""",
    "padding of the gradient buffer by at most 2^16 elements a bucket": "ddp_pad_buckets_for_high_nccl_busbw",
    "order in which ranks are numbered; the last rank stays on the last stage": "use_tp_pp_dp_mapping",
    "which experts a token goes to or how scores become weights, not how many tokens": """
        moe_token_drop_policy moe_router_quantile_balancing_ema moe_router_topk_limited_devices""",
    "order of the columns of a gated weight": "moe_mlp_glu_interleave_size moe_shared_expert_glu_interleave_size",
    "how blocks of one kernel share its work": """
        moe_hybridep_num_blocks_permute moe_hybridep_num_blocks_unpermute muon_use_syrk flash_attention_version
        disable_bf16_reduced_precision_matmul""",
    "the number of micro batches grows to that of the batch given": "rampup_batch_size decrease_batch_size_if_needed",
    "pads an expert's tokens to a multiple of at most 128": """
        moe_router_padding_for_fp8 moe_router_padding_for_quantization""",
    "angles of the position embedding: a [sequence, head width] table or less": """
        rotary_interleaved rotary_seq_len_interpolation_factor use_rope_scaling
        yarn_original_max_position_embeddings yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int
        no_yarn_correction_range_round_to_int beta_fast beta_slow mrope_section""",
    "a scalar inside an existing computation": """
        norm_epsilon apply_layernorm_1p dsa_indexer_k_norm_epsilon """,
    "kernel choice of the local norm; Transformer Engine's norms do not read it": "no_persist_layer_norm",
    "a deprecated switch that Megatron Core's models do not read": """
        use_mcore_models use_flash_attn onnx_safe deprecated_use_mcore_models enable_experimental""",
    "runs the model's self checks (weights gathered for a comparison, freed at once)": "test_mode",
    "gives cached, unallocated blocks back; what is allocated stays": "empty_unused_memory_level",
    "history and reduction of FP8 scales: a few kB a module": """
        fp8_margin fp8_interval fp8_amax_history_len fp8_amax_compute_algo""",
    "read by inference only": """
        inference_max_requests inference_max_seq_length inference_batch_times_seqlen_threshold inference_rng_tracker
        inference_dynamic_batching flash_decode mlp_chunks_for_prefill cache_mla_latents max_tokens_to_oom
        nccl_all_reduce_for_prefill""",
    "which tensor-parallel overlaps are on; their user buffers are counted whole": """
        tp_comm_overlap_cfg disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs disable_tp_comm_bulk_dgrad
        disable_tp_comm_bulk_wgrad disable_tp_comm_split_ag disable_tp_comm_split_rs no_tp_comm_overlap_ag
        no_tp_comm_overlap_rs no_tp_comm_bulk_dgrad no_tp_comm_bulk_wgrad no_tp_comm_split_ag no_tp_comm_split_rs
        tp_comm_overlap_rs_dgrad tp_comm_overlap_disable_qkv tp_comm_overlap_disable_fc1 tp_comm_atomic_ag
        tp_comm_atomic_rs""",
}

NEUTRAL_ARGS: Mapping[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
"""Reason by canonical name."""
