/* SPDX-License-Identifier: Apache-2.0 */
/* Reading graph text word by word. Used by graph_parse.c; not a general scanner.
 *
 * Each function takes what it is asked for or fails with ERR_FORMAT naming line, column, what was
 * expected and what stands there. Nothing is skipped but what was asked for.
 */
#ifndef DSI_IR_TEXT_SCAN_H
#define DSI_IR_TEXT_SCAN_H

#include "base/buf.h"
#include <deepspeed/tensor.h>

#include <locale.h>

typedef struct dsi_text_scan {
    ds_ctx *ctx;
    const char *at;   /* the next character; the text ends with a zero byte */
    const char *line; /* start of the line that `at` is in */
    uint32_t n_lines; /* of that line, from 1 */
    locale_t numbers; /* of real numbers: "C" */
} dsi_text_scan;

/* ERR_FORMAT at the cursor: "line 3, column 7: expected X, found Y". */
ds_status dsi_text_expected(const dsi_text_scan *scan, const char *what);

/* Whether the text goes on with `word`; takes it then. */
bool dsi_text_try(dsi_text_scan *scan, const char *word);
ds_status dsi_text_take(dsi_text_scan *scan, const char *word);
/* Takes the newline and begins the next line. */
ds_status dsi_text_end_line(dsi_text_scan *scan);
/* Takes one or more of [a-z0-9_]. The word goes to `word`, room bytes, terminated. */
ds_status dsi_text_word(dsi_text_scan *scan, const char *what, char *word, size_t room);
/* A quoted name as dsi_buf_json() writes it; replaces what is in `name`. */
ds_status dsi_text_name(dsi_text_scan *scan, const char *what, dsi_buf *name);
ds_status dsi_text_int(dsi_text_scan *scan, const char *what, int64_t *value_out);
/* An id below DS_NONE. */
ds_status dsi_text_id(dsi_text_scan *scan, const char *what, uint32_t *id_out);
/* A real number as dsi_text_print_real() writes it: the same bits. */
ds_status dsi_text_real(dsi_text_scan *scan, const char *what, double *value_out);
/* "bf16[4,8]". The dtype may be "none". Bytes of the tensor fit a size_t. */
ds_status dsi_text_meta(dsi_text_scan *scan, ds_meta *meta_out);

/* The shortest decimal that gives the same bits back, in any locale; "inf", "-inf", and
 * "nan:7ff8000000000000", the bits, for what is not a number. */
void dsi_text_print_real(dsi_buf *text, double value);

#endif
