/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what training makes of chats: chat_masks FOLDER FILE…, with the tokenizer and chat
 * template of FOLDER, for each file of one sample a line {"ids": […], "mask": […]} (mask: 1 for a
 * token that counts in the loss) or {"error": "…"}. test/long/chat_masks.sh compares them with
 * transformers'. */
#include <deepspeed/context.h>
#include <deepspeed/data.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 16384 };

/* The first token of a row is nothing's target: its mask is 0. */
static ds_status print_row(ds_ctx *ctx, const ds_dataset *data)
{
    const ds_loader_params params = {.batch = 1, .seq_length = LENGTH};
    ds_loader *loader = NULL;
    ds_loader_batch batch;
    DS_TRY(ds_loader_create(ctx, data, &params, &loader));
    const ds_status status = ds_loader_next(loader, &batch);
    if (status >= 0) {
        const int32_t *ids = batch.input_ids.data;
        const int32_t *targets = batch.targets.data;
        json_t *row = json_pack("{s:[], s:[]}", "ids", "mask");
        for (uint64_t i = 0; i < batch.n_tokens; ++i) {
            json_array_append_new(json_object_get(row, "ids"), json_integer(ids[i]));
            json_array_append_new(json_object_get(row, "mask"),
                                  json_integer(i > 0 && targets[i - 1] >= 0));
        }
        json_dumpf(row, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(row);
    }
    ds_loader_destroy(&loader);
    return status;
}

static ds_status print_file(ds_ctx *ctx, const ds_tokenizer *tok, const ds_chat *chat,
                            const char *path)
{
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = tok, .chat = chat, .seq_length = LENGTH};
    ds_dataset *data = NULL;
    DS_TRY(ds_dataset_open(ctx, &params, &data));
    const ds_status status = print_row(ctx, data);
    ds_dataset_close(&data);
    return status;
}

static void print_error(const ds_ctx *ctx)
{
    json_t *line = json_pack("{s:s}", "error", ds_ctx_error(ctx));
    json_dumpf(line, stdout, JSON_COMPACT);
    (void)putchar('\n');
    json_decref(line);
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_tokenizer *tok = NULL;
    ds_chat *chat = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (argc < 3 || ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const bool opened =
        ds_tokenizer_open(ctx, argv[1], &tok) >= 0 && ds_chat_create(ctx, tok, NULL, &chat) >= 0;
    for (int i = 2; i < argc; ++i) {
        if (!opened || print_file(ctx, tok, chat, argv[i]) < 0) {
            print_error(ctx);
        }
    }
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tok);
    ds_ctx_destroy(&ctx);
    return 0;
}
