/* SPDX-License-Identifier: Apache-2.0 */
/* Old forms that are more than another name: rewritten in the tree before the tables see it.
 *
 *   "zero_optimization": true        → {"stage": 1, "allgather_bucket_size": allgather_size}
 *   zero_optimization.cpu_offload    → offload_optimizer {"device": "cpu"}
 *   zero_optimization.cpu_offload_param → offload_param {"device": "cpu"}
 */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>

static dsi_node *copy_place(dsi_node *node, const dsi_node *from, const char *key)
{
    if (node != NULL) {
        node->line = from->line;
        node->column = from->column;
        node->key_line = from->key_line;
        node->key_column = from->key_column;
        node->key = key;
    }
    return node;
}

/* Adds a member that stands where `from` stands. */
static void put(dsi_eval *eval, dsi_node *object, const char *key, dsi_node *value,
                const dsi_node *from)
{
    if (copy_place(value, from, key) == NULL) {
        eval->no_memory = true;
        return;
    }
    dsi_node_add(object, value);
}

/* "zero_optimization": true or false becomes an object in place. */
static void bool_form(dsi_eval *eval, const dsi_node *root, dsi_node *zero)
{
    const bool on = zero->as.truth;
    const dsi_node from = *zero;
    zero->kind = DSI_NODE_OBJECT;
    zero->first = zero->last = NULL;
    zero->n_children = 0;
    put(eval, zero, "stage", dsi_node_make_int(eval->arena, on), &from);
    int64_t bucket;
    if (on && dsi_node_int(dsi_node_find(root, "allgather_size"), &bucket)) {
        put(eval, zero, "allgather_bucket_size", dsi_node_make_int(eval->arena, bucket), &from);
    }
    dsi_notice_at(eval->diags, from.line, from.column, "zero_optimization",
                  "%s is an old form; write {\"stage\": %d}", on ? "true" : "false", on);
}

static void offload_form(dsi_eval *eval, dsi_node *zero, const char *old, const char *key)
{
    const dsi_node *given = dsi_node_find(zero, old);
    if (given == NULL || given->kind != DSI_NODE_BOOL) {
        return; /* absent, null, or an error that the walk reports */
    }
    const char *path = dsi_eval_text(eval, "zero_optimization.%s", old);
    dsi_notice_at(eval->diags, given->line, given->column, path, "an old form; write \"%s\": %s",
                  key, given->as.truth ? "{\"device\": \"cpu\"}" : "null, or nothing");
    const dsi_node *twin = dsi_node_find(zero, key);
    if (twin != NULL) {
        dsi_error_at(eval->diags, given->line, given->column, path,
                     "cannot be given together with \"%s\" on line %" PRIu32 "; remove \"%s\"", key,
                     twin->key_line, old);
        return;
    }
    if (!given->as.truth) {
        return;
    }
    dsi_node *section = dsi_node_make(eval->arena, DSI_NODE_OBJECT);
    if (section == NULL) {
        eval->no_memory = true;
        return;
    }
    put(eval, section, "device", dsi_node_make_text(eval->arena, "cpu"), given);
    put(eval, zero, key, section, given);
}

void dsi_config_migrate(dsi_eval *eval, dsi_node *root)
{
    dsi_node *zero = dsi_node_find(root, "zero_optimization");
    if (zero == NULL) {
        return;
    }
    if (zero->kind == DSI_NODE_BOOL) {
        bool_form(eval, root, zero);
    }
    if (zero->kind == DSI_NODE_OBJECT) {
        offload_form(eval, zero, "cpu_offload", "offload_optimizer");
        offload_form(eval, zero, "cpu_offload_param", "offload_param");
    }
}
