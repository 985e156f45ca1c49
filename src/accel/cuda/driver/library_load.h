/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of NVIDIA, loaded by name into tables of functions (driver_api.h, lt_api.h). Called by
 * driver_load.c and lt_choice.c. What is loaded stays until the process ends.
 */
#ifndef DSC_LIBRARY_LOAD_H
#define DSC_LIBRARY_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dsc_symbol {
    const char *name;
    size_t offset; /* of its pointer in the table */
} dsc_symbol;

typedef struct dsc_library_row {
    const char *what;         /* "CUDA driver" */
    const char *const *files; /* the first that is there counts; NULL-terminated */
    const char *package;      /* where it comes from: "NVIDIA's driver package has libcuda.so.1" */
    const char *old;          /* when a function is missing: what has all */
    const dsc_symbol *symbols;
    size_t n_symbols;
} dsc_library_row;

/* False: why says what is missing and which package has it. */
bool dsc_library_load(const dsc_library_row *row, void *table, char *why, size_t n);

#endif
