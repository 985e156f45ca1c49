/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the rows of data files as JSON, a line each: data_rows FILE … An error is the line "ERROR
 * message". test/long/data_rows.sh compares them with those of other readers. */
#include "data/rows/rows.h"

#include <stdio.h>

static ds_status print_rows(ds_ctx *ctx, const char *path)
{
    dsi_rows *rows = NULL;
    dsi_buf json = dsi_buf_make(DSI_ROW_BYTES_MAX);
    uint64_t place = 0;
    bool end = false;
    DS_TRY(dsi_rows_open(ctx, path, &rows));
    ds_status status = DS_OK;
    while (status >= 0 && !end) {
        dsi_buf_clear(&json);
        status = dsi_rows_next(rows, &json, &place, &end);
        if (status >= 0 && !end) {
            (void)fwrite(dsi_buf_text(&json), 1, json.size, stdout);
            (void)putchar('\n');
        }
    }
    dsi_buf_free(&json);
    dsi_rows_close(&rows);
    return status;
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    int code = 0;
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    for (int i = 1; i < argc; ++i) {
        if (print_rows(ctx, argv[i]) < 0) {
            (void)printf("ERROR %s\n", ds_ctx_error(ctx));
            code = 1;
        }
    }
    ds_ctx_destroy(&ctx);
    return code;
}
