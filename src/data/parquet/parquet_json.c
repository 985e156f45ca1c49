/* SPDX-License-Identifier: Apache-2.0 */
/* A value of a Parquet column as JSON. See parquet_assemble.h. */
#include "data/parquet/parquet_assemble.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool dsi_parquet_is_utf8(const uint8_t *text, size_t n)
{
    while (n > 0) {
        utf8proc_int32_t c = 0;
        const utf8proc_ssize_t size = utf8proc_iterate(text, (utf8proc_ssize_t)n, &c);
        if (size <= 0) {
            return false;
        }
        text += size;
        n -= (size_t)size;
    }
    return true;
}

static void put_text(const uint8_t *text, size_t n, dsi_buf *json)
{
    if (!dsi_parquet_is_utf8(text, n)) {
        dsi_buf_puts(json, "null");
        return;
    }
    dsi_buf_putc(json, '"');
    dsi_buf_json(json, (const char *)text, n);
    dsi_buf_putc(json, '"');
}

/* The fewest digits that give the number again, with a sign that it is no whole number. */
static void put_real(double value, bool single, dsi_buf *json)
{
    char text[40];
    if (!isfinite(value)) {
        dsi_buf_puts(json, "null");
        return;
    }
    for (int digits = single ? 6 : 15; digits <= (single ? 9 : 17); ++digits) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        const double again = strtod(text, NULL);
        if (single ? (float)again == (float)value : again == value) {
            break;
        }
    }
    dsi_buf_puts(json, text);
    if (strpbrk(text, ".e") == NULL) {
        dsi_buf_puts(json, ".0");
    }
}

/* Days since 1970 to a date of the Gregorian calendar. Source: Hinnant, "chrono-compatible
 * low-level date algorithms", civil_from_days. */
static void put_date(int64_t days, dsi_buf *json)
{
    const int64_t z = days + 719468;
    const int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    const int64_t day_of_era = z - era * 146097;
    const int64_t year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const int64_t day_of_year =
        day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    const int64_t shifted = (5 * day_of_year + 2) / 153;
    const int64_t month = shifted < 10 ? shifted + 3 : shifted - 9;
    dsi_buf_printf(json, "%04lld-%02lld-%02lld",
                   (long long)(year_of_era + era * 400 + (month <= 2 ? 1 : 0)), (long long)month,
                   (long long)(day_of_year - (153 * shifted + 2) / 5 + 1));
}

/* As Python's isoformat(): no fraction where it is zero, else of six digits (nine if it has them).
 */
static void put_timestamp(int64_t ticks, const dsi_parquet_element *e, dsi_buf *json)
{
    const int64_t per_second = e->ticks_per_second;
    int64_t seconds = ticks / per_second;
    int64_t fraction = ticks % per_second;
    if (fraction < 0) {
        fraction += per_second;
        --seconds;
    }
    int64_t days = seconds / 86400;
    int64_t second = seconds % 86400;
    if (second < 0) {
        second += 86400;
        --days;
    }
    const int64_t nanos = fraction * (1000000000 / per_second);
    dsi_buf_putc(json, '"');
    put_date(days, json);
    dsi_buf_printf(json, "T%02lld:%02lld:%02lld", (long long)(second / 3600),
                   (long long)(second / 60 % 60), (long long)(second % 60));
    if (nanos % 1000 != 0) {
        dsi_buf_printf(json, ".%09lld", (long long)nanos);
    } else if (nanos != 0) {
        dsi_buf_printf(json, ".%06lld", (long long)(nanos / 1000));
    }
    dsi_buf_puts(json, e->utc ? "+00:00\"" : "\"");
}

static void put_whole(const dsi_parquet_element *e, const dsi_parquet_value *value, dsi_buf *json)
{
    const bool narrow = e->physical == DSI_PARQUET_INT32;
    const int64_t number = narrow ? (int64_t)(int32_t)value->number : (int64_t)value->number;
    switch (e->meaning) {
    case DSI_PARQUET_UNSIGNED:
        dsi_buf_printf(json, "%llu",
                       (unsigned long long)(narrow ? (uint32_t)value->number : value->number));
        break;
    case DSI_PARQUET_DATE:
        dsi_buf_putc(json, '"');
        put_date(number, json);
        dsi_buf_putc(json, '"');
        break;
    case DSI_PARQUET_TIMESTAMP:
        put_timestamp(number, e, json);
        break;
    default:
        dsi_buf_printf(json, "%lld", (long long)number);
        break;
    }
}

void dsi_parquet_put_value(const dsi_parquet_element *e, const dsi_parquet_value *value,
                           dsi_buf *json)
{
    double real = 0.0;
    float single = 0.0f;
    const uint32_t low = (uint32_t)value->number;
    switch (e->physical) {
    case DSI_PARQUET_BOOLEAN:
        dsi_buf_puts(json, value->number != 0 ? "true" : "false");
        break;
    case DSI_PARQUET_INT32:
    case DSI_PARQUET_INT64:
        put_whole(e, value, json);
        break;
    case DSI_PARQUET_FLOAT:
        memcpy(&single, &low, sizeof single);
        put_real((double)single, true, json);
        break;
    case DSI_PARQUET_DOUBLE:
        memcpy(&real, &value->number, sizeof real);
        put_real(real, false, json);
        break;
    default:
        put_text(value->text, value->n_text, json);
        break;
    }
}
