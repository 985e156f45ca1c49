/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a run that names none, as text: for ds_train, and for ds_config init, which
 * writes it. */
#ifndef DSI_TOOLS_DEFAULT_CONFIG_H
#define DSI_TOOLS_DEFAULT_CONFIG_H

#include <deepspeed/config.h>

typedef struct default_config {
    uint32_t n_ranks;
    int64_t seq_length;               /* tokens of a row */
    const ds_trainer_values *trainer; /* flags: what one says the text leaves to it */
    char text[2048];                  /* HJSON with comments */
    char said[256];                   /* what was chosen, in a line */
} default_config;

/* Fills text and said from the fields before them and the processor. */
void default_config_make(default_config *c);

#endif
