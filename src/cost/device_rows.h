/* SPDX-License-Identifier: Apache-2.0 */
/* Every key of a profile file, once: what reads and what writes profiles share these tables. */
#ifndef DSI_COST_DEVICE_ROWS_H
#define DSI_COST_DEVICE_ROWS_H

#include "cost/device.h"

typedef enum dsi_row_type { DSI_ROW_REAL, DSI_ROW_COUNT, DSI_ROW_BOOL, DSI_ROW_TEXT } dsi_row_type;

/* One key; `section` NULL: at the top. */
typedef struct dsi_profile_row {
    const char *section, *key;
    dsi_row_type type;
    size_t offset, bytes; /* bytes: room of a text */
    double min, max;
    bool required; /* without a base */
} dsi_profile_row;

extern const dsi_profile_row dsi_device_rows[]; /* of dsi_device */
extern const dsi_profile_row dsi_link_rows[];   /* of dsi_link */
extern const dsi_profile_row dsi_rate_rows[];   /* of dsi_rate */
extern const size_t dsi_n_device_rows, dsi_n_link_rows, dsi_n_rate_rows;
extern const char *const dsi_peak_names[DSI_PEAK_COUNT];

/* Shipped profiles that were measured: device_xeon.c, device_zen3.c, device_zen5.c. */
extern const dsi_device dsi_device_xeon, dsi_device_zen3, dsi_device_zen5;

/* The row of a key in a section (NULL: at the top); NULL when there is none. */
const dsi_profile_row *dsi_profile_find(const dsi_profile_row *rows, size_t n, const char *section,
                                        const char *key);

#endif
