/* SPDX-License-Identifier: Apache-2.0 */
/* What the place rules of built-in operators share. See op_place.h. */
#include "op/op_place.h"

void dsi_place_drop(char *letters, char letter)
{
    char *to = letters;
    for (const char *at = letters; *at != '\0'; ++at) {
        if (*at != letter) {
            *to++ = *at;
        }
    }
    *to = '\0';
}

void dsi_place_swap_dims(char *label)
{
    const char first = label[0];
    label[0] = label[1];
    label[1] = first;
}

bool dsi_place_has(const ds_place_case *c, uint32_t input)
{
    return input < c->n_in && c->in_meta[input].dtype != DS_DTYPE_NONE;
}

/* The operator works along a dim, which then is not split. */
static void freeze(ds_place_case *c, int64_t dim)
{
    dsi_place_drop(c->split, c->in[0][dim]);
    for (uint32_t i = 0; i < c->n_in; ++i) {
        c->in[i][dim] = '_';
    }
    c->out[0][dim] = '_';
    c->hint = "it works along the dim that is cut";
}

void dsi_place_blocks(ds_place_case *c, int64_t dim, bool in, int64_t n)
{
    enum { MOST = 8 }; /* DSI_PART_MOST_BLOCKS */
    if (n < 2 || n > MOST) {
        freeze(c, dim);
        for (uint32_t o = 1; o < c->n_out; ++o) {
            c->out[o][dim] = c->out[o][0] != '\0' ? '_' : '\0';
        }
        return;
    }
    c->block_letter = c->in[0][dim];
    if (in) {
        c->in_blocks[0] = (uint8_t)n;
    } else {
        c->out_blocks[0] = (uint8_t)n;
    }
}
