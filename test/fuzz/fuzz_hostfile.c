/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of what the launcher reads: hostfiles, choices of slots, env files, control lines, world
 * info, words of --launcher_args. The first byte picks the reader; what a quoted word splits into
 * is compared with the word. Seeds: none needed. */
#include "launch/exports.h"
#include "launch/hosts.h"

#include <deepspeed/context.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_hosts(ds_ctx *ctx, const char *text, size_t n)
{
    dsi_hosts hosts;
    if (dsi_hosts_parse(ctx, "hosts", text, n, &hosts) < 0) {
        return;
    }
    dsi_buf info = dsi_buf_make(64 << 20);
    dsi_hosts back;
    if (dsi_hosts_encode(ctx, &hosts, &info) < 0 ||
        dsi_hosts_decode(ctx, dsi_buf_text(&info), &back) < 0 ||
        dsi_hosts_n_ranks(&hosts) != dsi_hosts_n_ranks(&back)) {
        abort();
    }
    dsi_hosts_free(&back);
    dsi_hosts_free(&hosts);
    dsi_buf_free(&info);
}

static void choose(ds_ctx *ctx, const char *text, bool include)
{
    static const char pool[] = "w0 slots=4\nw1 slots=2\nx slots=1\n";
    dsi_hosts hosts;
    if (dsi_hosts_parse(ctx, "hosts", pool, sizeof pool - 1, &hosts) < 0) {
        abort();
    }
    (void)dsi_hosts_select(ctx, &hosts, include ? text : NULL, include ? NULL : text);
    dsi_hosts_free(&hosts);
}

static void quote_and_split(ds_ctx *ctx, const char *text)
{
    dsi_buf quoted = dsi_buf_make(1 << 20);
    dsi_words words = {0};
    dsi_shell_quote(&quoted, text);
    if (!quoted.failed && (dsi_shell_split(ctx, "f", dsi_buf_text(&quoted), &words) < 0 ||
                           words.n != 1 || strcmp(words.items[0], text) != 0)) {
        abort();
    }
    dsi_words_free(&words);
    dsi_buf_free(&quoted);
}

static void read_as(ds_ctx *ctx, uint8_t kind, char *text, size_t n)
{
    dsi_words words = {0};
    dsi_hosts hosts;
    switch (kind % 7) {
    case 0:
        read_hosts(ctx, text, n);
        break;
    case 1:
    case 2:
        choose(ctx, text, kind % 7 == 1);
        break;
    case 3:
        (void)dsi_exports_parse(ctx, "env", text, n, &words);
        break;
    case 4:
        (void)dsi_control_read(ctx, text, n, &words);
        break;
    case 5:
        if (dsi_hosts_decode(ctx, text, &hosts) >= 0) {
            dsi_hosts_free(&hosts);
        }
        break;
    default:
        (void)dsi_shell_split(ctx, "args", text, &words);
        quote_and_split(ctx, text);
        break;
    }
    dsi_words_free(&words);
}

static void drop_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    params.log = drop_line;
    ds_ctx *ctx = NULL;
    if (size == 0 || ds_ctx_create(&params, &ctx) < 0) {
        return 0;
    }
    char *text = malloc(size);
    if (text != NULL) {
        memcpy(text, data + 1, size - 1);
        text[size - 1] = '\0';
        read_as(ctx, data[0], text, size - 1);
    }
    free(text);
    ds_ctx_destroy(&ctx);
    return 0;
}
