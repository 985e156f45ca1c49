/* SPDX-License-Identifier: Apache-2.0 */
/* See ref_ops.h. */
#include "ref/ref_ops.h"

#include <math.h>
#include <string.h>

/* ---- linear -----------------------------------------------------------------------------------
 */
static int64_t weight_at(const ref_weight *w, int64_t in, int64_t out)
{
    return w->transposed ? in * w->n_out + out : out * w->n_in + in;
}

void ref_linear(float *y, const float *x, const ref_weight *w, int64_t n)
{
    for (int64_t row = 0; row < n; ++row) {
        for (int64_t o = 0; o < w->n_out; ++o) {
            float sum = 0.0f;
            for (int64_t k = 0; k < w->n_in; ++k) {
                sum += x[row * w->n_in + k] * w->w[weight_at(w, k, o)];
            }
            y[row * w->n_out + o] = w->bias != NULL ? sum + w->bias[o] : sum;
        }
    }
}

void ref_linear_dx(float *dx, const float *dy, const ref_weight *w, int64_t n)
{
    for (int64_t row = 0; row < n; ++row) {
        for (int64_t k = 0; k < w->n_in; ++k) {
            float sum = 0.0f;
            for (int64_t o = 0; o < w->n_out; ++o) {
                sum += dy[row * w->n_out + o] * w->w[weight_at(w, k, o)];
            }
            dx[row * w->n_in + k] = sum;
        }
    }
}

void ref_linear_dw(float *dw, float *dbias, const float *dy, const float *x, const ref_weight *w,
                   int64_t n)
{
    for (int64_t o = 0; o < w->n_out; ++o) {
        for (int64_t k = 0; k < w->n_in; ++k) {
            float sum = 0.0f;
            for (int64_t row = 0; row < n; ++row) {
                sum += dy[row * w->n_out + o] * x[row * w->n_in + k];
            }
            dw[weight_at(w, k, o)] = sum;
        }
    }
    for (int64_t o = 0; dbias != NULL && o < w->n_out; ++o) {
        float sum = 0.0f;
        for (int64_t row = 0; row < n; ++row) {
            sum += dy[row * w->n_out + o];
        }
        dbias[o] = sum;
    }
}

/* ---- elementwise ------------------------------------------------------------------------------
 */
void ref_add(float *out, const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        out[i] = a[i] + b[i];
    }
}

static const float gelu_s = 0.7978845608028654f; /* sqrt(2/pi) */
static const float gelu_c = 0.044715f;
static const float sqrt_half = 0.7071067811865476f;
static const float inv_sqrt_2pi = 0.3989422804014327f;

static float act_of(ref_act act, float x)
{
    switch (act) {
    case REF_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(gelu_s * (x + gelu_c * x * x * x)));
    case REF_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * sqrt_half));
    case REF_SILU:
        break;
    }
    return x / (1.0f + expf(-x));
}

static float act_slope(ref_act act, float x)
{
    switch (act) {
    case REF_GELU_TANH: {
        const float t = tanhf(gelu_s * (x + gelu_c * x * x * x));
        const float inner = gelu_s * (1.0f + 3.0f * gelu_c * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
    case REF_GELU_ERF:
        return 0.5f * (1.0f + erff(x * sqrt_half)) + x * inv_sqrt_2pi * expf(-0.5f * x * x);
    case REF_SILU:
        break;
    }
    const float g = 1.0f / (1.0f + expf(-x));
    return g * (1.0f + x * (1.0f - g));
}

void ref_activation(float *y, const float *x, ref_act act, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        y[i] = act_of(act, x[i]);
    }
}

void ref_activation_backward(float *dx, const float *dy, const float *x, ref_act act, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        dx[i] = dy[i] * act_slope(act, x[i]);
    }
}

void ref_glu(float *y, const float *gate, const float *up, ref_act act, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        y[i] = act_of(act, gate[i]) * up[i];
    }
}

void ref_glu_backward(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                      ref_act act, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        dgate[i] = dy[i] * up[i] * act_slope(act, gate[i]);
        dup[i] = dy[i] * act_of(act, gate[i]);
    }
}

/* ---- embedding --------------------------------------------------------------------------------
 */
void ref_embedding(float *y, const float *table, const int32_t *ids, const float *place_table,
                   const int32_t *places, int64_t n, int64_t c)
{
    for (int64_t row = 0; row < n; ++row) {
        for (int64_t i = 0; i < c; ++i) {
            const float token = table[ids[row] * c + i];
            y[row * c + i] = place_table != NULL ? token + place_table[places[row] * c + i] : token;
        }
    }
}

void ref_embedding_dw(float *dtable, int64_t v, const int32_t *ids, const float *dy, int64_t n,
                      int64_t c)
{
    memset(dtable, 0, (size_t)(v * c) * sizeof(float));
    for (int64_t row = 0; row < n; ++row) {
        for (int64_t i = 0; i < c; ++i) {
            dtable[ids[row] * c + i] += dy[row * c + i];
        }
    }
}

/* ---- norms ------------------------------------------------------------------------------------
 */
void ref_layer_norm(float *y, float *mean, float *rstd, const float *x, const float *w,
                    const float *b, float eps, int64_t n, int64_t c)
{
    for (int64_t row = 0; row < n; ++row) {
        const float *in = x + row * c;
        float sum = 0.0f;
        for (int64_t i = 0; i < c; ++i) {
            sum += in[i];
        }
        mean[row] = sum / (float)c;
        float squares = 0.0f;
        for (int64_t i = 0; i < c; ++i) {
            squares += (in[i] - mean[row]) * (in[i] - mean[row]);
        }
        rstd[row] = 1.0f / sqrtf(squares / (float)c + eps);
        for (int64_t i = 0; i < c; ++i) {
            y[row * c + i] = (in[i] - mean[row]) * rstd[row] * w[i] + b[i];
        }
    }
}

void ref_layer_norm_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                             const float *w, const float *mean, const float *rstd, int64_t n,
                             int64_t c)
{
    memset(dw, 0, (size_t)c * sizeof(float));
    memset(db, 0, (size_t)c * sizeof(float));
    for (int64_t row = 0; row < n; ++row) {
        float sum_d = 0.0f;
        float sum_dh = 0.0f;
        for (int64_t i = row * c; i < (row + 1) * c; ++i) {
            const float h = (x[i] - mean[row]) * rstd[row];
            const float d = dy[i] * w[i - row * c];
            sum_d += d;
            sum_dh += d * h;
            dw[i - row * c] += dy[i] * h;
            db[i - row * c] += dy[i];
        }
        const float mean_d = sum_d / (float)c;
        const float mean_dh = sum_dh / (float)c;
        for (int64_t i = row * c; i < (row + 1) * c; ++i) {
            const float h = (x[i] - mean[row]) * rstd[row];
            dx[i] = ((dy[i] * w[i - row * c] - mean_d) - h * mean_dh) * rstd[row];
        }
    }
}

void ref_rms_norm(float *y, float *rstd, const float *x, const float *w, float eps, int64_t n,
                  int64_t c)
{
    for (int64_t row = 0; row < n; ++row) {
        const float *in = x + row * c;
        float squares = 0.0f;
        for (int64_t i = 0; i < c; ++i) {
            squares += in[i] * in[i];
        }
        rstd[row] = 1.0f / sqrtf(squares / (float)c + eps);
        for (int64_t i = 0; i < c; ++i) {
            y[row * c + i] = in[i] * rstd[row] * w[i];
        }
    }
}

void ref_rms_norm_backward(float *dx, float *dw, const float *dy, const float *x, const float *w,
                           const float *rstd, int64_t n, int64_t c)
{
    memset(dw, 0, (size_t)c * sizeof(float));
    for (int64_t row = 0; row < n; ++row) {
        float sum_dh = 0.0f;
        for (int64_t i = row * c; i < (row + 1) * c; ++i) {
            const float h = x[i] * rstd[row];
            sum_dh += dy[i] * w[i - row * c] * h;
            dw[i - row * c] += dy[i] * h;
        }
        const float mean_dh = sum_dh / (float)c;
        for (int64_t i = row * c; i < (row + 1) * c; ++i) {
            const float h = x[i] * rstd[row];
            dx[i] = (dy[i] * w[i - row * c] - h * mean_dh) * rstd[row];
        }
    }
}

/* ---- attention --------------------------------------------------------------------------------
 */
/* Lowest key that query i of sample b sees; the highest is i. */
static int64_t first_key(const ref_attention_shape *s, int64_t b, int64_t i)
{
    int64_t first = s->first != NULL ? s->first[b * s->t + i] : 0;
    if (s->window > 0 && i - s->window + 1 > first) {
        first = i - s->window + 1;
    }
    return first;
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* Offsets of head h of token (b,i): in q, in k and v, in y, in lse. */
static int64_t q_at(const ref_attention_shape *s, int64_t b, int64_t h, int64_t i)
{
    return (b * s->t + i) * s->q_stride + h * s->d;
}

static int64_t kv_at(const ref_attention_shape *s, int64_t b, int64_t h, int64_t j)
{
    return (b * s->t + j) * s->kv_stride + h / (s->h / s->kv) * s->d;
}

static int64_t y_at(const ref_attention_shape *s, int64_t b, int64_t h, int64_t i)
{
    return ((b * s->t + i) * s->h + h) * s->d;
}

static void attend(float *y, float *lse, const float *q, const float *k, const float *v,
                   const ref_attention_shape *s, int64_t b, int64_t h, int64_t i)
{
    const int64_t first = first_key(s, b, i);
    const float *query = q + q_at(s, b, h, i);
    float *out = y + y_at(s, b, h, i);
    float top = -INFINITY;
    for (int64_t j = first; j <= i; ++j) {
        top = fmaxf(top, dot(query, k + kv_at(s, b, h, j), s->d) * s->scale);
    }
    float sum = 0.0f;
    for (int64_t j = first; j <= i; ++j) {
        sum += expf(dot(query, k + kv_at(s, b, h, j), s->d) * s->scale - top);
    }
    for (int64_t c = 0; c < s->d; ++c) {
        out[c] = 0.0f;
    }
    for (int64_t j = first; j <= i; ++j) {
        const float p = expf(dot(query, k + kv_at(s, b, h, j), s->d) * s->scale - top) / sum;
        for (int64_t c = 0; c < s->d; ++c) {
            out[c] += p * v[kv_at(s, b, h, j) + c];
        }
    }
    lse[(b * s->h + h) * s->t + i] = first <= i ? top + logf(sum) : -INFINITY;
}

void ref_attention(float *y, float *lse, const float *q, const float *k, const float *v,
                   const ref_attention_shape *s)
{
    for (int64_t b = 0; b < s->b; ++b) {
        for (int64_t h = 0; h < s->h; ++h) {
            for (int64_t i = 0; i < s->t; ++i) {
                attend(y, lse, q, k, v, s, b, h, i);
            }
        }
    }
}

void ref_attention_backward(float *dq, float *dk, float *dv, const float *dy, const float *q,
                            const float *k, const float *v, const float *y, const float *lse,
                            const ref_attention_shape *s)
{
    for (int64_t b = 0; b < s->b; ++b) {
        for (int64_t i = 0; i < s->t; ++i) {
            for (int64_t c = 0; c < s->h * s->d; ++c) {
                dq[q_at(s, b, 0, i) + c] = 0.0f;
            }
            for (int64_t c = 0; c < s->kv * s->d; ++c) {
                dk[kv_at(s, b, 0, i) + c] = 0.0f;
                dv[kv_at(s, b, 0, i) + c] = 0.0f;
            }
        }
        for (int64_t h = 0; h < s->h; ++h) {
            for (int64_t i = 0; i < s->t; ++i) {
                const int64_t qi = q_at(s, b, h, i);
                const float *g = dy + y_at(s, b, h, i);
                const float delta = dot(g, y + y_at(s, b, h, i), s->d);
                for (int64_t j = first_key(s, b, i); j <= i; ++j) {
                    const int64_t kj = kv_at(s, b, h, j);
                    const float score = dot(q + qi, k + kj, s->d) * s->scale;
                    const float p = expf(score - lse[(b * s->h + h) * s->t + i]);
                    const float ds = p * (dot(g, v + kj, s->d) - delta) * s->scale;
                    for (int64_t c = 0; c < s->d; ++c) {
                        dq[qi + c] += ds * k[kj + c];
                        dk[kj + c] += ds * q[qi + c];
                        dv[kj + c] += p * g[c];
                    }
                }
            }
        }
    }
}

/* ---- cross entropy ----------------------------------------------------------------------------
 */
static int64_t n_counted(const int32_t *targets, int64_t n)
{
    int64_t count = 0;
    for (int64_t row = 0; row < n; ++row) {
        count += targets[row] != REF_IGNORE;
    }
    return count;
}

float ref_cross_entropy(float *lse, const float *logits, const int32_t *targets, int64_t n,
                        int64_t v)
{
    float total = 0.0f;
    for (int64_t row = 0; row < n; ++row) {
        const float *z = logits + row * v;
        float top = -INFINITY;
        for (int64_t i = 0; i < v; ++i) {
            top = fmaxf(top, z[i]);
        }
        float sum = 0.0f;
        for (int64_t i = 0; i < v; ++i) {
            sum += expf(z[i] - top);
        }
        lse[row] = top + logf(sum);
        if (targets[row] != REF_IGNORE) {
            total += lse[row] - z[targets[row]];
        }
    }
    const int64_t count = n_counted(targets, n);
    return count > 0 ? total / (float)count : 0.0f;
}

void ref_cross_entropy_backward(float *dlogits, const float *logits, const int32_t *targets,
                                const float *lse, int64_t n, int64_t v)
{
    const int64_t count = n_counted(targets, n);
    const float share = count > 0 ? 1.0f / (float)count : 0.0f;
    for (int64_t row = 0; row < n; ++row) {
        for (int64_t i = 0; i < v; ++i) {
            const float p = expf(logits[row * v + i] - lse[row]);
            float d = i == targets[row] ? (p - 1.0f) * share : p * share;
            dlogits[row * v + i] = targets[row] == REF_IGNORE ? 0.0f : d;
        }
    }
}
