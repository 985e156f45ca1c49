/* SPDX-License-Identifier: Apache-2.0 */
/* `optimizer`: its types and the parameters of each. */
#include "config/option_rows.h"

#include <ctype.h>
#include <string.h>

#define LR(d)                                                                                      \
    R("lr", d, IN_FORCE, "Learning rate; a schedule may set it anew for each step.", MIN(0),       \
      WITH(TRAINER), FIELD(optimizer.lr))
#define BETAS(d)                                                                                   \
    REALS("betas", d, IN_FORCE, "Decay of the running averages of gradient and squared gradient.", \
          MIN(0), MAX(1), WITH(TRAINER))
#define EPS(d)                                                                                     \
    R("eps", d, IN_FORCE, "Added to the denominator.", MIN(0), WITH(TRAINER), FIELD(optimizer.eps))
#define WEIGHT_DECAY                                                                               \
    R("weight_decay", "0", IN_FORCE,                                                               \
      "Weight decay; norms and biases are exempt (ds_train --decay_all: they are not).", MIN(0),   \
      WITH(TRAINER), FIELD(optimizer.weight_decay))
#define BIAS_CORRECTION                                                                            \
    B("bias_correction", "true", IN_FORCE, "Correct the averages for their start at zero.",        \
      FIELD(optimizer.bias_correction))
#define AMSGRAD                                                                                    \
    B("amsgrad", "false", NOT_BUILT, "The AMSGrad variant.",                                       \
      NOTE("AMSGrad is not built (DeepSpeed's own optimizers refuse it too); set it to false"))
#define FP32_STATES                                                                                \
    B("fp32_optimizer_states", "true", NOT_BUILT, "Keep the running averages in fp32.",            \
      NOTE("running averages are kept in fp32; set it to true"))
#define MAX_GRAD_NORM                                                                              \
    ANY("max_grad_norm", "null", NOT_BUILT, "Refused by DeepSpeed as well.",                       \
        NOTE("gradients are not clipped by the optimizer; remove it and set the top-level "        \
             "gradient_clipping"))
#define TORCH_ROWS                                                                                 \
    ANY("foreach", "null", NO_EFFECT, "PyTorch's choice of implementation.",                       \
        NOTE("it picks one of PyTorch's implementations")),                                        \
        ANY("fused", "null", NO_EFFECT, "PyTorch's choice of implementation.",                     \
            NOTE("it picks one of PyTorch's implementations")),                                    \
        B("capturable", "false", NO_EFFECT, "Allow capture in a CUDA graph.",                      \
          NOTE("there are no CUDA graphs on the CPU")),                                            \
        B("differentiable", "false", NOT_BUILT, "Differentiate through the update.",               \
          NOTE("updates cannot be differentiated; set it to false")),                              \
        B("maximize", "false", NOT_BUILT, "Climb instead of descend.",                             \
          NOTE("maximizing is not built; set it to false and negate the loss"))
#define SET_GRAD_NONE                                                                              \
    B("set_grad_none", "true", NO_EFFECT, "Free gradients instead of zeroing them.",               \
      NOTE("the plan decides where gradients live"))

static const dsi_option adam_rows[] = {
    LR("0.001"),
    BETAS("[0.9, 0.999]"),
    EPS("1e-08"),
    WEIGHT_DECAY,
    BIAS_CORRECTION,
    B("adam_w_mode", "true", IN_FORCE,
      "Decoupled weight decay (AdamW). Type Adam decays like AdamW unless this is false; type "
      "AdamW "
      "always does."),
    B("torch_adam", "false", IN_FORCE,
      "Use PyTorch's defaults: the decoupled form then decays by 0.01 unless weight_decay is "
      "given. The arithmetic is the same."),
    AMSGRAD,
    FP32_STATES,
    SET_GRAD_NONE,
    MAX_GRAD_NORM,
    TORCH_ROWS,
};
static const dsi_section adam = {.path = "optimizer.params",
                                 .title = "optimizer.params of Adam "
                                          "and AdamW",
                                 .doc = "Adam with L2 or decoupled weight decay.",
                                 DSI_SECTION_ROWS(adam_rows)};

static const dsi_option sgd_rows[] = {
    LR("0.001"),
    WEIGHT_DECAY,
    R("momentum", "0", IN_FORCE, "Decay of the running sum of gradients. 0: none.", MIN(0),
      FIELD(optimizer.momentum)),
    R("dampening", "0", IN_FORCE, "Part of the gradient kept out of the running sum.", MIN(0),
      FIELD(optimizer.dampening)),
    B("nesterov", "false", IN_FORCE, "Nesterov's form; needs momentum and no dampening.",
      FIELD(optimizer.nesterov)),
    MAX_GRAD_NORM,
    TORCH_ROWS,
};
static const dsi_section sgd = {.path = "optimizer.params",
                                .title = "optimizer.params of SGD",
                                .doc = "PyTorch's SGD.",
                                DSI_SECTION_ROWS(sgd_rows)};

static const dsi_option lion_rows[] = {
    LR("0.001"), BETAS("[0.9, 0.999]"), WEIGHT_DECAY, FP32_STATES, SET_GRAD_NONE, MAX_GRAD_NORM,
};
static const dsi_section lion = {.path = "optimizer.params",
                                 .title = "optimizer.params of Lion",
                                 .doc = "Lion: the sign of an average.",
                                 DSI_SECTION_ROWS(lion_rows)};

static const dsi_option adagrad_rows[] = {
    LR("0.01"),
    WEIGHT_DECAY,
    EPS("1e-10"),
    R("lr_decay", "0", NOT_BUILT, "Learning rate falls as 1/(1 + step × this).", MIN(0),
      NOTE("the decay is not built; set it to 0 and use a scheduler")),
    R("initial_accumulator_value", "0", NOT_BUILT, "Where the sums of squares start.", MIN(0),
      NOTE("sums of squares start at 0; set it to 0")),
    AMSGRAD,
    FP32_STATES,
    MAX_GRAD_NORM,
    TORCH_ROWS,
};
static const dsi_section adagrad = {.path = "optimizer.params",
                                    .title = "optimizer.params of "
                                             "Adagrad",
                                    .doc = "Adagrad.",
                                    DSI_SECTION_ROWS(adagrad_rows)};

static const dsi_option lamb_rows[] = {
    LR("0.001"),
    BETAS("[0.9, 0.999]"),
    EPS("1e-08"),
    WEIGHT_DECAY,
    BIAS_CORRECTION,
    R("max_coeff", "10.0", IN_FORCE, "Largest trust ratio.", MIN(0), FIELD(optimizer.max_coeff)),
    R("min_coeff", "0.01", IN_FORCE, "Smallest trust ratio.", MIN(0), FIELD(optimizer.min_coeff)),
    B("eps_inside_sqrt", "false", NOT_BUILT, "Add eps under the square root.",
      NOTE("eps is added after the square root; set it to false")),
    AMSGRAD,
    MAX_GRAD_NORM,
};
static const dsi_section lamb = {.path = "optimizer.params",
                                 .title = "optimizer.params of Lamb",
                                 .doc = "LAMB: Adam with a trust ratio for each tensor.",
                                 DSI_SECTION_ROWS(lamb_rows)};

#define ONEBIT_WITHOUT_EFFECT                                                                      \
    B("bias_correction", "true", NO_EFFECT, "Correct the averages.",                               \
      NOTE("DeepSpeed's 1-bit optimizers do not correct averages for their start either")),        \
        B("eps_inside_sqrt", "false", NO_EFFECT, "Add eps under the square root.",                 \
          NOTE("DeepSpeed's 1-bit optimizers add eps after the square root either way")),          \
        B("cuda_aware", "false", NO_EFFECT, "MPI that reads device memory.",                       \
          NOTE("signs go the way that all collectives of the job go")),                            \
        E("comm_backend_name", "\"nccl\"", NO_EFFECT, "Library that sends the signs.",             \
          .choices = "nccl|mpi|hccl|compressed",                                                   \
          NOTE("signs go the way that all collectives of the job go"))

#define ONEBIT_FREEZE                                                                              \
    I("freeze_step", "100000", IN_FORCE,                                                           \
      "Updates with the mean gradient, at least one; then the second moment stays and ranks "      \
      "exchange the first one as signs.",                                                          \
      MIN(0), FIELD(optimizer.freeze_step))

static const dsi_option onebit_adam_rows[] = {
    LR("0.001"),   BETAS("[0.9, 0.999]"), EPS("1e-08"), WEIGHT_DECAY,
    ONEBIT_FREEZE, ONEBIT_WITHOUT_EFFECT, AMSGRAD,      MAX_GRAD_NORM,
};
static const dsi_section onebit_adam = {.path = "optimizer.params",
                                        .title = "optimizer.params of OneBitAdam",
                                        .doc = "1-bit Adam, on ZeRO stage 0.",
                                        DSI_SECTION_ROWS(onebit_adam_rows)};

static const dsi_option onebit_lamb_rows[] = {
    LR("0.001"),
    BETAS("[0.9, 0.999]"),
    EPS("1e-08"),
    WEIGHT_DECAY,
    ONEBIT_FREEZE,
    R("max_coeff", "10.0", IN_FORCE, "Largest trust ratio of the warm-up.", MIN(0),
      FIELD(optimizer.max_coeff)),
    R("min_coeff", "0.01", IN_FORCE, "Smallest trust ratio of the warm-up.", MIN(0),
      FIELD(optimizer.min_coeff)),
    R("coeff_beta", "0.9", IN_FORCE, "Decay of the running average of the warm-up's trust ratios.",
      MIN(0), MAX(1), FIELD(optimizer.coeff_beta)),
    R("factor_max", "4.0", IN_FORCE, "Largest factor of that average behind the warm-up.", MIN(0),
      FIELD(optimizer.factor_max)),
    R("factor_min", "0.5", IN_FORCE, "Smallest factor of it.", MIN(0), FIELD(optimizer.factor_min)),
    R("factor_threshold", "0.1", IN_FORCE, "Largest change of the factor in a step, relative.",
      MIN(0), FIELD(optimizer.factor_threshold)),
    ONEBIT_WITHOUT_EFFECT,
    AMSGRAD,
    MAX_GRAD_NORM,
};
static const dsi_section onebit_lamb = {.path = "optimizer.params",
                                        .title = "optimizer.params of OneBitLamb",
                                        .doc = "1-bit LAMB, on ZeRO stage 0.",
                                        DSI_SECTION_ROWS(onebit_lamb_rows)};

static const dsi_option zero_one_rows[] = {
    LR("0.001"),
    BETAS("[0.9, 0.999]"),
    EPS("1e-08"),
    WEIGHT_DECAY,
    I("var_freeze_step", "100000", IN_FORCE,
      "The step before the last at which the second moment may change; then ranks update by their "
      "own gradients and exchange what came of it.",
      MIN(0), FIELD(optimizer.var_freeze_step)),
    I("var_update_scaler", "16", IN_FORCE,
      "So many changes of the second moment, and the steps between two of them double. Steps in "
      "between exchange signs of gradients.",
      MIN(0), FIELD(optimizer.var_update_scaler)),
    I("local_step_scaler", "32678", IN_FORCE,
      "So many steps behind var_freeze_step, and those between two exchanges double.", MIN(0),
      FIELD(optimizer.local_step_scaler)),
    I("local_step_clipper", "16", IN_FORCE, "Most steps between two exchanges.", MIN(1),
      FIELD(optimizer.local_step_clipper)),
    ONEBIT_WITHOUT_EFFECT,
    AMSGRAD,
    MAX_GRAD_NORM,
};
static const dsi_section zero_one = {.path = "optimizer.params",
                                     .title = "optimizer.params of ZeroOneAdam",
                                     .doc = "0/1 Adam, on ZeRO stage 0.",
                                     DSI_SECTION_ROWS(zero_one_rows)};

static const dsi_option muon_rows[] = {
    R("lr", "0.02", IN_FORCE,
      "Learning rate, of matrices and of the rest; where it is left out the rest has 3e-4.", MIN(0),
      WITH(TRAINER), FIELD(optimizer.lr)),
    R("muon_lr", NULL, IN_FORCE, "Learning rate of matrices, over lr.", MIN(0)),
    R("adam_lr", NULL, IN_FORCE, "Learning rate of the rest, over lr.", MIN(0)),
    R("momentum", "0.95", IN_FORCE, "Momentum of matrices.", MIN(0), MAX(1),
      FIELD(optimizer.momentum)),
    WEIGHT_DECAY,
    BETAS("[0.9, 0.95]"),
    EPS("1e-10"),
    B("adam_w_mode", "true", IN_FORCE, "Decoupled weight decay (AdamW) of the rest."),
    E("ns_method", "\"gram\"", IN_FORCE,
      "Newton-Schulz iteration: gram in fp32, standard in bf16. Both have the standard form, which "
      "gives the same but for rounding.",
      .choices = "gram|standard"),
    B("per_head_muon", "false", NOT_BUILT, "Orthogonalize each head of attention by itself.",
      NOTE("heads are not told apart; set it to false")),
    B("torch_adam", "false", NO_EFFECT, "Use PyTorch's Adam for the rest.",
      NOTE("the arithmetic is the same")),
    FP32_STATES,
    MAX_GRAD_NORM,
};
static const dsi_section muon = {.path = "optimizer.params",
                                 .title = "optimizer.params of Muon",
                                 .doc = "Muon for matrices, AdamW for the rest: what is no matrix, "
                                        "and what has \"embed\" or \"lm_head\" in its name.",
                                 DSI_SECTION_ROWS(muon_rows)};

static const dsi_option adafactor_rows[] = {
    R("lr", "null", IN_FORCE,
      "Learning rate. With relative_step the rate is of the step's number and there is none.",
      MIN(0), WITH(TRAINER | NULLABLE), FIELD(optimizer.lr)),
    REALS("eps", "[1e-30, 0.001]", IN_FORCE,
          "Added to squares of the gradient; the least that a weight scales the rate by.", MIN(0)),
    R("clip_threshold", "1.0", IN_FORCE, "Root mean square to which an update is clipped.", MIN(0),
      WITH(ABOVE), FIELD(optimizer.clip_threshold)),
    R("decay_rate", "-0.8", IN_FORCE, "The second moments of update t decay by 1 - t^decay_rate.",
      MAX(0), FIELD(optimizer.decay_rate)),
    R("beta1", "null", IN_FORCE, "Decay of a running average of updates. null: none is kept.",
      MIN(0), MAX(1), WITH(NULLABLE), FIELD(optimizer.beta1)),
    WEIGHT_DECAY,
    B("scale_parameter", "true", IN_FORCE,
      "Scale the rate by the root mean square of each parameter.",
      FIELD(optimizer.scale_parameter)),
    B("relative_step", "true", IN_FORCE,
      "The rate of update t is the smaller of 0.01 and 1/sqrt(t), without lr and scheduler.",
      FIELD(optimizer.relative_step)),
    B("warmup_init", "false", IN_FORCE, "With relative_step: 1e-6·t in place of 0.01.",
      FIELD(optimizer.warmup_init)),
    MAX_GRAD_NORM,
};
static const dsi_section adafactor = {.path = "optimizer.params",
                                      .title = "optimizer.params of Adafactor",
                                      .doc = "transformers' Adafactor: second moments as means of "
                                             "rows and columns.",
                                      DSI_SECTION_ROWS(adafactor_rows)};

static const dsi_option schedule_free_rows[] = {
    LR("0.0025"),
    BETAS("[0.9, 0.999]"),
    EPS("1e-08"),
    WEIGHT_DECAY,
    I("warmup_steps", "0", IN_FORCE, "The rate grows linearly in so many steps, then it stays.",
      MIN(0), WITH(TRAINER), FIELD(optimizer.warmup_steps)),
    R("r", "0", IN_FORCE, "Step t weighs t^r in the average.", MIN(0),
      FIELD(optimizer.average_power)),
    R("weight_lr_power", "2.0", IN_FORCE,
      "And the largest rate so far to this power, so that the warm-up weighs less.", MIN(0),
      FIELD(optimizer.rate_power)),
    MAX_GRAD_NORM,
    TORCH_ROWS,
};
static const dsi_section schedule_free = {
    .path = "optimizer.params",
    .title = "optimizer.params of AdamWScheduleFree",
    .doc = "Schedule-free AdamW: the model is an average of all steps; no scheduler goes with it.",
    DSI_SECTION_ROWS(schedule_free_rows)};

#define STATES_8BIT                                                                                \
    I("min_8bit_size", "4096", IN_FORCE,                                                           \
      "With states in 8 bits: parameters of fewer elements have them in fp32, as bitsandbytes "    \
      "has them.",                                                                                 \
      MIN(1), FIELD(optimizer.min_8bit_size)),                                                     \
        B("embeddings_8bit", "true", IN_FORCE,                                                     \
          "States of embeddings in 8 bits too. false: in fp32, as the Trainer has them.",          \
          FIELD(optimizer.embeddings_8bit))

static const dsi_option adamw_8bit_rows[] = {
    LR("0.001"),
    BETAS("[0.9, 0.999]"),
    EPS("1e-08"),
    R("weight_decay", "0.01", IN_FORCE,
      "Weight decay, by default as bitsandbytes; norms and biases are exempt.", MIN(0),
      WITH(TRAINER), FIELD(optimizer.weight_decay)),
    STATES_8BIT,
    AMSGRAD,
    MAX_GRAD_NORM,
};
static const dsi_section adamw_8bit = {.path = "optimizer.params",
                                       .title = "optimizer.params of AdamW8bit",
                                       .doc = "bitsandbytes' AdamW with states in 8 bits.",
                                       DSI_SECTION_ROWS(adamw_8bit_rows)};

static const dsi_option ademamix_rows[] = {
    LR("0.001"),
    REALS("betas", "[0.9, 0.999, 0.9999]", IN_FORCE,
          "Decay of the fast running average of the gradient, of that of its square, and of the "
          "slow one.",
          MIN(0), MAX(1), WITH(TRAINER)),
    R("alpha", "5.0", IN_FORCE, "What the slow average weighs beside the fast one.", MIN(0),
      FIELD(optimizer.alpha)),
    I("t_alpha", "null", IN_FORCE, "alpha grows from 0 in so many updates. null: it does not.",
      MIN(1), WITH(NULLABLE), FIELD(optimizer.t_alpha)),
    I("t_beta3", "null", IN_FORCE,
      "The third of betas grows from the first in so many updates. null: it does not.", MIN(1),
      WITH(NULLABLE), FIELD(optimizer.t_beta3)),
    EPS("1e-08"),
    R("weight_decay", "0.01", IN_FORCE,
      "Weight decay, by default as bitsandbytes; norms and biases are exempt.", MIN(0),
      WITH(TRAINER), FIELD(optimizer.weight_decay)),
    I("optim_bits", "32", IN_FORCE, "Bits of an element of the states, 8 or 32.", MIN(8), MAX(32),
      FIELD(optimizer.optim_bits)),
    STATES_8BIT,
    B("is_paged", "false", NO_EFFECT, "bitsandbytes' states in paged memory.",
      NOTE("zero_optimization.offload_optimizer says where states live")),
    MAX_GRAD_NORM,
};
static const dsi_section ademamix = {
    .path = "optimizer.params",
    .title = "optimizer.params of AdEMAMix",
    .doc = "AdEMAMix: a fast and a slow running average of gradients; bitsandbytes' parameters.",
    DSI_SECTION_ROWS(ademamix_rows)};

/* The first thirteen families are those of ds_optimizer_kind. */
const dsi_variant dsi_optimizer_variants[] = {
    {"adam|adamw|fusedadam|deepspeedcpuadam|cpuadam", &adam},
    {"sgd", &sgd},
    {"lion|fusedlion|deepspeedcpulion|cpulion", &lion},
    {"adagrad|deepspeedcpuadagrad|cpuadagrad", &adagrad},
    {"lamb|fusedlamb", &lamb},
    {"onebitadam", &onebit_adam},
    {"onebitlamb", &onebit_lamb},
    {"zerooneadam", &zero_one},
    {"muon", &muon},
    {"adafactor", &adafactor},
    {"adamwschedulefree|schedulefreeadamw|schedule_free_adamw", &schedule_free},
    {"adamw8bit|adamw_8bit|adamw_bnb_8bit", &adamw_8bit},
    {"ademamix", &ademamix},
    {"muadam|muadamw|musgd|adadelta|adamax|asgd|lbfgs|nadam|radam|rmsprop|rprop|"
     "sparseadam",
     NULL},
    {NULL, NULL},
};

const dsi_variant *dsi_optimizer_variant(const char *type)
{
    for (const dsi_variant *v = dsi_optimizer_variants; v->types != NULL; ++v) {
        if (dsi_choice_index(v->types, type, true) >= 0) {
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
    const dsi_variant *variant = dsi_optimizer_variant(type->as.text);
    return variant != NULL ? variant->section : NULL;
}

static const dsi_option rows[] = {
    T("type", "null", IN_FORCE,
      "Adam, AdamW, SGD, Lion, Adagrad, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam, Muon, "
      "Adafactor, "
      "AdamWScheduleFree or AdamW8bit, in any letter case. Known and not built: MuAdam, MuAdamW, "
      "MuSGD and PyTorch's others.",
      WITH(NULLABLE)),
    VARIANT("params", NULL, IN_FORCE, "Parameters of the type; see the tables of each.",
            WITH(NULLABLE), .choose = choose),
    B("legacy_fusion", "false", NO_EFFECT, "An older wrapper of fused CUDA kernels.",
      NOTE("it picks one of DeepSpeed's CUDA wrappers")),
};
const dsi_section dsi_section_optimizer = {
    .path = "optimizer",
    .doc = "A training engine needs a type; ds_train takes --optim without one.",
    DSI_SECTION_ROWS(rows),
};
