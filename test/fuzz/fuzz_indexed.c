/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of indexed data: an .idx and a .bin of any content, separated by "%%%%". What opens has
 * documents that ascend within the tokens, and batches that are sound; alone and copied. */
#include "data/dataset.h"
#include "data/indexed.h"
#include "fuzz/fuzz_rows.h"

enum { LENGTH = 8 };

static void check_index(const char *path)
{
    dsi_indexed x;
    if (dsi_indexed_open(fuzz_context(), path, &x) < 0) {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
        return;
    }
    uint64_t before = 0;
    fuzz_require(x.n_tokens <= x.bin.size / x.width, "tokens");
    for (uint64_t d = 0; d <= dsi_indexed_n_documents(&x); ++d) {
        const uint64_t begin = dsi_indexed_begin(&x, d);
        fuzz_require(begin >= before && begin <= x.n_tokens, "documents");
        before = begin;
    }
    dsi_indexed_close(&x);
}

static void check_dataset(const char *path, uint32_t n_files)
{
    const char *files[2] = {path, path};
    const ds_dataset_params params = {.files = files, .n_files = n_files, .seq_length = LENGTH};
    ds_dataset *dataset = NULL;
    if (ds_dataset_open(fuzz_context(), &params, &dataset) >= 0) {
        ds_dataset *tail = NULL;
        fuzz_walk(dataset, 2, LENGTH);
        if (ds_dataset_split(dataset, 0.3, &tail) >= 0) {
            fuzz_walk(tail, 1, LENGTH);
            fuzz_walk(dataset, 1, LENGTH);
        }
        ds_dataset_close(&tail);
        ds_dataset_close(&dataset);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size, true};
    const uint8_t *part = NULL;
    size_t n = 0;
    (void)fuzz_part(&input, &part, &n);
    const char *path = fuzz_put("d.idx", part, n);
    if (!fuzz_part(&input, &part, &n)) {
        n = 0;
    }
    (void)fuzz_put("d.bin", part, n);
    check_index(path);
    check_dataset(path, 1);
    check_dataset(path, 2);
    return 0;
}
