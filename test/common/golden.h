/* SPDX-License-Identifier: Apache-2.0 */
/* Reads golden files: small safetensors and JSON. For tests only, so that the library's own readers
 * are not trusted to check themselves. Anything unexpected fails the test. */
#ifndef DS_TEST_GOLDEN_H
#define DS_TEST_GOLDEN_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef struct golden_tensor {
    char name[192];
    char dtype[8]; /* "F32", "BF16", "F16", "I32", "F64" */
    int64_t dims[4];
    uint32_t n_dims;
    size_t count;     /* elements */
    const void *data; /* in the file's memory */
} golden_tensor;

typedef struct golden_file {
    void *bytes;
    golden_tensor *tensors;
    size_t n_tensors;
} golden_file;

/* path below test/golden of the source folder, formatted. */
golden_file golden_read(const char *format, ...) __attribute__((format(printf, 1, 2)));
void golden_close(golden_file *file);
/* NULL when absent. */
const golden_tensor *golden_find(const golden_file *file, const char *name);
/* The data of a tensor of that dtype; fails when absent or another dtype. */
const float *golden_f32(const golden_file *file, const char *name);
const int32_t *golden_i32(const golden_file *file, const char *name);
/* Whole JSON files; the caller drops the reference. */
json_t *golden_json(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A number; fails when absent. */
double golden_number(const json_t *object, const char *key);
/* The folder test/golden, formatted below it, into path. */
void golden_path(char *path, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
