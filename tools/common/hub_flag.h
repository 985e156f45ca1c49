/* SPDX-License-Identifier: Apache-2.0 */
/* Flags whose value is a model: a folder, or its name in the Hugging Face cache. */
#ifndef DSI_TOOLS_HUB_FLAG_H
#define DSI_TOOLS_HUB_FLAG_H

#include <deepspeed/hub.h>

/* A flag's value becomes the folder that it stands for; *found_out, from malloc, holds it then, and
 * is NULL where the value stays (NULL, a path, the word "bytes"). A model of the cache is logged.
 * revision: of the flag beside it; without a value an error. Errors: as ds_hub_find. */
ds_status hub_flag_find(ds_ctx *ctx, const char *flag, const char **value, const char *revision,
                        uint32_t needs, char **found_out);

/* Refuses an output inside of the model's folder in the cache. flag and path: of the output. found:
 * of hub_flag_find; either may be NULL. Error: ERR_ARG. */
ds_status hub_flag_spare(ds_ctx *ctx, const char *found, const char *flag, const char *path);

#endif
