/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of a model folder's weights in shards: model.safetensors.index.json and the shards
 * a.safetensors and b.safetensors, separated by "%%%%". */
#include "fuzz/fuzz_files.h"

#include <deepspeed/safetensors.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"model.safetensors.index.json", "a.safetensors",
                                        "b.safetensors"};
    fuzz_input input = {data, size, true};
    const uint8_t *part = NULL;
    size_t n = 0;
    ds_safetensors *st = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (fuzz_part(&input, &part, &n)) {
            (void)fuzz_put(names[i], part, n);
        } else {
            fuzz_drop(names[i]);
        }
    }
    if (ds_safetensors_open_folder(fuzz_context(), fuzz_dir.path, &st) >= 0) {
        for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
            const ds_safetensor *t = ds_safetensors_at(st, i);
            fuzz_require(ds_safetensors_find(st, t->name) == t, "a tensor is not found");
            uint8_t sum = 0;
            for (size_t k = 0; k < t->bytes; ++k) {
                sum = (uint8_t)(sum + ((const uint8_t *)t->data)[k]);
            }
            (void)fuzz_put("sum", &sum, 1);
        }
        ds_safetensors_close(&st);
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    return 0;
}
