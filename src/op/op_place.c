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

void dsi_place_freeze(ds_place_case *c, int64_t dim)
{
    dsi_place_drop(c->split, c->in[0][dim]);
    for (uint32_t i = 0; i < c->n_in; ++i) {
        c->in[i][dim] = '_';
    }
    c->out[0][dim] = '_';
    c->hint = "it works along the dim that is cut";
}
