/* SPDX-License-Identifier: Apache-2.0 */
/* See golden.h. */
#include "common/golden.h"

#include "common/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void path_of(char *path, size_t size, const char *format, va_list args)
{
    const int n = snprintf(path, size, "%s/test/golden/", DS_SOURCE_DIR);
    vsnprintf(path + n, size - (size_t)n, format, args);
}

void golden_path(char *path, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    path_of(path, size, format, args);
    va_end(args);
}

static void *read_all(const char *path, size_t *n_out)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fail_msg("cannot open %s", path);
        return NULL;
    }
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    rewind(f);
    void *bytes = malloc((size_t)n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)n, f), n);
    fclose(f);
    *n_out = (size_t)n;
    return bytes;
}

static size_t dtype_bytes(const char *dtype)
{
    if (strcmp(dtype, "F64") == 0 || strcmp(dtype, "I64") == 0) {
        return 8;
    }
    return strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2 : 4;
}

/* One entry of the header; data starts at `data` and is `size` bytes long. */
static void read_tensor(golden_tensor *t, const char *name, const json_t *entry, const char *data,
                        size_t size)
{
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    const size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", json_string_value(json_object_get(entry, "dtype")));
    t->n_dims = (uint32_t)json_array_size(shape);
    assert_true(t->n_dims <= 4);
    t->count = 1;
    for (uint32_t i = 0; i < t->n_dims; ++i) {
        t->dims[i] = json_integer_value(json_array_get(shape, i));
        t->count *= (size_t)t->dims[i];
    }
    assert_true(begin <= end && end <= size);
    assert_int_equal(end - begin, t->count * dtype_bytes(t->dtype));
    t->data = data + begin;
}

golden_file golden_read(const char *format, ...)
{
    char path[4096];
    va_list args;
    va_start(args, format);
    path_of(path, sizeof path, format, args);
    va_end(args);
    golden_file file = {0};
    size_t size = 0;
    uint64_t header = 0;
    file.bytes = read_all(path, &size);
    assert_true(size > 8);
    memcpy(&header, file.bytes, 8); /* little-endian, as the machines that run tests */
    assert_true(header <= size - 8);
    const char *text = (const char *)file.bytes + 8;
    json_t *json = json_loadb(text, (size_t)header, 0, NULL);
    assert_non_null(json);
    file.tensors = calloc(json_object_size(json), sizeof *file.tensors);
    const char *name = NULL;
    json_t *entry = NULL;
    json_object_foreach(json, name, entry)
    {
        if (strcmp(name, "__metadata__") != 0) {
            read_tensor(&file.tensors[file.n_tensors++], name, entry, text + header,
                        size - 8 - (size_t)header);
        }
    }
    json_decref(json);
    return file;
}

void golden_close(golden_file *file)
{
    free(file->tensors);
    free(file->bytes);
    *file = (golden_file){0};
}

const golden_tensor *golden_find(const golden_file *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; ++i) {
        if (strcmp(file->tensors[i].name, name) == 0) {
            return &file->tensors[i];
        }
    }
    return NULL;
}

static const void *data_of(const golden_file *file, const char *name, const char *dtype)
{
    const golden_tensor *t = golden_find(file, name);
    if (t == NULL || strcmp(t->dtype, dtype) != 0) {
        fail_msg("golden tensor %s of dtype %s is missing", name, dtype);
        return NULL;
    }
    return t->data;
}

const float *golden_f32(const golden_file *file, const char *name)
{
    return data_of(file, name, "F32");
}

const int32_t *golden_i32(const golden_file *file, const char *name)
{
    return data_of(file, name, "I32");
}

json_t *golden_json(const char *format, ...)
{
    char path[4096];
    va_list args;
    va_start(args, format);
    path_of(path, sizeof path, format, args);
    va_end(args);
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);
    if (json == NULL) {
        fail_msg("%s: %s", path, error.text);
    }
    return json;
}

double golden_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) {
        fail_msg("golden number %s is missing", key);
    }
    return json_number_value(value);
}
