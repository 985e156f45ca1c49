/* SPDX-License-Identifier: Apache-2.0 */
/* Curves in a terminal. See plot.h. */
#include "plot.h"

#include <math.h>
#include <stdbool.h>

enum { MAX_COLUMNS = 240 };

/* The value at a column: the mean of the samples that fall on it. */
static double column_value(const double *values, size_t n, size_t column, size_t columns)
{
    const size_t begin = column * n / columns;
    size_t end = (column + 1) * n / columns;
    end = end > begin ? end : begin + 1;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) {
        sum += values[i];
    }
    return sum / (double)(end - begin);
}

void dsi_plot(FILE *stream, const char *title, const double *values, size_t n, uint64_t first,
              uint64_t last, size_t columns, size_t rows)
{
    static const char *const marks[] = {" ", "▄", "▀", "█"}; /* bit 0: lower half, bit 1: upper */
    size_t height[MAX_COLUMNS];                              /* in half rows */
    columns = columns < MAX_COLUMNS ? columns : MAX_COLUMNS;
    columns = columns < n ? columns : n;
    double low = values[0];
    double high = values[0];
    for (size_t i = 1; i < n; ++i) {
        low = fmin(low, values[i]);
        high = fmax(high, values[i]);
    }
    const double span = high > low ? high - low : 1;
    for (size_t c = 0; c < columns; ++c) {
        const double part = (column_value(values, n, c, columns) - low) / span;
        height[c] = (size_t)lround(part * (double)(2 * rows - 1));
    }
    if (title != NULL) {
        (void)fprintf(stream, "%s\n", title);
    }
    for (size_t row = rows; row-- > 0;) {
        const bool labelled = row == 0 || row == rows - 1 || row == rows / 2;
        if (labelled) {
            (void)fprintf(stream, "%10.3g ┤", low + span * (double)row / (double)(rows - 1));
        } else {
            (void)fprintf(stream, "%10s │", "");
        }
        for (size_t c = 0; c < columns; ++c) {
            const size_t mark = height[c] / 2 == row ? (height[c] % 2 == 0 ? 1 : 2) : 0;
            (void)fputs(marks[mark], stream);
        }
        (void)fputc('\n', stream);
    }
    (void)fprintf(stream, "%10s └", "");
    for (size_t c = 0; c < columns; ++c) {
        (void)fputs("─", stream);
    }
    char begin[24];
    const int used = snprintf(begin, sizeof begin, "%llu", (unsigned long long)first);
    const int room = (int)columns > used ? (int)columns - used : 1;
    (void)fprintf(stream, "\n%10s  %s%*llu\n", "", begin, room, (unsigned long long)last);
}
