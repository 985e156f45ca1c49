/* SPDX-License-Identifier: Apache-2.0 */
/* See turns.h. */
#include "serve/turns.h"

#include "serve/server.h"

ds_status dsi_serve_lead_turn(ds_server *s, int32_t what, const char *text)
{
    return dsi_paged_lead_turn(s->generator, what, text);
}

ds_status dsi_serve_follow_turn(ds_server *s, int32_t *what_out, const char **text_out)
{
    return s->follows ? dsi_paged_follow(s->generator, what_out, text_out)
                      : ds_fail(s->ctx, DS_ERR_STATE,
                                "ds_serve_follow is for the ranks above 0 of a server with a "
                                "communicator");
}

void dsi_serve_part(ds_server *s)
{
    s->generator->lost = true;
}
