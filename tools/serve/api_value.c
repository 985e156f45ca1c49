/* SPDX-License-Identifier: Apache-2.0 */
/* Values of fields. See api.h. */
#include "api.h"

#include <math.h>
#include <string.h>

bool api_wrong(api_reader *r, const char *name, const char *expected)
{
    return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s: expected %s", name, expected);
}

bool api_unsupported(api_reader *r, const char *name, const char *what)
{
    return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unsupported", name, "%s: %s", name, what);
}

bool api_whole(api_reader *r, const char *name, json_t *v, int64_t least, int64_t most,
               int64_t *out)
{
    const double x = json_is_real(v) ? json_real_value(v) : 0.0;
    int64_t n = json_is_integer(v) ? json_integer_value(v) : (int64_t)x;
    if (!json_is_integer(v) && (!json_is_real(v) || x != floor(x) || fabs(x) > 1e15)) {
        return api_wrong(r, name, "a whole number");
    }
    if (n < least || n > most) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s is %lld, expected %lld to %lld",
                        name, (long long)n, (long long)least, (long long)most);
    }
    *out = n;
    return true;
}

bool api_number(api_reader *r, const char *name, json_t *v, double least, double most, double *out)
{
    const double x = json_number_value(v);
    if (!json_is_number(v)) {
        return api_wrong(r, name, "a number");
    }
    if (!(x >= least && x <= most)) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s is %g, expected %g to %g", name,
                        x, least, most);
    }
    *out = x;
    return true;
}

bool api_boolean(api_reader *r, const char *name, json_t *v, bool *out)
{
    if (!json_is_boolean(v)) {
        return api_wrong(r, name, "true or false");
    }
    *out = json_is_true(v);
    return true;
}
