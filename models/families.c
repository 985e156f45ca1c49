/* SPDX-License-Identifier: Apache-2.0 */
/* The families that there are: GPT-2, and the decoder, whose model types decoder_config.c lists,
 * those of encoders too; and T5. A new family is two files here, a line in this list, and its
 * extern in families.h. */
#include "families.h"

static const ds_family *const items[] = {&ds_family_gpt2, &ds_family_decoder, &ds_family_encoder,
                                         &ds_family_t5};
static const ds_families families = {items, sizeof items / sizeof items[0]};

ds_status ds_model_from_config(ds_ctx *ctx, const char *path, ds_model **model_out)
{
    return dsi_model_read(ctx, &families, path, model_out);
}

ds_status ds_model_from_text(ds_ctx *ctx, const char *text, ds_model **model_out)
{
    return dsi_model_parse(ctx, &families, text, model_out);
}
