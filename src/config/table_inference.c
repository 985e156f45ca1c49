/* SPDX-License-Identifier: Apache-2.0 */
/* Files of DeepSpeed's inference engines: init_inference's, and version 2's. Nothing here reads
 * their values: generation takes its settings from flags. They are known so that they can be
 * checked. */
#include "config/option_rows.h"

#define BY_PROGRAM(key, alias_names)                                                               \
    ANY(key, "null", PART, "Set by programs only.", WITH(NULLABLE), .aliases = (alias_names))

static const dsi_option tp_rows[] = {
    B("enabled", "true", PART, "Share layers between ranks."),
    I("tp_size", "1", NOT_BUILT, "Ranks that share each layer.", MIN(1),
      NOTE("layers are shared by the ranks that ds_generate is started with; set it to 1")),
    I("tp_grain_size", "64", PART, "Granularity of the split.", MIN(1)),
    BY_PROGRAM("mpu", NULL),
    BY_PROGRAM("tp_group", NULL),
};
static const dsi_section tp = {
    .path = "inference.tensor_parallel",
    .doc = "Size of the group.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(tp_rows),
};

#define QUANT_ROWS                                                                                 \
    B("enabled", "true", PART, "Switch."), I("num_bits", "8", PART, "Bits.", MIN(1)),              \
        E("q_type", "\"symmetric\"", PART, "Range.", .choices = "symmetric|asymmetric"),           \
        I("q_groups", "1", PART, "Groups with a scale each.", MIN(1))
static const dsi_option quant_activation_rows[] = {QUANT_ROWS};
static const dsi_section quant_activation = {
    .path = "inference.quant.activation",
    .doc = "Activations.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quant_activation_rows),
};
static const dsi_option quant_weight_rows[] = {
    QUANT_ROWS,
    OBJECT("quantized_initialization", "{}", PART, "Quantize while loading."),
    OBJECT("post_init_quant", "{}", PART, "Quantize after loading."),
};
static const dsi_section quant_weight = {
    .path = "inference.quant.weight",
    .doc = "Weights.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quant_weight_rows),
};
static const dsi_option qkv_rows[] = {B("enabled", "true", PART, "Switch.")};
static const dsi_section qkv = {
    .path = "inference.quant.qkv",
    .doc = "Query, key and value.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(qkv_rows),
};
static const dsi_option quant_rows[] = {
    B("enabled", "true", PART, "Switch; only with dtype int8."),
    S("activation", NULL, PART, "Activations.", .section = &quant_activation),
    S("weight", NULL, PART, "Weights.", .section = &quant_weight),
    S("qkv", NULL, PART, "Query, key and value.", .section = &qkv),
};
static const dsi_section quant = {
    .path = "inference.quant",
    .doc = "Quantization.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quant_rows),
};

static const dsi_option moe_rows[] = {
    B("enabled", "true", PART, "The model has experts."),
    I("ep_size", "1", PART, "Ranks that share the experts.", MIN(1)),
    INTS("moe_experts", "[1]", PART, "Experts of each layer.", MIN(1), .aliases = "num_experts"),
    E("type", "\"standard\"", PART, "Kind of layer.", .choices = "standard|residual"),
    BY_PROGRAM("ep_mp_group", NULL),
    BY_PROGRAM("ep_group", "expert_group"),
};
static const dsi_section moe = {
    .path = "inference.moe",
    .doc = "Mixture of experts; also true or false.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(moe_rows),
};

static const dsi_option description_rows[] = {
    T("type", NULL, PART, "bloom, ds_model or Megatron.", WITH(REQUIRED)),
    ANY("checkpoints", NULL, PART, "Files.", WITH(REQUIRED)),
    ANY("version", NULL, PART, "Version of the format.", WITH(REQUIRED)),
    T("parallelization", "\"pp\"", PART, "How the files were cut."),
    I("mp_size", "0", PART, "Ranks that wrote them.", MIN(0)),
    T("base_dir", NULL, PART, "Folder of the files."),
};
static const dsi_section description = {
    .path = "inference.checkpoint",
    .doc = "Description of a checkpoint; also the name of a file that holds one.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(description_rows),
};
static const dsi_option place_rows[] = {
    T("checkpoint_dir", "null", PART, "Folder of the checkpoint.", WITH(NULLABLE)),
    T("save_mp_checkpoint_path", "null", PART, "Folder for a copy cut for this run.",
      WITH(NULLABLE)),
    T("base_dir", "null", PART, "Folder of its files.", WITH(NULLABLE)),
};
static const dsi_section place = {
    .path = "inference.checkpoint_config",
    .doc = "Where checkpoints are.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(place_rows),
};

#define KERNELS NOTE("kernels are chosen by the machine's instruction set")
static const dsi_option rows[] = {
    B("replace_with_kernel_inject", "false", NO_EFFECT, "Use fused kernels.", KERNELS,
      .aliases = "kernel_inject"),
    E("dtype", "\"fp16\"", PART, "Element type of the weights.",
      .choices = "fp16|float16|half|torch.float16|fp32|float32|float|torch.float32|bf16|bfloat16|"
                 "bfloat|torch.bfloat16|int8|torch.int8"),
    S("tensor_parallel", NULL, PART, "Size of the group.", .section = &tp, .aliases = "tp"),
    B("enable_cuda_graph", "false", NO_EFFECT, "Use CUDA graphs.",
      NOTE("there are no CUDA graphs on the CPU")),
    B("use_triton", "false", NO_EFFECT, "Use Triton's kernels.", KERNELS),
    B("triton_autotune", "false", NO_EFFECT, "Tune Triton's kernels.", KERNELS),
    S("zero", NULL, PART, "As zero_optimization.", .section = &dsi_section_zero),
    B("triangular_masking", "true", PART, "Tokens see those before them only.", .aliases = "tm"),
    S("moe", NULL, PART, "Mixture of experts.", WITH(DSI_OPT_OR_BOOL), .section = &moe),
    B("keep_module_on_host", "false", PART, "Keep whole weights in host memory."),
    S("quant", NULL, PART, "Quantization.", .section = &quant),
    S("checkpoint", "null", PART, "Checkpoint to load.", WITH(NULLABLE | ONE_TEXT),
      .section = &description),
    T("base_dir", "\"\"", PART, "Folder of the checkpoint's files."),
    B("set_empty_params", "false", PART, "Parameters have no data yet."),
    T("save_mp_checkpoint_path", "null", PART, "Folder for a copy cut for this run.",
      WITH(NULLABLE)),
    S("checkpoint_config", NULL, PART, "Where checkpoints are.", .section = &place,
      .aliases = "ckpt_config"),
    B("return_tuple", "true", PART, "Layers return tuples."),
    I("training_mp_size", "1", PART, "Ranks that shared layers in training.", MIN(1)),
    T("replace_method", "\"auto\"", NO_EFFECT, "Deprecated, without effect in DeepSpeed.",
      NOTE("it is deprecated and has no effect in DeepSpeed either")),
    OBJECT("injection_policy", "null", PART, "Layers to split.", WITH(NULLABLE),
           .aliases = "injection_dict"),
    LIST("injection_policy_tuple", "null", PART, "Layers to split.", WITH(NULLABLE)),
    OBJECT("config", "null", PART, "The model's own settings.", WITH(NULLABLE), .aliases = "args"),
    I("max_out_tokens", "1024", PART, "Most tokens, prompt included.", MIN(1),
      .aliases = "max_tokens"),
    I("min_out_tokens", "1", PART, "Fewest tokens there must be room for.", MIN(1),
      .aliases = "min_tokens"),
    B("transposed_mode", "false", PART, "Weights are stored transposed."),
    I("mp_size", "1", NOT_BUILT, "Deprecated: tensor_parallel.tp_size.", MIN(1),
      NOTE("layers are shared by the ranks that ds_generate is started with; set it to 1")),
    BY_PROGRAM("mpu", NULL),
    I("ep_size", "1", PART, "Deprecated: moe.ep_size.", MIN(1)),
    BY_PROGRAM("ep_group", "expert_group"),
    BY_PROGRAM("ep_mp_group", "expert_mp_group"),
    INTS("moe_experts", "[1]", PART, "Deprecated: moe.moe_experts.", MIN(1)),
    E("moe_type", "\"standard\"", PART, "Deprecated: moe.type.", .choices = "standard|residual"),
};
const dsi_section dsi_section_inference = {
    .path = "inference",
    .title = "Inference: the file of init_inference",
    .doc = "Checked by `ds_config check --kind inference`. Generation takes its settings from the "
           "flags of `ds_generate`.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(rows),
};

/* ---- version 2 ------------------------------------------------------------------------------- */

static const dsi_option v2_tp_rows[] = {
    I("tp_size", "1", NOT_BUILT, "Ranks that share each layer.", MIN(1),
      NOTE("layers are shared by the ranks that ds_generate is started with; set it to 1")),
};
static const dsi_section v2_tp = {
    .path = "inference_v2.tensor_parallel",
    .doc = "Size of the group.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(v2_tp_rows),
};
static const dsi_option memory_rows[] = {
    E("mode", "\"reserve\"", PART, "Whether size is what is left free, or what is taken.",
      .choices = "reserve|allocate"),
    I("size", "1000000000", PART, "Bytes (reserve) or blocks (allocate).", MIN(1)),
};
static const dsi_section memory = {
    .path = "inference_v2.state_manager.memory_config",
    .doc = "Memory of the cache.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(memory_rows),
};
static const dsi_option manager_rows[] = {
    I("max_tracked_sequences", "2048", PART, "Most sequences at a time.", MIN(1)),
    I("max_ragged_batch_size", "768", PART, "Most tokens of a step.", MIN(1)),
    I("max_ragged_sequence_count", "512", PART, "Most sequences of a step.", MIN(1)),
    I("max_context", "8192", PART, "Most tokens of a sequence.", MIN(1)),
    S("memory_config", NULL, PART, "Memory of the cache.", .section = &memory),
    B("offload", "false", PART, "Move idle caches to host memory."),
};
static const dsi_section manager = {
    .path = "inference_v2.state_manager",
    .doc = "Sequences and their cache.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(manager_rows),
};
static const dsi_option quantization_rows[] = {
    T("quantization_mode", "null", PART, "wf6af16, or null.", WITH(NULLABLE)),
};
static const dsi_section quantization = {
    .path = "inference_v2.quantization",
    .doc = "Quantization.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quantization_rows),
};
static const dsi_option v2_rows[] = {
    S("tensor_parallel", NULL, PART, "Size of the group.", .section = &v2_tp, .aliases = "tp"),
    S("state_manager", NULL, PART, "Sequences and their cache.", .section = &manager,
      .aliases = "manager"),
    S("quantization", NULL, PART, "Quantization.", .section = &quantization),
};
const dsi_section dsi_section_inference_v2 = {
    .path = "inference_v2",
    .title = "Inference, version 2: the ragged engine",
    .doc = "Checked by `ds_config check --kind inference_v2`.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(v2_rows),
};
