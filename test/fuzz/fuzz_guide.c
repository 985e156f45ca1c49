/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer: any text as a JSON schema, a regular expression or GBNF, by its first byte; then a text
 * that the form allows. A text that goes on can always be ended: some token comes next. */
#include "common/guide_text.c"
#include "common/guide_text.h"
#include "common/schema_random.c"
#include "common/schema_valid.h"

#include <deepspeed/context.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ds_ctx *ctx; /* made once for the run of the fuzzer */
    static dsi_vocabulary *words;
    static const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ctx == NULL && (ds_ctx_create(&params, &ctx) < 0 || guide_words_make(ctx, &words) < 0)) {
        abort();
    }
    dsi_guide *guide = NULL;
    if (size == 0 || dsi_guide_create(ctx, words, (dsi_guide_kind)(data[0] % 3),
                                      (const char *)data + 1, size - 1, &guide) < 0) {
        return 0;
    }
    dsi_buf text = dsi_buf_make(1 << 16);
    (void)guide_text_draw(guide, words, size, 40, &text);
    if (dsi_guide_where_bytes(guide, dsi_buf_text(&text), text.size) == DSI_GUIDE_BROKEN) {
        abort();
    }
    dsi_buf_free(&text);
    dsi_guide_destroy(&guide);
    return 0;
}
