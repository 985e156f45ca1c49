/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of loader cursors: any text as the saved state, and any position within a right one. The
 * first byte chooses kind of data and rank. What is accepted reads on, and saves as a cursor that
 * is accepted again. */
#include "fuzz/fuzz_rows.h"

enum { LENGTH = 6, RANKS = 3 };

static ds_dataset *dataset_of(const char *name, const char *text)
{
    static ds_tokenizer *bytes;
    ds_dataset *dataset = NULL;
    fuzz_require(bytes != NULL || ds_tokenizer_open(fuzz_context(), "bytes", &bytes) >= 0, "bytes");
    const char *path = fuzz_put(name, text, strlen(text));
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = bytes, .seq_length = LENGTH};
    fuzz_require(ds_dataset_open(fuzz_context(), &params, &dataset) >= 0, "data");
    return dataset;
}

static void restore(ds_loader *loader, const ds_dataset *dataset, const char *text)
{
    if (ds_loader_restore(loader, text) >= 0) {
        char *again = NULL;
        for (int i = 0; i < 4; ++i) {
            ds_loader_batch rows;
            fuzz_require(ds_loader_next(loader, &rows) >= 0, "next");
            fuzz_check_batch(&rows, ds_dataset_get_info(dataset).max_id);
        }
        fuzz_require(ds_loader_save(loader, &again) >= 0 && ds_loader_restore(loader, again) >= 0,
                     "a saved cursor is refused");
        free(again);
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
}

/* The cursor of a loader at its start, with another position. */
static void move(ds_loader *loader, const ds_dataset *dataset, uint32_t epoch, int64_t next)
{
    char *saved = NULL;
    char text[512];
    fuzz_require(ds_loader_save(loader, &saved) >= 0, "save");
    const char *rest = strstr(saved, "\"seed\"");
    fuzz_require(rest != NULL, "the seed follows the position");
    (void)snprintf(text, sizeof text, "{\"epoch\":%u,\"next\":%lld,%s", epoch, (long long)next,
                   rest);
    free(saved);
    restore(loader, dataset, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ds_dataset *datasets[2];
    if (datasets[0] == NULL) {
        datasets[0] = dataset_of("stream.txt", "the quick brown fox jumps over the lazy dog");
        datasets[1] = dataset_of("samples.jsonl", "{\"prompt\":\"ab\",\"completion\":\"cd\"}\n"
                                                  "{\"prompt\":\"e\",\"completion\":\"fgh\"}\n"
                                                  "{\"prompt\":\"ijk\",\"completion\":\"l\"}\n");
    }
    if (size == 0) {
        return 0;
    }
    char *text = strndup((const char *)data + 1, size - 1);
    const ds_dataset *dataset = datasets[data[0] & 1];
    const ds_loader_params params = {.batch = 2,
                                     .seq_length = LENGTH,
                                     .seed = 5,
                                     .shuffle = true,
                                     .rank = data[0] / 2 % RANKS,
                                     .n_ranks = RANKS};
    ds_loader *loader = NULL;
    fuzz_require(text != NULL && ds_loader_create(fuzz_context(), dataset, &params, &loader) >= 0,
                 "loader");
    if (size >= 13) {
        uint32_t epoch;
        int64_t next;
        memcpy(&epoch, data + 1, sizeof epoch);
        memcpy(&next, data + 5, sizeof next);
        epoch &= INT32_MAX; /* a saved epoch may be one more */
        move(loader, dataset, epoch, next);
        move(loader, dataset, epoch, next & 63);
    }
    restore(loader, dataset, text);
    ds_loader_destroy(&loader);
    free(text);
    return 0;
}
