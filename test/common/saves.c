/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints for tests that disturb saves. */
#include "common/saves.h"

#include "ckpt/ckpt_internal.h"
#include <stdlib.h>
#include <string.h>

static ds_status fill(void *user, size_t offset, void *data, size_t n)
{
    const uint64_t step = *(const uint64_t *)user;
    float *out = data;
    for (size_t i = 0; i < n / sizeof *out; ++i) {
        out[i] = (float)((step * 31 + offset / sizeof *out + i) % 8191);
    }
    return DS_OK;
}

ds_status saves_save(ds_ctx *ctx, const char *dir, const char *tag, uint64_t step, int64_t n_values,
                     bool allow_exchange)
{
    ds_checkpoint_writer *w = NULL;
    const ds_checkpoint_params params = {.dir = dir, .tag = tag, .step = step};
    const ds_checkpoint_slice slice = {.kind = "param",
                                       .name = "w",
                                       .meta = {DS_DTYPE_F32, ds_shape_1d(n_values)},
                                       .fill = fill,
                                       .user = &step};
    DS_TRY(ds_checkpoint_writer_create(ctx, &params, &w));
    ds_status status = ds_checkpoint_writer_add(w, &slice);
    if (status == DS_OK) {
        status = ds_checkpoint_writer_state(w, "engine", "{\"a\": 1}");
    }
    if (status < 0) {
        ds_checkpoint_writer_abort(&w);
        return status;
    }
    return dsi_ckpt_commit(&w, allow_exchange);
}

ds_status saves_check(ds_ctx *ctx, const char *dir, const char *tag, uint64_t *step_out)
{
    ds_checkpoint *c = NULL;
    DS_TRY(ds_checkpoint_open(ctx, dir, tag, &c));
    uint64_t step = ds_checkpoint_get_info(c)->step;
    ds_status status = ds_checkpoint_verify(c);
    const ds_checkpoint_tensor *t = ds_checkpoint_find(c, "param", "w");
    if (status == DS_OK && (t == NULL || ds_checkpoint_state(c, "engine") == NULL)) {
        status = ds_fail(ctx, DS_ERR_CORRUPT, "a tensor or a state is not there");
    }
    if (status == DS_OK) {
        const size_t bytes = ds_meta_bytes(t->meta);
        float *got = malloc(bytes + 1);
        float *want = malloc(bytes + 1);
        (void)fill(&step, 0, want, bytes);
        status = ds_checkpoint_read(c, t, NULL, DS_DTYPE_F32, got);
        if (status == DS_OK && memcmp(got, want, bytes) != 0) {
            status = ds_fail(ctx, DS_ERR_CORRUPT, "the values are not those of step %llu",
                             (unsigned long long)step);
        }
        free(got);
        free(want);
    }
    ds_checkpoint_close(&c);
    if (status == DS_OK) {
        *step_out = step;
    }
    return status;
}
