/* SPDX-License-Identifier: Apache-2.0 */
/* See library_load.h. */
#include "accel/cuda/driver/library_load.h"

#include "base/library_open.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool dsc_library_load(const dsc_library_row *row, void *table, char *why, size_t n)
{
    void *object = NULL;
    char text[400] = "";
    bool is_damaged = false; /* text is of a file that is there */
    for (uint32_t i = 0; row->files[i] != NULL && object == NULL; ++i) {
        char why_not[sizeof text] = "";
        bool is_there = false;
        object = dsi_library_open(row->files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, &is_there,
                                  why_not, sizeof why_not);
        if (object == NULL && !is_damaged) {
            memcpy(text, why_not, sizeof text);
            is_damaged = is_there;
        }
    }
    if (object == NULL) {
        (void)snprintf(why, n, "there is no %s (%.300s); %s", row->what, text, row->package);
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
