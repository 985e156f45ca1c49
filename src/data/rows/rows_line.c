/* SPDX-License-Identifier: Apache-2.0 */
/* A row a line. See rows.h. */
#include "data/rows/rows_impl.h"

#include <string.h>

ds_status dsi_rows_next_line(dsi_rows *r, dsi_buf *json, bool *end_out)
{
    ds_status status = DS_OK;
    *end_out = dsi_rows_look(r, &status) < 0;
    r->place = r->line;
    while (dsi_rows_look(r, &status) >= 0) {
        const char *end = memchr(r->piece, '\n', r->n_piece);
        const size_t n = end != NULL ? (size_t)(end - r->piece) : r->n_piece;
        dsi_buf_append(json, r->piece, n);
        r->piece += n;
        r->n_piece -= n;
        if (end != NULL) {
            (void)dsi_rows_byte(r, &status);
            break;
        }
    }
    return status;
}
