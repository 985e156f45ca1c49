/* SPDX-License-Identifier: Apache-2.0 */
/* Flags of Hugging Face's Trainer, and of scripts made with it, that are spelt otherwise here. */
#ifndef DSI_TOOLS_TRAINER_NAMES_H
#define DSI_TOOLS_TRAINER_NAMES_H

#include "common/args.h"

/* For dsi_args_spec.others. A name whose meaning is the same is taken; of another one the error
 * says what is here in its place. */
extern const dsi_arg_other trainer_names[];

#endif
