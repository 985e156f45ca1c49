/* SPDX-License-Identifier: Apache-2.0 */
/* Changed configurations for the planner: what a resolved configuration gives, with some values
 * replaced, as text and resolved again. All rules of configurations hold for them.
 */
#ifndef DSI_REPORT_PLAN_CHOICE_H
#define DSI_REPORT_PLAN_CHOICE_H

#include <deepspeed/config.h>

/* A value to set: path as in ds_config_item, value as JSON; NULL takes the key away. */
typedef struct dsi_setting {
    const char *path;
    const char *value;
} dsi_setting;

/* The keys that the file or a flag gave, nested, later settings winning over earlier ones and over
 * the file. The caller frees *text_out with free(). Errors: ERR_NOMEM, ERR_LIMIT. */
ds_status dsi_config_text_with(ds_ctx *ctx, const ds_config *config, const dsi_setting *settings,
                               size_t n_settings, char **text_out);

/* The same, loaded and resolved for world_size ranks. hidden_size: of the model, 0 unknown. Errors:
 * those of ds_config_load_text and ds_config_resolve. The caller destroys *config_out. */
ds_status dsi_config_with(ds_ctx *ctx, const ds_config *config, const dsi_setting *settings,
                          size_t n_settings, uint32_t world_size, int64_t hidden_size,
                          ds_config **config_out);

#endif
