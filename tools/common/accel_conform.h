/* SPDX-License-Identifier: Apache-2.0 */
/* What every accelerator must do: checks of its tables, one after the other. Called by
 * ds_accel_test. Each returns DS_OK, or an error whose message says what was expected.
 */
#ifndef DSI_TOOLS_ACCEL_CONFORM_H
#define DSI_TOOLS_ACCEL_CONFORM_H

#include "accel/accel.h"

#include <stdbool.h>

typedef struct accel_conform {
    ds_ctx *ctx;
    const ds_accel *accel;
    const dsi_accel_choice *choice;
    ds_accel_device *device; /* open */
    uint64_t seed;
    uint32_t rounds; /* of what is drawn at random */
} accel_conform;

typedef struct accel_check {
    const char *name;
    ds_status (*run)(accel_conform *c);
    bool streams;  /* of accelerators that have them */
    bool graphs;   /* likewise */
    bool calls;    /* of accelerators whose streams make calls of the host */
    bool computes; /* of accelerators that compute */
    bool disks;    /* of those that read and write files by themselves */
} accel_check;

/* Check `index` (0,1,...); NULL past the last. */
const accel_check *accel_conform_at(uint32_t index);

/* accel_conform_train.c: small models, trained and asked for text, give cpu's numbers. */
ds_status accel_conform_train(accel_conform *c);
ds_status accel_conform_generate(accel_conform *c);

/* accel_conform_disk.c. Errors: ERR_UNSUPPORTED: the machine has not what that needs. */
ds_status accel_conform_disks(accel_conform *c);

#endif
