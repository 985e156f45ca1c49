/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as text. See size_text.h. */
#include "common/size_text.h"

#include "base/number.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *size_text(uint64_t bytes, char *text, size_t n)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        ++unit;
    }
    (void)snprintf(text, n, unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
    return text;
}

ds_status size_parse(ds_ctx *ctx, const char *flag, const char *text, uint64_t *bytes_out)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1}, {"B", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
    double value = 0.0;
    const char *end = dsi_number_start(text, &value);
    for (size_t i = 0; end != NULL && i < sizeof units / sizeof units[0]; ++i) {
        if (strcasecmp(end, units[i].unit) == 0 && value >= 0 && value * units[i].bytes < 9e18) {
            *bytes_out = (uint64_t)(value * units[i].bytes);
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_ARG, "--%s: expected a size such as 5GB or 200MB, found '%s'", flag,
                   text);
}

ds_status size_parse_binary(ds_ctx *ctx, const char *flag, const char *text, uint64_t *bytes_out)
{
    static const char letters[] = "KMGT";
    double value = 0.0;
    const char *end = dsi_number_start(text, &value);
    const char *letter =
        end != NULL && *end != '\0' ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    const double unit = letter != NULL ? ldexp(1.0, 10 * (int)(letter - letters + 1)) : 1.0;
    if (end != NULL && letter != NULL) {
        ++end;
    }
    if (end == NULL || value < 0 || value * unit >= 9e18 ||
        !(*end == '\0' || strcasecmp(end, "B") == 0 || strcasecmp(end, "iB") == 0)) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s: expected a size such as 64M or 1G, found '%s'", flag,
                       text);
    }
    *bytes_out = (uint64_t)(value * unit);
    return DS_OK;
}
