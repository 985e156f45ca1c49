/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary folders of tests. */
#include "common/scratch.h"

#include "common/check.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"

char *scratch_make(void)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;
    if (base == NULL) { /* in memory where that is possible: the tests sync often */
        base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    }
    assert_true(asprintf(&path, "%s/ds_test_XXXXXX", base) > 0);
    assert_non_null(mkdtemp(path));
    return path;
}

void scratch_remove(char *folder)
{
    if (folder != NULL) {
        (void)dsi_folder_remove(NULL, folder);
        free(folder);
    }
}

const char *scratch_path(const char *folder, const char *name)
{
    static _Thread_local char buffers[8][1024]; /* ranks are threads */
    static _Thread_local unsigned next;
    char *buffer = buffers[next++ % 8];
    (void)snprintf(buffer, sizeof buffers[0], "%s/%s", folder, name);
    return buffer;
}

void scratch_write(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

char *scratch_read(const char *path, size_t *n_out)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("cannot open %s", path);
        return NULL;
    }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const size_t n = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    data[n] = '\0';
    *n_out = n;
    return data;
}

void scratch_same(const char *path, const char *golden)
{
    size_t n = 0;
    size_t n_golden = 0;
    char *data = scratch_read(path, &n);
    char *want = scratch_read(golden, &n_golden);
    if (n != n_golden || memcmp(data, want, n) != 0) {
        fail_msg("%s (%zu bytes) differs from %s (%zu bytes)", path, n, golden, n_golden);
    }
    free(data);
    free(want);
}

int scratch_count(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return -1;
    }
    int n = -2;
    while (readdir(dir) != NULL) {
        ++n;
    }
    (void)closedir(dir);
    return n;
}
