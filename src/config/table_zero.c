/* SPDX-License-Identifier: Apache-2.0 */
/* `zero_optimization` and what stands in it. */
#include "config/option_rows.h"

#define PARAM(field)   FIELD(zero.offload_param.field)
#define STATES(field)  FIELD(zero.offload_optimizer.field)
#define ZENFLOW(field) FIELD(zero.zenflow.field)

static const dsi_option offload_param_rows[] = {
    E("device", "\"none\"", IN_FORCE,
      "Where parameters live between uses, in stage 3. cpu: host memory, which on the CPU is apart "
      "from device memory only when device_memory is given; nvme: disk.",
      .choices = "none|cpu|nvme", PARAM(device)),
    T("nvme_path", "null", IN_FORCE,
      "Folder on the disk; several, on different disks, with commas between them.", WITH(NULLABLE),
      PARAM(nvme_path)),
    I("buffer_count", "5", IN_FORCE,
      "Buffers between disk and memory. No more than buffer_count times buffer_size and "
      "prefetch_bucket_size elements are read ahead of their use.",
      MIN(0), PARAM(buffer_count)),
    I("buffer_size", "100000000", IN_FORCE, "Elements of one buffer.", MIN(0), PARAM(buffer_size)),
    I("max_in_cpu", "1000000000", IN_FORCE,
      "Elements of parameters that stay in memory under offload to disk.", MIN(0),
      PARAM(max_in_cpu)),
    B("pin_memory", "true", NO_EFFECT, "Page-locked host memory, for copies to a GPU.",
      NOTE("on the CPU nothing is copied to a device")),
};
static const dsi_section offload_param = {
    .path = "zero_optimization.offload_param",
    .doc = "Where parameters live, for stage 3.",
    .flags = DSI_SECTION_LAX,
    DSI_SECTION_ROWS(offload_param_rows),
};

static const dsi_option offload_optimizer_rows[] = {
    E("device", "\"none\"", IN_FORCE,
      "Where gradients, master weights and moments live between uses. cpu: host memory, which on "
      "the CPU is apart from device memory only when device_memory is given; nvme: disk.",
      .choices = "none|cpu|nvme", STATES(device)),
    T("nvme_path", "null", IN_FORCE,
      "Folder on the disk; several, on different disks, with commas between them.", WITH(NULLABLE),
      STATES(nvme_path)),
    I("buffer_count", "4", IN_FORCE,
      "Buffers between disk and memory, each of one tensor of a sub-group; 4 hold a sub-group of "
      "Adam.",
      MIN(0), STATES(buffer_count)),
    B("pin_memory", "true", NO_EFFECT, "Page-locked host memory, for copies to a GPU.",
      NOTE("on the CPU nothing is copied to a device")),
    B("pipeline_read", "true", IN_FORCE,
      "Read the next sub-group while one is updated. DeepSpeed's default is false.",
      STATES(pipeline_read)),
    B("pipeline_write", "true", IN_FORCE,
      "Write a sub-group while the next is updated. DeepSpeed's default is false.",
      STATES(pipeline_write)),
    B("fast_init", "false", NO_EFFECT, "Faster start with offload to disk.",
      NOTE("the start writes each tensor once either way")),
    R("ratio", "1.0", IN_FORCE,
      "Part of the parameters whose states are offloaded; below 1 only in stage 3. With "
      "super_offload those whose gradients come last stay, and where nothing is given the cost "
      "model chooses the part, of a device that has a profile (ds_plan --device).",
      MIN(0), MAX(1), STATES(ratio)),
    B("super_offload", "false", IN_FORCE,
      "Beside a GPU, with device cpu: what lives in host memory is updated there in the backward "
      "pass, before it is known whether gradients are clipped or a step is skipped; then a copy of "
      "the states undoes it. Stage 3, gradient_accumulation_steps 1.",
      STATES(super_offload)),
    R("cpuadam_cores_perc", "0.8", IN_FORCE,
      "With device cpu, beside a GPU: share of the threads that update what lives in host memory, "
      "while the device goes on. 0: it is moved to the device and updated there.",
      MIN(0), MAX(1), STATES(cpuadam_cores)),
};
static const dsi_section offload_optimizer = {
    .path = "zero_optimization.offload_optimizer",
    .doc = "Where optimizer state lives.",
    .flags = DSI_SECTION_LAX,
    DSI_SECTION_ROWS(offload_optimizer_rows),
};

static const dsi_option zenflow_rows[] = {
    R("topk_ratio", "0.1", IN_FORCE,
      "Part of the columns of each weight matrix that are updated in every step; above 0 and below "
      "1.",
      MIN(0), MAX(1), ZENFLOW(topk_ratio)),
    E("select_strategy", "\"auto\"", IN_FORCE,
      "What select_interval counts: step or epoch; auto: epoch, every one.",
      .choices = "auto|step|epoch", WITH(AUTO)),
    I("select_interval", "\"auto\"", IN_FORCE,
      "Steps or epochs from one choice of columns to the next; 0: they are chosen once. Given with "
      "select_strategy step or epoch, and only then.",
      MIN(0), WITH(AUTO), ZENFLOW(select_interval)),
    I("update_interval", "\"auto\"", IN_FORCE,
      "Steps from one update of the other columns to the next, by the mean of their gradients; "
      "auto: as soon as these weigh as much as those of the chosen columns.",
      MIN(1), WITH(AUTO), ZENFLOW(update_interval)),
    B("overlap_step", "false", IN_FORCE,
      "Update the other columns on threads of their own, concurrently with the next steps; forward "
      "passes see "
      "the result from the next such update on, one interval late.",
      ZENFLOW(overlap_step)),
    B("offload", "false", IN_FORCE,
      "Keep the fp32 values and moments of the chosen columns in host memory too, which on the CPU "
      "is apart from device memory only when device_memory is given.",
      ZENFLOW(offload)),
    R("auto_ratio", "0.99", IN_FORCE,
      "With update_interval auto: part of the weight matrices that must weigh enough.", MIN(0),
      MAX(1), ZENFLOW(auto_ratio)),
    I("full_warm_up_rounds", "0", IN_FORCE, "Steps at the start that update all columns.", MIN(0),
      ZENFLOW(full_warm_up_rounds)),
    R("pt_reserved_cores_perc", "0.5", IN_FORCE,
      "With overlap_step: share of the threads, rounded up, that this update leaves "
      "to the steps; where it would have none, it takes as many as they.",
      MIN(0), MAX(1), ZENFLOW(reserved)),
    I("steps_per_epoch", "null", IN_FORCE,
      "Steps of an epoch, for select_strategy epoch and auto; ds_train counts them where they are "
      "not given. Elsewhere columns are then chosen once.",
      MIN(1), WITH(NULLABLE), ZENFLOW(steps_per_epoch)),
};
static const dsi_section zenflow = {
    .path = "zero_optimization.zenflow",
    .doc = "ZenFlow: of each weight matrix some columns (inputs) are updated in every step, the "
           "others every so many steps. The section's presence turns it on; it needs Adam or AdamW "
           "and offload_optimizer.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(zenflow_rows),
};

static const dsi_option leaf_rows[] = {
    TEXTS("classes", NULL, PART, "Module classes fetched whole.", WITH(ONE_TEXT)),
    TEXTS("names", "[]", PART, "Module names fetched whole.", WITH(ONE_TEXT)),
    TEXTS("name_suffixes", "[]", PART, "Module name endings fetched whole.", WITH(ONE_TEXT)),
};
static const dsi_section leaf = {
    .path = "zero_optimization.leaf_module",
    .doc = "Modules whose parameters stage 3 fetches together.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(leaf_rows),
};

static const dsi_option loco_rows[] = {
    R("err_beta", "0.8", IN_FORCE,
      "Weight of the errors before in the mean of errors that is added to a gradient.", MIN(0),
      MAX(1), FIELD(zero.loco.err_beta)),
    I("reset_T", "1024", IN_FORCE, "Updates after which errors begin at zero again.", MIN(1),
      FIELD(zero.loco.reset_every)),
};
static const dsi_section loco = {
    .path = "zero_optimization.zeropp_loco_param",
    .doc = "LoCo: error feedback of zero_quantized_gradients. The section's presence turns it on; "
           "both keys must be given.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(loco_rows),
};

static const dsi_option rows[] = {
    I("stage", "0", IN_FORCE,
      "0: nothing is sharded; 1: optimizer state; 2: gradients too; 3: parameters too. The results "
      "are the same.",
      MIN(0), MAX(3), FIELD(zero.stage)),
    B("contiguous_gradients", "true", IN_FORCE, "Keep reduced gradients in one buffer.",
      FIELD(zero.contiguous_gradients)),
    B("reduce_scatter", "true", IN_FORCE, "Reduce to the owner of a slice, not to all.",
      FIELD(zero.reduce_scatter)),
    I("reduce_bucket_size", "500000000", IN_FORCE, "Elements that one reduction carries.", MIN(0),
      WITH(TRAINER), FIELD(zero.reduce_bucket_size)),
    B("use_multi_rank_bucket_allreduce", "true", IN_FORCE,
      "Let one reduction carry slices of several owners."),
    B("allgather_partitions", "true", IN_FORCE, "Gather parameters with all-gather.",
      FIELD(zero.allgather_partitions)),
    I("allgather_bucket_size", "500000000", IN_FORCE, "Elements that one all-gather carries.",
      MIN(0), FIELD(zero.allgather_bucket_size)),
    B("overlap_comm", "null", IN_FORCE,
      "Reduce gradients while the backward pass runs. null: in stage 3.", WITH(NULLABLE),
      FIELD(zero.overlap_comm)),
    B("load_from_fp32_weights", "true", IN_FORCE,
      "Start master weights from a checkpoint's fp32 copy, not from rounded ones."),
    B("elastic_checkpoint", "false", NO_EFFECT, "A checkpoint layout for other world sizes.",
      NOTE("every checkpoint loads at any world size")),
    S("offload_param", "null", IN_FORCE, "Where parameters live.", WITH(NULLABLE),
      .section = &offload_param),
    S("offload_optimizer", "null", IN_FORCE, "Where optimizer state lives.", WITH(NULLABLE),
      .section = &offload_optimizer),
    S("zenflow", "null", IN_FORCE, "Update some columns of each weight in every step.",
      WITH(NULLABLE), .section = &zenflow),
    I("sub_group_size", "1000000000", IN_FORCE,
      "Elements updated together in stage 3; bounds the memory of an update.", MIN(0),
      FIELD(zero.sub_group_size)),
    B("cpu_offload", "null", PART, "Deprecated: offload_optimizer with device cpu.",
      WITH(NULLABLE)),
    B("cpu_offload_param", "null", PART, "Deprecated: offload_param with device cpu.",
      WITH(NULLABLE)),
    B("cpu_offload_use_pin_memory", "null", NO_EFFECT, "Deprecated, without effect in DeepSpeed.",
      WITH(NULLABLE | IGNORED), NOTE("it is deprecated and has no effect in DeepSpeed either")),
    I("prefetch_bucket_size", "50000000", IN_FORCE, "Elements fetched ahead in stage 3.", MIN(0),
      WITH(TRAINER), .aliases = "stage3_prefetch_bucket_size", FIELD(zero.prefetch_bucket_size)),
    I("param_persistence_threshold", "100000", IN_FORCE,
      "Parameters with fewer elements are never sharded in stage 3.", MIN(0), WITH(TRAINER),
      .aliases = "stage3_param_persistence_threshold", FIELD(zero.param_persistence_threshold)),
    I("model_persistence_threshold", "9223372036854775807", IN_FORCE,
      "Elements that may stay unsharded in all.", MIN(0),
      .aliases = "stage3_model_persistence_threshold", FIELD(zero.model_persistence_threshold)),
    I("max_live_parameters", "1000000000", IN_FORCE, "Elements that may be gathered at once.",
      MIN(0), .aliases = "stage3_max_live_parameters", FIELD(zero.max_live_parameters)),
    I("max_reuse_distance", "1000000000", IN_FORCE,
      "A gathered parameter stays when its next use is nearer than this many elements.", MIN(0),
      .aliases = "stage3_max_reuse_distance", FIELD(zero.max_reuse_distance)),
    B("gather_16bit_weights_on_model_save", "false", IN_FORCE,
      "Gather parameters of stage 3 to save a 16-bit model.",
      .aliases = "stage3_gather_16bit_weights_on_model_save",
      .old = "stage3_gather_fp16_weights_on_model_save",
      FIELD(zero.gather_16bit_weights_on_model_save)),
    I("module_granularity_threshold", "0", IN_FORCE,
      "Modules with more, smaller parameters are fetched whole.",
      .aliases = "stage3_module_granularity_threshold"),
    B("use_all_reduce_for_fetch_params", "false", IN_FORCE,
      "Fetch parameters by all-reduce in stage 3.",
      .aliases = "stage3_use_all_reduce_for_fetch_params"),
    B("allgather_sequential", "false", IN_FORCE, "One all-gather at a time in stage 3.",
      .aliases = "stage3_allgather_sequential"),
    B("ignore_unused_parameters", "true", NOT_BUILT,
      "false: a parameter without gradient is an error in stages 1 and 2.",
      NOTE("unused parameters are not looked for; set it to true"),
      FIELD(zero.ignore_unused_parameters)),
    B("legacy_stage1", "false", NOT_BUILT, "Refused by DeepSpeed as well.",
      NOTE("the old stage 1 is gone from DeepSpeed too; remove the key")),
    B("round_robin_gradients", "false", IN_FORCE, "Deal slices of gradients out in turn.",
      FIELD(zero.round_robin_gradients)),
    I("zero_hpz_partition_size", "1", IN_FORCE,
      "hpZ: consecutive ranks that share one copy of the parameters, whose gradients and states "
      "are "
      "shared by all. Stage 3; must divide the world size.",
      MIN(0), FIELD(zero.hpz_partition_size)),
    B("zero_quantized_weights", "false", IN_FORCE,
      "qwZ: send weights as int8 between ranks, with a scale for each 2048 of them. Stage 3. What "
      "is updated and saved stays as it is.",
      FIELD(zero.quantized_weights)),
    B("zero_quantized_nontrainable_weights", "false", IN_FORCE,
      "Send frozen weights as int8 between ranks. Stage 3.", FIELD(zero.quantized_frozen_weights)),
    B("zero_quantized_gradients", "false", IN_FORCE,
      "qgZ: send gradients of more than one dim as int4 between ranks, with a scale for each 256 "
      "of "
      "them, and add them in fp32; with zero_hpz_partition_size within a group first, then between "
      "groups. Stages 1 to 3.",
      FIELD(zero.quantized_gradients)),
    S("zeropp_loco_param", "null", IN_FORCE,
      "Add what quantized gradients lose to the next ones (LoCo).", WITH(NULLABLE),
      .section = &loco),
    I("mics_shard_size", "-1", IN_FORCE,
      "MiCS: consecutive ranks that share one copy of parameters and states; every such group has "
      "one. Stage 3; must divide the world size. -1: off.",
      FIELD(zero.mics_shard_size)),
    B("mics_hierarchical_params_gather", "false", ONE_RANK, "MiCS gathers within a node first."),
    B("memory_efficient_linear", "true", NO_EFFECT,
      "A linear layer that does not keep gathered weights.",
      NOTE("what the backward pass keeps is planned for every operator")),
    B("pipeline_loading_checkpoint", "false", NO_EFFECT, "Overlap reading and copying of weights.",
      NOTE("weights are memory-mapped")),
    B("override_module_apply", "true", NO_EFFECT, "Gather parameters in PyTorch's Module.apply.",
      NOTE("there are no PyTorch modules")),
    B("log_trace_cache_warnings", "false", NO_EFFECT, "Warn when the order of modules changes.",
      NOTE("the plan fixes the order before the run")),
    B("enable_sanity_checks", "false", NO_EFFECT, "Check gathered state in stage 3.",
      NOTE("every plan is checked before it runs")),
    B("save_muon_momentum_buffer_in_memory", "false", NO_EFFECT,
      "Of the optimizer Muon: keep the momentum in memory.",
      NOTE("the momentum is a state, and lives where states do")),
    S("leaf_module", NULL, PART, "Modules that stage 3 fetches together.", WITH(NULLABLE),
      .section = &leaf),
    B("grad_hooks", "true", NO_EFFECT, "In DeepSpeed's documentation, not in its code.",
      NOTE("DeepSpeed documents it and does not know it")),
};
const dsi_section dsi_section_zero = {
    .path = "zero_optimization",
    .doc = "What is sharded over the ranks and how it is sent. With one rank all placements are "
           "the same and nothing is sent. The form \"zero_optimization\": true is deprecated and "
           "means stage 1.",
    .flags = DSI_SECTION_LAX,
    DSI_SECTION_ROWS(rows),
};
