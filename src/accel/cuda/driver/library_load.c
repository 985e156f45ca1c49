/* SPDX-License-Identifier: Apache-2.0 */
/* See library_load.h. */
#include "accel/cuda/driver/library_load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool dsc_library_load(const dsc_library_row *row, void *table, char *why, size_t n)
{
    void *object = NULL;
    for (uint32_t i = 0; row->files[i] != NULL && object == NULL; ++i) {
        object = dlopen(row->files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    if (object == NULL) {
        const char *text = dlerror();
        (void)snprintf(why, n, "there is no %s (%.200s); %s", row->what,
                       text != NULL ? text : row->files[0], row->package);
        return false;
    }
    for (size_t i = 0; i < row->n_symbols; ++i) {
        void *symbol = dlsym(object, row->symbols[i].name);
        if (symbol == NULL) {
            (void)snprintf(why, n, "the %s has no %s; it is too old, %s has it", row->what,
                           row->symbols[i].name, row->old);
            return false;
        }
        memcpy((char *)table + row->symbols[i].offset, &symbol, sizeof symbol);
    }
    return true;
}
