/* SPDX-License-Identifier: Apache-2.0 */
/* ds_data check: a table a file, a line a schema. See data_check.h. */
#include "common/data_check.h"

#include "base/plain.h"
#include "data/source.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <string.h>

/* What a file holds of one schema. */
typedef struct tally {
    uint64_t rows, tokens, counted;
} tally;

static ds_status count(void *user, const dsi_document *document)
{
    tally *t = &((tally *)user)[document->schema];
    t->rows += !document->joins;
    t->tokens += document->n;
    for (uint64_t i = 0; i < document->n; ++i) {
        t->counted += document->counted == NULL || document->counted[i] != 0;
    }
    return DS_OK;
}

static void print_table(const char *path, const tally *tallies, uint64_t n_bad)
{
    char name[300];
    (void)printf("%s\n  %-19s %12s %14s %14s\n", dsi_plain_name(path, name, sizeof name), "schema",
                 "rows", "tokens", "in the loss");
    for (size_t i = 0; i < DSI_N_SCHEMAS; ++i) {
        if (tallies[i].rows > 0) {
            (void)printf("  %-19s %12llu %14llu %14llu\n", dsi_schema_name((dsi_schema)i),
                         (unsigned long long)tallies[i].rows, (unsigned long long)tallies[i].tokens,
                         (unsigned long long)tallies[i].counted);
        }
    }
    if (n_bad > 0) {
        (void)printf("  %-19s %12llu\n", "bad, left out", (unsigned long long)n_bad);
    }
}

static ds_status check_files(ds_ctx *ctx, const data_check_options *o,
                             const ds_dataset_params *params)
{
    bool preferences = false;
    uint64_t n_bad = 0;
    for (size_t i = 0; i < o->files->n; ++i) {
        tally tallies[DSI_N_SCHEMAS] = {{0}};
        const uint64_t before = n_bad;
        const dsi_source_sink sink = {
            .document = count, .user = tallies, .any_schema = true, .n_bad = &n_bad};
        DS_TRY(dsi_source_read(ctx, params, o->files->paths[i], &sink));
        print_table(o->files->paths[i], tallies, n_bad - before);
        preferences |= tallies[DSI_SCHEMA_PREFERENCE].rows + tallies[DSI_SCHEMA_UNPAIRED].rows > 0;
    }
    if (preferences) {
        (void)printf(
            "Preferences are trained on with ds_train --objective. Their tokens are those of "
            "the prompt with each answer.\n");
    }
    return DS_OK;
}

ds_status data_alpaca(ds_ctx *ctx, const char *flag, const ds_chat *chat, uint64_t *alpaca_out)
{
    if (strcmp(flag, "template") == 0 && chat == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--alpaca template needs a chat template, and the tokenizer has none: give "
                       "--chat_template, such as chatml");
    }
    *alpaca_out = chat != NULL && strcmp(flag, "stanford") != 0 ? DS_ALPACA_CHAT : DS_ALPACA_PROMPT;
    return DS_OK;
}

ds_status data_check(ds_ctx *ctx, const data_check_options *o)
{
    ds_tokenizer *tokenizer = NULL;
    ds_chat *chat = NULL;
    DS_TRY(ds_tokenizer_open(ctx, o->tokenizer, &tokenizer));
    ds_status status = DS_OK;
    if (o->chat_template != NULL || ds_tokenizer_chat_template(tokenizer) != NULL) {
        status = ds_chat_create(ctx, tokenizer, o->chat_template, &chat);
    }
    uint64_t alpaca = DS_ALPACA_PROMPT;
    status = status < 0 ? status : data_alpaca(ctx, o->alpaca, chat, &alpaca);
    if (status >= 0) {
        const ds_dataset_params params = {.tokenizer = tokenizer,
                                          .chat = chat,
                                          .append_eos = o->append_eos,
                                          .column_map = o->column_map,
                                          .skip_bad = o->skip_bad,
                                          .alpaca = alpaca};
        status = check_files(ctx, o, &params);
    }
    ds_chat_destroy(&chat);
    ds_tokenizer_close(&tokenizer);
    return status;
}
