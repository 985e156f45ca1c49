/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes device profiles: no text may crash the reader, and what it takes is finite, printable and
 * read back alike. */
#include "cost/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dsi_device device;
    dsi_device back;
    if (dsi_device_parse(NULL, "fuzz", (const char *)data, n, &device) < 0) {
        return 0;
    }
    const dsi_work work = {.op_class = DS_CLASS_LINEAR, .dtype = DS_DTYPE_BF16, .flops = 1e9};
    if (!isfinite(dsi_time_work(&device, &work))) {
        abort();
    }
    dsi_buf text = dsi_buf_make(1 << 20);
    dsi_device_print(&device, &text);
    if (dsi_device_parse(NULL, "again", dsi_buf_text(&text), text.size, &back) < 0 ||
        strcmp(back.name, device.name) != 0) {
        abort();
    }
    dsi_buf_free(&text);
    return 0;
}
