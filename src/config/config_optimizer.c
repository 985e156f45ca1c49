/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the sections optimizer and scheduler. Called by config_rules.c as one of its rules. */
#include "config/config_eval.h"

#include "base/nearest.h"
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* ---- optimizer ------------------------------------------------------------------------------- */

static void unknown_type(dsi_eval *eval, const dsi_item *item, const dsi_variant *variants,
                         const char *built)
{
    const char *type = item->node->as.text;
    dsi_nearest nearest = {.word = type};
    char names[32][32];
    size_t n = 0;
    for (const dsi_variant *v = variants; v->types != NULL; ++v) {
        for (int i = 0;
             n < 32 && v->section != NULL && dsi_choice_at(v->types, i, names[n], sizeof names[n]);
             ++i) {
            dsi_nearest_offer(&nearest, names[n++]);
        }
    }
    if (nearest.best != NULL) {
        dsi_item_error(eval, item, "expected one of %s, found \"%.40s\"; did you mean \"%s\"?",
                       built, type, nearest.best);
    } else {
        dsi_item_error(eval, item, "expected one of %s, found \"%.40s\"", built, type);
    }
}

/* The families that are built come first in the variants; index is 0 for the first. */
static bool find_type(dsi_eval *eval, const char *path, const dsi_variant *variants,
                      const dsi_variant *found, int n_built, const char *built, int *index_out)
{
    const dsi_item *item = dsi_item_find(eval, path);
    if (found == NULL) {
        unknown_type(eval, item, variants, built);
        return false;
    }
    *index_out = (int)(found - variants);
    if (*index_out >= n_built) {
        dsi_item_error(eval, item,
                       "not available, found \"%.40s\": it is not built yet; take one "
                       "of %s",
                       item->node->as.text, built);
        return false;
    }
    return true;
}

static void optimizer_type(dsi_eval *eval)
{
    ds_config_optimizer *o = &eval->values->optimizer;
    const char *type = dsi_item_text(eval, "optimizer.type");
    int index = -1;
    if (type == NULL) {
        return;
    }
    if (!find_type(eval, "optimizer.type", dsi_optimizer_variants, dsi_optimizer_variant(type), 13,
                   "Adam, AdamW, SGD, Lion, Adagrad, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam, "
                   "Muon, Adafactor, AdamWScheduleFree, AdamW8bit, AdEMAMix",
                   &index)) {
        return;
    }
    o->kind = (ds_optimizer_kind)(DS_OPTIMIZER_ADAM + index);
    const dsi_item *item = dsi_item_find(eval, "optimizer.type");
    if (strncasecmp(type, "fused", 5) == 0 || strcasestr(type, "cpuada") != NULL ||
        strcasestr(type, "cpulion") != NULL) {
        dsi_item_notice(eval, item, "the name of an implementation; it means %s here",
                        ds_optimizer_kind_name(o->kind));
    }
    if (strcasecmp(type, "adamw") == 0 || dsi_config_is_onebit(o->kind) ||
        o->kind == DS_OPTIMIZER_ADAMW_8BIT) {
        o->decoupled = true;
    } else {
        o->decoupled = dsi_item_true(eval, "optimizer.params.adam_w_mode");
    }
    const dsi_item *decay = dsi_item_find(eval, "optimizer.params.weight_decay");
    if (o->kind == DS_OPTIMIZER_ADAM && o->decoupled &&
        dsi_item_true(eval, "optimizer.params.torch_adam") && decay != NULL &&
        decay->given == NULL && decay->origin == DS_ORIGIN_DEFAULT) {
        o->weight_decay = 0.01;
        dsi_item_set(eval, dsi_item_find(eval, "optimizer.params.weight_decay"),
                     dsi_node_make_real(eval->arena, 0.01), DS_ORIGIN_RULE,
                     "torch_adam: PyTorch's default");
    }
}

/* The slow moment's is reached from the fast one's by logarithms of both. */
static void ademamix_betas(dsi_eval *eval, const dsi_item *item)
{
    ds_config_optimizer *o = &eval->values->optimizer;
    o->beta3 = dsi_node_real(item->node->first->next->next);
    if (o->beta1 >= 1 || o->beta2 >= 1 || o->beta3 >= 1) {
        dsi_item_error(eval, item,
                       "expected three numbers of at least 0 and below 1, found [%g, %g, %g]",
                       o->beta1, o->beta2, o->beta3);
    } else if (o->t_beta3 > 0 && !(o->beta1 > 0 && o->beta1 <= o->beta3)) {
        dsi_item_error(eval, item,
                       "with t_beta3 the third grows from the first: expected 0 < %g <= %g",
                       o->beta1, o->beta3);
    }
}

static void betas(dsi_eval *eval)
{
    const dsi_item *item = dsi_item_find(eval, "optimizer.params.betas");
    if (item == NULL || item->open || item->node == NULL || item->node->kind != DSI_NODE_LIST) {
        return;
    }
    const dsi_node *first = item->node->first;
    const bool three = eval->values->optimizer.kind == DS_OPTIMIZER_ADEMAMIX;
    if (item->node->n_children != (three ? 3 : 2)) {
        dsi_item_error(eval, item, "expected a list of %d numbers, found a list of %" PRIu32,
                       three ? 3 : 2, item->node->n_children);
        return;
    }
    eval->values->optimizer.beta1 = dsi_node_real(first);
    eval->values->optimizer.beta2 = dsi_node_real(first->next);
    if (three) {
        ademamix_betas(eval, item);
    } else if (dsi_node_real(first) >= 1 || dsi_node_real(first->next) >= 1) {
        dsi_item_error(eval, item, "expected two numbers of at least 0 and below 1, found [%g, %g]",
                       dsi_node_real(first), dsi_node_real(first->next));
    }
}

/* A rate of its own, or what it is without; the key has it then. */
static double muon_rate(dsi_eval *eval, const char *path, double without, const char *why)
{
    dsi_item *item = dsi_item_find(eval, path);
    if (item != NULL && item->node != NULL && dsi_item_given(item)) {
        return dsi_node_real(item->node);
    }
    dsi_item_set(eval, item, dsi_node_make_real(eval->arena, without), DS_ORIGIN_RULE, why);
    return without;
}

static void muon_numbers(dsi_eval *eval)
{
    ds_config_optimizer *o = &eval->values->optimizer;
    const char *method = dsi_item_text(eval, "optimizer.params.ns_method");
    const bool given = dsi_item_given(dsi_item_find(eval, "optimizer.params.lr"));
    if (o->kind != DS_OPTIMIZER_MUON) {
        return;
    }
    const double lr = o->lr;
    o->muon_bf16 = method != NULL && strcasecmp(method, "standard") == 0;
    o->muon_lr = muon_rate(eval, "optimizer.params.muon_lr", lr, "optimizer.params.lr");
    o->lr = muon_rate(eval, "optimizer.params.adam_lr", given ? lr : 3e-4,
                      given ? "optimizer.params.lr" : "DeepSpeed's default for the rest");
}

/* What another optimizer goes with, and these do not. */
static void apart_numbers(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const bool free = v->optimizer.kind == DS_OPTIMIZER_SCHEDULE_FREE;
    if (free && v->optimizer.beta1 == 0.0) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.params.betas"),
                       "AdamWScheduleFree takes gradients between the average and the last step: "
                       "the first must be above 0");
    }
    if (free && dsi_item_text(eval, "scheduler.type") != NULL) {
        dsi_item_error(eval, dsi_item_find(eval, "scheduler.type"),
                       "a schedule of the rate, which AdamWScheduleFree is there to do without: "
                       "leave the scheduler out; warmup_steps of the optimizer warms up");
    }
    const bool mix = v->optimizer.kind == DS_OPTIMIZER_ADEMAMIX;
    if (mix && v->optimizer.optim_bits != 8 && v->optimizer.optim_bits != 32) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.params.optim_bits"),
                       "expected 8 or 32, found %" PRId64, v->optimizer.optim_bits);
    }
}

/* transformers' rules of them. */
static void adafactor_numbers(dsi_eval *eval)
{
    ds_config_optimizer *o = &eval->values->optimizer;
    dsi_item *lr = dsi_item_find(eval, "optimizer.params.lr");
    const dsi_item *eps = dsi_item_find(eval, "optimizer.params.eps");
    const dsi_item *beta1 = dsi_item_find(eval, "optimizer.params.beta1");
    if (o->kind != DS_OPTIMIZER_ADAFACTOR) {
        return;
    }
    o->has_beta1 = beta1 != NULL && beta1->given != NULL;
    if (eps != NULL && eps->node != NULL && eps->node->n_children == 2) {
        o->eps = dsi_node_real(eps->node->first);
        o->scale_eps = dsi_node_real(eps->node->first->next);
    } else if (eps != NULL && eps->node != NULL) {
        dsi_item_error(eval, eps, "expected a list of 2 numbers, found one of %" PRIu32,
                       eps->node->n_children);
    }
    if (o->relative_step && lr != NULL && (lr->given != NULL || lr->open)) {
        dsi_item_error(eval, lr,
                       "relative_step makes the rate of the step's number: set relative_step to "
                       "false to use lr, or leave lr out");
    }
    if (!o->relative_step && lr != NULL && lr->given == NULL && !lr->open &&
        lr->origin == DS_ORIGIN_DEFAULT) {
        dsi_item_error(eval, lr, "expected a rate, since relative_step is false");
    }
    if (o->warmup_init && !o->relative_step) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.params.warmup_init"),
                       "it needs relative_step true");
    }
    if (o->relative_step && dsi_item_text(eval, "scheduler.type") != NULL) {
        dsi_item_error(eval, dsi_item_find(eval, "scheduler.type"),
                       "a schedule of the rate, which optimizer.params.relative_step of Adafactor "
                       "makes itself: set that to false, or leave the scheduler out");
    }
}

static void optimizer_numbers(dsi_eval *eval)
{
    const ds_config_optimizer *o = &eval->values->optimizer;
    if (o->kind == DS_OPTIMIZER_SGD && o->nesterov && (o->momentum <= 0 || o->dampening != 0)) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.params.nesterov"),
                       "expected a momentum above 0 and a dampening of 0 with it, found momentum "
                       "%g, dampening %g",
                       o->momentum, o->dampening);
    }
    const bool lamb = o->kind == DS_OPTIMIZER_LAMB || o->kind == DS_OPTIMIZER_ONEBIT_LAMB;
    if (lamb && o->min_coeff > o->max_coeff) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.params.min_coeff"),
                       "expected at most optimizer.params.max_coeff = %g, found %g", o->max_coeff,
                       o->min_coeff);
    }
}

static void tested_optimizer(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const bool untested = v->optimizer.kind == DS_OPTIMIZER_SGD ||
                          v->optimizer.kind == DS_OPTIMIZER_LAMB ||
                          v->optimizer.kind == DS_OPTIMIZER_ADAFACTOR;
    if (untested && v->zero.stage >= 1 &&
        !eval->trainer_optimizer && /* the Trainer allows its own */
        !dsi_item_true(eval, "zero_allow_untested_optimizer")) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.type"),
                       "expected Adam, AdamW, Adagrad or Lion with zero_optimization.stage %" PRId64
                       ", found %s; set zero_allow_untested_optimizer to true, or the stage to 0",
                       v->zero.stage, ds_optimizer_kind_name(v->optimizer.kind));
    }
}

/* ---- scheduler ------------------------------------------------------------------------------- */

/* OneCycle moves betas[0]; of an optimizer without betas nothing, as DeepSpeed (which warns). */
static void leave_momentum(dsi_eval *eval, ds_schedule_params *s)
{
    const ds_optimizer_kind kind = eval->values->optimizer.kind;
    const bool none = kind == DS_OPTIMIZER_SGD || kind == DS_OPTIMIZER_ADAGRAD ||
                      kind == DS_OPTIMIZER_MUON || kind == DS_OPTIMIZER_ADAFACTOR ||
                      kind == DS_OPTIMIZER_SCHEDULE_FREE;
    if (s->kind != DS_SCHEDULE_ONE_CYCLE || !s->cycle_momentum || !none) {
        return;
    }
    dsi_item *item = dsi_item_find(eval, "scheduler.params.cycle_momentum");
    s->cycle_momentum = false;
    dsi_item_notice(eval, item, "no effect: %s has no betas to move; its momentum stays%s",
                    ds_optimizer_kind_name(kind),
                    kind == DS_OPTIMIZER_SGD ? " what optimizer.params says" : "");
    dsi_item_set(eval, item, dsi_node_make_bool(eval->arena, false), DS_ORIGIN_RULE,
                 "an optimizer without betas");
}

/* What one of the Trainer's needs of the optimizer's rate. */
static void trainer_schedule(dsi_eval *eval, ds_schedule_params *s)
{
    const dsi_item *rate = dsi_item_find(eval, "optimizer.params.lr");
    const double lr = eval->values->optimizer.lr;
    const bool has_least = s->kind == DS_SCHEDULE_COSINE_WITH_MIN_LR ||
                           s->kind == DS_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR;
    const bool one = dsi_item_given(dsi_item_find(eval, "scheduler.params.min_lr")) !=
                     dsi_item_given(dsi_item_find(eval, "scheduler.params.min_lr_rate"));
    const dsi_item *type = dsi_item_find(eval, "scheduler.type");
    if (has_least && !one) {
        dsi_item_error(eval, type, "%s needs one of min_lr and min_lr_rate",
                       ds_schedule_kind_name(s->kind));
    }
    if (rate == NULL || rate->open || (!has_least && s->kind != DS_SCHEDULE_POLYNOMIAL)) {
        return;
    }
    const double least = s->kind == DS_SCHEDULE_POLYNOMIAL ? s->lr_end : 0;
    if (!(lr > least && lr >= 1e-30)) {
        dsi_item_error(eval, type, "expected a learning rate above %s %g, found %g",
                       has_least ? "the smallest," : "lr_end,", has_least ? 1e-30 : least, lr);
        return;
    }
    s->default_lr = lr;
}

static void scheduler_type(dsi_eval *eval)
{
    ds_schedule_params *s = &eval->values->scheduler;
    const char *type = dsi_item_text(eval, "scheduler.type");
    int index = -1;
    if (type == NULL) {
        return;
    }
    if (!find_type(eval, "scheduler.type", dsi_scheduler_variants, dsi_scheduler_variant(type), 15,
                   "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, or the "
                   "Trainer's linear, cosine, cosine_with_restarts, cosine_with_min_lr, "
                   "cosine_warmup_with_min_lr, polynomial, constant, constant_with_warmup, "
                   "inverse_sqrt, warmup_stable_decay",
                   &index)) {
        return;
    }
    s->kind = (ds_schedule_kind)(DS_SCHEDULE_WARMUP + index);
    leave_momentum(eval, s);
    if (s->kind >= DS_SCHEDULE_LINEAR) {
        trainer_schedule(eval, s);
    }
    const dsi_item *total = dsi_item_find(eval, "scheduler.params.total_num_steps");
    const dsi_item *warmup = dsi_item_find(eval, "scheduler.params.warmup_num_steps");
    if (total != NULL && total->node != NULL && !total->open && !warmup->open &&
        s->total_num_steps < s->warmup_num_steps) {
        dsi_item_notice(eval, total,
                        "%" PRId64 " is less than warmup_num_steps, %" PRId64
                        ": the run ends before the warm-up",
                        s->total_num_steps, s->warmup_num_steps);
    }
}

/* A list of two is a value for parameters with weight decay and one for norms and biases. */
static void scheduler_groups(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    v->scheduler_no_decay = v->scheduler;
    for (size_t i = 0; i < eval->n_items; ++i) {
        const dsi_item *item = &eval->items[i];
        if ((item->option->flags & DSI_OPT_GROUPS) == 0 || item->given == NULL ||
            item->given->kind != DSI_NODE_LIST || item->given->n_children != 2) {
            continue;
        }
        const double values[2] = {dsi_node_real(item->given->first),
                                  dsi_node_real(item->given->first->next)};
        const size_t at = item->option->field - 1 - offsetof(ds_config_values, scheduler);
        memcpy((char *)&v->scheduler_no_decay + at, &values[1], sizeof values[1]);
        v->scheduler_has_groups = v->scheduler_has_groups || values[0] != values[1];
    }
}

void dsi_config_optimizer(dsi_eval *eval)
{
    optimizer_type(eval);
    betas(eval);
    muon_numbers(eval);
    adafactor_numbers(eval);
    apart_numbers(eval);
    optimizer_numbers(eval);
    tested_optimizer(eval);
    scheduler_type(eval);
    scheduler_groups(eval);
}
