/* SPDX-License-Identifier: Apache-2.0 */
/* Flags that no key of this file can take: each is an error that names it, since a run in which it
 * does nothing is not the one that was asked for. Called by config_auto.c. What elasticity says of
 * batch flags is in config_elastic.c.
 */
#include "config/config_eval.h"

#include <stdio.h>

/* The schedule sets every rate (OneCycle, LRRangeTest) or first beta (OneCycle) by its own keys. */
static bool has_own_rates(const dsi_eval *eval)
{
    return dsi_item_find(eval, "scheduler.params.cycle_max_lr") != NULL ||
           dsi_item_find(eval, "scheduler.params.lr_range_test_min_lr") != NULL;
}

static bool moves_beta(const dsi_eval *eval)
{
    return dsi_item_true(eval, "scheduler.params.cycle_momentum");
}

static const char *type_of(const dsi_eval *eval, const char *section)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%s.type", section);
    return dsi_item_text(eval, path);
}

static void no_key(dsi_eval *eval, const char *flag, const char *section, const char *key)
{
    const char *type = type_of(eval, section);
    if (type == NULL) {
        dsi_item_error(eval, NULL,
                       "%s is not in force: expected a section \"%s\" whose params have \"%s\", "
                       "found none; add it, or drop the flag",
                       flag, section, key);
    } else {
        dsi_item_error(eval, dsi_item_find(eval, dsi_eval_text(eval, "%s.type", section)),
                       "%s is not in force: expected one whose params have \"%s\", found "
                       "\"%.40s\"; take another, or drop the flag",
                       flag, key, type);
    }
}

static void needs_key(dsi_eval *eval, ds_maybe value, const char *flag, const char *section,
                      const char *key)
{
    if (value.known &&
        dsi_item_find(eval, dsi_eval_text(eval, "%s.params.%s", section, key)) == NULL) {
        no_key(eval, flag, section, key);
    }
}

static void set_by_schedule(dsi_eval *eval, ds_maybe value, const char *flag, const char *keys)
{
    if (value.known) {
        dsi_item_error(eval, dsi_item_find(eval, "scheduler.type"),
                       "%s is not in force: \"%.40s\" sets it from %s; drop the flag, or take "
                       "another schedule",
                       flag, type_of(eval, "scheduler"), keys);
    }
}

/* The library makes no schedule of its own, as DeepSpeed; the Trainer does. */
static void constant_rate(dsi_eval *eval)
{
    const dsi_item *rate = dsi_item_find(eval, "optimizer.params.lr");
    if (rate != NULL && rate->origin == DS_ORIGIN_AUTO && type_of(eval, "scheduler") == NULL &&
        !eval->for_plan && !eval->trainer->fill_sections) {
        dsi_item_notice(eval, rate,
                        "without a section \"scheduler\" the learning rate is constant, as "
                        "DeepSpeed's; the Trainer's falls: type linear does so here");
    }
}

/* Without a schedule the rate is constant: there is nothing to warm up. */
static void warmup(dsi_eval *eval, ds_maybe value, const char *flag)
{
    const bool own = dsi_item_find(eval, "optimizer.params.warmup_steps") != NULL;
    if (!value.known || value.value == 0 || (own && type_of(eval, "scheduler") == NULL)) {
        return;
    }
    if (type_of(eval, "scheduler") != NULL) {
        needs_key(eval, value, flag, "scheduler", "warmup_num_steps");
    } else {
        dsi_item_error(eval, NULL,
                       "%s is not in force: without a section \"scheduler\" the learning rate is "
                       "constant; give --lr_scheduler_type, or drop the flag",
                       flag);
    }
}

void dsi_config_auto_flags(dsi_eval *eval)
{
    const ds_trainer_values *t = eval->trainer;
    if (dsi_item_find(eval, "scheduler.params.warmup_max_lr") == NULL) {
        needs_key(eval, t->learning_rate, "--learning_rate", "optimizer", "lr");
    }
    needs_key(eval, t->weight_decay, "--weight_decay", "optimizer", "weight_decay");
    needs_key(eval, t->adam_epsilon, "--adam_epsilon", "optimizer", "eps");
    needs_key(eval, t->adam_beta1, "--adam_beta1", "optimizer", "betas");
    needs_key(eval, t->adam_beta2, "--adam_beta2", "optimizer", "betas");
    if (has_own_rates(eval)) {
        set_by_schedule(eval, t->learning_rate, "--learning_rate", "its own rates");
    }
    if (moves_beta(eval)) {
        set_by_schedule(eval, t->adam_beta1, "--adam_beta1",
                        "cycle_min_mom and cycle_max_mom (cycle_momentum)");
    }
    warmup(eval, t->warmup_steps, "--warmup_steps");
    warmup(eval, t->warmup_ratio, "--warmup_ratio");
    constant_rate(eval);
}
