/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of safetensors headers: any bytes as a file, or as a header whose size is right. What is
 * accepted is read to the last byte and written again. Build with clang
 * -fsanitize=fuzzer,address,undefined; seeds: test/golden/io/. */
#include "base/buf.h"
#include "io/safetensors_internal.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const ds_safetensors *st)
{
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        if (ds_safetensors_find(st, t->name) != t) {
            abort();
        }
        const size_t n = t->bytes / ds_dtype_bytes(t->meta.dtype);
        double *out = malloc(n * sizeof *out + 1);
        (void)ds_safetensors_read(NULL, t, t->meta.dtype, out);
        (void)ds_safetensors_read(NULL, t, DS_DTYPE_F64, out);
        (void)ds_safetensors_read(NULL, t, DS_DTYPE_F16, out);
        free(out);
    }
    const char *key = NULL;
    const char *value = NULL;
    for (size_t i = 0; ds_safetensors_metadata(st, i, &key, &value); ++i) {
        if (strlen(key) + strlen(value) > ((size_t)1 << 30)) {
            abort();
        }
    }
}

static void try_file(const uint8_t *data, size_t n)
{
    ds_safetensors *st = NULL;
    if (dsi_safetensors_create(NULL, 1, &st) < 0) {
        return;
    }
    if (dsi_safetensors_parse(st, "fuzz", data, n) == DS_OK && dsi_safetensors_index(st) == DS_OK) {
        use(st);
    }
    ds_safetensors_close(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *file = malloc(size + 8); /* of the exact size, so that a read past it is seen */
    if (file == NULL || size == 0) {
        free(file);
        return 0;
    }
    if (data[0] < 128) {
        memcpy(file, data, size);
        try_file(file, size);
    } else { /* the first byte deals the rest to header and data */
        const uint64_t n_data = data[0] - 128u < size - 1 ? data[0] - 128u : 0;
        const uint64_t n_header = size - 1 - n_data;
        for (int i = 0; i < 8; ++i) {
            file[i] = (uint8_t)(n_header >> (8 * i));
        }
        memcpy(file + 8, data + 1, size - 1);
        try_file(file, size + 7);
    }
    free(file);
    return 0;
}
