/* SPDX-License-Identifier: Apache-2.0 */
/* Strict numbers. See number.h. */
#include "base/number.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

bool dsi_number_int(const char *text, int64_t least, int64_t most, int64_t *value_out)
{
    char *end = NULL;
    const char *digits = text + (*text == '-' || *text == '+');
    if (!isdigit((unsigned char)*digits)) {
        return false;
    }
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0 || value < least || value > most) {
        return false;
    }
    *value_out = value;
    return true;
}

static const char *skip_digits(const char *p, bool *any)
{
    while (isdigit((unsigned char)*p)) {
        *any = true;
        ++p;
    }
    return p;
}

const char *dsi_number_start(const char *text, double *value_out)
{
    bool any = false;
    bool exponent = false;
    const char *p = skip_digits(text + (*text == '-' || *text == '+'), &any);
    p = *p == '.' ? skip_digits(p + 1, &any) : p;
    if (!any) {
        return NULL;
    }
    if (*p == 'e' || *p == 'E') {
        const char *after = skip_digits(p + 1 + (p[1] == '-' || p[1] == '+'), &exponent);
        p = exponent ? after : p;
    }
    char *end = NULL;
    const double value = strtod(text, &end);
    if (end != p || !isfinite(value)) { /* "0x10" ends later */
        return NULL;
    }
    *value_out = value;
    return p;
}

bool dsi_number_real(const char *text, double *value_out)
{
    double value = 0.0;
    const char *end = dsi_number_start(text, &value);
    if (end == NULL || *end != '\0') {
        return false;
    }
    *value_out = value;
    return true;
}

ds_status dsi_number_env(ds_ctx *ctx, const char *name, int64_t least, int64_t most, int64_t absent,
                         int64_t *value_out)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0') {
        *value_out = absent;
        return DS_OK;
    }
    return dsi_number_int(text, least, most, value_out)
               ? DS_OK
               : ds_fail(ctx, DS_ERR_CONFIG,
                         "the environment's %s is \"%.60s\", expected a whole number from %" PRId64
                         " to %" PRId64 "; change it, or unset it",
                         name, text, least, most);
}
