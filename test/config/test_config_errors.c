/* SPDX-License-Identifier: Apache-2.0 */
/* A table of wrong configurations: each gives its error, with place, key, and remedy; and several
 * errors of one file come together, in order. */
#include "common/check.h"

#include <deepspeed/config.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* body stands in {"train_batch_size": 4, …}. */
typedef struct bad {
    const char *body;
    const char *error;
} bad;

#define ZENFLOW(keys)                                                                              \
    "zero_optimization: {stage: 2, offload_optimizer: {device: 'cpu'}, zenflow: {" keys "}}"

static const bad table[] = {
    /* names */
    {"gradient_cliping: 1", "gradient_cliping: unknown key; did you mean \"gradient_clipping\"?"},
    {"Train_Batch_Size: 1", "did you mean \"train_batch_size\"?"},
    {"stage: 1", "stage: unknown key; it belongs in \"zero_optimization\""},
    {"zero_optimization: {aio: {}}", "zero_optimization.aio: unknown key; it belongs at the top"},
    {"zero_optimization: {stage3_max_live_parameter: 1}",
     "did you mean \"stage3_max_live_parameters\"?"},
    {"zero_optimization: {cpu_offload_params: true}", "did you mean \"cpu_offload_param\"?"},
    {"zero_optimization: {offload_optimizer: {pipeline: true}}", "unknown key"},
    {"bf16: {check_overflow: true}", "did you mean \"check_grad_overflow\"?"},
    {"zero_optimization: {qqqqqqqqqq: 1}", "no key is near it; remove it, or pass --allow_unk"},
    {"optimizer: {type: 'AdamW', params: {learning_rate: 1}}", "optimizer.params.learning_rate"},
    {"optimizer: {type: 'SGD', params: {betas: [0.9, 0.9]}}",
     "optimizer.params.betas: unknown key"},
    {"scheduler: {type: 'WarmupLR', params: {total_num_steps: 5}}", "total_num_steps: unknown key"},
    {"train_batch_size: 4", "the key \"train_batch_size\" is already given on line 1"},
    {"bf16: {enabled: false}, bfloat16: {enabled: true}", "given twice, as \"bf16\""},
    {"zero_optimization: {prefetch_bucket_size: 1, stage3_prefetch_bucket_size: 2}",
     "given twice, as \"prefetch_bucket_size\" on line 1 and as \"stage3_prefetch_bucket_size\""},
    {"zero_optimization: {cpu_offload: true, offload_optimizer: {}}",
     "cannot be given together with \"offload_optimizer\""},
    /* types */
    {"aio: {block_size: 5000}", "aio.block_size: expected a multiple of 4096, found 5000"},
    {"aio: {block_size: 512}", "aio.block_size: expected a whole number of at least 4096"},
    {"aio: {queue_depth: 0}", "aio.queue_depth: expected a whole number of at least 1"},
    {"aio: {intra_op_parallelism: 65}", "aio.intra_op_parallelism: expected a whole number"},
    {"activation_checkpointing: {nvme_path: ''}", "nvme_path: expected folders with commas"},
    {"zero_optimization: {stage: 2, offload_optimizer: {device: 'nvme', nvme_path: ''}}",
     "offload_optimizer.nvme_path: expected folders with commas between them, found \"\""},
    {"zero_optimization: {stage: 2, offload_optimizer: {device: 'nvme', nvme_path: '/a,'}}",
     "offload_optimizer.nvme_path: expected folders with commas between them, found \"/a,\""},
    {"zero_optimization: {stage: 2, offload_optimizer: {device: 'nvme', nvme_path: '/a,,/b'}}",
     "offload_optimizer.nvme_path: expected folders"},
    {"activation_checkpointing: {nvme_path: 'a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q'}",
     "expected at most 16 folders, found 17"},
    {"nebula: {enabled: true}", "nebula.enabled: not available, found true"},
    {"fp16: true", "fp16: expected an object, found true"},
    {"fp16: null", "fp16: expected an object, found null"},
    {"optimizer: 'Adam'", "optimizer: expected an object, found the string \"Adam\""},
    {"optimizer: {type: 3}", "optimizer.type: expected a string, or null, found 3"},
    {"optimizer: {type: 'Adam', params: [1]}", "optimizer.params: expected an object"},
    {"optimizer: {type: 'Adam', params: {lr: 'fast'}}", "lr: expected a number of at least 0"},
    {"optimizer: {type: 'Adam', params: {lr: '1e-3'}}", "found the string \"1e-3\""},
    {"optimizer: {type: 'Adam', params: {betas: 0.9}}", "betas: expected a list of numbers"},
    {"optimizer: {type: 'Adam', params: {betas: [0.9]}}", "expected a list of 2 numbers, found a "
                                                          "list of 1"},
    {"optimizer: {type: 'AdEMAMix', params: {betas: [0.9, 0.99]}}",
     "expected a list of 3 numbers, found a list of 2"},
    {"optimizer: {type: 'AdEMAMix', params: {betas: [0.9, 0.99, 1.0]}}",
     "expected three numbers of at least 0 and below 1"},
    {"optimizer: {type: 'AdEMAMix', params: {betas: [0.0, 0.99, 0.9], t_beta3: 10}}",
     "with t_beta3 the third grows from the first"},
    {"optimizer: {type: 'AdEMAMix', params: {optim_bits: 16}}", "expected 8 or 32, found 16"},
    {"optimizer: {type: 'Adam', params: {betas: [0.9, 'x']}}", "expected a list of numbers"},
    {"wall_clock_breakdown: 'true'", "wall_clock_breakdown: expected true or false"},
    {"wall_clock_breakdown: 2", "expected true or false, found 2"},
    {"prescale_gradients: True,\n", "write true and false in lower case"},
    {"gradient_clipping: null", "gradient_clipping: expected a number"},
    {"gradient_clipping: 1.0 steps_per_print: 5\n", "goes on to the end of its line"},
    {"fp16: {loss_scale: 'x'}", "fp16.loss_scale: expected a number of at least 0"},
    {"zero_optimization: {stage: '4'}", "expected a whole number of at least 0 and at most 3"},
    {"zero_optimization: {stage: 1.5}", "found 1.5"},
    {"zero_optimization: {reduce_bucket_size: -1}", "of at least 0"},
    {"zero_optimization: {overlap_comm: 'maybe'}", "overlap_comm: expected true or false, or null"},
    {"steps_per_print: 0", "steps_per_print: expected a whole number of at least 1, or null"},
    {"steps_per_print: 'auto'", "found \"auto\", which this key does not know"},
    {"communication_data_type: 'float16'", "expected one of \"fp16\", \"bf16\", \"fp32\", or null"},
    {"gradient_allreduce_op: 'max'", "expected one of \"mean\", \"sum\""},
    {"data_types: {grad_accum_dtype: 'fp64'}", "data_types.grad_accum_dtype"},
    {"data_types: null", "data_types: expected an object, found null"},
    {"gradient_predivide_factor: 0", "expected a number above 0, found 0"},
    {"tensorboard: {enabled: true, output_path: 3}", "tensorboard.output_path: expected a string"},
    {"checkpoint: {tag_validation: 'Perhaps'}", "expected one of \"Warn\", \"Ignore\", \"Fail\""},
    {"progressive_layer_drop: {theta: 0.5}", "progressive_layer_drop.enabled: expected this key"},
    /* combinations */
    {"fp16: {enabled: true}, bf16: {enabled: true}",
     "at most one of fp16.enabled and bf16.enabled"},
    {"bf16: {enabled: true}, data_types: {param_dtype: 'fp16'}", "data_types.param_dtype"},
    {"fp16: {enabled: true, initial_scale_power: 1, min_loss_scale: 4}", "2^1, found 4"},
    {"bf16: {enabled: true, bf16_master_weights_and_grads: true}",
     "bf16.bf16_master_weights_and_grads: expected zero_optimization.stage 1, 2 or 3"},
    {"bf16: {enabled: true, bf16_optimizer_states: true}, zero_optimization: {stage: 1}",
     "expected bf16_master_weights_and_grads true"},
    {"fp16: {enabled: true, fp16_master_weights_and_grads: true}", "stage 1, 2 or 3"},
    {"optimizer: {type: 'Adam', params: {betas: [1.0, 0.9]}}", "below 1"},
    {"optimizer: {type: 'SGD', params: {nesterov: true}}", "expected a momentum above 0"},
    {"optimizer: {type: 'SGD'}, zero_optimization: {stage: 1}", "zero_allow_untested_optimizer"},
    {"optimizer: {type: 'Lamb', params: {min_coeff: 20}}", "optimizer.params.max_coeff = 10"},
    {"scheduler: {type: 'WarmupDecayLR', params: {}}", "total_num_steps: expected this key"},
    {"scheduler: {type: 'OneCycle', params: {cycle_min_lr: 0}}", "cycle_max_lr: expected this key"},
    {"scheduler: {type: 'WarmupLR', params: {warmup_num_steps: 0}}", "of at least 1"},
    {"scheduler: {type: 'WarmupLR', params: {warmup_type: 'cubic'}}", "\"log\", \"linear\""},
    {"scheduler: {type: 'WarmupLR', params: {warmup_max_lr: [0.1, 0.2, 0.1]}}", "a list of 3"},
    {"scheduler: {type: 'WarmupLR', params: {warmup_max_lr: [0.1, 'x']}}", "a list of 2"},
    {"scheduler: {type: 'WarmupLR', params: {warmup_max_lr: [0.1, -1]}}", "a list of 2"},
    {"scheduler: {type: 'WarmUpLR'}", "did you mean \"WarmupLR\"?"},
    {"optimizer: {type: 'AdmaW'}", "did you mean \"adamw\"?"},
    {"gradient_allreduce_op: 'sum', zero_optimization: {stage: 3}", "expected \"mean\""},
    {"zero_optimization: {zero_quantized_gradients: true, reduce_scatter: false}",
     "expected zero_optimization.reduce_scatter true"},
    {"zero_optimization: {zeropp_loco_param: {err_beta: 0.8}}", "err_beta and reset_T"},
    {"zero_optimization: {zeropp_loco_param: {err_beta: 0.8, reset_T: 9}}",
     "expected no zeropp_loco_param without zero_optimization.zero_quantized_gradients"},
    {"zero_optimization: {zero_quantized_gradients: true, zeropp_loco_param: {err_beta: 1.5, "
     "reset_T: 9}}",
     "at most 1"},
    {"zero_optimization: {offload_optimizer: {ratio: 0.5}}", "expected zero_optimization.stage 3"},
    {"zero_optimization: {stage: 2, offload_optimizer: {device: 'cpu', super_offload: true}}",
     "expected zero_optimization.stage 3"},
    {"zero_optimization: {stage: 3, offload_optimizer: {super_offload: true}}",
     "expected offload_optimizer.device cpu"},
    {"zero_optimization: {stage: 3, offload_optimizer: {device: 'cpu', super_offload: true, "
     "cpuadam_cores_perc: 0}}",
     "expected cpuadam_cores_perc above 0"},
    {"gradient_accumulation_steps: 2, zero_optimization: {stage: 3, offload_optimizer: {device: "
     "'cpu', super_offload: true}}",
     "expected gradient_accumulation_steps 1"},
    {"data_parallel_size: 3", "data_parallel_size: expected the world size, 1, found 3"},
    /* features that are not built */
    {"zero_optimization: {offload_param: {device: 'nvme', nvme_path: '/x'}}",
     "offload_param.device: expected zero_optimization.stage 3"},
    {"zero_optimization: {stage: 3, offload_param: {device: 'nvme'}}",
     "offload_param.device: expected nvme_path"},
    {"zero_optimization: {stage: 2, offload_optimizer: {device: 'nvme'}}",
     "offload_optimizer.device: expected nvme_path"},
    {"aio: {use_gds: 'x'}", "aio.use_gds: expected true or false"},
    {"activation_checkpointing: {recompute: 'auto'}", "expected device_memory with auto"},
    {"activation_checkpointing: {recompute: 'full', interval: 2, number_checkpoints: 3}",
     "interval: expected one of interval and number_checkpoints, found both"},
    {"activation_checkpointing: {recompute: 'selective', operators: ''}",
     "operators: expected names of operators"},
    {"device_memory: 1000000, activation_checkpointing: {cpu_checkpointing: true, nvme_path: '/x'}",
     "nvme_path: expected one of nvme_path and cpu_checkpointing, found both"},
    {ZENFLOW("topk_ratio: 1"), "zenflow.topk_ratio: expected a number above 0 and below 1"},
    {ZENFLOW("topk_ratio: 0"), "zenflow.topk_ratio: expected a number above 0 and below 1"},
    {ZENFLOW("update_interval: 0"),
     "zenflow.update_interval: expected a whole number of at least 1"},
    {ZENFLOW("select_interval: 4"), "select_interval: expected \"auto\" with select_strategy auto"},
    {ZENFLOW("select_strategy: 'step'"), "select_interval: expected a number of steps"},
    {ZENFLOW("select_strategy: 'step', select_interval: 3, update_interval: 4"),
     "expected at most the steps between two choices of columns, 3, found 4"},
    {"zero_optimization: {stage: 2, zenflow: {}}",
     "offload_optimizer.device: expected cpu or nvme"},
    {"optimizer: {type: 'Lion'}, " ZENFLOW(""), "optimizer.type: expected Adam or AdamW with"},
    {"optimizer: {type: 'AdamW8bit'}, " ZENFLOW(""), "optimizer.type: expected Adam or AdamW with"},
    {"gradient_allreduce_op: 'sum', " ZENFLOW(""), "gradient_allreduce_op: expected \"mean\""},
    {"bf16: {enabled: true, bf16_master_weights_and_grads: true}, " ZENFLOW(""),
     "bf16_master_weights_and_grads: expected false with zero_optimization.zenflow"},
    {"optimizer: {type: 'ZeroOneAdam', params: {local_step_clipper: 0}}", "at least 1"},
    {"optimizer: {type: 'ZeroOneAdam'}, zero_optimization: {stage: 2}",
     "zero_optimization.stage: expected 0 with optimizer.type ZeroOneAdam"},
    {"optimizer: {type: 'OneBitLamb', params: {min_coeff: 2, max_coeff: 1}}",
     "min_coeff: expected at most"},
    {"optimizer: {type: 'OneBitAdam'}, zero_optimization: {stage: 1}",
     "zero_optimization.stage: expected 0 with optimizer.type OneBitAdam"},
    {"optimizer: {type: 'OneBitAdam', params: {amsgrad: true}}", "AMSGrad is not built"},
    {"optimizer: {type: 'OneBitAdam', params: {comm_backend_name: 'gloo'}}",
     "comm_backend_name: expected"},
    {"optimizer: {type: 'OneBitAdam'}, gradient_allreduce_op: 'sum'",
     "gradient_allreduce_op: expected \"mean\" with optimizer.type OneBitAdam"},
    {"optimizer: {type: 'RMSprop'}", "optimizer.type: not available"},
    {"optimizer: {type: 'Adam', params: {amsgrad: true}}", "optimizer.params.amsgrad"},
    {"optimizer: {type: 'Adam', params: {max_grad_norm: 1.0}}", "gradient_clipping"},
    {"scheduler: {type: 'StepLR'}", "scheduler.type: not available"},
    {"pipeline: {stages: 2}", "pipeline.stages: expected a divisor of the world size, 1, found 2"},
    {"pipeline: {stage: 2}", "pipeline.stage: unknown key; did you mean \"stages\"?"},
    {"pipeline: {partition: 'type:'}",
     "pipeline.partition: expected \"best\", \"parameters\", \"uniform\", \"profile\" or"},
    {"sequence_parallel_size: 2",
     "sequence_parallel_size: expected a divisor of the world size, 1, found 2; the nearest below "
     "is 1"},
    {"tensor_parallel: {autotp_size: 1, tp: {tp_size: 4}}",
     "tensor_parallel.tensor_parallel.tp_size: expected 1 or tensor_parallel.autotp_size, 1, found "
     "4"},
    {"tensor_parallel: {partition_config: {layer_specs: [{patterns: ['a'], shape: [[4, 2], -1]}]}}",
     "tensor_parallel.partition_config.layer_specs[0].shape: expected [n, -1]"},
    {"tensor_parallel: {partition_config: {layer_specs: [{patterns: ['a']}, {partition_dim: 2}]}}",
     "tensor_parallel.partition_config.layer_specs[1].partition_dim: expected 0 or 1"},
    {"tensor_parallel: {injection_policy_tuple: ['a']}",
     "tensor_parallel.injection_policy_tuple: not available"},
    {"wandb: {enabled: true, group: 3}", "wandb.group: expected a string"},
    {"comet: {enabled: true, samples_log_interval: 0}", "comet.samples_log_interval: expected"},
    {"comet: {enabled: true, mode: 'append'}", "comet.mode: expected"},
    {"comet: {enabled: true, experiment_key: 'a/b'}",
     "comet.experiment_key: expected 32 to 50 letters and digits, found \"a/b\""},
    {"comet: {enabled: true, mode: 'get'}", "give its comet.experiment_key"},
    {"comet: {enabled: true, online: true}", "comet.online: not available, found true"},
    {"flops_profiler: {enabled: true, module_depth: -2}", "flops_profiler.module_depth: expected"},
    {"comms_logger: {enabled: true, prof_all: false, prof_ops: ['all_redce']}",
     "comms_logger.prof_ops: expected names of operations, found \"all_redce\"; did you mean "
     "\"all_reduce\"?"},
    {"comms_logger: {enabled: true, prof_all: false, prof_ops: ['gather']}",
     "comms_logger.prof_ops: expected an operation to log"},
    {"comms_logger: {prof_ops: 3}", "comms_logger.prof_ops: expected a list of strings"},
    {"amp: {enabled: true, opt_level: 'O1'}", "amp.enabled: not available"},
    {"torch_autocast: {enabled: true, dtype: 'float32'}",
     "torch_autocast.dtype: expected bfloat16 or float16, found \"float32\""},
    {"torch_autocast: {enabled: true, dtype: 'bf16'}, fp16: {enabled: true}",
     "torch_autocast.dtype: expected the type that fp16.enabled asks for"},
    {"torch_autocast: {enabled: true, dtype: 'fp16'}, bf16: {enabled: true}",
     "torch_autocast.dtype: expected the type that bf16.enabled asks for"},
    {"torch_autocast: {enabled: true}, fp16: {enabled: true}",
     "torch_autocast.dtype: expected the type that fp16.enabled asks for"},
    {"torch_autocast: {enabled: true, lower_precision_safe_modules: ['Linear']}",
     "torch_autocast.lower_precision_safe_modules: expected classes by the path"},
    {"torch_autocast: {enabled: true}, zero_optimization: {stage: 3, zero_quantized_weights: true}",
     "zero_optimization.zero_quantized_weights: expected false with torch_autocast.enabled"},
    {"elasticity: {enabled: true, max_train_batch_size: 8, micro_batch_sizes: [2]}",
     "train_batch_size: expected no batch size with elasticity.enabled"},
    {"autotuning: {enabled: true, start_profile_step: 6}",
     "autotuning.end_profile_step: expected at least autotuning.start_profile_step = 6, found 5"},
    {"autotuning: {enabled: true, mp_size: 2}", "autotuning.mp_size: not available"},
    {"autotuning: {enabled: true, metric: 'speed'}", "autotuning.metric: expected"},
    {"autotuning: {max_train_batch_size: 8, min_train_batch_size: 9}",
     "autotuning.max_train_batch_size: expected at least autotuning.min_train_batch_size = 9"},
    {"autotuning: {max_train_micro_batch_size_per_gpu: 2, min_train_micro_batch_size_per_gpu: 4}",
     "autotuning.max_train_micro_batch_size_per_gpu: expected at least"},
    {"autotuning: {arg_mappings: {train_micro_batch_size_per_gpu: 'batch'}}",
     "autotuning.arg_mappings: expected for \"train_micro_batch_size_per_gpu\" a flag"},
    {"sparse_attention: {mode: 'fixed'}", "sparse_attention: not available"},
    {"datastates_ckpt: 3", "datastates_ckpt: expected true, false, null or an object"},
    {"datastates_ckpt: {host_cache_size: 0}", "expected for host_cache_size a number of GiB"},
    {"datastates_ckpt: {host_cache_size: 'much'}", "expected for host_cache_size"},
    {"nebula: {enabled: true}", "set datastates_ckpt to true"},
    {"hybrid_engine: {enabled: true, inference_tp_size: 2}",
     "hybrid_engine.inference_tp_size: not available"},
    {"hybrid_engine: {enabled: true, release_inference_cache: true}",
     "hybrid_engine.release_inference_cache: not available"},
    {"hybrid_engine: {enabled: true, enable_cuda_graph: true}",
     "hybrid_engine.enable_cuda_graph: not available"},
    {"curriculum_learning: {enabled: true}", "curriculum_learning.enabled: not available"},
    {"compression_training: {layer_reduction: {enabled: true}}", "layer_reduction.enabled: not"},
    {"data_efficiency: {enabled: true, data_routing: {enabled: true, random_ltd: {enabled: true}}}",
     "data_efficiency.data_routing.random_ltd.enabled: not available"},
    {"managed_gradient_accumulation: false", "ds_engine_set_gradient_accumulation_boundary"},
};

/* What asks for nothing. */
static const char *const harmless[] = {
    "pipeline: {stages: 'auto', seed_layers: true}",
    "pipeline: {stages: 1}",
    "sequence_parallel_size: 1",
    "bf16: {enabled: true, check_grad_overflow: false}",
    "tensor_parallel: {autotp_size: 0}",
    "wandb: {enabled: false, project: 'x'}",
    "wandb: {enabled: true, group: 'x', team: null}",
    "comet: {enabled: true, online: false, mode: null}",
    "comet: {enabled: false, online: true, api_key: 'k'}",
    "comms_logger: {enabled: false, verbose: true}",
    "comms_logger: {}",
    "flops_profiler: {enabled: false, profile_step: 5}",
    "amp: {enabled: false, opt_level: 'O1', anything: [1]}",
    "elasticity: {enabled: false, version: 0.1, prefer_large_batch: true}",
    "autotuning: {enabled: false}",
    "autotuning: {enabled: true, metric: 'FLOPS', results_dir: null, mp_size: 1}",
    "compression_training: {}",
    "zero_optimization: {offload_param: null, offload_optimizer: {}, zenflow: null}",
    "zero_optimization: {offload_optimizer: {device: 'none'}}",
    "zero_optimization: {stage: 0}, optimizer: {type: 'SGD'}",
    "zero_optimization: {stage: 2}, optimizer: {type: 'Lamb'}, zero_allow_untested_optimizer: true",
    "fp16: {enabled: false, fp16_master_weights_and_grads: true}",
    "datastates_ckpt: false",
    "optimizer: {type: 'Adam', params: null}",
    "scheduler: {type: 'WarmupLR'}",
    "scheduler: {type: 'WarmupLR', params: {warmup_max_lr: [0.1, 0.1]}}",
    "weight_quantization: {enabled: true}",
    "aio: {block_size: 1048576, thread_count: 4}",
    "zero_optimization: {stage: 'auto'}",
};

static ds_status resolve_body(ds_ctx *ctx, const char *body, ds_config **config_out)
{
    char text[512];
    const int n = snprintf(text, sizeof text, "{\"train_batch_size\": 4, %s}", body);
    assert_true(n > 0 && (size_t)n < sizeof text);
    *config_out = NULL;
    DS_TRY(ds_config_load_text(ctx, "ds.json", text, (size_t)n, NULL, config_out));
    return ds_config_resolve(*config_out, 1, NULL);
}

static void refuses(void **state)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i) {
        ds_config *config;
        const ds_status status = resolve_body(*state, table[i].body, &config);
        const char *message = status < 0 ? ds_ctx_error(*state) : "no error";
        if (status != DS_ERR_CONFIG || strstr(message, table[i].error) == NULL ||
            strncmp(message, "ds.json:", 8) != 0 || strchr(message, '\n') != NULL) {
            print_message("%s\n  want %s\n  got  %s\n", table[i].body, table[i].error, message);
            ++n_wrong;
        }
        ds_config_destroy(&config);
    }
    assert_int_equal(n_wrong, 0);
}

static void accepts_what_asks_for_nothing(void **state)
{
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; ++i) {
        ds_config *config;
        CHECK_OK(*state, resolve_body(*state, harmless[i], &config));
        ds_config_destroy(&config);
    }
}

static void reports_all_errors(void **state)
{
    const char *text =
        "{\n \"bf16\": {\"enabled\": 3},\n \"stage\": 1,\n \"train_batch_size\": 0,\n"
        " \"zero_optimization\": {\"stage\": 9}\n}";
    ds_config *config = NULL;
    CHECK_FAILS(*state, ds_config_load_text(*state, "d", text, strlen(text), NULL, &config),
                DS_ERR_CONFIG,
                "d:2:22: bf16.enabled: expected true or false, or \"auto\", found 3\n"
                "d:3:2: stage: unknown key;");
    assert_null(config);
    assert_non_null(strstr(ds_ctx_error(*state), "\nd:4:22: train_batch_size: expected"));
    assert_non_null(strstr(ds_ctx_error(*state), "\nd:5:33: zero_optimization.stage: expected"));
}

/* What would be cut later is refused here. */
static void refuses_long_strings(void **state)
{
    char text[1200];
    ds_config *config = NULL;
    for (int length = 1023; length <= 1024; ++length) {
        const int n = snprintf(text, sizeof text,
                               "{\"train_batch_size\": 1, \"flops_profiler\": {\"output_file\": "
                               "\"%0*d\"}}",
                               length, 1);
        const ds_status status = ds_config_load_text(*state, "d", text, (size_t)n, NULL, &config);
        assert_int_equal(status, length == 1023 ? DS_OK : DS_ERR_CONFIG);
        ds_config_destroy(&config);
    }
    assert_non_null(strstr(ds_ctx_error(*state), "output_file: expected a string"));
    assert_non_null(strstr(ds_ctx_error(*state), "fewer than 1024 bytes"));
}

static void caps_the_number_of_errors(void **state)
{
    char path[] = DS_BINARY_DIR "/config_errors_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    (void)fprintf(file, "train_batch_size: 1\nfp16: {\n");
    for (int i = 0; i < 70; ++i) {
        (void)fprintf(file, "zzzzzzz%d: 1\n", i);
    }
    (void)fprintf(file, "}\n");
    (void)fclose(file);
    char *text = NULL;
    size_t n_errors = 0;
    CHECK_OK(*state, ds_config_check_file(*state, path, NULL, 1, NULL, &n_errors, &text));
    assert_int_equal(n_errors, 70);
    assert_non_null(strstr(text, "zzzzzzz49"));
    assert_null(strstr(text, "zzzzzzz50"));
    assert_non_null(strstr(text, "and 20 more errors"));
    free(text);
    (void)remove(path);
    ds_config *config = NULL;
    CHECK_FAILS(*state, ds_config_load_file(*state, path, NULL, &config), DS_ERR_NOT_FOUND, path);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses),
        cmocka_unit_test(accepts_what_asks_for_nothing),
        cmocka_unit_test(reports_all_errors),
        cmocka_unit_test(refuses_long_strings),
        cmocka_unit_test(caps_the_number_of_errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
