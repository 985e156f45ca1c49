/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the section autotuning. Called by config_rules.c as one of its rules. */
#include "config/config_eval.h"

#include <inttypes.h>

static void expect_order(dsi_eval *eval, const char *path, int64_t low, const char *low_path,
                         int64_t high)
{
    if (high < low) {
        dsi_item_error(eval, dsi_item_find(eval, path),
                       "expected at least autotuning.%s = %" PRId64 ", found %" PRId64, low_path,
                       low, high);
    }
}

/* Bounds of the search in their order; flags that trials set. */
void dsi_config_autotuning(dsi_eval *eval)
{
    const ds_config_autotuning *a = &eval->values->autotuning;
    const dsi_item *mappings = dsi_item_find(eval, "autotuning.arg_mappings");
    expect_order(eval, "autotuning.end_profile_step", a->start_profile_step, "start_profile_step",
                 a->end_profile_step);
    expect_order(eval, "autotuning.max_train_micro_batch_size_per_gpu", a->min_micro_batch,
                 "min_train_micro_batch_size_per_gpu", a->max_micro_batch);
    if (a->max_train_batch_size > 0) {
        expect_order(eval, "autotuning.max_train_batch_size", a->min_train_batch_size,
                     "min_train_batch_size", a->max_train_batch_size);
    }
    if (mappings == NULL || mappings->node == NULL || mappings->node->kind != DSI_NODE_OBJECT) {
        return;
    }
    for (const dsi_node *n = mappings->node->first; n != NULL; n = n->next) {
        if (n->kind != DSI_NODE_TEXT || n->as.text[0] != '-' || n->as.text[1] == '\0') {
            dsi_item_error(eval, mappings,
                           "expected for \"%s\" a flag of the program with its dashes, such as "
                           "\"--micro_batch\"",
                           n->key);
        }
    }
}
