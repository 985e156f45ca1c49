/* SPDX-License-Identifier: Apache-2.0 */
/* Bandwidths and sizes as text. See bandwidth.h. */
#include "comm/bandwidth.h"

#include <stdio.h>
#include <string.h>

dsi_bandwidth dsi_coll_bandwidth(ds_comm_op kind, size_t bytes, uint32_t n, double seconds)
{
    const double others = n > 0 ? (double)(n - 1) / (double)n : 0.0;
    const double rate = seconds > 0.0 ? (double)bytes / seconds : 0.0;
    switch (kind) {
    case DS_COMM_ALL_REDUCE:
        return (dsi_bandwidth){2.0 * rate, 2.0 * rate * others};
    case DS_COMM_ALL_GATHER:
        return (dsi_bandwidth){rate * n, rate * n * others};
    case DS_COMM_REDUCE_SCATTER:
    case DS_COMM_ALL_TO_ALL:
        return (dsi_bandwidth){rate, rate * others};
    default:
        return (dsi_bandwidth){rate, rate};
    }
}

char *dsi_size_text(size_t bytes, char *text)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;
    if (bytes == 0) {
        (void)snprintf(text, DSI_SIZE_TEXT_BYTES, "0B");
        return text;
    }
    while (value >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        ++unit;
    }
    int n = snprintf(text, DSI_SIZE_TEXT_BYTES, "%.2f", value);
    n -= text[n - 1] == '0' ? 1 : 0; /* 16.00 reads 16.0 */
    (void)snprintf(text + n, DSI_SIZE_TEXT_BYTES - (size_t)n, " %s", units[unit]);
    return text;
}
