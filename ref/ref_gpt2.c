/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 (Radford et al. 2019), forward and backward.
 *
 *   x = wte[token] + wpe[position]
 *   each layer:  x = x + c_proj(attention(c_attn(ln_1(x))))
 *                x = x + c_proj(act(c_fc(ln_2(x))))
 *   logits = ln_f(x) · wteᵀ
 *
 * N = B·T rows, C = n_embd, F = n_inner. See ref.h.
 */
#include "ref/ref.h"

#include <math.h>

/* What the forward pass of a layer leaves for its backward pass. */
typedef struct layer {
    const float *x;             /* (N,C) input */
    float *a, *a_mean, *a_rstd; /* (N,C) ln_1, (N), (N) */
    float *qkv;                 /* (N,3C) */
    float *y, *lse;             /* (N,C), (B,H,T) */
    float *mid;                 /* (N,C) x + attention */
    float *m, *m_mean, *m_rstd; /* (N,C) ln_2, (N), (N) */
    float *h, *act;             /* (N,F) before and after the activation */
} layer;

typedef struct model {
    const ref_gpt2_config *c;
    const ref_io *io;
    const ref_batch *batch;
    ref_scratch *scratch;
    int64_t n; /* rows */
} model;

static float *rows(const model *g, int64_t width)
{
    return ref_floats(g->scratch, g->n * width);
}

/* transformer.h.<i>.<name>: GPT-2 stores (in,out). */
static ref_weight conv1d(const model *g, int64_t i, const char *name, int64_t n_in, int64_t n_out)
{
    return (ref_weight){.w = ref_param(g->io, "transformer.h.%lld.%s.weight", (long long)i, name),
                        .bias = ref_param(g->io, "transformer.h.%lld.%s.bias", (long long)i, name),
                        .n_in = n_in,
                        .n_out = n_out,
                        .transposed = true};
}

static float *layer_grad(const model *g, int64_t i, const char *name)
{
    return ref_grad(g->io, "transformer.h.%lld.%s", (long long)i, name);
}

static const float *layer_param(const model *g, int64_t i, const char *name)
{
    return ref_param(g->io, "transformer.h.%lld.%s", (long long)i, name);
}

/* q, k and v lie side by side in a row of qkv. */
static ref_attention_shape attention_shape(const model *g, int64_t i)
{
    const ref_gpt2_config *c = g->c;
    const int64_t d = c->n_embd / c->n_head;
    double scale = c->scale_attn_weights ? 1.0 / sqrt((double)d) : 1.0;
    if (c->scale_attn_by_inverse_layer_idx) {
        scale /= (double)(i + 1);
    }
    return (ref_attention_shape){.b = g->batch->b,
                                 .t = g->batch->t,
                                 .h = c->n_head,
                                 .kv = c->n_head,
                                 .d = d,
                                 .q_stride = 3 * c->n_embd,
                                 .kv_stride = 3 * c->n_embd,
                                 .scale = (float)scale,
                                 .first = g->batch->first};
}

static const float *layer_forward(const model *g, layer *l, int64_t i, const float *x)
{
    const int64_t n = g->n;
    const int64_t width = g->c->n_embd;
    const int64_t inner = g->c->n_inner;
    const float eps = g->c->layer_norm_epsilon;
    l->x = x;

    l->a = rows(g, width);
    l->a_mean = rows(g, 1);
    l->a_rstd = rows(g, 1);
    ref_layer_norm(l->a, l->a_mean, l->a_rstd, x, layer_param(g, i, "ln_1.weight"),
                   layer_param(g, i, "ln_1.bias"), eps, n, width);

    l->qkv = rows(g, 3 * width);
    l->y = rows(g, width);
    l->lse = rows(g, g->c->n_head);
    const ref_weight c_attn = conv1d(g, i, "attn.c_attn", width, 3 * width);
    const ref_attention_shape shape = attention_shape(g, i);
    ref_linear(l->qkv, l->a, &c_attn, n);
    ref_attention(l->y, l->lse, l->qkv, l->qkv + width, l->qkv + 2 * width, &shape);

    l->mid = rows(g, width);
    const ref_weight attn_proj = conv1d(g, i, "attn.c_proj", width, width);
    ref_linear(l->mid, l->y, &attn_proj, n);
    ref_add(l->mid, x, l->mid, n * width);

    l->m = rows(g, width);
    l->m_mean = rows(g, 1);
    l->m_rstd = rows(g, 1);
    ref_layer_norm(l->m, l->m_mean, l->m_rstd, l->mid, layer_param(g, i, "ln_2.weight"),
                   layer_param(g, i, "ln_2.bias"), eps, n, width);

    l->h = rows(g, inner);
    l->act = rows(g, inner);
    const ref_weight c_fc = conv1d(g, i, "mlp.c_fc", width, inner);
    ref_linear(l->h, l->m, &c_fc, n);
    ref_activation(l->act, l->h, g->c->activation, n * inner);

    float *out = rows(g, width);
    const ref_weight mlp_proj = conv1d(g, i, "mlp.c_proj", inner, width);
    ref_linear(out, l->act, &mlp_proj, n);
    ref_add(out, l->mid, out, n * width);
    return out;
}

/* dx, the gradient of the layer's output, becomes that of its input. */
static void layer_backward(const model *g, const layer *l, int64_t i, float *dx)
{
    const int64_t n = g->n;
    const int64_t width = g->c->n_embd;
    const int64_t inner = g->c->n_inner;
    float *d = rows(g, width); /* of what a norm gives or takes */

    float *dact = rows(g, inner);
    const ref_weight mlp_proj = conv1d(g, i, "mlp.c_proj", inner, width);
    ref_linear_dx(dact, dx, &mlp_proj, n);
    ref_linear_dw(layer_grad(g, i, "mlp.c_proj.weight"), layer_grad(g, i, "mlp.c_proj.bias"), dx,
                  l->act, &mlp_proj, n);
    ref_activation_backward(dact, dact, l->h, g->c->activation, n * inner);
    const ref_weight c_fc = conv1d(g, i, "mlp.c_fc", width, inner);
    ref_linear_dx(d, dact, &c_fc, n);
    ref_linear_dw(layer_grad(g, i, "mlp.c_fc.weight"), layer_grad(g, i, "mlp.c_fc.bias"), dact,
                  l->m, &c_fc, n);
    ref_layer_norm_backward(d, layer_grad(g, i, "ln_2.weight"), layer_grad(g, i, "ln_2.bias"), d,
                            l->mid, layer_param(g, i, "ln_2.weight"), l->m_mean, l->m_rstd, n,
                            width);
    ref_add(dx, d, dx, n * width);

    const ref_weight attn_proj = conv1d(g, i, "attn.c_proj", width, width);
    ref_linear_dx(d, dx, &attn_proj, n);
    ref_linear_dw(layer_grad(g, i, "attn.c_proj.weight"), layer_grad(g, i, "attn.c_proj.bias"), dx,
                  l->y, &attn_proj, n);
    float *dqkv = rows(g, 3 * width);
    const ref_attention_shape shape = attention_shape(g, i);
    ref_attention_backward(dqkv, dqkv + width, dqkv + 2 * width, d, l->qkv, l->qkv + width,
                           l->qkv + 2 * width, l->y, l->lse, &shape);
    const ref_weight c_attn = conv1d(g, i, "attn.c_attn", width, 3 * width);
    ref_linear_dx(d, dqkv, &c_attn, n);
    ref_linear_dw(layer_grad(g, i, "attn.c_attn.weight"), layer_grad(g, i, "attn.c_attn.bias"),
                  dqkv, l->a, &c_attn, n);
    ref_layer_norm_backward(d, layer_grad(g, i, "ln_1.weight"), layer_grad(g, i, "ln_1.bias"), d,
                            l->x, layer_param(g, i, "ln_1.weight"), l->a_mean, l->a_rstd, n, width);
    ref_add(dx, d, dx, n * width);
}

/* After the layers: ln_f and the output projection. */
typedef struct tail {
    const float *x;
    float *y, *mean, *rstd; /* (N,C), (N), (N) */
    float *logits, *lse;    /* (N,V), (N) */
    ref_weight head;
} tail;

static float tail_forward(const model *g, tail *t, const float *x, float *logits)
{
    const int64_t width = g->c->n_embd;
    const int64_t v = g->c->vocab_size;
    t->x = x;
    t->y = rows(g, width);
    t->mean = rows(g, 1);
    t->rstd = rows(g, 1);
    ref_layer_norm(t->y, t->mean, t->rstd, x, ref_param(g->io, "transformer.ln_f.weight"),
                   ref_param(g->io, "transformer.ln_f.bias"), g->c->layer_norm_epsilon, g->n,
                   width);
    t->logits = logits != NULL ? logits : rows(g, v);
    t->lse = rows(g, 1);
    t->head = (ref_weight){
        .w = ref_param(g->io, g->c->tied ? "transformer.wte.weight" : "lm_head.weight"),
        .n_in = width,
        .n_out = v};
    ref_linear(t->logits, t->y, &t->head, g->n);
    return ref_cross_entropy(t->lse, t->logits, g->batch->targets, g->n, v);
}

/* The gradient of the last layer's output; dhead (V,C) is that of the projection. */
static float *tail_backward(const model *g, const tail *t, float *dhead)
{
    const int64_t width = g->c->n_embd;
    const int64_t v = g->c->vocab_size;
    float *dlogits = rows(g, v);
    float *dx = rows(g, width);
    ref_cross_entropy_backward(dlogits, t->logits, g->batch->targets, t->lse, g->n, v);
    ref_linear_dx(dx, dlogits, &t->head, g->n);
    ref_linear_dw(dhead, NULL, dlogits, t->y, &t->head, g->n);
    ref_layer_norm_backward(
        dx, ref_grad(g->io, "transformer.ln_f.weight"), ref_grad(g->io, "transformer.ln_f.bias"),
        dx, t->x, ref_param(g->io, "transformer.ln_f.weight"), t->mean, t->rstd, g->n, width);
    return dx;
}

static void backward(const model *g, const layer *layers, const tail *t)
{
    const ref_gpt2_config *c = g->c;
    const ref_batch *batch = g->batch;
    const int64_t table = c->vocab_size * c->n_embd;
    float *dhead = c->tied ? ref_floats(g->scratch, table) : ref_grad(g->io, "lm_head.weight");
    float *dx = tail_backward(g, t, dhead);
    for (int64_t i = c->n_layer; i-- > 0;) {
        layer_backward(g, &layers[i], i, dx);
    }
    float *dwte = ref_grad(g->io, "transformer.wte.weight");
    ref_embedding_dw(dwte, c->vocab_size, batch->tokens, dx, g->n, c->n_embd);
    if (c->tied) {
        ref_add(dwte, dwte, dhead, table);
    }
    ref_embedding_dw(ref_grad(g->io, "transformer.wpe.weight"), c->n_positions, batch->positions,
                     dx, g->n, c->n_embd);
}

enum { MAX_LAYERS = 512 };

float ref_gpt2(const ref_gpt2_config *config, const ref_io *io, const ref_batch *batch,
               float *logits)
{
    ref_scratch scratch = {0};
    const model g = {config, io, batch, &scratch, batch->b * batch->t};
    layer layers[MAX_LAYERS];
    tail t;
    float *embedded = rows(&g, config->n_embd);
    ref_embedding(embedded, ref_param(io, "transformer.wte.weight"), batch->tokens,
                  ref_param(io, "transformer.wpe.weight"), batch->positions, g.n, config->n_embd);
    const float *x = embedded;
    for (int64_t i = 0; i < config->n_layer; ++i) {
        x = layer_forward(&g, &layers[i], i, x);
    }
    const float loss = tail_forward(&g, &t, x, logits);
    if (io->backward) {
        backward(&g, layers, &t);
    }
    ref_scratch_free(&scratch);
    return loss;
}
