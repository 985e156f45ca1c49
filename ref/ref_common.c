/* SPDX-License-Identifier: Apache-2.0 */
/* What the oracles share besides arithmetic: scratch memory, names, AdamW. See ref.h. */
#include "ref/ref.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_BYTES = 256 };

typedef struct ref_block {
    struct ref_block *next;
    float floats[];
} ref_block;

float *ref_floats(ref_scratch *scratch, int64_t count)
{
    ref_block *block = malloc(sizeof(ref_block) + (size_t)count * sizeof(float));
    if (block == NULL) {
        abort();
    }
    block->next = scratch->blocks;
    scratch->blocks = block;
    return block->floats;
}

void ref_scratch_free(ref_scratch *scratch)
{
    while (scratch->blocks != NULL) {
        ref_block *block = scratch->blocks;
        scratch->blocks = block->next;
        free(block);
    }
}

const float *ref_param(const ref_io *io, const char *format, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return io->param(io->user, name);
}

float *ref_grad(const ref_io *io, const char *format, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return io->grad(io->user, name);
}

/* docs/internals/optim.md, "adam" with adamw = 1. The corrections are computed in fp64. */
void ref_adamw(float *p, float *m, float *v, const float *g, int64_t count,
               const ref_adamw_params *params)
{
    const double t = (double)params->step;
    const float lr = (float)params->lr;
    const float wd = (float)params->weight_decay;
    const float eps = (float)params->eps;
    const float b1 = (float)params->beta1;
    const float b2 = (float)params->beta2;
    const float bias1 = (float)(1.0 - pow(params->beta1, t));
    const float bias2 = (float)sqrt(1.0 - pow(params->beta2, t));
    const float i2 = 1.0f / bias2;
    const float step = -(lr / bias1);
    const float decay = 1.0f - lr * wd;
    for (int64_t i = 0; i < count; ++i) {
        m[i] = fmaf(b1, m[i], (1.0f - b1) * g[i]);
        v[i] = fmaf(b2, v[i], (1.0f - b2) * (g[i] * g[i]));
        const float u = m[i] / fmaf(sqrtf(v[i]), i2, eps);
        p[i] = fmaf(step, u, p[i] * decay);
    }
}
