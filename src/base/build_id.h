/* SPDX-License-Identifier: Apache-2.0 */
/* What distinguishes one build of this program from another. */
#ifndef DSI_BASE_BUILD_ID_H
#define DSI_BASE_BUILD_ID_H

#include <stddef.h>

/* The linker's build id of the object that this code is part of, in hexadecimal; "" when it has
 * none. text: room for n bytes. Any thread. */
void dsi_build_id(char *text, size_t n);

#endif
