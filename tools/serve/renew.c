/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a model beside the one that is served, as the command line says. Its caller is reload.c;
 * what of it is taken into force, and when, is decided there. See open.h. */
#include "open.h"

#include "comm/comm.h"
#include "config/config_values.h"
#include "serve/turns.h"

#include <stdlib.h>
#include <string.h>

/* What a reload replaces. */
typedef struct loaded {
    served base;
    serve_options o; /* of the command line, with the paths that were found */
    parts p;         /* model, draft, adapter and unpacked alone */
    bool owns_ctx;
} loaded;

static void destroy_loaded(served *s)
{
    loaded *l = (loaded *)(void *)s;
    ds_serve_destroy(&s->server);
    ds_encoder_destroy(&s->encoder);
    sentence_form_close(&s->sentence);
    parts_close(&l->p);
    free(l->o.model_found);
    if (l->owns_ctx) {
        ds_ctx_destroy(&s->ctx);
    }
    free(l);
}

/* What of the front a server is, into l. */
static void keep_served(loaded *l, ds_ctx *ctx, const front *f)
{
    l->base = (served){.ctx = ctx,
                       .server = f->server,
                       .encoder = f->encoder,
                       .pairs = f->pairs,
                       .sentence = f->sentence,
                       .max_length = f->max_length,
                       .vocab_size = f->vocab_size,
                       .width = f->width,
                       .destroy = destroy_loaded};
}

/* What of a folder's tokenizer must be that in force; nothing where --tokenizer has it. */
static ds_status digest_tokenizer(ds_ctx *ctx, loaded *l)
{
    ds_tokenizer *tokenizer = NULL;
    if (l->o.tokenizer != NULL) {
        return DS_OK;
    }
    DS_TRY(ds_tokenizer_open(ctx, l->o.model, &tokenizer));
    l->base.tokenizer = reload_digest(l->o.model);
    l->base.stops = reload_stops(tokenizer);
    ds_tokenizer_close(&tokenizer);
    return DS_OK;
}

/* See front_load_fn. */
static ds_status load_again(ds_ctx *ctx, const char *path, const front *f, served **served_out)
{
    loaded *l = calloc(1, sizeof *l);
    front made = {.options = l != NULL ? &l->o : NULL, .comm = f->comm};
    const ds_status room = l != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory");
    const ds_status agreed = ds_comm_agree(f->comm, ctx, room);
    if (agreed < 0 || l == NULL) {
        free(l);
        return agreed;
    }
    if (f->options->deployment != NULL &&
        dsi_config_inference(f->options->deployment)->weights != NULL &&
        strcmp(path, f->options->model_asked) != 0) {
        free(l);
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s says where the weights are (checkpoint, checkpoint_dir), and %s would "
                       "be served with them; start another server",
                       f->options->sizes.offload.config_path, path);
    }
    l->o = *f->options;
    l->o.model = path;
    l->o.model_found = NULL;
    l->o.lora = (dsi_arg_list){0}; /* its adapters are those of now */
    if (strcmp(path, f->options->model_asked) != 0) {
        l->o.model_revision = NULL; /* of the other one */
    }
    /* over ranks each fails with the others */
    ds_status status = ds_comm_agree(f->comm, ctx, open_model(ctx, &l->o, &made, &l->p));
    status = status < 0 ? status : open_server(ctx, &l->o, &made, &l->p);
    keep_served(l, ctx, &made);
    status = status < 0 || ds_comm_rank(f->comm) > 0 ? status : digest_tokenizer(ctx, l);
    unpacked_remove(&l->p.unpacked);
    if (status < 0) {
        if (made.server != NULL) {
            dsi_serve_part(made.server);
        }
        destroy_loaded(&l->base);
        return status;
    }
    l->owns_ctx = f->comm == NULL;
    *served_out = &l->base;
    return DS_OK;
}

/* What the command line made is the first that is served. */
ds_status renew_first(ds_ctx *ctx, front *f, parts *p)
{
    loaded *l = calloc(1, sizeof *l);
    f->path = strdup(f->options->model_asked);
    if (l == NULL || f->path == NULL) {
        free(l);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory");
    }
    keep_served(l, ctx, f);
    l->p.model = p->model;
    l->p.draft = p->draft;
    l->p.adapter = p->adapter;
    l->p.draft_found = p->draft_found;
    p->model = p->draft = NULL;
    p->draft_found = NULL;
    p->adapter = NULL;
    f->in_force = f->followed = &l->base;
    f->load = load_again;
    return DS_OK;
}
