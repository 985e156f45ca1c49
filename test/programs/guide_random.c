/* SPDX-License-Identifier: Apache-2.0 */
/* Random JSON schemas and texts that guides make of them, as lines {"schema", "text"}, for a
 * validator of another hand: test/long/guide_schemas.py. Usage: guide_random N SEEDS [FIRST] */
#include "common/check.h"
#include "common/guide_text.h"
#include "common/schema_valid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 500;
    const int seeds = argc > 2 ? atoi(argv[2]) : 3;
    const uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    ds_ctx *ctx = NULL;
    dsi_vocabulary *words = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0 || guide_words_make(ctx, &words) < 0) {
        return 1;
    }
    for (int i = 0; i < n; ++i) {
        dsi_guide *guide = NULL;
        json_t *schema = schema_random(first + (uint64_t)i);
        char *text = json_dumps(schema, JSON_COMPACT);
        if (dsi_guide_create(ctx, words, DSI_GUIDE_SCHEMA, text, strlen(text), &guide) < 0) {
            (void)printf("{\"refused\":true}\n");
            (void)fprintf(stderr, "%s\n  %s\n", text, ds_ctx_error(ctx));
        }
        for (int seed = 0; seed < seeds && guide != NULL; ++seed) {
            dsi_buf out = dsi_buf_make(1 << 20);
            const bool ended = guide_text_draw(
                guide, words, (first + (uint64_t)i) * 7 + (uint64_t)seed, 600, &out);
            json_t *line = json_pack("{s:O,s:s%,s:b}", "schema", schema, "text", dsi_buf_text(&out),
                                     out.size, "ended", ended);
            char *printed = json_dumps(line, JSON_COMPACT);
            (void)printf("%s\n", printed != NULL ? printed : "{\"broken\":true}");
            free(printed);
            json_decref(line);
            dsi_buf_free(&out);
        }
        dsi_guide_destroy(&guide);
        free(text);
        json_decref(schema);
    }
    dsi_vocabulary_destroy(&words);
    ds_ctx_destroy(&ctx);
    return 0;
}
