/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel says of an operand that it cannot work with, such as an id that no row has: the
 * first thread that finds one does, and goes on without it. */
#ifndef DSC_FAULT_H
#define DSC_FAULT_H

#include <stdint.h>

typedef struct dsc_fault {
    uint64_t call; /* address of the ds_kernel_call; 0: none */
    int64_t value; /* element `at` of an operand of i32, expected from 0 to below `bound` */
    int64_t at, bound;
} dsc_fault;

#endif
