/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what rows of training data become, a JSON object a row: schema_rows TOKENIZER TEMPLATE
 * COLUMN_MAP FILE. TEMPLATE and COLUMN_MAP may be empty. An error is {"error": message}.
 * test/long/data_schemas.sh compares them with TRL's. */
#include "data/rows/rows.h"
#include "data/source.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static void print_line(const dsi_line *line)
{
    json_t *ids = json_array();
    json_t *mask = json_array();
    for (uint64_t i = 0; i < line->n; ++i) {
        (void)json_array_append_new(ids, json_integer(line->ids[i]));
        (void)json_array_append_new(mask, json_integer(line->counted[i]));
    }
    json_t *out = line->status < 0
                      ? json_pack("{s:s}", "error", line->message)
                      : json_pack("{s:s, s:O, s:O, s:I}", "schema", dsi_schema_name(line->schema),
                                  "ids", ids, "mask", mask, "n_chosen", (json_int_t)line->n_chosen);
    (void)json_dumpf(out, stdout, JSON_COMPACT);
    (void)putchar('\n');
    json_decref(out);
    json_decref(ids);
    json_decref(mask);
}

static ds_status print_rows(ds_ctx *ctx, const ds_dataset_params *params, const char *path)
{
    dsi_rows *rows = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    dsi_buf json = dsi_buf_make(DSI_ROW_BYTES_MAX);
    uint64_t place = 0;
    bool end = false;
    DS_TRY(dsi_rows_open(ctx, path, &rows));
    ds_status status = ds_tokenizer_scratch_create(params->tokenizer, 0, &scratch);
    while (status >= 0 && !end) {
        dsi_buf_clear(&json);
        status = dsi_rows_next(rows, &json, &place, &end);
        if (status >= 0 && !end) {
            dsi_line line;
            dsi_line_tokenize(params, scratch, dsi_buf_text(&json), json.size, &line);
            print_line(&line);
            dsi_line_free(&line);
        }
    }
    ds_tokenizer_scratch_destroy(&scratch);
    dsi_buf_free(&json);
    dsi_rows_close(&rows);
    return status;
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_tokenizer *tok = NULL;
    ds_chat *chat = NULL;
    if (argc != 5 || ds_ctx_create(NULL, &ctx) < 0) {
        return 2;
    }
    ds_status status = ds_tokenizer_open(ctx, argv[1], &tok);
    if (status >= 0 && (argv[2][0] != '\0' || ds_tokenizer_chat_template(tok) != NULL)) {
        status = ds_chat_create(ctx, tok, argv[2], &chat);
    }
    if (status >= 0) {
        const ds_dataset_params params = {.tokenizer = tok,
                                          .chat = chat,
                                          .append_eos = true,
                                          .column_map = argv[3][0] != '\0' ? argv[3] : NULL};
        status = print_rows(ctx, &params, argv[4]);
    }
    if (status < 0) {
        (void)fprintf(stderr, "schema_rows: %s\n", ds_ctx_error(ctx));
    }
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
    ds_ctx_destroy(&ctx);
    return status >= 0 ? 0 : 1;
}
