/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of GGUF files: any bytes. What is accepted is read to its last element, and made into a
 * config.json, names and a tokenizer, or a message. */
#include "ckpt/gguf_model.h"
#include "fuzz/fuzz_files.h"

enum { ROW = 1 << 16, ROWS = 1000 };

static void read_tensors(const dsi_gguf *g)
{
    static float out[ROW];
    for (size_t i = 0; i < dsi_gguf_n_tensors(g); ++i) {
        const dsi_gguf_tensor *t = dsi_gguf_tensor_at(g, i);
        const int64_t row = t->shape.dims[t->shape.n_dims - 1];
        const int64_t rows = ds_shape_count(t->shape) / row;
        dsi_gguf_source source;
        (void)dsi_gguf_place(fuzz_context(), g, t, &source);
        for (int64_t r = 0; row <= ROW && r < rows && r < ROWS; ++r) {
            (void)dsi_gguf_read_rows(g, t, r, 1, out);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dsi_gguf *g = NULL;
    json_t *config = NULL;
    ds_status status = dsi_gguf_open(fuzz_context(), fuzz_put("f.gguf", data, size), &g);
    if (status >= 0) {
        read_tensors(g);
        status = dsi_gguf_config(fuzz_context(), g, &config);
    }
    if (status >= 0) {
        (void)fuzz_put("tokenizer.json", "", 0);
        (void)dsi_gguf_tokenizer(fuzz_context(), g, fuzz_dir.path);
        fuzz_drop("tokenizer.json");
        fuzz_drop("tokenizer_config.json");
    }
    fuzz_require(status >= 0 || *ds_ctx_error(fuzz_context()) != '\0',
                 "an error without a message");
    json_decref(config);
    dsi_gguf_close(&g);
    return 0;
}
