/* `scheduler`: the five schedules and the parameters of each. Formulas: docs/internals/schedule.md.
 */
#include "config/option_rows.h"

#define LAST_ITERATION                                                                             \
    I("last_batch_iteration", "-1", IN_FORCE, "Last update that was made: go on after it.",        \
      MIN(-1), FIELD(scheduler.last_batch_iteration))
#define WARMUP_STEPS                                                                               \
    I("warmup_num_steps", "1000", IN_FORCE, "Updates of the warm-up; 1 acts as 2.", MIN(1),        \
      WITH(TRAINER), FIELD(scheduler.warmup_num_steps))
#define WARMUP_TYPE                                                                                \
    E("warmup_type", "\"log\"", IN_FORCE, "Shape of the warm-up.", .choices = "log|linear",        \
      FIELD(scheduler.warmup_type))
#define WARMUP_MIN                                                                                 \
    R("warmup_min_lr", "0", IN_FORCE, "Learning rate of the first update.", MIN(0),                \
      WITH(TRAINER | GROUPS), FIELD(scheduler.warmup_min_lr))
#define WARMUP_MAX(d)                                                                              \
    R("warmup_max_lr", d, IN_FORCE, "Learning rate after the warm-up. null: the optimizer's lr.",  \
      MIN(0), WITH(NULLABLE | TRAINER | GROUPS), FIELD(scheduler.warmup_max_lr))
#define TOTAL_STEPS                                                                                \
    I("total_num_steps", NULL, IN_FORCE, "Updates of the whole run.", MIN(1),                      \
      WITH(REQUIRED | TRAINER), FIELD(scheduler.total_num_steps))

static const dsi_option warmup_rows[] = {
    WARMUP_MIN, WARMUP_MAX("null"), WARMUP_STEPS, WARMUP_TYPE, LAST_ITERATION,
};
static const dsi_section warmup = {
    .path = "scheduler.params",
    .title = "scheduler.params of WarmupLR",
    .doc = "Rises from the least to the largest learning rate, then stays.",
    DSI_SECTION_ROWS(warmup_rows),
};

static const dsi_option decay_rows[] = {
    TOTAL_STEPS, WARMUP_MIN, WARMUP_MAX("0.001"), WARMUP_STEPS, WARMUP_TYPE, LAST_ITERATION,
};
static const dsi_section decay = {
    .path = "scheduler.params",
    .title = "scheduler.params of WarmupDecayLR",
    .doc = "Rises, then falls along a line to warmup_min_lr at total_num_steps.",
    DSI_SECTION_ROWS(decay_rows),
};

static const dsi_option cosine_rows[] = {
    TOTAL_STEPS,
    R("warmup_min_ratio", "0", IN_FORCE, "First learning rate over the optimizer's lr.", MIN(0),
      FIELD(scheduler.warmup_min_ratio)),
    WARMUP_STEPS,
    R("cos_min_ratio", "0.0001", IN_FORCE, "Last learning rate over the optimizer's lr.", MIN(0),
      FIELD(scheduler.cos_min_ratio)),
    WARMUP_TYPE,
    LAST_ITERATION,
};
static const dsi_section cosine = {
    .path = "scheduler.params",
    .title = "scheduler.params of WarmupCosineLR",
    .doc = "Rises to the optimizer's learning rate, then falls along a cosine.",
    DSI_SECTION_ROWS(cosine_rows),
};

static const dsi_option cycle_rows[] = {
    R("cycle_min_lr", NULL, IN_FORCE, "Learning rate at both ends of the cycle.", MIN(0),
      WITH(REQUIRED | GROUPS), FIELD(scheduler.cycle_min_lr)),
    R("cycle_max_lr", NULL, IN_FORCE, "Learning rate at the top of the cycle.", MIN(0),
      WITH(REQUIRED | GROUPS), FIELD(scheduler.cycle_max_lr)),
    R("decay_lr_rate", "0", IN_FORCE, "How fast the rate decays after the cycle.",
      FIELD(scheduler.decay_lr_rate)),
    R("cycle_first_step_size", "2000", IN_FORCE, "Updates of the rise.", MIN(0), WITH(ABOVE),
      FIELD(scheduler.cycle_first_step_size)),
    R("cycle_second_step_size", "null", IN_FORCE, "Updates of the fall. null: as many as the rise.",
      MIN(0), WITH(NULLABLE), FIELD(scheduler.cycle_second_step_size)),
    I("cycle_first_stair_count", "0", IN_FORCE, "Stairs of the rise. 0: a line.", MIN(0),
      FIELD(scheduler.cycle_first_stair_count)),
    I("cycle_second_stair_count", "null", IN_FORCE,
      "Stairs of the fall. null: as many as the rise.", MIN(0), WITH(NULLABLE),
      FIELD(scheduler.cycle_second_stair_count)),
    R("decay_step_size", "0", IN_FORCE, "Updates of one unit of decay. 0: no decay.", MIN(0),
      FIELD(scheduler.decay_step_size)),
    B("cycle_momentum", "true", IN_FORCE,
      "Move the first beta against the learning rate. The second beta stays as configured "
      "(DeepSpeed sets it to 0.99). Without effect on an optimizer that has no betas.",
      FIELD(scheduler.cycle_momentum)),
    R("cycle_min_mom", "0.8", IN_FORCE, "First beta at the top of the cycle.", MIN(0), MAX(1),
      WITH(GROUPS), FIELD(scheduler.cycle_min_mom)),
    R("cycle_max_mom", "0.9", IN_FORCE, "First beta at both ends of the cycle.", MIN(0), MAX(1),
      WITH(GROUPS), FIELD(scheduler.cycle_max_mom)),
    R("decay_mom_rate", "0", IN_FORCE, "How fast the first beta grows after the cycle.",
      FIELD(scheduler.decay_mom_rate)),
    LAST_ITERATION,
};
static const dsi_section cycle = {
    .path = "scheduler.params",
    .title = "scheduler.params of OneCycle",
    .doc = "One rise and fall, then decay; the momentum runs the other way.",
    DSI_SECTION_ROWS(cycle_rows),
};

static const dsi_option range_rows[] = {
    R("lr_range_test_min_lr", "0.001", IN_FORCE, "Learning rate of the first update.", MIN(0),
      WITH(GROUPS), FIELD(scheduler.lr_range_test_min_lr)),
    I("lr_range_test_step_size", "2000", IN_FORCE, "Updates in which the rate grows by one step.",
      MIN(1), FIELD(scheduler.lr_range_test_step_size)),
    R("lr_range_test_step_rate", "1.0", IN_FORCE, "Growth of one step, over the least rate.",
      FIELD(scheduler.lr_range_test_step_rate)),
    B("lr_range_test_staircase", "false", IN_FORCE, "Grow in jumps instead of along a line.",
      FIELD(scheduler.lr_range_test_staircase)),
    LAST_ITERATION,
};
static const dsi_section range = {
    .path = "scheduler.params",
    .title = "scheduler.params of LRRangeTest",
    .doc = "Grows without end, to find the largest rate that trains.",
    DSI_SECTION_ROWS(range_rows),
};

/* In the order of ds_schedule_kind, from WARMUP. */
const dsi_variant dsi_scheduler_variants[] = {
    {"WarmupLR", &warmup},
    {"WarmupDecayLR", &decay},
    {"WarmupCosineLR", &cosine},
    {"OneCycle", &cycle},
    {"LRRangeTest", &range},
    {"LambdaLR|MultiplicativeLR|StepLR|MultiStepLR|ConstantLR|LinearLR|ExponentialLR|PolynomialLR|"
     "CosineAnnealingLR|CosineAnnealingWarmRestarts|ChainedScheduler|SequentialLR|"
     "ReduceLROnPlateau|CyclicLR|OneCycleLR",
     NULL},
    {NULL, NULL},
};

const dsi_variant *dsi_scheduler_variant(const char *type)
{
    for (const dsi_variant *v = dsi_scheduler_variants; v->types != NULL; ++v) {
        if (dsi_choice_index(v->types, type, false) >= 0) {
            return v;
        }
    }
    return NULL;
}

static const dsi_section *choose(const dsi_node *parent)
{
    const dsi_node *type = dsi_node_find(parent, "type");
    if (type == NULL || type->kind != DSI_NODE_TEXT) {
        return NULL;
    }
    const dsi_variant *variant = dsi_scheduler_variant(type->as.text);
    return variant != NULL ? variant->section : NULL;
}

static const dsi_option rows[] = {
    T("type", "null", IN_FORCE,
      "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest. Known and not built: "
      "PyTorch's schedules.",
      WITH(NULLABLE)),
    VARIANT("params", NULL, IN_FORCE, "Parameters of the type; see the tables of each.",
            WITH(NULLABLE), .choose = choose),
};
const dsi_section dsi_section_scheduler = {
    .path = "scheduler",
    .doc = "Without a type the learning rate stays what the optimizer's lr says.",
    DSI_SECTION_ROWS(rows),
};
