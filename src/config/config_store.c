/* SPDX-License-Identifier: Apache-2.0 */
/* Items with a field go into ds_config_values. */
#include "config/config_eval.h"

#include <math.h>
#include <string.h>

/* What a field holds when its key is null. */
static ds_config_values null_values(uint32_t world_size)
{
    ds_config_values values;
    memset(&values, 0, sizeof values);
    values.world_size = world_size;
    values.scheduler = ds_schedule_default(DS_SCHEDULE_NONE);
    values.scheduler.warmup_max_lr = NAN;
    values.scheduler.cycle_second_step_size = NAN;
    values.scheduler.cycle_second_stair_count = -1;
    values.activation_checkpointing.number_checkpoints = -1;
    values.tensorboard.output_path = values.tensorboard.job_name = "";
    values.csv_monitor.output_path = values.csv_monitor.job_name = "";
    values.optimizer.beta1 = 0.9;
    values.optimizer.beta2 = 0.999;
    return values;
}

static void store(dsi_eval *eval, const dsi_item *item)
{
    const dsi_option *option = item->option;
    const dsi_node *node = item->node;
    char *field = (char *)eval->values + (option->field - 1);
    if (option->type == DSI_OPT_BOOL && node->kind == DSI_NODE_BOOL) {
        memcpy(field, &node->as.truth, sizeof(bool));
    } else if (option->type == DSI_OPT_INT) {
        int64_t value;
        if (dsi_node_int(node, &value)) {
            memcpy(field, &value, sizeof value);
        }
    } else if (option->type == DSI_OPT_REAL && dsi_node_is_number(node)) {
        const double value = dsi_node_real(node);
        memcpy(field, &value, sizeof value);
    } else if (option->type == DSI_OPT_TEXT && node->kind == DSI_NODE_TEXT) {
        memcpy(field, &node->as.text, sizeof node->as.text);
    } else if (option->type == DSI_OPT_ENUM && node->kind == DSI_NODE_TEXT) {
        const int index = dsi_choice_index(option->choices, node->as.text,
                                           (option->flags & DSI_OPT_ANY_CASE) != 0);
        memcpy(field, &index, sizeof index);
    }
}

void dsi_config_store(dsi_eval *eval)
{
    *eval->values = null_values(eval->world_size);
    for (int given = 0; given < 2; ++given) { /* a field of several rows is the one given */
        for (size_t i = 0; i < eval->n_items; ++i) {
            const dsi_item *item = &eval->items[i];
            if (item->option->field != 0 && item->node != NULL &&
                dsi_item_given(item) == (given == 1)) {
                store(eval, item);
            }
        }
    }
}
