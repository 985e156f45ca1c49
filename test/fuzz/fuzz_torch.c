/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of files of torch.save: any bytes as a file; behind a first byte of 0xff, any bytes as its
 * pickle. What is accepted is copied to the last element. Seeds: test/golden/io/torch/. */
#include "fuzz/fuzz_files.h"
#include "io/torch_file.h"

static uint8_t storage[64];

static bool find_storage(void *user, const char *key, const uint8_t **data_out, size_t *bytes_out)
{
    (void)user;
    *data_out = storage;
    *bytes_out = strlen(key) * 4;
    return *bytes_out <= sizeof storage;
}

static void use(const dsi_pickle *value, unsigned depth)
{
    fuzz_require(depth <= DSI_PICKLE_DEPTH, "a tree deeper than its bound");
    if (value->kind == DSI_PICKLE_TENSOR && dsi_pickle_bytes(value->tensor) < 1 << 20) {
        uint8_t *room = malloc(dsi_pickle_bytes(value->tensor) + 1);
        fuzz_require(room != NULL, "memory");
        dsi_pickle_copy(value->tensor, room);
        free(room);
    }
    if (value->kind == DSI_PICKLE_DICT || value->kind == DSI_PICKLE_LIST) {
        for (size_t i = 0; i < value->list.n && i < 8 && depth < 8; ++i) {
            use(value->list.items[i], depth + 1);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 0xff) {
        dsi_arena *arena = NULL;
        dsi_pickle *value = NULL;
        const dsi_pickle_source source = {"fuzz", data + 1, size - 1, find_storage, NULL};
        fuzz_require(dsi_arena_create((size_t)1 << 26, &arena) == DS_OK, "memory");
        if (dsi_pickle_load(fuzz_context(), &source, arena, &value) == DS_OK) {
            use(value, 0);
        }
        dsi_arena_destroy(&arena);
        return 0;
    }
    dsi_torch_file f = {0};
    if (dsi_torch_parse(fuzz_context(), "fuzz", data, size, &f) == DS_OK) {
        use(f.root, 0);
        dsi_torch_close(&f);
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    return 0;
}
