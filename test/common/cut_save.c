/* SPDX-License-Identifier: Apache-2.0 */
/* See cut_save.h. */
#include "common/cut_save.h"
#include "common/check.h"

#include <string.h>

float cut_save_value(int step, int i)
{
    return (float)(step * 1000 + i) * 0.25f;
}

ds_status cut_save(ds_ctx *ctx, const char *dir, const char *tag, int step)
{
    float whole[CUT_COUNT];
    float column[CUT_ROWS];
    float rest[CUT_COUNT];
    uint16_t half[4] = {0x3f80, 0, 0, (uint16_t)step};
    for (int i = 0; i < CUT_COUNT; ++i) {
        whole[i] = cut_save_value(step, i);
    }
    for (int r = 0; r < CUT_ROWS; ++r) {
        column[r] = whole[r * CUT_COLUMNS];
        memcpy(rest + r * (CUT_COLUMNS - 1), whole + r * CUT_COLUMNS + 1,
               (CUT_COLUMNS - 1) * sizeof(float));
    }
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_2d(CUT_ROWS, CUT_COLUMNS)};
    const ds_extent first = ds_extent_flat(0, 7);
    const ds_extent last = ds_extent_flat(7, CUT_COUNT - 7);
    const ds_extent left =
        ds_extent_box(2, (const int64_t[]){0, 0}, (const int64_t[]){CUT_ROWS, 1});
    const ds_extent right =
        ds_extent_box(2, (const int64_t[]){0, 1}, (const int64_t[]){CUT_ROWS, CUT_COLUMNS - 1});
    const ds_checkpoint_slice slices[] = {
        {.kind = "param", .name = "w", .meta = meta, .data = whole},
        {.kind = "master", .name = "w", .meta = meta, .extent = &last, .data = whole + 7},
        {.kind = "master", .name = "w", .meta = meta, .extent = &first, .data = whole},
        {.kind = "exp_avg", .name = "w", .meta = meta, .extent = &right, .data = rest},
        {.kind = "exp_avg", .name = "w", .meta = meta, .extent = &left, .data = column},
        {.kind = "param", .name = "b.half", .meta = {DS_DTYPE_BF16, ds_shape_1d(4)}, .data = half},
        {.kind = "param", .name = "scalar", .meta = {DS_DTYPE_F32, {0}}, .data = whole + 1},
        {.kind = "param", .name = "empty", .meta = {DS_DTYPE_F32, ds_shape_1d(0)}},
    };
    ds_checkpoint_writer *w = NULL;
    const ds_checkpoint_params params = {.dir = dir,
                                         .tag = tag,
                                         .step = (uint64_t)step,
                                         .samples = (uint64_t)step * 8,
                                         .tokens = (uint64_t)step * 1024,
                                         .optimizer = "adamw"};
    DS_TRY(ds_checkpoint_writer_create(ctx, &params, &w));
    ds_status status = DS_OK;
    for (size_t i = 0; i < sizeof slices / sizeof slices[0]; ++i) {
        DS_TRY_GOTO(status, ds_checkpoint_writer_add(w, &slices[i]), undo);
    }
    DS_TRY_GOTO(status,
                ds_checkpoint_writer_state(w, "random",
                                           " { \"seed\": 9223372036854775807,\n \"x\": 0.1 } "),
                undo);
    DS_TRY_GOTO(status, ds_checkpoint_writer_state(w, "config", "{\"a\":[1,2.5e-300,\"\\u00e9\"]}"),
                undo);
    DS_TRY_GOTO(status, ds_checkpoint_writer_state(w, "data", "null"), undo);
    return ds_checkpoint_writer_commit(&w);
undo:
    ds_checkpoint_writer_abort(&w);
    return status;
}

void cut_save_check(ds_ctx *ctx, ds_checkpoint *c, const char *kind, int step)
{
    float out[CUT_COUNT];
    const ds_checkpoint_tensor *t = ds_checkpoint_find(c, kind, "w");
    assert_non_null(t);
    CHECK_OK(ctx, ds_checkpoint_read(c, t, NULL, DS_DTYPE_F32, out));
    for (int i = 0; i < CUT_COUNT; ++i) {
        assert_true(out[i] == cut_save_value(step, i));
    }
}
