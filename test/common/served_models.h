/* SPDX-License-Identifier: Apache-2.0 */
/* Models for random tests of serving: folders of the goldens, of every family, and models with
 * sizes and weights at random; and how far numbers are apart. */
#ifndef DS_TEST_SERVED_MODELS_H
#define DS_TEST_SERVED_MODELS_H

#include <deepspeed/context.h>
#include <stddef.h>
#include <stdint.h>

enum { SERVED_ADAPTERS = 2 };

typedef struct served_family {
    const char *name;                      /* of a folder of golden/parity, */
    const char *folder;                    /* or another one of golden; both NULL: made here */
    const char *adapters[SERVED_ADAPTERS]; /* of golden; NULL: none */
} served_family;

/* One of them, T5 each third time. */
const served_family *served_draw(uint64_t *seed);
/* Its folder; of a model that is made, T5 or a decoder: scratch. A failure fails the test. */
void served_folder(ds_ctx *ctx, const served_family *family, uint64_t *seed, const char *scratch,
                   char *folder, size_t room);

/* The root of the mean square of differences. */
typedef struct served_distance {
    double sum;
    int64_t n;
} served_distance;

void served_add(served_distance *d, const float *a, const float *b, int64_t n);
double served_root(const served_distance *d); /* of none: 0 */

#endif
