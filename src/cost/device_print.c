/* SPDX-License-Identifier: Apache-2.0 */
/* Writes profile files: the JSON that device_file.c reads. */
#include "cost/device_rows.h"

#include <string.h>

static void print_value(const dsi_profile_row *row, const void *base, dsi_buf *text)
{
    const char *at = (const char *)base + row->offset;
    dsi_buf_printf(text, "\"%s\": ", row->key);
    switch (row->type) {
    case DSI_ROW_REAL:
        dsi_buf_printf(text, "%.9g", *(const double *)(const void *)at);
        break;
    case DSI_ROW_COUNT:
        dsi_buf_printf(text, "%u", *(const uint32_t *)(const void *)at);
        break;
    case DSI_ROW_BOOL:
        dsi_buf_puts(text, *(const bool *)(const void *)at ? "true" : "false");
        break;
    case DSI_ROW_TEXT:
        dsi_buf_putc(text, '"');
        dsi_buf_json(text, at, strlen(at));
        dsi_buf_putc(text, '"');
        break;
    }
}

/* An empty text and a figure of 0 outside its bounds are not known: left out. */
static bool is_known(const dsi_profile_row *row, const void *base)
{
    const char *at = (const char *)base + row->offset;
    if (row->type == DSI_ROW_TEXT) {
        return at[0] != '\0';
    }
    return row->type != DSI_ROW_REAL || *(const double *)(const void *)at >= row->min;
}

static void print_rows(const dsi_profile_row *rows, size_t n, const char *section, const void *base,
                       const char *between, dsi_buf *text)
{
    bool first = true;
    for (size_t i = 0; i < n; ++i) {
        if (dsi_profile_find(&rows[i], 1, section, rows[i].key) != NULL &&
            is_known(&rows[i], base)) {
            dsi_buf_puts(text, first ? "" : between);
            print_value(&rows[i], base, text);
            first = false;
        }
    }
}

static void print_link(const char *key, const dsi_link *link, dsi_buf *text)
{
    if (link->bandwidth > 0.0) {
        dsi_buf_printf(text, ",\n  \"%s\": {", key);
        print_rows(dsi_link_rows, dsi_n_link_rows, NULL, link, ", ", text);
        dsi_buf_putc(text, '}');
    }
}

static void print_rates(const dsi_device *device, dsi_buf *text)
{
    dsi_buf_puts(text, ",\n  \"rates\": {");
    for (int p = 0; p < DSI_PEAK_COUNT; ++p) {
        dsi_buf_printf(text, "%s\n    \"%s\": {", p > 0 ? "," : "", dsi_peak_names[p]);
        for (int c = DSI_CLASS_FIRST; c < DS_CLASS_COUNT; ++c) {
            dsi_buf_printf(text, "%s\n      \"%s\": {", c > DSI_CLASS_FIRST ? "," : "",
                           dsi_op_class_name((ds_op_class)c));
            print_rows(dsi_rate_rows, dsi_n_rate_rows, NULL, &device->rates[p][c], ", ", text);
            dsi_buf_putc(text, '}');
        }
        dsi_buf_puts(text, "\n    }");
    }
    dsi_buf_puts(text, "\n  }");
}

void dsi_device_print(const dsi_device *device, dsi_buf *text)
{
    static const char *const sections[] = {"peak", "memory", "host", "disk"};
    dsi_buf_puts(text, "{\n  ");
    print_rows(dsi_device_rows, dsi_n_device_rows, NULL, device, ",\n  ", text);
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; ++i) {
        dsi_buf_printf(text, ",\n  \"%s\": {", sections[i]);
        print_rows(dsi_device_rows, dsi_n_device_rows, sections[i], device, ", ", text);
        dsi_buf_putc(text, '}');
    }
    print_link("node", &device->node, text);
    print_link("network", &device->net, text);
    print_rates(device, text);
    dsi_buf_puts(text, "\n}\n");
}
