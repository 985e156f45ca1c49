/* SPDX-License-Identifier: Apache-2.0 */
/* Custom models: their constants in config.json, by the caller's table of fields.
 *
 * A model with a table is treated like a known family: its config.json is written with exports and
 * checkpoints, ranks compare it, and a resume compares it with the checkpoint's.
 */
#include "model/custom.h"

#include "model/fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t *whole_at(const ds_attr *field, const void *config)
{
    return (int64_t *)(void *)((char *)(uintptr_t)config + field->offset);
}

static double *real_at(const ds_attr *field, const void *config)
{
    return (double *)(void *)((char *)(uintptr_t)config + field->offset);
}

/* The constants as config.json. */
static ds_status write_fields(ds_ctx *ctx, const ds_model_info *info, const void *config,
                              char **text_out)
{
    json_t *json = json_object();
    bool whole = json_object_set_new(json, "model_type", json_string(info->architecture)) == 0;
    for (uint32_t i = 0; i < info->n_fields && whole; ++i) {
        const ds_attr *field = &info->fields[i];
        const bool is_int = field->type == DS_ATTR_INT;
        if (json_object_get(json, field->name) != NULL) {
            json_decref(json);
            return ds_fail(ctx, DS_ERR_ARG, "ds_model_info: there are two fields \"%s\"",
                           field->name);
        }
        if (!is_int && !isfinite(*real_at(field, config))) {
            json_decref(json);
            return ds_fail(ctx, DS_ERR_ARG,
                           "ds_model_info: the field \"%s\" is %g, which "
                           "config.json cannot hold",
                           field->name, *real_at(field, config));
        }
        whole = json_object_set_new(json, field->name,
                                    is_int ? json_integer(*whole_at(field, config))
                                           : json_real(*real_at(field, config))) == 0;
    }
    *text_out = whole ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(json);
    return *text_out != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a model");
}

static ds_status read_field(const ds_reader *reader, const ds_attr *field, void *config)
{
    const json_t *value = json_object_get(reader->json, field->name);
    if (value == NULL) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT, "config.json: \"%s\" is missing", field->name);
    }
    if (field->type == DS_ATTR_INT) {
        if (!json_is_integer(value)) {
            return ds_field_bad(reader, field->name, "a whole number");
        }
        *whole_at(field, config) = json_integer_value(value);
    } else {
        if (!json_is_number(value)) {
            return ds_field_bad(reader, field->name, "a number");
        }
        *real_at(field, config) = json_number_value(value);
    }
    return DS_OK;
}

static ds_status read_fields(ds_ctx *ctx, const json_t *json, const ds_model_info *info,
                             void *config)
{
    const ds_reader reader = {.ctx = ctx, .json = json};
    const char *type = json_string_value(json_object_get(json, "model_type"));
    if (type == NULL || strcmp(type, info->architecture) != 0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "config.json: \"model_type\" is \"%s\", expected \"%s\"",
                       type != NULL ? type : "", info->architecture);
    }
    for (uint32_t i = 0; i < info->n_fields; ++i) {
        DS_TRY(read_field(&reader, &info->fields[i], config));
    }
    return DS_OK;
}

ds_status ds_model_read_config(ds_ctx *ctx, const char *path, const ds_model_info *info,
                               void *config)
{
    json_error_t error;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL && error.line < 0) { /* the text names the file */
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "%s", error.text);
    }
    if (json == NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    }
    const ds_status status = read_fields(ctx, json, info, config);
    json_decref(json);
    return status;
}

void ds_custom_print(const ds_model_info *info, const void *config, FILE *out)
{
    for (uint32_t i = 0; i < info->n_fields; ++i) {
        const ds_attr *field = &info->fields[i];
        if (field->type == DS_ATTR_INT) {
            (void)fprintf(out, "%s: %lld\n", field->name, (long long)*whole_at(field, config));
        } else {
            (void)fprintf(out, "%s: %.17g\n", field->name, *real_at(field, config));
        }
    }
}

/* Bytes of a struct that all fields lie in. */
static size_t bytes_of(const ds_model_info *info)
{
    size_t bytes = 1;
    for (uint32_t i = 0; i < info->n_fields; ++i) {
        const size_t end = info->fields[i].offset + sizeof(int64_t);
        bytes = end > bytes ? end : bytes;
    }
    return bytes;
}

ds_status ds_custom_parse(ds_ctx *ctx, const ds_model_info *info, const char *text,
                          void **config_out)
{
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "config.json: line %d: %s", error.line, error.text);
    }
    void *config = calloc(1, bytes_of(info));
    const ds_status status = config != NULL ? read_fields(ctx, json, info, config)
                                            : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a model");
    json_decref(json);
    if (status < 0) {
        free(config);
        return status;
    }
    *config_out = config;
    return DS_OK;
}

ds_status ds_custom_write(ds_ctx *ctx, const ds_model_info *info, const void *config,
                          char **text_out)
{
    if (info->n_fields == 0) {
        *text_out = NULL;
        return DS_OK;
    }
    if (info->fields == NULL || info->architecture == NULL || config == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_model_info: fields need an architecture and a config to read them from");
    }
    return write_fields(ctx, info, config, text_out);
}
