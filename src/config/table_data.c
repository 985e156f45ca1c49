/* SPDX-License-Identifier: Apache-2.0 */
/* Data efficiency, curricula, layer drop, and compression. */
#include "config/option_rows.h"

static const dsi_option layer_drop_rows[] = {
    B("enabled", "false", NOT_BUILT, "Skip layers at random.", WITH(REQUIRED),
      NOTE("progressive layer drop is not built; set it to false")),
    R("theta", "1.0", PART, "Share of layers kept in the end.", MIN(0), MAX(1)),
    R("gamma", "0.001", PART, "How fast the share falls.", MIN(0)),
};
const dsi_section dsi_section_layer_drop = {
    .path = "progressive_layer_drop",
    .doc = "Progressive layer drop.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(layer_drop_rows),
};

static const dsi_option schedule_rows[] = {
    I("total_curriculum_step", NULL, PART, "Steps to the greatest difficulty.", MIN(1)),
    I("difficulty_step", NULL, PART, "The difficulty is a multiple of it.", MIN(1)),
    R("root_degree", NULL, PART, "Degree of fixed_root.", MIN(0), WITH(ABOVE)),
    LIST("difficulty", NULL, PART, "Difficulties of fixed_discrete."),
    LIST("max_step", NULL, PART, "Last step of each but the last."),
};
#define DIFFICULTY_ROWS(schedule)                                                                  \
    I("min_difficulty", NULL, PART, "Difficulty at the start.", MIN(0)),                           \
        I("max_difficulty", NULL, PART, "Difficulty at the end.", MIN(0)),                         \
        E("schedule_type", NULL, PART, "How the difficulty grows.",                                \
          .choices = "fixed_linear|fixed_root|fixed_discrete|custom"),                             \
        S("schedule_config", NULL, PART, "Numbers of the schedule.", .section = (schedule))

static const dsi_section legacy_schedule = {
    .path = "curriculum_learning.schedule_config",
    .doc = "Numbers of the schedule.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(schedule_rows),
};
static const dsi_option curriculum_rows[] = {
    B("enabled", "false", NOT_BUILT, "Let the sequence length grow.", WITH(REQUIRED),
      NOTE("curriculum learning is not built yet; set it to false")),
    T("curriculum_type", "\"seqlen\"", PART, "What grows."),
    DIFFICULTY_ROWS(&legacy_schedule),
};
const dsi_section dsi_section_curriculum = {
    .path = "curriculum_learning",
    .doc = "The older form of curriculum learning.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(curriculum_rows),
};

#define SAMPLING "data_efficiency.data_sampling"
#define ROUTING  "data_efficiency.data_routing"
static const dsi_section metric_schedule = {
    .path = SAMPLING ".curriculum_learning.curriculum_metrics.*.schedule_config",
    .doc = "Numbers of the schedule.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(schedule_rows),
};
static const dsi_option metric_rows[] = {
    T("index_to_sample_path", NULL, PART, "File of samples by difficulty."),
    T("index_to_metric_path", NULL, PART, "File of difficulties."),
    E("difficulty_type", NULL, PART, "Value, or rank among all.", .choices = "value|percentile"),
    E("clustering_type", NULL, PART, "How samples are grouped.",
      .choices = "schedule_based|single_cluster"),
    DIFFICULTY_ROWS(&metric_schedule),
};
static const dsi_section metric = {
    .path = SAMPLING ".curriculum_learning.curriculum_metrics.*",
    .doc = "One metric of difficulty.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(metric_rows),
};
static const dsi_option data_curriculum_rows[] = {
    B("enabled", "false", PART, "Choose samples by difficulty."),
    T("data_cluster_path", NULL, PART, "Folder of groups of samples."),
    SMAP("curriculum_metrics", NULL, PART, "Metrics by name.", .section = &metric),
};
static const dsi_section data_curriculum = {
    .path = SAMPLING ".curriculum_learning",
    .doc = "Curriculum learning by sampling.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(data_curriculum_rows),
};
static const dsi_option dynamic_rows[] = {
    B("enabled", "false", PART, "Batches of as many tokens, not samples."),
    T("metrics_path", NULL, PART, "File of lengths."),
    E("lr_scaling_method", "\"linear\"", PART, "Learning rate by batch size.",
      .choices = "linear|sqrt|none"),
    I("min_batch_size", "1", PART, "Fewest samples.", MIN(1)),
    I("max_batch_size", "null", PART, "Most samples.", MIN(1), WITH(NULLABLE)),
    E("sequence_picking_order", "\"dataloader\"", PART, "Order of samples.",
      .choices = "random|seqlen|dataloader"),
    I("max_tokens", NULL, PART, "Tokens of a batch.", MIN(1)),
    B("verbose", "false", PART, "Print batches."),
};
static const dsi_section dynamic = {
    .path = SAMPLING ".dynamic_batching",
    .doc = "Batches of as many tokens.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(dynamic_rows),
};
static const dsi_option sampling_rows[] = {
    B("enabled", "false", PART, "Switch of this section."),
    I("num_epochs", "1000", NO_EFFECT, "Passes over the data.", MIN(1),
      NOTE("it ends curriculum sampling, which is not built; give --steps or --epochs")),
    I("num_workers", "0", NO_EFFECT, "Processes that read.", MIN(0),
      NOTE("batches are cut from mapped memory by the training thread; no worker is needed")),
    B("pin_memory", "false", NO_EFFECT, "Page-locked batches.",
      NOTE("batches are not copied to a device")),
    S("curriculum_learning", NULL, PART, "Curriculum.", .section = &data_curriculum),
    S("dynamic_batching", NULL, PART, "Batches of as many tokens.", .section = &dynamic),
};
static const dsi_section sampling = {
    .path = SAMPLING,
    .doc = "How samples are chosen.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(sampling_rows),
};

static const dsi_option ltd_steps_rows[] = {
    I("require_steps", NULL, PART, "Steps to the greatest length.", MIN(1)),
    I("seq_per_step", NULL, PART, "The length is a multiple of it.", MIN(1)),
};
static const dsi_section ltd_steps = {
    .path = ROUTING ".random_ltd.random_ltd_schedule.schedule_config",
    .doc = "Numbers of the schedule.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(ltd_steps_rows),
};
static const dsi_option ltd_schedule_rows[] = {
    I("min_value", NULL, PART, "Tokens kept at the start.", MIN(0)),
    I("max_value", NULL, PART, "Tokens kept at the end.", MIN(0)),
    E("schedule_type", "\"fixed_linear\"", PART, "How it grows.", .choices = "fixed_linear"),
    S("schedule_config", NULL, PART, "Numbers of the schedule.", .section = &ltd_steps),
};
static const dsi_section ltd_schedule = {
    .path = ROUTING ".random_ltd.random_ltd_schedule",
    .doc = "How many tokens layers keep.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(ltd_schedule_rows),
};
static const dsi_option ltd_lr_rows[] = {
    B("enabled", "false", PART, "Refused by DeepSpeed when true."),
    I("total_layer_tokens", NULL, PART, "Reserved.", MIN(0)),
    T("warmup_type", NULL, PART, "Reserved."),
    I("warmup_layer_tokens", NULL, PART, "Reserved.", MIN(0)),
};
static const dsi_section ltd_lr = {
    .path = ROUTING ".random_ltd.layer_token_lr_schedule",
    .doc = "Reserved by DeepSpeed.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(ltd_lr_rows),
};
static const dsi_option ltd_rows[] = {
    B("enabled", "false", PART, "Let middle layers skip tokens at random."),
    I("total_layer_num", NULL, PART, "Layers of the model.", MIN(1)),
    I("random_ltd_layer_num", NULL, PART, "Layers that skip.", MIN(0)),
    INTS("random_ltd_layer_id", NULL, PART, "Which ones.", MIN(0)),
    T("model_mask_name", NULL, PART, "Argument with the mask.", WITH(NULLABLE)),
    E("model_type", NULL, PART, "Kind of model.", .choices = "encoder|decoder"),
    E("hidden_state_order", NULL, PART, "Order of dimensions.",
      .choices = "batch_seq_dim|seq_batch_dim"),
    S("random_ltd_schedule", NULL, PART, "How many tokens are kept.", .section = &ltd_schedule),
    S("layer_token_lr_schedule", NULL, PART, "Reserved.", .section = &ltd_lr),
};
static const dsi_section ltd = {
    .path = ROUTING ".random_ltd",
    .doc = "Random layer-token drop.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(ltd_rows),
};
static const dsi_option routing_rows[] = {
    B("enabled", "false", PART, "Switch of this section."),
    S("random_ltd", NULL, PART, "Random layer-token drop.", .section = &ltd),
};
static const dsi_section routing = {
    .path = ROUTING,
    .doc = "Which tokens pass which layers.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(routing_rows),
};
static const dsi_option efficiency_rows[] = {
    B("enabled", "false", PART,
      "Switch of everything in this section, as documented. (DeepSpeed reads only the inner "
      "ones.)"),
    I("seed", "1234", NO_EFFECT, "Seed of sampling.", MIN(0), FIELD(data_seed),
      NOTE("it seeds curriculum sampling, which is not built; --seed orders the samples")),
    S("data_sampling", NULL, PART, "How samples are chosen.", .section = &sampling),
    S("data_routing", NULL, PART, "Which tokens pass which layers.", .section = &routing),
};
const dsi_section dsi_section_data_efficiency = {
    .path = "data_efficiency",
    .doc = "Curriculum sampling and random layer-token drop.",
    DSI_SECTION_ROWS(efficiency_rows),
};
