/* SPDX-License-Identifier: Apache-2.0 */
/* See deepspeed_folder.h. */
#include "common/deepspeed_folder.h"

#include "base/buf.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ORDER ((size_t)64 << 20)

bool deepspeed_flags_given(const deepspeed_flags *f)
{
    return f->given_stage || f->given_ranks || f->given_groups || f->given_size || f->given_order ||
           f->like != NULL;
}

/* The lines of the text that are not empty, in place. */
static ds_status split_lines(ds_ctx *ctx, char *text, const char ***lines_out, size_t *n_out)
{
    size_t room = 1;
    size_t n = 0;
    for (const char *at = text; *at != '\0'; ++at) {
        room += *at == '\n';
    }
    const char **lines = calloc(room, sizeof *lines);
    if (lines == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the order of parameters");
    }
    char *rest = NULL;
    for (char *line = strtok_r(text, "\r\n", &rest); line != NULL;
         line = strtok_r(NULL, "\r\n", &rest)) {
        lines[n++] = line;
    }
    *lines_out = lines;
    *n_out = n;
    return DS_OK;
}

ds_status deepspeed_folder_write(ds_ctx *ctx, ds_checkpoint *c, const deepspeed_flags *f,
                                 bool universal, const char *out)
{
    ds_checkpoint_deepspeed_params params = {.dir = out,
                                             .zero_stage = (uint32_t)f->zero_stage,
                                             .ranks = (uint32_t)f->ranks,
                                             .n_groups = (uint32_t)f->groups,
                                             .like = f->like,
                                             .sub_group_size = f->sub_group_size};
    const char **lines = NULL;
    if (universal && (f->given_stage || f->given_size || f->given_order)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--zero_stage, --sub_group_size and --parameter_order belong to deepspeed: "
                       "a universal folder is loaded by names, at any stage");
    }
    if (!universal && (f->zero_stage == 0 || !f->given_ranks)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "deepspeed: expected --zero_stage 1, 2 or 3 and --ranks N, "
                       "those of the job that will load it");
    }
    if (f->given_size && f->zero_stage != 3) {
        return ds_fail(ctx, DS_ERR_ARG, "--sub_group_size belongs to --zero_stage 3");
    }
    dsi_buf text = dsi_buf_make(MOST_ORDER);
    ds_status status = f->order != NULL ? dsi_buf_read_file(ctx, f->order, &text) : DS_OK;
    if (status >= 0 && f->order != NULL) {
        dsi_buf_putc(&text, '\n');
        status = text.failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", f->order)
                             : split_lines(ctx, text.data, &lines, &params.n_order);
        params.order = lines;
    }
    status = status >= 0 ? ds_checkpoint_write_deepspeed(c, &params) : status;
    free((void *)lines);
    dsi_buf_free(&text);
    return status;
}
