/* SPDX-License-Identifier: Apache-2.0 */
/* From flags to a teacher. See teacher_flags.h. */
#include "common/teacher_flags.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

ds_status teacher_flags_open(ds_ctx *ctx, const teacher_flags *f, ds_model **teacher_out,
                             ds_distillation *out)
{
    char path[PATH_BYTES];
    *teacher_out = NULL;
    *out = (ds_distillation){0};
    if (f->teacher == NULL) {
        const char *other = f->weight_given        ? "distill_weight"
                            : f->temperature_given ? "distill_temperature"
                            : f->mix_given         ? "distill_mix"
                                                   : NULL;
        return other == NULL ? DS_OK : ds_fail(ctx, DS_ERR_ARG, "--%s is of --teacher", other);
    }
    const int n = snprintf(path, sizeof path, "%s/config.json", f->teacher);
    if (n < 0 || (size_t)n >= sizeof path) {
        return ds_fail(ctx, DS_ERR_ARG, "--teacher: the path is too long");
    }
    const ds_status status = ds_model_from_config(ctx, path, teacher_out);
    if (status < 0) {
        return ds_fail(ctx, status, "--teacher: %s", ds_ctx_error(ctx));
    }
    *out = (ds_distillation){.teacher = *teacher_out,
                             .weights = f->teacher,
                             .weight = f->weight,
                             .temperature = f->temperature,
                             .mix = f->mix};
    return DS_OK;
}

ds_status teacher_flags_check_tokens(ds_ctx *ctx, const teacher_flags *f,
                                     const ds_tokenizer *tokenizer)
{
    ds_tokenizer *own = NULL;
    ds_status status = f->teacher != NULL ? ds_tokenizer_open(ctx, f->teacher, &own) : DS_OK;
    if (status == DS_ERR_NOT_FOUND) {
        return DS_OK;
    }
    const uint32_t n = own != NULL ? ds_tokenizer_vocab_size(own) : 0;
    for (uint32_t id = 0; id < n && status == DS_OK; ++id) {
        size_t size = 0;
        size_t own_size = 0;
        const char *piece = ds_tokenizer_piece(tokenizer, id, &size);
        const char *taught = ds_tokenizer_piece(own, id, &own_size);
        if (piece != NULL && taught != NULL &&
            (size != own_size || memcmp(piece, taught, size) != 0)) {
            status = ds_fail(ctx, DS_ERR_ARG,
                             "--teacher %s: its tokenizer's id %u is '%.*s', that of the data's is "
                             "'%.*s'; chances of one cannot teach the other: take a teacher with "
                             "the same tokenizer",
                             f->teacher, id, (int)(own_size < 40 ? own_size : 40), taught,
                             (int)(size < 40 ? size : 40), piece);
        }
    }
    ds_tokenizer_close(&own);
    return status;
}
