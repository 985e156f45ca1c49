/* SPDX-License-Identifier: Apache-2.0 */
/* What a head of classes learnt, beside an adapter: adapter_config.json has no field for numbers or
 * many labels, so its folder gets the config.json that the adapted model has, as transformers'
 * AutoConfig reads it there. PEFT leaves it alone. */
#ifndef DSI_MODEL_ADAPTER_PROBLEM_H
#define DSI_MODEL_ADAPTER_PROBLEM_H

#include <deepspeed/context.h>
#include <jansson.h>

/* Puts problem_type, id2label and label2id of the folder's config.json into config, an object;
 * nothing where the folder has none, or no problem_type in it. folder: NULL: none.
 * Errors: ERR_FORMAT, ERR_IO, ERR_NOMEM. */
ds_status dsi_adapter_problem_read(ds_ctx *ctx, const char *folder, json_t *config);

/* Writes config_json there: where it has a problem_type, or the folder has such a file of an
 * earlier run. */
ds_status dsi_adapter_problem_write(ds_ctx *ctx, const char *folder, const char *config_json);

#endif
