/* SPDX-License-Identifier: Apache-2.0 */
/* Curves in a terminal, drawn with block letters: two dots high and one wide a character. */
#ifndef DSI_TOOLS_PLOT_H
#define DSI_TOOLS_PLOT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Draws n values (n >= 1, finite) as a curve of `columns` × `rows` characters, with an axis from
 * `first` to `last`. title may be NULL. */
void dsi_plot(FILE *stream, const char *title, const double *values, size_t n, uint64_t first,
              uint64_t last, size_t columns, size_t rows);

#endif
