/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of a server of a model. See door.h for what leads there. */
#include "http.h"

static const route routes[] = {
    {"GET", "/", http_page, ROUTE_OPEN},
    {"POST", "/v1/reload", http_reload, 0},
    {"POST", "/v1/chat/completions", http_chat, 0},
    {"POST", "/v1/completions", http_completion, 0},
    {"POST", "/v1/responses", http_response, 0},
    {"POST", "/v1/embeddings", http_embeddings, 0},
    {"POST", "/v1/load_lora_adapter", http_load, 0},
    {"POST", "/v1/unload_lora_adapter", http_unload, 0},
    {"POST", "/mii/", http_mii, ROUTE_PREFIX},
    {"GET", "/healthz", http_healthz, ROUTE_OPEN},
    {"GET", "/v1/models", http_models, 0},
    {"GET", "/v1/models/", http_model, ROUTE_PREFIX},
    {"GET", "/health", http_health, ROUTE_OPEN},
    {"GET", "/ready", http_ready, ROUTE_OPEN},
    {"GET", "/metrics", http_metrics, 0},
    {"GET", "/slots", http_slots, 0},
    {"POST", "/tokenize", http_tokenize, 0},
    {"POST", "/detokenize", http_detokenize, 0},
    {"POST", "/apply-template", http_template, 0},
};

ds_status http_start(ds_ctx *ctx, front *f)
{
    f->door.owner = f;
    f->door.lock = &f->lock;
    f->door.routes = routes;
    f->door.n_routes = sizeof routes / sizeof routes[0];
    f->door.unknown = "there is no such path here";
    f->door.resume = http_resume;
    f->door.drop = http_drop;
    return listen_start(ctx, &f->door);
}
