"""A trial through Megatron Bridge's own ``pretrain``: configuration, callbacks, and nothing else."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from autotune.errors import RequestError
from autotune.trial import live_recipe
from autotune.trial.config_builder import ddp_arguments, field_names, model_arguments, optimizer_arguments
from autotune.trial.session import Session
from autotune.trial.spec import TrialSpec

# Bridge imports these whether or not a run uses them. None computes anything in a trial (no checkpoint, no distillation,
# no in-process restart), so where they are absent a name is enough.
_UNUSED_PACKAGES = ("megatron.energon", "modelopt", "nvidia_resiliency_ext")


def available() -> bool:
    """Whether Megatron Bridge is installed. Nothing of it is imported."""
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False


def preload() -> None:
    """Import what a trial needs of Bridge."""
    import sys

    import megatron.core

    from autotune.workload import stand_ins

    absent = {name: "0" for name in _UNUSED_PACKAGES if not _installed(name)}
    stand_ins.install(absent)
    if "modelopt" in absent:
        import modelopt.torch.distill.plugins.megatron as distill

        # Asked by train() and evaluation for a model that is not distilled: the real one answers None.
        distill.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None
    import megatron.bridge.training.config
    import megatron.bridge.training.gpt_step
    import megatron.bridge.training.pretrain  # noqa: F401

    assert "megatron.bridge.training.train" in sys.modules


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def trial_config(session: Session) -> Any:
    """The live recipe's configuration where the trial takes one, else the one built from the workload."""
    spec = session.spec
    plain = build_config(spec)
    wanted = spec.backend == "gpu" if spec.from_recipe is None else spec.from_recipe
    recipe = live_recipe.recipe_of(spec.workload) if wanted else None
    if recipe is None:
        return plain
    try:
        config = live_recipe.load(*recipe)
    except (OSError, ValueError) as error:  # A recipe that asks the Hugging Face hub, which cannot be reached from here.
        text = " ".join(str(error).split())[:300]
        session.lines.write("note", text=f"built from the workload: recipe {recipe[0]} could not be called ({text})")
        return plain
    return live_recipe.apply_trial(config, plain, spec)


def build_config(spec: TrialSpec) -> Any:
    """A ``ConfigContainer`` for the trial: mock data, constant learning rate, no checkpoint, no validation."""
    from megatron.bridge.training import config as bridge

    workload = spec.workload
    train = workload.train
    return bridge.ConfigContainer(
        model=_model_provider(spec),
        train=bridge.TrainingConfig(
            train_iters=spec.steps,
            global_batch_size=train.global_batch_size,
            micro_batch_size=train.micro_batch_size,
            manual_gc=train.manual_gc,
        ),
        validation=bridge.ValidationConfig(eval_iters=0, eval_interval=spec.steps + 1),
        optimizer=bridge.OptimizerConfig(**optimizer_arguments(workload, field_names(bridge.OptimizerConfig))),
        ddp=bridge.DistributedDataParallelConfig(
            **ddp_arguments(spec, field_names(bridge.DistributedDataParallelConfig)),
            average_in_collective=False,
        ),
        scheduler=bridge.SchedulerConfig(
            lr_decay_style="constant",
            lr_warmup_iters=0,
            lr_decay_iters=spec.steps,
            start_weight_decay=0.01,
            end_weight_decay=0.01,
            weight_decay_incr_style="constant",
        ),
        dataset=_dataset(spec, bridge),
        logger=bridge.LoggerConfig(log_interval=1, tensorboard_dir=None),
        tokenizer=bridge.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=_tokenizer_size(workload)),
        checkpoint=bridge.CheckpointConfig(save=None, load=None, save_interval=None),
        dist=bridge.DistributedInitConfig(
            distributed_backend="gloo" if spec.backend == "cpu" else "nccl",
            use_torch_fsdp2=workload.optimizer.use_torch_fsdp2,
        ),
        rng=bridge.RNGConfig(seed=spec.seed),
        rerun_state_machine=bridge.RerunStateMachineConfig(rerun_mode="disabled"),
    )


def _tokenizer_size(workload: Any) -> int:
    """The null tokenizer adds an end-of-document token to its size."""
    return int(workload.model.vocab_size) - 1


def _dataset(spec: TrialSpec, bridge: Any) -> Any:
    train = spec.workload.train
    mask = train.create_attention_mask_in_dataloader
    on_cpu = spec.backend == "cpu"
    return bridge.MockGPTDatasetConfig(
        seq_length=train.seq_length,
        random_seed=spec.seed,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=mask,
        skip_getting_attention_mask_from_dataset=not mask,
        num_dataset_builder_threads=1,
        data_sharding=True,
        dataloader_type="single",
        num_workers=0 if on_cpu else 1,
        pin_memory=not on_cpu,
        persistent_workers=not on_cpu,
    )


def _model_provider(spec: TrialSpec) -> Any:
    """The provider class that Bridge has for this kind of network, with every field that Megatron names."""
    model = spec.workload.model
    if model.hybrid_layer_pattern is not None:
        from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider as Provider
    elif model.multi_latent_attention:
        from megatron.bridge.models.mla_provider import MLAModelProvider as Provider
    else:
        from megatron.bridge.models.gpt_provider import GPTModelProvider as Provider
    arguments = model_arguments(spec.workload, spec.boundary, field_names(Provider))
    arguments["seq_length"] = spec.workload.train.seq_length
    # The padded size is decided once, here: what Bridge would take from the tokenizer is the same number.
    arguments["vocab_size"], arguments["should_pad_vocab"] = model.vocab_size, model.should_pad_vocab
    if model.experimental_attention_variant is not None:
        from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
            get_transformer_block_with_experimental_attention_variant_spec as layer_spec,
        )

        arguments["transformer_layer_spec"] = layer_spec
    elif model.hybrid_layer_pattern is None and model.num_moe_experts is not None:
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

        arguments["transformer_layer_spec"] = functools.partial(get_gpt_decoder_block_spec, use_transformer_engine=True)
    return Provider(**arguments)


def run(session: Session) -> None:
    """Train through ``pretrain``; the session's probe writes what happens."""
    spec, probe = session.spec, session.probe
    from megatron.bridge.training import initialize, setup
    from megatron.bridge.training.callbacks import Callback
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    if spec.backend == "cpu":
        setup.initialize_megatron = functools.partial(initialize.initialize_megatron, allow_no_cuda=True)
        initialize.compile_helpers = _no_compile
        if spec.workload.features.cuda_graph_impl == "transformer_engine":
            from megatron.core.transformer import cuda_graphs

            cuda_graphs.HAVE_TE_GRAPHS = True  # A survey: train() makes the helper that would capture, and ends before it does.
    probe.wrap_schedules()
    probe.wrap_capture()

    class Report(Callback):  # type: ignore[misc]
        """Bridge's events as the probe's."""

        def on_data_init_start(self, context: Any) -> None:
            session.model_built(context.model, context.optimizer)

        def on_train_start(self, context: Any) -> None:
            from megatron.core.utils import get_model_config

            if not session.built:  # A Bridge without on_data_init_start.
                session.model_built(context.model, context.optimizer)
            probe.wrap_config(get_model_config(context.model[0]))
            probe.wrap_optimizer(context.optimizer)

        def on_train_step_start(self, context: Any) -> None:
            probe.start_step(int(context.state.train_state.step) + 1)

        def on_train_step_end(self, context: Any) -> None:
            session.step_ended(_first_loss(context.loss_dict), context.grad_norm, bool(context.skipped_iter))
            if session.stop_after is not None:
                context.state.cfg.train.train_iters = session.stop_after  # train() reads it before each step.

    config = trial_config(session)
    session.config_built(config)
    pretrain(config, forward_step, callbacks=[Report()])


def _first_loss(losses: Any) -> float | None:
    """The language-model loss of the last pipeline stage; None on the others."""
    if not losses:
        return None
    value = losses.get("lm loss", next(iter(losses.values())))
    return float(value)


def _no_compile() -> None:
    """Megatron's wheel ships its compiled helpers; Bridge would run ``make`` inside site-packages."""
    try:
        from megatron.core.datasets import helpers_cpp  # noqa: F401
    except ImportError as error:
        raise RequestError("--backend", "cpu", f"Megatron Core's dataset helpers are absent ({error})", "reinstall it") from None
