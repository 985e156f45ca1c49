/* SPDX-License-Identifier: Apache-2.0 */
/* Reads profile files: JSON to dsi_device. Every key is a row of device_rows.c. */
#include "base/nearest.h"
#include "cost/device_rows.h"
#include "io/json_load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FILE_CEILING = 1 << 20, PATH_BYTES = 96 };

typedef struct reader {
    ds_ctx *ctx;
    const char *label;
} reader;

static ds_status unknown_key(const reader *r, const char *path, const char *key,
                             const char *nearest)
{
    return ds_fail(r->ctx, DS_ERR_FORMAT, "%s: unknown key \"%s%s%.60s\"%s%s%s", r->label, path,
                   path[0] != '\0' ? "." : "", key, nearest != NULL ? ", did you mean \"" : "",
                   nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
}

static ds_status wrong(const reader *r, const char *path, const char *key, const char *expected)
{
    return ds_fail(r->ctx, DS_ERR_FORMAT, "%s: \"%s%s%s\": expected %s", r->label, path,
                   path[0] != '\0' ? "." : "", key, expected);
}

static ds_status read_number(const reader *r, const dsi_profile_row *row, const char *path,
                             const json_t *value, void *base)
{
    char expected[96];
    const double number = json_number_value(value);
    const bool whole =
        row->type != DSI_ROW_COUNT || (json_is_number(value) && number == floor(number));
    if (!json_is_number(value) || !isfinite(number) || number < row->min || number > row->max ||
        !whole) {
        (void)snprintf(expected, sizeof expected, "a %snumber from %g to %g",
                       row->type == DSI_ROW_COUNT ? "whole " : "", row->min, row->max);
        return wrong(r, path, row->key, expected);
    }
    char *at = (char *)base + row->offset;
    if (row->type == DSI_ROW_COUNT) {
        *(uint32_t *)(void *)at = (uint32_t)number;
    } else {
        *(double *)(void *)at = number;
    }
    return DS_OK;
}

static ds_status read_value(const reader *r, const dsi_profile_row *row, const char *path,
                            const json_t *value, void *base)
{
    char *at = (char *)base + row->offset;
    if (row->type == DSI_ROW_BOOL) {
        if (!json_is_boolean(value)) {
            return wrong(r, path, row->key, "true or false");
        }
        *(bool *)(void *)at = json_is_true(value);
        return DS_OK;
    }
    if (row->type == DSI_ROW_TEXT) {
        const size_t n = json_is_string(value) ? json_string_length(value) : SIZE_MAX;
        if (n >= row->bytes || n == 0 || strlen(json_string_value(value)) != n) {
            char expected[64];
            (void)snprintf(expected, sizeof expected, "a text of 1 to %zu bytes", row->bytes - 1);
            return wrong(r, path, row->key, expected);
        }
        memset(at, 0, row->bytes);
        memcpy(at, json_string_value(value), n);
        return DS_OK;
    }
    return read_number(r, row, path, value, base);
}

/* Every key of an object whose rows are those of one section. */
static ds_status read_object(const reader *r, const dsi_profile_row *rows, size_t n,
                             const char *section, const char *path, json_t *object, void *base)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) {
        return wrong(r, "", path, "an object");
    }
    json_object_foreach(object, key, value)
    {
        const dsi_profile_row *row = dsi_profile_find(rows, n, section, key);
        if (row == NULL) {
            dsi_nearest nearest = {.word = key};
            for (size_t i = 0; i < n; ++i) {
                if (dsi_profile_find(&rows[i], 1, section, rows[i].key) != NULL) {
                    dsi_nearest_offer(&nearest, rows[i].key);
                }
            }
            return unknown_key(r, path, key, nearest.best);
        }
        DS_TRY(read_value(r, row, path, value, base));
    }
    return DS_OK;
}

static const dsi_link *find_link(const char *name)
{
    for (uint32_t i = 0; dsi_link_at(i) != NULL; ++i) {
        if (strcmp(dsi_link_at(i)->name, name) == 0) {
            return dsi_link_at(i);
        }
    }
    return NULL;
}

/* The name of a shipped link, or an object with all keys. */
static ds_status read_link(const reader *r, const char *path, json_t *value, dsi_link *link)
{
    if (json_is_string(value)) {
        const dsi_link *known = find_link(json_string_value(value));
        if (known == NULL) {
            dsi_nearest nearest = {.word = json_string_value(value)};
            for (uint32_t i = 0; dsi_link_at(i) != NULL; ++i) {
                dsi_nearest_offer(&nearest, dsi_link_at(i)->name);
            }
            return ds_fail(r->ctx, DS_ERR_FORMAT,
                           "%s: \"%s\": there is no link \"%.60s\"%s%s%s; give an object for one "
                           "of your own",
                           r->label, path, json_string_value(value),
                           nearest.best != NULL ? ", did you mean \"" : "",
                           nearest.best != NULL ? nearest.best : "",
                           nearest.best != NULL ? "\"" : "");
        }
        *link = *known;
        return DS_OK;
    }
    *link = (dsi_link){0};
    DS_TRY(read_object(r, dsi_link_rows, dsi_n_link_rows, NULL, path, value, link));
    for (size_t i = 0; i < dsi_n_link_rows; ++i) {
        if (dsi_link_rows[i].required && json_object_get(value, dsi_link_rows[i].key) == NULL) {
            return wrong(r, path, dsi_link_rows[i].key, "a value: it is missing");
        }
    }
    return DS_OK;
}

static ds_status read_rates_of(const reader *r, const char *name, json_t *value, dsi_rate *rates)
{
    const char *key;
    json_t *entry;
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "rates.%s", name);
    if (!json_is_object(value)) {
        return wrong(r, "rates", name, "an object");
    }
    json_object_foreach(value, key, entry)
    {
        dsi_nearest nearest = {.word = key};
        uint32_t c = DSI_CLASS_FIRST;
        while (c < DS_CLASS_COUNT && strcmp(dsi_op_class_name((ds_op_class)c), key) != 0) {
            dsi_nearest_offer(&nearest, dsi_op_class_name((ds_op_class)c));
            ++c;
        }
        if (c == DS_CLASS_COUNT) {
            return unknown_key(r, path, key, nearest.best);
        }
        (void)snprintf(path, sizeof path, "rates.%s.%s", name, key);
        DS_TRY(read_object(r, dsi_rate_rows, dsi_n_rate_rows, NULL, path, entry, &rates[c]));
        (void)snprintf(path, sizeof path, "rates.%s", name);
    }
    return DS_OK;
}

static ds_status read_rates(const reader *r, json_t *value, dsi_device *device)
{
    const char *key;
    json_t *entry;
    if (!json_is_object(value)) {
        return wrong(r, "", "rates", "an object");
    }
    json_object_foreach(value, key, entry)
    {
        int p = 0;
        while (p < DSI_PEAK_COUNT && strcmp(dsi_peak_names[p], key) != 0) {
            ++p;
        }
        if (p == DSI_PEAK_COUNT) {
            return unknown_key(r, "rates", key, NULL);
        }
        DS_TRY(read_rates_of(r, key, entry, device->rates[p]));
    }
    return DS_OK;
}

static bool is_section(const char *key)
{
    for (size_t i = 0; i < dsi_n_device_rows; ++i) {
        if (dsi_device_rows[i].section != NULL && strcmp(dsi_device_rows[i].section, key) == 0) {
            return true;
        }
    }
    return false;
}

static ds_status read_top(const reader *r, const char *key, json_t *value, dsi_device *device)
{
    static const char *const others[] = {"base", "node", "network", "rates"};
    const dsi_profile_row *row = dsi_profile_find(dsi_device_rows, dsi_n_device_rows, NULL, key);
    if (row != NULL) {
        return read_value(r, row, "", value, device);
    }
    if (is_section(key)) {
        return read_object(r, dsi_device_rows, dsi_n_device_rows, key, key, value, device);
    }
    if (strcmp(key, "node") == 0 || strcmp(key, "network") == 0) {
        return read_link(r, key, value, key[1] == 'o' ? &device->node : &device->net);
    }
    if (strcmp(key, "rates") == 0) {
        return read_rates(r, value, device);
    }
    if (strcmp(key, "base") == 0) {
        return DS_OK;
    }
    dsi_nearest nearest = {.word = key};
    for (size_t i = 0; i < dsi_n_device_rows; ++i) {
        const char *section = dsi_device_rows[i].section;
        dsi_nearest_offer(&nearest, section != NULL ? section : dsi_device_rows[i].key);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        dsi_nearest_offer(&nearest, others[i]);
    }
    return unknown_key(r, "", key, nearest.best);
}

/* A profile with nothing but plausible shares: what a file without a base starts from. */
static dsi_device plain_device(void)
{
    dsi_device device = {.latency = 5e-6, .ranks_per_node = 1};
    for (int p = 0; p < DSI_PEAK_COUNT; ++p) {
        for (int c = DSI_CLASS_FIRST; c < DS_CLASS_COUNT; ++c) {
            device.rates[p][c] = (dsi_rate){.compute = 0.7, .memory = 0.8};
        }
    }
    return device;
}

static ds_status start_from(const reader *r, const json_t *root, dsi_device *device)
{
    const json_t *base = json_object_get(root, "base");
    if (base != NULL) {
        if (!json_is_string(base)) {
            return wrong(r, "", "base", "the name of a shipped profile");
        }
        return dsi_device_find(r->ctx, json_string_value(base), device);
    }
    *device = plain_device();
    for (size_t i = 0; i < dsi_n_device_rows; ++i) {
        const dsi_profile_row *row = &dsi_device_rows[i];
        const json_t *holder = row->section != NULL ? json_object_get(root, row->section) : root;
        if (row->required && json_object_get(holder, row->key) == NULL) {
            return wrong(r, row->section != NULL ? row->section : "", row->key,
                         "a value: it is missing, and there is no \"base\"");
        }
    }
    return DS_OK;
}

ds_status dsi_device_parse(ds_ctx *ctx, const char *label, const char *text, size_t n,
                           dsi_device *device_out)
{
    const reader r = {ctx, label};
    dsi_device device;
    json_t *root = NULL;
    const char *key;
    json_t *value;
    DS_TRY(dsi_json_load(ctx, label, text, n, 0, DS_ERR_FORMAT, &root));
    ds_status status =
        json_is_object(root) ? DS_OK : ds_fail(ctx, DS_ERR_FORMAT, "%s: expected an object", label);
    if (status == DS_OK) {
        status = start_from(&r, root, &device);
    }
    if (status == DS_OK) {
        json_object_foreach(root, key, value)
        {
            status = read_top(&r, key, value, &device);
            if (status < 0) {
                break;
            }
        }
    }
    json_decref(root);
    if (status == DS_OK) {
        *device_out = device;
    }
    return status;
}

ds_status dsi_device_load(ds_ctx *ctx, const char *name_or_path, dsi_device *device_out)
{
    for (uint32_t i = 0; dsi_device_at(i) != NULL; ++i) {
        if (strcmp(dsi_device_at(i)->name, name_or_path) == 0) {
            *device_out = *dsi_device_at(i);
            return DS_OK;
        }
    }
    if (access(name_or_path, F_OK) != 0) {
        return dsi_device_find(ctx, name_or_path, device_out); /* an error that names all */
    }
    dsi_buf text = dsi_buf_make(FILE_CEILING);
    ds_status status = dsi_buf_read_file(ctx, name_or_path, &text);
    if (status == DS_OK) {
        status = dsi_device_parse(ctx, name_or_path, dsi_buf_text(&text), text.size, device_out);
    }
    dsi_buf_free(&text);
    return status;
}
