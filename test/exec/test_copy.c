/* SPDX-License-Identifier: Apache-2.0 */
/* Copies within a cell, on the host and where the host cannot reach it. */
#include "common/check.h"
#include "exec/exec.h"

#include <string.h>

enum { ROWS = 4, WIDTH = 1500 };

static void fill(float row[WIDTH], float first)
{
    for (int i = 0; i < WIDTH; ++i) {
        row[i] = first + (float)i;
    }
}

static void rows_of(ds_ctx *ctx, const char *accelerator)
{
    const size_t bytes = WIDTH * sizeof(float);
    dsi_accel_choice choice;
    dsi_exec *exec = NULL;
    ds_cells *cells = NULL;
    ds_cell cell = 0;
    float rows[ROWS][WIDTH], got[WIDTH];
    const ds_cell_info info = {.name = "carried",
                               .kind = DS_CELL_STATE,
                               .meta = {DS_DTYPE_F32, ds_shape_2d(ROWS, WIDTH)},
                               .of = DS_NONE};
    CHECK_OK(ctx, ds_cells_create(ctx, 4, &cells));
    CHECK_OK(ctx, ds_cells_add(cells, &info, &cell));
    CHECK_OK(ctx, dsi_exec_create(ctx, cells, NULL, &exec));
    CHECK_OK(ctx, dsi_accel_choose(ctx, accelerator, &choice));
    CHECK_OK(ctx, dsi_exec_set_accel(exec, &choice));
    CHECK_OK(ctx, dsi_exec_allocate(exec));
    for (int r = 0; r < ROWS; ++r) {
        fill(rows[r], (float)(r * WIDTH));
        CHECK_OK(ctx, dsi_exec_write(exec, cell, (size_t)r * bytes, rows[r], bytes));
    }
    CHECK_OK(ctx, dsi_exec_copy(exec, cell, 0, 2 * bytes, bytes));
    CHECK_OK(ctx, dsi_exec_copy(exec, cell, 3 * bytes, 0, bytes));
    CHECK_FAILS(ctx, dsi_exec_copy(exec, cell, 0, bytes / 2, bytes), DS_ERR_STATE, "they overlap");
    static const int from[ROWS] = {3, 1, 0, 3};
    for (int r = 0; r < ROWS; ++r) {
        CHECK_OK(ctx, dsi_exec_read(exec, cell, (size_t)r * bytes, got, bytes));
        assert_memory_equal(got, rows[from[r]], bytes);
    }
    dsi_exec_destroy(&exec);
    ds_cells_destroy(&cells);
}

static void copies(void **state)
{
    rows_of(*state, "cpu");
    rows_of(*state, "sim");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
