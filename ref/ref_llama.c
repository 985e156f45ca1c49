/* SPDX-License-Identifier: Apache-2.0 */
/* The Llama family, forward and backward: Llama 2 (Touvron et al. 2023) and 3 (Dubey et al. 2024),
 * Mistral (Jiang et al. 2023), Qwen2 and Qwen3 (Yang et al. 2024, 2025).
 *
 *   x = embed_tokens[token]
 *   each layer:  a = input_layernorm(x)
 *                q, k, v = q_proj(a), k_proj(a), v_proj(a)      Qwen2: with biases
 *                q, k = q_norm(q), k_norm(k)                    Qwen3: over each head
 *                x = x + o_proj(attention(rotate(q), rotate(k), v))
 *                m = post_attention_layernorm(x)
 *                x = x + down_proj(act(gate_proj(m))·up_proj(m))
 *   logits = norm(x) · (lm_head or embed_tokens)ᵀ
 *
 * N = B·T rows, C = hidden_size, F = intermediate_size, H and KV heads of width D. See ref.h.
 */
#include "ref/ref.h"

#include <math.h>

/* What the forward pass of a layer leaves for its backward pass. */
typedef struct layer {
    const float *x;         /* (N,C) input */
    float *a, *a_rstd;      /* (N,C) input_layernorm, (N) */
    float *q, *k, *v;       /* (N,H·D), (N,KV·D) projections; q and k after rotation */
    float *q_raw, *k_raw;   /* before q_norm and k_norm, when there are any */
    float *q_rstd, *k_rstd; /* (N,H), (N,KV) */
    float *y, *lse;         /* (N,H·D), (B,H,T) */
    float *mid;             /* (N,C) x + attention */
    float *m, *m_rstd;      /* (N,C) post_attention_layernorm, (N) */
    float *gate, *up, *glu; /* (N,F) */
} layer;

typedef struct model {
    const ref_llama_config *c;
    const ref_io *io;
    const ref_batch *batch;
    ref_scratch *scratch;
    int64_t n;                    /* rows */
    int64_t q_width, kv_width;    /* H·D, KV·D */
    const float *cosines, *sines; /* (N,D/2) */
} model;

static float *rows(const model *g, int64_t width)
{
    return ref_floats(g->scratch, g->n * width);
}

static const float *layer_param(const model *g, int64_t i, const char *name)
{
    return ref_param(g->io, "model.layers.%lld.%s.weight", (long long)i, name);
}

static float *layer_grad(const model *g, int64_t i, const char *name)
{
    return ref_grad(g->io, "model.layers.%lld.%s.weight", (long long)i, name);
}

static ref_weight projection(const model *g, int64_t i, const char *name, int64_t n_in,
                             int64_t n_out, bool bias)
{
    return (ref_weight){
        .w = layer_param(g, i, name),
        .bias = bias ? ref_param(g->io, "model.layers.%lld.%s.bias", (long long)i, name) : NULL,
        .n_in = n_in,
        .n_out = n_out};
}

static ref_weight q_proj(const model *g, int64_t i)
{
    return projection(g, i, "self_attn.q_proj", g->c->hidden_size, g->q_width, g->c->qkv_bias);
}

static ref_weight k_proj(const model *g, int64_t i)
{
    return projection(g, i, "self_attn.k_proj", g->c->hidden_size, g->kv_width, g->c->qkv_bias);
}

static ref_weight v_proj(const model *g, int64_t i)
{
    return projection(g, i, "self_attn.v_proj", g->c->hidden_size, g->kv_width, g->c->qkv_bias);
}

static ref_weight o_proj(const model *g, int64_t i)
{
    return projection(g, i, "self_attn.o_proj", g->q_width, g->c->hidden_size, g->c->o_bias);
}

/* gate_proj and up_proj */
static ref_weight widening(const model *g, int64_t i, const char *name)
{
    return projection(g, i, name, g->c->hidden_size, g->c->intermediate_size, g->c->mlp_bias);
}

static ref_weight down_proj(const model *g, int64_t i)
{
    return projection(g, i, "mlp.down_proj", g->c->intermediate_size, g->c->hidden_size,
                      g->c->mlp_bias);
}

static ref_attention_shape attention_shape(const model *g, int64_t i)
{
    return (ref_attention_shape){.b = g->batch->b,
                                 .t = g->batch->t,
                                 .h = g->c->n_heads,
                                 .kv = g->c->n_kv_heads,
                                 .d = g->c->head_dim,
                                 .q_stride = g->q_width,
                                 .kv_stride = g->kv_width,
                                 .window = g->c->window[i],
                                 .scale = (float)(1.0 / sqrt((double)g->c->head_dim)),
                                 .first = g->batch->first};
}

/* ---- forward ----------------------------------------------------------------------------------
 */
static void qk_norm_forward(const model *g, layer *l, int64_t i)
{
    const ref_llama_config *c = g->c;
    l->q_raw = l->q;
    l->k_raw = l->k;
    l->q = rows(g, g->q_width);
    l->k = rows(g, g->kv_width);
    l->q_rstd = rows(g, c->n_heads);
    l->k_rstd = rows(g, c->n_kv_heads);
    ref_rms_norm(l->q, l->q_rstd, l->q_raw, layer_param(g, i, "self_attn.q_norm"), c->rms_norm_eps,
                 g->n * c->n_heads, c->head_dim);
    ref_rms_norm(l->k, l->k_rstd, l->k_raw, layer_param(g, i, "self_attn.k_norm"), c->rms_norm_eps,
                 g->n * c->n_kv_heads, c->head_dim);
}

static void attention_forward(const model *g, layer *l, int64_t i)
{
    const ref_llama_config *c = g->c;
    const ref_weight wq = q_proj(g, i);
    const ref_weight wk = k_proj(g, i);
    const ref_weight wv = v_proj(g, i);
    const ref_weight wo = o_proj(g, i);
    l->q = rows(g, g->q_width);
    l->k = rows(g, g->kv_width);
    l->v = rows(g, g->kv_width);
    ref_linear(l->q, l->a, &wq, g->n);
    ref_linear(l->k, l->a, &wk, g->n);
    ref_linear(l->v, l->a, &wv, g->n);
    if (c->qk_norm) {
        qk_norm_forward(g, l, i);
    }
    ref_rotate(l->q, l->q, g->cosines, g->sines, g->n, c->n_heads, c->head_dim, false);
    ref_rotate(l->k, l->k, g->cosines, g->sines, g->n, c->n_kv_heads, c->head_dim, false);
    l->y = rows(g, g->q_width);
    l->lse = rows(g, c->n_heads);
    const ref_attention_shape shape = attention_shape(g, i);
    ref_attention(l->y, l->lse, l->q, l->k, l->v, &shape);
    l->mid = rows(g, c->hidden_size);
    ref_linear(l->mid, l->y, &wo, g->n);
    ref_add(l->mid, l->x, l->mid, g->n * c->hidden_size);
}

static const float *layer_forward(const model *g, layer *l, int64_t i, const float *x)
{
    const ref_llama_config *c = g->c;
    const int64_t inner = c->intermediate_size;
    l->x = x;
    l->a = rows(g, c->hidden_size);
    l->a_rstd = rows(g, 1);
    ref_rms_norm(l->a, l->a_rstd, x, layer_param(g, i, "input_layernorm"), c->rms_norm_eps, g->n,
                 c->hidden_size);
    attention_forward(g, l, i);

    l->m = rows(g, c->hidden_size);
    l->m_rstd = rows(g, 1);
    ref_rms_norm(l->m, l->m_rstd, l->mid, layer_param(g, i, "post_attention_layernorm"),
                 c->rms_norm_eps, g->n, c->hidden_size);
    l->gate = rows(g, inner);
    l->up = rows(g, inner);
    l->glu = rows(g, inner);
    const ref_weight gate = widening(g, i, "mlp.gate_proj");
    const ref_weight up = widening(g, i, "mlp.up_proj");
    const ref_weight down = down_proj(g, i);
    ref_linear(l->gate, l->m, &gate, g->n);
    ref_linear(l->up, l->m, &up, g->n);
    ref_glu(l->glu, l->gate, l->up, c->activation, g->n * inner);
    float *out = rows(g, c->hidden_size);
    ref_linear(out, l->glu, &down, g->n);
    ref_add(out, l->mid, out, g->n * c->hidden_size);
    return out;
}

/* ---- backward: d is a gradient that moves from op to op, (N,C) unless said
 * ------------------------ */
/* The gradient of one projection's input; its weight's goes out by name. */
static void projection_backward(const model *g, int64_t i, const char *name, const ref_weight *w,
                                float *dx, const float *dy, const float *x)
{
    float *dbias =
        w->bias != NULL ? ref_grad(g->io, "model.layers.%lld.%s.bias", (long long)i, name) : NULL;
    ref_linear_dx(dx, dy, w, g->n);
    ref_linear_dw(layer_grad(g, i, name), dbias, dy, x, w, g->n);
}

/* dq and dk from after to before q_norm and k_norm. */
static void qk_norm_backward(const model *g, const layer *l, int64_t i, float *dq, float *dk)
{
    const ref_llama_config *c = g->c;
    ref_rms_norm_backward(dq, layer_grad(g, i, "self_attn.q_norm"), dq, l->q_raw,
                          layer_param(g, i, "self_attn.q_norm"), l->q_rstd, g->n * c->n_heads,
                          c->head_dim);
    ref_rms_norm_backward(dk, layer_grad(g, i, "self_attn.k_norm"), dk, l->k_raw,
                          layer_param(g, i, "self_attn.k_norm"), l->k_rstd, g->n * c->n_kv_heads,
                          c->head_dim);
}

/* dx: of the attention block's output; da: of its normalised input. */
static void attention_backward(const model *g, const layer *l, int64_t i, float *da,
                               const float *dx)
{
    const ref_llama_config *c = g->c;
    const ref_weight wq = q_proj(g, i);
    const ref_weight wk = k_proj(g, i);
    const ref_weight wv = v_proj(g, i);
    const ref_weight wo = o_proj(g, i);
    float *dy = rows(g, g->q_width);
    float *dq = rows(g, g->q_width);
    float *dk = rows(g, g->kv_width);
    float *dv = rows(g, g->kv_width);
    float *d = rows(g, c->hidden_size);
    projection_backward(g, i, "self_attn.o_proj", &wo, dy, dx, l->y);
    const ref_attention_shape shape = attention_shape(g, i);
    ref_attention_backward(dq, dk, dv, dy, l->q, l->k, l->v, l->y, l->lse, &shape);
    ref_rotate(dq, dq, g->cosines, g->sines, g->n, c->n_heads, c->head_dim, true);
    ref_rotate(dk, dk, g->cosines, g->sines, g->n, c->n_kv_heads, c->head_dim, true);
    if (c->qk_norm) {
        qk_norm_backward(g, l, i, dq, dk);
    }
    projection_backward(g, i, "self_attn.q_proj", &wq, da, dq, l->a);
    projection_backward(g, i, "self_attn.k_proj", &wk, d, dk, l->a);
    ref_add(da, da, d, g->n * c->hidden_size);
    projection_backward(g, i, "self_attn.v_proj", &wv, d, dv, l->a);
    ref_add(da, da, d, g->n * c->hidden_size);
}

/* dx: of the layer's output; dm: of the MLP's normalised input. */
static void mlp_backward(const model *g, const layer *l, int64_t i, float *dm, const float *dx)
{
    const ref_llama_config *c = g->c;
    const int64_t inner = c->intermediate_size;
    const ref_weight gate = widening(g, i, "mlp.gate_proj");
    const ref_weight up = widening(g, i, "mlp.up_proj");
    const ref_weight down = down_proj(g, i);
    float *dglu = rows(g, inner);
    float *dgate = rows(g, inner);
    float *dup = rows(g, inner);
    float *d = rows(g, c->hidden_size);
    projection_backward(g, i, "mlp.down_proj", &down, dglu, dx, l->glu);
    ref_glu_backward(dgate, dup, dglu, l->gate, l->up, c->activation, g->n * inner);
    projection_backward(g, i, "mlp.gate_proj", &gate, dm, dgate, l->m);
    projection_backward(g, i, "mlp.up_proj", &up, d, dup, l->m);
    ref_add(dm, dm, d, g->n * c->hidden_size);
}

/* dx, the gradient of the layer's output, becomes that of its input. */
static void layer_backward(const model *g, const layer *l, int64_t i, float *dx)
{
    const int64_t width = g->c->hidden_size;
    float *d = rows(g, width);
    mlp_backward(g, l, i, d, dx);
    ref_rms_norm_backward(d, layer_grad(g, i, "post_attention_layernorm"), d, l->mid,
                          layer_param(g, i, "post_attention_layernorm"), l->m_rstd, g->n, width);
    ref_add(dx, d, dx, g->n * width);
    attention_backward(g, l, i, d, dx);
    ref_rms_norm_backward(d, layer_grad(g, i, "input_layernorm"), d, l->x,
                          layer_param(g, i, "input_layernorm"), l->a_rstd, g->n, width);
    ref_add(dx, d, dx, g->n * width);
}

/* ---- the whole model ----------------------------------------------------------------------------
 */
/* After the layers: the last norm and the output projection. */
typedef struct tail {
    const float *x;
    float *y, *rstd;     /* (N,C), (N) */
    float *logits, *lse; /* (N,V), (N) */
    ref_weight head;
} tail;

static float tail_forward(const model *g, tail *t, const float *x, float *logits)
{
    const int64_t v = g->c->vocab_size;
    const int64_t width = g->c->hidden_size;
    t->x = x;
    t->y = rows(g, width);
    t->rstd = rows(g, 1);
    ref_rms_norm(t->y, t->rstd, x, ref_param(g->io, "model.norm.weight"), g->c->rms_norm_eps, g->n,
                 width);
    t->logits = logits != NULL ? logits : rows(g, v);
    t->lse = rows(g, 1);
    t->head = (ref_weight){
        .w = ref_param(g->io, g->c->tied ? "model.embed_tokens.weight" : "lm_head.weight"),
        .n_in = width,
        .n_out = v};
    ref_linear(t->logits, t->y, &t->head, g->n);
    return ref_cross_entropy(t->lse, t->logits, g->batch->targets, g->n, v);
}

/* The gradient of the last layer's output; dhead (V,C) is that of the projection. */
static float *tail_backward(const model *g, const tail *t, float *dhead)
{
    const int64_t v = g->c->vocab_size;
    const int64_t width = g->c->hidden_size;
    float *dlogits = rows(g, v);
    float *dx = rows(g, width);
    ref_cross_entropy_backward(dlogits, t->logits, g->batch->targets, t->lse, g->n, v);
    ref_linear_dx(dx, dlogits, &t->head, g->n);
    ref_linear_dw(dhead, NULL, dlogits, t->y, &t->head, g->n);
    ref_rms_norm_backward(dx, ref_grad(g->io, "model.norm.weight"), dx, t->x,
                          ref_param(g->io, "model.norm.weight"), t->rstd, g->n, width);
    return dx;
}

static void backward(const model *g, const layer *layers, const tail *t)
{
    const ref_llama_config *c = g->c;
    const int64_t table = c->vocab_size * c->hidden_size;
    float *dhead = c->tied ? ref_floats(g->scratch, table) : ref_grad(g->io, "lm_head.weight");
    float *dx = tail_backward(g, t, dhead);
    for (int64_t i = c->n_layers; i-- > 0;) {
        layer_backward(g, &layers[i], i, dx);
    }
    float *dtable = ref_grad(g->io, "model.embed_tokens.weight");
    ref_embedding_dw(dtable, c->vocab_size, g->batch->tokens, dx, g->n, c->hidden_size);
    if (c->tied) {
        ref_add(dtable, dtable, dhead, table);
    }
}

float ref_llama(const ref_llama_config *config, const ref_io *io, const ref_batch *batch,
                float *logits)
{
    ref_scratch scratch = {0};
    model g = {.c = config,
               .io = io,
               .batch = batch,
               .scratch = &scratch,
               .n = batch->b * batch->t,
               .q_width = config->n_heads * config->head_dim,
               .kv_width = config->n_kv_heads * config->head_dim};
    layer layers[REF_LLAMA_MAX_LAYERS];
    tail t;
    float *cosines = rows(&g, config->head_dim / 2);
    float *sines = rows(&g, config->head_dim / 2);
    ref_rope_table(cosines, sines, batch->positions, &config->rope, g.n);
    g.cosines = cosines;
    g.sines = sines;

    float *embedded = rows(&g, config->hidden_size);
    ref_embedding(embedded, ref_param(io, "model.embed_tokens.weight"), batch->tokens, NULL, NULL,
                  g.n, config->hidden_size);
    const float *x = embedded;
    for (int64_t i = 0; i < config->n_layers; ++i) {
        x = layer_forward(&g, &layers[i], i, x);
    }
    const float loss = tail_forward(&g, &t, x, logits);
    if (io->backward) {
        backward(&g, layers, &t);
    }
    ref_scratch_free(&scratch);
    return loss;
}
