/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of Parquet files: any bytes. Reading ends, with rows that are JSON or with a message. */
#include "data/parquet/parquet.h"
#include "fuzz/fuzz_files.h"
#include "io/json_load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { ROW_BYTES = 1 << 20, ROWS = 2000 };
    dsi_parquet *file = NULL;
    dsi_buf json = dsi_buf_make(ROW_BYTES);
    bool end = false;
    ds_status status = dsi_parquet_open(fuzz_context(), fuzz_put("d.parquet", data, size), &file);
    for (int i = 0; i < ROWS && status >= 0 && !end; ++i) {
        dsi_buf_clear(&json);
        status = dsi_parquet_next(file, &json, &end);
        if (status >= 0 && !end) {
            json_error_t error;
            json_t *row = dsi_json_parse(dsi_buf_text(&json), json.size, JSON_ALLOW_NUL, &error);
            fuzz_require(row != NULL || json_error_code(&error) == json_error_null_byte_in_key,
                         "a row is no JSON");
            json_decref(row);
        }
    }
    fuzz_require(status >= 0 || *ds_ctx_error(fuzz_context()) != '\0',
                 "an error without a message");
    dsi_buf_free(&json);
    dsi_parquet_close(&file);
    return 0;
}
