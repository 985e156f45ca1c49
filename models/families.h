/* SPDX-License-Identifier: Apache-2.0 */
/* The families that there are. */
#ifndef DS_MODELS_FAMILIES_H
#define DS_MODELS_FAMILIES_H

#include "model/family.h"

extern const ds_family ds_family_gpt2;
extern const ds_family ds_family_decoder;
extern const ds_family ds_family_encoder;
extern const ds_family ds_family_t5;

#endif
