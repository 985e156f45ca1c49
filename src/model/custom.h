/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of a custom model, by its own table (ds_model_info.fields). */
#ifndef DSI_MODEL_CUSTOM_H
#define DSI_MODEL_CUSTOM_H

#include <deepspeed/model.h>
#include <stdio.h>

/* Its constants as the text of a config.json (NULL
 * without fields), read back from one into memory for free(), and a line "key: value" each. */
ds_status ds_custom_write(ds_ctx *ctx, const ds_model_info *info, const void *config,
                          char **text_out);
ds_status ds_custom_parse(ds_ctx *ctx, const ds_model_info *info, const char *text,
                          void **config_out);
void ds_custom_print(const ds_model_info *info, const void *config, FILE *out);

#endif
