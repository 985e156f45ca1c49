/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of checkpoint manifests: any bytes, and any bytes with the right checksum line after them.
 * What is accepted is printed and must be accepted again. Build with clang
 * -fsanitize=fuzzer,address,undefined; seeds: test/golden/ckpt/. */
#include "ckpt/ckpt_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool parse(const char *text, size_t n, dsi_buf *again)
{
    dsi_ckpt_manifest m = {0};
    if (dsi_arena_create((size_t)1 << 28, &m.arena) < 0) {
        return false;
    }
    const bool right = dsi_ckpt_manifest_parse(NULL, "fuzz", text, n, &m) == DS_OK;
    if (right && again != NULL && dsi_ckpt_manifest_text(NULL, &m, again) < 0) {
        abort();
    }
    dsi_arena_destroy(&m.arena);
    return right;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dsi_buf again = dsi_buf_make((size_t)1 << 28);
    char *text = malloc(size + 128);
    if (text == NULL || size > ((size_t)1 << 20)) {
        free(text);
        return 0;
    }
    memcpy(text, data, size);
    (void)parse(text, size, NULL);
    text[size] = '\0';
    char *tail = strstr(text, "\"checksum\"");
    char *end = tail != NULL ? tail : text + size;
    const uint64_t digest = XXH3_64bits(text, (size_t)(end - text));
    end += snprintf(end, 64, "\"checksum\": \"%016llx\"\n}\n", (unsigned long long)digest);
    if (parse(text, (size_t)(end - text), &again) && !parse(again.data, again.size, NULL)) {
        abort();
    }
    dsi_buf_free(&again);
    free(text);
    return 0;
}
