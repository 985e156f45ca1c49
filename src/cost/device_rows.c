/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of profile files. See device_rows.h. */
#include "cost/device_rows.h"

#include <string.h>

#define REAL(s, k, field, low, high, need)                                                         \
    {                                                                                              \
        (s), (k), DSI_ROW_REAL, offsetof(dsi_device, field), 0, (low), (high), (need)              \
    }
#define BOOLEAN(s, k, field)                                                                       \
    {                                                                                              \
        (s), (k), DSI_ROW_BOOL, offsetof(dsi_device, field), 0, 0.0, 0.0, false                    \
    }

const dsi_profile_row dsi_device_rows[] = {
    {NULL, "name", DSI_ROW_TEXT, offsetof(dsi_device, name), sizeof(((dsi_device *)0)->name), 0.0,
     0.0, true},
    {NULL, "source", DSI_ROW_TEXT, offsetof(dsi_device, source), sizeof(((dsi_device *)0)->source),
     0.0, 0.0, false},
    BOOLEAN(NULL, "shared", shared),
    BOOLEAN(NULL, "in_place", in_place),
    REAL(NULL, "latency", latency, 0.0, 1.0, false),
    REAL(NULL, "overlap", overlap, 0.0, 1.0, false),
    REAL(NULL, "slowdown", slowdown, 0.0, 0.9, false),
    {NULL, "ranks_per_node", DSI_ROW_COUNT, offsetof(dsi_device, ranks_per_node), 0, 1.0, 65536.0,
     false},
    {NULL, "cores", DSI_ROW_COUNT, offsetof(dsi_device, cores.n), 0, 0.0, 65536.0, false},
    REAL("peak", "f32", peak[DSI_PEAK_F32], 1e6, 1e21, true),
    REAL("peak", "bf16", peak[DSI_PEAK_BF16], 1e6, 1e21, true),
    REAL("peak", "f16", peak[DSI_PEAK_F16], 1e6, 1e21, true),
    REAL("memory", "bytes", memory_bytes, 1e6, 1e18, true),
    REAL("memory", "bandwidth", memory_bandwidth, 1e6, 1e18, true),
    REAL("host", "bytes", host_memory_bytes, 1e6, 1e18, false),
    REAL("host", "bandwidth", host_bandwidth, 1e6, 1e18, false),
    REAL("host", "link", host_link, 1e6, 1e18, false),
    REAL("host", "adam", host_adam, 1e3, 1e15, false),
    REAL("disk", "read", disk_read, 1e3, 1e18, false),
    REAL("disk", "write", disk_write, 1e3, 1e18, false),
    REAL("disk", "both", disk_both, 1e3, 1e18, false),
    REAL("disk", "latency", disk_latency, 0.0, 10.0, false),
};

#define LINK_REAL(k, field, low, high)                                                             \
    {                                                                                              \
        NULL, (k), DSI_ROW_REAL, offsetof(dsi_link, field), 0, (low), (high), true                 \
    }
const dsi_profile_row dsi_link_rows[] = {
    {NULL, "name", DSI_ROW_TEXT, offsetof(dsi_link, name), sizeof(((dsi_link *)0)->name), 0.0, 0.0,
     true},
    LINK_REAL("latency", latency, 0.0, 10.0),
    LINK_REAL("bandwidth", bandwidth, 1e3, 1e18),
    LINK_REAL("all_reduce", all_reduce, 1e-6, 10.0),
    LINK_REAL("reduce_scatter", reduce_scatter, 1e-6, 10.0),
    LINK_REAL("all_gather", all_gather, 1e-6, 10.0),
    {NULL, "multicast", DSI_ROW_BOOL, offsetof(dsi_link, multicast), 0, 0.0, 0.0, false},
};

#define RATE_REAL(k, field, low, high)                                                             \
    {                                                                                              \
        NULL, (k), DSI_ROW_REAL, offsetof(dsi_rate, field), 0, (low), (high), false                \
    }
const dsi_profile_row dsi_rate_rows[] = {
    RATE_REAL("compute", compute, 1e-6, 10.0), RATE_REAL("memory", memory, 1e-6, 100.0),
    RATE_REAL("half_m", half_m, 0.0, 1e9),     RATE_REAL("half_n", half_n, 0.0, 1e9),
    RATE_REAL("half_k", half_k, 0.0, 1e9),
};

const size_t dsi_n_device_rows = sizeof dsi_device_rows / sizeof dsi_device_rows[0];
const size_t dsi_n_link_rows = sizeof dsi_link_rows / sizeof dsi_link_rows[0];
const size_t dsi_n_rate_rows = sizeof dsi_rate_rows / sizeof dsi_rate_rows[0];
const char *const dsi_peak_names[DSI_PEAK_COUNT] = {"f32", "bf16", "f16"};

const dsi_profile_row *dsi_profile_find(const dsi_profile_row *rows, size_t n, const char *section,
                                        const char *key)
{
    for (size_t i = 0; i < n; ++i) {
        const bool same = (rows[i].section == NULL) == (section == NULL) &&
                          (section == NULL || strcmp(rows[i].section, section) == 0);
        if (same && strcmp(rows[i].key, key) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}
