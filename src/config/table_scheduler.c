/* SPDX-License-Identifier: Apache-2.0 */
/* `scheduler`: DeepSpeed's five schedules and the Trainer's, and the parameters of each. Formulas:
 * docs/internals/schedule.md. */
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

/* ---- the Trainer's: names of transformers, and of DeepSpeed for what both have ---- */

#define COUNT_UP                                                                                   \
    I("warmup_num_steps", "0", IN_FORCE, "Updates of the warm-up, a line from 0. 0: none.",        \
      MIN(0), WITH(TRAINER), .aliases = "num_warmup_steps", FIELD(scheduler.warmup_num_steps))
#define COUNT_ALL                                                                                  \
    I("total_num_steps", NULL, IN_FORCE, "Updates of the whole run.", MIN(1),                      \
      WITH(REQUIRED | TRAINER), .aliases = "num_training_steps", FIELD(scheduler.total_num_steps))
#define WAVES(d)                                                                                   \
    R("num_cycles", d, IN_FORCE, "Waves of the cosine; 0.5 falls once.", MIN(0), MAX(1e9),         \
      FIELD(scheduler.num_cycles))
#define LEAST                                                                                      \
    R("min_lr", "null", IN_FORCE, "Least learning rate; this, or min_lr_rate.", MIN(0),            \
      WITH(NULLABLE), FIELD(scheduler.min_lr)),                                                    \
        R("min_lr_rate", "null", IN_FORCE, "Least learning rate over the optimizer's lr.", MIN(0), \
          WITH(NULLABLE), FIELD(scheduler.min_lr_rate))
#define RAMP(k, d, text, field)                                                                    \
    E(k, d, IN_FORCE, text, .choices = "linear|cosine|1-sqrt", FIELD(field))

#define TRAINER_SECTION(name, of, text)                                                            \
    static const dsi_section name = {.path = "scheduler.params",                                   \
                                     .title = "scheduler.params of " of,                           \
                                     .doc = text,                                                  \
                                     .flags = DSI_SECTION_TRAINER,                                 \
                                     DSI_SECTION_ROWS(name##_rows)}

static const dsi_option linear_rows[] = {COUNT_ALL, COUNT_UP};
TRAINER_SECTION(linear, "linear", "A line up, then a line down to 0.");

static const dsi_option wave_rows[] = {COUNT_ALL, COUNT_UP, WAVES("0.5")};
TRAINER_SECTION(wave, "cosine", "A line up, then along a cosine to 0.");

static const dsi_option restarts_rows[] = {
    COUNT_ALL,
    COUNT_UP,
    R("num_cycles", "1", IN_FORCE, "Falls from the whole rate to 0.", MIN(0), MAX(1e9),
      FIELD(scheduler.num_cycles)),
};
TRAINER_SECTION(restarts, "cosine_with_restarts",
                "A line up, then along a cosine to 0, again and again.");

static const dsi_option least_rows[] = {COUNT_ALL, COUNT_UP, LEAST, WAVES("0.5")};
TRAINER_SECTION(least, "cosine_with_min_lr", "A line up, then along a cosine to the least rate.");

static const dsi_option warm_rows[] = {
    COUNT_ALL,
    COUNT_UP,
    LEAST,
    R("warmup_lr_rate", "null", IN_FORCE,
      "First learning rate over the optimizer's lr. null: 1 / warmup_num_steps.", MIN(0),
      WITH(NULLABLE), FIELD(scheduler.warmup_lr_rate)),
    WAVES("0.5"),
};
TRAINER_SECTION(warm, "cosine_warmup_with_min_lr",
                "As cosine_with_min_lr, with a warm-up that starts above 0.");

static const dsi_option polynomial_rows[] = {
    COUNT_ALL,
    COUNT_UP,
    R("lr_end", "1e-07", IN_FORCE, "Last learning rate, below the optimizer's lr.", MIN(0),
      FIELD(scheduler.lr_end)),
    R("power", "1", IN_FORCE, "Exponent of the part that is left of the run.", MIN(0), MAX(1e9),
      FIELD(scheduler.power)),
};
TRAINER_SECTION(polynomial, "polynomial", "A line up, then a power of the part that is left.");

static const dsi_option rising_rows[] = {COUNT_UP};
TRAINER_SECTION(rising, "constant_with_warmup", "A line up, then constant.");

static const dsi_section constant = {
    .path = "scheduler.params",
    .title = "scheduler.params of constant",
    .doc = "The optimizer's learning rate; no parameters.",
    .flags = DSI_SECTION_TRAINER,
};

static const dsi_option root_rows[] = {
    COUNT_UP,
    I("timescale", "null", IN_FORCE,
      "Updates in which the rate falls by a factor of sqrt(2). null: the warm-up, or 10000.",
      MIN(1), WITH(NULLABLE), FIELD(scheduler.timescale)),
};
TRAINER_SECTION(root, "inverse_sqrt", "A line up, then one over a square root.");

static const dsi_option stable_rows[] = {
    COUNT_ALL,
    COUNT_UP,
    I("num_decay_steps", NULL, IN_FORCE, "Updates of the fall.", MIN(0), WITH(REQUIRED),
      FIELD(scheduler.num_decay_steps)),
    I("num_stable_steps", "null", IN_FORCE,
      "Updates at the whole rate. null: what warm-up and fall leave of the run.", MIN(0),
      WITH(NULLABLE), FIELD(scheduler.num_stable_steps)),
    RAMP("warmup_type", "\"linear\"", "Shape of the warm-up.", scheduler.warmup_ramp),
    RAMP("decay_type", "\"cosine\"", "Shape of the fall.", scheduler.decay_ramp),
    R("min_lr_ratio", "0", IN_FORCE, "Least learning rate over the optimizer's lr, at both ends.",
      MIN(0), FIELD(scheduler.min_lr_ratio)),
    WAVES("0.5"),
};
TRAINER_SECTION(stable, "warmup_stable_decay", "Up, constant, and down at the end.");

/* In the order of ds_schedule_kind, from WARMUP. */
const dsi_variant dsi_scheduler_variants[] = {
    {"WarmupLR", &warmup},
    {"WarmupDecayLR", &decay},
    {"WarmupCosineLR", &cosine},
    {"OneCycle", &cycle},
    {"LRRangeTest", &range},
    {"linear", &linear},
    {"cosine", &wave},
    {"cosine_with_restarts", &restarts},
    {"cosine_with_min_lr", &least},
    {"cosine_warmup_with_min_lr", &warm},
    {"polynomial", &polynomial},
    {"constant", &constant},
    {"constant_with_warmup", &rising},
    {"inverse_sqrt", &root},
    {"warmup_stable_decay", &stable},
    {"LambdaLR|MultiplicativeLR|StepLR|MultiStepLR|ConstantLR|LinearLR|ExponentialLR|PolynomialLR|"
     "CosineAnnealingLR|CosineAnnealingWarmRestarts|ChainedScheduler|SequentialLR|"
     "ReduceLROnPlateau|CyclicLR|OneCycleLR|reduce_lr_on_plateau|greedy",
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
      "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest; or one of Hugging Face's "
      "Trainer, by the name in --lr_scheduler_type, which DeepSpeed does not know. Known and not "
      "built: PyTorch's schedules, reduce_lr_on_plateau, greedy.",
      WITH(NULLABLE)),
    VARIANT("params", NULL, IN_FORCE, "Parameters of the type; see the tables of each.",
            WITH(NULLABLE), .choose = choose),
};
const dsi_section dsi_section_scheduler = {
    .path = "scheduler",
    .doc =
        "Without a type the learning rate stays what the optimizer's lr says; ds_train then takes "
        "--lr_scheduler_type, a line to 0 without it.",
    DSI_SECTION_ROWS(rows),
};
