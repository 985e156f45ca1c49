/* SPDX-License-Identifier: Apache-2.0 */
/* One effective value by its path: what a program reads of a configuration. See config.h. */
#include "base/nearest.h"
#include "config/config_impl.h"

#include <string.h>

static ds_status find(const ds_config *config, const char *path, const dsi_node **node_out)
{
    if (!config->is_resolved) {
        return ds_fail(config->ctx, DS_ERR_STATE,
                       "%s: %s is asked for before ds_config_resolve has succeeded", config->name,
                       path);
    }
    dsi_nearest nearest = {.word = path};
    for (size_t i = 0; i < config->n_items; ++i) {
        if (strcmp(config->items[i].path, path) == 0) {
            *node_out = config->nodes[i];
            return DS_OK;
        }
        dsi_nearest_offer(&nearest, config->items[i].path);
    }
    const bool near = nearest.best != NULL;
    return ds_fail(config->ctx, DS_ERR_NOT_FOUND, "%s: no key has the path \"%s\"%s%s%s",
                   config->name, path, near ? "; did you mean \"" : "", near ? nearest.best : "",
                   near ? "\"?" : "");
}

static ds_status wrong_type(const ds_config *config, const char *path, const char *expected,
                            const dsi_node *node)
{
    dsi_buf found = dsi_buf_make(DS_CONFIG_TEXT_BYTES);
    if (node == NULL) {
        dsi_buf_puts(&found, "null");
    } else {
        dsi_node_describe(&found, node);
    }
    const ds_status status = ds_fail(config->ctx, DS_ERR_SHAPE, "%s: %s: expected %s, found %s",
                                     config->name, path, expected, dsi_buf_text(&found));
    dsi_buf_free(&found);
    return status;
}

ds_status ds_config_get_bool(const ds_config *config, const char *path, bool *value_out)
{
    const dsi_node *node = NULL;
    DS_TRY(find(config, path, &node));
    if (node == NULL || node->kind != DSI_NODE_BOOL) {
        return wrong_type(config, path, "true or false", node);
    }
    *value_out = node->as.truth;
    return DS_OK;
}

ds_status ds_config_get_int(const ds_config *config, const char *path, int64_t *value_out)
{
    const dsi_node *node = NULL;
    DS_TRY(find(config, path, &node));
    if (node == NULL || !dsi_node_int(node, value_out)) {
        return wrong_type(config, path, "a whole number", node);
    }
    return DS_OK;
}

ds_status ds_config_get_real(const ds_config *config, const char *path, double *value_out)
{
    const dsi_node *node = NULL;
    DS_TRY(find(config, path, &node));
    if (node == NULL || !dsi_node_is_number(node)) {
        return wrong_type(config, path, "a number", node);
    }
    *value_out = dsi_node_real(node);
    return DS_OK;
}

ds_status ds_config_get_text(const ds_config *config, const char *path, const char **value_out)
{
    const dsi_node *node = NULL;
    DS_TRY(find(config, path, &node));
    if (node == NULL || node->kind != DSI_NODE_TEXT) {
        return wrong_type(config, path, "a text", node);
    }
    *value_out = node->as.text;
    return DS_OK;
}
