/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of tools as a grammar; see dsi_guide_of_calls. */
#ifndef DSI_GUIDE_FORM_CALLS_H
#define DSI_GUIDE_FORM_CALLS_H

#include "guide/grammar.h"
#include "guide/guide.h"

void dsi_form_calls(dsi_grammar *g, const dsi_call_form *form, const dsi_guide_tool *tools,
                    size_t n, bool forced, bool several, uint32_t *root_out);

#endif
