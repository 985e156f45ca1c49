/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of text containers of rows: the first byte chooses the kind, the rest is the file. */
#include "data/rows/rows.h"
#include "fuzz/fuzz_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"d.jsonl",    "d.json",    "d.csv",    "d.tsv",
                                        "d.jsonl.gz", "d.csv.zst", "d.json.gz"};
    enum { N_NAMES = sizeof names / sizeof names[0], ROW_BYTES = 1 << 20 };
    if (size == 0) {
        return 0;
    }
    dsi_rows *rows = NULL;
    dsi_buf json = dsi_buf_make(ROW_BYTES);
    bool end = false;
    uint64_t place = 0;
    const char *path = fuzz_put(names[data[0] % N_NAMES], data + 1, size - 1);
    ds_status status = dsi_rows_open(fuzz_context(), path, &rows);
    for (uint64_t n = 0; status >= 0 && !end && n < 5000; ++n) {
        dsi_buf_clear(&json);
        status = dsi_rows_next(rows, &json, &place, &end);
        fuzz_require(status < 0 || end || place > 0, "a row without a place");
    }
    fuzz_require(status >= 0 || *ds_ctx_error(fuzz_context()) != '\0',
                 "an error without a message");
    dsi_buf_free(&json);
    dsi_rows_close(&rows);
    return 0;
}
