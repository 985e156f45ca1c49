/* SPDX-License-Identifier: Apache-2.0 */
/* Errors and notices of one file. See config_diag.h. */
#include "config/config_diag.h"

#include "base/plain.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_MESSAGE = 2000, MAX_PLAIN = 2 * MAX_MESSAGE + 4096 };

static const char *compose(dsi_diags *diags, uint32_t line, uint32_t column, const char *path,
                           const char *format, va_list args)
{
    dsi_buf buf = dsi_buf_make(MAX_MESSAGE + 4096);
    dsi_buf_puts(&buf, diags->name);
    if (line != 0 && !diags->no_places) {
        dsi_buf_printf(&buf, ":%" PRIu32 ":%" PRIu32, line, column);
    }
    dsi_buf_puts(&buf, ": ");
    if (path != NULL && path[0] != '\0') {
        dsi_buf_printf(&buf, "%s: ", path);
    }
    char message[MAX_MESSAGE];
    char plain[MAX_PLAIN]; /* a line: what a key holds begins no new one */
    (void)vsnprintf(message, sizeof message, format, args);
    dsi_buf_puts(&buf, message);
    const char *text =
        buf.failed ? NULL
                   : dsi_arena_strdup(diags->arena,
                                      dsi_plain_name(dsi_buf_text(&buf), plain, sizeof plain));
    dsi_buf_free(&buf);
    diags->no_memory = diags->no_memory || text == NULL;
    return text;
}

void dsi_error_at(dsi_diags *diags, uint32_t line, uint32_t column, const char *path,
                  const char *format, ...)
{
    if (diags->n_errors++ >= DSI_DIAG_MAX_ERRORS) {
        return;
    }
    va_list args;
    va_start(args, format);
    const char *text = compose(diags, line, column, path, format, args);
    va_end(args);
    diags->errors[diags->n_errors - 1] =
        (dsi_diag){line, column, text != NULL ? text : "an error whose message found no memory"};
}

void dsi_notice_at(dsi_diags *diags, uint32_t line, uint32_t column, const char *path,
                   const char *format, ...)
{
    if (diags->notices == NULL) {
        diags->notices = dsi_arena_array(diags->arena, DSI_DIAG_MAX_NOTICES, sizeof(dsi_diag));
        diags->no_memory = diags->no_memory || diags->notices == NULL;
    }
    if (diags->notices == NULL || diags->n_notices == DSI_DIAG_MAX_NOTICES) {
        return;
    }
    va_list args;
    va_start(args, format);
    const char *text = compose(diags, line, column, path, format, args);
    va_end(args);
    if (text != NULL) {
        diags->notices[diags->n_notices++] = (dsi_diag){line, column, text};
    }
}

/* Insertion sort: stable, and the lists are short. Those without a place go last. */
static void sort(dsi_diag *list, size_t n)
{
    for (size_t i = 1; i < n; ++i) {
        const dsi_diag item = list[i];
        const uint64_t key = item.line != 0 ? (uint64_t)item.line << 32 | item.column : UINT64_MAX;
        size_t j = i;
        for (; j > 0; --j) {
            const dsi_diag *before = &list[j - 1];
            const uint64_t other =
                before->line != 0 ? (uint64_t)before->line << 32 | before->column : UINT64_MAX;
            if (other <= key) {
                break;
            }
            list[j] = *before;
        }
        list[j] = item;
    }
}

static size_t n_kept(const dsi_diags *diags)
{
    return diags->n_errors < DSI_DIAG_MAX_ERRORS ? diags->n_errors : DSI_DIAG_MAX_ERRORS;
}

void dsi_diags_sort(dsi_diags *diags)
{
    sort(diags->errors, n_kept(diags));
    if (diags->notices != NULL) {
        sort(diags->notices, diags->n_notices);
    }
}

void dsi_diags_write(const dsi_diags *diags, dsi_buf *buf)
{
    for (size_t i = 0; i < n_kept(diags); ++i) {
        dsi_buf_printf(buf, "%s%s", i != 0 ? "\n" : "", diags->errors[i].text);
    }
    if (diags->n_errors > DSI_DIAG_MAX_ERRORS) {
        dsi_buf_printf(buf, "\n… and %zu more errors", diags->n_errors - DSI_DIAG_MAX_ERRORS);
    }
}
