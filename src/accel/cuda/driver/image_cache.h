/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of machine code that was compiled at first use (ADR 28), shared by the ranks of a node
 * and by later runs. Called by custom_kernel.c and, for lists, by driver_load.c.
 *
 * Invariants:
 *  1. an entry holds its whole key: what is returned was made for exactly that key;
 *  2. an entry is written aside and renamed, by the holder of its lock alone; who reads needs no
 *     lock;
 *  3. a lock is the operating system's, of a process: it ends with the process, and no child
 *     inherits it;
 *  4. whatever is wrong with the folder is a warning: then each rank makes its own.
 */
#ifndef DSC_IMAGE_CACHE_H
#define DSC_IMAGE_CACHE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct dsc_cache_request {
    const char *key; /* all that the code depends on */
    size_t key_bytes;
    const char *what; /* for warnings */
    /* Makes it: *code_out from malloc. False: it failed, and nothing is kept. */
    bool (*make)(void *user, void **code_out, size_t *bytes_out);
    void (*warn)(void *user, const char *text);
    void *user;
} dsc_cache_request;

/* What the folder has for the key, or what make makes, which is kept there. *code_out: free() it.
 * False when make failed. Any thread; one at a time in a process. */
bool dsc_cache_get(const dsc_cache_request *request, void **code_out, size_t *bytes_out);

/* "cached in FOLDER (3 entries, 45 KiB)", or that nothing is. */
void dsc_cache_say(char *text_out, size_t n);

#endif
