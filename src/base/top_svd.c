/* SPDX-License-Identifier: Apache-2.0 */
/* See top_svd.h. After k steps w·V = U·B and wᵀ·U = V·Bᵀ + a residual along the next vector, B
 * being upper bidiagonal; the singular values of B go to those of w, the largest first. The first
 * vector of V is one of the space of w's rows, so that a whole basis has all of it, also where n is
 * above m.
 */
#include "base/top_svd.h"

#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, SWEEPS = 60, SPARE = 20 };

typedef struct lanczos {
    const float *w;
    int64_t m, n, most; /* most: steps */
    int64_t k;          /* done */
    double *u, *v;      /* (most,m), (most+1,n) */
    double *alpha, *beta;
    double *p, *q; /* left and right vectors of B: (k,k), a vector a row */
    double *sigma;
    int64_t *order; /* of sigma, the largest first */
} lanczos;

/* Products in eight lanes by index, added in order. */
static double dot(const double *a, const double *b, int64_t n)
{
    double lane[LANES] = {0};
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        lane[i % LANES] += a[i] * b[i];
    }
    for (int i = 0; i < LANES; ++i) {
        sum += lane[i];
    }
    return sum;
}

static void add(double *y, double factor, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        y[i] += factor * x[i];
    }
}

/* out = w·x, or wᵀ·x. */
static void times(const lanczos *l, const double *x, double *out)
{
    for (int64_t i = 0; i < l->m; ++i) {
        const float *row = l->w + i * l->n;
        double lane[LANES] = {0};
        for (int64_t j = 0; j < l->n; ++j) {
            lane[j % LANES] += (double)row[j] * x[j];
        }
        out[i] = 0.0;
        for (int j = 0; j < LANES; ++j) {
            out[i] += lane[j];
        }
    }
}

static void times_turned(const lanczos *l, const double *x, double *out)
{
    memset(out, 0, (size_t)l->n * sizeof *out);
    for (int64_t i = 0; i < l->m; ++i) {
        const float *row = l->w + i * l->n;
        for (int64_t j = 0; j < l->n; ++j) {
            out[j] += x[i] * (double)row[j];
        }
    }
}

/* Takes what lies along `count` unit vectors out of x, twice, since once leaves rounding. */
static void make_orthogonal(double *x, const double *basis, int64_t count, int64_t n)
{
    for (int64_t again = 0; again < 2; ++again) {
        for (int64_t i = 0; i < count; ++i) {
            add(x, -dot(basis + i * n, x, n), basis + i * n, n);
        }
    }
}

/* x to length 1 and orthogonal to the basis; its length before. Where nothing is left of it another
 * direction is taken, and the length is 0. scale: what counts as nothing is 1e-13 of it. */
static double next_vector(double *x, const double *basis, int64_t count, int64_t n, double scale)
{
    make_orthogonal(x, basis, count, n);
    double length = sqrt(dot(x, x, n));
    const bool gone = !(length > 1e-13 * scale);
    for (uint32_t site = 1; !(length > 1e-13 * scale) && count < n; ++site) {
        for (int64_t i = 0; i < n; ++i) {
            x[i] = (double)dsi_rng_unit(dsi_rng_u32(17, (uint32_t)count, site, (uint64_t)i)) - 0.5;
        }
        make_orthogonal(x, basis, count, n);
        length = sqrt(dot(x, x, n));
        scale = 1.0;
    }
    for (int64_t i = 0; i < n && length > 0.0; ++i) {
        x[i] /= length;
    }
    return gone ? 0.0 : length;
}

/* Steps up to `upto`. */
static void go_on(lanczos *l, int64_t upto, double scale)
{
    for (; l->k < upto; ++l->k) {
        const int64_t k = l->k;
        double *u = l->u + k * l->m;
        double *next = l->v + (k + 1) * l->n;
        times(l, l->v + k * l->n, u);
        if (k > 0) {
            add(u, -l->beta[k - 1], u - l->m, l->m);
        }
        l->alpha[k] = next_vector(u, l->u, k, l->m, scale);
        times_turned(l, u, next);
        add(next, -l->alpha[k], l->v + k * l->n, l->n);
        l->beta[k] = next_vector(next, l->v, k + 1, l->n, scale);
    }
}

/* Columns i and j of B (rows of p) made orthogonal, and likewise turned in q. */
static double rotate(lanczos *l, int64_t i, int64_t j)
{
    double *a = l->p + i * l->k, *b = l->p + j * l->k;
    double *c = l->q + i * l->k, *d = l->q + j * l->k;
    const double aa = dot(a, a, l->k), bb = dot(b, b, l->k), ab = dot(a, b, l->k);
    if (!(fabs(ab) > 1e-15 * sqrt(aa * bb))) {
        return 0.0;
    }
    const double zeta = (bb - aa) / (2.0 * ab);
    const double t = (zeta < 0.0 ? -1.0 : 1.0) / (fabs(zeta) + sqrt(1.0 + zeta * zeta));
    const double cosine = 1.0 / sqrt(1.0 + t * t), sine = cosine * t;
    for (int64_t x = 0; x < l->k; ++x) {
        const double one = a[x], other = c[x];
        a[x] = cosine * one - sine * b[x];
        b[x] = sine * one + cosine * b[x];
        c[x] = cosine * other - sine * d[x];
        d[x] = sine * other + cosine * d[x];
    }
    return fabs(ab) / sqrt(aa * bb);
}

/* Singular values of B by Jacobi's rotations (Hestenes, 1958), in descending order. */
static void solve(lanczos *l)
{
    memset(l->p, 0, (size_t)(l->k * l->k) * sizeof *l->p);
    memset(l->q, 0, (size_t)(l->k * l->k) * sizeof *l->q);
    for (int64_t i = 0; i < l->k; ++i) { /* column i of B: alpha[i] at i, beta[i-1] above it */
        l->p[i * l->k + i] = l->alpha[i];
        l->q[i * l->k + i] = 1.0;
        if (i > 0) {
            l->p[i * l->k + i - 1] = l->beta[i - 1];
        }
    }
    double most = 1.0;
    for (int sweep = 0; sweep < SWEEPS && most > 1e-14; ++sweep) {
        most = 0.0;
        for (int64_t i = 0; i < l->k; ++i) {
            for (int64_t j = i + 1; j < l->k; ++j) {
                const double angle = rotate(l, i, j);
                most = angle > most ? angle : most;
            }
        }
    }
    for (int64_t i = 0; i < l->k; ++i) {
        l->sigma[i] = sqrt(dot(l->p + i * l->k, l->p + i * l->k, l->k));
        int64_t at = i;
        for (; at > 0 && l->sigma[l->order[at - 1]] < l->sigma[i]; --at) {
            l->order[at] = l->order[at - 1];
        }
        l->order[at] = i;
    }
}

/* Whether the r largest are w's: the residual of one is beta[k-1] times the last part of its left
 * vector. */
static bool is_done(const lanczos *l, int64_t r)
{
    bool done = l->k == l->most;
    for (int64_t i = 0; i < r && !done; ++i) {
        const int64_t at = l->order[i];
        const double last = l->sigma[at] > 0.0 ? l->p[at * l->k + l->k - 1] / l->sigma[at] : 0.0;
        if (fabs(l->beta[l->k - 1] * last) > 1e-7 * l->sigma[l->order[0]]) {
            return false;
        }
    }
    return true;
}

static void give(const lanczos *l, int64_t r, double *u, double *s, double *v)
{
    memset(u, 0, (size_t)(r * l->m) * sizeof *u);
    memset(v, 0, (size_t)(r * l->n) * sizeof *v);
    for (int64_t i = 0; i < r; ++i) {
        const int64_t at = l->order[i];
        s[i] = l->sigma[at];
        for (int64_t k = 0; k < l->k; ++k) {
            add(u + i * l->m, s[i] > 0.0 ? l->p[at * l->k + k] / s[i] : 0.0, l->u + k * l->m, l->m);
            add(v + i * l->n, l->q[at * l->k + k], l->v + k * l->n, l->n);
        }
    }
}

static bool grow(lanczos *l, int64_t steps)
{
    const size_t k = (size_t)steps + 1;
    double **rooms[] = {&l->u, &l->v, &l->alpha, &l->beta, &l->p, &l->q, &l->sigma};
    const size_t sizes[] = {k * (size_t)l->m, k * (size_t)l->n, k, k, k * k, k * k, k};
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; ++i) {
        double *more = realloc(*rooms[i], sizes[i] * sizeof **rooms[i]);
        if (more == NULL) {
            return false;
        }
        *rooms[i] = more;
    }
    int64_t *order = realloc(l->order, k * sizeof *order);
    l->order = order != NULL ? order : l->order;
    return order != NULL;
}

static ds_status run(ds_ctx *ctx, lanczos *l, int64_t r, double scale)
{
    int64_t steps = 2 * r + SPARE;
    for (bool done = false; !done; steps += steps / 2) {
        steps = steps < l->most ? steps : l->most;
        if (!grow(l, steps)) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for singular values");
        }
        if (l->k == 0) {
            for (int64_t i = 0; i < l->m; ++i) {
                l->u[i] = (double)dsi_rng_unit(dsi_rng_u32(17, 0, 0, (uint64_t)i)) - 0.5;
            }
            times_turned(l, l->u, l->v);
            (void)next_vector(l->v, l->v, 0, l->n, scale);
        }
        go_on(l, steps, scale);
        solve(l);
        done = is_done(l, r);
    }
    return DS_OK;
}

ds_status dsi_top_svd(ds_ctx *ctx, const float *w, int64_t m, int64_t n, int64_t r, double *u,
                      double *s, double *v)
{
    lanczos l = {.w = w, .m = m, .n = n, .most = m < n ? m : n};
    double squares = 0.0;
    for (int64_t i = 0; i < m * n; ++i) {
        squares += (double)w[i] * (double)w[i];
    }
    ds_status status = isfinite(squares)
                           ? run(ctx, &l, r, sqrt(squares))
                           : ds_fail(ctx, DS_ERR_NUMERIC,
                                     "a matrix of %lld x %lld has an element that is not finite",
                                     (long long)m, (long long)n);
    if (status == DS_OK) {
        give(&l, r, u, s, v);
    }
    double *rooms[] = {l.u, l.v, l.alpha, l.beta, l.p, l.q, l.sigma};
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; ++i) {
        free(rooms[i]);
    }
    free(l.order);
    return status;
}
