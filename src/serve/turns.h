/* SPDX-License-Identifier: Apache-2.0 */
/* Several servers over the same ranks, one after the other: what their callers tell each other
 * between the steps. Ranks above 0 follow one server at a time, rank 0 says which. Called by
 * tools/serve; a server alone needs ds_serve_follow only. */
#ifndef DSI_SERVE_TURNS_H
#define DSI_SERVE_TURNS_H

#include <deepspeed/serve.h>

/* On rank 0, of the server that the others follow: their dsi_serve_follow_turn returns with `what`,
 * above 0, and the text, of less than 4096 bytes. Errors: ERR_PEER, ERR_ARG (the text is longer).
 */
ds_status dsi_serve_lead_turn(ds_server *server, int32_t what, const char *text);
/* On a rank above 0: as ds_serve_follow, but it also returns for a turn; 0: the server ended. The
 * text is borrowed until the next call. */
ds_status dsi_serve_follow_turn(ds_server *server, int32_t *what_out, const char **text_out);
/* Its ranks do not follow it, and are told nothing any more: it is to be destroyed on all. */
void dsi_serve_part(ds_server *server);

#endif
