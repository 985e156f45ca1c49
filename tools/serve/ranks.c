/* SPDX-License-Identifier: Apache-2.0 */
/* Reloads of layers that ranks share. See front.h.
 *
 * Between two steps rank 0 has all ranks load a folder beside what they serve. They agree on each
 * stage of it: where one fails, all let go of the new one. No step runs meanwhile; what runs then
 * ends on the old server, whose steps alternate with the new one's. The others follow one server at
 * a time; before a step of another one rank 0 tells them so, where they are. A server's end takes
 * them back to the newest that is left.
 */
#include "front.h"

#include "comm/comm.h"
#include "serve/turns.h"

#include <stdlib.h>
#include <string.h>

enum { TURN_LOAD = 1, TURN_TO }; /* TURN_TO + the number of a server */

ds_status ranks_turn_to(front *f, served *s)
{
    if (f->comm == NULL || f->followed == s) {
        return DS_OK;
    }
    DS_TRY(dsi_serve_lead_turn(f->followed->server, (int32_t)(TURN_TO + s->number), ""));
    f->followed = s;
    return DS_OK;
}

void ranks_drop(front *f, served *s)
{
    if (ranks_turn_to(f, s) < 0) {
        dsi_serve_part(s->server);
    }
    s->destroy(s);
    f->followed = f->in_force;
}

/* On every rank: what all have, or none. */
static ds_status load(front *f, const char *path, served **served_out)
{
    served *s = NULL;
    ds_status status = f->load(f->ctx, path, f, &s);
    const char *other = status >= 0 && ds_comm_rank(f->comm) == 0 ? reload_differs(f, s) : NULL;
    if (other != NULL) {
        status = ds_fail(f->ctx, DS_ERR_ARG, "%.300s: %s", path, other);
    }
    status = ds_comm_agree(f->comm, f->ctx, status);
    if (status < 0) {
        if (s != NULL) {
            dsi_serve_part(s->server);
            s->destroy(s);
        }
        return status;
    }
    s->number = ++f->n_loaded;
    *served_out = s;
    return DS_OK;
}

ds_status ranks_reload(front *f, served **served_out)
{
    f->idle = true; /* it takes its time */
    (void)pthread_mutex_unlock(&f->lock);
    ds_status status = dsi_serve_lead_turn(f->followed->server, TURN_LOAD, f->asked_path);
    status = status < 0 ? status : load(f, f->asked_path, served_out);
    (void)pthread_mutex_lock(&f->lock);
    f->beat += 1;
    f->idle = false;
    return status;
}

/* The server of a number; NULL: there is none. */
static served *find(front *f, int64_t number)
{
    served *s = f->ending;
    while (s != NULL && s->number != number) {
        s = s->next;
    }
    return s;
}

static void drop(front *f, const served *s)
{
    served **at = &f->ending;
    while (*at != s) {
        at = &(*at)->next;
    }
    served *gone = *at;
    *at = gone->next;
    gone->destroy(gone);
}

/* What rank 0 wants beside a server's steps. */
static ds_status obey(front *f, int32_t what, const char *text, served **at)
{
    served *fresh = NULL;
    if (what == 0) {
        drop(f, *at);
        *at = f->ending;
        return DS_OK;
    }
    if (what >= TURN_TO) {
        *at = find(f, what - TURN_TO);
        return *at != NULL ? DS_OK
                           : ds_fail(f->ctx, DS_ERR_STATE, "rank 0 has a server that is not here");
    }
    free(f->asked_path);
    f->asked_path = strdup(text);
    if (f->asked_path == NULL) {
        return ds_fail(f->ctx, DS_ERR_NOMEM, "no memory");
    }
    if (load(f, f->asked_path, &fresh) < 0) {
        ds_log(f->http_ctx, DS_LOG_WARN, "%s is not loaded: %s", text, ds_ctx_error(f->ctx));
    } else {
        fresh->next = f->ending;
        f->ending = fresh;
    }
    return DS_OK;
}

ds_status ranks_follow(front *f)
{
    ds_status status = DS_OK;
    served *at = f->in_force;
    f->ending = at;
    f->in_force = NULL;
    f->server = NULL;
    while (status >= 0 && at != NULL) {
        int32_t what = 0;
        const char *text = NULL;
        status = dsi_serve_follow_turn(at->server, &what, &text);
        status = status < 0 ? status : obey(f, what, text, &at);
    }
    return status;
}

void ranks_close(front *f)
{
    while (f->ending != NULL) {
        drop(f, f->ending);
    }
}
