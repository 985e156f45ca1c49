/* SPDX-License-Identifier: Apache-2.0 */
/* See offline_name.h. */
#include "monitor/offline_name.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

ds_status dsi_offline_random(ds_ctx *ctx, const char *letters, size_t n, char *text)
{
    const size_t n_letters = strlen(letters);
    unsigned char random[DSI_OFFLINE_NAME];
    if (getrandom(random, n, 0) != (ssize_t)n) {
        return ds_fail(ctx, DS_ERR_IO, "cannot draw a random name: %s", strerror(errno));
    }
    for (size_t i = 0; i < n; ++i) {
        text[i] = letters[random[i] % n_letters];
    }
    text[n] = '\0';
    return DS_OK;
}

const char *dsi_offline_number(double value, char text[DSI_OFFLINE_NUMBER])
{
    if (isnan(value)) {
        return "\"NaN\"";
    }
    if (isinf(value)) {
        return value > 0.0 ? "\"Infinity\"" : "\"-Infinity\"";
    }
    (void)snprintf(text, DSI_OFFLINE_NUMBER, "%.17g", value);
    return text;
}
