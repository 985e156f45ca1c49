/* SPDX-License-Identifier: Apache-2.0 */
/* compression_training and the other forms of quantization. */
#include "config/option_rows.h"

#define C          "compression_training."
#define NOT_YET(x) NOTE(x " is not built; set it to false")
#define OFFSET(d)  I("schedule_offset", d, PART, "Step from which it is applied.", MIN(0))

/* shared_parameters and different_groups of one technique. */
#define TECHNIQUE(name, text)                                                                      \
    static const dsi_section name##_shared = {.path = C #name ".shared_parameters",                \
                                              .doc = "For all groups.",                            \
                                              .flags = DSI_SECTION_FEATURE,                        \
                                              DSI_SECTION_ROWS(name##_shared_rows)};               \
    static const dsi_section name##_params = {.path = C #name ".different_groups.*.params",        \
                                              .doc = "For one group.",                             \
                                              .flags = DSI_SECTION_FEATURE,                        \
                                              DSI_SECTION_ROWS(name##_params_rows)};               \
    static const dsi_option name##_group_rows[] = {                                                \
        S("params", NULL, PART, "Parameters of the group.", .section = &name##_params),            \
        TEXTS("modules", NULL, PART, "Regular expressions of module names.", WITH(ONE_TEXT)),      \
        LIST("related_modules", "null", PART, "Modules that shrink along.", WITH(NULLABLE)),       \
    };                                                                                             \
    static const dsi_section name##_group = {.path = C #name ".different_groups.*",                \
                                             .doc = "One group of modules.",                       \
                                             .flags = DSI_SECTION_FEATURE,                         \
                                             DSI_SECTION_ROWS(name##_group_rows)};                 \
    static const dsi_option name##_rows[] = {                                                      \
        S("shared_parameters", NULL, PART, "For all groups.", .section = &name##_shared),          \
        SMAP("different_groups", NULL, PART, "Groups by name.", .section = &name##_group),         \
    };                                                                                             \
    static const dsi_section name = {.path = C #name,                                              \
                                     .doc = text,                                                  \
                                     .flags = DSI_SECTION_FEATURE,                                 \
                                     DSI_SECTION_ROWS(name##_rows)};

static const dsi_option mixed_rows[] = {
    B("enabled", "false", PART, "Mix fp16 and quantized weights."),
    R("quantize_change_ratio", "0.001", PART, "How fast the mix changes.", MIN(0)),
};
static const dsi_section mixed = {
    .path = C "weight_quantization.shared_parameters.fp16_mixed_quantize",
    .doc = "Mixed weights.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(mixed_rows),
};
static const dsi_option weight_quantization_shared_rows[] = {
    B("enabled", "false", IN_FORCE, "Quantize weights."),
    B("quantizer_kernel", "false", NO_EFFECT, "Use CUDA kernels.",
      NOTE("the kernels of the accelerator are used")),
    OFFSET("0"),
    I("quantize_groups", "1", PART, "Groups with a scale each.", MIN(1)),
    B("quantize_verbose", "false", PART, "Print it."),
    E("quantization_type", "\"symmetric\"", PART, "Range.", .choices = "symmetric|asymmetric"),
    B("quantize_weight_in_forward", "false", PART, "Quantize in the forward pass."),
    E("rounding", "\"nearest\"", PART, "Rounding.", .choices = "nearest|stochastic"),
    S("fp16_mixed_quantize", NULL, PART, "Mixed weights.", .section = &mixed),
};
static const dsi_option weight_quantization_params_rows[] = {
    I("start_bits", NULL, PART, "Bits at the start.", MIN(1), MAX(16)),
    I("target_bits", NULL, PART, "Bits at the end.", MIN(1), MAX(16)),
    I("quantization_period", "1", PART, "Steps between reductions.", MIN(0)),
};
TECHNIQUE(weight_quantization, "Quantized weights.")

static const dsi_option activation_quantization_shared_rows[] = {
    B("enabled", "false", IN_FORCE, "Quantize the inputs of layers."),
    E("quantization_type", "\"symmetric\"", PART, "Range.", .choices = "symmetric|asymmetric"),
    E("range_calibration", "\"dynamic\"", PART, "How the range is found.",
      .choices = "dynamic|static"),
    OFFSET("1000"),
};
static const dsi_option activation_quantization_params_rows[] = {
    I("bits", NULL, PART, "Bits.", MIN(1)),
};
TECHNIQUE(activation_quantization, "Quantized activations.")

#define DENSE_RATIO R("dense_ratio", NULL, PART, "Share that is kept.", MIN(0), MAX(1))
static const dsi_option sparse_pruning_shared_rows[] = {
    B("enabled", "false", IN_FORCE, "Prune single weights."),
    E("method", "\"l1\"", PART, "How weights are chosen.", .choices = "l1|topk|snip_momentum"),
    OFFSET("1000"),
    I("schedule_offset_end", NULL, PART, "Step at which it is complete.", MIN(0)),
    I("schedule_offset_stride", "1", PART, "Steps between rounds.", MIN(1)),
    T("block_pattern", "\"4x1\"", PART, "Shape that is pruned together."),
    R("dense_ratio", "0.1", PART, "Share that is kept.", MIN(0), MAX(1)),
    TEXTS("excluded_modules", "[]", PART, "Modules left alone."),
};
static const dsi_option sparse_pruning_params_rows[] = {DENSE_RATIO};
TECHNIQUE(sparse_pruning, "Pruned weights.")

#define PRUNING_SHARED(default_method)                                                             \
    B("enabled", "false", IN_FORCE, "Prune."),                                                     \
        E("method", default_method, PART, "How it is chosen.", .choices = "l1|topk"),              \
        OFFSET("1000")
static const dsi_option row_pruning_shared_rows[] = {PRUNING_SHARED("\"l1\"")};
static const dsi_option row_pruning_params_rows[] = {DENSE_RATIO};
TECHNIQUE(row_pruning, "Pruned rows.")
static const dsi_option head_pruning_shared_rows[] = {
    PRUNING_SHARED("\"topk\""),
    I("num_heads", NULL, PART, "Heads of the model.", MIN(1)),
};
static const dsi_option head_pruning_params_rows[] = {DENSE_RATIO};
TECHNIQUE(head_pruning, "Pruned attention heads.")
static const dsi_option channel_pruning_shared_rows[] = {PRUNING_SHARED("\"l1\"")};
static const dsi_option channel_pruning_params_rows[] = {DENSE_RATIO};
TECHNIQUE(channel_pruning, "Pruned channels.")

static const dsi_option reduction_rows[] = {
    B("enabled", "false", NOT_BUILT, "Start a smaller model from layers of a larger one.",
      NOT_YET("layer reduction")),
    I("keep_number_layer", NULL, PART, "Layers kept.", MIN(1)),
    T("module_name_prefix", NULL, PART, "Name before the layer's number."),
    INTS("teacher_layer", NULL, PART, "Layers that are copied.", MIN(0)),
    TEXTS("other_module_name", NULL, PART, "Other modules that are copied."),
};
static const dsi_section reduction = {
    .path = C "layer_reduction",
    .doc = "Layer reduction.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(reduction_rows),
};

static const dsi_option compression_rows[] = {
    S("layer_reduction", NULL, PART, "Fewer layers.", .section = &reduction),
    S("weight_quantization", NULL, PART, "Quantized weights.", .section = &weight_quantization),
    S("activation_quantization", NULL, PART, "Quantized activations.",
      .section = &activation_quantization),
    S("sparse_pruning", NULL, PART, "Pruned weights.", .section = &sparse_pruning),
    S("row_pruning", NULL, PART, "Pruned rows.", .section = &row_pruning),
    S("head_pruning", NULL, PART, "Pruned heads.", .section = &head_pruning),
    S("channel_pruning", NULL, PART, "Pruned channels.", .section = &channel_pruning),
};
const dsi_section dsi_section_compression = {
    .path = "compression_training",
    .doc = "Quantization and pruning while training.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(compression_rows),
};

#define POST_NOTE NOTE("quantization after training is not built; remove the groups")
static const dsi_option weight_rows[] = {
    B("enabled", "true", PART, "Switch; the groups below do the work."),
    I("num_bits", "8", PART, "Bits.", MIN(1)),
    E("q_type", "\"symmetric\"", PART, "Range.", .choices = "symmetric|asymmetric"),
    I("q_groups", "1", PART, "Groups with a scale each.", MIN(1)),
    OBJECT("quantized_initialization", "{}", NOT_BUILT, "Quantize while loading.", POST_NOTE),
    OBJECT("post_init_quant", "{}", NOT_BUILT, "Quantize after loading, by module name.",
           POST_NOTE),
};
const dsi_section dsi_section_weight_quantization = {
    .path = "weight_quantization",
    .doc = "Quantization of weights after training.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(weight_rows),
};

#define EIGEN_ROWS                                                                                 \
    B("enabled", "false", NOT_BUILT, "Compute eigenvalues.",                                       \
      NOTE("DeepSpeed refuses it as well; set it to false")),                                      \
        B("verbose", "false", PART, "Print them."),                                                \
        I("max_iter", "100", PART, "Most iterations.", MIN(1)),                                    \
        R("tol", "0.01", PART, "Change at which to stop.", MIN(0)),                                \
        R("stability", "1e-06", PART, "Added to norms.", MIN(0)),                                  \
        I("gas_boundary_resolution", "1", PART, "Steps between computations.", MIN(1)),            \
        T("layer_name", "\"bert.encoder.layer\"", PART, "Name before the layer's number."),        \
        I("layer_num", "0", PART, "Layers.", MIN(0))
static const dsi_option eigenvalue_rows[] = {EIGEN_ROWS};
const dsi_section dsi_section_eigenvalue = {
    .path = "eigenvalue",
    .doc = "Documented by DeepSpeed, and read by it nowhere at this place.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(eigenvalue_rows),
};
static const dsi_section inner_eigenvalue = {
    .path = "quantize_training.eigenvalue",
    .doc = "Eigenvalues of the Hessian.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(eigenvalue_rows),
};
static const dsi_option quantize_rows[] = {
    B("enabled", "false", NOT_BUILT, "Quantize while training.",
      NOT_YET("quantization while training")),
    S("eigenvalue", NULL, PART, "Eigenvalues of the Hessian.", .section = &inner_eigenvalue),
};
const dsi_section dsi_section_quantize_training = {
    .path = "quantize_training",
    .doc = "The older form of quantization while training; other keys are not read.",
    .flags = DSI_SECTION_OPEN | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(quantize_rows),
};
