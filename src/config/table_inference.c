/* SPDX-License-Identifier: Apache-2.0 */
/* Files of DeepSpeed's inference engines: init_inference's, and version 2's. What they come to is
 * ds_config_values.inference (config_inference.c); MII's are in table_mii.c. */
#include "config/option_rows.h"

#define BY_PROGRAM(key, alias_names)                                                               \
    ANY(key, "null", NOT_BUILT, "Set by programs only.", WITH(NULLABLE), .aliases = (alias_names), \
        NOTE("it is a group of PyTorch's processes, which a file cannot hold"))
#define KERNELS  NOTE("kernels are chosen by the machine's instruction set")
#define BY_MODEL NOTE("it is found from the model")

#define TP_SIZE                                                                                    \
    "Ranks that share each layer: as many as are started. Where the file says nothing, all do."
static const dsi_option tp_rows[] = {
    B("enabled", "true", IN_FORCE, "Share layers between ranks; false: tp_size is 1."),
    I("tp_size", "1", IN_FORCE, TP_SIZE, MIN(1)),
    I("tp_grain_size", "64", NO_EFFECT, "Granularity of the split.", MIN(1),
      NOTE("heads, and whole blocks of weights, are what is split")),
    BY_PROGRAM("mpu", NULL),
    BY_PROGRAM("tp_group", NULL),
};
static const dsi_section tp = {
    .path = "inference.tensor_parallel",
    .doc = "Size of the group.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(tp_rows),
};

#define QUANT_GROUPS                                                                               \
    I("q_groups", "1", NO_EFFECT, "Groups with a scale each.", MIN(1),                             \
      NOTE("each 32 values of a row have a scale, or each 16"))
static const dsi_option quant_activation_rows[] = {
    B("enabled", "true", IN_FORCE,
      "Inputs of products are rounded to bytes; with quantized weights they always are."),
    I("num_bits", "8", IN_FORCE, "Bits: 8.", MIN(8), MAX(8)),
    E("q_type", "\"symmetric\"", IN_FORCE, "Range: symmetric.", .choices = "symmetric"),
    QUANT_GROUPS,
};
static const dsi_section quant_activation = {
    .path = "inference.quant.activation",
    .doc = "Activations.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quant_activation_rows),
};
static const dsi_option quant_weight_rows[] = {
    B("enabled", "true", IN_FORCE, "Switch; false: the weights are fp16."),
    I("num_bits", "8", IN_FORCE,
      "Bits: 8 (blocks of Q8_0), 6 (Q6_K), 5 (Q5_0; asymmetric Q5_1) or 4 (Q4_0; asymmetric Q4_1).",
      MIN(4), MAX(8)),
    E("q_type", "\"symmetric\"", IN_FORCE,
      "Range; of 8 and 6 bits always symmetric, as DeepSpeed's.",
      .choices = "symmetric|asymmetric"),
    QUANT_GROUPS,
    OBJECT("quantized_initialization", "{}", NOT_BUILT, "Quantize while loading.",
           NOTE("it goes by the names of PyTorch's modules; num_bits is for all of them")),
    OBJECT("post_init_quant", "{}", NOT_BUILT, "Quantize after loading.",
           NOTE("it goes by the names of PyTorch's modules; num_bits is for all of them")),
};
static const dsi_section quant_weight = {
    .path = "inference.quant.weight",
    .doc = "Weights.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quant_weight_rows),
};
static const dsi_option qkv_rows[] = {
    B("enabled", "true", NOT_BUILT, "Switch.",
      NOTE("PyTorch's fused modules are what it tells apart; here all matrices have one type")),
};
static const dsi_section qkv = {
    .path = "inference.quant.qkv",
    .doc = "Query, key and value.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(qkv_rows),
};
static const dsi_option quant_rows[] = {
    B("enabled", "true", IN_FORCE, "Switch; only with dtype int8, as in DeepSpeed."),
    S("activation", NULL, IN_FORCE, "Activations.", .section = &quant_activation),
    S("weight", NULL, IN_FORCE, "Weights.", .section = &quant_weight),
    S("qkv", NULL, IN_FORCE, "Query, key and value.", .section = &qkv),
};
static const dsi_section quant = {
    .path = "inference.quant",
    .doc = "Quantization.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quant_rows),
};

#define EP_SIZE                                                                                    \
    "Ranks that share the experts: 1, or as many as are started, which share all layers then."
#define N_EXPERTS "Experts of each layer, compared with the model's."
#define RESIDUAL  NOTE("only modules of deepspeed.moe in PyTorch have it")
static const dsi_option moe_rows[] = {
    B("enabled", "true", NO_EFFECT, "The model has experts.", BY_MODEL),
    I("ep_size", "1", IN_FORCE, EP_SIZE, MIN(1)),
    INTS("moe_experts", "[1]", IN_FORCE, N_EXPERTS, MIN(1), .aliases = "num_experts"),
    E("type", "\"standard\"", NOT_BUILT, "Kind of layer.", .choices = "standard|residual",
      RESIDUAL),
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
    E("type", NULL, IN_FORCE, "Kind: of both, tensors by the model's own names.",
      WITH(REQUIRED | ANY_CASE), .choices = "ds_model|bloom"),
    TEXTS("checkpoints", NULL, IN_FORCE, "Files of torch.save, or .safetensors.", WITH(REQUIRED)),
    ANY("version", NULL, NO_EFFECT, "Version of the format.", WITH(REQUIRED),
        NOTE("the files say how they are written")),
    E("parallelization", "\"pp\"", NOT_BUILT, "How the files were cut.", .choices = "pp|tp",
      NOTE("files cut by ranks hold PyTorch's injected modules; use the model's own files")),
    I("mp_size", "0", NO_EFFECT, "Ranks that wrote them.", MIN(0), BY_MODEL),
    I("tp_size", "0", NO_EFFECT, "The same.", MIN(0), BY_MODEL),
    T("dtype", "null", NO_EFFECT, "What they hold.", WITH(NULLABLE), NOTE("the files say it")),
    T("base_dir", NULL, IN_FORCE, "Folder of the files."),
};
static const dsi_section description = {
    .path = "inference.checkpoint",
    .doc = "Weights in the place of the model folder's; also the name of a file that holds this.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(description_rows),
};
#define COPY "Folder for a copy of the weights that are served, in dtype: a model folder."
static const dsi_option place_rows[] = {
    T("checkpoint_dir", "null", IN_FORCE, "Folder with the weights, in the place of the model's.",
      WITH(NULLABLE), FIELD(inference.checkpoint_dir)),
    T("save_mp_checkpoint_path", "null", IN_FORCE, COPY, WITH(NULLABLE)),
    T("base_dir", "null", IN_FORCE, "Folder that checkpoint_dir and checkpoint are in.",
      WITH(NULLABLE)),
};
static const dsi_section place = {
    .path = "inference.checkpoint_config",
    .doc = "Where checkpoints are.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(place_rows),
};

static const dsi_option rows[] = {
    B("replace_with_kernel_inject", "false", NO_EFFECT, "Use fused kernels.", KERNELS,
      .aliases = "kernel_inject"),
    E("dtype", "\"fp16\"", IN_FORCE,
      "Element type of the arithmetic; int8: fp16, and weights as quant says.",
      .choices = "fp16|float16|half|torch.float16|fp32|float32|float|torch.float32|bf16|bfloat16|"
                 "bfloat|torch.bfloat16|int8|torch.int8"),
    S("tensor_parallel", NULL, IN_FORCE, "Size of the group.", .section = &tp, .aliases = "tp"),
    B("enable_cuda_graph", "false", NO_EFFECT, "Use CUDA graphs.",
      NOTE("a step is one plan, which nothing has to capture")),
    B("use_triton", "false", NO_EFFECT, "Use Triton's kernels.", KERNELS),
    B("triton_autotune", "false", NO_EFFECT, "Tune Triton's kernels.", KERNELS),
    S("zero", NULL, IN_FORCE,
      "As zero_optimization: with offload_param weights come from disk or the host "
      "(ZeRO-Inference).",
      .section = &dsi_section_zero),
    B("triangular_masking", "true", NO_EFFECT, "Tokens see those before them only.",
      .aliases = "tm", NOTE("the mask is that of the model's family, in DeepSpeed, too")),
    S("moe", NULL, IN_FORCE, "Mixture of experts.", WITH(DSI_OPT_OR_BOOL), .section = &moe),
    B("keep_module_on_host", "false", IN_FORCE,
      "Weights stay in host memory, also where a device computes.", FIELD(inference.host)),
    S("quant", NULL, IN_FORCE, "Quantization.", .section = &quant),
    S("checkpoint", "null", IN_FORCE, "Weights to load.", WITH(NULLABLE | ONE_TEXT),
      .section = &description),
    T("base_dir", "\"\"", IN_FORCE, "Folder of the checkpoint's files."),
    B("set_empty_params", "false", NO_EFFECT, "Parameters have no data yet.",
      NOTE("nothing is allocated before weights are read")),
    T("save_mp_checkpoint_path", "null", IN_FORCE, COPY, WITH(NULLABLE)),
    S("checkpoint_config", NULL, IN_FORCE, "Where checkpoints are.", .section = &place,
      .aliases = "ckpt_config"),
    B("return_tuple", "true", NO_EFFECT, "Layers return tuples.",
      NOTE("it is about modules of PyTorch; logits are returned")),
    I("training_mp_size", "1", NO_EFFECT, "Ranks that shared layers in training.", MIN(1),
      BY_MODEL),
    T("replace_method", "\"auto\"", NO_EFFECT, "Deprecated, without effect in DeepSpeed.",
      NOTE("it is deprecated and has no effect in DeepSpeed either")),
    OBJECT("injection_policy", "null", NO_EFFECT, "Layers to split.", WITH(NULLABLE),
           .aliases = "injection_dict", BY_MODEL),
    LIST("injection_policy_tuple", "null", NO_EFFECT, "Layers to split.", WITH(NULLABLE), BY_MODEL),
    OBJECT("config", "null", NOT_BUILT, "The model's own settings.", WITH(NULLABLE),
           .aliases = "args",
           NOTE("it is an object of transformers for PyTorch's modules; edit the folder's "
                "config.json")),
    I("max_out_tokens", "1024", IN_FORCE, "Most tokens, prompt included; at most the model's.",
      MIN(1), .aliases = "max_tokens", FIELD(inference.max_length)),
    I("min_out_tokens", "1", IN_FORCE, "Fewest tokens there must be room for.", MIN(1),
      .aliases = "min_tokens", FIELD(inference.min_length)),
    B("transposed_mode", "false", NO_EFFECT, "Weights are stored transposed.", BY_MODEL),
    I("mp_size", "1", IN_FORCE, "Deprecated: tensor_parallel.tp_size.", MIN(1)),
    BY_PROGRAM("mpu", NULL),
    I("ep_size", "1", IN_FORCE, "Deprecated: moe.ep_size.", MIN(1)),
    BY_PROGRAM("ep_group", "expert_group"),
    BY_PROGRAM("ep_mp_group", "expert_mp_group"),
    INTS("moe_experts", "[1]", IN_FORCE, "Deprecated: moe.moe_experts.", MIN(1)),
    E("moe_type", "\"standard\"", NOT_BUILT, "Deprecated: moe.type.",
      .choices = "standard|residual", RESIDUAL),
};
const dsi_section dsi_section_inference = {
    .path = "inference",
    .title = "Inference: the file of init_inference",
    .doc =
        "For `ds_generate`, `ds_serve` and `ds_plan serve` as `--deepspeed_config`, for programs "
        "`ds_serve_configure`; checked by `ds_config check --kind inference`.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(rows),
};

/* ---- version 2 ------------------------------------------------------------------------------- */

static const dsi_option v2_tp_rows[] = {
    I("tp_size", "1", IN_FORCE, TP_SIZE, MIN(1)),
};
static const dsi_section v2_tp = {
    .path = "inference_v2.tensor_parallel",
    .doc = "Size of the group.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(v2_tp_rows),
};
static const dsi_option memory_rows[] = {
    E("mode", "\"reserve\"", IN_FORCE,
      "Whether size is what stays free beside keys and values of max_tracked_sequences texts at "
      "most, or what they take.",
      .choices = "reserve|allocate", FIELD(inference.allocates)),
    I("size", "1000000000", IN_FORCE,
      "Bytes (reserve) or blocks (allocate), of 64 positions, or 128 where heads have up to 64 "
      "values.",
      MIN(1), FIELD(inference.kv_size)),
};
static const dsi_section memory = {
    .path = "inference_v2.state_manager.memory_config",
    .doc = "Memory of the cache.",
    .flags = DSI_SECTION_LAX,
    DSI_SECTION_ROWS(memory_rows),
};
static const dsi_option manager_rows[] = {
    I("max_tracked_sequences", "2048", IN_FORCE, "Most sequences of ds_serve_put at a time.",
      MIN(1), FIELD(inference.max_tracked)),
    I("max_ragged_batch_size", "768", IN_FORCE, "Most tokens of a step.", MIN(1), MAX(65536),
      FIELD(inference.max_batch_tokens)),
    I("max_ragged_sequence_count", "512", IN_FORCE, "Most sequences of a step.", MIN(1), MAX(4096),
      FIELD(inference.max_sequences)),
    I("max_context", "8192", IN_FORCE, "Most tokens of a sequence; at most the model's.", MIN(1),
      FIELD(inference.max_length)),
    S("memory_config", NULL, IN_FORCE, "Memory of the cache.", .section = &memory),
    B("offload", "false", IN_FORCE,
      "Caches are in host memory: on a processor they always are; a device refuses it.",
      FIELD(inference.offload_kv)),
};
static const dsi_section manager = {
    .path = "inference_v2.state_manager",
    .doc = "Sequences and their cache.",
    .flags = DSI_SECTION_LAX,
    DSI_SECTION_ROWS(manager_rows),
};
static const dsi_option quantization_rows[] = {
    E("quantization_mode", "null", IN_FORCE,
      "Weights in 6 bits: blocks of Q6_K, whose scales are finer than one a row.", WITH(NULLABLE),
      .choices = "wf6af16"),
};
static const dsi_section quantization = {
    .path = "inference_v2.quantization",
    .doc = "Quantization.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quantization_rows),
};
static const dsi_option v2_rows[] = {
    S("tensor_parallel", NULL, IN_FORCE, "Size of the group.", .section = &v2_tp, .aliases = "tp"),
    S("state_manager", NULL, IN_FORCE, "Sequences and their cache.", .section = &manager,
      .aliases = "manager"),
    S("quantization", NULL, IN_FORCE, "Quantization.", .section = &quantization),
};
const dsi_section dsi_section_inference_v2 = {
    .path = "inference_v2",
    .title = "Inference, version 2: the ragged engine",
    .doc = "As those of init_inference; checked by `ds_config check --kind inference_v2`.",
    .flags = DSI_SECTION_LAX,
    DSI_SECTION_ROWS(v2_rows),
};
