/* SPDX-License-Identifier: Apache-2.0 */
/* From flags to a teacher. See teacher_flags.h. */
#include "common/teacher_flags.h"

#include <stdio.h>

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
    DS_TRY(ds_model_from_config(ctx, path, teacher_out));
    *out = (ds_distillation){.teacher = *teacher_out,
                             .weights = f->teacher,
                             .weight = f->weight,
                             .temperature = f->temperature,
                             .mix = f->mix};
    return DS_OK;
}
