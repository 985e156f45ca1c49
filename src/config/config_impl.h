/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_config. Only config/ reads the fields. */
#ifndef DSI_CONFIG_IMPL_H
#define DSI_CONFIG_IMPL_H

#include "config/config_eval.h"
#include "config/config_read.h"
#include "config/config_values.h"

struct ds_config {
    ds_ctx *ctx; /* borrowed */
    char *name;
    ds_config_params params;
    ds_config_kind kind; /* params.kind, or what ANY came to */
    dsi_buf text;        /* of the file */
    dsi_arena *arena;    /* of the newest evaluation: tree, items, messages */
    dsi_diags diags;
    ds_config_values values;
    ds_config_item *items;
    const dsi_node **nodes; /* of each item, NULL: null */
    size_t n_items;
    bool is_resolved;
    bool is_made;    /* its text is ours: messages name no lines of it */
    ds_config *away; /* of init_inference, with zero.offload_param: those of training; else NULL */
};

/* Loads text that was made from `of`, whose name messages have; unknown keys are notices. */
ds_status dsi_config_load_made(ds_ctx *ctx, const ds_config *of, const char *text,
                               ds_config **config_out);

/* Returns the text of buf as a malloc'd string and frees buf. ERR_NOMEM. */
ds_status dsi_config_give(ds_ctx *ctx, dsi_buf *buf, char **text_out);

/* Visits every section that the tables reach, parents before children; variants under the path of
 * their parent. */
typedef void (*dsi_section_fn)(void *arg, const dsi_section *section);
void dsi_config_visit(dsi_section_fn fn, void *arg);

/* "in force", "not built", … : what a row does, for people. */
const char *dsi_force_text(const dsi_option *row);

#endif
