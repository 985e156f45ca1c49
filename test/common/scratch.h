/* SPDX-License-Identifier: Apache-2.0 */
/* A temporary folder for tests that write files, and whole files in one call. */
#ifndef DS_TEST_SCRATCH_H
#define DS_TEST_SCRATCH_H

#include <stddef.h>

/* Makes a fresh folder and returns its path, which lasts until scratch_remove. Fails the test when
 * it cannot. */
char *scratch_make(void);
/* Removes the folder with everything in it and frees the path. */
void scratch_remove(char *folder);

/* Path "folder/name" in one of 8 rotating buffers. */
const char *scratch_path(const char *folder, const char *name);

void scratch_write(const char *path, const void *data, size_t n);
/* The whole file with a zero byte after it; the caller frees it. */
char *scratch_read(const char *path, size_t *n_out);
/* Fails the test unless both files have the same bytes. */
void scratch_same(const char *path, const char *golden);
/* Number of entries in a folder, "." and ".." left out; -1 when there is no folder. */
int scratch_count(const char *folder);

#endif
